"""Label cells: what every source holds for labels, in columns or in memory, and how they become classes.

A row of a table has one class, a distribution, a list of classes, or the votes of several annotators.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from pencil.data.bad_rows import BadRows
from pencil.data.given.given_labels import (
    GivenLabels,
    as_class_names,
    as_indicators,
    error_context,
    is_distribution,
    is_multilabel,
    name_rows,
)
from pencil.data.given.label_rule import as_labels, class_indices, class_names, not_one_of
from pencil.data.given.resolving import as_clean_labels, resolve_labels
from pencil.data.given.same_values import are_truth, truth_as_numbers
from pencil.data.given.votes import Votes, votes_of_columns
from pencil.data.roles import is_list, is_string
from pencil.errors import DataError, setting
from pencil.formulas import unescape_formula

SEPARATORS = (";", "|", ",")
"""What may stand between several classes in one cell; the first of them is what pencil writes."""

Form = Literal["values", "label", "votes", "answers", "probabilities", "indicators"]


@dataclass(frozen=True)
class LabelCells:
    """Labels as a source holds them; :func:`read_cells` decides which class each of them is.

    Parameters
    ----------
    given
        Arrow columns, or for the form "values" anything that NumPy can represent.
    form
        "values" in memory; one "label" column; one column of "votes" per annotator; one column of "answers", several
        for a row; or one column per class with "probabilities" that sum to 1 in every row, or with multi-label
        "indicators".
    classes
        Class names in order, or for values also their number; None derives them from the labels.
    multilabel
        Whether numbers, or texts such as ``sea;sky``, are multi-label; None decides by their values.
    clean
        Labels known to be right, only for metrics: columns or values, like ``given``.
    annotators
        The names of the annotators of votes and answers.
    answered
        For answers: the row and the annotator of each.
    """

    given: Any
    form: Form = "values"
    classes: Sequence[str] | int | None = None
    multilabel: bool | None = None
    clean: Any = None
    annotators: tuple[str, ...] = ()
    answered: tuple[np.ndarray, np.ndarray] | None = None

    @property
    def count(self) -> int:
        """The number of labels."""
        if self.answered is not None:
            return int(self.answered[0].max(initial=-1)) + 1
        try:
            return len(self.given if self.form == "values" else self.given[0])
        except TypeError:
            raise DataError(f"y is {self.given!r}; expected one label per row of x.") from None


def read_cells(cells: LabelCells, keys: np.ndarray, bad: BadRows) -> tuple[GivenLabels, Tensor | None]:
    """Check labels and return them with their classes, and the labels known to be right, if there are any.

    Parameters
    ----------
    cells
        The labels; a row without a label is unlabelled.
    keys
        Names of the rows in messages.
    bad
        Where rows with a label in a column that cannot be used are added; it names the source in messages.

    Raises
    ------
    DataError
        If the labels are not as expected.
    """
    if cells.form == "values":
        labels = resolve_labels(cells.given, cells.classes, keys, cells.multilabel)
        return labels, as_clean_labels(cells.clean, labels.classes, labels.multilabel)
    assert not isinstance(cells.classes, int)
    if cells.form in ("votes", "answers"):
        labels = _voted(cells, keys, bad)
    else:
        labels = column_labels(cells.given, cells.classes, cells.form, bad, cells.multilabel)
    return labels, None if cells.clean is None else clean_columns(cells.clean, labels, bad.where)


def column_labels(
    columns: Sequence[Any], classes: Sequence[str] | None, form: Form, bad: BadRows, multilabel: bool | None
) -> GivenLabels:
    """Return the labels in some columns, as :class:`LabelCells` describes them."""
    if form == "indicators":
        values = _without_odd_entries(_matrix(columns, bad.where), bad)
        assert classes is not None
        return GivenLabels(as_indicators(values), as_class_names(classes), multilabel=True)
    if form == "probabilities":
        return resolve_labels(_without_odd_rows(_matrix(columns, bad.where), bad), classes, multilabel=False)
    column = columns[0]
    if _is_text(column) and multilabel:
        column = _taken_apart(column)
    elif _is_text(column):
        _ask_about_several(column, classes, bad)
    if is_list(column.type):
        return _lists(column, classes, bad, multilabel)
    names = class_names([column], classes, bad.where, bad.numbers)
    return GivenLabels(torch.from_numpy(hard_column(column, names, bad)), names)


def clean_columns(columns: Sequence[Any], given: GivenLabels, where: str) -> Tensor | None:
    """Return labels known to be right: one column like the given label, or one per class of multi-label data."""
    bad = BadRows(f"data.columns.clean: {where}")
    if not given.multilabel and len(columns) > 1:
        raise DataError(
            f"data.columns.clean: there are {len(columns)} columns and the given labels are single-label; expected one "
            "column; name it."
        )
    if not given.multilabel:
        clean = hard_column(columns[0], given.classes, bad)
        bad.add_where(clean < 0, lambda _: "there is no label")
        bad.refuse(total=len(clean), remedy="")
        return torch.from_numpy(clean)
    if len(columns) == 1 and is_list(columns[0].type):
        values: Any = _lists(columns[0], given.classes, bad, multilabel=True).given
        bad.refuse(total=len(values), remedy="")
    else:
        values = _matrix(columns, bad.where)
    with error_context("data.columns.clean"):
        return as_clean_labels(values, given.classes, given.multilabel)


def hard_column(column: Any, classes: tuple[str, ...], bad: BadRows, rows: np.ndarray | None = None) -> np.ndarray:
    """Return the class of each label, ``UNLABELLED`` where there is none; ``rows`` are their rows, else places."""
    indices, wrong = class_indices(column, classes)
    for place in np.flatnonzero(wrong).tolist():
        label = column[place].as_py()
        bad.add(place if rows is None else int(rows[place]), f"label {label!r} {not_one_of(classes, label)}")
    return indices


def _ask_about_several(column: Any, classes: Sequence[str] | None, bad: BadRows) -> None:
    """Raise if a label looks like several classes: all of its parts are labels of other rows."""
    labels = as_labels(column)
    distinct = pc.unique(labels).drop_null().to_pylist()
    known = {*distinct, *(classes or ())}
    for separator in SEPARATORS:
        several = [
            label
            for label in distinct
            if separator in label
            and label not in (classes or ())
            and all(part.strip() in known for part in label.split(separator))
        ]
        if not several:
            continue
        rows = np.flatnonzero(pc.is_in(labels, value_set=pa.array(several)).to_numpy()).tolist()
        raise DataError(
            f"label {column[rows[0]].as_py()!r} at {name_rows(bad.numbered(rows))} of {bad.where} looks like several "
            f"classes; expected one class per row; write {setting('data.multilabel', True)} if a row may have several, "
            f"or name all classes, this one too, with {setting('data.classes', ['NAME', 'NAME'])}."
        )


def _voted(cells: LabelCells, keys: np.ndarray, bad: BadRows) -> GivenLabels:
    """Return the soft labels that annotators' votes give; a row without votes is unlabelled."""
    assert not isinstance(cells.classes, int)
    names = class_names(cells.given, cells.classes, bad.where, bad.numbers if cells.answered is None else None)
    if cells.answered is None:
        votes = votes_of_columns([hard_column(column, names, bad) for column in cells.given], cells.annotators, keys)
    else:
        rows, annotators = cells.answered
        codes = hard_column(cells.given[0], names, bad, rows)
        kept = codes >= 0
        votes = Votes(rows[kept], annotators[kept], codes[kept], keys, cells.annotators)
    labels = resolve_labels(votes.soft_labels(len(names)).astype(np.float32), names, multilabel=False)
    return replace(labels, votes=votes)


