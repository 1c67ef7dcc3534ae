"""Labels as CSV, JSON lines or Parquet: selects rows or entries and writes them in batches."""

import csv
import io
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq

from pencil.arrow_arrays import numbers, strings
from pencil.decisions import Decision, Where
from pencil.errors import RunError
from pencil.files import atomic_write
from pencil.formulas import escape_formula, escape_formula_column, joined_column
from pencil.runs.label_columns import FLOATS, WIDE
from pencil.runs.label_table import LabelTable

LABEL_FORMATS = ("csv", "jsonl", "parquet")
ROUNDED = ("given", *FLOATS, "label_quality")
"""Columns of the label table that CSV rounds to six digits; the user's own columns are not rounded."""
NO_CELLS = WIDE
"""Columns that CSV omits, because a distribution does not fit into a cell."""
ENTRY_SCHEMA = pa.schema(
    {
        "key": pa.string(),
        "split": pa.string(),
        "class": pa.string(),
        "given": pa.float32(),
        "corrected": pa.int8(),
        "confidence": pa.float32(),
        "changed": pa.bool_(),
        "issue_score": pa.float32(),
        "suspect": pa.bool_(),
    }
)
LINES = 2**18
"""Number of lines created at a time, so that a million rows of 80 classes are never in memory at once."""
JSON_ROWS = 4096
"""Number of rows converted to Python objects at a time."""

Labels: TypeAlias = LabelTable | pa.Table | pa.RecordBatchReader


def select_labels(
    labels: LabelTable,
    *,
    only_changed: bool = False,
    suspects: bool = False,
    fix_first: bool = False,
    min_confidence: float = 0.0,
    by_issue: bool = True,
) -> LabelTable:
    """Return the rows to export.

    Parameters
    ----------
    labels : LabelTable
        All labels of a run.
    only_changed : bool
        Only rows whose label changed.
    suspects : bool
        Only rows that are worth a look; rows of multi-label data if one of their entries is.
    fix_first : bool
        The rows of :meth:`LabelTable.fix_first`, with their kind, in its order.
    min_confidence : float
        Only rows with at least this confidence.
    by_issue : bool
        The most probable issue first; otherwise in the order of the data.
    """
    unread = labels.unread  # only in runs of earlier versions, which kept a label for unreadable files
    chosen = (labels.take(np.flatnonzero(~unread)) if unread.any() else labels).confident(min_confidence)
    if fix_first:
        return chosen.fix_first()
    if only_changed or suspects:
        chosen = chosen.take(np.flatnonzero(chosen.changed if only_changed else chosen.suspect))
    return chosen.by_issue() if by_issue else chosen


def count_unseen(labels: LabelTable, looked_at: Iterable[Where]) -> int:
    """Return how many labels that the run changed have not been looked at; the review page lists all of them.

    A label that was filled in replaces no label: see `count_filled`.
    """
    return _count(labels, labels.changed & ~labels.is_unlabelled, looked_at)


def count_filled(labels: LabelTable, looked_at: Iterable[Where]) -> int:
    """Return how many rows without a given label have a predicted one that has not been looked at."""
    return _count(labels, labels.is_unlabelled | numbers(labels["given"].is_null()), looked_at)


def _count(labels: LabelTable, rows: np.ndarray, looked_at: Iterable[Where]) -> int:
    unseen = rows.copy()
    unseen[list(labels.find_rows(looked_at).values())] = False
    return int(unseen.sum())


def split_removed(labels: LabelTable, decisions: Iterable[Decision]) -> tuple[LabelTable, LabelTable | None]:
    """Return the labels without the rows that a person removed, and these rows; None if there are none."""
    rows = labels.find_rows(one.where for one in decisions if one.decision == "none")
    if not rows:
        return labels, None
    removed = np.isin(np.arange(len(labels)), list(rows.values()))
    return labels.take(np.flatnonzero(~removed)), labels.take(np.flatnonzero(removed))


