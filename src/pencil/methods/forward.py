"""Loss correction by a noise transition matrix, known or estimated (Patrini et al. 2017).

"Making deep neural networks robust to label noise: a loss correction approach". ``transition[i, j]`` is the probability
that an example of class ``i`` was given the label ``j``, as in :mod:`pencil.data.noise`.
"""

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from pencil.data.examples import Batch
from pencil.errors import RecipeError
from pencil.labels.losses import cross_entropy, log_probs, row_dot
from pencil.methods.base import Context, Epochs, Method, Outputs, Phase, Requirements, Task, Terms
from pencil.methods.schedules import AnySchedule, Cosine, Schedule, as_schedule

Matrix = tuple[tuple[float, ...], ...]
SINGULAR = 1e-6
"""Singular values below this fraction of the largest count as zero, because the inverse would amplify noise."""


def forward_loss(logits: Tensor, given_labels: Tensor, transition: Tensor) -> Tensor:
    """``CE(y_hat, T^T f)``, Theorem 2: the network predicts the clean class, ``T`` turns it into a given label.

    Zeros of ``T`` are replaced by the smallest number, so that a label that ``T`` rules out has a large but finite
    loss.
    """
    log_f = log_probs(logits)
    log_t = transition.to(log_f).clamp_min(torch.finfo(log_f.dtype).tiny).log()
    if given_labels.ndim == 1:
        return -(log_f + log_t.t()[given_labels]).logsumexp(dim=1).mean()
    log_noisy = (log_f.unsqueeze(2) + log_t).logsumexp(dim=1)
    return -row_dot(given_labels, log_noisy).mean()


def backward_loss(logits: Tensor, given_labels: Tensor, inverse: Tensor) -> Tensor:
    """``(T^-1 l)_given`` with ``l = -log f``, Theorem 1: its expectation over the noise is the clean cross-entropy.

    ``inverse`` comes from :func:`inverse_transition`. The loss is not bounded from below.
    """
    log_f = log_probs(logits)
    inverse = inverse.to(log_f)
    weights = inverse[given_labels] if given_labels.ndim == 1 else given_labels.to(log_f) @ inverse
    return -row_dot(weights, log_f).mean()


def inverse_transition(transition: Tensor) -> Tensor:
    """Return ``T^-1`` in fp64; raise an error for a (nearly) singular matrix."""
    matrix = transition.double()
    inverse: Tensor = torch.linalg.pinv(matrix, rtol=SINGULAR)
    identity = torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)
    if not torch.allclose(inverse @ matrix, identity, atol=1e-6):
        values = torch.linalg.svdvals(matrix)
        raise RecipeError(
            f"the transition matrix is singular (its singular values range from {float(values[0]):.3g} to "
            f"{float(values[-1]):.3g}); backward needs its inverse, and some classes have the same "
            "distribution of given labels; use method forward, which does not need the inverse."
        )
    return inverse


def estimate_transition(probs: Tensor, percentile: float = 97.0) -> Tensor:
    """Return ``T``, estimated from the predictions of a network trained on noisy labels (Theorem 3).

    The prediction for an anchor row, which certainly belongs to class ``i``, is row ``i`` of ``T``. The anchor of class
    ``i`` is the row whose probability of ``i`` is at this percentile of all rows (rounded down), because the largest
    may be an outlier; 100 is the maximum, for many classes (CIFAR-100), where each has fewer than 3 % of the rows.
    Unreadable rows (NaN) are ignored.
    """
    probs = probs[probs.isfinite().all(dim=1)]
    rank = math.floor(percentile * (len(probs) - 1) / 100)
    anchors = [int(column.argsort(stable=True)[rank]) for column in probs.unbind(dim=1)]
    return probs[anchors]


def check_transition(transition: Matrix, num_classes: int) -> Tensor:
    """Return the matrix as an fp64 tensor; every row must be a distribution over the classes."""
    lengths = sorted({len(row) for row in transition})
    if len(transition) != num_classes or lengths != [num_classes]:
        columns = " or ".join(map(str, lengths)) or "no"
        raise RecipeError(
            f"method.transition has {len(transition)} rows of {columns} numbers; "
            f"expected {num_classes} rows of {num_classes}, one for each class."
        )
    for number, row in enumerate(transition):
        if not (min(row) >= 0 and abs(sum(row) - 1) < 1e-4):
            raise RecipeError(
                f"row {number} of method.transition is {list(row)}, with sum {sum(row):g}; expected the probabilities "
                f"of each given label for true class {number}, which sum to 1."
            )
    return torch.tensor(transition, dtype=torch.float64)


