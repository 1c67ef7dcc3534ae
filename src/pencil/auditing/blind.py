"""One session of an audit: the rows without their labels, and the answers, saved before the page continues.

Nothing that the page receives depends on a row's given or corrected label, except the selection of offered classes if
there are many. Rows are identified by their position in the sample, because a key may be a path that contains the class
and rows may be sorted by class. Every row has the same number of offered classes.
"""

import threading
from pathlib import Path
from typing import Any, Self

import numpy as np

from pencil.auditing.sample import ALL_OFFERED, AuditSample
from pencil.decisions import REVIEWS, Decision, History, Journal, now
from pencil.review.inputs import Pictures, pictures_of
from pencil.review.session import RefusedError

OFFERED, PROBABLE = 8, 4
"""Number of classes offered if there are many; half are probable classes, half are random."""
NO_LABEL = ("none", "skip")


class Blind:
    """The sample of a run without labels, and its answers; use as a context manager to write them.

    The caller holds the lock of the run.

    Parameters
    ----------
    run : Path
        The run directory.
    sample : AuditSample
        The sampled rows.
    pictures : Pictures, optional
        The inputs to show; by default loaded from the data of the run's recipe.
    """

    def __init__(self, run: Path, sample: AuditSample, pictures: Pictures | None = None):
        self.run, self.sample = run, sample
        self.pictures = pictures_of(run, by_class=False) if pictures is None else pictures
        self.history = History()
        self._journal = Journal(run / REVIEWS)
        self._writing = threading.Lock()

    def __enter__(self) -> Self:
        self.history = History.read(self._journal.path)
        self._journal.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._journal.__exit__()

    def __len__(self) -> int:
        return len(self.sample.places)

    def begin(self) -> dict[str, Any]:
        """Return the initial data of the page."""
        return {"run": self.run.resolve().name, "classes": self.sample.labels.classes, "rows": len(self)}

    def row(self, at: int | None = None) -> dict[str, Any]:
        """Return the page data for a position in the sample, by default the first without an answer.

        Later positions are not shown, because skipping hard rows would bias the sample.
        """
        answered = self.history.audited()
        open_places = [place for place, where in enumerate(self.sample.all_where()) if where not in answered]
        first = open_places[0] if open_places else len(self)
        at = first if at is None else min(at, first)
        shown = {"at": at, "answered": len(self) - len(open_places), "rows": len(self)}
        if at == len(self):
            return shown | {"done": True}
        decision = answered.get(self.sample.where(at))
        answer = None if decision is None else decision.label if decision.label is not None else decision.decision
        kind = None if decision is None else decision.decision if decision.decision in NO_LABEL else "class"
        return shown | {"done": False, "offered": self.offered(at), "kind": kind, "answer": answer}

    def offered(self, at: int) -> list[int]:
        """Return the classes that are offered for a row, in random order; the number is the same for every row."""
        sample, classes = self.sample, len(self.sample.labels.classes)
        row = int(sample.rows[at])
        rng = np.random.default_rng([sample.seed, row])
        if classes <= ALL_OFFERED:
            return [int(code) for code in rng.permutation(classes)]
        labels = sample.labels.slice(row, 1)
        probable = np.argsort(-labels.probs[0], kind="stable")
        wanted = [int(labels.given_codes[0]), int(labels.corrected_codes[0]), *probable.tolist()]
        chosen = list(dict.fromkeys(code for code in wanted if code >= 0))[:PROBABLE]
        others = [int(code) for code in rng.permutation(classes) if code not in chosen]
        chosen += others[: OFFERED - PROBABLE]
        return [chosen[place] for place in rng.permutation(OFFERED)]

    def answer(self, at: int, kind: str, code: int | None = None) -> dict[str, Any]:
        """Save an answer, then return the next row without one.

        Parameters
        ----------
        at : int
            The place in the sample.
        kind : str
            ``class``, ``none`` (of the classes) or ``skip`` (cannot tell).
        code : int, optional
            The class.
        """
        classes = self.sample.labels.classes
        if kind == "class" and code is not None and 0 <= code < len(classes):
            self.save(at, classes[code])
        elif kind in NO_LABEL and code is None:
            self.save(at, None, kind)
        else:
            raise RefusedError("the answer is not a class, 'none' or 'skip'")
        return self.row()

    def save(self, at: int, label: str | None, kind: str = "") -> None:
        """Append an answer to the file: a class, or ``none`` or ``skip`` without one."""
        decision = self.sample.decision(at, label, kind)
        with self._writing:
            self._journal.append(decision)
            self.history.add(decision)

    def undo(self, at: int) -> dict[str, Any]:
        """Withdraw the answer about a row if it is the newest decision about it, and return the row."""
        where = self.sample.where(at)
        with self._writing:
            last = self.history.get(where)
            if last is None or not last.audit:
                raise RefusedError("this row has no answer to withdraw, or was reviewed after it")
            decision = Decision(*where, "undo", None, last.given, last.corrected, now(), audit=True)
            self._journal.append(decision)
            self.history.add(decision)
        return self.row(at)