def _lists(column: Any, classes: Sequence[str] | None, bad: BadRows, multilabel: bool | None) -> GivenLabels:
    """Return labels from lists: numbers are rows of a matrix (distributions, or 0 and 1), names the classes present."""
    flat, where = pc.list_flatten(column), bad.where
    filled = np.asarray(column.is_valid())
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy()
    if pa.types.is_floating(flat.type) or _is_matrix(flat, lengths[filled]):
        if len(set(lengths[filled].tolist())) != 1:
            raise DataError(
                f"the lists of numbers in {where} have different lengths; expected one value per class; fix the lists."
            )
        values = np.full((len(column), lengths[filled][0]), np.nan, dtype=np.float32)
        values[filled] = flat.to_numpy().reshape(filled.sum(), -1)
        several = multilabel or (multilabel is None and is_multilabel(values))
        values = (_without_odd_entries if several else _without_odd_rows)(values, bad)
        return resolve_labels(values, classes, multilabel=several or multilabel)
    rows = np.repeat(np.arange(len(column)), lengths)
    names = class_names([flat], classes, where, rows)
    bad.add_where(np.asarray(flat.is_null()), lambda _: "a class in its list is empty", rows)
    codes = hard_column(flat, names, bad, rows)
    present = np.zeros((len(column), len(names)), dtype=np.float32)
    np.add.at(present, (rows[codes >= 0], codes[codes >= 0]), 1)
    twice = np.asarray((present > 1).any(axis=1))
    bad.add_where(
        twice,
        lambda row: (
            f"its list of classes is {column[row].as_py()} (expected each class once; write distributions as "
            "floating point numbers)"
        ),
    )
    present[twice | ~filled] = np.nan
    return GivenLabels(as_indicators(present), names, multilabel=True)


