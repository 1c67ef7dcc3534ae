"""Early-learning regularisation (Liu, Niles-Weed, Razavian and Fernandez-Granda, NeurIPS 2020)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from pencil.data.examples import Batch
from pencil.data.given.given_labels import as_distribution
from pencil.labels.losses import cross_entropy, log_probs, row_dot
from pencil.methods.base import Epochs, Fraction, Method, NonNegative, Outputs, Phase, Task, Terms
from pencil.methods.schedules import AnySchedule, Cosine, Schedule, as_schedule

MARGIN = 1e-4
"""Predictions are clipped to this distance from 0 and 1, as in the authors' code: ``log(1 - <f, t>) >= log(1e-4)``."""


def clamped_probs(logits: Tensor) -> Tensor:
    """Return ``f = softmax(logits)``, kept ``MARGIN`` away from 0 and 1."""
    return log_probs(logits).exp().clamp(MARGIN, 1 - MARGIN)


def moved_targets(targets: Tensor, probs: Tensor, beta: float) -> Tensor:
    """``t <- beta * t + (1 - beta) * f``: a running mean of the clamped predictions, without gradient."""
    probs = probs.detach()
    return beta * targets + (1 - beta) * (probs / probs.sum(dim=1, keepdim=True)).to(targets.dtype)


def early_learning_loss(probs: Tensor, targets: Tensor) -> Tensor:
    """``mean log(1 - <f, t>)``, the regulariser: low where a clamped prediction agrees with earlier ones."""
    return torch.log1p(-row_dot(probs, targets)).mean()


def read_targets(targets: Tensor, given_probs: Tensor) -> Tensor:
    """Return targets scaled to sum to one; rows whose targets are still zero get the given label."""
    mass = targets.sum(dim=1, keepdim=True)
    return torch.where(mass > 0, targets / mass.clamp(min=torch.finfo(mass.dtype).tiny), given_probs)


@dataclass
class ElrState:
    """The running mean of the predictions of every row, (n, classes), initially zero; ELR+ has two, (2, n, classes)."""

    targets: Tensor


class Elr(Method):
    """Cross-entropy on the given labels, plus a term that keeps predictions near the predictions of early epochs.

    ``strength`` is the paper's lambda; it and ``beta`` have the values for CIFAR-10. Targets start at zero, so the
    regulariser is weak in the first epochs; labels are read from targets normalised to sum to one.
    """

    state: ElrState
    row_state: ClassVar = {"targets": 0}

    def __init__(
        self,
        *,
        epochs: Epochs = 60,
        lr: Schedule = Cosine(0.02),
        strength: NonNegative = 3.0,
        beta: Fraction = 0.7,
    ):
        self.epochs, self.strength, self.beta = epochs, strength, beta
        self.lr: AnySchedule = as_schedule(lr)

    def start(self, task: Task) -> tuple[Phase, ...]:
        self.given_labels = task.given_labels
        shape = len(task.given_labels), task.num_classes
        self.state = ElrState(torch.zeros(shape, device=task.device, dtype=task.dtype))
        return (Phase("train", self.epochs, self.loss, self.lr, after_step=self.update_targets),)

    def loss(self, outputs: Outputs, batch: Batch) -> Terms:
        """``CE + strength * mean log(1 - <f, t>)``; the new targets are carried to :meth:`update_targets`."""
        probs = clamped_probs(outputs.logits)
        targets = moved_targets(self.state.targets[batch.rows], probs, self.beta)
        classification = cross_entropy(outputs.logits, batch.given_labels)
        regularizer = early_learning_loss(probs, targets)
        parts = {"classification": classification.detach(), "early_learning": regularizer.detach()}
        return Terms(classification + self.strength * regularizer, parts, carry=targets)

    def update_targets(self, targets: Tensor, batch: Batch, _label_step: float) -> None:
        """Store the targets of these rows."""
        self.state.targets[batch.rows] = targets

    def label_probs(self, rows: Tensor | None = None) -> Tensor:
        """The targets, scaled to sum to one; a row without visits has its given label."""
        targets, given = self.state.targets, self.given_labels
        if rows is not None:
            targets, given = targets[rows], given[rows]
        return read_targets(targets, as_distribution(given, targets.shape[1]).to(targets))
