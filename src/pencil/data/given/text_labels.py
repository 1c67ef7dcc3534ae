"""Label columns of text files: whole numbers where all cells are written as such, otherwise text exactly as written."""

import re
from collections.abc import Collection, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pencil.data.given.same_values import are_truth, value_of
from pencil.formulas import NUMBER

WHOLE = re.compile(r"0|-?[1-9][0-9]{0,17}")
"""A number as it would be written again: ``007`` is a name."""
WITH_POINT = re.compile(r"(0|-?[1-9][0-9]{0,17})\.0")
"""The same as pandas writes it in a column of which some cells are empty."""
NOT_A_NUMBER = r"(?i)^\s*[+-]?nan\s*$"


def label_values(columns: Sequence[Any], classes: Sequence[str] | None = None) -> list[Any]:
    """Return label columns that were read as text, as integers where nothing that is written gets lost.

    ``01`` and ``1``, or ``250.0`` and ``250.00``, stay two classes. ``nan`` among numbers is a missing label. Where all
    are truth values, the classes are ``false`` and ``true``.

    Parameters
    ----------
    columns
        Columns of strings that have the same classes.
    classes
        The names of the classes, where they are known: a column of such names is not changed.
    """
    columns = [_without_nan(column) for column in columns]
    if classes is not None and all(_distinct(column) <= set(classes) for column in columns):
        return columns
    trimmed = [pc.utf8_trim_whitespace(column) for column in columns]
    seen = [_distinct(column) - {""} for column in trimmed]
    pointed = all(WITH_POINT.fullmatch(cell) for cells in seen for cell in cells if "." in cell)
    truth = all(map(are_truth, filter(len, (column.drop_null() for column in trimmed))))
    found = []
    for column, plain, cells in zip(columns, trimmed, seen, strict=True):
        whole = _all_match(WHOLE, cells) or (pointed and _all_match(WITH_POINT, cells))
        if cells and whole:
            column = _as_integers(plain)
        elif truth:
            column = pc.equal(
                pc.utf8_lower(pc.if_else(pc.equal(plain, ""), pa.scalar(None, pa.string()), plain)), "true"
            )
        found.append(column)
    return found


def same_numbers(column: Any) -> tuple[str, str] | None:
    """Return two labels of a column of text that are one number, such as ``1`` and ``1.0``; None if there are none."""
    if not pa.types.is_string(column.type):
        return None
    seen: dict[Any, str] = {}
    for cell in sorted(_distinct(column)):
        number = value_of(cell)
        if number in seen:
            return seen[number], cell
        if isinstance(number, Decimal):
            seen[number] = cell
    return None


def _all_match(pattern: re.Pattern[str], cells: Collection[str]) -> bool:
    return all(map(pattern.fullmatch, cells))


def _distinct(column: Any) -> set[str]:
    return set(pc.unique(column).drop_null().to_pylist())


def _as_integers(column: Any) -> Any:
    empty = pc.equal(column, "")
    digits = pc.replace_substring(column, ".0", "")  # which only a number with a point has
    return pc.if_else(empty, pa.scalar(None, pa.string()), digits).cast(pa.int64())


def _without_nan(column: Any) -> Any:
    """Return a column with null in place of NaN; beside words it is a name like others."""
    missing = pc.match_substring_regex(column, NOT_A_NUMBER)
    if not pc.any(missing).as_py():
        return column
    others = pc.utf8_trim_whitespace(column.filter(pc.invert(missing)))
    numbers = pc.all(pc.match_substring_regex(others, f"^({NUMBER})?$"), min_count=0).as_py()
    return pc.if_else(missing, pa.scalar(None, pa.string()), column) if numbers else column
