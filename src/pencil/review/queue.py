"""The rows to review, the most useful first: a few compact columns of ``labels.parquet``, never the whole file.

Rows are sorted by decreasing issue score.
A million rows take a few dozen megabytes here, and the browser has one page of them at a time.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc

from pencil.decisions import Where
from pencil.runs.directory import RunReader
from pencil.runs.label_columns import OUTLIERS, SUSPECTS
from pencil.terminal import counted

COLUMNS = ("key", "split", "given", "corrected", "confidence", "changed", "issue_score")
OPTIONAL = ("candidates", "given_probability", "suspect", SUSPECTS, *OUTLIERS)
"""Optional columns: for annotators' labels, for single-label data, and about the inputs."""
PAIRS = 500
"""Maximum number of (given, corrected) pairs offered, the most frequent first."""
TO_LOOK_AT = "look"
"""The rows to review: suspects, or the rows of multi-label data with a suspect; then outliers and conflicts."""
SHOWN = (TO_LOOK_AT, "all", "changed", "kept", "undecided", "outliers", "conflicts")


@dataclass(frozen=True)
class Filter:
    """Which rows are shown: to look at, changed or kept; one pair of given and corrected (by code); a confidence.

    Undecided rows have no given label, because there is none or annotators disagree: neither changed nor kept.
    ``key`` is a part of the key, case-insensitive. ``decided`` selects the rows with or without a decision.
    """

    show: str = "all"
    pair: tuple[int, int] | None = None
    low: float = 0.0
    high: float = 1.0
    key: str = ""
    decided: bool | None = None


class Queue:
    """The rows of a run, the most useful to review first.

    With ``as_trained`` it has the labels of training, even if an audit has decided them again.
    """

    def __init__(self, run: Path, *, as_trained: bool = False):
        self.run = run
        reader = RunReader(run, as_trained=as_trained)
        self.table = run / reader.label_file
        names = reader.label_names()
        self.labels = reader.read_labels((*COLUMNS, *(name for name in OPTIONAL if name in names)))
        self.classes, self.multilabel = self.labels.classes, self.labels.multilabel
        self.keys, self.splits = self.labels.keys, self.labels.splits
        self.confidence, self.changed = self.labels.confidence, self.labels.changed
        self.given, self.corrected = self.labels.given_labels, self.labels.corrected_labels
        chosen = self.labels.suspect
        self.outlier, self.conflict = self.labels.outlier, self.labels.conflict
        self.to_look_at = (chosen | self.outlier | self.conflict) & ~self.labels.is_unlabelled
        self.order, self.by_outlier = (_by_issue(one) for one in (self.labels.issue_score, self.labels.outlier_score))
        kind = np.where(chosen, 0, np.where(self.outlier, 1, 2))  # suspects, outliers, conflicts
        by_score = _by_issue(np.where(kind == 1, self.labels.outlier_score, self.labels.issue_score))
        self.by_kind = by_score[np.argsort(kind[by_score], kind="stable")]
        self.rows = lru_cache(maxsize=8)(self._rows)

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def noun(self) -> str:
        """What is counted: a label, or a row of multi-label data, whose labels are reviewed together."""
        return "row" if self.multilabel else "label"

    def where(self, row: int) -> Where:
        """Return the key and split of a row."""
        return self.keys[row].as_py(), self.splits[row].as_py()

    def find(self, wanted: Iterable[Where]) -> dict[Where, int]:
        """Return the row of each (key, split) that the run has."""
        return self.labels.find_rows(wanted)

    @property
    def lists(self) -> str:
        """How many rows there are to review, in words."""
        count, changed = int(self.labels.suspect_counts.sum()), int(self.labels.changed_counts.sum())
        rows = f" in {counted(int(self.labels.suspect.sum()), 'row')}" if self.multilabel else ""
        corrections = f"of which {counted(changed, 'correction')}" if changed < count else "all of them corrections"
        suspects = counted(count, "suspect") + (f"{rows}, {corrections}" if count else "")
        others = ((self.outlier, "outlier"), (self.conflict, "conflict"))
        return ", ".join([suspects, *(counted(int(mask.sum()), name) for mask, name in others if mask.any())])

    def _rows(self, chosen: Filter) -> np.ndarray:
        """Return the rows that pass a filter, decided or not, in order."""
        kept = np.ones(len(self), dtype=bool)
        if chosen.show != "all":
            undecided = np.zeros_like(kept) if self.multilabel else self.given.codes < 0
            kept &= {
                TO_LOOK_AT: self.to_look_at,
                "changed": self.changed,
                "kept": ~self.changed & ~undecided,
                "undecided": undecided,
                "outliers": self.outlier,
                "conflicts": self.conflict,
            }[chosen.show]
        if chosen.pair is not None:
            kept &= (self.given.codes == chosen.pair[0]) & (self.corrected.codes == chosen.pair[1])
        if (chosen.low, chosen.high) != (0.0, 1.0):
            kept &= (self.confidence >= chosen.low) & (self.confidence <= chosen.high)
        if chosen.key:
            kept &= np.from_dlpack(pc.match_substring(self.keys, chosen.key, ignore_case=True).cast("uint8")) > 0
        order = {TO_LOOK_AT: self.by_kind, "outliers": self.by_outlier}.get(chosen.show, self.order)
        return order if kept.all() else order[kept[order]]

    def pairs(self) -> list[dict[str, Any]]:
        """Return the changes between labels and their counts, the most frequent first."""
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

    def candidates(self, row: int) -> list[str]:
        """Return the classes on which annotators are divided; empty for a row with a given label."""
        found: list[str] = self.labels["candidates"][row].as_py() if "candidates" in self.labels.column_names else []
        return found

    def given_probability(self, row: int) -> float | None:
        """Return the probability of the given class of single-label data; None if there is none."""
        if "given_probability" not in self.labels.column_names:
            return None
        value = float(self.labels.given_probability[row])
        return value if np.isfinite(value) else None

    def describe(self, row: int) -> dict[str, Any]:
        """Return what the page shows of a row."""
        key, split = self.where(row)
        confidence = float(self.confidence[row])
        return {
            "row": row,
            "key": key,
            "split": split,
            "given": self.given[row],
            "candidates": self.candidates(row),
            "corrected": self.corrected[row],
            "confidence": confidence if np.isfinite(confidence) else None,
            "issue_score": float(np.nan_to_num(self.labels.issue_score[row])),
            "changed": bool(self.changed[row]),
            "suspects": self.labels[SUSPECTS][row].as_py() if SUSPECTS in self.labels.column_names else [],
            "outlier": bool(self.outlier[row]),
            "outlier_score": float(self.labels.outlier_score[row]),
            "conflict": bool(self.conflict[row]),
        }


def _by_issue(scores: np.ndarray) -> np.ndarray:
    """Sort rows by decreasing issue score, then by row.

    Both are packed into one integer, because a plain sort is several times as fast as an argsort; the bits of
    non-negative floats sort like their values.
    """
    falling = 1 - np.nan_to_num(scores.astype(np.float32)).clip(0, 1)
    packed = falling.astype(np.float32).view(np.uint32).astype(np.uint64) << np.uint64(32)
    packed |= np.arange(len(scores), dtype=np.uint64)
    packed.sort()
    order: np.ndarray = (packed & np.uint64(0xFFFFFFFF)).astype(np.int32)
    return order
