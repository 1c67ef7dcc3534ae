"""Co-teaching (Han, Yao, Yu, Niu, Xu, Hu, Tsang and Sugiyama, NeurIPS 2018)."""

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field
from torch import Tensor
from torch.nn import functional

from pencil.data.examples import Batch
from pencil.data.given.given_labels import hard_labels
from pencil.labels.losses import at_least_fp32
from pencil.methods.base import Context, Epochs, Fraction, Method, Outputs, Phase, Requirements, Task, Terms
from pencil.methods.schedules import AnySchedule, Cosine, Schedule, as_schedule

HIGHEST_ESTIMATE = 0.8
"""An upper limit: a weak network disagrees with most labels, and its peer must not discard nearly all rows."""


def forget_fraction(epoch: int, epochs: int, forget_rate: float, ramp: float) -> float:
    """``R(t) = tau * min(t / t_k, 1)``, with ``t_k`` the fraction ``ramp`` of all epochs."""
    ramp_epochs = ramp * epochs
    return forget_rate * (1.0 if epoch >= ramp_epochs else epoch / ramp_epochs)


def small_loss_rows(row_losses: Tensor, forget: float) -> Tensor:
    """Return the positions of the smallest losses, a fraction ``1 - forget`` of them, at least one."""
    kept = max(1, round((1 - forget) * len(row_losses)))
    return row_losses.detach().topk(kept, largest=False, sorted=False).indices


def co_teaching_losses(
    first_logits: Tensor, second_logits: Tensor, given_labels: Tensor, forget: float
) -> tuple[Tensor, Tensor]:
    """Each network's mean cross-entropy over the rows with the smallest loss of its peer (their Algorithm 1)."""
    first = functional.cross_entropy(at_least_fp32(first_logits), given_labels, reduction="none")
    second = functional.cross_entropy(at_least_fp32(second_logits), given_labels, reduction="none")
    return first[small_loss_rows(second, forget)].mean(), second[small_loss_rows(first, forget)].mean()


@dataclass
class CoTeachingState:
    """The fraction of each batch that is discarded."""

    forget: float = 0.0


class CoTeaching(Method):
    """Two networks, each trained on the small-loss rows of the other; the first network is kept.

    In the paper the fraction of rows to discard is the noise rate, which methods do not know here. Without a
    ``forget_rate`` both networks therefore train on all rows for the fraction ``ramp`` of the epochs. They then discard
    the fraction of rows on which the first network disagrees with the given labels, measured on held-out rows, or on
    training rows if there are none. Errors of the network count as noise in this estimate. (The paper's ramp is 10 of
    200 epochs, too few to learn from in a short run.)
    """

    requirements = Requirements(networks=2, label_arrays=0)
    state: CoTeachingState
    row_state: ClassVar = {}

    def __init__(
        self,
        *,
        epochs: Epochs = 60,
        lr: Schedule = Cosine(0.02),
        forget_rate: Annotated[float, Field(ge=0, lt=1)] | None = None,
        ramp: Fraction = 0.15,
    ):
        self.epochs, self.forget_rate, self.ramp = epochs, forget_rate, ramp
        self.lr: AnySchedule = as_schedule(lr)

    def start(self, task: Task) -> tuple[Phase, ...]:
        self.given_labels, self.state = task.given_labels, CoTeachingState()
        return (Phase("train", self.epochs, self.loss, self.lr, before_epoch=self.begin_epoch),)

    def begin_epoch(self, epoch: int, epochs: int, context: Context) -> None:
        """Set the fraction to discard: by the paper's ramp, or estimated once at its end."""
        if self.forget_rate is not None:
            self.state.forget = forget_fraction(epoch, epochs, self.forget_rate, self.ramp)
        elif epoch == max(1, math.ceil(self.ramp * epochs)):
            self.state.forget = self.estimated_rate(context)

    def estimated_rate(self, context: Context) -> float:
        """Return the fraction of given labels that the network disagrees with."""
        agreement = context.validation_accuracy
        if agreement is None:
            logits = context.predict()
            seen = ~logits[:, 0].isnan()  # NaN: the input could not be read
            agree = logits[seen].argmax(dim=1) == hard_labels(self.given_labels[seen])
            agreement = float(agree.double().mean())
        return min(1 - agreement, HIGHEST_ESTIMATE)

    def loss(self, outputs: Outputs, batch: Batch) -> Terms:
        """The sum of both networks' losses."""
        (peer_logits,) = outputs.others
        first, second = co_teaching_losses(outputs.logits, peer_logits, batch.given_labels, self.state.forget)
        return Terms(first + second, {"first": first.detach(), "second": second.detach()})

    def metrics(self) -> dict[str, float]:
        return {"forget_fraction": self.state.forget}