def select_entries(
    labels: LabelTable, *, only_changed: bool = False, suspects: bool = False, min_confidence: float = 0.0
) -> pa.RecordBatchReader:
    """Return multi-label data with one line per (row, class), generated lazily.

    ``given`` is a probability, ``corrected`` 0 or 1 with its ``confidence``, and ``issue_score`` the probability that
    the given value is wrong; all four are null for an unknown entry. The other parameters are the same as in
    `select_labels`, applied to lines.

    Raises
    ------
    RunError
        If the labels are single-label.
    """
    if not labels.multilabel:
        raise RunError(
            "the labels of this run are single-label; --entries only works with multi-label data; remove it."
        )
    mask = "changed" if only_changed else "suspect" if suspects else None
    parts = (_select(part, mask, min_confidence) for part in _entries(labels))
    if mask is not None:  # the most confident changes, or the highest issue scores, come first
        order = "confidence" if only_changed else "issue_score"
        chosen = pa.concat_tables([ENTRY_SCHEMA.empty_table(), *parts])
        return chosen.sort_by([(order, "descending")]).to_reader(LINES)
    return pa.RecordBatchReader.from_batches(ENTRY_SCHEMA, (batch for part in parts for batch in part.to_batches()))


def _select(table: pa.Table, mask: str | None, min_confidence: float) -> pa.Table:
    if min_confidence > 0:  # an unknown entry has no confidence
        table = table.filter(pc.greater_equal(table["confidence"], min_confidence))
    return table if mask is None else table.filter(table[mask])


