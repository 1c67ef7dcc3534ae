"""Sparse over-parameterisation, SOP and SOP+ (Liu, Zhu, Qu and You, ICML 2022)."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from pencil.data.examples import Batch
from pencil.data.given.given_labels import as_distribution
from pencil.labels.losses import at_least_fp32, forward_kl, log_probs
from pencil.methods.base import ONE_VIEW, Epochs, Method, NonNegative, Outputs, Phase, Requirements, Task, Terms, Views
from pencil.methods.joint_optimization import prior_loss
from pencil.methods.schedules import AnySchedule, Cosine, Schedule, as_schedule

LEAST = 1e-4
"""Lower limit of predictions inside a logarithm, as in the authors' code."""
INIT = 1e-8
"""Initial value of every u and v. At zero both would stay zero; from here they grow exponentially."""


class Noise(NamedTuple):
    """The noise of given labels ``y``: ``s = added - removed``, both between 0 and 1."""

    added: Tensor
    removed: Tensor


def label_noise(u: Tensor, v: Tensor, given_probs: Tensor) -> Noise:
    """``s = u * u * y - v * v * (1 - y)``: what noise added to the given class, removed from others (Algorithm 1)."""
    return Noise((u.square() * given_probs).clamp(max=1.0), (v.square() * (1 - given_probs)).clamp(max=1.0))


def noisy_probs(probs: Tensor, noise: Noise) -> Tensor:
    """``f + s``, clipped to at least ``LEAST`` and scaled to sum to one: the distribution of the given label."""
    shifted = (probs + noise.added - noise.removed).clamp(min=LEAST)
    return (shifted / shifted.sum(dim=1, keepdim=True)).clamp(min=LEAST)


def sop_loss(logits: Tensor, noise: Noise, given_probs: Tensor) -> Tensor:
    """``CE(y, f + s)``: the loss of the network, and of u."""
    return -(given_probs * noisy_probs(log_probs(logits).exp(), noise).log()).sum(dim=1).mean()


def u_gradient(logits: Tensor, u: Tensor, v: Tensor, given_probs: Tensor) -> Tensor:
    """The gradient of each row's ``CE(y, f + s)`` with respect to its u, of shape ``(batch, 1)``.

    With ``q = f + s`` and ``r = q / sum(q)`` it is ``2 u <y, (<y, 1> - y / r) / sum(q)>``, over entries that are not
    clipped.
    """
    added, removed = label_noise(u, v, given_probs)
    q = log_probs(logits).exp() + added - removed
    limited = q.clamp(min=LEAST)
    total = limited.sum(dim=1, keepdim=True)
    r = limited / total
    counted = given_probs * (r >= LEAST)
    slope = (counted.sum(dim=1, keepdim=True) - counted / r.clamp(min=LEAST)) / total
    free = (q >= LEAST) & (u.square() * given_probs <= 1.0)
    return 2 * u * (given_probs * slope * free).sum(dim=1, keepdim=True)


def v_gradient(logits: Tensor, u: Tensor, v: Tensor, given_probs: Tensor) -> Tensor:
    """The gradient of each row's ``|onehot(f) + s - y|^2`` with respect to its v.

    The loss of v is the squared error of the predicted class: with cross-entropy no gradient would reach classes other
    than the given one.
    """
    added, removed = label_noise(u, v, given_probs)
    predicted = torch.zeros_like(given_probs).scatter_(1, logits.argmax(dim=1, keepdim=True), 1.0)
    free = v.square() * (1 - given_probs) <= 1.0
    return -4 * v * (1 - given_probs) * free * (predicted + added - removed - given_probs)


@dataclass
class SopState:
    """u (n, 1) and v (n, classes) of every row."""

    u: Tensor
    v: Tensor


