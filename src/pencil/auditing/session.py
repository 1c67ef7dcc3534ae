"""An audit in Python: the rows to look at next, the answers, and the labels that they decide."""

from collections import Counter
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from pencil.auditing.questions import CANNOT_TELL
from pencil.auditing.results import Answers, Conclusion, collect, conclude, record
from pencil.auditing.sample import DESIGN, AuditSample, plan_sample, read_design, trained_labels
from pencil.decisions import REVIEWS, Decision, History, Journal, Unit
from pencil.errors import RunError
from pencil.files import write_json
from pencil.runs.audited import decided_table
from pencil.runs.directory import RunReader
from pencil.runs.label_table import LabelTable
from pencil.runs.lock import RunLock
from pencil.runs.summary import AuditSummary, Interval, VerdictSummary

if TYPE_CHECKING:
    from pencil.runs.run import Run

SPLITS = ("train", "validation", "unlabelled")
Row = str | Unit
"""A key; or key and split, if a training row and a held-out row have the same key. Entries of multi-label data are key
and class, or key, split and class."""


def audit(run: "Run | Path | str", seed: int | None = None) -> "AuditSession":
    """Return the audit of a run: a person's blind answers about a random sample measure and decide its labels.

    Nothing is written before :meth:`AuditSession.save`. An audit in the run directory is continued.

    Parameters
    ----------
    run : Run, Path or str
        A run, or its directory.
    seed : int, optional
        The seed of the sample; by default the seed of the audit in the run directory, or 0.

    Examples
    --------
    >>> import numpy as np, pencil
    >>> rng = np.random.default_rng(0)
    >>> x, truth = rng.normal(size=(400, 2)), np.arange(400) % 2
    >>> x[:, 0] += 4 * truth
    >>> given = np.where(rng.random(400) < 0.2, 1 - truth, truth)
    >>> run = pencil.fit("mlp", (x, given), epochs=3, progress=False)
    >>> audit = pencil.audit(run)
    >>> audit.answer({key: truth[int(key)] for key in audit.next(50)})
    >>> audit.rows, 0.1 < audit.noise_rate.estimate < 0.35
    (50, True)
    """
    return AuditSession(run, seed)


