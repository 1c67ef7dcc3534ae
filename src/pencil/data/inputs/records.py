"""Records: the table columns that an encoder turns into vectors, with one Arrow type per role."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from torch import Tensor

from pencil.data.bad_rows import BadRows
from pencil.data.given.same_values import are_truth, is_truth, truth_as_numbers
from pencil.data.inputs.augment import View
from pencil.data.inputs.base import MAX_PIXELS, Inputs, InspectedRow, Loaded, TensorInputs, content_digest
from pencil.data.roles import Role, Roles, is_list, is_missing, is_string
from pencil.errors import DataError, can_set, setting

SECONDS_PER_DAY = 86_400


class ColumnFinding(NamedTuple):
    """The inspection of a column: its role, the number of missing cells, and whether all values are equal."""

    name: str
    role: Role
    missing: int
    constant: bool


@dataclass(frozen=True, eq=False)
class RecordInputs(Inputs):
    """Rows of numbers, categories, texts and vectors, which are encoded before a network sees them.

    Numbers are float64, categories and texts strings, vectors fixed-size lists of float32, and null is missing.
    ``dates`` are columns of numbers that are days since 1970. ``faults`` says why rows cannot be used.
    """

    table: pa.Table
    roles: Roles
    dates: frozenset[str] = frozenset()
    faults: Mapping[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @property
    def shape(self) -> tuple[int, ...]:
        """One value per column; the width of the vector is known once an encoder is fitted."""
        return (self.table.num_columns,)

    @property
    def records(self) -> "RecordInputs":
        return self

    def batches(self, chunks: Sequence[Tensor], view: View | None = None) -> Iterator[Loaded]:
        raise DataError(
            "the rows of this table are not encoded; expected vectors; train on them, or predict with a run that was "
            "trained on such rows."
        )

    def take(self, rows: Tensor) -> "RecordInputs":
        """Return a copy of these rows."""
        faults = {place: self.faults[row] for place, row in enumerate(rows.tolist()) if row in self.faults}
        return replace(self, table=self.table.take(pa.array(rows.numpy())), faults=faults)

    def fault_of(self, row: int) -> str | None:
        return self.faults.get(row)

    def matrix(self, names: Sequence[str]) -> np.ndarray:
        """Return columns of numbers as (rows, columns) in float64; NaN if missing."""
        found = np.empty((len(self), len(names)))
        for place, name in enumerate(names):
            found[:, place] = self.table[name].to_numpy()
        return found

    def strings(self, name: str) -> pa.Array:
        """Return a column of categories or texts."""
        return self.table[name].combine_chunks()

    def vectors(self, name: str) -> np.ndarray:
        """Return a column of vectors as (rows, width) in float32; missing vectors are NaN."""
        column = self.table[name].combine_chunks()
        width = column.type.list_size
        found = np.full((len(self), width), np.nan, dtype=np.float32)
        present = column.is_valid().to_numpy(zero_copy_only=False)
        found[present] = column.drop_null().flatten().to_numpy(zero_copy_only=False).reshape(-1, width)
        return found

    def without(self, names: Sequence[str]) -> "RecordInputs":
        """Return the same rows without these columns."""
        return replace(self, table=self.table.drop_columns(list(names)))

    def texts(self, names: Sequence[str]) -> list[str]:
        """Return one text per row; several columns are joined, each on its own line."""
        first, *others = [self.table[name].cast(pa.large_string()) for name in names]
        missing = pc.invert(first.is_valid())
        for other in others:
            missing = pc.and_(missing, pc.invert(other.is_valid()))
        first = pc.if_else(missing, pa.scalar("", pa.large_string()), first)  # Arrow would drop the row
        joined = pc.binary_join_element_wise(first, *others, pa.scalar("\n", pa.large_string()), null_handling="skip")
        texts: list[str] = joined.to_pylist()
        return texts

    def lacks_text(self) -> np.ndarray:
        """Return which rows have no text in any text column."""
        missing = [self.table[name].is_null().to_numpy() for name in self.roles.of("text")]
        found: np.ndarray = np.logical_and.reduce(missing)
        return found

    def findings(self, rows: Tensor) -> tuple[ColumnFinding, ...]:
        """Inspect the columns in these rows."""
        chosen = self.take(rows).table
        found = []
        for name, role in self.roles.used.items():
            column = chosen[name]
            levels = 2 if role == "vector" else pc.count_distinct(column, mode="all").as_py()
            found.append(ColumnFinding(name, role, column.null_count, levels < 2))
        return tuple(found)

    def describe(self, row: int) -> list[tuple[str, Any]]:
        """Return the columns of a row and its values, None if missing."""
        return [(name, self.table[name][row].as_py()) for name in self.roles.used]

    def fingerprint(self, rows: Tensor, *, content: bool = False) -> str | None:
        digest = hashlib.sha256(repr(sorted(self.roles.used.items())).encode())
        for chunk in rows.split(4096):
            digest.update(b"".join(self.digests(chunk)))
        return digest.hexdigest()

    def digests(self, rows: Tensor) -> list[bytes]:
        chosen = self.take(rows)
        numbers = chosen.matrix(self.roles.of("number"))
        blocks = [numbers, *(chosen.vectors(name) for name in self.roles.of("vector"))]
        words = [chosen.table[name].to_pylist() for name in (*self.roles.of("category"), *self.roles.of("text"))]
        found = []
        for place in range(len(rows)):
            cells = ["\0" if column[place] is None else f"\1{column[place]}" for column in words]
            content = [*(block[place].tobytes() for block in blocks), "\2".join(cells).encode(errors="surrogatepass")]
            found.append(content_digest(b"".join(content)))
        return found

    def picture(self, row: int, side: int | None = None) -> None:
        return None

    def inspect(
        self, chunks: Sequence[Tensor], *, workers: int = 0, max_pixels: int = MAX_PIXELS
    ) -> Iterator[list[InspectedRow]]:
        for chunk in chunks:
            yield [InspectedRow(digest, shape=self.shape) for digest in self.digests(chunk)]


@dataclass(frozen=True, eq=False)
class EncodedInputs(TensorInputs):
    """Vectors that an encoder computed from records, and the record of each vector."""

    source: RecordInputs | None = None
    source_rows: Tensor | None = None

    @cached_property
    def records(self) -> RecordInputs:
        """The records of these rows."""
        assert self.source is not None
        assert self.source_rows is not None
        return self.source.take(self.source_rows)

    def fault_of(self, row: int) -> str | None:
        assert self.source is not None
        assert self.source_rows is not None
        return self.source.fault_of(int(self.source_rows[row]))


def read_records(table: pa.Table, roles: Roles, bad: BadRows) -> RecordInputs:
    """Return the records of a table; rows with a word among numbers are added to ``bad``."""
    columns = {name: CONVERTED[role](table[name], name, bad) for name, role in roles.used.items()}
    dates = frozenset(name for name in roles.of("number") if _is_date(table[name].type))
    return RecordInputs(pa.table(columns), roles, dates, dict(bad.found()))


def _is_date(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind))


def as_numbers(column: Any, name: str, bad: BadRows) -> Any:
    """Return a column as float64: dates as days, booleans as 0 and 1, infinities and missing markers as null."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.cast(kind.value_type)
        kind = column.type
    if is_string(kind):
        return _parsed(column, name, bad)
    try:
        if _is_date(kind):
            seconds = column.cast(pa.timestamp("us")).cast(pa.int64())
            values = pc.divide(seconds.cast(pa.float64()), 1e6 * SECONDS_PER_DAY)
        elif pa.types.is_time(kind) or pa.types.is_duration(kind):
            target = pa.duration("us") if pa.types.is_duration(kind) else pa.time64("us")
            values = pc.divide(column.cast(target).cast(pa.int64()).cast(pa.float64()), 1e6)
        elif pa.types.is_boolean(kind):
            values = column.cast(pa.int8()).cast(pa.float64())
        else:
            values = column.cast(pa.float64(), safe=False)
    except pa.ArrowException as error:
        raise _misfit(name, bad.where, kind, "numbers", "numbers") from error
    return pc.if_else(pc.is_finite(values), values, pa.scalar(None, pa.float64()))


