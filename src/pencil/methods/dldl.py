"""DLDL: soft labels that never move (Gao et al., "Deep label distribution learning with label ambiguity", 2017)."""

from typing import Annotated

from pydantic import Field
from torch import Tensor

from pencil.data.examples import Batch
from pencil.labels.losses import cross_entropy, forward_kl
from pencil.labels.store import LabelStore, init_scale
from pencil.methods.base import Epochs, Method, Phase, Task, Terms
from pencil.methods.schedules import AnySchedule, Cosine, Schedule, as_schedule


class Dldl(Method):
    """One phase of ``KL(y_d || f)`` on the labels as they were given (PENCIL's Eq. 2-3).

    Without ambiguity that the data would speak of, ``y_d`` gives the class that was named ``init_probability`` and
    shares the rest out evenly. The labels stay as they are, so it keeps none that could pass for corrected ones: what
    the network predicts stands for them.
    """

    def __init__(
        self,
        *,
        epochs: Epochs = 60,
        lr: Schedule = Cosine(0.02),
        init_probability: Annotated[float, Field(gt=0, lt=1)] = 0.9,
    ):
        self.epochs = epochs
        self.lr: AnySchedule = as_schedule(lr)
        self.init_probability = init_probability

    def start(self, task: Task) -> tuple[Phase, ...]:
        scale = init_scale(self.init_probability, task.num_classes)
        self.soft_labels = LabelStore(
            task.given_labels, task.num_classes, scale=scale, device=task.device, dtype=task.dtype
        )
        return (Phase("train", self.epochs, self.loss, self.lr),)

    def loss(self, logits: Tensor, batch: Batch) -> Terms:
        if batch.given_labels.ndim == 2:  # soft already; cross-entropy with it has the gradient of forward KL
            return Terms(cross_entropy(logits, batch.given_labels))
        return Terms(forward_kl(logits, self.soft_labels[batch.rows]))
