"""Cells that are written differently and mean the same: ``True`` and ``true``, ``1`` and ``1.0``.

Text files of several programs, Parquet and data frames differ in this; a network must not see other levels for it.
"""

import re
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

TRUTH = ("true", "false")
NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?")

Value = Callable[[str], Hashable | None]


def is_truth(strings: Any) -> Any:
    """Mark the strings that are a truth value, in upper or lower case."""
    return pc.is_in(pc.utf8_lower(pc.utf8_trim_whitespace(strings)), value_set=pa.array(TRUTH, strings.type))


def are_truth(strings: Any) -> bool:
    """Return whether all of these strings, of which there is at least one, are truth values or null."""
    known = strings.drop_null()
    return bool(len(known) and pc.all(is_truth(known)).as_py())


def truth_as_numbers(strings: Any) -> Any:
    """Return truth values as 0 and 1."""
    return pc.equal(pc.utf8_lower(pc.utf8_trim_whitespace(strings)), "true").cast(pa.int8()).cast(pa.float64())


def truth_of(text: str) -> Hashable | None:
    """Return the truth value that a text is; None if it is none."""
    plain = text.strip().lower()
    return plain if plain in TRUTH else None


def value_of(text: str) -> Hashable | None:
    """Return the number or the truth value that a text is; None if it is neither."""
    plain = text.strip()
    return Decimal(plain) if NUMBER.fullmatch(plain) else truth_of(plain)


def only_places(names: Sequence[str], value: Value) -> dict[Hashable, int]:
    """Return the place of each value that exactly one of some names has."""
    values = [value(name) for name in names]
    counts = Counter(values)
    return {one: place for place, one in enumerate(values) if one is not None and counts[one] == 1}


def find_places(cells: Any, names: Sequence[str], value: Value) -> Any:
    """Return the place of each cell among some names: the same text, else the only one of the same value.

    Parameters
    ----------
    cells
        An Arrow column of strings.
    names
        Among which they are searched.
    value
        What a text stands for, None for a text that is just that: :func:`truth_of` or :func:`value_of`.

    Returns
    -------
    pyarrow.Array
        Integers; null for a cell that is not among the names.
    """
    codes = pc.index_in(cells, value_set=pa.array(names, cells.type))
    unknown = pc.unique(cells.filter(codes.is_null())).drop_null().to_pylist()
    if not unknown:
        return codes
    by_value = only_places(names, value)
    alike = {text: by_value[value(text)] for text in unknown if value(text) in by_value}
    if not alike:
        return codes
    others = pc.index_in(cells, value_set=pa.array(alike, cells.type))
    return pc.coalesce(codes, pc.take(pa.array(alike.values(), codes.type), others))
