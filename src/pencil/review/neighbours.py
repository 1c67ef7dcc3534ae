"""The rows most similar to a row, per class and among rows whose given label was kept, and its duplicates.

Vectors are computed once in a thread, in chunks and with limited memory; every class is covered early. Until all are
computed, a row is compared with the available ones.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pencil.errors import PencilError
from pencil.review.inputs import Background, NotShown, Pictures
from pencil.review.queue import Queue

if TYPE_CHECKING:
    from pencil.data.examples import Splits
    from pencil.review.embedding import Embedding
    from pencil.review.twins import Twin

NEAREST = 3
TWINS = 4
"""Number of most similar rows with another label that are compared in full."""
MOST_BYTES = 128 * 2**20
"""Maximum memory of the vectors, in half precision."""
CHUNK = 256
BLOCK = 8192
"""Number of rows compared at a time."""
LARGEST = 100.0
"""Standardised values are clipped to this range, which half precision can represent."""


def in_turns(codes: np.ndarray, seed: int = 0) -> np.ndarray:
    """Return positions that alternate between classes, each in random order, so that every prefix is balanced."""
    order = np.random.default_rng(seed).permutation(len(codes))
    by_class = order[np.argsort(codes[order], kind="stable")]
    _, starts, counts = np.unique(codes[by_class], return_index=True, return_counts=True)
    turn = np.arange(len(codes)) - np.repeat(starts, counts)
    return by_class[np.argsort(turn, kind="stable")]


def nearest(vectors: np.ndarray, target: np.ndarray, count: int = NEAREST) -> np.ndarray:
    """Return the positions of the vectors that are nearest to a target, by Euclidean distance, the nearest first."""
    distances: np.ndarray = np.empty(len(vectors), dtype=np.float32)
    for start in range(0, len(vectors), BLOCK):
        difference = vectors[start : start + BLOCK].astype(np.float32) - target
        distances[start : start + BLOCK] = np.einsum("nd,nd->n", difference, difference)
    found: np.ndarray = np.argsort(distances, kind="stable")[:count]
    return found


class Neighbours(Background):
    """Finds similar rows; ``start`` computes the vectors once, in a thread."""

    def __init__(self, queue: Queue, pictures: Pictures, choose: "Callable[[Splits], Embedding]"):
        super().__init__()
        self.queue, self.pictures = queue, pictures
        self.kind, self.reason = "loading", ""
        self.done = self.total = 0
        self._choose = choose
        self._embedding: Embedding | None = None
        self._shift: np.ndarray | float = 0.0
        self._scale: np.ndarray | float = 1.0
        self._rows: np.ndarray = np.empty(0, dtype=np.int64)
        self._vectors: np.ndarray = np.empty((0, 0), dtype=np.float16)

    def _run(self) -> None:
        try:
            self.pictures.wait()
            if self.pictures.splits is None:
                raise NotShown(self.pictures.state.reason)
            self._embedding = self._choose(self.pictures.splits)
            import pencil.review.twins  # noqa: F401 - here, because imports in two threads can fail

            self._compute(self._embedding)
            self.kind = "ready"
        except (PencilError, NotShown, OSError, ValueError, ImportError, MemoryError, RuntimeError) as error:
            self.kind, self.reason = "none", str(error)
        finally:
            if self.kind == "loading":  # an unexpected error; see the traceback in the terminal
                self.kind, self.reason = "none", "rows cannot be compared; see the terminal"

    def _compute(self, embedding: "Embedding") -> None:
        given, changed = self.queue.given.codes, np.flatnonzero(self.queue.changed & (self.queue.given.codes >= 0))
        kept = np.flatnonzero(~self.queue.changed & (given >= 0))
        most = min(MOST_BYTES // (2 * embedding.width), embedding.most or len(self.queue))
        changed = changed[: most // 2]  # only needed to find duplicates: most memory is for examples of the classes
        order = np.concatenate([kept[in_turns(given[kept])][: most - len(changed)], changed])
        self._rows = np.empty(len(order), dtype=np.int64)
        self._vectors = np.empty((len(order), embedding.width), dtype=np.float16)
        self.total = len(order)
        for start in range(0, len(order), CHUNK):
            values, rows = self._read(embedding, order[start : start + CHUNK])
            if start == 0 and not embedding.standardised and len(values):
                deviation = values.std(axis=0)
                self._shift, self._scale = values.mean(axis=0), np.where(deviation < 1e-6, 1.0, deviation)
            stop = self.done + len(rows)
            self._vectors[self.done : stop], self._rows[self.done : stop] = self._scaled(values), rows
            self.done = stop  # last, because only rows before it are read
        self.total = self.done

    def _read(self, embedding: "Embedding", rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the vectors of rows and the rows that have one, part by part of the data."""
        import torch

        places: dict[int, tuple[Any, list[int], list[int]]] = {}
        for row in rows.tolist():
            try:
                part, place = self.pictures.find(self.queue.where(row))
            except NotShown:  # the data no longer has it
                continue
            _, of_part, numbers = places.setdefault(id(part), (part, [], []))
            of_part.append(row)
            numbers.append(int(part.rows[place]))
        found = [np.empty((0, embedding.width), dtype=np.float32)]
        kept = [np.empty(0, dtype=np.int64)]
        for part, of_part, numbers in places.values():
            values, mask = embedding.read(part.inputs, torch.tensor(numbers))
            found.append(values.astype(np.float32))
            kept.append(np.array(of_part, dtype=np.int64)[mask])
        return np.concatenate(found), np.concatenate(kept)

    def _scaled(self, values: np.ndarray) -> np.ndarray:
        scaled: np.ndarray = np.clip(np.nan_to_num((values - self._shift) / self._scale), -LARGEST, LARGEST)
        return scaled

    def of(self, row: int, codes: Sequence[int]) -> dict[int, list[int]]:
        """Return the rows of each class nearest to a row, among the vectors computed so far."""
        done, embedding = self.done, self._embedding
        if not done or embedding is None:
            return {}
        target = self._vector(embedding, row)
        if target is None:
            return {}
        rows = self._rows[:done]
        given, kept = self.queue.given.codes[rows], ~self.queue.changed[rows] & (rows != row)
        return {code: self._nearest(np.flatnonzero(kept & (given == code)), target) for code in codes}

    def twins(self, row: int) -> "list[Twin]":
        """Return the duplicates of a row with another given label, among the vectors computed so far."""
        done, embedding = self.done, self._embedding
        if not done or embedding is None or self.queue.given.codes[row] < 0:
            return []
        target = self._vector(embedding, row)
        if target is None:
            return []
        from pencil.review.twins import find_twins  # imported before: see _run

        other = np.flatnonzero(self.queue.given.codes[self._rows[:done]] != self.queue.given.codes[row])
        near = self._nearest(other, target, TWINS)
        places = [self.pictures.find(self.queue.where(one)) for one in (row, *near)]
        return find_twins(places[0], list(zip(near, places[1:], strict=True)))

    def _vector(self, embedding: "Embedding", row: int) -> np.ndarray | None:
        values, _ = self._read(embedding, np.array([row]))
        return self._scaled(values[0]) if len(values) else None

    def _nearest(self, places: np.ndarray, target: np.ndarray, count: int = NEAREST) -> list[int]:
        found: list[int] = self._rows[places[nearest(self._vectors[places], target, count)]].tolist()
        return found

    def state(self) -> dict[str, Any]:
        """Return the state (``loading``, ``ready``, or ``none`` with the reason) and what is compared."""
        name = "" if self._embedding is None else self._embedding.name
        return {"kind": self.kind, "reason": self.reason, "by": name, "done": self.done, "total": self.total}


def neighbours_of(queue: Queue, pictures: Pictures) -> Neighbours:
    """Return the neighbours of the rows of a run, by the best available vectors."""

    def choose(splits: "Splits") -> "Embedding":
        from pencil.review.embedding import choose_embedding

        return choose_embedding(queue.run, splits)

    return Neighbours(queue, pictures, choose)
