"""A person's decisions: appended and flushed to disk as they are made, and merged into the labels of a run."""

import json
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pencil.decisions import Decision, Where, presence
from pencil.errors import RunError


def merge_reviews(label_table: pa.Table, reviews: Iterable[Decision]) -> pa.Table:
    """The same table with the person's label as ``corrected``, surely, and a column ``reviewed``.

    Everything that follows from the label follows it: ``changed``, ``given_probability``, ``margin``, ``entropy`` and
    ``distribution``. A class that was unknown stays unknown unless the person put it into the set.
    """
    chosen = {review.where: review.label for review in reviews if review.label is not None}
    rows = find_rows(label_table["key"].combine_chunks(), label_table["split"].combine_chunks(), chosen)
    for key, split in chosen.keys() - rows.keys():
        raise RunError(f"a review is about {key!r} ({split}), which the label table does not have; is it of this run?")
    classes: list[str] = json.loads(label_table.schema.metadata[b"classes"])
    reviewed = np.zeros(label_table.num_rows, dtype=bool)
    reviewed[list(rows.values())] = True
    by_row = {row: (where[0], chosen[where]) for where, row in rows.items()}
    picked = np.array(sorted(by_row), dtype=np.int64)
    multilabel = "given_probabilities" in label_table.column_names
    present = presence((by_row[int(row)] for row in picked), classes, several=multilabel)
    merge = _merged_sets if multilabel else _merged_classes
    merged = merge(label_table, picked, present, classes)
    merged["confidence"] = _changed_at(label_table["confidence"], picked, 1.0)
    for name, values in merged.items():
        at = label_table.column_names.index(name)
        label_table = label_table.set_column(at, label_table.schema.field(name), values)
    return label_table.append_column("reviewed", pa.array(reviewed))


def find_rows(keys: Any, splits: Any, wanted: Iterable[Where]) -> dict[Where, int]:
    """The row of each (key, split); no Python object is made for the others."""
    wanted = set(wanted)
    if not wanted or not len(keys):
        return {}
    names = _strings(sorted({key for key, _ in wanted}))
    hits = np.flatnonzero(np.from_dlpack(pc.is_in(keys, names).cast(pa.uint8())))
    places = (((keys[row].as_py(), splits[row].as_py()), row) for row in hits.tolist())
    return {where: row for where, row in places if where in wanted}


def _strings(values: list[str]) -> pa.StringArray:
    """As Arrow holds them; ``pa.array`` would import all of pandas first, and the page is waiting."""
    encoded = [value.encode() for value in values]
    offsets = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    return pa.StringArray.from_buffers(len(values), pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded)))


def _merged_classes(table: pa.Table, picked: np.ndarray, present: np.ndarray, classes: list[str]) -> dict[str, Any]:
    names = pa.array(classes, pa.string())
    chosen = present.argmax(axis=1)
    codes = pc.index_in(table["corrected"].cast(pa.string()), names).to_numpy().astype(np.int32)
    codes[picked] = chosen
    given = pc.index_in(table["given"].cast(pa.string()).take(pa.array(picked)), names).to_numpy()
    same = given == chosen
    return {
        "corrected": pa.DictionaryArray.from_arrays(pa.array(codes), names).cast(table.schema.field("corrected").type),
        "given_probability": _changed_at(table["given_probability"], picked, same),
        "margin": _changed_at(table["margin"], picked, 1.0),
        "entropy": _changed_at(table["entropy"], picked, 0.0),
        "changed": _changed_at(table["changed"], picked, ~same),
        "distribution": _changed_matrix(table["distribution"], picked, present),
    }


def _merged_sets(table: pa.Table, picked: np.ndarray, present: np.ndarray, classes: list[str]) -> dict[str, Any]:
    corrected = table["corrected"].combine_chunks()
    names = np.array(classes, dtype=object)
    lists = pa.array([names[row].tolist() for row in present], corrected.type)
    order = np.arange(table.num_rows)
    order[picked] = table.num_rows + np.arange(len(picked))
    at = pa.array(picked)
    given = _matrix(table["given_probabilities"].take(at), len(classes))
    said = _matrix(table["distribution"].take(at), len(classes))
    known = ~np.isnan(given)
    return {
        "corrected": pa.concat_arrays([corrected, lists]).take(pa.array(order)),
        "changed": _changed_at(table["changed"], picked, (known & (present != (given > 0.5))).sum(axis=1)),
        "distribution": _changed_matrix(table["distribution"], picked, np.where(known | present, present, said)),
    }


def _changed_at(column: pa.ChunkedArray, picked: np.ndarray, values: Any) -> pa.Array:
    copy = column.to_numpy().copy()
    copy[picked] = values
    return pa.array(copy, column.type)


def _matrix(column: pa.ChunkedArray, width: int) -> np.ndarray:
    numbers: np.ndarray = pc.list_flatten(column).to_numpy().reshape(-1, width)
    return numbers


def _changed_matrix(column: pa.ChunkedArray, picked: np.ndarray, values: np.ndarray) -> pa.FixedSizeListArray:
    copy = _matrix(column, column.type.list_size).copy()
    copy[picked] = values
    return pa.FixedSizeListArray.from_arrays(pa.array(copy.ravel()), type=column.type)
