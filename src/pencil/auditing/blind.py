"""One session of an audit: the rows without their labels, and the answers, saved before the page continues.

Nothing that the page receives depends on a row's given or corrected label, except the selection of offered classes if
there are many. Rows are identified by their position in the sample, because a key may be a path that contains the class
and rows may be sorted by class. Every row has the same number of offered classes. For multi-label data the page gets
the class that it asks about, and offers yes and no.
"""

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from pencil.auditing.questions import NO_VALUE
from pencil.auditing.sample import AuditSample
from pencil.decisions import REVIEWS, History, Journal, now
from pencil.review.inputs import Pictures, pictures_of
from pencil.review.session import RefusedError


class Blind:
    """The sample of a run without labels, and its answers; use as a context manager to write them.

    The caller holds the lock of the run.

    Parameters
    ----------
    run : Path
        The run directory.
    sample : AuditSample
        The sample.
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
        questions = self.sample.questions
        return {
            "run": self.run.resolve().name,
            "classes": questions.names,
            "rows": len(self),
            "nouns": questions.nouns,
            "entries": self.sample.labels.multilabel,
        }

    def row(self, at: int | None = None) -> dict[str, Any]:
        """Return the page data for a position in the sample, by default the first without an answer.

        Later positions are not shown, because skipping hard rows would bias the sample.
        """
        answered = self.history.audited()
        open_places = [place for place, name in enumerate(self.sample.all_where()) if name not in answered]
        first = open_places[0] if open_places else len(self)
        at = first if at is None else min(at, first)
        shown = {"at": at, "answered": len(self) - len(open_places), "rows": len(self)}
        if at == len(self):
            return shown | {"done": True}
        questions, decision = self.sample.questions, answered.get(self.sample.where(at))
        code = None if decision is None else questions.code(decision)
        kind = None if decision is None or code is None else "class" if code >= 0 else decision.decision
        answer = questions.names[code] if code is not None and code >= 0 else kind
        asked = questions.asked(int(self.sample.units[at]))
        question = {"offered": self.offered(at), **({"asked": asked} if asked else {})}
        return shown | {"done": False, **question, "kind": kind, "answer": answer}

    def offered(self, at: int) -> list[int]:
        """Return the codes that are offered at a position, in the order of the page."""
        return self.sample.questions.offered(int(self.sample.units[at]), self.sample.seed)

    def answer(self, at: int, kind: str, code: int | None = None) -> dict[str, Any]:
        """Save an answer, then return the next row without one.

        Parameters
        ----------
        at : int
            The place in the sample.
        kind : str
            ``class``, ``none`` (of the classes) or ``skip`` (cannot tell).
        code : int, optional
            The class; for an entry of multi-label data 1 for yes and 0 for no.
        """
        questions = self.sample.questions
        if kind == "class" and code is not None and 0 <= code < len(questions.names):
            self.save(at, code)
        elif kind in questions.words.values() and code is None:
            self.save(at, NO_VALUE[kind])
        else:
            raise RefusedError("the answer is not a class, 'none' or 'skip'")
        return self.row()

    def save(self, at: int, code: int) -> None:
        """Append an answer to the file: the code of a value, NO_CLASS or CANNOT_TELL."""
        decision = self.sample.questions.decision(int(self.sample.units[at]), code)
        with self._writing:
            self._journal.append(decision)
            self.history.add(decision)

    def undo(self, at: int) -> dict[str, Any]:
        """Withdraw the answer about a row if it is the newest decision about it, and return the row."""
        with self._writing:
            last = self.history.get(self.sample.where(at))
            if last is None or not last.audit:
                raise RefusedError("this row has no answer to withdraw, or was reviewed after it")
            decision = replace(last, decision="undo", label=None, time=now())
            self._journal.append(decision)
            self.history.add(decision)
        return self.row(at)
