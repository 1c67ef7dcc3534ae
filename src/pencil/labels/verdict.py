"""The verdict: how far the corrected labels of a run can be trusted, without any clean labels."""

from dataclasses import dataclass, field
from typing import Literal

Level = Literal["reliable", "doubtful", "do not use the corrections"]
RELIABLE: Level = "reliable"
DOUBTFUL: Level = "doubtful"
DO_NOT_USE: Level = "do not use the corrections"

FEW_EPOCHS = 5
FEW_HELD_OUT = 40
WIDE = 0.35
"""With a wider interval of the noise rate, it is unclear whether labels or network are wrong."""
FAR_ABOVE = 0.18
"""If the upper end of the interval exceeds the estimate by this much, confidences may be too high by as much.

On tuning draws 7 of 10 such runs had a calibration error above 0.08, and 6 of 57 others."""
GAP = 0.03
"""If the noise rates of training and held-out rows differ by more than this, they contradict each other."""
ABOVE_NETWORK = 1.15
"""A noise rate this many times the highest rate that the network itself supports is uncertain.

2 of 182 runs exceeded it: one had made labels worse (from 98.1 to 95.4 % right), one better."""
MISMATCH = 0.04
"""If averages over training and held-out rows differ by more than this, the two were not judged alike."""
HARM, DROP = 0.005, 0.05
"""An expected loss of right labels, or a drop of the held-out score, counts above this."""
SIGNIFICANT = 3.0
SURE_FRACTION = 3
"""If less than one in this many changes is certainly needed, the changes may make labels worse."""


@dataclass(frozen=True)
class Facts:
    """The facts behind a verdict.

    Attributes
    ----------
    knows
        Whether held-out labels are predicted better than chance.
    held_out_rows, epochs
        How many held-out rows and epochs there were.
    score, best_score, score_name
        Agreement with held-out labels (mAP for multi-label data) at the end and at the best epoch; None without
        held-out rows.
    rate, low, high, ceiling
        Estimated noise rate, its interval, and the fraction of held-out labels that the network disagrees with.
    expected_before, expected_after
        Fraction of right labels before and after correction, according to the posterior of the training dynamics.
    changed
        Fraction of labels that changed.
    mismatch
        Distance between averages over training and held-out rows.
    gap
        How far the noise rate seen in training exceeds what held-out rows allow.
    network_high
        Upper end of the noise rate from the predictions of held-out labels alone, by the network that last set the
        labels; None if the method does not estimate it.
    halved_classes, kept_classes
        Names of classes that lost more than half of their rows, and of classes left as given because they were not
        learned.
    """

    knows: bool
    held_out_rows: int
    epochs: int
    score: float | None
    best_score: float | None
    rate: float
    low: float
    high: float
    ceiling: float
    expected_before: float
    expected_after: float
    changed: float
    mismatch: float
    halved_classes: tuple[str, ...] = ()
    kept_classes: tuple[str, ...] = ()
    gap: float = 0.0
    network_high: float | None = None
    score_name: str = "agreement with"


@dataclass(frozen=True)
class Verdict:
    """One of *reliable*, *doubtful* and *do not use the corrections*, with its reasons in plain words."""

    level: Level
    reasons: tuple[str, ...] = field(default_factory=tuple)


def decide(facts: Facts) -> Verdict:
    """Return the verdict; the worst reason decides.

    Reasons do not repeat the noise rate: it is reported beside the verdict, and an audit replaces it.
    """
    refusals, doubts = _refusals(facts), _doubts(facts)
    level = DO_NOT_USE if refusals else DOUBTFUL if doubts else RELIABLE
    return Verdict(level, (*refusals, *doubts) or (_praise(facts),))


def _refusals(facts: Facts) -> tuple[str, ...]:
    if not facts.knows:
        return ("the network predicts held-out labels no better than chance, so it cannot judge labels",)
    found = []
    if facts.expected_after < facts.expected_before - HARM:
        found.append(
            "training suggests that fewer labels are right after correction than before: by "
            f"{_percent(facts.expected_before - facts.expected_after)} of all labels"
        )
    if facts.changed > facts.ceiling:
        found.append(
            f"{_percent(facts.changed)} of the labels changed, but the network disagrees with at most "
            f"{_percent(facts.ceiling)} of the held-out labels"
        )
    if _fall(facts) > 2 * DROP:
        found.append(_fallen(facts))
    return tuple(found)