def _entries(labels: LabelTable) -> Iterator[pa.Table]:
    names = strings(labels.classes)
    step = max(1, LINES // len(names))
    for start in range(0, labels.num_rows, step):
        part = labels.slice(start, step)
        given, probs = part.given_probs.reshape(-1), part.probs.reshape(-1)
        rows = pa.array(np.repeat(np.arange(part.num_rows), len(names)))
        unknown, corrected = np.isnan(given), probs > 0.5
        yield pa.Table.from_arrays(
            [
                part.keys.take(rows),
                part.splits.take(rows),
                names.take(pa.array(np.tile(np.arange(len(names)), part.num_rows))),
                pa.array(given, mask=unknown),
                pa.array(corrected.astype(np.int8), mask=unknown),
                pa.array(np.maximum(probs, 1 - probs), mask=unknown),
                pa.array((corrected != (given > 0.5)) & ~unknown),
                pa.array(part.entry_scores.reshape(-1).astype(np.float32), mask=unknown),
                pa.array(part.suspect_entries.reshape(-1)),
            ],
            schema=ENTRY_SCHEMA,
        )


def save_labels(labels: Labels, kind: str, path: Path, delimiter: str = ",") -> int:
    """Write labels to a new file; see `write_labels`."""
    with atomic_write(path, new=True) as temporary, temporary.open("wb") as stream:
        return write_labels(labels, kind, stream, delimiter)


def write_labels(labels: Labels, kind: str, target: BinaryIO, delimiter: str = ",") -> int:
    """Write labels to a stream, batch by batch.

    CSV omits distributions and separates the classes of multi-label data by semicolons. In CSV, text that a spreadsheet
    program would run as a formula is prefixed with a quote ('). CSV and JSON omit columns of bytes.

    Parameters
    ----------
    labels : LabelTable, pyarrow.Table or pyarrow.RecordBatchReader
        The rows to write.
    kind : str
        ``csv``, ``jsonl`` or ``parquet``.
    target : binary file
        Where to write.
    delimiter : str
        Field delimiter of CSV.

    Returns
    -------
    int
        The number of lines.
    """
    reader = _reader(labels, without=NO_CELLS if kind == "csv" else ())
    if kind == "parquet":
        with pq.ParquetWriter(target, reader.schema) as writer:
            return _each(reader, writer.write_batch)
    columns = [field.name for field in reader.schema if not has_bytes(field.type)]
    if kind == "jsonl":
        return _each(reader, lambda batch: _write_json(batch.select(columns), target))
    columns = [name for name in columns if name not in NO_CELLS]  # the user's tables may contain them too
    header = io.StringIO()
    csv.writer(header, lineterminator="\n", delimiter=delimiter).writerow(map(escape_formula, columns))
    target.write(header.getvalue().encode())
    return _each(reader, lambda batch: _write_csv(batch.select(columns), target, delimiter))


def _reader(labels: Labels, without: Sequence[str]) -> pa.RecordBatchReader:
    """Return labels in batches; unwanted columns of a large label table are not read."""
    if isinstance(labels, LabelTable):
        fields = [field for field in labels.schema if field.name not in without]
        schema = pa.schema(fields, labels.schema.metadata)
        return pa.RecordBatchReader.from_batches(schema, labels.batches(LINES, schema.names))
    return labels if isinstance(labels, pa.RecordBatchReader) else labels.to_reader(max_chunksize=LINES)


def has_bytes(kind: pa.DataType) -> bool:
    """Return whether values of this type are or contain bytes, like images of the datasets library."""
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return True
    inner = [kind.value_type] if pa.types.is_dictionary(kind) else [kind.field(i).type for i in range(kind.num_fields)]
    return any(map(has_bytes, inner))


def _each(reader: pa.RecordBatchReader, write: Callable[[pa.RecordBatch], object]) -> int:
    count = 0
    for batch in reader:
        write(batch)
        count += batch.num_rows
    return count


def _write_json(batch: pa.RecordBatch, target: BinaryIO) -> None:
    for start in range(0, batch.num_rows, JSON_ROWS):
        rows = batch.slice(start, JSON_ROWS).to_pylist()
        target.write("".join(_json(row) + "\n" for row in rows).encode())


def _json(value: Any) -> str:
    """Return JSON that every reader accepts: NaN becomes null; dates and similar values become text."""
    try:
        return json.dumps(value, default=str, allow_nan=False)
    except ValueError:
        return json.dumps(_without_nan(value), default=str)


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nan(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_without_nan(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _write_csv(batch: pa.RecordBatch, target: BinaryIO, delimiter: str) -> None:
    """Write cells, each with quotes only where necessary."""
    names, text = batch.schema.names, io.BytesIO()
    cells = pa.record_batch([_csv_cells(batch[name], name in ROUNDED) for name in names], names)
    options = arrow_csv.WriteOptions(include_header=False, quoting_style="none", delimiter=delimiter)
    try:
        arrow_csv.write_csv(cells, text, options)
        target.write(text.getvalue())
    except pa.ArrowInvalid:  # a delimiter, a quote or a line break in a cell; Arrow could only quote all texts
        target.write(_quoted_lines(cells, delimiter))


def _quoted_lines(cells: pa.RecordBatch, delimiter: str) -> Any:
    """Return the lines of a batch in which some cells need quotes, as a buffer."""
    texts = [_quoted(pc.fill_null(column.cast(pa.large_string()), _text("")), delimiter) for column in cells.columns]
    lines = pc.binary_join_element_wise(*texts, _text(delimiter))
    return pc.binary_join_element_wise(lines, _text(""), _text("\n")).buffers()[2]


def _text(text: str) -> Any:
    return pa.array([text], pa.large_string())[0]  # pa.scalar would import pandas


def _quoted(column: Any, delimiter: str) -> Any:
    """Return texts, in quotes if they have a delimiter, a quote or a line break."""
    special = pc.match_substring_regex(column, f'["\\r\\n{re.escape(delimiter)}]')
    if not pc.any(special, min_count=0).as_py():
        return column
    inner = pc.replace_substring(column, '"', '""')
    return pc.if_else(special, pc.binary_join_element_wise(_text('"'), inner, _text('"'), _text("")), column)


def _rounded(column: Any) -> Any:
    """Round to six digits; NaN (a row without a given label) becomes an empty cell."""
    column = column.cast(pa.float64())
    empty = pa.nulls(1, pa.float64())[0]  # pa.scalar(None) would import pandas
    return pc.round(pc.if_else(pc.is_nan(column), empty, column), 6)


def _csv_cells(column: Any, rounded: bool = False) -> Any:
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _csv_cells(column.cast(kind.value_type))
    if pa.types.is_list(kind) and pa.types.is_string(kind.value_type):
        return joined_column(column)
    if pa.types.is_floating(kind):
        return _rounded(column) if rounded else column
    if pa.types.is_boolean(kind):
        return pc.utf8_capitalize(column.cast(pa.string()))  # True and False
    if pa.types.is_integer(kind) or pa.types.is_null(kind):
        return column
    if not pa.types.is_string(kind):  # dates, decimals, long strings
        as_text = _json if pa.types.is_nested(kind) else str
        column = pa.array([None if value is None else as_text(value) for value in column.to_pylist()], pa.string())
    return escape_formula_column(column)
