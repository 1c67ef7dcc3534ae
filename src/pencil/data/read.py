"""Sources of data: a dataset by name, a folder per class or of shards, a table, an npz file, a Hugging Face dataset.

:func:`load` reads labelled data to train or test on, :func:`read_inputs` unlabelled inputs for a trained network.
"""

import inspect
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pencil.data.datasets import DATASETS
from pencil.data.examples import Splits, refuse_other_kind
from pencil.data.given.given_labels import error_context, shorten
from pencil.data.inputs.base import Inputs
from pencil.data.inputs.images import SUFFIXES, ImageFiles, ImageInputs
from pencil.data.keys import as_keys
from pencil.data.settings import FROM_PYTHON, DataSettings
from pencil.data.sources import folder, shards, table, tar_shards
from pencil.data.sources.arrays import as_inputs, from_npz, read_arrays
from pencil.data.sources.hugging_face_datasets import PREFIX, load_hugging_face, refuse_remote
from pencil.data.sources.regular_files import refuse_undecodable
from pencil.data.unlabelled import set_apart
from pencil.errors import DataError


@dataclass(frozen=True)
class FileFormat:
    """A file format that data is read from. A new one is a module with two readers, and a line in ``FILE_FORMATS``.

    Parameters
    ----------
    name
        Name in messages.
    suffixes
        The file suffixes, in lower case.
    read
        ``read(path, settings, classes)`` returns the labelled :class:`Splits`.
    read_inputs
        ``read_inputs(path, settings)`` returns inputs without labels, and their keys.
    """

    name: str
    suffixes: tuple[str, ...]
    read: Callable[[Path, DataSettings, Sequence[str] | None], Splits]
    read_inputs: Callable[[Path, DataSettings], tuple[Inputs, Sequence[str]]]


def _read_npz(path: Path, settings: DataSettings, classes: Sequence[str] | None) -> Splits:
    return from_npz(path, classes, settings.multilabel)


def _read_array_inputs(path: Path, _settings: DataSettings) -> tuple[Inputs, Sequence[str]]:
    values, keys = read_arrays(path)
    return as_inputs(values), keys


def _read_table(path: Path, settings: DataSettings, classes: Sequence[str] | None) -> Splits:
    return table.from_table(
        path, settings.columns, classes, settings.root, settings.multilabel, settings.delimiter, settings.bad_rows
    )


def _read_table_inputs(path: Path, settings: DataSettings) -> tuple[Inputs, Sequence[str]]:
    inputs, keys = table.read_unlabelled(path, settings.columns, settings.root, settings.delimiter)
    return inputs, keys.tolist()


FILE_FORMATS = (
    FileFormat("a table", table.SUFFIXES, _read_table, _read_table_inputs),
    FileFormat("an array file", (".npz",), _read_npz, _read_array_inputs),
    FileFormat("a WebDataset", tar_shards.SUFFIXES, shards.from_shards, shards.read_shard_inputs),
)
FORMS = ", ".join(
    [
        "a folder per class, or of shards",
        *(f"{one.name} ({', '.join(one.suffixes)})" for one in FILE_FORMATS),
        f"or {PREFIX}NAME",
    ]
)


def _format_of(path: Path) -> FileFormat | None:
    return next((one for one in FILE_FORMATS if path.suffix.lower() in one.suffixes), None)


def load(settings: DataSettings, *, local: bool = False) -> Splits:
    """Load the splits of the ``[data]`` part of a recipe; nothing is selected, corrupted or resized yet.

    Parameters
    ----------
    settings
        ``source`` and ``test``, and how to read them.
    local
        Read only what is already on this machine: the network is not used and no folders are created.

    Raises
    ------
    DataError
        If a source does not exist or cannot be read.
    """
    if settings.source == FROM_PYTHON:
        raise DataError(
            "the data of this recipe was passed as Python objects; expected a source to load; call pencil.fit "
            "again, or set data.source."
        )
    splits = read_source(settings.source, settings, local=local)
    if settings.test is None:
        return splits
    table = splits.train.table
    like = settings if table is None else settings.model_copy(update={"columns": table.with_key(settings.columns)})
    with error_context("the test set"):
        test = read_like(settings.test, like, splits.train.classes, splits.train.multilabel, local=local)
    return replace(splits, test=test.train)


def read_like(
    source: str, settings: DataSettings, classes: Sequence[str], multilabel: bool, *, local: bool = False
) -> Splits:
    """Read a source whose labels must have these classes and this form: test data for a trained network.

    Rows without a label are ignored, and counted in a warning.
    """
    splits = read_source(source, settings.model_copy(update={"multilabel": multilabel}), classes, local=local)
    refuse_other_kind(splits.train, multilabel)
    if splits.unlabelled is not None:
        warnings.warn(f"{len(splits.unlabelled):,} rows of {source} have no label and are ignored", stacklevel=3)
    return replace(splits, unlabelled=None)


def read_source(
    source: str, settings: DataSettings, classes: Sequence[str] | None = None, *, local: bool = False
) -> Splits:
    """Read one source with the columns, classes and options of these settings; unlabelled rows are separated.

    Parameters
    ----------
    source
        The name of a dataset, a folder, a file, or ``hf/NAME``.
    settings
        How to read it.
    classes
        Class names in order; by default from the settings.
    local
        Read only what is already on this machine, as in :func:`load`.
    """
    return set_apart(_read_any(source, settings, settings.classes if classes is None else classes, local))