class AuditSession:
    """The sample of a run and the answers about it; made by :func:`pencil.audit`.

    Parameters
    ----------
    run : Run, Path or str
        A run, or its directory.
    seed : int, optional
        The seed of the sample.

    Attributes
    ----------
    path : Path or None
        The run directory, if there is one.
    sample : AuditSample
        The sampled rows or entries, in the order in which a person should look at them.
    """

    def __init__(self, run: "Run | Path | str", seed: int | None = None):
        self.path = Path(run) if isinstance(run, str | Path) else run.path
        self._stored = None if self.path is None else read_design(self.path)
        self._unsaved: list[Decision] = []
        if self.path is not None:
            self._labels, self._summary = trained_labels(self.path), RunReader(self.path, as_trained=True).summary
        else:
            assert not isinstance(run, str | Path)
            self._labels, self._summary = run.labels, run.summary
        self._history = self._read_history()
        self.sample: AuditSample = plan_sample(self.path, self._labels, self._stored, None, seed)

    def __repr__(self) -> str:
        found = f"{self.missing} more for a first result" if self._conclusion is None else self.verdict
        units = self.sample.questions.nouns[1]
        return f"AuditSession({self.rows} of {len(self.sample.places)} {units} answered; {found})"

    def next(self, rows: int = 1) -> list[Row]:
        """Return the next rows to look at, without their labels; a larger sample is drawn if necessary.

        Look at them in this order. Rows without an answer before the last answered row count as "cannot tell".

        Parameters
        ----------
        rows : int
            The number of rows; fewer are returned at the end of the data.

        Returns
        -------
        list
            The key of each row, or ``(key, split)`` if a training row and a held-out row have the same key. For
            multi-label data ``(key, class)``, or ``(key, split, class)``: is the class in the row?
        """
        answered = self._history.audited()
        needed = rows - sum(name not in answered for name in self.sample.all_where())
        size = min(len(self.sample.population), len(self.sample.places) + needed)
        if size > len(self.sample.places):
            self.sample = self.sample.extended(size)
        short, names = self._short_names(), self.sample.all_where()
        return [short.get(name, name) for name in names if name not in answered][:rows]

    def answer(self, answers: Mapping[Row, object]) -> None:
        """Record answers about rows of the sample; an answer replaces an earlier one about the same row.

        Parameters
        ----------
        answers : mapping
            The class of each row; None (or ``"cannot tell"``) if the person cannot tell, and ``"none of the classes"``
            if it belongs to none of them. For entries of multi-label data True (``"yes"``), False (``"no"``) or None.

        Raises
        ------
        RunError
            If a row is not in the sample, or an answer is not a class. No answer is recorded then.
        """
        questions, short, new = self.sample.questions, self._short_names(), []
        places: dict[Row, int] = {}
        for name, unit in zip(self.sample.all_where(), self.sample.units.tolist(), strict=True):
            places[name] = places[short.get(name, name)] = unit
        for row, label in answers.items():
            if row not in places:
                raise RunError(
                    f"{row!r} does not identify a row of the sample; expected rows that audit.next() returned, "
                    "because only a random sample measures all labels."
                )
            code = CANNOT_TELL if label is None else questions.parse(str(label))
            if code is None:
                raise RunError(
                    f"the answer about {row!r} is {label!r}; expected {questions.expected[1]}, None or "
                    f"{' or '.join(map(repr, questions.words))}."
                )
            new.append(questions.decision(places[row], code))
        for decision in new:
            self._history.add(decision)
        self._unsaved += new
        self.__dict__.pop("_conclusion", None)

    @property
    def rows(self) -> int:
        """The number of rows (entries, for multi-label data) up to the last answered one."""
        return len(self._answers.codes)

    @property
    def missing(self) -> int:
        """The number of answers still missing for a first result."""
        return self._answers.missing

    @property
    def results(self) -> AuditSummary | None:
        """All results, as `summary.json` stores them; None before the first result."""
        return None if self._conclusion is None else self._conclusion.audit

    @property
    def noise_rate(self) -> Interval | None:
        """The fraction of given labels that are wrong, with its 95 % interval; None before the first result."""
        return None if self.results is None else self.results.given_wrong

    @property
    def corrected_right(self) -> Interval | None:
        """The fraction of the labels in :attr:`labels` that are right; None before the first result."""
        return None if self.results is None else self.results.corrected_right

    @property
    def verdict(self) -> VerdictSummary | None:
        """The verdict that the audit measured; None before the first result."""
        return None if self.results is None else self.results.verdict

    @property
    def labels(self) -> LabelTable:
        """The labels as the answers decide them; as training left them if the answers agree or are fewer than 30."""
        found = self._conclusion
        trained = self._labels if self.path is None else RunReader(self.path, as_trained=True).labels
        if found is None or found.decide is None:
            return trained
        return decided_table(trained, found.decide, found.suspect_from)

    def save(self) -> None:
        """Write sample, answers, results and decided labels to the run directory, as ``pencil audit`` does.

        Raises
        ------
        RunError
            If the run has no directory, another process uses it, or its audit was continued elsewhere.
        """
        if self.path is None:
            raise RunError("this run has no directory to save to; train it with pencil.fit(..., out=DIRECTORY).")
        with RunLock(self.path, "audit"):
            if read_design(self.path) != self._stored:
                raise RunError(
                    f"the sample in {self.path / DESIGN} has changed since this audit was opened; open the run again "
                    "with pencil.audit, and repeat the answers."
                )
            tree = self.sample.to_tree()
            if tree != self._stored:
                write_json(self.path / DESIGN, tree, indent=None)
                self._stored = tree
            with Journal(self.path / REVIEWS) as journal:
                journal.append(*self._unsaved)
            self._unsaved = []
            self._history = self._read_history()  # with what others decided in the meantime
            self.__dict__.pop("_conclusion", None)
            record(self.path, self._answers)

    def _read_history(self) -> History:
        return History() if self.path is None else History.read(self.path / REVIEWS)

    @property
    def _answers(self) -> Answers:
        return collect(self.sample, self._history.audited())

    @cached_property
    def _conclusion(self) -> Conclusion | None:
        """The results of the answers so far; `answer` removes them."""
        return None if self._answers.missing else conclude(self._answers, self._summary.labels)

    def _short_names(self) -> dict[Unit, Row]:
        """Return the name without the split of each unit of the sample whose key is unique in the data."""
        names = self.sample.all_where()
        namesakes = self._labels.find_rows((key, split) for key, *_ in names for split in SPLITS)
        counts = Counter(key for key, _ in namesakes)
        short = {name: (name[0], *name[2:]) for name in names if counts[name[0]] == 1}
        return {name: one if len(one) > 1 else one[0] for name, one in short.items()}
