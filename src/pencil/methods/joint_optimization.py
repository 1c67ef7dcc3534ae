"""Joint optimisation of network and labels (Tanaka, Ikami, Yamasaki and Aizawa, CVPR 2018)."""

import math
from collections import deque
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from pencil.data.examples import Batch
from pencil.data.given import as_distribution
from pencil.labels.losses import cross_entropy, entropy_loss, log_probs
from pencil.methods.base import Context, Epochs, Method, NonNegative, Phase, Share, Task, Terms
from pencil.methods.schedules import AnySchedule, Cosine, Schedule, as_schedule


def prior_loss(logits: Tensor, prior_probs: Tensor) -> Tensor:
    """L_p: ``sum_j p_j log(p_j / s_j)`` with ``s`` the mean prediction of the batch.

    Without it all labels may end in one class, where they agree with the network at no cost.
    """
    mean_log_probs = log_probs(logits).logsumexp(dim=0) - math.log(len(logits))
    return (torch.xlogy(prior_probs, prior_probs) - prior_probs * mean_log_probs).sum()


def joint_loss(
    logits: Tensor, soft_labels: Tensor, *, beta: float, alpha: float = 0.0, prior_probs: Tensor | None = None
) -> Tensor:
    """Cross-entropy with the soft labels, ``+ alpha * L_p`` where there is a prior, ``+ beta * L_e``.

    The first term of the paper is KL(y || f), which differs by the entropy of the labels: no gradient of the network's.
    """
    loss = cross_entropy(logits, soft_labels) + beta * entropy_loss(logits)
    return loss if prior_probs is None else loss + alpha * prior_loss(logits, prior_probs)


class JointOptimization(Method):
    """Alternate between network and labels at a high learning rate, then train a new network on what the labels became.

    From the share ``update_from`` of the first phase on (epoch 70 of 200 in the paper), the label of a row is the mean
    of its predictions in the last ``window`` epochs, or in as many as there were. They are those of the training steps,
    so they cost nothing. ``alpha`` and ``beta`` are the paper's for symmetric noise on CIFAR-10. The paper also tells
    the method how frequent classes are; ``prior="uniform"`` (all alike) or ``"given"`` (as the labels have it) does so
    too. Without it, the setting in which PENCIL was compared, ``alpha`` has no effect.
    """

    remembered = ("soft_labels", "history")

    def __init__(
        self,
        *,
        joint_epochs: Epochs = 40,
        final_epochs: Epochs = 20,
        lr: Schedule = 0.05,  # type: ignore[assignment]
        final_lr: Schedule = Cosine(0.02),
        alpha: NonNegative = 1.2,
        beta: NonNegative = 0.8,
        prior: Literal["none", "uniform", "given"] = "none",
        update_from: Share = 0.35,
        window: Annotated[int, Field(ge=1)] = 10,
    ):
        self.joint_epochs, self.final_epochs = joint_epochs, final_epochs
        self.lr: AnySchedule = as_schedule(lr)
        self.final_lr: AnySchedule = as_schedule(final_lr)
        self.alpha, self.beta, self.prior = alpha, beta, prior
        self.update_from, self.window = update_from, window

    def start(self, task: Task) -> tuple[Phase, ...]:
        classes = task.num_classes
        self.soft_labels = as_distribution(task.given_labels, classes).to(task.device, task.dtype)
        uniform = self.soft_labels.new_full((classes,), 1 / classes)
        self.prior_probs = {"none": None, "uniform": uniform, "given": self.soft_labels.mean(dim=0)}[self.prior]
        self.history: deque[Tensor] = deque(maxlen=self.window)
        self.pinned = None if task.layout.pinned is None else task.layout.pinned.to(task.device).nonzero()[:, 0]
        return (
            Phase(
                "joint",
                self.joint_epochs,
                self.joint_loss,
                self.lr,
                before_epoch=self.begin_epoch,
                after_step=self.collect,
            ),
            Phase("final", self.final_epochs, self.final_loss, self.final_lr, on_start=self.relabel, fresh=True),
        )

    def begin_epoch(self, epoch: int, epochs: int, context: Context) -> None:
        if epoch >= self.update_from * epochs:
            self.relabel(context)
        self.history.append(self.soft_labels.clone())  # a row whose input cannot be read keeps its label

    def relabel(self, context: Context) -> None:
        """Soft labels: the mean prediction of each row over the window; of a pinned row, what it has always been."""
        if self.history:
            before, self.soft_labels = self.soft_labels, torch.stack(tuple(self.history)).mean(dim=0)
            if self.pinned is not None:
                self.soft_labels[self.pinned] = before[self.pinned]

    def collect(self, carry: Tensor, batch: Batch, label_step: float) -> None:
        self.history[-1][batch.rows] = carry

    def joint_loss(self, logits: Tensor, batch: Batch) -> Terms:
        soft_labels = self.soft_labels[batch.rows]
        loss = joint_loss(logits, soft_labels, beta=self.beta, alpha=self.alpha, prior_probs=self.prior_probs)
        return Terms(loss, carry=log_probs(logits.detach()).exp().to(self.soft_labels.dtype))

    def final_loss(self, logits: Tensor, batch: Batch) -> Terms:
        return Terms(cross_entropy(logits, self.soft_labels[batch.rows]))

    def label_probs(self, rows: Tensor | None = None) -> Tensor:
        return self.soft_labels if rows is None else self.soft_labels[rows]