def _doubts(facts: Facts) -> tuple[str, ...]:
    found = [*_too_little_observed(facts), *_unsure_rate(facts), *_too_many_changes(facts)]
    if facts.mismatch > MISMATCH:
        found.append("training rows and held-out rows disagree: the network memorised its labels")
    if DROP < _fall(facts) <= 2 * DROP:
        found.append(_fallen(facts))
    for names, what in ((facts.halved_classes, "lost more than half of its rows"),
                        (facts.kept_classes, "was not learned, and its rows are left as given")):  # fmt: skip
        found += [f"the class {name!r} {what}" for name in names]
    return tuple(found)


def _too_little_observed(facts: Facts) -> list[str]:
    found = []
    if not facts.held_out_rows:
        found.append("no rows were held out, so nothing checks the network's judgement of its own training labels")
    elif facts.held_out_rows < FEW_HELD_OUT:
        found.append(f"only {facts.held_out_rows} rows were held out (expected at least {FEW_HELD_OUT})")
    if facts.epochs < FEW_EPOCHS:
        found.append(f"training ran for only {facts.epochs} epochs (expected at least {FEW_EPOCHS})")
    return found


def _unsure_rate(facts: Facts) -> list[str]:
    """Doubts about the noise rate: its interval, and other evidence that contradicts it."""
    found, limit = [], facts.network_high
    if facts.high - facts.low > WIDE:
        found.append(f"the interval of the noise rate is wider than {100 * WIDE:.0f} points: it is too uncertain")
    elif facts.high - facts.rate >= FAR_ABOVE:
        found.append(
            f"the interval of the noise rate ends {100 * FAR_ABOVE:.0f} points or more above the estimate: confidences "
            "may be too high"
        )
    if facts.gap > GAP:
        found.append(
            "training shows clearly more wrong labels than held-out rows: either the inputs explain the mistakes, as "
            "with human annotators, or classes overlap"
        )
    if limit is not None and facts.changed > HARM and facts.rate > ABOVE_NETWORK * limit:
        found.append(
            "the noise rate seen in training is higher than the network's predictions for held-out labels support: "
            "it may be too high"
        )
    return found


def _too_many_changes(facts: Facts) -> list[str]:
    """Doubts about the fraction of labels that changed, compared with the interval of the noise rate.

    A network that disagrees with no more held-out labels than may be wrong is hardly ever wrong itself. Its changes are
    then needed, however few rows the interval is based on.
    """
    changed = f"{_percent(facts.changed)} of the labels changed"
    if facts.high < facts.changed <= facts.ceiling:
        return [f"{changed}, which is above the interval of the noise rate: some changes are mistakes"]
    weak = facts.score is None or 1 - facts.score > facts.high
    if weak and facts.changed > HARM and facts.low < facts.changed / SURE_FRACTION:
        return [f"{changed}, but the interval of the noise rate starts far below that: many changes may not be needed"]
    return []


def _fall(facts: Facts) -> float:
    """How far the held-out score has fallen since its best epoch, if the drop is significant."""
    if facts.score is None or facts.best_score is None or not facts.held_out_rows:
        return 0.0
    fall = facts.best_score - facts.score
    error = (facts.best_score * (1 - facts.best_score) / facts.held_out_rows) ** 0.5
    return float(fall) if fall > SIGNIFICANT * error else 0.0


def _fallen(facts: Facts) -> str:
    assert facts.best_score is not None and facts.score is not None
    return (
        f"{facts.score_name} held-out labels fell from {_percent(facts.best_score)} at the best epoch to "
        f"{_percent(facts.score)}: the network got worse"
    )


def _praise(facts: Facts) -> str:
    score = "" if facts.score is None else f"; its {facts.score_name} the held-out labels is {_percent(facts.score)}"
    return f"training and held-out rows agree about the network's knowledge{score}"


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.1f} %"
