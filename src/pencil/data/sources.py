"""Where data comes from: a dataset by name, a folder per class, a table, an npz file, a Hugging Face dataset."""

import inspect
from collections.abc import Sequence
from pathlib import Path

from pencil.data import folder, table
from pencil.data.arrays import from_npz
from pencil.data.examples import Splits, refuse_other_kind
from pencil.data.given import about
from pencil.data.hugging_face import PREFIX, load_hugging_face
from pencil.data.named import DATASETS
from pencil.data.settings import FROM_PYTHON, DataSettings
from pencil.errors import DataError

FORMS = "a folder per class, a table (.csv, .tsv, .parquet), an .npz file, or hf/NAME"


def load(settings: DataSettings) -> Splits:
    """The splits that a recipe's ``[data]`` names, as they came: nothing chosen, corrupted or resized yet."""
    if settings.source == FROM_PYTHON:
        raise DataError("the data of this recipe came from Python; call pencil.fit again, or name data of your own.")
    splits = read_source(settings.source, settings)
    if settings.test is None:
        return splits
    with about("the test set"):
        test = read_like(settings.test, settings, splits.train.classes, splits.train.multilabel)
    return Splits(splits.train, splits.validation, test.train)


def read_like(source: str, settings: DataSettings, classes: Sequence[str], multilabel: bool) -> Splits:
    """A source whose labels must be of these classes and of this kind: to test on what was trained."""
    splits = read_source(source, settings.model_copy(update={"multilabel": multilabel}), classes)
    refuse_other_kind(splits.train, multilabel)
    return splits


def read_source(source: str, settings: DataSettings, classes: Sequence[str] | None = None) -> Splits:
    """One source by itself, read with these settings' columns, classes and options."""
    classes = settings.classes if classes is None else classes
    path = Path(source).expanduser()
    if source in DATASETS:
        return _of_classes(_named(source, settings), classes, source)
    if source.startswith(PREFIX):
        return load_hugging_face(source, settings.columns, classes, settings.options, settings.multilabel)
    if path.is_dir():
        return folder.from_folder(path, classes)
    if path.is_file() and path.suffix.lower() == ".npz":
        return from_npz(path, classes, settings.multilabel)
    if path.is_file() and path.suffix.lower() in table.SUFFIXES:
        return table.from_table(path, settings.columns, classes, settings.root, settings.multilabel)
    seen = "is neither" if path.exists() else "does not exist and is neither"
    raise DataError(
        f"{source!r} {seen} a dataset by name ({', '.join(DATASETS)}) nor {FORMS}; "
        "name one of them, or pass your data to pencil.fit."
    )


def is_source(what: str) -> bool:
    """Whether this names data, rather than a recipe."""
    path = Path(what).expanduser()
    return (
        what in DATASETS
        or what.startswith(PREFIX)
        or path.is_dir()
        or (path.is_file() and path.suffix.lower() in (".npz", *table.SUFFIXES))
    )


def _named(name: str, settings: DataSettings) -> Splits:
    loader = DATASETS[name]
    known = [option for option in inspect.signature(loader).parameters if option != "root"]
    for option in settings.options:
        if option not in known:
            takes = f"it takes {', '.join(known)}" if known else "it takes none"
            raise DataError(f"data.options has {option!r}, which dataset {name!r} does not know; {takes}.")
    return loader(settings.root, **settings.options)


def _of_classes(splits: Splits, classes: Sequence[str] | None, source: str) -> Splits:
    """The same splits, if their classes are those that are expected."""
    if classes is not None and tuple(classes) != splits.train.classes:
        raise DataError(
            f"{source!r} has the classes {', '.join(splits.train.classes[:5])}, ...; "
            f"expected {', '.join(classes[:5])}, ..., in this order."
        )
    return splits
