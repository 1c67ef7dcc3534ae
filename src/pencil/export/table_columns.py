"""Labels joined by key with all columns of the table that the run was trained on."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pencil.data.delimited import SUFFIXES as TEXT_SUFFIXES
from pencil.data.delimited import Dialect, Numbered, find_dialect, read_names, read_pieces
from pencil.data.settings import DataSettings
from pencil.data.table import SUFFIXES, row_keys
from pencil.errors import DataError, RunError
from pencil.export.labels import NO_CELLS, ROUNDED, has_bytes
from pencil.runs.label_table import LabelTable

PREFIX = "table_"
"""The prefix of a column whose name the labels have too."""
BLOCK = 2**24
"""This many bytes of a CSV file are read at a time."""
ROWS, ROWS_OF_IMAGES = 65536, 2048


def with_columns(
    labels: LabelTable, settings: DataSettings, *, keep_order: bool = False, all_rows: bool = False
) -> pa.RecordBatchReader:
    """Return every column of the table, as it came, followed by the labels; it is read piece by piece.

    Lines of a CSV file with too many or too few cells fit no column; they are left out, and a warning counts them.

    Parameters
    ----------
    labels : LabelTable
        The labels to export.
    settings : DataSettings
        The data section of the run's recipe, which names the table. Cells of a CSV file are copied as text.
    keep_order : bool
        Keep the order of the labels, for which the chosen rows are held in memory; else that of the table.
    all_rows : bool
        Return rows of the table that are not among the labels too, with nulls for the labels; with ``keep_order`` they
        come last, in the order of the table.
    """
    path = Path(settings.source).expanduser()
    if path.suffix.lower() not in SUFFIXES:
        raise RunError(f"the data of this run ({settings.source!r}) are no table; leave --with-columns out.")
    if not path.is_file():
        raise RunError(f"the table of this run, {path}, is no longer there; restore it, or leave --with-columns out.")
    with _refusals(path):
        dialect = table_dialect(settings)
        own = _read_schema(path, dialect)
    schema = pa.schema([*_renamed(own, labels.schema), *labels.schema], labels.schema.metadata)
    pieces = _joined(labels.table.combine_chunks(), path, _pieces(path, own, dialect), settings, schema, all_rows)
    if not keep_order:
        return pa.RecordBatchReader.from_batches(schema, (batch for _, part in pieces for batch in part.to_batches()))
    found = list(pieces)
    places = np.concatenate([places for places, _ in found])
    order = np.where(places < 0, len(labels), places).argsort(kind="stable")
    return pa.concat_tables([part for _, part in found]).take(pa.array(order)).to_reader(ROWS)


def _joined(
    labels: pa.Table,
    path: Path,
    pieces: Iterator[Numbered],
    settings: DataSettings,
    schema: pa.Schema,
    all_rows: bool,
) -> Iterator[tuple[np.ndarray, pa.Table]]:
    """Yield pieces of the table joined with their labels, and the positions of those labels, -1 for none."""
    root = path.parent if settings.root is None else settings.root.expanduser()
    place_of = {key: place for place, key in enumerate(labels["key"].to_pylist())}
    with _refusals(path):
        for piece, numbers in pieces:
            keys = row_keys(path, piece, settings.columns, root, numbers)
            places = np.array([place_of.pop(key, -1) for key in keys], dtype=np.int64)
            if not all_rows:
                piece, places = piece.filter(pa.array(places >= 0)), places[places >= 0]
            mine = labels.take(pa.array(places, mask=places < 0))  # a row without a position is a row of nulls
            yield places, pa.Table.from_arrays([*piece.columns, *mine.columns], schema=schema)
    if place_of:
        raise DataError(
            f"{path} has no row {next(iter(place_of))!r} any more, nor have {len(place_of) - 1:,} others of its labels "
            "one; use the table that was trained on, or leave --with-columns out."
        )


def _renamed(own: pa.Schema, labels: pa.Schema) -> list[pa.Field]:
    taken = {*labels.names, *NO_CELLS, *ROUNDED}
    theirs = set(own.names)
    fields = []
    for field in own:
        name = field.name
        while name in taken or (name != field.name and name in theirs):
            name = PREFIX + name
        taken.add(name)
        fields.append(field.with_name(name))
    return fields


def table_dialect(settings: DataSettings) -> Dialect | None:
    """Return how the table of a run is written as text; None for Parquet and for data that is no table."""
    path = Path(settings.source).expanduser()
    return find_dialect(path, settings.delimiter) if path.suffix.lower() in TEXT_SUFFIXES and path.is_file() else None


def _read_schema(path: Path, dialect: Dialect | None) -> pa.Schema:
    if dialect is None:
        return pq.read_schema(path)
    return pa.schema([(name, pa.string()) for name in read_names(path, dialect)])


def _pieces(path: Path, own: pa.Schema, dialect: Dialect | None) -> Iterator[Numbered]:
    if dialect is not None:
        yield from read_pieces(path, dialect, own, BLOCK)
        return
    size = ROWS_OF_IMAGES if any(has_bytes(field.type) for field in own) else ROWS
    first = 0
    with pq.ParquetFile(path, pre_buffer=False) as file:  # which would hold all of it
        for batch in file.iter_batches(size):
            yield Numbered(pa.Table.from_batches([batch]), np.arange(first, first + batch.num_rows))
            first += batch.num_rows


@contextmanager
def _refusals(path: Path) -> Iterator[None]:
    try:
        yield
    except pa.ArrowException as error:
        raise DataError(
            f"cannot read {path}: {str(error).splitlines()[0]}; expected the table that was trained on."
        ) from error
