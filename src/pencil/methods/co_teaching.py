"""Co-teaching (Han, Yao, Yu, Niu, Xu, Hu, Tsang and Sugiyama, NeurIPS 2018)."""

import math
from typing import Annotated

from pydantic import Field
from torch import Tensor
from torch.nn import functional

from pencil.data.examples import Batch
from pencil.data.given import hard_labels
from pencil.labels.losses import at_least_fp32
from pencil.methods.base import Context, Epochs, Method, Phase, Share, Task, Terms
from pencil.methods.schedules import AnySchedule, Cosine, Schedule, as_schedule

HIGHEST_ESTIMATE = 0.8
"""A network that has learned little must not make its peer forget nearly everything."""


def forget_share(epoch: int, epochs: int, forget_rate: float, ramp: float) -> float:
    """``R(t) = tau * min(t / t_k, 1)``, with ``t_k`` as the share ``ramp`` of all epochs."""
    ramp_epochs = ramp * epochs
    return forget_rate * (1.0 if epoch >= ramp_epochs else epoch / ramp_epochs)


def small_loss_rows(row_losses: Tensor, forget: float) -> Tensor:
    """The positions with the smallest losses, a share of ``1 - forget``, at least one."""
    kept = max(1, round((1 - forget) * len(row_losses)))
    return row_losses.detach().topk(kept, largest=False, sorted=False).indices


def co_teaching_losses(
    first_logits: Tensor, second_logits: Tensor, given_labels: Tensor, forget: float
) -> tuple[Tensor, Tensor]:
    """Each network's mean cross-entropy over the rows that its peer finds easiest (their Algorithm 1)."""
    first = functional.cross_entropy(at_least_fp32(first_logits), given_labels, reduction="none")
    second = functional.cross_entropy(at_least_fp32(second_logits), given_labels, reduction="none")
    return first[small_loss_rows(second, forget)].mean(), second[small_loss_rows(first, forget)].mean()


class CoTeaching(Method):
    """Two networks, each trained on the rows that the other one finds easy; the first is kept.

    How many rows to forget is the noise rate in the paper, which a method may not know here. So without a
    ``forget_rate`` both train on everything for the share ``ramp`` of the epochs, and then forget as many rows as the
    first network's predictions disagree with given labels: those of the validation rows, which it has not seen, or
    without such a split those of the training rows. Mistakes of the network count as noise in this estimate.
    (The paper's ramp is 10 of 200 epochs; in a short run that is not enough to learn from.)
    """

    networks = 2
    remembered = ("forget",)

    def __init__(
        self,
        *,
        epochs: Epochs = 60,
        lr: Schedule = Cosine(0.02),
        forget_rate: Annotated[float, Field(ge=0, lt=1)] | None = None,
        ramp: Share = 0.15,
    ):
        self.epochs, self.forget_rate, self.ramp = epochs, forget_rate, ramp
        self.lr: AnySchedule = as_schedule(lr)

    def start(self, task: Task) -> tuple[Phase, ...]:
        self.given_labels, self.forget = task.given_labels, 0.0
        return (Phase("train", self.epochs, self.loss, self.lr, before_epoch=self.begin_epoch),)

    def begin_epoch(self, epoch: int, epochs: int, context: Context) -> None:
        if self.forget_rate is not None:
            self.forget = forget_share(epoch, epochs, self.forget_rate, self.ramp)
        elif epoch == max(1, math.ceil(self.ramp * epochs)):
            self.forget = self.estimated_rate(context)

    def estimated_rate(self, context: Context) -> float:
        """How often the network disagrees with labels as they were given."""
        agreement = context.validation_accuracy
        if agreement is None:
            logits = context.predict()
            seen = ~logits[:, 0].isnan()  # inputs that could not be read
            agree = logits[seen].argmax(dim=1) == hard_labels(self.given_labels[seen])
            agreement = float(agree.double().mean())
        return min(1 - agreement, HIGHEST_ESTIMATE)

    def loss(self, logits: tuple[Tensor, Tensor], batch: Batch) -> Terms:
        first, second = co_teaching_losses(*logits, batch.given_labels, self.forget)
        return Terms(first + second, {"first": first.detach(), "second": second.detach()})

    def metrics(self) -> dict[str, float]:
        return {"forget_share": self.forget}