def _read_any(source: str, settings: DataSettings, classes: Sequence[str] | None, local: bool) -> Splits:
    path = as_path(source)
    if source in DATASETS:
        return _of_classes(_named(source, settings, local), classes, source)
    if source.startswith(PREFIX):
        if local:
            refuse_remote(source, settings.options)
        return load_hugging_face(source, settings.columns, classes, settings.options, settings.multilabel)
    if path.is_dir():
        if shards.find_shards(path):
            return shards.from_shards(path, settings, classes)
        shards.refuse_misplaced(path)
        return folder.from_folder(path, classes, settings.root)
    form = _format_of(path)
    if form is not None and path.is_file():
        return form.read(path, settings, classes)
    seen = "is neither" if path.exists() else "does not exist and is neither"
    raise DataError(
        f"{source!r} {seen} a dataset by name ({', '.join(DATASETS)}) nor {FORMS}; "
        "pass one of them, or pass your data to pencil.fit."
    )


def is_source(what: str) -> bool:
    """Return whether this is the name of data rather than of a recipe."""
    path = as_path(what)
    return (
        what in DATASETS
        or what.startswith(PREFIX)
        or path.is_dir()
        or (path.is_file() and _format_of(path) is not None)
    )


def as_path(source: str | Path) -> Path:
    """Return the user's path; raise if it is not a valid path, or its folder is not accessible."""
    refuse_undecodable(source)
    try:
        path = Path(source).expanduser()
        path.exists()
    except (OSError, RuntimeError, ValueError) as error:
        seen, reason = str(source), getattr(error, "strerror", None) or str(error)
        raise DataError(
            f"cannot look for {seen[:80]}{'...' if len(seen) > 80 else ''}: {reason}; expected a dataset by name, or "
            f"{FORMS}; check the path."
        ) from error
    return path


def _named(name: str, settings: DataSettings, local: bool) -> Splits:
    loader = DATASETS[name]
    known = [option for option in inspect.signature(loader).parameters if option != "root"]
    for option in settings.options:
        if option not in known:
            expected = ", ".join(known) or "none"
            raise DataError(
                f"data.options has the unknown entry {option!r} for dataset {name!r}; expected {expected}; remove it."
            )
    no_download = {"download": False} if local and "download" in known else {}
    return loader(settings.root, **{**settings.options, **no_download})


def _of_classes(splits: Splits, classes: Sequence[str] | None, source: str) -> Splits:
    """Return the same splits; raise if their classes are not the expected ones."""
    if classes is not None and tuple(classes) != splits.train.classes:
        raise DataError(
            f"{source!r} has the classes {shorten(splits.train.classes)}; expected {shorten(classes)}, in this order; "
            "remove data.classes or choose other data."
        )
    return splits


def read_inputs(paths: Sequence[Path], settings: DataSettings) -> tuple[Inputs, Sequence[str]]:
    """Read new inputs without labels.

    Parameters
    ----------
    paths
        One folder of images at any depth, image, table, npz or npy file; or several images and folders, whose paths are
        then the keys, each image once.
    settings
        The roles of table columns.

    Returns
    -------
    tuple
        The inputs and their keys.
    """
    for path in paths:
        as_path(path)
    if len(paths) == 1:
        return _read_one(paths[0], settings)
    names = list(dict.fromkeys(name for path in paths for name in _image_paths(path)))
    return ImageInputs(ImageFiles(Path(), as_keys(names), within=tuple(paths))), names


def _read_one(path: Path, settings: DataSettings) -> tuple[Inputs, Sequence[str]]:
    if path.is_dir() and shards.find_shards(path):
        return shards.read_shard_inputs(path, settings)
    if path.is_dir():
        shards.refuse_misplaced(path)
        names = _images_in(path)
        return ImageInputs(ImageFiles(path, as_keys(names), within=(path,))), names
    if path.suffix.lower() in SUFFIXES:
        if not path.is_file():
            raise DataError(f"{path} does not exist; expected an image; check the path.")
        return ImageInputs(ImageFiles(path.parent, as_keys([path.name]))), [path.name]
    form = _format_of(path)
    return (_read_array_inputs if form is None else form.read_inputs)(path, settings)


def _image_paths(path: Path) -> Iterator[str]:
    if path.is_dir():
        yield from (str(path / name) for name in _images_in(path))
    elif not path.exists():
        raise DataError(f"{path} does not exist; expected an image, or a folder of images; check the path.")
    elif path.suffix.lower() not in SUFFIXES:
        raise DataError(
            f"{path} is not an image; several inputs must be images ({', '.join(SUFFIXES)}) or folders of images; "
            "pass a table or arrays on their own."
        )
    else:
        yield str(path)


def _images_in(path: Path) -> list[str]:
    names = sorted(folder.find_images(path, path))
    if not names:
        raise DataError(f"{path} contains no images; expected files ending in {', '.join(SUFFIXES)}; check the folder.")
    return names
