"""Labels in the columns of a table: one class, a distribution, a list of classes, or several annotators per row."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from pencil.data.given import (
    GivenLabels,
    as_class_names,
    as_clean_labels,
    as_indicators,
    error_context,
    resolve_labels,
    shorten,
)
from pencil.errors import DataError

Form = Literal["label", "votes", "probabilities", "indicators"]


def column_labels(
    columns: Sequence[Any], classes: Sequence[str] | None, form: Form, where: str, multilabel: bool | None = None
) -> GivenLabels:
    """Check and return the labels in some columns.

    Parameters
    ----------
    columns
        Arrow columns.
    classes
        Class names in order; None derives them from the values.
    form
        One "label" column; one column of "votes" per annotator; or one column per class with "probabilities" that sum
        to 1 in every row, or with multi-label "indicators".
    where
        Names the table in messages.
    multilabel
        Whether lists of numbers are multi-label; None decides by their values.

    Raises
    ------
    DataError
        If a label is not as expected; the message names the row.
    """
    if form == "indicators":
        values = np.column_stack([_numbers(column, where) for column in columns])
        assert classes is not None
        return GivenLabels(as_indicators(values), as_class_names(classes), multilabel=True)
    if form == "probabilities":
        values = np.column_stack([_numbers(column, where) for column in columns])
        return resolve_labels(values, classes, multilabel=False)
    if form == "votes":
        return _votes(columns, classes, where)
    column = columns[0]
    if _is_list(column):
        return _lists(column, classes, where, multilabel)
    names = class_names([column], classes)
    return GivenLabels(hard_column(column, names, where), names)


def clean_columns(columns: Sequence[Any], given: GivenLabels, where: str) -> Tensor | None:
    """Return labels known to be right: one column like the given label, or one per class of multi-label data."""
    with error_context("data.columns.clean"):
        if not given.multilabel and len(columns) > 1:
            raise DataError(
                f"there are {len(columns)} columns and the given labels are single-label; expected one column; name it."
            )
        if not given.multilabel:
            return hard_column(columns[0], given.classes, where)
        if len(columns) == 1 and _is_list(columns[0]):
            values: Any = _lists(columns[0], given.classes, where, multilabel=True).given
        else:
            values = np.column_stack([_numbers(column, where) for column in columns])
        return as_clean_labels(values, given.classes, given.multilabel)


def hard_column(column: Any, classes: tuple[str, ...], where: str) -> Tensor:
    """Return one class index per row. Integers are indices, unless classes have such names; other values are names."""
    return torch.from_numpy(_indices(column, classes, where, np.arange(len(column))))


def class_names(columns: Sequence[Any], classes: Sequence[str] | None) -> tuple[str, ...]:
    """Return the classes as given, or every value that occurs: numbers by size, words by alphabet."""
    if classes is not None:
        return as_class_names(classes)
    numeric = all(pa.types.is_integer(column.type) for column in columns)
    found = {value for column in columns for value in pc.unique(column.cast(pa.string())).to_pylist()} - {None}
    return as_class_names(sorted(found, key=int if numeric else str))


def _indices(column: Any, classes: tuple[str, ...], where: str, rows: np.ndarray) -> np.ndarray:
    """Return the indices of the classes that these values name; ``rows`` are their rows in the table."""
    _refuse_nulls(column, where, rows)
    text = column.cast(pa.string())
    if pa.types.is_integer(column.type) and not any(name.lstrip("-").isdigit() for name in classes):
        values: np.ndarray = column.to_numpy().astype(np.int64)
        bad = (values < 0) | (values >= len(classes))
    else:
        codes = pc.index_in(text, value_set=pa.array(classes, pa.string()))
        values = codes.fill_null(0).to_numpy().astype(np.int64)
        bad = np.asarray(codes.is_null())
    if bad.any():
        first = int(bad.argmax())
        raise DataError(
            f"label {column[first].as_py()!r} at row {rows[first]} of {where} is not one of the {len(classes)} classes "
            f"({shorten(classes)}); fix the label or add the class."
        )
    return values


def _votes(columns: Sequence[Any], classes: Sequence[str] | None, where: str) -> GivenLabels:
    """Return the fractions of the votes per class; every annotator's column has one vote per row, or none."""
    names = class_names(columns, classes)
    votes = np.zeros((len(columns[0]), len(names)), dtype=np.float32)
    for column in columns:
        voted = np.flatnonzero(column.is_valid().to_numpy())
        if len(voted):
            codes = _indices(column.drop_null(), names, where, voted)
            votes[voted, codes] += 1
    counts = votes.sum(axis=1, keepdims=True)
    if not counts.all():
        row = int(counts[:, 0].argmin())
        raise DataError(f"row {row} of {where} has no annotator's label; expected at least one; remove the row.")
    return resolve_labels(votes / counts, names, multilabel=False)


def _lists(column: Any, classes: Sequence[str] | None, where: str, multilabel: bool | None) -> GivenLabels:
    """Return labels from lists: numbers are rows of a matrix (distributions, or 0 and 1), names the classes present."""
    _refuse_nulls(column, where, np.arange(len(column)))
    flat = pc.list_flatten(column)
    lengths = pc.list_value_length(column).to_numpy()
    if pa.types.is_floating(flat.type) or _is_matrix(flat, lengths):
        if len(set(lengths.tolist())) != 1:
            raise DataError(
                f"the lists of numbers in {where} have different lengths; expected one value per class; fix the lists."
            )
        return resolve_labels(flat.to_numpy().reshape(len(column), -1), classes, multilabel=multilabel)
    names, rows = class_names([flat], classes), np.repeat(np.arange(len(column)), lengths)
    present = np.zeros((len(column), len(names)), dtype=np.float32)
    np.add.at(present, (rows, _indices(flat, names, where, rows)), 1)
    if (present > 1).any():
        row = int((present > 1).any(axis=1).argmax())
        raise DataError(
            f"the list of classes at row {row} of {where} is {column[row].as_py()}; expected each class once; "
            "write distributions as floating point numbers."
        )
    return GivenLabels(as_indicators(present), names, multilabel=True)


def _is_list(column: Any) -> bool:
    kind = column.type
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _is_matrix(flat: Any, lengths: np.ndarray) -> bool:
    """Return whether integers are 0 and 1 for every class, rather than class indices, which occur once per row."""
    if not pa.types.is_integer(flat.type) or len(set(lengths.tolist())) != 1 or lengths[0] < 2:
        return False
    values = flat.drop_null().to_numpy()
    return bool(((values == 0) | (values == 1)).all())


def _numbers(column: Any, where: str) -> np.ndarray:
    try:
        values: np.ndarray = column.cast(pa.float32()).to_numpy()
    except pa.ArrowException as error:
        raise DataError(
            f"a label column of {where} is of type {column.type}; expected numbers 0 to 1; convert it."
        ) from error
    return values


def _refuse_nulls(column: Any, where: str, rows: np.ndarray) -> None:
    if column.null_count:
        row = rows[pc.index(column.is_null(), True).as_py()]
        raise DataError(f"label at row {row} of {where} is missing; expected a class; label the row or leave it out.")
