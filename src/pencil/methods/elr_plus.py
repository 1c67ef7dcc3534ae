"""ELR+: two networks with the ELR regulariser (Liu, Niles-Weed, Razavian and Fernandez-Granda, NeurIPS 2020)."""

from typing import ClassVar

import torch
from torch import Tensor

from pencil.data.examples import Batch
from pencil.data.given.given_labels import as_distribution
from pencil.labels.losses import cross_entropy
from pencil.methods.base import Epochs, Fraction, Mixing, NonNegative, Outputs, Phase, Requirements, Task, Terms, Views
from pencil.methods.elr import Elr, ElrState, clamped_probs, early_learning_loss, moved_targets, read_targets
from pencil.methods.schedules import Cosine, Schedule


def elr_losses(
    logits: Tensor, given_probs: Tensor, targets: Tensor, mixing: Mixing | None = None
) -> tuple[Tensor, Tensor]:
    """Return cross-entropy and regulariser; if inputs were mixed, labels and targets are mixed in the same way."""
    if mixing is not None:
        given_probs, targets = mixing(given_probs), mixing(targets)
    return cross_entropy(logits, given_probs), early_learning_loss(clamped_probs(logits), targets)


class ElrPlus(Elr):
    """Two networks, each trained on mixed inputs with targets from the weight average of the other.

    The published method evaluates the mean of both averaged networks; here the first is kept. The averages have a
    memory of one epoch. Vectors and features are mixed like images.

    Parameters
    ----------
    epochs, lr
        Length of the phase, and its learning rate.
    strength, beta
        As in ELR.
    mixup
        The parameter alpha of mixup; 0 disables it.
    """

    requirements = Requirements(networks=2, ema=True, ema_logits=True, label_arrays=3)
    row_state: ClassVar = {"targets": 1}

    def __init__(
        self,
        *,
        epochs: Epochs = 60,
        lr: Schedule = Cosine(0.02),
        strength: NonNegative = 3.0,
        beta: Fraction = 0.7,
        mixup: NonNegative = 1.0,
    ):
        super().__init__(epochs=epochs, lr=lr, strength=strength, beta=beta)
        self.mixup = mixup

    def start(self, task: Task) -> tuple[Phase, ...]:
        self.given_probs = as_distribution(task.given_labels, task.num_classes).to(task.device, task.dtype)
        self.state = ElrState(torch.zeros_like(self.given_probs).repeat(2, 1, 1))
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
            moved.append(moved_targets(targets[batch.rows], clamped_probs(other), self.beta))
            losses += elr_losses(own, given_probs, moved[-1], mixing)
        parts = dict(zip(("first", "first_early_learning", "second", "second_early_learning"), losses, strict=True))
        loss = losses[0] + losses[2] + self.strength * (losses[1] + losses[3])
        return Terms(loss, {name: part.detach() for name, part in parts.items()}, carry=torch.stack(moved))

    def update_targets(self, targets: Tensor, batch: Batch, _label_step: float) -> None:
        """Store both networks' targets of these rows."""
        self.state.targets[:, batch.rows] = targets

    def label_probs(self, rows: Tensor | None = None) -> Tensor:
        """The mean of both networks' targets, scaled to sum to one; a row without visits has its given label."""
        rows = torch.arange(len(self.given_probs), device=self.given_probs.device) if rows is None else rows
        return read_targets(self.state.targets[:, rows].mean(dim=0), self.given_probs[rows])
