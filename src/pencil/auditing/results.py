"""The results of an audit: estimates for all labels, and the number of answers that a target needs."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from pencil.auditing.deciding import Decider
from pencil.auditing.design import LEAST_IN_STRATUM, allocate
from pencil.auditing.estimate import Fraction, audited_fraction, fraction_interval
from pencil.auditing.questions import CANNOT_TELL, NO_CLASS, Questions
from pencil.auditing.sample import AuditSample
from pencil.decisions import REVIEWS, Decision, History, Unit
from pencil.errors import RunError, command
from pencil.runs.audited import Decide, write_audit
from pencil.runs.directory import RunReader
from pencil.runs.layout import is_audited
from pencil.runs.summary import AuditedDecision, AuditSummary, Interval, LabelSummary, VerdictSummary


@dataclass(frozen=True)
class Answers:
    """The answered prefix of a sample: for each unit the code of a value, NO_CLASS or CANNOT_TELL.

    Units are rows, or entries of multi-label data. Skipped units count as CANNOT_TELL, so that leaving out hard ones
    does not improve the result.
    """

    sample: AuditSample
    codes: np.ndarray

    @property
    def questions(self) -> Questions:
        """All units that the audit can ask about."""
        return self.sample.questions

    @cached_property
    def units(self) -> np.ndarray:
        """The answered units."""
        looked: np.ndarray = self.sample.units[: len(self.codes)]
        return looked

    @cached_property
    def stratum(self) -> np.ndarray:
        """The stratum of each unit."""
        strata: np.ndarray = self.sample.strata.of_row[self.sample.places[: len(self.codes)]]
        return strata

    @property
    def undecided(self) -> int:
        """Number of answers still missing until labels can be decided again, at least."""
        return self.questions.answers_missing(self.units[self.codes != CANNOT_TELL])

    def differs(self, values: np.ndarray) -> np.ndarray:
        """Return 1 if the value of a unit is wrong, 0 if it is right, NaN if unknown."""
        wrong: np.ndarray = (values[self.units] != self.codes).astype(np.float64)
        wrong[self.codes == CANNOT_TELL] = np.nan
        return wrong

    @cached_property
    def missing(self) -> int:
        """Number of answers still missing for a first result."""
        needed = np.minimum(self.sample.strata.sizes, LEAST_IN_STRATUM)
        drawn = np.zeros(len(needed), dtype=np.int64)
        for count, number in enumerate(self.sample.strata.of_row[self.sample.places], 1):
            drawn[number] += 1
            if (drawn >= needed).all():
                return max(0, count - len(self.codes))
        return max(0, len(self.sample.places) - len(self.codes))


def read_answers(run: Path, sample: AuditSample) -> Answers:
    """Return the answers in ``reviews.jsonl`` to the units of a sample."""
    return collect(sample, History.read(run / REVIEWS).audited())


def collect(sample: AuditSample, decisions: Mapping[Unit, Decision]) -> Answers:
    """Return the answers up to the last answered unit of a sample.

    Parameters
    ----------
    sample : AuditSample
        The sample.
    decisions : mapping
        The decision about each unit that has one.
    """
    codes, last = [], 0
    for place, name in enumerate(sample.all_where(), 1):
        decision = decisions.get(name)
        last = last if decision is None else place
        codes.append(CANNOT_TELL if decision is None else sample.questions.code(decision))
    return Answers(sample, np.array(codes[:last], dtype=np.int64))


@dataclass(frozen=True)
class Decided:
    """The labels of all units after an audit: decided again, or as training left them.

    Attributes
    ----------
    deciders : tuple of Decider
        What decided them: one for each kind of units.
    corrected, confidence, wrong : ndarray
        The corrected value of each unit, its probability, and the probability that the given value is wrong.
    changed : ndarray
        Whether the corrected value differs from the given one.
    """

    deciders: tuple[Decider, ...]
    corrected: np.ndarray
    confidence: np.ndarray
    wrong: np.ndarray
    changed: np.ndarray

    @property
    def again(self) -> bool:
        """Whether labels were decided again."""
        return any(decider.used for decider in self.deciders)


def decide(answers: Answers) -> Decided:
    """Return the labels of all units, decided again if the answers support it."""
    questions, known = answers.questions, answers.codes != CANNOT_TELL
    deciders = questions.fit(answers.units[known], answers.codes[known])
    corrected, confidence, wrong = questions.decided(deciders)
    return Decided(deciders, corrected, confidence, wrong, questions.differs(corrected))


def measure(answers: Answers) -> tuple[AuditSummary, Decided]:
    """Return the results of an audit, and the labels that it decided.

    Raises
    ------
    RunError
        If a stratum has too few answers.
    """
    if answers.missing:
        raise RunError(
            f"only {len(answers.codes)} {answers.questions.nouns[1]} are answered; expected {answers.missing} more; "
            f"continue with {command('audit', answers.sample.run)}."
        )
    sample, questions, decided = answers.sample, answers.questions, decide(answers)
    wrong = answers.differs(decided.corrected)
    changed = decided.changed[sample.population]
    found = {
        "given_wrong": _estimate(answers, _without_none(answers, questions.given), decided.wrong),
        "corrected_right": _estimate(answers, wrong, 1 - decided.confidence).complement,
    }
    if changed[sample.places[: len(answers.codes)]].any():
        found["changes_right"] = _estimate(answers, wrong, 1 - decided.confidence, changed).complement
    intervals = {name: Interval.model_validate(fraction) for name, fraction in found.items()}
    decisions = [AuditedDecision.model_validate(one) if one.used else None for one in decided.deciders]
    return AuditSummary(
        population=len(sample.population),
        rows=len(answers.codes),
        cannot_tell=int((answers.codes == CANNOT_TELL).sum()),
        no_class=int((answers.codes == NO_CLASS).sum()),
        given_wrong=intervals["given_wrong"],
        corrected_right=intervals["corrected_right"],
        changes_right=intervals.get("changes_right"),
        decision=decisions[0],
        named_decision=decisions[1] if len(decisions) > 1 else None,
        verdict=_verdict(int(changed.sum()), intervals),
    ), decided


def _verdict(changed: int, intervals: Mapping[str, Interval]) -> VerdictSummary:
    """Return the verdict that an audit measured: whether changes make more labels right than wrong.

    Only a wrong change can have replaced a right label, so the changes are a gain if more than half of them are right.
    """
    right = intervals["corrected_right"]
    measured = f"measured by the audit: {right} of the corrected labels are right"
    of_changes = intervals.get("changes_right")
    if not changed or of_changes is None:
        return VerdictSummary(level="doubtful" if changed else "reliable", reasons=(measured,))
    reasons = (f"{measured}, and {of_changes} of the changes",)
    if of_changes.low > 0.5:
        return VerdictSummary(level="reliable", reasons=reasons)
    return VerdictSummary(level="do not use the corrections" if of_changes.high < 0.5 else "doubtful", reasons=reasons)


def _without_none(answers: Answers, given: np.ndarray) -> np.ndarray:
    """Return whether each given label is wrong; False for rows without one."""
    wrong = answers.differs(given)
    wrong[given[answers.units] < 0] = 0.0
    return wrong


def _estimate(
    answers: Answers, outcome: np.ndarray, predicted: np.ndarray, domain: np.ndarray | None = None
) -> Fraction:
    """Return a fraction of all units, or of the units of the population in a domain.

    The answered units inside a domain are a random sample of its part of each stratum. Parts without an answer join the
    nearest part that has one.
    """
    sample, of_row = answers.sample, answers.sample.strata.of_row
    inside = np.ones(len(of_row), dtype=bool) if domain is None else domain
    asked = inside[sample.places[: len(answers.codes)]]
    seen = np.unique(answers.stratum[asked])
    nearest = seen[np.abs(np.arange(len(sample.strata.sizes))[:, None] - seen).argmin(axis=1)]
    number = np.searchsorted(seen, nearest)
    cells = number[of_row[inside]]
    sizes = np.bincount(cells, minlength=len(seen))
    means = np.bincount(cells, predicted[sample.population][inside], len(seen)) / sizes
    return audited_fraction(
        outcome[asked], predicted[answers.units][asked], number[answers.stratum[asked]], sizes, means
    )


@dataclass(frozen=True)
class Conclusion:
    """What an audit writes to a run: its results, the labels that it decided, and the lowest issue score of a suspect.

    The suspects are the labels with the highest issue scores, as many as the audit estimates to be wrong.
    """

    audit: AuditSummary
    decided: Decided
    questions: Questions
    suspect_from: float

    @property
    def decide(self) -> Decide | None:
        """Decides the rows of a part of the label table; None if the labels from training stay in use."""
        return (lambda part: self.questions.redecide(self.decided.deciders, part)) if self.decided.again else None


def conclude(answers: Answers, trained: LabelSummary) -> Conclusion:
    """Return what an audit found and decided.

    Parameters
    ----------
    answers : Answers
        The answers.
    trained : LabelSummary
        What happened to the labels in training.
    """
    audit, decided = measure(answers)
    scores = np.sort(decided.wrong[answers.sample.population])[::-1]
    place = round(audit.given_wrong.estimate * len(scores)) - 1
    suspect_from = float(scores[place]) if place >= 0 else np.inf
    if decided.again:
        suspect = decided.changed | (answers.questions.is_open & (decided.wrong >= suspect_from))
        audit = audit.model_copy(update={"labels": _count(trained, answers.questions, decided, suspect)})
    return Conclusion(audit, decided, answers.questions, suspect_from)


def record(run: Path, answers: Answers) -> AuditSummary | None:
    """Write the results of an audit to the run, with the labels that it decides; the caller holds the lock.

    If too few answers remain for a result, earlier results are removed, and None is returned.
    """
    trained = RunReader(run, as_trained=True)
    if answers.missing:
        if trained.summary.audit is not None or is_audited(run):
            write_audit(run, None, None)
        return None
    found = conclude(answers, trained.summary.labels)
    write_audit(run, found.audit, found.decide, found.suspect_from)
    return found.audit


def results_of(run: Path, answers: Answers) -> AuditSummary | None:
    """Return what `record` returns, without writing anything."""
    return None if answers.missing else conclude(answers, RunReader(run, as_trained=True).summary.labels).audit


def _count(trained: LabelSummary, questions: Questions, decided: Decided, suspect: np.ndarray) -> LabelSummary:
    """Return the counts of the decided labels; what needs clean labels is left out."""
    splits = questions.labels.splits.to_numpy(zero_copy_only=False)
    train, held_out = splits == "train", splits == "validation"
    changed, suspects = questions.by_row(decided.changed), questions.by_row(suspect)[train | held_out]
    rows = {"rows_to_look_at": int((suspects > 0).sum())} if questions.labels.multilabel else {}
    unknown = dict.fromkeys(("correct_after", "repaired", "broken", "calibration", "detection"))
    return trained.model_copy(
        update={
            **unknown,
            "changed": int(changed[train].sum()),
            "held_out_changed": int(changed[held_out].sum()),
            "suspects": int(suspects.sum()),
            **rows,
        }
    )


def rows_needed(answers: Answers, target: float) -> int | None:
    """Return how many more answers are needed until the lower bound for right corrected labels reaches a target.

    This assumes that future answers resemble the answers so far. None if the estimate is below the target, because more
    rows would only narrow the interval around a fraction that is too low.

    Parameters
    ----------
    answers : Answers
        The answers so far.
    target : float
        The fraction of corrected labels that should be right.
    """
    strata = answers.sample.strata
    audit, decided = measure(answers)
    wrong = answers.differs(decided.corrected)
    known = ~np.isnan(wrong)
    counts = np.bincount(answers.stratum[known], minlength=len(strata.sizes))
    rates = np.bincount(answers.stratum[known], wrong[known], len(strata.sizes)) / np.maximum(counts, 1)
    told = max(float(known.mean()), 1e-9)
    if audit.corrected_right.low >= target:
        return 0
    if audit.corrected_right.estimate < target:
        return None
    order = allocate(strata, len(answers.sample.population))
    low, high = len(answers.codes), len(order)
    while high - low > 1:
        middle = (low + high) // 2
        drawn = np.bincount(order[:middle], minlength=len(strata.sizes)) * told
        enough = 1 - fraction_interval(rates * drawn, drawn, strata.sizes).high >= target
        low, high = (low, middle) if enough else (middle, high)
    return high - len(answers.codes)
