"""Labels in the columns of a table: one class per row, a distribution, a list of classes, or several annotators."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from pencil.data.arrays import resolve_labels
from pencil.data.given import as_indicators
from pencil.errors import DataError

Form = Literal["label", "votes", "shares", "indicators"]


@dataclass(frozen=True)
class TableLabels:
    given: Tensor
    classes: tuple[str, ...]
    multilabel: bool = False


def column_labels(columns: Sequence[Any], classes: Sequence[str] | None, form: Form, where: str) -> TableLabels:
    """Checked labels from Arrow columns; ``where`` names the table in messages."""
    if form == "indicators":
        values = np.column_stack([_numbers(column, where) for column in columns])
        assert classes is not None
        return TableLabels(as_indicators(values), tuple(classes), multilabel=True)
    if form == "shares":
        shares = np.column_stack([_numbers(column, where) for column in columns])
        return TableLabels(*resolve_labels(shares, classes))
    if form == "votes":
        return _votes(columns, classes, where)
    column = columns[0]
    if pa.types.is_list(column.type) or pa.types.is_large_list(column.type) or pa.types.is_fixed_size_list(column.type):
        return _lists(column, classes, where)
    names = class_names([column], classes)
    return TableLabels(hard_column(column, names, where), names)


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


def _votes(columns: Sequence[Any], classes: Sequence[str] | None, where: str) -> TableLabels:
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
    return TableLabels(resolve_labels(shares / counts, names)[0], names)


def _lists(column: Any, classes: Sequence[str] | None, where: str) -> TableLabels:
    """Lists of numbers are distributions (0 and 1: one-hot); lists of names are the classes present in the row."""
    _refuse_nulls(column, where, np.arange(len(column)))
    flat = pc.list_flatten(column)
    lengths = pc.list_value_length(column).to_numpy()
    if pa.types.is_floating(flat.type) or _is_one_hot(flat, lengths):
        if len(set(lengths.tolist())) != 1:
            raise DataError(f"the label distributions in {where} have different lengths; expected one value per class.")
        shares = flat.to_numpy().reshape(len(column), -1)
        return TableLabels(*resolve_labels(shares, classes if classes is not None else shares.shape[1]))
    names, rows = class_names([flat], classes), np.repeat(np.arange(len(column)), lengths)
    present = np.zeros((len(column), len(names)), dtype=np.float32)
    np.add.at(present, (rows, _indices(flat, names, where, rows)), 1)
    if (present > 1).any():
        row = int((present > 1).any(axis=1).argmax())
        raise DataError(
            f"the list of classes at row {row} of {where} is {column[row].as_py()}; expected each class once; "
            "distributions are lists of floating point numbers."
        )
    return TableLabels(as_indicators(present), names, multilabel=True)


def _is_one_hot(flat: Any, lengths: np.ndarray) -> bool:
    """Whether integers are one-hot rows rather than lists of classes: all of one length, a single 1 among zeros."""
    if not pa.types.is_integer(flat.type) or len(set(lengths.tolist())) != 1 or lengths[0] < 2:
        return False
    values = flat.to_numpy().reshape(len(lengths), -1)
    return bool(np.isin(values, (0, 1)).all() and (values.sum(axis=1) == 1).all())


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
