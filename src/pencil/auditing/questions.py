"""What an audit asks: the class of a row, or whether a class is present in a row of multi-label data.

The sample, the estimates and the decisions of an audit work with numbered units, each with a given value, a corrected
value, a confidence and an issue score. Units are rows, or entries: the entry of row i and class k out of c has the
number ``i * c + k``. Unnamed and named entries have very different error rates, so they are separate kinds: strata do
not mix them, and each kind has a decider of its own.
"""

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np

from pencil.auditing.deciding import FEWEST, PRIOR_DEVIATION, Decider, Scores, fit_decider
from pencil.decisions import ENTRY_KINDS, REVIEWS, Decision, Unit, Where, now
from pencil.errors import RunError
from pencil.runs.audited import parts_of
from pencil.runs.label_table import LabelTable
from pencil.terminal import shorten

NO_CLASS, CANNOT_TELL = -1, -2
"""Codes of the answers that are not a value of the unit."""
NO_VALUE = {"none": NO_CLASS, "skip": CANNOT_TELL}
"""The same, by their kind of decision."""
ALL_OFFERED = 10
"""Up to this many classes, all are offered for every row; with more, the label distribution selects them."""
OFFERED, PROBABLE = 8, 4
"""Number of classes offered if there are many; half are probable classes, half are random."""
SHOWN, LONGEST_SHOWN = 10, 40
"""Maximum number of classes that a message names, and of characters of each."""
ENTRY_DEVIATION = np.array([0.7, 0.2, 0.25])
"""Prior deviations of the deciders of entries. Named and unnamed entries share the answers, so each decider has about
half of them: with the wider prior of rows, the worst of 20 audits of 100 answers loses 2.7 points of right entries on
four tuning runs; with this prior it loses 0.4."""


