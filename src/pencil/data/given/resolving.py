"""Labels in any form, names and missing ones too, to class indices or probabilities and the names of their classes."""

import operator
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pencil.data.given.given_labels import (
    LARGEST_INDEX,
    UNLABELLED,
    GivenLabels,
    Keys,
    as_array,
    as_class_names,
    as_clean_indicators,
    as_given_labels,
    as_indicators,
    error_context,
    hard_labels,
    is_multilabel,
    is_nan,
    name_rows,
    shorten,
)
from pencil.errors import DataError, setting


def multilabel_hint() -> str:
    """Return how every column becomes a class that is present or not by itself."""
    return f"; with {setting('data.multilabel', True)} every column is a class that is present or not by itself"


def name_to_index(y: Any, classes: tuple[str, ...] | None) -> Any:
    """Return names as ``(indices, classes)``; anything numeric is returned as it is."""
    values = y if isinstance(y, Tensor) else as_array(y)
    if isinstance(values, Tensor) or values.dtype.kind in "buif":
        return y
    if values.dtype.kind not in "OSTU":
        raise DataError(
            f"the labels are of type {values.dtype}; expected class indices, names or probabilities; convert them."
        )
    values = values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values
    if values.ndim != 1:
        raise DataError(
            f"the labels are {values.dtype} of shape {values.shape}; expected one name for each row, or a matrix of "
            f"numbers with a column for each class{multilabel_hint()}, unknown (None) included."
        )
    return _index_names([_as_name(row, label) for row, label in enumerate(values)], classes)


def _index_names(labels: Sequence[str], classes: tuple[str, ...] | None, keys: Keys = None) -> Any:
    """Return ``(indices, classes)`` of labels that are names."""
    names = tuple(sorted(set(labels))) if classes is None else classes
    index = {name: i for i, name in enumerate(names)}
    bad = [row for row, label in enumerate(labels) if label not in index]
    if bad:
        raise DataError(
            f"label {labels[bad[0]]!r} at {name_rows(bad, keys)} is not one of the {len(names)} "
            f"classes; expected {shorten(names)}; fix the label or add the class."
        )
    return np.array([index[label] for label in labels], dtype=np.int64), names


def _as_name(row: int, label: Any) -> str:
    """Return the class that a label names; raise if it is missing (empty, None, NaN) or no name."""
    if isinstance(label, bytes):
        label = label.decode("utf-8", errors="replace")
    if _is_missing(label):
        raise DataError(f"label at row {row} is missing ({label}); expected a class; label the row or leave it out.")
    if not isinstance(label, (str, int, float, np.generic, Tensor)):
        raise DataError(f"label at row {row} is a {type(label).__name__}; expected a class; convert the labels.")
    name = str(label)
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise DataError(f"label {name!r} at row {row} is not valid text ({error.reason}); rename the class.") from error
    return name


def _is_missing(label: Any) -> bool:
    """Return whether a label is None, NaN or blank."""
    if isinstance(label, (str, bytes)):
        return not label.strip()
    return label is None or is_nan(label)


def resolve_labels(
    y: Any, classes: Sequence[str] | int | None, keys: np.ndarray | None = None, multilabel: bool | None = None
) -> GivenLabels:
    """Check labels in any form and derive their classes; a row without a label is unlabelled.

    Parameters
    ----------
    y
        Class indices, class names, label distributions or multi-label probabilities. In single-label data None, NaN and
        empty text mean that a row has no label, and so does -1 among indices into known classes.
    classes
        Class names in order, or their number; None derives them from the labels: integers by size, names by alphabet.
        Integers are indices into the classes, unless all classes are integers themselves.
    keys
        Names of the rows in messages.
    multilabel
        Whether the columns of a matrix are multi-label; None decides by its values.

    Raises
    ------
    DataError
        If a label is not as expected; the message names the first such rows.
    """
    names, count = _names_and_count(classes)
    values = as_array(y)
    if multilabel or (multilabel is None and is_multilabel(values)):
        given = as_indicators(values, count, keys=keys)
        return GivenLabels(given, names or tuple(map(str, range(given.shape[1]))), multilabel=True)
    indices = count is not None and not (names is not None and all(map(_is_integer, names)))
    values, missing = _without_missing(values, indices)
    labels = _as_indices(values, names, count, keys)
    if isinstance(labels, tuple):
        labels, names = labels
        count = len(names) if count is None else count
    given, count = as_given_labels(labels, count, keys=keys, hint=multilabel_hint() if multilabel is None else "")
    if missing is not None:
        given[torch.from_numpy(missing)] = UNLABELLED if given.ndim == 1 else torch.nan
    return GivenLabels(given, names or tuple(map(str, range(count))))


