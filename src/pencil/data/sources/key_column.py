"""The key of a row of a table: a column that is set or detected, otherwise the row number."""

from collections.abc import Collection
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.dtypes import StringDType

from pencil.data.bad_rows import BadRows
from pencil.data.columns import Columns
from pencil.data.inputs.images import SUFFIXES
from pencil.data.keys import as_keys
from pencil.data.roles import INDEX_NAMES, is_id_name, is_string
from pencil.errors import DataError

ID_PATTERN = r"^[A-Za-z0-9_.:#-]*[0-9][A-Za-z0-9_.:#-]*$"
"""Strings that number rows, whatever the name of their column: T-8812, 4f1c-77; not words or addresses."""
LONGEST_ID = 64
"""Maximum length of such a string."""


def settle_key(table: pa.Table, columns: Columns, taken: Collection[str]) -> Columns:
    """Return the columns with the key decided: the column that is set, otherwise a detected one, otherwise row numbers.

    If ``numbering`` is set, this was decided for an earlier table: the key column detected there is used here if it
    names every row. ``taken`` are columns with another role.
    """
    if columns.key is not None and columns.numbering is None:
        return columns
    if columns.numbering is not None:
        known = columns.key in table.column_names and names_rows(table[columns.key])
        return columns if known else columns.model_copy(update={"key": None})
    return columns.model_copy(update={"key": find_key(table, taken), "numbering": "lines"})


def find_key(table: pa.Table, taken: Collection[str]) -> str | None:
    """Return the column of ids: one with a common name, otherwise strings such as T-8812, unique in each row."""
    free = [field for field in table.schema if field.name not in taken and _may_be_id(field.type)]
    usual = [field.name for field in free if is_id_name(field.name)]
    usual.sort(key=lambda name: name.lower().strip() in INDEX_NAMES or name.lower().startswith("unnamed:"))
    others = [field.name for field in free if is_string(field.type) and field.name not in usual]
    found = (name for name in usual if names_rows(table[name]))
    return next(found, None) or next((name for name in others if _are_codes(table[name])), None)


def names_rows(column: Any) -> bool:
    """Return whether every row has a unique value."""
    if not _may_be_id(column.type) or column.null_count or pc.count_distinct(column).as_py() < len(column):
        return False
    return not is_string(column.type) or not pc.any(pc.equal(pc.utf8_trim_whitespace(column), "")).as_py()


def _may_be_id(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or is_string(kind))


def _are_codes(column: Any) -> bool:
    """Return whether strings number the rows: one word each, short, with digits; not image names."""
    first = column[0].as_py()
    if column.null_count or len(first) > LONGEST_ID or first.lower().endswith(SUFFIXES) or not names_rows(column):
        return False
    return bool(
        pc.all(pc.match_substring_regex(column, ID_PATTERN)).as_py()
        and pc.max(pc.utf8_length(column)).as_py() <= LONGEST_ID
        and pc.any(pc.match_substring_regex(column, "[^0-9.+-]")).as_py()  # numbers may be measurements
    )


def keys_or_numbers(table: pa.Table, columns: Columns, bad: BadRows) -> np.ndarray:
    """Return the keys of the key column, otherwise the numbers of the rows."""
    keys = read_keys(table, columns, bad)
    if keys is not None:
        return keys
    return as_keys(np.arange(table.num_rows) if bad.numbers is None else bad.numbers)


def read_keys(table: pa.Table, columns: Columns, bad: BadRows) -> np.ndarray | None:
    """Return the keys of the key column, if there is one; ``bad`` names the table and numbers its rows in messages."""
    if columns.key is None:
        return None
    column = table[columns.key].cast(pa.string())
    missing = BadRows(bad.where, bad.numbers)
    missing.add_where(is_missing_cell(table[columns.key]), lambda _: f"there is no key in column {columns.key!r}")
    missing.refuse(total=table.num_rows, remedy="")
    remedy = "expected unique keys; rename one of them."
    refuse_repeated_cells(column, f"{bad.where} has the key", f"in column {columns.key!r}", remedy)
    return column_keys(column)


def column_keys(column: Any) -> np.ndarray:
    """Return a column of strings as keys, without converting all of them to Python objects at once."""
    keys = np.empty(len(column), dtype=StringDType())
    for start in range(0, len(column), 65536):
        keys[start : start + 65536] = column.slice(start, 65536).to_pylist()
    return keys


def is_missing_cell(column: Any) -> np.ndarray:
    """Return which rows of a column are empty, or NaN in a column of numbers."""
    numbers = pa.types.is_floating(column.type)
    empty = pc.is_nan(column) if numbers else pc.equal(column.cast(pa.string()), "")
    found: np.ndarray = pc.fill_null(empty, True).to_numpy()
    return found


def refuse_repeated_cells(column: Any, subject: str, place: str, remedy: str) -> None:
    """Raise if two cells of a column are equal."""
    if pc.count_distinct(column).as_py() == len(column):
        return
    counts = pc.value_counts(column)
    repeated = counts.filter(pc.greater(pc.struct_field(counts, "counts"), 1))
    if len(repeated):
        first, others = repeated[0]["values"].as_py(), len(repeated) - 1
        more = f" (and {others:,} others)" if others else ""
        raise DataError(f"{subject} {first!r} more than once {place}{more}; {remedy}")
