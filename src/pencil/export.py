"""Corrected labels and class maps in formats that other programs read."""

import io
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq
from torch import Tensor

from pencil.errors import RunError

LABEL_FORMATS = ("csv", "jsonl", "parquet")
ENTRY_SCHEMA = pa.schema(
    {
        "key": pa.string(),
        "split": pa.string(),
        "class": pa.string(),
        "given": pa.float32(),
        "corrected": pa.int8(),
        "confidence": pa.float32(),
        "changed": pa.bool_(),
    }
)
LINES = 2**18
"""So many lines are made at a time: a million rows of 80 classes never stand in memory together."""


def choose_labels(table: pa.Table, *, only_changed: bool = False, min_confidence: float = 0.0) -> pa.Table:
    """The rows asked for; changes come with the surest first."""
    if min_confidence > 0:  # which what is unknown has none of
        table = table.filter(pc.greater_equal(table["confidence"], min_confidence))
    if only_changed:
        changed = pc.greater(table["changed"].cast(pa.int32()), 0)  # yes or no, or a number of entries
        table = table.filter(changed).sort_by([("confidence", "descending")])
    return table


def choose_entries(table: pa.Table, *, only_changed: bool = False, min_confidence: float = 0.0) -> pa.RecordBatchReader:
    """Labels of several classes at once with a line for each (row, class), made as they are read.

    ``given`` is a probability, ``corrected`` 0 or 1 with its ``confidence``; of an unknown entry none of them is there.
    """
    if "given_probabilities" not in table.column_names:
        raise RunError("in this run each example is of one class; --entries is for several at once; leave it out.")
    parts = (choose_labels(part, only_changed=only_changed, min_confidence=min_confidence) for part in _entries(table))
    if only_changed:  # the surest of all come first
        return choose_labels(pa.concat_tables([ENTRY_SCHEMA.empty_table(), *parts]), only_changed=True).to_reader(LINES)
    return pa.RecordBatchReader.from_batches(ENTRY_SCHEMA, (batch for part in parts for batch in part.to_batches()))


def _entries(table: pa.Table) -> Iterator[pa.Table]:
    names = pa.array(json.loads(table.schema.metadata[b"classes"]), pa.string())
    step = max(1, LINES // len(names))
    for start in range(0, table.num_rows, step):
        part = table.slice(start, step).combine_chunks()
        given, probs = (_numbers(part[name]) for name in ("given_probabilities", "distribution"))
        rows = pa.array(np.repeat(np.arange(part.num_rows), len(names)))
        unknown, corrected = np.isnan(given), probs > 0.5
        yield pa.Table.from_arrays(
            [
                part["key"].take(rows),
                part["split"].cast(pa.string()).take(rows),
                names.take(pa.array(np.tile(np.arange(len(names)), part.num_rows))),
                pa.array(given, mask=unknown),
                pa.array(corrected.astype(np.int8), mask=unknown),
                pa.array(np.maximum(probs, 1 - probs), mask=unknown),
                pa.array((corrected != (given > 0.5)) & ~unknown),
            ],
            schema=ENTRY_SCHEMA,
        )


def _numbers(column: pa.ChunkedArray) -> np.ndarray:
    """The numbers of a column of lists, one row after the other."""
    values: np.ndarray = pc.list_flatten(column).to_numpy()
    return values


def save_labels(labels: pa.Table | pa.RecordBatchReader, kind: str, path: Path) -> int:
    """Write to a file that does not exist yet; say how many lines."""
    with _new_file(path) as stream:
        return write_labels(labels, kind, stream)


def save_maps(path: Path, keys: Sequence[str], classes: Sequence[str], maps: Tensor) -> None:
    """``keys``, ``classes`` and ``maps`` (keys, classes, height, width) in an npz file that does not exist yet."""
    with _new_file(path) as stream:
        np.savez(stream, keys=np.asarray(keys, dtype=np.str_), classes=np.asarray(classes), maps=maps.numpy())


@contextmanager
def _new_file(path: Path) -> Iterator[BinaryIO]:
    try:
        with path.open("xb") as stream:
            yield stream
    except OSError as error:
        reason = "it already exists" if isinstance(error, FileExistsError) else error.strerror
        raise RunError(f"cannot write {path}: {reason}; name a new file in a folder that is there.") from error


def write_labels(labels: pa.Table | pa.RecordBatchReader, kind: str, target: BinaryIO) -> int:
    """Write batch by batch; say how many lines.

    CSV leaves out distributions, which have no place in a cell, and parts several classes by semicolons.
    """
    reader = labels if isinstance(labels, pa.RecordBatchReader) else labels.to_reader(max_chunksize=LINES)
    if kind == "parquet":
        with pq.ParquetWriter(target, reader.schema) as writer:
            return _each(reader, writer.write_batch)
    if kind == "jsonl":
        return _each(reader, lambda batch: _write_json(batch, target))
    target.write((",".join(_csv_columns(reader.schema)) + "\n").encode())
    return _each(reader, lambda batch: _write_csv(batch, target))


def _each(reader: pa.RecordBatchReader, write: Callable[[pa.RecordBatch], object]) -> int:
    count = 0
    for batch in reader:
        write(batch)
        count += batch.num_rows
    return count


def _write_json(batch: pa.RecordBatch, target: BinaryIO) -> None:
    for start in range(0, batch.num_rows, 4096):  # so many Python objects at a time
        rows = batch.slice(start, 4096).to_pylist()
        target.write("".join(json.dumps(row) + "\n" for row in rows).encode())


def _write_csv(batch: pa.RecordBatch, target: BinaryIO) -> None:
    """Cells in quotes only where they need it."""
    columns = _csv_columns(batch.schema)
    cells = pa.record_batch([_csv_cells(batch[name]) for name in columns], columns)
    for style in ("none", "needed"):
        text = io.BytesIO()
        try:
            arrow_csv.write_csv(cells, text, arrow_csv.WriteOptions(include_header=False, quoting_style=style))
            break
        except pa.ArrowInvalid:  # a comma, a quote or a line break in a cell
            continue
    target.write(text.getvalue())


def _csv_cells(column: Any) -> Any:
    kind = column.type
    if pa.types.is_dictionary(kind):
        return column.cast(kind.value_type)
    if pa.types.is_list(kind):
        return pc.binary_join(column, ";")
    if pa.types.is_floating(kind):
        return pc.round(column.cast(pa.float64()), 6)
    return pc.if_else(column, "True", "False") if pa.types.is_boolean(kind) else column


def _csv_columns(schema: pa.Schema) -> list[str]:
    return [name for name in schema.names if name not in ("distribution", "given_probabilities")]
