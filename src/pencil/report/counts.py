"""What became of the labels, counted: which class became which, how sure, class by class."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

ALL_SHOWN, MOST_CONFUSED = 16, 12
"""Up to so many classes the whole matrix is shown; of more, only those between which most labels moved."""
CLASSES_LISTED = 100
PAIRS_LISTED = 12
SURE, CLOSE = 0.9, 0.2
"""A correction is sure from this probability on; a label is doubtful while the lead of its class is smaller."""
ENTRIES = 2**22
"""So many (row, class) entries are looked at at a time."""


@dataclass(frozen=True)
class Counts:
    """What the training labels say; ``labels`` are rows, or known (row, class) entries."""

    labels: int
    changed: int
    sure: int
    doubtful: int
    median: float | None


@dataclass(frozen=True)
class Cell:
    count: int
    share: float
    depth: float
    kept: bool


@dataclass(frozen=True)
class Transitions:
    """Given class (row) to corrected class (column), for the classes shown; ``other`` is all the rest of a row."""

    classes: list[str]
    rows: list[list[Cell]]
    other: list[int] | None
    left_out: int
    pairs: list[tuple[str, str, int]]


@dataclass(frozen=True)
class ClassLine:
    """One class: how often it is given and stands in the end, how many labels left it and came to it."""

    name: str
    given: int
    corrected: int
    left: int
    came: int
    share: float
    """Changed: of the labels given or, of several classes at once, of the known entries."""
    unknown: int = 0


def codes(column: pa.ChunkedArray, classes: Sequence[str]) -> np.ndarray:
    """The place of each label among the classes."""
    found: np.ndarray = pc.index_in(column.cast(pa.string()), pa.array(classes, pa.string())).fill_null(0).to_numpy()
    return found


@dataclass(frozen=True)
class Moves:
    """Which class became which how often, for those pairs that occur: thousands of classes have millions of pairs."""

    classes: Sequence[str]
    given: np.ndarray
    corrected: np.ndarray
    times: np.ndarray

    def totals(self, of: np.ndarray, where: np.ndarray | slice = slice(None)) -> np.ndarray:
        """The times summed by class."""
        found: np.ndarray = np.bincount(of[where], self.times[where], len(self.classes)).astype(np.int64)
        return found


def moves_of(table: pa.Table, classes: Sequence[str]) -> Moves:
    size = len(classes)
    flat = codes(table["given"], classes).astype(np.int64) * size + codes(table["corrected"], classes)
    pairs, times = np.unique(flat, return_counts=True)
    return Moves(classes, pairs // size, pairs % size, times)


def count_rows(table: pa.Table) -> Counts:
    """One class each."""
    confidence, changed = table["confidence"].to_numpy(), table["changed"].to_numpy()
    moved = confidence[changed & np.isfinite(confidence)]
    return Counts(
        labels=table.num_rows,
        changed=int(changed.sum()),
        sure=int((moved >= SURE).sum()),
        doubtful=int((table["margin"].to_numpy() < CLOSE).sum()),
        median=float(np.median(moved)) if len(moved) else None,
    )


def transitions(moves: Moves) -> Transitions:
    """The matrix as it is shown: whole, or of the most confused classes."""
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
    shares = counts / totals.clip(min=1)[:, None]
    deepest = float((shares - np.diag(shares.diagonal())).max()) or 1.0
    numbers = range(len(shown))
    rows = [
        [Cell(int(counts[i, j]), float(shares[i, j]), min(1.0, float(shares[i, j]) / deepest), i == j) for j in numbers]
        for i in numbers
    ]
    other = (totals - counts.sum(axis=1)).tolist() if len(shown) < len(classes) else None
    order = np.argsort(-moves.times[changed], kind="stable")[:PAIRS_LISTED]
    found = zip(moves.given[changed][order], moves.corrected[changed][order], moves.times[changed][order], strict=True)
    pairs = [(classes[i], classes[j], int(times)) for i, j, times in found]
    return Transitions([classes[i] for i in shown.tolist()], rows, other, len(classes) - len(shown), pairs)


def class_lines(moves: Moves) -> list[ClassLine]:
    given, corrected = moves.totals(moves.given), moves.totals(moves.corrected)
    changed = moves.given != moves.corrected
    left, came = moves.totals(moves.given, changed), moves.totals(moves.corrected, changed)
    columns = (given.tolist(), corrected.tolist(), left.tolist(), came.tolist(), (left / given.clip(min=1)).tolist())
    return [ClassLine(name, *numbers) for name, *numbers in zip(moves.classes, *columns, strict=True)]


def listed(lines: Sequence[ClassLine]) -> list[ClassLine]:
    """All classes as they stand, or those that moved most, where there are too many to read."""
    if len(lines) <= CLASSES_LISTED:
        return list(lines)
    return sorted(lines, key=lambda line: -(line.left + line.came))[:CLASSES_LISTED]


def pieces(table: pa.Table, size: int) -> Iterator[tuple[int, pa.Table]]:
    step = max(1, ENTRIES // max(1, size))
    return ((start, table.slice(start, step)) for start in range(0, table.num_rows, step))


def probabilities(part: pa.Table, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Given and corrected probability of every (row, class)."""
    given, probs = (pc.list_flatten(part[name]).to_numpy() for name in ("given_probabilities", "distribution"))
    return given.reshape(-1, size), probs.reshape(-1, size)


def count_entries(table: pa.Table, classes: Sequence[str]) -> tuple[Counts, list[ClassLine]]:
    """Several classes at once: counted over known entries, class by class."""
    size = len(classes)
    totals = {name: np.zeros(size, dtype=np.int64) for name in ("known", "given", "corrected", "added", "removed")}
    sure = doubtful = rows = 0
    moved = [np.empty(0, dtype=np.float32)]
    for _, part in pieces(table, size):
        given, probs = probabilities(part, size)
        known, before, after = ~np.isnan(given), given > 0.5, probs > 0.5
        confidence = np.maximum(probs, 1 - probs)
        changed = known & (before != after)
        totals["known"] += known.sum(axis=0)
        totals["given"] += (before & known).sum(axis=0)
        totals["corrected"] += (after & known).sum(axis=0)
        totals["added"] += (changed & after).sum(axis=0)
        totals["removed"] += (changed & before).sum(axis=0)
        moved.append(confidence[changed])
        sure += int((moved[-1] >= SURE).sum())
        doubtful += int((known & (confidence < 0.5 + CLOSE / 2)).sum())
        rows += len(given)
    all_moved = np.concatenate(moved)
    counts = Counts(
        labels=int(totals["known"].sum()),
        changed=len(all_moved),
        sure=sure,
        doubtful=doubtful,
        median=float(np.median(all_moved)) if len(all_moved) else None,
    )
    shares = (totals["added"] + totals["removed"]) / totals["known"].clip(min=1)
    columns = [totals[name].tolist() for name in ("given", "corrected", "removed", "added")]
    unknown = (rows - totals["known"]).tolist()
    lines = [
        ClassLine(name, *numbers) for name, *numbers in zip(classes, *columns, shares.tolist(), unknown, strict=True)
    ]
    return counts, lines