class _Corrected(Method):
    """One phase with a loss corrected by a known transition matrix."""

    requirements = Requirements(transition_matrix=True, label_arrays=0)

    def __init__(self, *, transition: Matrix | None = None, epochs: Epochs = 60, lr: Schedule = Cosine(0.02)):
        self.transition = transition
        self.epochs = epochs
        self.lr: AnySchedule = as_schedule(lr)

    def start(self, task: Task) -> tuple[Phase, ...]:
        if self.transition is None:
            raise RecipeError(
                "method.transition is not set; this method needs the true transition matrix, which is known in "
                "experiments only; set it, or use method forward_estimated, which estimates one."
            )
        matrix = self.correction(check_transition(self.transition, task.num_classes))
        self.matrix = matrix.to(task.device, task.dtype)
        return (Phase("train", self.epochs, self.loss, self.lr),)

    @abstractmethod
    def correction(self, transition: Tensor) -> Tensor:
        """Return what the loss needs: the transition matrix or its inverse."""

    @abstractmethod
    def loss(self, outputs: Outputs, batch: Batch) -> Terms:
        """The corrected loss."""


class Forward(_Corrected):
    """Forward correction, with the true transition matrix."""

    def correction(self, transition: Tensor) -> Tensor:
        return transition

    def loss(self, outputs: Outputs, batch: Batch) -> Terms:
        return Terms(forward_loss(outputs.logits, batch.given_labels, self.matrix))


class Backward(_Corrected):
    """Backward correction, with the true transition matrix."""

    def correction(self, transition: Tensor) -> Tensor:
        return inverse_transition(transition)

    def loss(self, outputs: Outputs, batch: Batch) -> Terms:
        return Terms(backward_loss(outputs.logits, batch.given_labels, self.matrix))


@dataclass
class ForwardEstimatedState:
    """The estimated transition matrix, once the first phase has ended."""

    transition: Tensor | None = None


class ForwardEstimated(Method):
    """Cross-entropy, then a transition matrix from its predictions, then forward correction (Algorithm 1)."""

    state: ForwardEstimatedState
    row_state: ClassVar = {}

    def __init__(
        self,
        *,
        estimate_epochs: Annotated[int, Field(ge=1)] = 30,
        forward_epochs: Annotated[int, Field(ge=1)] = 30,
        lr: Schedule = Cosine(0.02),
        forward_lr: Schedule | None = None,
        percentile: Annotated[float, Field(ge=0, le=100)] = 97.0,
    ):
        self.estimate_epochs, self.forward_epochs = estimate_epochs, forward_epochs
        self.lr: AnySchedule = as_schedule(lr)
        self.forward_lr: AnySchedule = self.lr if forward_lr is None else as_schedule(forward_lr)
        self.percentile = percentile

    def start(self, task: Task) -> tuple[Phase, ...]:
        self.state = ForwardEstimatedState()
        forward = Phase(
            "forward",
            self.forward_epochs,
            self.forward_loss,
            self.forward_lr,
            on_start=self.estimate,
            fresh_network=True,
        )
        return (Phase("estimate", self.estimate_epochs, self.estimate_loss, self.lr), forward)

    def estimate_loss(self, outputs: Outputs, batch: Batch) -> Terms:
        """Cross-entropy with the given labels."""
        return Terms(cross_entropy(outputs.logits, batch.given_labels))

    def estimate(self, context: Context) -> None:
        """Estimate the transition matrix from the predictions on all training rows."""
        self.state.transition = estimate_transition(context.predict().softmax(dim=1), self.percentile)

    def forward_loss(self, outputs: Outputs, batch: Batch) -> Terms:
        """The forward-corrected loss with the estimated matrix."""
        assert self.state.transition is not None
        return Terms(forward_loss(outputs.logits, batch.given_labels, self.state.transition))
