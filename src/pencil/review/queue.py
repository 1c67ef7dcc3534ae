"""What is to be reviewed, the most useful first: a few compact columns of ``labels.parquet``, never the whole of it.

Confident disagreements come first, the surest of them at the top; then the labels that were kept, the most doubtful
first. A million rows are a few dozen megabytes here, and a page of them at a time in the browser.
"""

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pencil.decisions import Label, Where
from pencil.errors import RunError
from pencil.review.merge import find_rows

RECIPE, LABELS, SUMMARY = "recipe.toml", "labels.parquet", "summary.json"  # as in run_directory, which needs torch
COLUMNS = ("key", "split", "given", "corrected", "confidence", "changed")
PAIRS = 500
"""So many pairs of given and corrected can be chosen from, the most frequent first."""
SHOWN = ("all", "changed", "kept")


@dataclass(frozen=True)
class Filter:
    """Which rows are looked at: one pair of given and corrected (by code), a range of confidence, changed or kept."""

    show: str = "all"
    pair: tuple[int, int] | None = None
    low: float = 0.0
    high: float = 1.0


@dataclass(frozen=True)
class Labels:
    """A column of labels as codes; ``names`` says what each code stands for."""

    codes: np.ndarray
    names: list[Label]

    def __getitem__(self, row: int) -> Label:
        return self.names[int(self.codes[row])]


