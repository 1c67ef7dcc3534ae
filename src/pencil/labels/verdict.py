"""The verdict: how far the corrected labels of a run can be trusted, without any clean labels.

It answers three questions, each with one number. Does the network know anything? Agreement with held-out labels above
chance. Has it memorised its labels? Agreement with training labels far above agreement with held-out labels. How many
labels become right, and how many wrong? The expected gain of the corrections, with an interval.
"""

from dataclasses import dataclass, field
from typing import Literal

from pencil.terminal import counted, percent

Level = Literal["reliable", "doubtful", "do not use the corrections"]
RELIABLE: Level = "reliable"
DOUBTFUL: Level = "doubtful"
DO_NOT_USE: Level = "do not use the corrections"

FEW_EPOCHS = 5
FEW_HELD_OUT = 40
"""With fewer epochs or held-out rows, there is too little to judge by."""
HARM = 0.005
"""An expected loss of right labels above this is a reason not to use the corrections."""
MEMORISED, VISIBLE = 0.6, 0.1
"""A network has memorised its labels if, of the labels that it would not predict, it repeats more than the first
fraction, and if training agreement is higher by more than the second. On 68 tuning runs this names all cross-entropy
runs on noisy photos and texts, and none of ``auto``."""


@dataclass(frozen=True)
class Gain:
    """The labels that become right minus those that become wrong, as a fraction of all labels, with an interval."""

    estimate: float
    low: float
    high: float


@dataclass(frozen=True)
class Facts:
    """The facts behind a verdict.

    Attributes
    ----------
    knows
        Whether held-out labels are predicted better than chance.
    held_out_rows, epochs
        How many held-out rows and epochs there were.
    agreement, train_agreement
        Agreement of the network with held-out labels and with training labels in the last epoch; None if unknown.
    changed
        Fraction of labels that changed.
    gain
        The expected gain of the corrections.
    halved_classes, kept_classes
        Names of classes that lost more than half of their rows, and of classes left as given because they were not
        learned.
    """

    knows: bool
    held_out_rows: int
    epochs: int
    agreement: float | None
    train_agreement: float | None
    changed: float
    gain: Gain
    halved_classes: tuple[str, ...] = ()
    kept_classes: tuple[str, ...] = ()

    @property
    def memorised(self) -> float | None:
        """Of the labels that the network would not predict, the fraction that it repeats for training rows."""
        if self.agreement is None or self.train_agreement is None:
            return None
        return max(0.0, self.train_agreement - self.agreement) / max(1 - self.agreement, 1e-9)


@dataclass(frozen=True)
class Verdict:
    """One of *reliable*, *doubtful* and *do not use the corrections*, with its reasons in plain words."""

    level: Level
    reasons: tuple[str, ...] = field(default_factory=tuple)


def decide(facts: Facts) -> Verdict:
    """Return the verdict; the worst reason decides.

    Reasons do not repeat the noise rate: it is reported beside the verdict, and an audit replaces it.
    """
    refusals = _refusals(facts)
    doubts = [*_doubts(facts), *([] if refusals else _risks(facts))]
    level = DO_NOT_USE if refusals else DOUBTFUL if doubts else RELIABLE
    return Verdict(level, (*refusals, *doubts) or (_praise(facts),))


def _refusals(facts: Facts) -> list[str]:
    if not facts.knows:
        predicted = "held-out labels" if facts.held_out_rows else "its labels"
        return [f"the network predicts {predicted} no better than chance, so it cannot judge labels"]
    found = []
    if _has_memorised(facts):
        found.append(
            f"the network memorised its labels: it agrees with {percent(facts.train_agreement)} of the training "
            f"labels and with {percent(facts.agreement)} of the held-out labels"
        )
    if facts.changed and facts.gain.estimate < -HARM:
        found.append(f"the corrections are expected to make labels worse: {_words(facts.gain)}")
    return found


def _has_memorised(facts: Facts) -> bool:
    if facts.memorised is None or facts.train_agreement is None or facts.agreement is None or not facts.held_out_rows:
        return False
    error = (facts.agreement * (1 - facts.agreement) / facts.held_out_rows) ** 0.5
    visible = max(VISIBLE, 3 * error)
    return facts.memorised > MEMORISED and facts.train_agreement - facts.agreement > visible


def _doubts(facts: Facts) -> list[str]:
    found = []
    if not facts.held_out_rows:
        found.append("no rows were held out, so nothing checks the network's judgement of its own training labels")
    elif facts.held_out_rows < FEW_HELD_OUT:
        held_out = counted(facts.held_out_rows, "row was", "rows were")
        found.append(f"only {held_out} held out (expected at least {FEW_HELD_OUT})")
    if facts.epochs < FEW_EPOCHS:
        epochs = counted(facts.epochs, "epoch")
        found.append(f"training ran for only {epochs} (expected at least {FEW_EPOCHS})")
    for names, what in ((facts.halved_classes, "lost more than half of its rows"),
                        (facts.kept_classes, "was not learned, and its rows are left as given")):  # fmt: skip
        found += [f"the class {name!r} {what}" for name in names]
    return found


def _risks(facts: Facts) -> list[str]:
    """Return why the corrections may do harm; without corrections to use there is no such risk."""
    if facts.changed and facts.gain.low <= 0:
        return [f"the corrections may make labels worse: {_words(facts.gain)}"]
    return []


def _praise(facts: Facts) -> str:
    known = facts.agreement
    agreement = "" if known is None else f", and {percent(known)} of the held-out labels are predicted"
    if not facts.changed:
        return f"no label changed: training cannot tell these labels from clean ones{agreement}"
    return f"the corrections are expected to make labels better: {_words(facts.gain)}{agreement}"


def _words(gain: Gain) -> str:
    points = (round(100 * one, 1) + 0.0 for one in (gain.estimate, gain.low, gain.high))  # + 0.0: never -0.0
    estimate, low, high = (f"{one:+.1f}" for one in points)
    return f"{estimate} points of right labels (between {low} and {high})"
