"""Generalised cross-entropy, plain and truncated (Zhang and Sabuncu 2018).

"Generalized cross entropy loss for training deep neural networks with noisy labels": a compromise between
cross-entropy, which learns fast but also learns mistakes, and mean absolute error, which is robust but learns slowly.
"""

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from pencil.data.examples import Batch
from pencil.data.given.given_labels import hard_labels
from pencil.labels.losses import log_probs, row_dot
from pencil.methods.base import Context, Epochs, Fraction, Method, Outputs, Phase, Task, Terms
from pencil.methods.schedules import AnySchedule, Schedule, StepDecay, as_schedule

Power = Annotated[float, Field(gt=0, le=1)]


def lq_losses(logits: Tensor, given_labels: Tensor, q: float) -> Tensor:
    """``(1 - p^q) / q`` for each row (section 3.2), where ``p`` is the probability of its given class.

    Cross-entropy as q -> 0, half the absolute error at q = 1. It is computed from ``log p``, so that small ``p`` and
    ``q`` do not lose precision.
    """
    log_f = log_probs(logits)
    if given_labels.ndim == 2:
        return row_dot(given_labels, -torch.expm1(q * log_f) / q)
    return -torch.expm1(q * log_f.gather(1, given_labels.unsqueeze(1))[:, 0]) / q


def lq_loss(logits: Tensor, given_labels: Tensor, q: float, kept: Tensor | None = None) -> Tensor:
    """The mean over the batch; rows that are not ``kept`` (weight 0, section 3.3) count as zero, not as missing."""
    losses = lq_losses(logits, given_labels, q)
    return (losses if kept is None else losses * kept).mean()


def confident(logits: Tensor, given_labels: Tensor, k: float) -> Tensor:
    """Return a mask: true if the given class has a probability above ``k`` (the truncated loss uses these rows)."""
    given = hard_labels(given_labels).unsqueeze(1)
    return log_probs(logits).gather(1, given)[:, 0].exp() > k


def is_due(epoch: int, epochs: int, first: float, every: float) -> bool:
    """Return whether rows are chosen before this epoch: at the fraction ``first`` of the phase, then every ``every``.

    Fractions stay valid when a budget stretches the phase; if two fall within an epoch, rows are chosen once.
    """

    def choices(start: int) -> int:  # number due by the start of this epoch; rounding errors must not delay one
        past = start / epochs - first + 1e-9
        return 0 if past < 0 else 1 + (math.floor(past / every) if every > 0 else start)

    return choices(epoch) > (choices(epoch - 1) if epoch else 0)


class Lq(Method):
    """One phase of the L_q loss, with the paper's schedule."""

    def __init__(self, *, q: Power = 0.7, epochs: Epochs = 120, lr: Schedule = StepDecay(0.01, at=(40, 80))):
        self.q, self.epochs = q, epochs
        self.lr: AnySchedule = as_schedule(lr)

    def start(self, task: Task) -> tuple[Phase, ...]:
        return (Phase("train", self.epochs, self.loss, self.lr),)

    def loss(self, outputs: Outputs, batch: Batch) -> Terms:
        """The mean L_q loss of the batch."""
        return Terms(lq_loss(outputs.logits, batch.given_labels, self.q))


@dataclass
class TruncatedLqState:
    """The rows that are trained on."""

    chosen: Tensor


class TruncatedLq(Method):
    """The truncated L_q loss by alternate convex search (Algorithm 1): choose rows, learn from them, choose again.

    Rows are chosen by the best network so far on the noisy validation rows. ``prune_from`` and ``prune_every`` are
    fractions of the training: epoch 40 and every 10 of 120, as in the paper.
    """

    state: TruncatedLqState
    row_state: ClassVar = {"chosen": 0}

    def __init__(
        self,
        *,
        q: Power = 0.7,
        k: Fraction = 0.5,
        epochs: Epochs = 120,
        lr: Schedule = StepDecay(0.01, at=(40, 80)),
        prune_from: Fraction = 1 / 3,
        prune_every: Fraction = 1 / 12,
    ):
        self.q, self.k, self.epochs = q, k, epochs
        self.prune_from, self.prune_every = prune_from, prune_every
        self.lr: AnySchedule = as_schedule(lr)

    def start(self, task: Task) -> tuple[Phase, ...]:
        self.given_labels, self.pinned = task.given_labels, task.layout.pinned
        self.state = TruncatedLqState(torch.ones(len(task.given_labels), dtype=torch.bool, device=task.device))
        return (Phase("train", self.epochs, self.loss, self.lr, before_epoch=self.prune),)

    def prune(self, epoch: int, epochs: int, context: Context) -> None:
        """Choose rows again if due."""
        if is_due(epoch, epochs, self.prune_from, self.prune_every):
            kept = confident(context.predict(best=True), self.given_labels, self.k)
            if self.pinned is not None:  # reviewed rows are always trained on
                kept |= self.pinned.to(kept.device)
            self.state.chosen = kept if kept.any() else torch.ones_like(kept)  # never an empty training set

    def loss(self, outputs: Outputs, batch: Batch) -> Terms:
        """The L_q loss of the chosen rows, as a mean over the batch."""
        return Terms(lq_loss(outputs.logits, batch.given_labels, self.q, self.state.chosen[batch.rows]))

    def metrics(self) -> dict[str, float]:
        return {"rows_kept": float(self.state.chosen.double().mean())}
