"""New inputs without labels, for a trained network: arrays, a folder of images at any depth, one image, or a table."""

from collections.abc import Sequence
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
        names = sorted(find_images(path, path))
        if not names:
            raise DataError(f"{path} holds no image ({', '.join(SUFFIXES)}).")
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