class Questions(ABC):
    """The units of a run that an audit can ask about.

    Attributes
    ----------
    labels : LabelTable
        All labels, as training left them.
    names : tuple of str
        The values that an answer can name, by code.
    given, corrected : ndarray
        The code of each unit's given and corrected value; -1 if none is given.
    confidence : ndarray
        The probability of the corrected value.
    wrong : ndarray
        The probability that the given value is wrong; 0 if none is given.
    kinds : ndarray
        The kind of each unit, from 0.
    population : ndarray
        The units that the audit covers: all except pinned and unlabelled rows, and unknown entries.
    nouns : tuple of str
        What a unit is called, in singular and plural.
    words : dict
        Answers in a sheet or in Python that do not name a value, and their kinds of decisions.
    columns : tuple of str
        The columns of a sheet; the last one is for the answer.
    expected : tuple of str
        What names a value in a sheet and in Python, for messages.
    deviation : ndarray
        The prior deviations of the deciders.
    """

    labels: LabelTable
    names: tuple[str, ...]
    given: np.ndarray
    corrected: np.ndarray
    confidence: np.ndarray
    wrong: np.ndarray
    kinds: np.ndarray
    population: np.ndarray
    nouns: ClassVar[tuple[str, str]]
    words: ClassVar[dict[str, str]]
    columns: ClassVar[tuple[str, ...]]
    expected: tuple[str, str]
    deviation: ClassVar[np.ndarray] = PRIOR_DEVIATION

    @property
    def changed(self) -> np.ndarray:
        """Whether the corrected value of each unit differs from the given one."""
        return self.differs(self.corrected)

    @property
    def naming(self) -> np.ndarray:
        """Whether the given value of each unit names a class; see `given_name`."""
        named: np.ndarray = self.given >= 0
        return named

    def differs(self, values: np.ndarray) -> np.ndarray:
        """Return whether values differ from the given ones; never for units without one."""
        changed: np.ndarray = (values != self.given) & (self.given >= 0)
        return changed

    def where(self, unit: int) -> Where:
        """Return the key and split of the row of a unit."""
        row = self.row(unit)
        return self.labels.keys[row].as_py(), self.labels.splits[row].as_py()

    def fit(self, units: np.ndarray, answers: np.ndarray) -> tuple[Decider, ...]:
        """Return the decider of each kind that the answers about some units support; see `fit_decider`."""
        fitted = []
        for kind in range(int(self.kinds.max()) + 1):
            mine = (self.kinds[units] == kind) & (self.given[units] >= 0)
            probs, scores = self.evidence(units[mine])
            given = self.given[units[mine]].astype(np.int64)
            fitted.append(fit_decider(Scores.of(probs, given, scores), given, answers[mine], self.deviation))
        return tuple(fitted)

    def parse(self, answer: str) -> int | None:
        """Return the code of an answer in words, in any case if that is unambiguous; None if it is not one."""
        if answer in self.names:
            return self.names.index(answer)
        word = self.words.get(answer.lower())
        alike = [code for code, name in enumerate(self.names) if name.casefold() == answer.casefold()]
        return NO_VALUE[word] if word else alike[0] if len(alike) == 1 else None

    def answers_missing(self, units: np.ndarray) -> int:
        """Return how many more known answers some kind needs for a decision, given the units that have one."""
        asked = units[self.given[units] >= 0]
        counts = np.bincount(self.kinds[asked], minlength=1)
        return max(0, FEWEST - int(counts.max()))

    def open_rows(self, part: LabelTable) -> np.ndarray:
        """Return which rows of a part of the label table an audit may decide: a mask."""
        mask: np.ndarray = ~(part.pinned | part.outlier | part.unread | part.is_unlabelled)
        return mask

    @property
    def is_open(self) -> np.ndarray:
        """Whether an audit may decide each unit."""
        rows = self.open_rows(self.labels)
        mask: np.ndarray = np.repeat(rows, len(self.given) // max(1, len(rows))) & (self.given >= 0)
        return mask

    @abstractmethod
    def row(self, unit: int) -> int:
        """Return the row of the label table that a unit belongs to."""

    @abstractmethod
    def name(self, unit: int) -> Unit:
        """Return what identifies a unit in files: key and split, and the class of an entry."""

    @abstractmethod
    def asked(self, unit: int) -> str:
        """Return the class that is asked about; empty if the class of the row is asked for."""

    @abstractmethod
    def offered(self, unit: int, seed: int) -> list[int]:
        """Return the codes of the offered values in the order of the page; their number is the same for every unit."""

    @abstractmethod
    def given_name(self, unit: int) -> str:
        """Return the class that the given label names, which a key must not reveal; empty if it names none."""

    @abstractmethod
    def decision(self, unit: int, code: int) -> Decision:
        """Return the answer about a unit as a decision; ``code`` may be NO_CLASS or CANNOT_TELL."""

    @abstractmethod
    def code(self, decision: Decision) -> int:
        """Return the code of an answer.

        Raises
        ------
        RunError
            If the decision names a class that the run does not have.
        """

    @abstractmethod
    def evidence(self, units: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the posterior of the true value of some units, (units, values), and their issue scores."""

    @abstractmethod
    def redecide(self, deciders: tuple[Decider, ...], part: LabelTable) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the rows of a part of a label table that an audit decides, their distributions and issue scores.

        Pinned rows, outliers, and rows that could not be read keep their labels. The issue scores of
        multi-label data are those of entries, (rows, classes).
        """

    @abstractmethod
    def decided(self, deciders: tuple[Decider, ...]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return ``corrected``, ``confidence`` and ``wrong`` of all units after an audit."""

    @abstractmethod
    def by_row(self, chosen: np.ndarray) -> np.ndarray:
        """Return how many of the chosen units each row has, given a mask of all units."""


def questions_of(labels: LabelTable) -> Questions:
    """Return the questions about the labels of a run.

    Raises
    ------
    RunError
        If there is nothing to ask, because a person has decided every label, or every entry is unknown.
    """
    found = EntryQuestions(labels) if labels.multilabel else RowQuestions(labels)
    if not len(found.population):
        raise RunError(
            "every label is pinned or unknown, so there is nothing to audit; expected given labels without a person's "
            "decision."
        )
    return found


class RowQuestions(Questions):
    """The rows of single-label data: which class is it?"""

    nouns = "row", "rows"
    words: ClassVar[dict[str, str]] = {"cannot tell": "skip", "none of the classes": "none"}
    columns = "key", "split", "classes", "label"

    def __init__(self, labels: LabelTable):
        self.labels, self.names = labels, labels.classes
        few = ", ".join(repr(shorten(name, LONGEST_SHOWN)) for name in self.names[:SHOWN])
        classes = f"a class of the run ({few}{', ...' if len(self.names) > SHOWN else ''})"
        self.expected = classes, classes
        self.given, self.corrected = labels.given_codes, labels.corrected_codes
        self.confidence = np.nan_to_num(labels.confidence.astype(np.float64)).clip(0, 1)
        kept = np.nan_to_num(labels.given_probability.astype(np.float64)).clip(0, 1)
        self.wrong = np.where(self.given < 0, 0.0, 1 - kept)
        self.kinds = np.zeros(len(labels), dtype=np.int8)
        self.population = np.flatnonzero(~labels.pinned & ~labels.is_unlabelled)

    def row(self, unit: int) -> int:
        return unit

    def name(self, unit: int) -> Unit:
        return self.where(unit)

    def asked(self, unit: int) -> str:
        return ""

    def offered(self, unit: int, seed: int) -> list[int]:
        rng, classes = np.random.default_rng([seed, unit]), len(self.names)
        if classes <= ALL_OFFERED:
            return [int(code) for code in rng.permutation(classes)]
        labels = self.labels.slice(unit, 1)
        probable = np.argsort(-labels.probs[0], kind="stable")
        wanted = [int(labels.given_codes[0]), int(labels.corrected_codes[0]), *probable.tolist()]
        chosen = list(dict.fromkeys(code for code in wanted if code >= 0))[:PROBABLE]
        others = [int(code) for code in rng.permutation(classes) if code not in chosen]
        chosen += others[: OFFERED - PROBABLE]
        return [chosen[place] for place in rng.permutation(OFFERED)]

    def given_name(self, unit: int) -> str:
        return "" if self.given[unit] < 0 else self.names[self.given[unit]]

    def decision(self, unit: int, code: int) -> Decision:
        given, corrected = self.labels.given_labels[unit], self.labels.corrected_labels[unit]
        label = self.names[code] if code >= 0 else None
        kind = {NO_CLASS: "none", CANNOT_TELL: "skip"}.get(code)
        kind = kind or ("accept" if label == corrected else "reject" if label == given else "other")
        return Decision(*self.where(unit), kind, label, given, corrected, now(), audit=True)

    def code(self, decision: Decision) -> int:
        if decision.label is None:
            return NO_CLASS if decision.decision == "none" else CANNOT_TELL
        if decision.label not in self.names:
            raise RunError(
                f"the audit of {decision.key!r} names {decision.label!r}, which is not a class of this run; fix or "
                f"remove its line in {REVIEWS}."
            )
        return self.names.index(str(decision.label))

    def evidence(self, units: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        part = self.labels.take(units)
        return part.probs, part.issue_score

    def redecide(self, deciders: tuple[Decider, ...], part: LabelTable) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        rows = np.flatnonzero(self.open_rows(part) & (part.given_codes >= 0))
        probs, scores = deciders[0].decide(part.probs[rows], part.given_codes[rows], part.issue_score[rows])
        return rows, probs, scores

    def decided(self, deciders: tuple[Decider, ...]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        corrected, confidence, wrong = self.corrected.copy(), self.confidence.copy(), self.wrong.copy()
        start = 0
        for part in parts_of(self.labels) if deciders[0].used else ():
            rows, probs, scores = self.redecide(deciders, part)
            places = start + rows
            corrected[places], confidence[places], wrong[places] = probs.argmax(axis=1), probs.max(axis=1), scores
            start += len(part)
        return corrected, confidence, wrong

    def by_row(self, chosen: np.ndarray) -> np.ndarray:
        return chosen.astype(np.int64)


class EntryQuestions(Questions):
    """The known entries of multi-label data: is the class in the row?"""

    nouns = "entry", "entries"
    names = "no", "yes"
    words: ClassVar[dict[str, str]] = {"cannot tell": "skip"}
    columns = "key", "split", "class", "answer"
    expected = "yes, no", "True, False"
    deviation = ENTRY_DEVIATION

    def __init__(self, labels: LabelTable):
        given, probs, self.labels = labels.given_probs.ravel(), labels.probs.ravel(), labels
        known, self.classes = ~np.isnan(given), len(labels.classes)
        self.given = np.where(known, given > 0.5, -1).astype(np.int8)
        self.corrected = (probs > 0.5).astype(np.int8)
        self.confidence = np.maximum(probs, 1 - probs)
        self.wrong = labels.entry_scores.ravel().astype(np.float32)
        self.kinds = (self.given == 1).astype(np.int8)
        asked = np.repeat(~labels.pinned & ~labels.is_unlabelled, self.classes)
        self.population = np.flatnonzero(known & asked)

    @property
    def naming(self) -> np.ndarray:
        named: np.ndarray = self.given == 1
        return named

    def row(self, unit: int) -> int:
        return unit // self.classes

    def name(self, unit: int) -> Unit:
        return *self.where(unit), self.asked(unit)

    def asked(self, unit: int) -> str:
        return self.labels.classes[unit % self.classes]

    def offered(self, unit: int, seed: int) -> list[int]:
        return [1, 0]

    def given_name(self, unit: int) -> str:
        return self.asked(unit) if self.given[unit] == 1 else ""

    def decision(self, unit: int, code: int) -> Decision:
        row = self.row(unit)
        labels = self.labels.given_labels[row], self.labels.corrected_labels[row]
        kind = "skip" if code == CANNOT_TELL else ENTRY_KINDS[code]
        return Decision(*self.where(unit), kind, None, *labels, now(), audit=True, entry=self.asked(unit))

    def code(self, decision: Decision) -> int:
        return CANNOT_TELL if decision.decision == "skip" else ENTRY_KINDS.index(decision.decision)

    def parse(self, answer: str) -> int | None:
        return super().parse({"true": "yes", "false": "no"}.get(answer.lower(), answer.lower()))

    def evidence(self, units: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        rows, columns = np.divmod(units, self.classes)
        present = self.labels.take(rows).probs[np.arange(len(rows)), columns].astype(np.float64)
        return np.stack([1 - present, present], axis=1), self.wrong[units]

    def redecide(self, deciders: tuple[Decider, ...], part: LabelTable) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        given, present, wrong = part.given_probs, part.probs.astype(np.float64), part.entry_scores.astype(np.float64)
        free = self.open_rows(part)
        for kind, decider in enumerate(deciders):
            chosen = ~np.isnan(given) & ((given > 0.5) == kind) & free[:, None]
            if decider.used and chosen.any():
                pair = np.stack([1 - present[chosen], present[chosen]], axis=1)
                decided, wrong[chosen] = decider.decide(pair, np.full(len(pair), kind), wrong[chosen])
                present[chosen] = decided[:, 1]
        rows = np.flatnonzero(free)
        return rows, present[rows].astype(np.float32), wrong[rows].astype(np.float32)

    def decided(self, deciders: tuple[Decider, ...]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        shape = len(self.labels), self.classes
        found = tuple(one.reshape(shape).copy() for one in (self.corrected, self.confidence, self.wrong))
        corrected, confidence, wrong = found
        start = 0
        for part in parts_of(self.labels) if any(one.used for one in deciders) else ():
            rows, present, scores = self.redecide(deciders, part)
            places = start + rows
            corrected[places], confidence[places] = present > 0.5, np.maximum(present, 1 - present)
            wrong[places] = scores
            start += len(part)
        return corrected.ravel(), confidence.ravel(), wrong.ravel()

    def by_row(self, chosen: np.ndarray) -> np.ndarray:
        counts: np.ndarray = chosen.reshape(len(self.labels), self.classes).sum(axis=1)
        return counts
