"""Corrected labels in formats that other programs read."""

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pencil.errors import RunError

LABEL_FORMATS = ("csv", "jsonl", "parquet")


def choose_labels(table: pa.Table, *, only_changed: bool = False, min_confidence: float = 0.0) -> pa.Table:
    """The rows asked for; changes come with the surest first."""
    table = table.filter(pc.greater_equal(table["confidence"], min_confidence))
    if only_changed:
        changed = pc.greater(table["changed"].cast(pa.int32()), 0)  # yes or no, or a number of entries
        table = table.filter(changed).sort_by([("confidence", "descending")])
    return table


def save_labels(table: pa.Table, kind: str, path: Path) -> None:
    """Write to a file that does not exist yet."""
    try:
        with path.open("xb") as stream:
            write_labels(table, kind, stream)
    except OSError as error:
        reason = "it already exists" if isinstance(error, FileExistsError) else error.strerror
        raise RunError(f"cannot write {path}: {reason}; name a new file in a folder that is there.") from error


def write_labels(table: pa.Table, kind: str, target: BinaryIO) -> None:
    """CSV leaves out distributions, which have no place in a cell, and parts several classes by semicolons."""
    if kind == "parquet":
        pq.write_table(table, target)
        return
    if kind == "csv":
        target.write((",".join(_csv_columns(table.schema)) + "\n").encode())
    for batch in table.to_batches(max_chunksize=4096):
        text = io.StringIO()
        if kind == "jsonl":
            text.writelines(json.dumps(row) + "\n" for row in batch.to_pylist())
        else:
            csv.writer(text, lineterminator="\n").writerows(_csv_rows(batch))
        target.write(text.getvalue().encode())


def _csv_rows(batch: pa.RecordBatch) -> Iterator[tuple[object, ...]]:
    columns = [batch[name].to_pylist() for name in _csv_columns(batch.schema)]
    for row in zip(*columns, strict=True):
        yield tuple(_csv_cell(value) for value in row)


def _csv_cell(value: object) -> object:
    if isinstance(value, list):
        return ";".join(map(str, value))
    return f"{value:.6g}" if isinstance(value, float) else value


def _csv_columns(schema: pa.Schema) -> list[str]:
    return [name for name in schema.names if name not in ("distribution", "given_probabilities")]