def _without_odd_rows(values: np.ndarray, bad: BadRows) -> np.ndarray:
    """Return distributions with NaN in the rows that are none; these are bad, unless they are empty."""
    odd = ~is_distribution(values) & ~np.isnan(values).all(axis=1)
    if odd.all():
        return values  # which is another form of labels: refused as a whole
    expected = "expected values from 0 to 1 that sum to 1"
    bad.add_where(odd, lambda row: f"the label distribution is {_numbers_of(values[row])} ({expected})")
    return np.where(odd[:, None], np.float32(np.nan), values)


def _without_odd_entries(values: np.ndarray, bad: BadRows) -> np.ndarray:
    """Return multi-label probabilities with NaN in the rows that have others than 0 to 1; these are bad."""
    odd = np.asarray(((values < 0) | (values > 1)).any(axis=1))
    expected = "expected values from 0 to 1, or none where the label is unknown"
    bad.add_where(odd, lambda row: f"the multi-label entries are {_numbers_of(values[row])} ({expected})")
    return np.where(odd[:, None], np.float32(np.nan), values)


def _numbers_of(row: np.ndarray) -> str:
    return np.array2string(row, precision=3, threshold=6)


def _is_text(column: Any) -> bool:
    return is_string(column.type.value_type if pa.types.is_dictionary(column.type) else column.type)


def _taken_apart(column: Any) -> Any:
    """Return cells such as ``sea; sky`` as lists of classes; an empty cell is an empty list."""
    found = (one for one in SEPARATORS if pc.any(pc.match_substring(column, one)).as_py())
    separator = next(found, SEPARATORS[0])
    cells = (cell or "" for cell in column.to_pylist())
    lists = [[unescape_formula(part.strip()) for part in cell.split(separator) if part.strip()] for cell in cells]
    return pa.chunked_array([pa.array(lists, pa.list_(pa.string()))])


def _is_matrix(flat: Any, lengths: np.ndarray) -> bool:
    """Return whether integers are 0 and 1 for every class, rather than class indices, which occur once per row."""
    if not pa.types.is_integer(flat.type) or len(set(lengths.tolist())) != 1 or lengths[0] < 2:
        return False
    values = flat.drop_null().to_numpy()
    return bool(((values == 0) | (values == 1)).all())


def _matrix(columns: Sequence[Any], where: str) -> np.ndarray:
    """Return columns of numbers as a matrix, NaN where a cell is empty."""
    return np.column_stack([_numbers(column, where) for column in columns])


def _numbers(column: Any, where: str) -> np.ndarray:
    try:
        column = column.cast(pa.string()) if _is_text(column) else column
        numbers = truth_as_numbers(column) if _is_text(column) and are_truth(column) else column
        values: np.ndarray = numbers.cast(pa.float32()).to_numpy()
    except pa.ArrowException as error:
        raise DataError(
            f"a label column of {where} is of type {column.type}; expected numbers 0 to 1; convert it."
        ) from error
    return values