class Queue:
    """The rows of a run in the order of their usefulness."""

    def __init__(self, run: Path):
        table = _read(run)
        self.classes: list[str] = json.loads((table.schema.metadata or {}).get(b"classes", b"[]"))
        self.multilabel = pa.types.is_list(table.schema.field("given").type)
        self.keys, self.splits = (_whole(table[name]) for name in ("key", "split"))
        self.confidence = _numbers(_whole(table["confidence"]))
        self.changed = _numbers(_whole(table["changed"]).cast(pa.int32())) > 0
        given, corrected = table["given"], table["corrected"]
        self.given, self.corrected = (_sets if self.multilabel else _classes)(given, corrected, self.classes)
        self.order = _by_usefulness(self.changed, self.confidence)
        self.rows = lru_cache(maxsize=8)(self._rows)

    def __len__(self) -> int:
        return len(self.keys)

    def where(self, row: int) -> Where:
        return self.keys[row].as_py(), self.splits[row].as_py()

    def find(self, wanted: list[Where]) -> dict[Where, int]:
        return find_rows(self.keys, self.splits, wanted)

    def _rows(self, chosen: Filter) -> np.ndarray:
        """The rows that a filter leaves, in order."""
        kept = np.ones(len(self), dtype=bool)
        if chosen.show != "all":
            kept &= self.changed == (chosen.show == "changed")
        if chosen.pair is not None:
            kept &= (self.given.codes == chosen.pair[0]) & (self.corrected.codes == chosen.pair[1])
        if (chosen.low, chosen.high) != (0.0, 1.0):
            kept &= (self.confidence >= chosen.low) & (self.confidence <= chosen.high)
        return self.order if kept.all() else self.order[kept[self.order]]

    def pairs(self) -> list[dict[str, Any]]:
        """Which label became which, how often: the most frequent changes first."""
        width = len(self.corrected.names)
        both = self.given.codes[self.changed].astype(np.int64) * width + self.corrected.codes[self.changed]
        found, counts = np.unique(both, return_counts=True)
        most = np.argsort(-counts, kind="stable")[:PAIRS]
        return [
            {
                "pair": f"{code // width}-{code % width}",
                "given": self.given.names[code // width],
                "corrected": self.corrected.names[code % width],
                "count": count,
            }
            for code, count in zip(found[most].tolist(), counts[most].tolist(), strict=True)
        ]

    def describe(self, row: int) -> dict[str, Any]:
        """What the page shows of a row."""
        key, split = self.where(row)
        sure = float(self.confidence[row])
        return {
            "row": row,
            "key": key,
            "split": split,
            "given": self.given[row],
            "corrected": self.corrected[row],
            "confidence": sure if np.isfinite(sure) else None,
            "changed": bool(self.changed[row]),
        }


def _read(run: Path) -> pa.Table:
    if not (run / RECIPE).is_file():
        raise RunError(f"{run} is not a run directory (it has no {RECIPE}); name one that `pencil train` made.")
    if not (run / SUMMARY).is_file():
        raise RunError(f"the run in {run} has not finished (it has no {SUMMARY}); go on with `pencil resume {run}`.")
    try:
        return pq.ParquetFile(run / LABELS).read(columns=list(COLUMNS))  # read_table imports a lot first
    except (OSError, ValueError, pa.ArrowException) as error:
        raise RunError(f"the run in {run} is damaged: {error}") from error


def _by_usefulness(changed: np.ndarray, confidence: np.ndarray) -> np.ndarray:
    """Changed before kept; of the changed the surest first, of the kept the most doubtful; rows break ties.

    All of that in one integer, whose plain sort is several times as fast as sorting positions: the bits of a float
    that is not negative stand in the order of its value.
    """
    sure = np.nan_to_num(confidence.astype(np.float32)).clip(0, 1)
    bits = np.where(changed, 1 - sure, sure).astype(np.float32).view(np.uint32).astype(np.uint64)
    packed = (~changed).astype(np.uint64) << np.uint64(63) | bits << np.uint64(32)
    packed |= np.arange(len(changed), dtype=np.uint64)
    packed.sort()
    order: np.ndarray = (packed & np.uint64(0xFFFFFFFF)).astype(np.int32)
    return order


def _whole(column: pa.ChunkedArray) -> Any:
    """One array: a row is then found at once."""
    if pa.types.is_dictionary(column.type):
        column = column.unify_dictionaries()
    if column.num_chunks == 1:
        return column.chunk(0)
    return column.combine_chunks() if column.num_chunks else pa.array([], column.type)


def _numbers(array: Any) -> np.ndarray:
    """As numpy sees them; ``to_numpy`` would import all of pandas first."""
    return np.from_dlpack(array)


def _classes(given: pa.ChunkedArray, corrected: pa.ChunkedArray, classes: list[str]) -> tuple[Labels, Labels]:
    """One class each: codes are the positions of the classes."""
    code = {name: number for number, name in enumerate(classes)}

    def coded(column: pa.ChunkedArray) -> Labels:
        whole = _whole(column)
        to_class = np.array([code[name] for name in whole.dictionary.to_pylist()], dtype=np.int32)
        return Labels(to_class[_numbers(whole.indices)], list(classes))

    return coded(given), coded(corrected)


def _sets(given: pa.ChunkedArray, corrected: pa.ChunkedArray, classes: list[str]) -> tuple[Labels, Labels]:
    """Several classes at once: each set of classes that occurs has a code."""
    lists = [_whole(column) for column in (given, corrected)]
    members = _encoded([whole.flatten() for whole in lists])
    texts = [
        pc.binary_join(
            pa.ListArray.from_arrays(pc.subtract(whole.offsets, whole.offsets[0]), codes.cast(pa.string())), ","
        )
        for whole, codes in zip(lists, members.codes, strict=True)
    ]
    sets = _encoded(texts)
    labels: list[Label] = [tuple(members.names[int(code)] for code in text.split(",") if code) for text in sets.names]
    return Labels(_numbers(sets.codes[0]), labels), Labels(_numbers(sets.codes[1]), labels)


@dataclass(frozen=True)
class _Encoded:
    """Columns of text as numbers into one list of names."""

    codes: list[Any]
    names: list[str]


def _encoded(columns: list[Any]) -> _Encoded:
    chunks = pa.chunked_array(columns).dictionary_encode().unify_dictionaries().chunks
    return _Encoded([chunk.indices for chunk in chunks], chunks[0].dictionary.to_pylist())
