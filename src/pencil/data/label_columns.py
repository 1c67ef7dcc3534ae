"""Labels in the columns of a table: one class per row, a distribution, a list of classes, or several annotators."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from pencil.data.arrays import as_clean_labels, resolve_labels
from pencil.data.given import GivenLabels, about, as_indicators
from pencil.errors import DataError

Form = Literal["label", "votes", "shares", "indicators"]


def column_labels(
    columns: Sequence[Any], classes: Sequence[str] | None, form: Form, where: str, multilabel: bool | None = None
) -> GivenLabels:
    """Checked labels from Arrow columns; ``where`` names the table in messages."""
    if form == "indicators":
        values = np.column_stack([_numbers(column, where) for column in columns])
        assert classes is not None
        return GivenLabels(as_indicators(values), tuple(classes), multilabel=True)
    if form == "shares":
        shares = np.column_stack([_numbers(column, where) for column in columns])
        return resolve_labels(shares, classes, multilabel=False)
    if form == "votes":
        return _votes(columns, classes, where)
    column = columns[0]
    if _is_list(column):
        return _lists(column, classes, where, multilabel)
    names = class_names([column], classes)
    return GivenLabels(hard_column(column, names, where), names)


def clean_columns(columns: Sequence[Any], given: GivenLabels, where: str) -> Tensor | None:
    """Labels known to be right: one column like the given one, or a column for each of several classes at once."""
    with about("data.columns.clean"):
        if not given.multilabel and len(columns) > 1:
            raise DataError(f"there are {len(columns)} columns and the given labels are of one class; expected one.")
        if not given.multilabel:
            return hard_column(columns[0], given.classes, where)
        if len(columns) == 1 and _is_list(columns[0]):
            return as_clean_labels(_lists(columns[0], given.classes, where, multilabel=True).given, given)
        return as_clean_labels(np.column_stack([_numbers(column, where) for column in columns]), given)


def hard_column(column: Any, classes: tuple[str, ...], where: str) -> Tensor:
    """One class per row. Integers are indices, unless they are names of classes; anything else is a name."""
    return torch.from_numpy(_indices(column, classes, where, np.arange(len(column))))


def class_names(columns: Sequence[Any], classes: Sequence[str] | None) -> tuple[str, ...]:
    """The classes as given, or every value that occurs: numbers by size, words by alphabet."""
    if classes is not None:
        return tuple(map(str, classes))
    numeric = all(pa.types.is_integer(column.type) for column in columns)
    found = {value for column in columns for value in pc.unique(column.cast(pa.string())).to_pylist()} - {None}
    return tuple(sorted(found, key=int if numeric else str))


def _indices(column: Any, classes: tuple[str, ...], where: str, rows: np.ndarray) -> np.ndarray:
    """Indices of the classes that these values name; ``rows`` are the rows of the table they stand in."""
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
            f"({', '.join(classes[:5])}{', ...' if len(classes) > 5 else ''}); fix the label or add the class."
        )
    return values


def _votes(columns: Sequence[Any], classes: Sequence[str] | None, where: str) -> GivenLabels:
    """Every annotator's column has one vote per row, or none; the shares of the votes are the label."""
    names = class_names(columns, classes)
    shares = np.zeros((len(columns[0]), len(names)), dtype=np.float32)
    for column in columns:
        voted = np.flatnonzero(column.is_valid().to_numpy())
        if len(voted):
            codes = _indices(column.drop_null(), names, where, voted)
            shares[voted, codes] += 1
    counts = shares.sum(axis=1, keepdims=True)
    if not counts.all():
        row = int(counts[:, 0].argmin())
        raise DataError(f"row {row} of {where} has no annotator's label; expected at least one; remove the row.")
    return resolve_labels(shares / counts, names, multilabel=False)


def _lists(column: Any, classes: Sequence[str] | None, where: str, multilabel: bool | None) -> GivenLabels:
    """Lists of numbers are rows of a matrix (distributions, or 0 and 1); lists of names are the classes present."""
    _refuse_nulls(column, where, np.arange(len(column)))
    flat = pc.list_flatten(column)
    lengths = pc.list_value_length(column).to_numpy()
    if pa.types.is_floating(flat.type) or _is_matrix(flat, lengths):
        if len(set(lengths.tolist())) != 1:
            raise DataError(f"the lists of numbers in {where} have different lengths; expected one value per class.")
        return resolve_labels(flat.to_numpy().reshape(len(column), -1), classes, multilabel=multilabel)
    names, rows = class_names([flat], classes), np.repeat(np.arange(len(column)), lengths)
    present = np.zeros((len(column), len(names)), dtype=np.float32)
    np.add.at(present, (rows, _indices(flat, names, where, rows)), 1)
    if (present > 1).any():
        row = int((present > 1).any(axis=1).argmax())
        raise DataError(
            f"the list of classes at row {row} of {where} is {column[row].as_py()}; expected each class once; "
            "distributions are lists of floating point numbers."
        )
    return GivenLabels(as_indicators(present), names, multilabel=True)


def _is_list(column: Any) -> bool:
    kind = column.type
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _is_matrix(flat: Any, lengths: np.ndarray) -> bool:
    """Whether integers are 0 and 1 for every class rather than lists of classes, where none occurs twice in a row."""
    if not pa.types.is_integer(flat.type) or len(set(lengths.tolist())) != 1 or lengths[0] < 2:
        return False
    values = flat.drop_null().to_numpy()
    return bool(((values == 0) | (values == 1)).all())


def _numbers(column: Any, where: str) -> np.ndarray:
    try:
        values: np.ndarray = column.cast(pa.float32()).to_numpy()
    except pa.ArrowException as error:
        raise DataError(f"a label column of {where} is of type {column.type}; expected numbers 0 to 1.") from error
    return values


def _refuse_nulls(column: Any, where: str, rows: np.ndarray) -> None:
    if column.null_count:
        row = rows[pc.index(column.is_null(), True).as_py()]
        raise DataError(f"label at row {row} of {where} is missing; label the row or leave it out.")
