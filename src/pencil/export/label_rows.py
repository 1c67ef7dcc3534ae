"""Which labels leave a run: rows, or entries of several classes at once, all of them or the surest changes."""

import json
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pencil.errors import RunError

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


def matrix(table: pa.Table, name: str) -> np.ndarray:
    """A column of lists of one length as a matrix, a row for each."""
    return _numbers(table[name]).reshape(table.num_rows, table.schema.field(name).type.list_size)
