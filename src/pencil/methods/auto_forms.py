"""The differences of :class:`pencil.methods.Auto` between single-label and multi-label data.

A form defines the noise model of its labels, their posterior and their losses. When to end a phase, what to undo and
when to stop is the same for both; :mod:`pencil.methods.auto` decides it.
"""

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from pencil.data.given.given_labels import hard_labels, has_tie
from pencil.labels.entry_judging import ranks_rows
from pencil.labels.entry_noise import (
    EntryNoise,
    entry_agreement,
    entry_log_likelihoods,
    fit_entry_noise,
    remaining_entry_trust,
    remaining_errors,
)
from pencil.labels.forms import label_form
from pencil.labels.judging import Judgement
from pencil.labels.losses import at_least_fp32, cross_entropy, forward_kl, inverse_kl
from pencil.labels.multilabel_losses import forward_binary_kl, inverse_binary_kl
from pencil.labels.noise_model import (
    SIGNIFICANT,
    NoiseModel,
    calibrated,
    disagreement_of_surest,
    fit_noise,
    is_chance,
    log_likelihoods,
    log_rarity,
    noise_shape,
    posterior,
    remaining_trust,
)
from pencil.labels.protocol import Labels
from pencil.methods.base import Task, Terms
from pencil.methods.elr import early_learning_loss, moved_targets

ELR_BETA = 0.7
"""ELR's beta: the weight of earlier predictions in the running mean."""
WORTH_CORRECTING = 1 / 2
"""Labels are worth correcting if at most this fraction of the wrong entries remains under the posterior."""

HeldOut = tuple[Tensor, Tensor]
"""Logits and (noisy) given labels of held-out rows."""


class AutoForm(Protocol):
    """The part of ``auto`` that depends on the form of labels. ``noise`` is the noise model that the form fits.

    With fewer epochs than ``min_visits``, labels are judged by the predictions of the last network instead of all
    epochs. The learning rate falls after the fraction ``hold`` of the budget. From the fraction ``correct_from`` on,
    the backbone phase ends as soon as labels are worth correcting. The memory of averaged weights is one epoch, or the
    fraction ``ema_memory`` of the budget if that is less. ``dropout`` says whether a perceptron trains with dropout.
    """

    min_visits: ClassVar[int]
    hold: ClassVar[float]
    ema_memory: ClassVar[float]
    dropout: ClassVar[bool]
    correct_from: ClassVar[float]

    def store(self, given_labels: Tensor, top_k: int | None) -> Labels:
        """Return a new store for these labels."""

    def backbone_terms(
        self, logits: Tensor, given_labels: Tensor, stored_probs: Tensor, epochs: int, share: float
    ) -> Terms:
        """Return the loss on the given labels; ``carry`` is what the label store keeps for these rows (None: nothing).

        ``stored_probs`` are the probabilities in the store, after ``epochs`` epochs, and ``share`` is
        :meth:`early_learning_share`.
        """

    def early_learning_share(self, held_out: HeldOut) -> float:
        """Return the fraction of its largest weight that ELR's regulariser has in the next epoch."""

    def divergence(self, logits: Tensor, label_logits: Tensor, given_labels: Tensor, direction: str) -> Tensor:
        """Return the "forward" or "inverse" KL divergence between labels and predictions."""

    def as_logits(self, probs: Tensor, given_labels: Tensor) -> Tensor:
        """Return the label logits of these label distributions."""

    def is_chance(self, held_out: HeldOut) -> bool:
        """Return whether held-out labels are predicted no better than chance."""

    def is_worth_correcting(self, held_out: HeldOut, progress: float) -> bool:
        """Return whether setting labels to their posterior improves them enough that training on them pays off.

        ``progress`` is the gain in the likelihood of held-out labels in the last epochs, in standard errors.
        """

    def log_likelihoods(self, held_out: HeldOut, noise: Any = None) -> Tensor:
        """Return the log-probability of each row's labels, under calibrated predictions of given or true labels."""

    def gains(self, now: HeldOut, before: Tensor) -> Tensor:
        """Return how much better each row's label is predicted now than by the earlier logits ``before``."""

    def fit_noise(self, logits: Tensor, given_labels: Tensor, held_out: HeldOut | None) -> Any:
        """Return the noise model, from the predictions for training rows and held-out rows."""

    def refit(self, noise: Any, held_out: HeldOut) -> Any:
        """Return the noise model for the current network."""

    def remaining_trust(self, noise: Any, held_out: HeldOut, agreement: float) -> float:
        """Return the weight of a given label that predictions do not yet contain, given their agreement with it."""

    def has_label(self, given_labels: Tensor) -> Tensor:
        """Return which rows have a given label."""

    def agreement(self, logits: Tensor, given_labels: Tensor) -> float:
        """Return the fraction of predictions that agree with given labels."""

    def posterior(self, noise: Any, logits: Tensor, given_labels: Tensor, trust: float) -> Tensor:
        """Return the label logits of the posterior, given predictions and labels."""

    def to_probs(self, posterior: Tensor) -> Tensor:
        """Return the probabilities of the result of :meth:`posterior`."""

    def noise_of(self, judgement: Judgement) -> Any:
        """Return the noise model of a judgement."""

    def describe(self, noise: Any) -> str:
        """Describe the calibration of the network; the noise rate is left out, because it may still change."""

    def calibration(self, noise: Any) -> dict[str, float]:
        """Return the calibration parameters of the network, for the metrics."""

    def findings(self, noise: Any) -> dict[str, Any]:
        """Return the noise model as plain values, for the summary."""


