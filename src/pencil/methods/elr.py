"""Early-learning regularisation, ELR and ELR+ (Liu, Niles-Weed, Razavian and Fernandez-Granda, NeurIPS 2020)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from pencil.data.examples import Batch
from pencil.data.given import as_distribution
from pencil.labels.losses import cross_entropy, log_probs, row_dot
from pencil.methods.base import (
    Epochs,
    Fraction,
    Method,
    Mixing,
    NonNegative,
    Outputs,
    Phase,
    Requirements,
    Task,
    Terms,
    Views,
)
from pencil.methods.schedules import AnySchedule, Cosine, Schedule, as_schedule

MARGIN = 1e-4
"""Predictions stay this far from 0 and 1, as in the authors' code: so ``log(1 - <f, t>)`` is never below log(1e-4)."""


def clamped_probs(logits: Tensor) -> Tensor:
    """Return ``f = softmax(logits)``, kept ``MARGIN`` away from 0 and 1."""
    return log_probs(logits).exp().clamp(MARGIN, 1 - MARGIN)


def moved_targets(targets: Tensor, logits: Tensor, beta: float) -> Tensor:
    """``t <- beta * t + (1 - beta) * f``: a running mean of the predictions; no gradient flows."""
    probs = clamped_probs(logits.detach())
    return beta * targets + (1 - beta) * (probs / probs.sum(dim=1, keepdim=True)).to(targets.dtype)


def early_learning_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """``mean log(1 - <f, t>)``, the regulariser: low where a prediction agrees with the earlier ones."""
    return torch.log1p(-row_dot(clamped_probs(logits), targets)).mean()


@dataclass
class ElrState:
    """The running mean of the predictions of every row, zero at first."""

    targets: Tensor


class Elr(Method):
    """Cross-entropy on the given labels plus a term that keeps predictions near those of the first epochs.

    ``strength`` is the paper's lambda; it and ``beta`` are the values for CIFAR-10. Targets start at zero, so that the
    regulariser is weak in the first epochs; labels are read off the targets with that start divided out.
    """

    state: ElrState

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
        self.given_probs = as_distribution(task.given_labels, task.num_classes).to(task.device, task.dtype)
        self.state = ElrState(torch.zeros_like(self.given_probs))
        return (Phase("train", self.epochs, self.loss, self.lr, after_step=self.update_targets),)

    def loss(self, outputs: Outputs, batch: Batch) -> Terms:
        """``CE + strength * mean log(1 - <f, t>)``; the new targets are carried to :meth:`update_targets`."""
        targets = moved_targets(self.state.targets[batch.rows], outputs.logits, self.beta)
        classification = cross_entropy(outputs.logits, batch.given_labels)
        regularizer = early_learning_loss(outputs.logits, targets)
        parts = {"classification": classification.detach(), "early_learning": regularizer.detach()}
        return Terms(classification + self.strength * regularizer, parts, carry=targets)

    def update_targets(self, targets: Tensor, batch: Batch, _label_step: float) -> None:
        """Store the targets of these rows."""
        self.state.targets[batch.rows] = targets

    def label_probs(self, rows: Tensor | None = None) -> Tensor:
        """The targets, scaled to sum to one; a row that was never visited has its given label."""
        rows = torch.arange(len(self.given_probs), device=self.given_probs.device) if rows is None else rows
        return read_targets(self.state.targets[rows], self.given_probs[rows])


def read_targets(targets: Tensor, given_probs: Tensor) -> Tensor:
    """Return targets scaled to sum to one; where they are still zero, the given label."""
    mass = targets.sum(dim=1, keepdim=True)
    return torch.where(mass > 0, targets / mass.clamp(min=torch.finfo(mass.dtype).tiny), given_probs)


def mixed_elr_loss(
    logits: Tensor, given_probs: Tensor, targets: Tensor, mixing: Mixing
) -> tuple[Tensor, Tensor]:
    """Return cross-entropy and regulariser of inputs that were mixed: labels and targets are mixed alike."""
    return cross_entropy(logits, mixing(given_probs)), early_learning_loss(logits, mixing(targets))


@dataclass
class ElrPlusState:
    """The targets of both networks (2, n, classes), zero at first."""

    targets: Tensor


class ElrPlus(Method):
    """Two networks, each trained on mixed inputs with the targets that the average of the other one predicts.

    The published method is evaluated as the mean of both averaged networks; here the first is kept. The averages have
    a memory of one epoch. Vectors and features are mixed like images.

    Parameters
    ----------
    epochs, lr
        Length of the phase, and its learning rate.
    strength, beta
        Those of :class:`Elr`.
    mixup
        The parameter alpha of mixup; 0 for none.
    """

    requirements = Requirements(networks=2, ema=True, ema_logits=True)
    state: ElrPlusState

    def __init__(
        self,
        *,
        epochs: Epochs = 60,
        lr: Schedule = Cosine(0.02),
        strength: NonNegative = 3.0,
        beta: Fraction = 0.7,
        mixup: NonNegative = 1.0,
    ):
        self.epochs, self.strength, self.beta, self.mixup = epochs, strength, beta, mixup
        self.lr: AnySchedule = as_schedule(lr)

    def start(self, task: Task) -> tuple[Phase, ...]:
        self.given_probs = as_distribution(task.given_labels, task.num_classes).to(task.device, task.dtype)
        self.state = ElrPlusState(torch.zeros_like(self.given_probs).repeat(2, 1, 1))
        views = Views(mixup=self.mixup)
        return (Phase("train", self.epochs, self.loss, self.lr, after_step=self.update_targets, views=views),)

    def loss(self, outputs: Outputs, batch: Batch) -> Terms:
        """The sum of both networks' losses; the new targets are carried to :meth:`update_targets`."""
        assert outputs.ema_logits is not None
        (second,), (peer,) = outputs.others, outputs.ema_others
        given_probs, mixings = self.given_probs[batch.rows], outputs.mixings or (None, None)
        losses, moved = list[Tensor](), list[Tensor]()
        for own, other, targets, mixing in zip(
            (outputs.logits, second), (peer, outputs.ema_logits), self.state.targets, mixings, strict=True
        ):
            moved.append(moved_targets(targets[batch.rows], other, self.beta))
            if mixing is None:
                classification, regularizer = cross_entropy(own, given_probs), early_learning_loss(own, moved[-1])
            else:
                classification, regularizer = mixed_elr_loss(own, given_probs, moved[-1], mixing)
            losses += [classification, regularizer]
        parts = dict(zip(("first", "first_early_learning", "second", "second_early_learning"), losses, strict=True))
        loss = losses[0] + losses[2] + self.strength * (losses[1] + losses[3])
        return Terms(loss, {name: part.detach() for name, part in parts.items()}, carry=torch.stack(moved))

    def update_targets(self, targets: Tensor, batch: Batch, _label_step: float) -> None:
        """Store both networks' targets of these rows."""
        self.state.targets[:, batch.rows] = targets

    def label_probs(self, rows: Tensor | None = None) -> Tensor:
        """The mean of both networks' targets, scaled to sum to one; a row that was never visited has its given label."""
        rows = torch.arange(len(self.given_probs), device=self.given_probs.device) if rows is None else rows
        return read_targets(self.state.targets[:, rows].mean(dim=0), self.given_probs[rows])
