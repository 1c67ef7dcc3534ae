"""Labels joined by key with all columns of the training table."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from pencil.export.labels import NO_CELLS, ROUNDED
from pencil.export.trained_table import ROWS, TrainedTable
from pencil.runs.label_table import LabelTable

REMEDY = "remove --with-columns"
PREFIX = "table_"
"""Prefix of a table column whose name is also a label column."""


def with_columns(
    labels: LabelTable, table: TrainedTable, *, keep_order: bool = False, all_rows: bool = False
) -> pa.RecordBatchReader:
    """Return every column of the table unchanged, followed by the labels; the table is read in batches.

    Cells of a CSV file are copied as text; lines with too many or too few cells are skipped, with a warning that
    counts them. ``keep_order`` keeps the order of the labels, not of the table, and holds the chosen rows in
    memory. ``all_rows`` also returns rows without labels, with nulls; with ``keep_order`` they come last, in table
    order.
    """
    schema = pa.schema([*_renamed(table.schema, labels.schema), *labels.schema], labels.schema.metadata)
    pieces = _joined(labels, table, schema, all_rows)
    if not keep_order:
        return pa.RecordBatchReader.from_batches(schema, (batch for _, part in pieces for batch in part.to_batches()))
    found = list(pieces)
    places = np.concatenate([places for places, _ in found])
    order = np.where(places < 0, len(labels), places).argsort(kind="stable")
    return pa.concat_tables([part for _, part in found]).take(pa.array(order)).to_reader(ROWS)


def _joined(
    labels: LabelTable, table: TrainedTable, schema: pa.Schema, all_rows: bool
) -> Iterator[tuple[np.ndarray, pa.Table]]:
    """Yield pieces of the table joined with their labels, and the positions of those labels, -1 for none."""
    whole = labels.table.combine_chunks()
    for piece, _, places in table.placed(labels, REMEDY):
        if not all_rows:
            piece, places = piece.filter(pa.array(places >= 0)), places[places >= 0]
        mine = whole.take(pa.array(places, mask=places < 0))  # -1 becomes a row of nulls
        yield places, pa.Table.from_arrays([*piece.columns, *mine.columns], schema=schema)


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
