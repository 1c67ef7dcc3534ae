"""The most probable classes of every row: a few of them, read from the label table block by block."""

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from pencil.errors import RunError, reason_of
from pencil.runs.label_columns import ALWAYS, ENTRY_SCORES, WIDE
from pencil.runs.label_table import LabelTable

CLASSES = 6
"""Classes whose probability is shown."""
BLOCK = 16384
"""Rows that are read at a time."""


class Probability(NamedTuple):
    """The index of a class, and its probability for a row."""

    code: int
    value: float


@dataclass(frozen=True, eq=False)
class TopClasses:
    """The classes of each row that matter most, the most probable first: two arrays (rows, classes)."""

    codes: np.ndarray
    probs: np.ndarray

    def of(self, row: int) -> list[Probability]:
        """Return the classes of a row."""
        return [Probability(*pair) for pair in zip(self.codes[row].tolist(), self.probs[row].tolist(), strict=True)]


def most_probable(probs: np.ndarray, given_probs: np.ndarray | None = None, count: int = CLASSES) -> TopClasses:
    """Return the most probable classes, at most ``count``, and for multi-label data also the given classes.

    Both matrices are (rows, classes); given probabilities of multi-label data are NaN where unknown.
    """
    matter = probs if given_probs is None else np.fmax(probs, given_probs)
    count = min(count, probs.shape[1])
    chosen = np.argpartition(-matter, count - 1, axis=1)[:, :count]
    found = np.take_along_axis(probs, chosen, axis=1)
    order = np.argsort(-found, axis=1, kind="stable")
    codes, values = (np.take_along_axis(one, order, axis=1) for one in (chosen, found))
    return TopClasses(codes.astype(np.int32), values.astype(np.float32))


def read_top_classes(table: Path) -> TopClasses:
    """Return the most probable classes of all rows of a label table; one block of distributions is read at a time."""
    blocks = []
    try:
        labels = LabelTable.open(table)
        wide = [name for name in labels.column_names if name in (*ALWAYS, *WIDE) and name != ENTRY_SCORES]
        for batch in labels.batches(BLOCK, wide):
            part = LabelTable(pa.Table.from_batches([batch]))
            blocks.append(most_probable(part.probs, part.given_probs if part.multilabel else None))
    except (RunError, OSError, ValueError, KeyError, pa.ArrowException) as error:
        seen = reason_of(error)
        raise RunError(f"no probabilities in {table}: {seen}; expected the table that the run wrote.") from error
    if not blocks:
        return TopClasses(np.empty((0, 0), np.int32), np.empty((0, 0), np.float32))
    return TopClasses(np.concatenate([one.codes for one in blocks]), np.concatenate([one.probs for one in blocks]))
