"""Labels in any form, names and missing ones too, to class indices or probabilities and the names of their classes."""

import operator
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from pencil.data.given.given_labels import (
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
    lacks_label,
    name_rows,
    shorten,
)
from pencil.data.given.label_rule import class_indices, class_names, not_one_of
from pencil.errors import DataError, setting


def multilabel_hint() -> str:
    """Return how every column becomes a class that is present or not by itself."""
    return f"; with {setting('data.multilabel', True)} every column is a class that is present or not by itself"


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
        :mod:`pencil.data.given.label_rule` says which class a label is.
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
    values = values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values
    if values.ndim == 1 and len(values):
        return _one_class_each(_as_column(values), names, count, keys)
    hint = multilabel_hint() if multilabel is None else ""
    given, count = _distributions(values, count, keys, hint)
    return GivenLabels(given, names or tuple(map(str, range(count))))


def _one_class_each(column: Any, names: tuple[str, ...] | None, count: int | None, keys: Keys) -> GivenLabels:
    """Return the classes of labels, one in each row; where only their number is known, integers are indices."""
    numbered = names is None and count is not None and not pa.types.is_string(column.type)
    if numbered:
        names = tuple(map(str, range(count or 0)))
    elif names is None:
        names = class_names([column], None, keys=keys)
        if count is not None and len(names) > count:
            raise DataError(
                f"the labels have {len(names)} classes ({shorten(list(map(repr, names)))}) and classes is {count}; "
                f"expected at most as many; pass classes={len(names)} or fix the labels."
            )
    indices, wrong = class_indices(column, names, numbered=numbered)
    if wrong.any():
        rows = np.flatnonzero(wrong).tolist()
        label, where = column[rows[0]].as_py(), name_rows(rows, keys)
        if numbered:
            may_be = label >= 0 and float(label).is_integer()
            remedy = f"pass classes={int(label) + 1} or fix the label" if may_be else "fix the label"
            raise DataError(f"label {label} at {where} does not fit {count} classes (0..{len(names) - 1}); {remedy}.")
        raise DataError(
            f"label {label!r} at {where} {not_one_of(names, label)}; fix the label, or name all classes with "
            f"{setting('data.classes', ['NAME', 'NAME'])}."
        )
    return GivenLabels(torch.from_numpy(indices), names)


def _distributions(values: np.ndarray, count: int | None, keys: Keys, hint: str) -> tuple[Tensor, int]:
    """Return label distributions, NaN in the rows that have no label, and the number of classes."""
    if values.dtype.kind not in "buif":
        raise DataError(
            f"the labels are {values.dtype} of shape {values.shape}; expected one name for each row, or a matrix of "
            f"numbers with a column for each class{multilabel_hint()}, unknown (None) included."
        )
    missing = np.isnan(values).all(axis=1) if values.ndim == 2 else np.zeros(len(values), dtype=bool)
    if len(values) and missing.all():
        raise DataError(f"none of the {len(values)} rows has a label; expected labels of some rows; label them.")
    filled = values
    if missing.any():  # by some other row, so that rows keep their numbers in messages
        filled = values.copy()
        filled[missing] = values[int(missing.argmin())]
    given, count = as_given_labels(filled, count, keys=keys, hint=hint)
    given[torch.from_numpy(missing)] = torch.nan
    return given, count


def _as_column(values: np.ndarray) -> Any:
    """Return an array of labels as a column; objects are integers, floats or truth values if all of them are."""
    if values.dtype.kind in "buif":
        values = values.astype(np.float64) if values.dtype.itemsize > 8 else values  # long double
        return pa.array(values if values.dtype.isnative else values.astype(values.dtype.newbyteorder("=")))
    if values.dtype.kind not in "OSTU":
        raise DataError(
            f"the labels are of type {values.dtype}; expected class indices, names or probabilities; convert them."
        )
    labels = [_as_label(row, label) for row, label in enumerate(values)]
    kinds = {type(label) for label in labels} - {type(None)}
    if kinds in ({float}, {int, float}):
        return pa.array(np.array(labels, dtype=np.float64))
    if len(kinds) > 1 or any(isinstance(label, int) and abs(label) >= 2**63 for label in labels):
        labels = [None if label is None else str(label) for label in labels]
    return pa.array(labels)


def _as_label(row: int, label: Any) -> Any:
    """Return a label as text, a number or a truth value; None if it is missing (None, NaN, blank)."""
    if isinstance(label, (np.generic, Tensor)):
        label = label.item() if label.ndim == 0 and isinstance(label.item(), (int, float, str, bytes)) else str(label)
    if isinstance(label, bytes):
        label = label.decode("utf-8", errors="replace")
    if label is None or is_nan(label) or (isinstance(label, str) and not label.strip()):
        return None
    if not isinstance(label, (str, int, float)):
        raise DataError(f"label at row {row} is a {type(label).__name__}; expected a class; convert the labels.")
    try:
        str(label).encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"label {label!r} at row {row} is not valid text ({error.reason}); rename the class."
        ) from error
    return label


def as_named(indices: np.ndarray, names: Sequence[str]) -> np.ndarray:
    """Return the integers of a dataset as the names that it has for them; None for -1, a missing label.

    Raises
    ------
    DataError
        If there is no name for an integer.
    """
    outside = np.flatnonzero((indices < UNLABELLED) | (indices >= len(names)))
    if len(outside):
        raise DataError(
            f"label {indices[outside[0]]} at {name_rows(outside.tolist())} does not fit the {len(names)} classes of "
            f"the dataset (0..{len(names) - 1}); fix the label, or the class names of the dataset."
        )
    named: np.ndarray = np.array([*names, None], dtype=object)[indices]  # -1 is the last of them
    return named


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
        clean = resolve_labels(labels, classes, multilabel=False).given
        missing = lacks_label(clean, multilabel).nonzero()[:, 0].tolist()
        if missing:
            raise DataError(
                f"label at {name_rows(missing)} is missing; expected a class; label the row or leave it out."
            )
        return hard_labels(clean)
