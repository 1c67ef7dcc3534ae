"""A folder per class: the sub-folder of an image is its label, and its relative path is its key."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import numpy as np
import pyarrow as pa
from numpy.dtypes import StringDType

from pencil.data.bad_rows import BadRows
from pencil.data.given.from_columns import LabelCells
from pencil.data.given.given_labels import as_class_names, shorten
from pencil.data.given.label_rule import class_indices, not_one_of
from pencil.data.inputs.images import SUFFIXES, ImageFiles, ImageInputs
from pencil.data.rows import SPLIT_NAMES, Rows
from pencil.data.settings import DataSettings
from pencil.data.sources.regular_files import refuse_undecodable
from pencil.errors import DataError, DataWarning, warn
from pencil.terminal import agreed


def read(folder: Path, settings: DataSettings) -> Rows:
    """Return the rows of a folder of images.

    Parameters
    ----------
    folder
        Images in ``CLASS/*.jpg``, or in ``train/CLASS/*.jpg`` with ``val`` and ``test`` beside ``train``.
    settings
        ``classes``, by default the names of the sub-folders, sorted; and ``root``, a folder that links may point into,
        besides ``folder`` itself: images behind other links are not read.

    Raises
    ------
    DataError
        If there are no images, or a sub-folder is not one of the classes.
    """
    names = _subfolders(folder)
    if "train" not in names or not set(names) <= set(SPLIT_NAMES):
        return read_classes(folder, settings)
    if len({SPLIT_NAMES[name] for name in names}) < len(names):
        raise DataError(
            f"{folder} has several folders of one split: {', '.join(names)}; expected one of each, such as train, val "
            "and test; merge them."
        )
    rows = read_classes(folder, settings, "train")
    assert rows.labels is not None
    like = settings.model_copy(update={"classes": rows.labels.classes})
    others = {SPLIT_NAMES[name]: read_classes(folder, like, name) for name in names if name != "train"}
    return replace(rows, others=others)


def read_classes(root: Path, settings: DataSettings, split: str = "") -> Rows:
    """Return all images in the sub-folders of ``root / split``, one class each.

    Keys are relative to ``root``, so they begin with the split, and no two splits share a key.
    """
    folder = root / split
    found = _subfolders(folder)
    if not found:
        raise DataError(
            f"{folder} has no sub-folders; expected one per class that contains its images; "
            "sort the images into such folders."
        )
    images = {name: np.array(sorted(find_images(root, folder / name)), dtype=StringDType()) for name in found}
    images = _without_empty(folder, images)
    classes = as_class_names(images if settings.classes is None else settings.classes)
    names = list(images)
    _, wrong = class_indices(pa.array(names), classes)
    if wrong.any():
        name = names[int(wrong.argmax())]
        raise DataError(
            f"{folder} has the sub-folder {name!r}, which {not_one_of(classes, name)}; move it away or add the class."
        )
    paths = np.concatenate(list(images.values()))
    codes = np.repeat(np.arange(len(names), dtype=np.int32), [len(some) for some in images.values()])
    labels = LabelCells([pa.DictionaryArray.from_arrays(codes, names)], "label", classes, multilabel=False)
    within = (root,) if settings.root is None else (settings.root.expanduser(), root)
    return Rows(ImageInputs(ImageFiles(root, paths, within)), labels, paths, bad=BadRows(str(folder)))


def _without_empty(folder: Path, images: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the sub-folders with images, and warn about those without; raise if there are no images at all."""
    empty = [name for name, paths in images.items() if not len(paths)]
    if len(empty) == len(images):
        raise DataError(
            f"the sub-folders of {folder} contain no images; expected files that end in {', '.join(SUFFIXES)}; "
            "check the folder."
        )
    if empty:
        several = "contain no images and are not used as classes"
        warn(
            f"{len(empty)} of {len(images)} sub-folders of {folder} "
            f"{agreed(len(empty), 'contains no images and is not used as a class', several)}: "
            f"{shorten(list(map(repr, empty)))}",
            DataWarning,
        )
    return {name: paths for name, paths in images.items() if len(paths)}


def find_images(root: Path, folder: Path) -> Iterator[str]:
    """Yield the paths, relative to ``root``, of the images in a folder at any depth; folder links are not followed."""
    for place, inner, files in os.walk(folder, onerror=_refuse_folder):
        inner[:] = [entry for entry in inner if not entry.startswith(".")]
        relative = os.path.relpath(place, root).replace(os.sep, "/").removeprefix("./")
        for file in files:
            if not file.startswith(".") and file.lower().endswith(SUFFIXES):
                refuse_undecodable(os.path.join(place, file))  # noqa: PTH118 - one string per file is enough
                yield file if relative == "." else f"{relative}/{file}"


def _subfolders(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            found = [entry for entry in entries if not entry.name.startswith(".") and entry.is_dir()]
    except OSError as error:
        _refuse_folder(error, folder)
    for entry in found:
        refuse_undecodable(entry.path)
    return sorted(entry.name for entry in found)


def _refuse_folder(error: OSError, folder: Path | None = None) -> NoReturn:
    where = folder if error.filename is None else error.filename
    raise DataError(
        f"cannot read the folder {where}: {error.strerror}; expected a folder of images; check its permissions, and "
        "links in it."
    ) from error
