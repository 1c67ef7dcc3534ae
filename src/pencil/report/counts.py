"""Counts of the labels: changes between classes, their confidence, and totals per class."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from pencil.runs.label_table import LabelTable

ALL_SHOWN, MOST_CONFUSED = 16, 12
"""Maximum classes of the matrix; with more classes, only those with the most changes are shown."""
CLASSES_LISTED = 100
PAIRS_LISTED = 12
CONFIDENT = 0.9
"""Minimum probability of a confident change."""
ENTRIES = 2**22
"""Number of (row, class) entries counted at a time."""


@dataclass(frozen=True)
class Counts:
    """Counts of training and held-out labels: rows, or known (row, class) entries of multi-label data.

    Attributes
    ----------
    labels, changed : int
        All labels, and the changed labels.
    confident : int
        Changes with a confidence of at least 90 %.
    to_look_at : int
        Suspects, including the changed labels.
    median : float or None
        The median confidence of the changes.
    not_given : int
        Rows without a given label, because annotators disagree.
    """

    labels: int
    changed: int
    confident: int
    to_look_at: int
    median: float | None
    not_given: int = 0


@dataclass(frozen=True)
class MatrixCell:
    """A cell of the matrix: labels, their fraction of the row, the colour depth, and whether they were kept."""

    count: int
    fraction: float
    depth: float
    kept: bool


@dataclass(frozen=True)
class Transitions:
    """Given class (row) to corrected class (column) for the classes shown; ``other`` is the rest of each row."""

    classes: list[str]
    rows: list[list[MatrixCell]]
    other: list[int] | None
    left_out: int
    pairs: list[tuple[str, str, int]]


@dataclass(frozen=True)
class ClassLine:
    """One class: number of given and corrected labels, and number of labels that left it and joined it."""

    name: str
    given: int
    corrected: int
    left: int
    came: int
    fraction: float
    """The changed fraction of the given labels, or of the known entries of multi-label data."""
    unknown: int = 0


@dataclass(frozen=True)
class Moves:
    """Counts of (given, corrected) pairs that occur; thousands of classes would have millions of pairs."""

    classes: Sequence[str]
    given: np.ndarray
    corrected: np.ndarray
    times: np.ndarray
    filled_in: np.ndarray
    """Counts of classes assigned to rows without a given label."""

    def totals(self, of: np.ndarray, where: np.ndarray | slice = slice(None)) -> np.ndarray:
        """Sum the counts by class."""
        found: np.ndarray = np.bincount(of[where], self.times[where], len(self.classes)).astype(np.int64)
        return found


def labelled(labels: LabelTable) -> LabelTable:
    """Return the training and held-out rows, i.e. all rows with a given label."""
    without = labels.is_unlabelled
    return labels.take(np.flatnonzero(~without)) if without.any() else labels


def moves_of(labels: LabelTable) -> Moves:
    """Count the pairs of given and corrected class of single-label data."""
    size, given, corrected = len(labels.classes), labels.given_codes.astype(np.int64), labels.corrected_codes
    decided = given >= 0
    pairs, times = np.unique((given * size + corrected)[decided], return_counts=True)
    return Moves(labels.classes, pairs // size, pairs % size, times, np.bincount(corrected[~decided], minlength=size))


def count_rows(labels: LabelTable) -> Counts:
    """Count single-label data."""
    confidence, changed = labels.confidence, labels.changed
    moved = confidence[changed & np.isfinite(confidence)]
    return Counts(
        labels=labels.num_rows,
        changed=int(changed.sum()),
        confident=int((moved >= CONFIDENT).sum()),
        to_look_at=int(labels.suspect.sum()),
        median=float(np.median(moved)) if len(moved) else None,
        not_given=int((labels.given_codes < 0).sum()),
    )


def transitions(moves: Moves) -> Transitions:
    """Return the matrix to show: complete, or restricted to the most confused classes."""
    classes, changed = moves.classes, moves.given != moves.corrected
    shown = np.arange(len(classes))
    if len(classes) > ALL_SHOWN:
        busy = moves.totals(moves.given, changed) + moves.totals(moves.corrected, changed)
        shown = np.sort(np.argsort(-busy, kind="stable")[:MOST_CONFUSED])
    place = np.full(len(classes), -1)
    place[shown] = np.arange(len(shown))
    inside = (place[moves.given] >= 0) & (place[moves.corrected] >= 0)
    counts = np.zeros((len(shown), len(shown)), dtype=np.int64)
    counts[place[moves.given[inside]], place[moves.corrected[inside]]] = moves.times[inside]
    totals = moves.totals(moves.given)[shown]
    fractions = counts / totals.clip(min=1)[:, None]
    deepest = float((fractions - np.diag(fractions.diagonal())).max()) or 1.0
    depths = np.minimum(1.0, fractions / deepest)
    numbers = range(len(shown))
    rows = [
        [MatrixCell(int(counts[i, j]), float(fractions[i, j]), float(depths[i, j]), i == j) for j in numbers]
        for i in numbers
    ]
    other = (totals - counts.sum(axis=1)).tolist() if len(shown) < len(classes) else None
    order = np.argsort(-moves.times[changed], kind="stable")[:PAIRS_LISTED]
    found = zip(moves.given[changed][order], moves.corrected[changed][order], moves.times[changed][order], strict=True)
    pairs = [(classes[i], classes[j], int(times)) for i, j, times in found]
    return Transitions([classes[i] for i in shown.tolist()], rows, other, len(classes) - len(shown), pairs)


def class_lines(moves: Moves) -> list[ClassLine]:
    """Return one row per class of single-label data."""
    given, corrected = moves.totals(moves.given), moves.totals(moves.corrected) + moves.filled_in
    changed = moves.given != moves.corrected
    left, came = moves.totals(moves.given, changed), moves.totals(moves.corrected, changed)
    columns = (given.tolist(), corrected.tolist(), left.tolist(), came.tolist(), (left / given.clip(min=1)).tolist())
    return [ClassLine(name, *numbers) for name, *numbers in zip(moves.classes, *columns, strict=True)]


def listed(lines: Sequence[ClassLine]) -> list[ClassLine]:
    """Return all classes in order, or the classes with the most changes if there are too many."""
    if len(lines) <= CLASSES_LISTED:
        return list(lines)
    return sorted(lines, key=lambda line: -(line.left + line.came))[:CLASSES_LISTED]


def pieces(labels: LabelTable) -> Iterator[tuple[int, LabelTable]]:
    """Yield slices of a label table with the position of their first row."""
    step = max(1, ENTRIES // max(1, len(labels.classes)))
    return ((start, labels.slice(start, step)) for start in range(0, labels.num_rows, step))


def count_entries(labels: LabelTable) -> tuple[Counts, list[ClassLine]]:
    """Count the known entries of multi-label data, and return one row per class."""
    size = len(labels.classes)
    totals = {name: np.zeros(size, dtype=np.int64) for name in ("known", "given", "corrected", "added", "removed")}
    suspects = 0
    moved = [np.empty(0, dtype=np.float32)]
    for _, part in pieces(labels):
        given, probs = part.given_probs, part.probs
        known, before, after = ~np.isnan(given), given > 0.5, probs > 0.5
        confidence = np.maximum(probs, 1 - probs)
        changed = known & (before != after)
        totals["known"] += known.sum(axis=0)
        totals["given"] += (before & known).sum(axis=0)
        totals["corrected"] += (after & known).sum(axis=0)
        totals["added"] += (changed & after).sum(axis=0)
        totals["removed"] += (changed & before).sum(axis=0)
        moved.append(confidence[changed])
        suspects += int(part.suspect_entries.sum())
    all_moved = np.concatenate(moved)
    counts = Counts(
        labels=int(totals["known"].sum()),
        changed=len(all_moved),
        confident=int((all_moved >= CONFIDENT).sum()),
        to_look_at=suspects,
        median=float(np.median(all_moved)) if len(all_moved) else None,
    )
    fractions = (totals["added"] + totals["removed"]) / totals["known"].clip(min=1)
    columns = [totals[name].tolist() for name in ("given", "corrected", "removed", "added")]
    unknown = (labels.num_rows - totals["known"]).tolist()
    zipped = zip(labels.classes, *columns, fractions.tolist(), unknown, strict=True)
    return counts, [ClassLine(name, *numbers) for name, *numbers in zipped]
