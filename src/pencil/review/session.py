"""One review of a run: its queue, the decisions about it, and the pictures that the server serves."""

import threading
from pathlib import Path
from typing import Any, Self

import numpy as np

from pencil.decisions import KINDS, REVIEWS, Decision, History, Journal, Label, now, read_lines
from pencil.review.images import Pictures, pictures_of
from pencil.review.queue import Filter, Queue
from pencil.runs.lock import RunLock


class RefusedError(ValueError):
    """A request that our page does not send."""


class Review:
    """The queue of a run and the decisions about it; as a context manager it holds the lock of the run.

    Parameters
    ----------
    run : Path
        The run directory.
    pictures : Pictures, optional
        The inputs to show; by default those of the data that the run's recipe names.
    """

    def __init__(self, run: Path, pictures: Pictures | None = None):
        self.run = run
        self.queue = Queue(run)
        self.pictures = pictures_of(run) if pictures is None else pictures
        self.history = History()
        self.decided = np.zeros(len(self.queue), dtype=bool)
        self._run_lock, self._journal = RunLock(run), Journal(run / REVIEWS)
        self._writing = threading.Lock()

    def __enter__(self) -> Self:
        self._run_lock.__enter__()
        try:
            for decision in read_lines(self._journal.path):
                self.history.add(decision)
            rows = self.queue.find([decision.where for decision in self.history.standing()])
            self.decided[list(rows.values())] = True
            self._journal.__enter__()
        except BaseException:
            self._run_lock.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._journal.__exit__()
        self._run_lock.__exit__()

    def begin(self) -> dict[str, Any]:
        """Return what the page needs once."""
        queue = self.queue
        return {
            "run": self.run.resolve().name,
            "classes": queue.classes,
            "multilabel": queue.multilabel,
            "rows": len(queue),
            "pairs": queue.pairs(),
        }

    def page(self, chosen: Filter, count: int, start: int, row: int | None, after: int | None) -> dict[str, Any]:
        """Return the page around a position, around a row, or around the next row without a decision."""
        rows = self.queue.rows(chosen)
        position = start
        if row is not None:
            found = np.flatnonzero(rows == row)
            position = int(found[0]) if len(found) else start
        elif after is not None:
            position = _next_open(self.decided[rows], after)
        position = max(0, min(position, len(rows) - 1))
        first = position - position % count
        shown = [self._describe(int(place)) for place in rows[first : first + count]]
        return {"total": len(rows), "start": first, "position": position, "rows": shown} | self.progress(chosen)

    def progress(self, chosen: Filter) -> dict[str, int]:
        """Return how many rows are decided, of the filter and of all changes."""
        rows, changed = self.queue.rows(chosen), self.queue.changed
        return {
            "decided": int(self.decided[rows].sum()),
            "changed": int(changed.sum()),
            "changed_decided": int((self.decided & changed).sum()),
        }

    def _describe(self, row: int) -> dict[str, Any]:
        decision = self.history.get(self.queue.where(row))
        made = {"decision": decision and decision.decision, "label": decision and decision.label}
        return self.queue.describe(row) | made

    def decide(self, row: int, kind: str, codes: list[int]) -> dict[str, Any]:
        """Save a decision, then return the row as the page shows it."""
        queue = self.queue
        if kind not in KINDS or kind == "none":  # which only an audit asks for
            raise RefusedError(f"decision is {kind!r}")
        given, corrected = queue.given[row], queue.corrected[row]
        if kind == "reject" and given is None:
            raise RefusedError("this row has no given label to return to; choose a class")
        label: Label | None = {"accept": corrected, "reject": given}.get(kind)
        if kind == "other":
            label = self._chosen(codes)
            kind = "accept" if label == corrected else "reject" if label == given else kind
        key, split = queue.where(row)
        with self._writing:
            decision = Decision(key, split, kind, label, given, corrected, now())
            if kind != "undo" or self.history.get(decision.where) is not None:
                self._journal.append(decision)
                self.history.add(decision)
            self.decided[row] = self.history.get(decision.where) is not None
        return self._describe(row)

    def last_row(self) -> int | None:
        """Return the row of the newest decision, which undo withdraws."""
        last = self.history.last()
        return None if last is None else self.queue.find([last.where]).get(last.where)

    def _chosen(self, codes: list[int]) -> Label:
        names = self.queue.classes
        if not all(0 <= code < len(names) for code in codes) or (not self.queue.multilabel and len(codes) != 1):
            raise RefusedError(f"label is {codes!r}; expected positions of classes")
        return tuple(names[code] for code in sorted(set(codes))) if self.queue.multilabel else names[codes[0]]


def _next_open(decided: np.ndarray, after: int) -> int:
    """Return the first position without a decision, from ``after`` on and then from the beginning."""
    after = max(0, min(after, len(decided)))
    for part, offset in ((decided[after:], after), (decided[:after], 0)):
        if len(part) and not part.all():
            return offset + int(part.argmin())
    return after
