"""Corrected labels in formats that other programs read."""

import json
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

LABEL_FORMATS = ("csv", "jsonl", "parquet")


def choose_labels(table: pa.Table, *, only_changed: bool = False, min_confidence: float = 0.0) -> pa.Table:
    """The rows asked for; changes come with the surest first."""
    table = table.filter(pc.greater_equal(table["confidence"], min_confidence))
    if only_changed:
        table = table.filter(table["changed"]).sort_by([("confidence", "descending")])
    return table


def write_labels(table: pa.Table, kind: str, target: Path | BinaryIO) -> None:
    """CSV leaves out the distribution, which has no place in a cell; JSON lines and Parquet carry it."""
    if kind == "parquet":
        pq.write_table(table, target)
        return
    if isinstance(target, Path):
        with target.open("wb") as stream:
            write_labels(table, kind, stream)
        return
    if kind == "csv":
        flat = table.drop_columns(["distribution"])
        strings = pa.schema(
            [pa.field(f.name, pa.string() if pa.types.is_dictionary(f.type) else f.type) for f in flat.schema]
        )
        pyarrow.csv.write_csv(flat.cast(strings), target, pyarrow.csv.WriteOptions(quoting_style="needed"))
        return
    for batch in table.to_batches(max_chunksize=4096):
        target.write("".join(json.dumps(row) + "\n" for row in batch.to_pylist()).encode())
