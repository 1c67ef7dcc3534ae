"""Parquet files of a run that fit into memory: a few megabytes can stand for billions of equal rows."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pencil.files import refuse_irregular
from pencil.memory import as_size, memory_limit

SMALL = 2**28
"""Tables of up to this many bytes are read at once; columns of larger tables are read lazily."""
ROWS_PER_BYTE = 4
"""Maximum rows of a large table per byte of its file. Keys alone, such as 0 to 20 million, take 0.64 bytes per row."""
VARIABLE = 8
"""Assumed bytes of a text or a list."""


def row_bytes(kind: pa.DataType) -> int:
    """Return the approximate bytes of a value in memory; text and lists of any length take at least this."""
    if pa.types.is_fixed_size_list(kind):
        return int(kind.list_size) * row_bytes(kind.value_type)
    if pa.types.is_struct(kind):
        return sum(row_bytes(field.type) for field in kind)
    try:
        return -(-int(kind.bit_width) // 8)
    except ValueError:  # it has no fixed width
        return VARIABLE


def refuse_large(rows: int, width: int, stored: int) -> None:
    """Raise ValueError if rows of this width take more memory than there is, or too much for the size of their file."""
    needed = rows * width
    if needed <= SMALL:
        return
    if rows > ROWS_PER_BYTE * stored:
        raise ValueError(
            f"it has {rows:,} rows in {as_size(stored)}; expected at most {ROWS_PER_BYTE} rows per byte, because each "
            "row has a key of its own"
        )
    if needed > memory_limit():
        raise ValueError(
            f"its {rows:,} rows take {as_size(needed)}; expected at most {as_size(memory_limit())} (memory)"
        )


def read_table(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Return some columns of a Parquet file, by default all, after checking its size and its values."""
    refuse_irregular(path)
    with pq.ParquetFile(path) as file:  # pq.read_table would import far more
        width = sum(row_bytes(field.type) for field in file.schema_arrow)
        refuse_large(file.metadata.num_rows, width, path.stat().st_size)
        table = file.read(columns=columns)
    table.validate(full=True)
    return table
