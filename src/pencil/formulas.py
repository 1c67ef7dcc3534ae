"""Cells of CSV files that no spreadsheet program takes for a formula: quoted where pencil writes, and read back."""

import re
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pencil.arrow_arrays import scalar

FORMULA = "[=+\\-@\t\r\n\uff1d\uff0b\uff0d\uff20]"
"""The first character of a cell that a spreadsheet program may execute as a formula, also in its full-width form."""
NUMBER = r"[+-]?([0-9]+[.,]?[0-9]*|[.,][0-9]+)([eE][+-]?[0-9]+)?"
QUOTE = "'"
"""Put before such a cell, it makes spreadsheet programs take the rest as text."""

_formula, _number = re.compile(FORMULA), re.compile(NUMBER)


def neutral(text: str) -> str:
    """Return the text of a cell, with a quote before it if it starts like a formula and is not a number."""
    return QUOTE + text if _formula.match(text) and not _number.fullmatch(text) else text


def neutral_column(column: Any) -> Any:
    """Return a column of strings with `neutral` applied to each; null stays null."""
    formulas = _are_formulas(column)
    if not pc.any(formulas, min_count=0).as_py():
        return column
    return pc.if_else(formulas, pc.binary_join_element_wise(scalar(QUOTE), column, scalar("")), column)


def joined_column(column: Any) -> Any:
    """Return a column of lists of strings as one text each, separated by semicolons, with `neutral` for each string."""
    if not pc.any(_are_formulas(pc.list_flatten(column)), min_count=0).as_py():
        return pc.binary_join(column, scalar(";"))
    rows = (None if row is None or None in row else ";".join(map(neutral, row)) for row in column.to_pylist())
    return pa.array(rows, pa.string())


def as_meant(text: str) -> str:
    """Return the text of a cell without the quote of `neutral`."""
    return text[1:] if text.startswith(QUOTE) and neutral(text[1:]) == text else text


def as_meant_column(column: Any) -> Any:
    """Return a column of strings with `as_meant` applied to each; null stays null."""
    if not pc.any(pc.starts_with(column, QUOTE), min_count=0).as_py():
        return column
    rest = pc.utf8_slice_codeunits(column, 1)
    return pc.if_else(pc.and_(pc.starts_with(column, QUOTE), _are_formulas(rest)), rest, column)


def _are_formulas(column: Any) -> Any:
    starts = pc.match_substring_regex(column, f"^{FORMULA}")
    return pc.and_not(starts, pc.match_substring_regex(column, f"^{NUMBER}$"))
