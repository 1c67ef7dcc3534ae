"""The sample of an audit: a stratified random sample that can be extended without redrawing it.

Strata are changed and kept rows, each cut into bins of confidence. The units of multi-label data are entries instead of
rows; named and unnamed entries have separate strata. Half of the sample goes to the strata in proportion to their size,
so that no answer has more than about twice its proportional weight, independently of the network. Most of the other
half goes to rows whose labels are a close decision, because their answers show where labels should change. A fifth
of the sample goes to changed rows.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

ROWS, LEAST_ROWS = 100, 25
"""Default and minimum number of rows to draw."""
KEPT_BINS, CHANGED_BINS = 4, 2
"""Maximum confidence bins of kept and of changed rows; more and smaller bins made intervals too narrow."""
LEAST_IN_BIN, LEAST_IN_STRATUM = 5, 2
"""Minimum rows of a bin, and minimum rows drawn from a stratum."""
DOUBT = 0.01
"""Added to the variance predicted by the network, so that no stratum counts as certain."""
CLOSE, CHANGED = 0.3, 0.2
"""Fractions of the sample for close decisions and for changed rows."""
CERTAIN = 1e-6
"""Added to p (1 - p), which is 0 for confidence p = 1: if all decisions are certain, rows are allocated by size."""
STREAM = int.from_bytes(b"audit")
"""Separates the random numbers of the sample from those of other programs, such as injected noise of the same seed."""


@dataclass(frozen=True)
class Strata:
    """The rows of a run in strata.

    Attributes
    ----------
    of_row : ndarray
        The stratum of each row.
    changed : ndarray
        Whether each stratum contains changed labels.
    doubt : ndarray
        The standard deviation that the network predicts for a row of each stratum.
    """

    of_row: np.ndarray
    changed: np.ndarray
    doubt: np.ndarray

    @cached_property
    def sizes(self) -> np.ndarray:
        """The number of rows of each stratum."""
        return np.bincount(self.of_row, minlength=len(self.changed))

    @cached_property
    def claims(self) -> np.ndarray:
        """The fraction of the sample that each stratum should get."""
        sizes = self.sizes.astype(float)
        changes = sizes * self.doubt * self.changed if self.changed.any() else sizes
        close = sizes * (self.doubt**2 - DOUBT + CERTAIN)
        parts = (sizes, 1 - CLOSE - CHANGED), (close, CLOSE), (changes, CHANGED)
        claims: np.ndarray = sum(share * part / part.sum() for part, share in parts)
        return claims

    def means(self, values: np.ndarray) -> np.ndarray:
        """Return the mean of a per-row value in each stratum."""
        found: np.ndarray = np.bincount(self.of_row, values, len(self.changed)) / self.sizes
        return found


def build_strata(changed: np.ndarray, confidence: np.ndarray, kinds: np.ndarray | None = None) -> Strata:
    """Return the strata: changed and kept rows, each in bins of confidence of about the same expected error.

    Parameters
    ----------
    changed : ndarray
        Whether each label was changed.
    confidence : ndarray
        The probability of each corrected label.
    kinds : ndarray, optional
        The kind of each row, from 0: kinds have separate strata and share the bins.
    """
    kinds = np.zeros(len(changed), dtype=np.int64) if kinds is None else kinds
    of_row = np.zeros(len(changed), dtype=np.int64)
    groups: list[tuple[bool, float]] = []
    present = np.unique(kinds).tolist()
    for flag, kind in itertools.product((False, True), present):
        bins = (CHANGED_BINS if flag else KEPT_BINS) // len(present)
        rows = np.flatnonzero((changed == flag) & (kinds == kind))
        rows = rows[np.argsort(confidence[rows], kind="stable")]
        for part in _cut(rows, _doubt(confidence[rows]), bins):
            of_row[part] = len(groups)
            groups.append((flag, float(np.sqrt((_doubt(confidence[part]) ** 2).mean()))))
    flags, doubts = (np.array(values) for values in zip(*groups, strict=True))
    return Strata(of_row, flags, doubts)


def _doubt(confidence: np.ndarray) -> np.ndarray:
    doubt: np.ndarray = np.sqrt(confidence * (1 - confidence) + DOUBT)
    return doubt


def _cut(rows: np.ndarray, doubt: np.ndarray, bins: int) -> list[np.ndarray]:
    """Cut sorted rows where their summed doubt passes the same fractions (Dalenius and Hodges 1959)."""
    if not len(rows):
        return []
    bins = max(1, min(bins, len(rows) // LEAST_IN_BIN))
    passed = (np.cumsum(doubt) - doubt / 2) / doubt.sum()
    parts = np.split(rows, np.searchsorted(passed, np.arange(1, bins) / bins))
    return [part for part in parts if len(part)]


def allocate(strata: Strata, rows: int) -> np.ndarray:
    """Return the stratum of each drawn row, in the order of drawing: the first n are the sample of n rows.

    Every stratum gets two rows first. The remaining rows are allocated like seats to parties (Sainte-Laguë), which
    never takes a row back when the sample grows.

    Parameters
    ----------
    strata : Strata
        The strata.
    rows : int
        Number of rows to draw; at most all rows.
    """
    sizes = strata.sizes
    stratum = np.repeat(np.arange(len(sizes)), np.minimum(sizes, rows))
    number = np.concatenate([np.arange(min(size, rows)) for size in sizes])
    turn = strata.claims[stratum] / (number + 0.5)
    first = np.where(number < LEAST_IN_STRATUM, number, LEAST_IN_STRATUM)
    order: np.ndarray = stratum[np.lexsort((stratum, -turn, first))][:rows]
    return order


def draw_sample(strata: Strata, stages: Sequence[int], seed: int) -> np.ndarray:
    """Return the drawn rows in display order.

    The order does not reveal the strata, every prefix is a random sample of each stratum, and the first 25 rows cover
    all strata.

    Parameters
    ----------
    strata : Strata
        The strata.
    stages : sequence of int
        The sample sizes of earlier sessions, followed by the current size.
    seed : int
        The seed. The same seed and stages draw the same rows.
    """
    rng = np.random.default_rng([seed, STREAM])
    in_stratum, shown = rng.random(len(strata.of_row)), rng.random(len(strata.of_row))
    turns = allocate(strata, stages[-1])
    queues = [np.flatnonzero(strata.of_row == number) for number in range(len(strata.sizes))]
    queues = [rows[np.argsort(in_stratum[rows], kind="stable")] for rows in queues]
    drawn, sample = np.zeros(len(queues), dtype=np.int64), np.empty(len(turns), dtype=np.int64)
    for place, turn in enumerate(turns):
        sample[place] = queues[turn][drawn[turn]]
        drawn[turn] += 1
    parts = np.split(sample, _ends(stages, len(sample)))
    return np.concatenate([part[np.argsort(shown[part], kind="stable")] for part in parts])


def _ends(stages: Sequence[int], rows: int) -> list[int]:
    """Return the ends of the parts that are shuffled separately: earlier stages, and 25, 50, 100, ..."""
    doubled = [LEAST_ROWS * 2**power for power in range(40)]
    return sorted({end for end in (*stages, *doubled) if end < rows})
