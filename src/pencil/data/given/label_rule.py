"""Which class a label is: one rule for every source, as the table under "Labels" in docs/data.md says it.

Labels are columns of Arrow here, whatever held them: numbers, truth values or text, null where there is no label.
"""

from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pencil.data.given.given_labels import LARGEST_INDEX, UNLABELLED, Keys, as_class_names, name_rows, shorten
from pencil.data.given.same_values import only_places, truth_of, value_of
from pencil.errors import DataError, setting

Label = bool | int | str
NOT_A_CLASS = -2


def as_labels(column: Any) -> Any:
    """Return a column as labels: without a dictionary, with null in place of NaN and of blank text.

    Raises
    ------
    DataError
        If a float is infinite, or too large to be exact.
    """
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_integer(column.type) or pa.types.is_boolean(column.type):
        return column
    if pa.types.is_floating(column.type):
        column = column.cast(pa.float32()) if pa.types.is_float16(column.type) else column
        column = pc.if_else(pc.is_nan(column), pa.scalar(None, column.type), column)
        _refuse_inexact(column)
        return column
    text = column.cast(pa.string())
    return pc.if_else(pc.equal(pc.utf8_trim_whitespace(text), ""), pa.scalar(None, pa.string()), text)


def class_names(
    columns: Sequence[Any],
    declared: Sequence[str] | None,
    where: str = "",
    rows: np.ndarray | None = None,
    keys: Keys = None,
) -> tuple[str, ...]:
    """Return the declared classes, or the labels that occur: integers by size, anything else by alphabet.

    Parameters
    ----------
    columns
        Labels that have the same classes.
    declared
        Class names in order, where they are known.
    where
        Names the source in messages.
    rows
        The row of each label in messages; by default its place in the column.
    keys
        Names of the rows in messages.

    Raises
    ------
    DataError
        If all labels are missing, or if -1 may be a class or a missing label.
    """
    if declared is not None:
        return as_class_names(declared)
    columns = [as_labels(column) for column in columns]
    found = {label for column in columns for label in _distinct(column)}
    if not found:
        raise DataError(
            f"none of the {len(columns[0]):,} rows{f' of {where}' if where else ''} has a label; expected labels of "
            "some rows; label them."
        )
    if not all(type(label) is int for label in found):
        return as_class_names(sorted({_as_name(label) for label in found}))
    if UNLABELLED in found and min(found) == UNLABELLED and len(found) > 2:
        places = np.unique(np.concatenate([_places(column, UNLABELLED) for column in columns]))
        named = name_rows((places if rows is None else np.unique(rows[places])).tolist(), keys)
        raise DataError(
            f"label -1 at {named}{f' of {where}' if where else ''} may be a class or mean that there is none; expected "
            "one of them; write NaN or None (in a table an empty cell) for a row without a label, or name all classes "
            f"with {setting('data.classes', ['-1', 'NAME'])}."
        )
    return as_class_names(sorted(found))


def class_indices(column: Any, classes: Sequence[str], *, numbered: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Return the class of each label, ``UNLABELLED`` where there is none, and which labels are not one of the classes.

    Parameters
    ----------
    column
        Labels.
    classes
        Class names in order.
    numbered
        Whether the classes are just numbers from 0, so that -1 means that there is no label.
    """
    column = as_labels(column)
    found = np.array([*map(_rule_for(classes, numbered), _distinct(column)), UNLABELLED])
    places = pc.index_in(column, value_set=pc.unique(column).drop_null()).fill_null(len(found) - 1)
    indices = found[places.to_numpy()]
    wrong: np.ndarray = indices == NOT_A_CLASS
    return np.where(wrong, UNLABELLED, indices), wrong


def _rule_for(classes: Sequence[str], numbered: bool) -> Callable[[Label], int]:
    """Return the rule: a label is the class of that name, else of that value, else an integer is an index.

    An integer is an index only where no class is an integer itself.
    """
    names = {name: place for place, name in enumerate(classes)}
    truths, numbers = only_places(classes, truth_of), only_places(classes, value_of)
    by_index = not has_integers(classes)

    def rule(label: Label) -> int:
        name = _as_name(label)
        if name in names or isinstance(label, str):
            return names.get(name, truths.get(truth_of(name), NOT_A_CLASS))
        if isinstance(label, bool):
            return truths[name] if name in truths else rule(int(label))
        if label in numbers:
            return numbers[label]
        if label == UNLABELLED and (by_index or numbered):
            return UNLABELLED
        return label if by_index and 0 <= label < len(classes) else NOT_A_CLASS

    return rule


def has_integers(classes: Sequence[str]) -> bool:
    """Return whether a class is an integer, however it is written."""
    numbers = (value_of(name) for name in classes)
    return any(isinstance(number, Decimal) and number == number.to_integral_value() for number in numbers)


@lru_cache(maxsize=16)
def not_one_of(classes: tuple[str, ...], label: Label | float) -> str:
    """Return what is wrong with a label that is not one of the classes; cached, as many rows may have it."""
    seen = f"is not one of the {len(classes)} classes ({shorten(list(map(repr, classes)))})"
    as_index = not isinstance(label, str) and not has_integers(classes)
    return f"{seen} and not an index into them (0 to {len(classes) - 1})" if as_index else seen


def _as_name(label: Label) -> str:
    return str(label).lower() if isinstance(label, bool) else str(label)


def _distinct(column: Any) -> list[Label]:
    """Return the labels that occur: floats that are whole as integers, others as text."""
    values = pc.unique(column).drop_null()
    labels: list[Label] = values.to_pylist()
    if not pa.types.is_floating(values.type):
        return labels
    texts = values.cast(pa.string()).to_pylist()
    return [int(label) if float(label).is_integer() else text for label, text in zip(labels, texts, strict=True)]


def _places(column: Any, label: int) -> np.ndarray:
    return np.flatnonzero(pc.fill_null(pc.equal(column, label), False).to_numpy(zero_copy_only=False))


def _refuse_inexact(floats: Any) -> None:
    rows = np.flatnonzero(pc.fill_null(pc.greater(pc.abs(floats), float(LARGEST_INDEX)), False)).tolist()
    if rows:
        raise DataError(
            f"label {floats[rows[0]].as_py()} at {name_rows(rows)} is not a class; expected a name, or a whole number "
            f"that a float holds exactly (up to {LARGEST_INDEX:,}); fix the label."
        )
