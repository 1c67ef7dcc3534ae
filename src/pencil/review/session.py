"""One review of a run: its queue, the decisions about it, and the pictures that the server serves."""

import secrets
import shlex
import threading
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from pencil.decisions import ENTRY_KINDS, KINDS, REVIEWS, Decision, History, Journal, Label, now
from pencil.review.details import Details
from pencil.review.inputs import Pictures, pictures_of
from pencil.review.queue import Filter, Queue
from pencil.runs.lock import RunLock

SAMPLES = 200
"""Maximum rows of a lot that a person must see before accepting it: about as many as one can check in a few minutes."""


class RefusedError(ValueError):
    """A request that our page does not send."""


class Review:
    """The queue of a run and its decisions; as a context manager it holds the lock of the run.

    Inputs are loaded from the data of the run's recipe unless they are passed. ``as_trained`` is as in `Queue`.
    """

    def __init__(self, run: Path, pictures: Pictures | None = None, *, as_trained: bool = False):
        self.run = run
        self.queue = Queue(run, as_trained=as_trained)
        self.pictures = pictures_of(run) if pictures is None else pictures
        self.details = Details(self.queue, self.pictures)
        self.history = History()
        self.decided = np.zeros(len(self.queue), dtype=bool)
        self._run_lock, self._journal = RunLock(run, "review"), Journal(run / REVIEWS)
        self._writing = threading.Lock()

    def __enter__(self) -> Self:
        self._run_lock.__enter__()
        try:
            self.history = History.read(self._journal.path)
            rows = self.queue.find([decision.where for decision in self.history.standing() if not decision.entry])
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
        """Return the initial data of the page."""
        queue = self.queue
        return {
            "run": self.run.resolve().name,
            "classes": queue.classes,
            "multilabel": queue.multilabel,
            "rows": len(queue),
            "noun": queue.noun,
            "to_look_at": int(queue.to_look_at.sum()),
            "corrections": int(queue.changed.sum()),
            "outliers": int(queue.outlier.sum()),
            "conflicts": int(queue.conflict.sum()),
            "lists": queue.lists,
            "pairs": queue.pairs(),
            "write_labels": f"pencil labels {shlex.quote(str(self.run))} --reviewed",
        }

    def page(
        self, chosen: Filter, count: int, start: int | None = None, row: int | None = None, after: int | None = None
    ) -> dict[str, Any]:
        """Return the page around a row, or a position, or the next row without a decision after ``after``.

        If the row is not in the list, the position ``start`` is used.
        """
        rows = self._listed(chosen)
        found = [] if row is None else np.flatnonzero(rows == row).tolist()
        position = found[0] if found else self._next_open(chosen, rows, after) if start is None else start
        position = max(0, min(position, len(rows) - 1))
        first = position - position % count
        shown = [self._describe(int(place)) for place in rows[first : first + count]]
        return {"total": len(rows), "start": first, "position": position, "rows": shown} | self.progress(chosen)

    def _listed(self, chosen: Filter) -> np.ndarray:
        rows = self._all_of(chosen)
        return rows if chosen.decided is None else rows[self.decided[rows] == chosen.decided]

    def _all_of(self, chosen: Filter) -> np.ndarray:
        """Return the rows of a filter, whether they are decided or not."""
        return self.queue.rows(replace(chosen, decided=None))

    def _next_open(self, chosen: Filter, listed: np.ndarray, after: int | None) -> int:
        """Return the list position of the first row without a decision after a row, or else in the whole list."""
        rows = self._all_of(chosen)
        behind = 0 if after is None else int(np.flatnonzero(rows == after).max(initial=-1)) + 1
        undecided = np.flatnonzero(~self.decided[rows])
        if not len(undecided):
            return 0
        later = undecided[undecided >= behind]
        wanted = rows[later[0] if len(later) else undecided[0]]
        return int(np.argmax(listed == wanted)) if len(listed) else 0

    def progress(self, chosen: Filter) -> dict[str, int]:
        """Return how many rows are decided, in the filter and among all rows to review."""
        rows, wanted = self._all_of(chosen), self.queue.to_look_at
        return {
            "of": len(rows),
            "decided": int(self.decided[rows].sum()),
            "to_look_at": int(wanted.sum()),
            "looked_at": int((self.decided & wanted).sum()),
        }

    def _describe(self, row: int) -> dict[str, Any]:
        decision = self.history.get(self.queue.where(row))
        made = {"decision": decision and decision.decision, "label": decision and decision.label}
        return self.queue.describe(row) | made

    def decide(self, row: int, kind: str, codes: list[int]) -> dict[str, Any]:
        """Save a decision, then return the row as the page shows it."""
        queue = self.queue
        if kind not in KINDS or kind in ("undo", *ENTRY_KINDS):  # it has its own function; an audit asks about entries
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
            self._save([Decision(key, split, kind, label, given, corrected, now())])
            self.decided[row] = True
        return self._describe(row)

    def undo(self, row: int | None = None) -> tuple[dict[str, Any] | None, int]:
        """Withdraw the decision about a row, or the newest of all, and with it the whole lot that it belongs to.

        Returns the row as the page shows it, None if nothing is left to withdraw, and the number of withdrawn
        decisions.
        """
        with self._writing:
            last = self.history.last() if row is None else self.history.get(self.queue.where(row))
            if last is None:
                return (None if row is None else self._describe(row)), 0
            withdrawn = self.history.of_lot(last.lot) if last.lot else [last]
            time = now()
            self._save(replace(one, decision="undo", label=None, time=time, audit=False) for one in withdrawn)
            rows = self.queue.find([one.where for one in withdrawn])
            for where, place in rows.items():
                self.decided[place] = self.history.get(where) is not None
        shown = rows.get(last.where)
        return (None if shown is None else self._describe(shown)), len(withdrawn)

    def _save(self, decisions: Iterable[Decision]) -> None:
        """Write decisions, all or none, before they count."""
        made = list(decisions)
        if len(made) == 1:
            self._journal.append(made[0])
        else:
            self._journal.append_all(made)
        for decision in made:
            self.history.add(decision)

    def lot(self, chosen: Filter) -> dict[str, Any]:
        """Return how many changes of a filter have no decision, and the rows to check: all, or a sample."""
        rows = self._lot_rows(chosen)
        return {"count": len(rows), "rows": [self._describe(int(row)) for row in self._samples(rows)]}

    def _lot_rows(self, chosen: Filter) -> np.ndarray:
        return self._listed(replace(chosen, show="changed", decided=False))

    def _samples(self, rows: np.ndarray) -> np.ndarray:
        """Return evenly spaced rows of a lot in order of increasing confidence."""
        ordered = rows[np.argsort(self.queue.confidence[rows], kind="stable")]
        return ordered[np.unique(np.linspace(0, len(rows) - 1, min(SAMPLES, len(rows))).astype(np.int64))]

    def accept_lot(self, chosen: Filter, count: int, seen: Sequence[int], without: Sequence[int] = ()) -> int:
        """Accept all changes of a filter that have no decision, in one write, and return their number.

        ``count`` rows were shown to the person, who saw the rows ``seen`` that :meth:`lot` returned; wrong rows
        among these, ``without``, stay without a decision.
        """
        queue, lot = self.queue, secrets.token_hex(6)
        with self._writing:
            rows = self._lot_rows(chosen)
            if len(rows) != count or set(seen) != set(self._samples(rows).tolist()):
                raise RefusedError(f"the lot has changed and has {len(rows)} rows now; check it again")
            rows = rows[~np.isin(rows, list(without))]
            if not len(rows):
                raise RefusedError("the lot has no rows")
            wheres = ((row, *queue.where(row)) for row in rows.tolist())
            time = now()
            self._save(
                Decision(
                    key, split, "accept", queue.corrected[row], queue.given[row], queue.corrected[row], time, lot=lot
                )
                for row, key, split in wheres
            )
            self.decided[rows] = True
        return len(rows)

    def _chosen(self, codes: list[int]) -> Label:
        names = self.queue.classes
        if not all(0 <= code < len(names) for code in codes) or (not self.queue.multilabel and len(codes) != 1):
            raise RefusedError(f"label is {codes!r}; expected positions of classes")
        return tuple(names[code] for code in sorted(set(codes))) if self.queue.multilabel else names[codes[0]]