def _parsed(column: Any, name: str, bad: BadRows) -> Any:
    """Return strings as numbers; rows with neither a number nor a missing marker are added to ``bad``."""
    trimmed = pc.utf8_trim_whitespace(column.cast(pa.large_string()))
    known = pc.if_else(is_missing(trimmed), pa.scalar(None, pa.large_string()), trimmed)
    if are_truth(known):
        return truth_as_numbers(known)
    try:
        values = known.cast(pa.float64())
    except pa.ArrowInvalid:
        hint = f" (for words write {setting('data.columns.categories', [name])})" if can_set() else ""
        found: list[float | None] = []
        for row, cell in enumerate(known.to_pylist()):
            try:
                found.append(None if cell is None else float(cell))
            except ValueError:
                found.append(None)
                bad.add(row, f"column {name!r} holds {cell[:40]!r}; expected a number or an empty cell{hint}")
                hint = ""  # once is enough
        values = pa.chunked_array([found], pa.float64())
    return pc.if_else(pc.is_finite(values), values, pa.scalar(None, pa.float64()))


def as_categories(column: Any, name: str, bad: BadRows) -> Any:
    """Return a column as strings, integers without a decimal point; missing markers are null.

    Booleans are in lower case, as Arrow writes them.
    """
    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.cast(kind.value_type)
        kind = column.type
    if pa.types.is_floating(kind):
        whole = pc.fill_null(pc.equal(pc.floor(column), column), True)
        fits = pc.fill_null(pc.less(pc.abs(column), 2.0**53), True)
        if pc.all(pc.and_(whole, fits)).as_py():
            column = column.cast(pa.int64())
    try:
        strings = pc.utf8_trim_whitespace(column.cast(pa.large_string()))
    except pa.ArrowException as error:
        raise _misfit(name, bad.where, kind, "strings or numbers", "categories") from error
    strings = pc.if_else(is_truth(strings), pc.utf8_lower(strings), strings)
    return pc.if_else(is_missing(strings), pa.scalar(None, pa.large_string()), strings)