def _without_missing(values: np.ndarray, indices: bool) -> tuple[np.ndarray, np.ndarray | None]:
    """Return labels with some other label where there is none, so that rows keep their numbers, and which these are.

    Where numbers are indices into known classes, -1 is no class: it means that there is none.
    """
    values = values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values
    missing = np.zeros(len(values) if values.ndim else 0, dtype=bool)
    if values.dtype.kind == "f" and values.ndim in (1, 2):
        missing = np.isnan(values) if values.ndim == 1 else np.isnan(values).all(axis=1)
    if values.dtype.kind in "if" and values.ndim == 1 and indices:
        missing |= values == UNLABELLED
    elif values.dtype.kind in "OSTU" and values.ndim == 1:
        missing = np.array([_is_missing(label) for label in values], dtype=bool)
    if not missing.any():
        return values, None
    if missing.all():
        raise DataError(f"none of the {len(values)} rows has a label; expected labels of some rows; label them.")
    filled = values.copy()
    filled[missing] = values[int(missing.argmin())]
    if filled.dtype == object and all(isinstance(label, (int, np.integer)) for label in filled):
        filled = filled.astype(np.int64)
    return filled, missing


def _as_indices(values: np.ndarray, names: tuple[str, ...] | None, count: int | None, keys: Keys) -> Any:
    """Return ``(indices, classes)`` of names, and of integers that are names; other labels as they are."""
    if values.dtype.kind not in "buif" or values.ndim != 1 or not len(values):
        return name_to_index(values, names)
    if (values.dtype.kind == "f" and not (values == np.floor(values)).all()) or np.abs(values).max() > LARGEST_INDEX:
        return values  # which as_given_labels refuses
    whole = values.astype(np.int64)
    found = np.unique(whole)
    if names is None and count is None:
        ask_about_negative(found.tolist(), np.flatnonzero(whole == UNLABELLED).tolist(), keys=keys)
        in_order = np.array_equal(found, np.arange(len(found)))
        return whole if in_order else _index_names([str(label) for label in whole], tuple(map(str, found)))
    if names is not None and all(_is_integer(name) for name in names):
        return _index_names([str(label) for label in whole], names, keys)
    return whole


def ask_about_negative(found: Sequence[int], rows: Sequence[int], where: str = "", keys: Keys = None) -> None:
    """Raise if -1 stands beside several classes from 0: some write it for a row without a label, some for a class.

    Parameters
    ----------
    found
        The labels that occur, in ascending order.
    rows
        The rows with -1.
    where
        Names the table in the message.
    keys
        Names of the rows in the message.
    """
    if not rows or found[0] != UNLABELLED or len(found) < 3:
        return
    raise DataError(
        f"label -1 at {name_rows(rows, keys)}{f' of {where}' if where else ''} may be a class or mean that there is "
        "none; expected one of them; write NaN or None (in a table an empty cell) for a row without a label, or name "
        f"all classes with {setting('data.classes', ['-1', 'NAME'])}."
    )


def _is_integer(name: str) -> bool:
    return name.removeprefix("-").isdecimal() and str(int(name)) == name


def _names_and_count(classes: Any) -> tuple[tuple[str, ...] | None, int | None]:
    """Return class names, where there are any, and their number, where it is known."""
    if classes is None:
        return None, None
    if isinstance(classes, Iterable) and not isinstance(classes, (str, bytes)) and getattr(classes, "ndim", 1) == 1:
        names = as_class_names(classes)
        return names, len(names)
    try:
        count = operator.index(classes)
    except TypeError:
        raise DataError(
            f"classes is {classes!r}; expected a list of names, or their number; pass one of these."
        ) from None
    if count < 1:
        raise DataError(f"classes is {count}; expected at least one class; pass the names or their number.")
    return None, count


def as_clean_labels(labels: Any, classes: tuple[str, ...], multilabel: bool) -> Tensor | None:
    """Check labels that are known to be right; they have the classes and the form of the given labels."""
    if labels is None:
        return None
    with error_context("clean_labels"):
        if multilabel:
            return as_clean_indicators(labels, len(classes))
        named = _as_indices(as_array(labels), classes, None, None)
        indices = named[0] if isinstance(named, tuple) else named
        return hard_labels(as_given_labels(indices, len(classes))[0])
