"""Early-learning regularisation (Liu, Niles-Weed, Razavian and Fernandez-Granda, NeurIPS 2020)."""

import torch
from torch import Tensor

from pencil.data.examples import Batch
from pencil.data.given import as_distribution
from pencil.labels.losses import cross_entropy, log_probs, row_dot
from pencil.methods.base import Epochs, Method, NonNegative, Phase, Share, Task, Terms
from pencil.methods.schedules import AnySchedule, Cosine, Schedule, as_schedule

MARGIN = 1e-4
"""Predictions stay this far from 0 and 1, as in the authors' code: so ``log(1 - <f, t>)`` is never below log(1e-4)."""


def clamped_probs(logits: Tensor) -> Tensor:
    return log_probs(logits).exp().clamp(MARGIN, 1 - MARGIN)


def moved_targets(targets: Tensor, logits: Tensor, beta: float) -> Tensor:
    """``t <- beta * t + (1 - beta) * f``: what the network has believed of late; no gradient flows."""
    probs = clamped_probs(logits.detach())
    return beta * targets + (1 - beta) * (probs / probs.sum(dim=1, keepdim=True)).to(targets.dtype)


def early_learning_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """``mean log(1 - <f, t>)``, the regulariser: the lower, the more the network agrees with itself."""
    return torch.log1p(-row_dot(clamped_probs(logits), targets)).mean()


class Elr(Method):
    """Cross-entropy on the given labels, held back from what the network believed before it memorised mistakes.

    ``strength`` is the paper's lambda; it and ``beta`` are those of CIFAR-10. Targets start at zero, so that the
    regulariser is weak in the first epochs; labels are read off them with that start divided out.
    """

    remembered = ("targets",)

    def __init__(
        self,
        *,
        epochs: Epochs = 60,
        lr: Schedule = Cosine(0.02),
        strength: NonNegative = 3.0,
        beta: Share = 0.7,
    ):
        self.epochs, self.strength, self.beta = epochs, strength, beta
        self.lr: AnySchedule = as_schedule(lr)

    def start(self, task: Task) -> tuple[Phase, ...]:
        self.given_probs = as_distribution(task.given_labels, task.num_classes).to(task.device, task.dtype)
        self.targets = torch.zeros_like(self.given_probs)
        return (Phase("train", self.epochs, self.loss, self.lr, after_step=self.remember),)

    def loss(self, logits: Tensor, batch: Batch) -> Terms:
        targets = moved_targets(self.targets[batch.rows], logits, self.beta)
        classification = cross_entropy(logits, batch.given_labels)
        regularizer = early_learning_loss(logits, targets)
        parts = {"classification": classification.detach(), "early_learning": regularizer.detach()}
        return Terms(classification + self.strength * regularizer, parts, carry=targets)

    def remember(self, carry: Tensor, batch: Batch, label_step: float) -> None:
        self.targets[batch.rows] = carry

    def label_probs(self, rows: Tensor | None = None) -> Tensor:
        """The targets, scaled to sum to one; a row that was never met reads as it was given."""
        rows = torch.arange(len(self.targets), device=self.targets.device) if rows is None else rows
        targets, given_probs = self.targets[rows], self.given_probs[rows]
        mass = targets.sum(dim=1, keepdim=True)
        return torch.where(mass > 0, targets / mass.clamp(min=torch.finfo(mass.dtype).tiny), given_probs)
