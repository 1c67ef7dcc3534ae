"""Labels as CSV, JSON lines or Parquet, written piece by piece to new files; class maps as npz."""

import csv
import io
import json
import math
import os
import shutil
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

from pencil.errors import PencilError, RunError
from pencil.export.label_rows import LINES

LABEL_FORMATS = ("csv", "jsonl", "parquet")


ROUNDED = ("given", "confidence", "given_probability", "margin", "entropy", "label_quality")
"""Numbers of ours, which CSV has with six digits; a user's own stay as they are."""
NO_CELLS = ("distribution", "given_probabilities")


def save_labels(labels: pa.Table | pa.RecordBatchReader, kind: str, path: Path) -> int:
    """Write to a file that does not exist yet; say how many lines."""
    with new_file(path) as stream:
        return write_labels(labels, kind, stream)


def save_maps(path: Path, keys: Sequence[str], classes: Sequence[str], maps: Tensor) -> None:
    """``keys``, ``classes`` and ``maps`` (keys, classes, height, width) in an npz file that does not exist yet."""
    with new_file(path) as stream:
        np.savez(stream, keys=np.asarray(keys, dtype=np.str_), classes=np.asarray(classes), maps=maps.numpy())


@contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """A file that was not there; if it cannot be finished, it is not there afterwards either."""
    with _named(path, "file"):
        stream = path.open("xb")
        try:
            with stream:
                yield stream
        except BaseException:
            path.unlink(missing_ok=True)
            raise


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder to fill, which takes its name only when it is full."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    with _named(path, "folder"):
        if os.path.lexists(path):
            raise FileExistsError
        beside.mkdir()
        try:
            yield beside
            beside.rename(path)
        except BaseException:
            shutil.rmtree(beside)
            raise


@contextmanager
def _named(path: Path, what: str) -> Iterator[None]:
    try:
        yield
    except PencilError:
        raise
    except OSError as error:
        reason = "it already exists" if isinstance(error, FileExistsError) else error.strerror or error
        raise RunError(f"cannot write {path}: {reason}; name a new {what} in a folder that is there.") from error


def write_labels(labels: pa.Table | pa.RecordBatchReader, kind: str, target: BinaryIO) -> int:
    """Write batch by batch; say how many lines.

    CSV leaves out distributions, which have no place in a cell, and parts several classes by semicolons. Neither it nor
    JSON has a place for bytes.
    """
    reader = labels if isinstance(labels, pa.RecordBatchReader) else labels.to_reader(max_chunksize=LINES)
    if kind == "parquet":
        with pq.ParquetWriter(target, reader.schema) as writer:
            return _each(reader, writer.write_batch)
    columns = [field.name for field in reader.schema if not has_bytes(field.type)]
    if kind == "jsonl":
        return _each(reader, lambda batch: _write_json(batch.select(columns), target))
    columns = [name for name in columns if name not in NO_CELLS]
    header = io.StringIO()
    csv.writer(header, lineterminator="\n").writerow(columns)
    target.write(header.getvalue().encode())
    return _each(reader, lambda batch: _write_csv(batch.select(columns), target))


def has_bytes(kind: pa.DataType) -> bool:
    """Whether values of this type are bytes, or hold some, as images of the datasets library do."""
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
    for start in range(0, batch.num_rows, 4096):  # so many Python objects at a time
        rows = batch.slice(start, 4096).to_pylist()
        target.write("".join(_json(row) + "\n" for row in rows).encode())


def _json(value: Any) -> str:
    """JSON as every reader takes it: what is no number is null; dates and the like are text."""
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


def _write_csv(batch: pa.RecordBatch, target: BinaryIO) -> None:
    """Cells in quotes only where they need it."""
    names = batch.schema.names
    cells = pa.record_batch([_csv_cells(batch[name], name in ROUNDED) for name in names], names)
    for style in ("none", "needed"):
        text = io.BytesIO()
        try:
            arrow_csv.write_csv(cells, text, arrow_csv.WriteOptions(include_header=False, quoting_style=style))
            break
        except pa.ArrowInvalid:  # a comma, a quote or a line break in a cell
            continue
    target.write(text.getvalue())


def _csv_cells(column: Any, rounded: bool = False) -> Any:
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _csv_cells(column.cast(kind.value_type))
    if pa.types.is_list(kind) and pa.types.is_string(kind.value_type):
        return pc.binary_join(column, ";")
    if pa.types.is_floating(kind):
        return pc.round(column.cast(pa.float64()), 6) if rounded else column
    if pa.types.is_boolean(kind):
        return pc.if_else(column, "True", "False")
    if pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_null(kind):
        return column
    say = _json if pa.types.is_nested(kind) else str  # dates, decimals, long strings
    return pa.array([None if value is None else say(value) for value in column.to_pylist()], pa.string())
