"""Reads and checks single files of a run directory; raises ValueError or OSError for a bad file.

A file may come from an untrusted source: wrong types, empty cells, pipes in place of files, and excessive nesting are
rejected.
"""

import math
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import safetensors

from pencil.files import parse_json, read_regular, refuse_deep, refuse_irregular
from pencil.runs.table_memory import read_table

LARGEST = 1e100
"""Largest valid metric; larger values cannot be plotted."""


def read_recipe(path: Path) -> dict[str, Any]:
    """Return the tables of a run's recipe; if the numbering of rows is not set, rows are counted from 0."""
    tree = tomllib.loads(read_regular(path).decode())
    refuse_deep(tree)
    data = tree.get("data")
    columns = data.setdefault("columns", {}) if isinstance(data, dict) else None
    if isinstance(columns, dict) and not {"key", "numbering"} & columns.keys():
        columns["numbering"] = "places"  # written before ids and line numbers became the keys
    return tree


def read_row_keys(path: Path) -> pa.Table:
    """Return the table of keys and splits."""
    table = read_table(path, ["key", "split"])
    for name in ("key", "split"):
        kind = table.schema.field(name).type
        text = pa.types.is_string(kind.value_type if pa.types.is_dictionary(kind) else kind)
        if not text or table[name].null_count:
            raise ValueError(f"the column {name!r} has type {kind} or empty cells; expected text in each cell")
    return table


def read_safetensors(path: Path) -> tuple[dict[str, str], dict[str, np.ndarray]]:
    """Return the header and the arrays of a safetensors file."""
    refuse_irregular(path)
    with safetensors.safe_open(path, "numpy") as file:
        return dict(file.metadata() or {}), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def parse_record(line: bytes) -> dict[str, Any]:
    """Return the metrics of a line; see :func:`checked_record`."""
    return checked_record(parse_json(line))


def checked_record(record: Any) -> dict[str, Any]:
    """Return the metrics of an epoch if they are numbers, except the phase name; unknown metrics are None."""
    if not isinstance(record, dict):
        raise ValueError(f"it is a {type(record).__name__}; expected a JSON object")
    for name, value in record.items():
        if name == "phase" and isinstance(value, str):
            continue
        known = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < LARGEST
        unknown = value is None or (isinstance(value, float) and not math.isfinite(value))
        if name == "phase" or not (known or unknown):
            raise ValueError(f"{name!r} is {str(value)[:40]!r}; expected a {'name' if name == 'phase' else 'number'}")
    return record
