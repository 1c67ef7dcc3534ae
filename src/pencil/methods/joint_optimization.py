"""Joint optimisation of network and labels (Tanaka, Ikami, Yamasaki and Aizawa, CVPR 2018)."""

import math
from collections import deque
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from pencil.data.examples import Batch
from pencil.data.given.given_labels import as_distribution
from pencil.labels.losses import cross_entropy, entropy_loss, log_probs
from pencil.methods.base import Context, Epochs, Fraction, Method, NonNegative, Outputs, Phase, Task, Terms
from pencil.methods.schedules import AnySchedule, Cosine, Schedule, as_schedule


def prior_loss(logits: Tensor, prior_probs: Tensor) -> Tensor:
    """L_p: ``sum_j p_j log(p_j / s_j)`` with ``s`` the mean prediction of the batch.

    Without it all labels may collapse into one class, on which labels and network agree at no cost.
    """
    mean_log_probs = log_probs(logits).logsumexp(dim=0) - math.log(len(logits))
    return (torch.xlogy(prior_probs, prior_probs) - prior_probs * mean_log_probs).sum()


def joint_loss(
    logits: Tensor, soft_labels: Tensor, *, beta: float, alpha: float = 0.0, prior_probs: Tensor | None = None
) -> Tensor:
    """Cross-entropy with the soft labels, ``+ alpha * L_p`` if there is a prior, ``+ beta * L_e``.

    The first term in the paper is KL(y || f), which differs only by the entropy of the labels, a constant for the
    network.
    """
    loss = cross_entropy(logits, soft_labels) + beta * entropy_loss(logits)
    return loss if prior_probs is None else loss + alpha * prior_loss(logits, prior_probs)


@dataclass
class JointOptimizationState:
    """Soft labels of all rows, and the predictions of the last epochs, which are averaged to give the labels."""

    soft_labels: Tensor
    history: deque[Tensor]


class JointOptimization(Method):
    """Alternate between network and labels at a high learning rate, then train a new network on the final labels.

    From the fraction ``update_from`` of the first phase on (epoch 70 of 200 in the paper), the label of a row is the
    mean of its predictions in the last ``window`` epochs, or in all epochs if there are fewer. These predictions come
    from the training steps, at no extra cost. ``alpha`` and ``beta`` are the paper's values for symmetric noise on
    CIFAR-10. The paper also gives the method the class frequencies: ``prior="uniform"`` (all equal) or ``"given"``
    (frequencies of the given labels). With ``"none"``, the setting in which PENCIL was compared, ``alpha`` has no
    effect.
    """

    state: JointOptimizationState
    row_state: ClassVar = {"soft_labels": 0, "history": 0}

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
        update_from: Fraction = 0.35,
        window: Annotated[int, Field(ge=1)] = 10,
    ):
        self.joint_epochs, self.final_epochs = joint_epochs, final_epochs
        self.lr: AnySchedule = as_schedule(lr)
        self.final_lr: AnySchedule = as_schedule(final_lr)
        self.alpha, self.beta, self.prior = alpha, beta, prior
        self.update_from, self.window = update_from, window
        self.requirements = replace(type(self).requirements, label_arrays=window + 2)  # kept, their mean, the last mean

    def start(self, task: Task) -> tuple[Phase, ...]:
        classes = task.num_classes
        given_probs = as_distribution(task.given_labels, classes).to(task.device, task.dtype)
        uniform = given_probs.new_full((classes,), 1 / classes)
        self.prior_probs = {"none": None, "uniform": uniform, "given": given_probs.mean(dim=0)}[self.prior]
        self.state = JointOptimizationState(given_probs, deque(maxlen=self.window))
        self.pinned = None if task.layout.pinned is None else task.layout.pinned.to(task.device).nonzero()[:, 0]
        return (
            Phase(
                "joint",
                self.joint_epochs,
                self.joint_loss,
                self.lr,
                before_epoch=self.begin_epoch,
                after_step=self.store_predictions,
            ),
            Phase(
                "final", self.final_epochs, self.final_loss, self.final_lr, on_start=self.relabel, fresh_network=True
            ),
        )

    def begin_epoch(self, epoch: int, epochs: int, context: Context) -> None:
        """Relabel from ``update_from`` on, and start a new epoch of predictions."""
        if epoch >= self.update_from * epochs:
            self.relabel(context)
        self.state.history.append(self.state.soft_labels.clone())  # an unreadable row keeps its label

    def relabel(self, _context: Context) -> None:
        """Set the soft label of each row to its mean prediction over the window; pinned rows stay."""
        state = self.state
        if state.history:
            before, state.soft_labels = state.soft_labels, torch.stack(tuple(state.history)).mean(dim=0)
            if self.pinned is not None:
                state.soft_labels[self.pinned] = before[self.pinned]

    def store_predictions(self, probs: Tensor, batch: Batch, _label_step: float) -> None:
        """Store the predictions of this step for the mean."""
        self.state.history[-1][batch.rows] = probs

    def on_rows_changed(self) -> None:
        """A new row counts as predicted like its given label in earlier epochs."""
        for probs in self.state.history:
            new = probs.sum(dim=1) == 0
            probs[new] = self.state.soft_labels[new].to(probs)

    def joint_loss(self, outputs: Outputs, batch: Batch) -> Terms:
        """The loss of the first phase; the predictions are carried to :meth:`store_predictions`."""
        logits, soft_labels = outputs.logits, self.state.soft_labels[batch.rows]
        loss = joint_loss(logits, soft_labels, beta=self.beta, alpha=self.alpha, prior_probs=self.prior_probs)
        return Terms(loss, carry=log_probs(logits.detach()).exp().to(soft_labels.dtype))

    def final_loss(self, outputs: Outputs, batch: Batch) -> Terms:
        """Cross-entropy with the final soft labels."""
        return Terms(cross_entropy(outputs.logits, self.state.soft_labels[batch.rows]))

    def label_probs(self, rows: Tensor | None = None) -> Tensor:
        """The soft labels."""
        return self.state.soft_labels if rows is None else self.state.soft_labels[rows]
