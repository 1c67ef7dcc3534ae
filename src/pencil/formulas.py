"""CSV cells that spreadsheet programs would run as formulas: escaped on writing, unescaped on reading."""

import re
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pencil.arrow_arrays import scalar

FORMULA = "[=+\\-@\t\r\n\uff1d\uff0b\uff0d\uff20]"
"""First characters, including their full-width forms, that make a spreadsheet program run a cell as a formula."""
NUMBER = r"[+-]?([0-9]+[.,]?[0-9]*|[.,][0-9]+)([eE][+-]?[0-9]+)?"
QUOTE = "'"
"""Prefix that makes spreadsheet programs read the rest of the cell as text."""

_formula, _number = re.compile(FORMULA), re.compile(NUMBER)


def escape_formula(text: str) -> str:
    """Return a cell's text, prefixed with a quote if it starts like a formula and is not a number."""
    return QUOTE + text if _formula.match(text) and not _number.fullmatch(text) else text


def escape_formula_column(column: Any) -> Any:
    """Return a column of strings with `escape_formula` applied to each; null stays null."""
    formulas = _are_formulas(column)
    if not pc.any(formulas, min_count=0).as_py():
        return column
    return pc.if_else(formulas, pc.binary_join_element_wise(scalar(QUOTE), column, scalar("")), column)


def joined_column(column: Any) -> Any:
    """Return a column of lists of strings as one string per row: each item escaped, joined by semicolons."""
    if not pc.any(_are_formulas(pc.list_flatten(column)), min_count=0).as_py():
        return pc.binary_join(column, scalar(";"))
    rows = (None if row is None or None in row else ";".join(map(escape_formula, row)) for row in column.to_pylist())
    return pa.array(rows, pa.string())


def unescape_formula(text: str) -> str:
    """Return a cell's text without the quote that `escape_formula` added."""
    return text[1:] if text.startswith(QUOTE) and escape_formula(text[1:]) == text else text


def unescape_formula_column(column: Any) -> Any:
    """Return a column of strings with `unescape_formula` applied to each; null stays null."""
    if not pc.any(pc.starts_with(column, QUOTE), min_count=0).as_py():
        return column
    rest = pc.utf8_slice_codeunits(column, 1)
    return pc.if_else(pc.and_(pc.starts_with(column, QUOTE), _are_formulas(rest)), rest, column)


def _are_formulas(column: Any) -> Any:
    starts = pc.match_substring_regex(column, f"^{FORMULA}")
    return pc.and_not(starts, pc.match_substring_regex(column, f"^{NUMBER}$"))
