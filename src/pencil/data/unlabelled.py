"""New inputs without labels, for a trained network: arrays, folders of images at any depth, images, or a table."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from pencil.data.arrays import as_input_tensor, read_arrays
from pencil.data.examples import as_keys
from pencil.data.folder import find_images
from pencil.data.images import SUFFIXES, ImageFiles, ImageInputs
from pencil.data.inputs import Inputs, TensorInputs
from pencil.data.settings import DataSettings
from pencil.data.table import SUFFIXES as TABLES
from pencil.data.table import read_images
from pencil.errors import DataError


def read_inputs(path: Path, settings: DataSettings) -> tuple[Inputs, Sequence[str]]:
    """Inputs and their keys; ``settings`` say which columns of a table are meant."""
    if path.is_dir():
        names = _images_in(path)
        return ImageInputs(ImageFiles(path, as_keys(names))), names
    if path.suffix.lower() in SUFFIXES:
        if not path.is_file():
            raise DataError(f"{path} does not exist; expected an image.")
        return ImageInputs(ImageFiles(path.parent, as_keys([path.name]))), [path.name]
    if path.suffix in TABLES:
        inputs, keys = read_images(path, settings.columns, settings.root)
        return inputs, keys.tolist()
    values, given_keys = read_arrays(path)
    return TensorInputs(as_input_tensor(values)), given_keys


def read_several(paths: Sequence[Path], settings: DataSettings) -> tuple[Inputs, Sequence[str]]:
    """The same for any number of images and folders of images, whose paths are then the keys; each image once."""
    if len(paths) == 1:
        return read_inputs(paths[0], settings)
    names = list(dict.fromkeys(name for path in paths for name in _image_paths(path)))
    return ImageInputs(ImageFiles(Path(), as_keys(names))), names


def _image_paths(path: Path) -> Iterator[str]:
    if path.is_dir():
        yield from (str(path / name) for name in _images_in(path))
    elif not path.exists():
        raise DataError(f"{path} does not exist; expected an image, or a folder of images.")
    elif path.suffix.lower() not in SUFFIXES:
        raise DataError(
            f"{path} is no image ({', '.join(SUFFIXES)}); several inputs at once are images and folders of images; "
            "name a table or arrays by themselves."
        )
    else:
        yield str(path)


def _images_in(folder: Path) -> list[str]:
    names = sorted(find_images(folder, folder))
    if not names:
        raise DataError(f"{folder} holds no image ({', '.join(SUFFIXES)}).")
    return names