def relative_targets(targets: Tensor, frequency: Tensor) -> Tensor:
    """Return ELR's targets divided by the class frequencies, rescaled to their previous sum.

    A prediction that only follows the frequencies becomes uniform, and the regulariser does not hold on to it.
    """
    relative = targets / frequency.to(targets)
    return relative * (targets.sum(dim=1, keepdim=True) / relative.sum(dim=1, keepdim=True))


@dataclass(frozen=True)
class SingleLabelForm:
    """Softmax: every example has exactly one class.

    Parameters
    ----------
    task
        The job, with the given labels of all training rows.
    early_learning
        Largest weight of ELR's regulariser in the backbone phase.
    """

    min_visits: ClassVar[int] = 0
    hold: ClassVar[float] = 0.0
    ema_memory: ClassVar[float] = 1.0
    dropout: ClassVar[bool] = True
    correct_from: ClassVar[float] = 1.0
    task: Task
    early_learning: float
    rarity: Tensor = field(init=False)
    frequency: Tensor = field(init=False)

    def __post_init__(self) -> None:
        given = self.task.given_labels
        counts = hard_labels(given)[~has_tie(given)].bincount(minlength=self.task.num_classes).double()
        object.__setattr__(self, "frequency", (counts + 1) / (counts + 1).sum())
        object.__setattr__(self, "rarity", log_rarity(given, self.task.num_classes))

    def store(self, given_labels: Tensor, top_k: int | None) -> Labels:
        task = self.task
        return label_form(False).store(
            given_labels, task.num_classes, top_k=top_k, device=task.device, dtype=task.dtype
        )

    def backbone_terms(
        self, logits: Tensor, given_labels: Tensor, stored_probs: Tensor, epochs: int, share: float
    ) -> Terms:
        """Eq. 1 on the given labels, plus ELR's regulariser with its current share.

        Until labels are corrected, the label store holds ELR's targets, scaled to sum to one. The targets start at zero
        and every epoch visits every row, so after k epochs their sum is ``1 - beta ** k``. The regulariser gets them
        relative to the class frequencies: a network that has learned only the frequencies, as all networks do at first
        if classes are rare, has not learned anything worth keeping.
        """
        targets = moved_targets(stored_probs * (1 - ELR_BETA**epochs), logits, ELR_BETA)
        classification = cross_entropy(logits, given_labels)
        regularizer = early_learning_loss(logits, relative_targets(targets, self.frequency))
        parts = {"classification": classification.detach(), "early_learning": regularizer.detach()}
        return Terms(classification + share * self.early_learning * regularizer, parts, carry=targets)

    def divergence(self, logits: Tensor, label_logits: Tensor, given_labels: Tensor, direction: str) -> Tensor:
        return (forward_kl if direction == "forward" else inverse_kl)(logits, label_logits)

    def as_logits(self, probs: Tensor, given_labels: Tensor) -> Tensor:
        """Return logits whose softmax is ``probs``, scaled to sum to one."""
        return (probs / probs.sum(dim=1, keepdim=True)).clamp_min(torch.finfo(probs.dtype).tiny).log()

    def is_chance(self, held_out: HeldOut) -> bool:
        return is_chance(held_out[0].argmax(dim=1), hard_labels(held_out[1]))

    def is_worth_correcting(self, held_out: HeldOut, progress: float) -> bool:
        return True

    def early_learning_share(self, held_out: HeldOut) -> float:
        """The fraction of the disagreement with held-out labels that is noise; the rest is the network's own mistakes.

        The regulariser makes predictions confident. A network with more mistakes than the labels would become confident
        in its own mistakes, and right labels would look wrong.
        """
        logits, given = held_out[0], hard_labels(held_out[1])
        wrong = float((logits.argmax(dim=1) != given).double().mean())
        return min(1.0, max(0.0, disagreement_of_surest(logits, given)) / wrong) if wrong else 0.0

    def log_likelihoods(self, held_out: HeldOut, noise: NoiseModel | None = None) -> Tensor:
        transition = None if noise is None else noise.transition
        return log_likelihoods(held_out[0], hard_labels(held_out[1]), transition)

    def gains(self, now: HeldOut, before: Tensor) -> Tensor:
        given = hard_labels(now[1])
        right, right_before = ((logits.argmax(dim=1) == given).double() for logits in (now[0], before))
        return right - right_before

    def fit_noise(self, logits: Tensor, given_labels: Tensor, held_out: HeldOut | None) -> NoiseModel:
        given = hard_labels(given_labels)
        fitted_to = held_out or (logits.cpu(), given.cpu())
        return fit_noise(fitted_to[0], hard_labels(fitted_to[1]), noise_shape(logits, given))

    def refit(self, noise: NoiseModel, held_out: HeldOut) -> NoiseModel:
        return calibrated(noise, held_out[0], hard_labels(held_out[1]))

    def remaining_trust(self, noise: NoiseModel, held_out: HeldOut, agreement: float) -> float:
        return remaining_trust(held_out[0], hard_labels(held_out[1]), noise, agreement)

    def has_label(self, given_labels: Tensor) -> Tensor:
        """All rows except distributions with a tie for the largest probability."""
        return ~has_tie(given_labels)

    def agreement(self, logits: Tensor, given_labels: Tensor) -> float:
        return float((logits.argmax(dim=1) == hard_labels(given_labels)).double().mean())

    def posterior(self, noise: NoiseModel, logits: Tensor, given_labels: Tensor, trust: float) -> Tensor:
        return posterior(at_least_fp32(logits), given_labels, noise, trust, self.rarity)

    def to_probs(self, posterior: Tensor) -> Tensor:
        return posterior.exp()  # the posterior is in log-probabilities

    def noise_of(self, judgement: Judgement) -> NoiseModel:
        return judgement.noise

    def describe(self, noise: NoiseModel) -> str:
        return f"network calibrated with temperature {noise.temperature:.2f}"

    def calibration(self, noise: NoiseModel) -> dict[str, float]:
        return {"temperature": noise.temperature}

    def findings(self, noise: NoiseModel) -> dict[str, Any]:
        return {"transition": noise.transition.tolist()}


