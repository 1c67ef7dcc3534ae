"""Sources of data: a dataset by name, a folder per class or of shards, a table, an npz file, a Hugging Face dataset.

:func:`load` reads labelled data to train or test on, :func:`read_inputs` unlabelled inputs for a trained network.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from pencil.data.columns import LABEL_COLUMNS, UnknownColumnError, as_names, usual_name
from pencil.data.datasets import DATASETS
from pencil.data.examples import Splits, refuse_other_kind
from pencil.data.given.given_labels import error_context, shorten
from pencil.data.inputs.base import Inputs
from pencil.data.inputs.images import SUFFIXES, ImageFiles, ImageInputs
from pencil.data.keys import as_keys
from pencil.data.rows import Rows, to_splits
from pencil.data.settings import FROM_PYTHON, DataSettings
from pencil.data.sources import arrays, folder, hugging_face_datasets, label_studio, shards, table, tar_shards
from pencil.data.sources.hugging_face_datasets import PREFIX
from pencil.data.sources.regular_files import refuse_undecodable
from pencil.data.trained_on import InputKind, kind_of, kind_of_path
from pencil.data.unlabelled import set_apart
from pencil.errors import DataError, DataWarning, settings_fixed, warn
from pencil.terminal import agreed, counted


@dataclass(frozen=True)
class FileFormat:
    """A file format that data is read from. A new one is a module with a reader, and a line in ``FILE_FORMATS``.

    ``read(path, settings)`` returns labelled :class:`~pencil.data.rows.Rows`; ``read(path, settings, new=True)``
    returns new inputs for a trained network, without labels. Suffixes are in lower case.
    """

    name: str
    suffixes: tuple[str, ...]
    read: Callable[..., Rows]


FILE_FORMATS = (
    FileFormat("a table", table.SUFFIXES, table.read),
    FileFormat("an array file", (".npz",), arrays.read),
    FileFormat("an export of Label Studio", (".json",), label_studio.read),
    FileFormat("a WebDataset", tar_shards.SUFFIXES, shards.read),
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

    If ``local``, only what is already on this machine is read: the network is not used and no folders are created.
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
    source: str,
    settings: DataSettings,
    classes: Sequence[str],
    multilabel: bool,
    *,
    local: bool = False,
    kind: InputKind | None = None,
) -> Splits:
    """Read a source whose labels must have these classes and this form: test data for a trained network.

    Its label column may have another common name than in training. Rows without a label are ignored, and counted in a
    warning. Inputs that a network trained on this ``kind`` does not take are refused before labels are read.
    """
    settings, label = settings.model_copy(update={"multilabel": multilabel}), as_names(settings.columns.label)
    try:
        splits = read_source(source, settings, classes, local=local, kind=kind)
    except UnknownColumnError as error:
        if error.names != label or usual_name(label, LABEL_COLUMNS) is None:
            raise
        unnamed = settings.columns.model_copy(update={"label": None})
        unnamed_settings = settings.model_copy(update={"columns": unnamed})
        splits = read_source(source, unnamed_settings, classes, local=local, kind=kind)
    refuse_other_kind(splits.train, multilabel)
    if splits.unlabelled is not None:
        count = len(splits.unlabelled)
        have, are = agreed(count, "has", "have"), agreed(count, "is", "are")
        warn(f"{counted(count, 'row')} of {source} {have} no label and {are} ignored", DataWarning)
    return replace(splits, unlabelled=None)


def read_source(
    source: str,
    settings: DataSettings,
    classes: Sequence[str] | None = None,
    *,
    local: bool = False,
    kind: InputKind | None = None,
) -> Splits:
    """Read one source with the columns, classes and options of these settings; unlabelled rows are separated.

    Inputs that a network trained on this ``kind`` does not take are refused.
    """
    if classes is not None:
        settings = settings.model_copy(update={"classes": tuple(classes)})
    if source in DATASETS:
        return set_apart(_named(source, settings, local))
    try:
        _refuse_path(as_path(source), settings, kind)
        rows = _rows(source, settings, local)
        if kind is not None:
            kind.refuse(kind_of(rows.inputs), source)
        return set_apart(to_splits(rows, settings.bad_rows))
    finally:
        pa.default_memory_pool().release_unused()  # the rows of a table are gone, but Arrow would keep the memory


def _rows(source: str, settings: DataSettings, local: bool) -> Rows:
    """Return the rows of a source, whatever its form."""
    path = as_path(source)
    if source.startswith(PREFIX):
        if local:
            hugging_face_datasets.refuse_remote(source, settings.options)
        return hugging_face_datasets.read(source, settings)
    if path.is_dir():
        if shards.find_shards(path):
            return shards.read(path, settings)
        shards.refuse_misplaced(path)
        return folder.read(path, settings)
    form = _format_of(path)
    if form is not None and path.is_file():
        return form.read(path, settings)
    if local and not path.exists():
        raise DataError(
            f"the data of this run is missing: {source!r} does not exist; restore it, or put a link to it there."
        )
    seen = "is neither" if path.exists() else "does not exist and is neither"
    raise DataError(
        f"{source!r} {seen} a dataset by name ({', '.join(DATASETS)}) nor {FORMS}; "
        "pass one of them, or pass your data to pencil.fit."
    )


def _refuse_path(path: Path, settings: DataSettings, kind: InputKind | None) -> None:
    """Raise if names of files and columns show inputs that a network trained on this kind does not take."""
    seen = None if kind is None else kind_of_path(path, settings)
    if kind is not None and seen is not None:
        kind.refuse(seen, str(path))


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
    splits = loader(settings.root, **{**settings.options, **no_download})
    if settings.classes is not None and settings.classes != splits.train.classes:
        raise DataError(
            f"{name!r} has the classes {shorten(splits.train.classes)}; expected {shorten(settings.classes)}, in this "
            "order; remove data.classes or choose other data."
        )
    return splits


def read_inputs(
    paths: Sequence[Path], settings: DataSettings, kind: InputKind | None = None
) -> tuple[Inputs, Sequence[str]]:
    """Read new inputs without labels, and their keys; refuse what a network trained on this ``kind`` does not take.

    ``paths`` are one folder of images at any depth, image, table, npz or npy file; or several images and folders,
    whose paths are then the keys, each image once.
    """
    for path in paths:
        _refuse_path(as_path(path), settings, kind)
    if len(paths) == 1:
        with settings_fixed():
            rows = _new_rows(paths[0], settings)
        if kind is not None:
            kind.refuse(kind_of(rows.inputs), str(paths[0]))
        return rows.inputs, rows.keys.tolist()
    names = list(dict.fromkeys(name for path in paths for name in _image_paths(path)))
    return ImageInputs(ImageFiles(Path(), as_keys(names), within=tuple(paths))), names


def _new_rows(path: Path, settings: DataSettings) -> Rows:
    """Return the rows of one source of new inputs, without labels."""
    if path.is_dir() and not shards.find_shards(path):
        shards.refuse_misplaced(path)
        names = as_keys(_images_in(path))
        return Rows(ImageInputs(ImageFiles(path, names, within=(path,))), None, names)
    if path.suffix.lower() in SUFFIXES:
        if not path.is_file():
            raise DataError(f"{path} does not exist; expected an image; check the path.")
        names = as_keys([path.name])
        return Rows(ImageInputs(ImageFiles(path.parent, names)), None, names)
    form = _format_of(path)
    read = shards.read if path.is_dir() else arrays.read if form is None else form.read
    return read(path, settings, new=True)


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