def as_text(column: Any, name: str, bad: BadRows) -> Any:
    """Return a column as strings; blank strings are missing."""
    if is_list(column.type) or pa.types.is_struct(column.type) or pa.types.is_binary(column.type):
        raise _misfit(name, bad.where, column.type, "text", "text")
    try:
        strings = column.cast(pa.large_string())
    except pa.ArrowException as error:
        raise _misfit(name, bad.where, column.type, "text in UTF-8", "text") from error
    blank = pc.equal(pc.utf8_trim_whitespace(strings), "")
    return pc.if_else(blank, pa.scalar(None, pa.large_string()), strings) if pc.any(blank).as_py() else strings


def as_vectors(column: Any, name: str, bad: BadRows) -> Any:
    """Return a column of number lists as lists of equal length; an empty cell or one with NaN is refused."""
    kind = column.type
    if not is_list(kind):
        raise _misfit(name, bad.where, kind, "lists of numbers", "vectors")
    column = column.combine_chunks()
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
    width = int(np.bincount(lengths.astype(np.int64)).argmax())
    if width == 0 or (lengths != width).any():
        row = int((lengths != max(width, 1)).argmax())
        hint = f", or write {setting('data.columns.ignore', [name])}" if can_set() else ""
        raise DataError(
            f"column {name!r} of {bad.where} has {lengths[row]} numbers at row {bad.numbered([row])[0]}; expected "
            f"{max(width, 1)} in each row, like most rows; fix the row{hint}."
        )
    try:
        flat = pc.list_flatten(column).cast(pa.float32(), safe=False)
    except pa.ArrowException as error:
        raise _misfit(name, bad.where, kind, "lists of numbers", "vectors") from error
    finite = np.isfinite(pc.fill_null(flat, np.nan).to_numpy(zero_copy_only=False)).reshape(-1, width).all(axis=1)
    if not finite.all():
        (row,) = bad.numbered([int(finite.argmin())])
        raise DataError(
            f"column {name!r} of {bad.where} has an empty cell, NaN or infinity at row {row}; expected numbers; fix or "
            "remove the row."
        )
    return pa.FixedSizeListArray.from_arrays(flat, width)


def _misfit(name: str, where: str, kind: pa.DataType, expected: str, setting: str) -> DataError:
    return DataError(
        f"column {name!r} of {where} is of type {kind}; expected {expected}; convert it, or remove it from "
        f"data.columns.{setting}."
    )


CONVERTED: dict[Role, Any] = {
    "number": as_numbers,
    "category": as_categories,
    "text": as_text,
    "vector": as_vectors,
}