@dataclass(frozen=True)
class MultiLabelForm:
    """Sigmoid: each class of an example is present or absent independently. Unknown entries are never trained on.

    The backbone phase is plain binary cross-entropy. ELR's regulariser would keep a class that the network has not
    learned yet absent, because the first predictions reflect what is true of most rows.
    """

    min_visits: ClassVar[int] = 5  # with fewer, visits from before the network has seen all rows weigh too much
    hold: ClassVar[float] = 0.75  # small and rare objects are learned late, at a high rate
    ema_memory: ClassVar[float] = 1 / 40  # a tenth of the decay period of the rate: an average lags behind
    dropout: ClassVar[bool] = False  # with dropout a perceptron learned less in short budgets
    correct_from: ClassVar[float] = 0.6
    task: Task

    def store(self, given_labels: Tensor, top_k: int | None) -> Labels:
        task = self.task
        return label_form(True).store(given_labels, task.num_classes, top_k=top_k, device=task.device, dtype=task.dtype)

    def backbone_terms(
        self, logits: Tensor, given_labels: Tensor, stored_probs: Tensor, epochs: int, share: float
    ) -> Terms:
        """Eq. 1 on the given labels of every class."""
        return Terms(label_form(True).given_loss(logits, given_labels))

    def early_learning_share(self, held_out: HeldOut) -> float:
        return 0.0  # this form has no such term

    def divergence(self, logits: Tensor, label_logits: Tensor, given_labels: Tensor, direction: str) -> Tensor:
        divergence = forward_binary_kl if direction == "forward" else inverse_binary_kl
        return divergence(logits, label_logits, ~given_labels.isnan()) / logits.shape[1]

    def as_logits(self, probs: Tensor, given_labels: Tensor) -> Tensor:
        """Return logits whose sigmoid is ``probs``; unknown entries stay at one half."""
        return probs.logit(eps=torch.finfo(torch.float32).eps).masked_fill(given_labels.isnan(), 0.0)

    def is_chance(self, held_out: HeldOut) -> bool:
        return not ranks_rows(*held_out)

    def is_worth_correcting(self, held_out: HeldOut, progress: float) -> bool:
        """A network that still learns what classes look like learns faster from the given labels."""
        learning = progress > SIGNIFICANT
        return not learning and remaining_errors(*held_out, fit_entry_noise(*held_out)) <= WORTH_CORRECTING

    def log_likelihoods(self, held_out: HeldOut, noise: EntryNoise | None = None) -> Tensor:
        return entry_log_likelihoods(*held_out, fit_entry_noise(*held_out) if noise is None else noise)

    def gains(self, now: HeldOut, before: Tensor) -> Tensor:
        return self.log_likelihoods(now) - self.log_likelihoods((before, now[1]))

    def fit_noise(self, logits: Tensor, given_labels: Tensor, held_out: HeldOut | None) -> EntryNoise:
        return fit_entry_noise(*(held_out or (logits, given_labels)))

    def refit(self, noise: EntryNoise, held_out: HeldOut) -> EntryNoise:
        return fit_entry_noise(*held_out)

    def remaining_trust(self, noise: EntryNoise, held_out: HeldOut, agreement: float) -> float:
        return remaining_entry_trust(*held_out, noise, agreement)

    def has_label(self, given_labels: Tensor) -> Tensor:
        """All rows; unknown entries are ignored one by one."""
        return torch.ones(len(given_labels), dtype=torch.bool, device=given_labels.device)

    def agreement(self, logits: Tensor, given_labels: Tensor) -> float:
        return entry_agreement(logits, given_labels)

    def posterior(self, noise: EntryNoise, logits: Tensor, given_labels: Tensor, trust: float) -> Tensor:
        log_odds = noise.posterior(at_least_fp32(logits), given_labels.to(at_least_fp32(logits)), trust)
        return log_odds.masked_fill(given_labels.isnan(), 0.0)

    def to_probs(self, posterior: Tensor) -> Tensor:
        return posterior.sigmoid()

    def noise_of(self, judgement: Judgement) -> EntryNoise:
        assert judgement.entry_noise is not None
        return judgement.entry_noise

    def describe(self, noise: EntryNoise) -> str:
        return f"network calibrated with sharpness {noise.sharpness:.2f}"

    def calibration(self, noise: EntryNoise) -> dict[str, float]:
        return {"sharpness": noise.sharpness, "shift": float(noise.shift.mean())}

    def findings(self, noise: EntryNoise) -> dict[str, Any]:
        return {
            "false_positives": noise.false_positives.tolist(),
            "false_negatives": noise.false_negatives.tolist(),
        }


def auto_form(task: Task, early_learning: float) -> AutoForm:
    """Return the form of the labels of a task."""
    return MultiLabelForm(task) if task.multilabel else SingleLabelForm(task, early_learning)


def z_score(gain: Tensor) -> float:
    """Return the mean gain in standard errors; infinite if all rows gain the same."""
    mean, error = float(gain.double().mean()), float(gain.double().std(correction=0) / len(gain) ** 0.5)
    return mean / error if error else mean * math.inf if mean else 0.0
