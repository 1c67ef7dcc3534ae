"""The label table on disk: one Parquet file, or a folder of parts that several ranks wrote, read as one table.

A part has the columns of the table and an additional column ``row``: the index of each row in the whole table. The
table therefore does not depend on which rank wrote which row. Columns and row groups are read lazily.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pencil.arrow_arrays import numbers, positions
from pencil.errors import RunError, explained
from pencil.files import atomic_write, digest, refuse_irregular
from pencil.runs.label_columns import WIDE, check_schema, check_values
from pencil.runs.table_memory import SMALL, refuse_large, row_bytes

ROW = "row"
"""The column of a part with the index of each row in the whole table."""
PART = re.compile(r"part-(\d{5})-of-(\d{5})\.parquet")
GROUP_ROWS, GROUP_BYTES = 2**16, 2**25
"""Approximate maximum rows of a row group, and bytes in memory."""


@dataclass(frozen=True)
class _Group:
    """A row group: its file and index, its number of rows, the first and the last row, and bytes by column."""

    path: Path
    number: int
    rows: int
    first: int
    last: int
    bytes: dict[str, int]


class LabelFile:
    """``labels.parquet``, a file or a folder of parts. Raises ValueError or OSError if it is damaged."""

    def __init__(self, path: Path, columns: Iterable[str] | None = None):
        self.path, self.in_parts = path, path.is_dir()
        self._groups: list[_Group] = []
        schemas = []
        for part in part_paths(path) if self.in_parts else [path]:
            refuse_irregular(part)
            with pq.ParquetFile(part) as file:  # pq.read_table would import far more
                schemas.append(file.schema_arrow)
                self._groups += self._groups_of(part, file.metadata)
        self.schema = check_schema(_common_schema(schemas) if self.in_parts else schemas[0], columns)
        self.num_rows = sum(group.rows for group in self._groups)
        if not self.num_rows:
            raise ValueError("it has no rows")
        stored = sum(part.stat().st_size for part in {group.path for group in self._groups})
        narrow = sum(row_bytes(field.type) for field in self.schema if field.name not in WIDE)
        refuse_large(self.num_rows, narrow, stored)

    def _groups_of(self, part: Path, metadata: pq.FileMetaData) -> Iterator[_Group]:
        start = 0
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            chunks = [group.column(place) for place in range(group.num_columns)]
            sizes: dict[str, int] = {}
            for chunk in chunks:
                name = chunk.path_in_schema.partition(".")[0]
                sizes[name] = sizes.get(name, 0) + chunk.total_uncompressed_size
            first, last = start, start + group.num_rows - 1
            if self.in_parts:
                found = [chunk.statistics for chunk in chunks if chunk.path_in_schema == ROW]
                if not found or found[0] is None or not found[0].has_min_max:
                    raise ValueError(f"{part.name} does not identify its rows; expected a column {ROW!r}")
                first, last = int(found[0].min), int(found[0].max)
            start += group.num_rows
            yield _Group(part, number, group.num_rows, first, last, sizes)

    def is_small(self) -> bool:
        """Return whether all wanted columns are small enough to be read at once, also if they repeat few values."""
        claimed = sum(group.bytes.get(name, 0) for group in self._groups for name in self.schema.names)
        return max(claimed, self.num_rows * sum(row_bytes(field.type) for field in self.schema)) <= SMALL

    def read(self, names: Sequence[str], rows: np.ndarray | None = None) -> pa.Table:
        """Return columns of the rows at these positions, by default all, in this order, after checking their values."""
        names = list(names)
        if rows is None and not self.in_parts:
            with pq.ParquetFile(self.path) as file:
                table = file.read(columns=names)
        else:
            table = self._read_rows(names, rows)
        check_values(table)
        return table

    def _read_rows(self, names: list[str], rows: np.ndarray | None) -> pa.Table:
        """Return columns of rows from the row groups that contain them."""
        wanted = None if rows is None else np.unique(rows)
        tables, places = [], [np.empty(0, dtype=np.int64)]
        for group in self._groups:
            inside = None
            if wanted is not None:
                inside = wanted[slice(*np.searchsorted(wanted, [group.first, group.last + 1]))]
                if not len(inside):
                    continue
            table, own = self._read_group(group, names)
            if inside is not None:
                kept = np.flatnonzero(np.isin(own, inside))
                table, own = table.take(positions(kept)), own[kept]
            tables.append(table)
            places.append(own)
        found = np.concatenate(places)
        order = np.argsort(found, kind="stable")
        expected = np.arange(self.num_rows) if wanted is None else wanted
        if not np.array_equal(found[order], expected):
            raise ValueError("rows are missing or duplicated; expected each row once")
        if not tables:
            return pa.schema([self.schema.field(name) for name in names], self.schema.metadata).empty_table()
        if rows is not None:
            order = order[np.searchsorted(expected, rows)]
        table = pa.concat_tables(tables).unify_dictionaries().replace_schema_metadata(self.schema.metadata)
        return table if np.array_equal(order, np.arange(len(found))) else table.take(positions(order))

    def _read_group(self, group: _Group, names: list[str]) -> tuple[pa.Table, np.ndarray]:
        """Return columns of a row group, and the index of each of its rows in the whole table."""
        with pq.ParquetFile(group.path) as file:
            table = file.read_row_group(group.number, columns=[*names, ROW] if self.in_parts else names)
        if not self.in_parts:
            return table.select(names), np.arange(group.first, group.last + 1)
        if not pa.types.is_int64(table.schema.field(ROW).type) or table[ROW].null_count:
            raise ValueError(f"the column {ROW!r} of {group.path.name} does not contain a number in each row")
        return table.select(names), numbers(table[ROW])


def _common_schema(schemas: Sequence[pa.Schema]) -> pa.Schema:
    """The columns that all parts have in common: an interrupted audit leaves some parts with an additional column."""
    common = set.intersection(*(set(one.names) for one in schemas)) - {ROW}
    first = pa.schema([field for field in schemas[0] if field.name in common], schemas[0].metadata)
    for other in schemas:
        if other.metadata != first.metadata or any(other.field(name).type != first.field(name).type for name in common):
            raise ValueError("its parts differ in their classes or column types; expected the parts of one run")
    return first


@dataclass(frozen=True)
class StoredRows:
    """Some rows of a label file, by default all, whose columns are read lazily."""

    file: LabelFile
    rows: np.ndarray | None = None

    def __len__(self) -> int:
        return self.file.num_rows if self.rows is None else len(self.rows)

    def take(self, places: np.ndarray) -> "StoredRows":
        """Return the rows at these positions."""
        return replace(self, rows=places if self.rows is None else self.rows[places])

    def slice(self, offset: int, length: int | None) -> "StoredRows":
        """Return ``length`` rows starting at ``offset``."""
        end = len(self) if length is None else min(len(self), offset + length)
        return self.take(np.arange(offset, end) if self.rows is None else np.arange(len(self))[offset:end])

    @property
    def is_whole_file(self) -> bool:
        """Whether these are all rows of a single file, which can then be read sequentially."""
        return self.rows is None and not self.file.in_parts

    def batches(self, names: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
        """Yield columns of a whole file, this many rows at a time, even if its row groups are larger."""
        with damage_named(self.file.path), pq.ParquetFile(self.file.path, pre_buffer=False) as file:
            for batch in file.iter_batches(rows, columns=list(names)):
                table = pa.Table.from_batches([batch]).select(names)
                check_values(table.replace_schema_metadata(self.file.schema.metadata))
                yield from table.replace_schema_metadata(self.file.schema.metadata).to_batches()

    def read(self, names: Sequence[str]) -> pa.Table:
        """Return columns of these rows; the file may be damaged or gone by now."""
        with damage_named(self.file.path):
            return self.file.read(names, self.rows)


def damage_named(path: Path | str) -> AbstractContextManager[None]:
    """Raise RunError for a file that is not a label table, or no longer exists."""
    faults = (OSError, ValueError, KeyError, pa.ArrowException)
    return explained(RunError, f"{path} is not a label table", "read the file of a run", *faults)


def part_name(rank: int, size: int) -> str:
    """Return the name of the part that a rank writes."""
    return f"part-{rank:05}-of-{size:05}.parquet"


def part_paths(folder: Path) -> list[Path]:
    """Return the parts in a folder in order; raise ValueError if one is missing."""
    found = sorted(path for path in folder.iterdir() if PART.fullmatch(path.name))
    names = [path.name for path in found]
    expected = [part_name(rank, len(found)) for rank in range(len(found))]
    if not found or names != expected:
        raise ValueError(f"it contains the parts {names}; expected one part per rank")
    return found


def write_label_part(folder: Path, rank: int, size: int, tables: Iterable[pa.Table]) -> dict[str, str]:
    """Write a rank's part from tables with a column ``row``; return its digest by name.

    Tables are kept in memory only until they fill a row group.
    """
    path = folder / part_name(rank, size)
    waiting: list[pa.Table] = []
    with atomic_write(path) as temporary:
        writer = None

        def flush() -> None:
            nonlocal writer
            table = pa.concat_tables(waiting).combine_chunks()
            waiting.clear()
            writer = writer or pq.ParquetWriter(temporary, table.schema, compression="zstd")
            writer.write_table(table)

        rows = size_in_memory = 0
        for table in tables:
            waiting.append(table)
            rows, size_in_memory = rows + len(table), size_in_memory + table.nbytes
            if rows >= GROUP_ROWS or size_in_memory >= GROUP_BYTES:
                flush()
                rows = size_in_memory = 0
        if waiting:
            flush()
        if writer is not None:
            writer.close()
    return {path.name: digest(path)}