class Sop(Method):
    """The noise of every label is learned too: ``f + u * u * y - v * v * (1 - y)`` explains the given label.

    Both u and v start near zero, so the network first learns what labels have in common, and only the unexplained part
    becomes noise. They are not part of the network; labels are read from the network's own predictions.

    Parameters
    ----------
    epochs, lr
        Length of the phase, and the network's learning rate.
    lr_u, lr_v
        Learning rates of u and v, for the mean loss over a batch: 10 and 10 for symmetric noise on CIFAR-10, 10 and 100
        for asymmetric noise.
    """

    requirements = Requirements(label_arrays=3)
    state: SopState
    row_state: ClassVar = {"u": 0, "v": 0}
    views: Views = ONE_VIEW

    def __init__(
        self,
        *,
        epochs: Epochs = 60,
        lr: Schedule = Cosine(0.02),
        lr_u: NonNegative = 10.0,
        lr_v: NonNegative = 10.0,
    ):
        self.epochs, self.lr_u, self.lr_v = epochs, lr_u, lr_v
        self.lr: AnySchedule = as_schedule(lr)

    def start(self, task: Task) -> tuple[Phase, ...]:
        self.given_probs = as_distribution(task.given_labels, task.num_classes).to(task.device, task.dtype)
        self.batch_size = task.batch_size
        v = torch.full_like(self.given_probs, INIT)
        self.state = SopState(v[:, :1].clone(), v)
        return (Phase("train", self.epochs, self.loss, self.lr, after_step=self.update_noise, views=self.views),)

    def loss(self, outputs: Outputs, batch: Batch) -> Terms:
        """``CE(y, f + s)``; the logits are carried to :meth:`update_noise`."""
        logits = outputs.logits
        return Terms(self._classification(logits, batch.rows), carry=logits.detach())

    def _classification(self, logits: Tensor, rows: Tensor) -> Tensor:
        given_probs = self.given_probs[rows]
        return sop_loss(logits, label_noise(self.state.u[rows], self.state.v[rows], given_probs), given_probs)

    def update_noise(self, logits: Tensor, batch: Batch, _label_step: float) -> None:
        """Take a gradient step on u and v of these rows; the loss is a mean over the nominal batch size."""
        rows, state = batch.rows, self.state
        now = at_least_fp32(logits), state.u[rows], state.v[rows], self.given_probs[rows]
        u_step, v_step = u_gradient(*now), v_gradient(*now)
        state.u[rows] -= (self.lr_u / self.batch_size * u_step).to(state.u)
        state.v[rows] -= (self.lr_v / self.batch_size * v_step).to(state.v)

    def metrics(self) -> dict[str, float]:
        """The part of the given labels that counts as noise: the mean of u * u, at most 1."""
        return {"noise_fraction": float(self.state.u.square().clamp(max=1.0).mean())}


class SopPlus(Sop):
    """SOP with a strong view that must agree with the weak view, and a term that balances the predicted classes.

    Parameters
    ----------
    epochs, lr, lr_u, lr_v
        As in :class:`Sop`.
    consistency
        Weight of ``KL(f(weak) || f(strong))``. Without augmentation both views are equal and this term is zero.
    balance
        Weight of ``KL(uniform || mean f)``. Set it to 0 if classes are known to differ in size.
    """

    views = Views(second="strong")

    def __init__(
        self,
        *,
        epochs: Epochs = 60,
        lr: Schedule = Cosine(0.02),
        lr_u: NonNegative = 10.0,
        lr_v: NonNegative = 10.0,
        consistency: NonNegative = 0.9,
        balance: NonNegative = 0.1,
    ):
        super().__init__(epochs=epochs, lr=lr, lr_u=lr_u, lr_v=lr_v)
        self.consistency, self.balance = consistency, balance

    def loss(self, outputs: Outputs, batch: Batch) -> Terms:
        """``CE(y, f + s)`` of the weak view, and both regularisers."""
        weak, strong = outputs.logits.tensor_split(2)
        parts = {
            "classification": self._classification(weak, batch.rows),
            "consistency": forward_kl(strong, weak.detach()),
            "balance": prior_loss(weak, torch.full_like(self.given_probs[0], 1 / self.given_probs.shape[1])),
        }
        loss = parts["classification"] + self.consistency * parts["consistency"] + self.balance * parts["balance"]
        return Terms(loss, {name: part.detach() for name, part in parts.items()}, carry=weak.detach())
