"""The results of an audit: estimates for all labels, and the number of answers that a target needs."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from pencil.audit.design import LEAST_IN_STRATUM, allocate
from pencil.audit.estimate import Fraction, audited_fraction, fraction_interval
from pencil.audit.recalibrate import Recalibration, recalibrate
from pencil.audit.sample import Sample, confidences
from pencil.decisions import REVIEWS, Decision, History, Where, read_lines
from pencil.errors import RunError
from pencil.runs.auditing import write_audit
from pencil.runs.summary import AuditedConfidence, AuditSummary, Interval

NO_CLASS, CANNOT_TELL = -1, -2
"""Codes of the answers that are not a class."""


@dataclass(frozen=True)
class Answers:
    """The answered prefix of a sample: for each row a class, NO_CLASS or CANNOT_TELL.

    Skipped rows count as CANNOT_TELL, so that leaving out hard rows does not improve the result.
    """

    sample: Sample
    codes: np.ndarray

    @cached_property
    def rows(self) -> np.ndarray:
        """The rows of the label table."""
        looked: np.ndarray = self.sample.rows[: len(self.codes)]
        return looked

    @cached_property
    def stratum(self) -> np.ndarray:
        """The stratum of each row."""
        strata: np.ndarray = self.sample.strata.of_row[self.sample.places[: len(self.codes)]]
        return strata

    def differs(self, labels: np.ndarray) -> np.ndarray:
        """Return 1 if the label of a row is wrong, 0 if it is right, NaN if unknown."""
        wrong: np.ndarray = (labels[self.rows] != self.codes).astype(np.float64)
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


def read_answers(run: Path, sample: Sample) -> Answers:
    """Return the answers in ``reviews.jsonl`` to the rows of a sample."""
    history = History()
    for decision in read_lines(run / REVIEWS):
        history.add(decision)
    return collect(sample, history.audited())


def collect(sample: Sample, decisions: Mapping[Where, Decision]) -> Answers:
    """Return the answers up to the last answered row of a sample.

    Parameters
    ----------
    sample : Sample
        The sample.
    decisions : mapping
        The decision about each row that has one.
    """
    codes, last = [], 0
    known = {name: code for code, name in enumerate(sample.labels.classes)}
    for place, where in enumerate(sample.all_where(), 1):
        decision = decisions.get(where)
        last = last if decision is None else place
        if decision is None or decision.decision == "skip":
            codes.append(CANNOT_TELL)
        elif decision.decision == "none":
            codes.append(NO_CLASS)
        elif decision.label in known:
            codes.append(known[str(decision.label)])
        else:
            raise RunError(
                f"the audit of {where[0]!r} names {decision.label!r}, which is not a class of this run; fix or "
                f"remove its line in {REVIEWS}."
            )
    return Answers(sample, np.array(codes[:last], dtype=np.int64))


def measure(answers: Answers) -> tuple[AuditSummary, Recalibration | None]:
    """Return the results of an audit, and the recalibration of the confidence.

    Raises
    ------
    RunError
        If a stratum has too few answers.
    """
    if answers.missing:
        raise RunError(
            f"only {len(answers.codes)} rows are answered; expected {answers.missing} more; continue with "
            f"`pencil audit {answers.sample.run}`."
        )
    sample, labels = answers.sample, answers.sample.labels
    confidence = confidences(labels)
    given_probability = np.nan_to_num(labels.given_probability.astype(np.float64)).clip(0, 1)
    given_probability[labels.given_codes < 0] = 1.0  # without a given label, nothing can be wrong
    wrong = answers.differs(labels.corrected_codes)
    found = {
        "given_wrong": _estimate(answers, _without_none(answers, labels.given_codes), 1 - given_probability),
        "corrected_right": _estimate(answers, wrong, 1 - confidence).complement,
    }
    if sample.strata.changed.any():
        found["changes_right"] = _estimate(answers, wrong, 1 - confidence, sample.strata.changed).complement
    scaling = _recalibrate(answers, wrong, confidence)
    audit = AuditSummary(
        population=len(sample.population),
        rows=len(answers.codes),
        cannot_tell=int((answers.codes == CANNOT_TELL).sum()),
        no_class=int((answers.codes == NO_CLASS).sum()),
        confidence=None
        if scaling is None
        else AuditedConfidence(
            log_loss=scaling.loss_before, recalibrated_log_loss=scaling.loss_after, used=scaling.helps
        ),
        **{name: Interval.model_validate(fraction) for name, fraction in found.items()},
    )
    return audit, scaling


def _without_none(answers: Answers, given: np.ndarray) -> np.ndarray:
    """Return whether each given label is wrong; False for rows without one."""
    wrong = answers.differs(given)
    wrong[given[answers.rows] < 0] = 0.0
    return wrong


def _estimate(
    answers: Answers, outcome: np.ndarray, predicted: np.ndarray, strata: np.ndarray | None = None
) -> Fraction:
    """Return a fraction of all rows, or of the rows in some strata."""
    whole = answers.sample.strata
    chosen = np.ones(len(whole.sizes), dtype=bool) if strata is None else strata
    number = np.cumsum(chosen) - 1
    inside = chosen[answers.stratum]
    means = whole.means(predicted[answers.sample.population])
    return audited_fraction(
        outcome[inside],
        predicted[answers.rows][inside],
        number[answers.stratum[inside]],
        whole.sizes[chosen],
        means[chosen],
    )


def _recalibrate(answers: Answers, wrong: np.ndarray, confidence: np.ndarray) -> Recalibration | None:
    known = ~np.isnan(wrong)
    sizes = answers.sample.strata.sizes
    counts = np.bincount(answers.stratum[known], minlength=len(sizes))
    weights = (sizes / np.maximum(counts, 1))[answers.stratum]
    return recalibrate(confidence[answers.rows][known], 1 - wrong[known], weights[known])


def record(run: Path, answers: Answers) -> AuditSummary:
    """Compute the results and write them to the run; the caller holds its lock.

    The label table gets the column ``audited_confidence`` if recalibration helps; pinned labels keep their confidence.
    """
    audit, scaling = measure(answers)
    column = None
    if scaling is not None and scaling.helps:
        column = confidences(answers.sample.labels)
        population = answers.sample.population
        column[population] = scaling.scaling(column[population])
    write_audit(run, audit, column)
    return audit


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
    wrong = answers.differs(answers.sample.labels.corrected_codes)
    known = ~np.isnan(wrong)
    counts = np.bincount(answers.stratum[known], minlength=len(strata.sizes))
    rates = np.bincount(answers.stratum[known], wrong[known], len(strata.sizes)) / np.maximum(counts, 1)
    told = max(float(known.mean()), 1e-9)
    audit, _ = measure(answers)
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
