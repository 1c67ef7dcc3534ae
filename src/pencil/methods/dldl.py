"""DLDL: fixed soft labels (Gao et al., "Deep label distribution learning with label ambiguity", 2017)."""

from typing import Annotated

from pydantic import Field

from pencil.data.examples import Batch
from pencil.labels.losses import cross_entropy, forward_kl
from pencil.labels.store import LabelStore, init_scale
from pencil.methods.base import Epochs, Method, Outputs, Phase, Task, Terms
from pencil.methods.schedules import AnySchedule, Cosine, Schedule, as_schedule


class Dldl(Method):
    """One phase of ``KL(y_d || f)`` on fixed soft labels (PENCIL's Eq. 2-3).

    ``y_d`` gives the given class ``init_probability`` and spreads the rest evenly over the other classes. The labels
    never move, so the method has no corrected labels; the network's predictions are used instead.
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

    def loss(self, outputs: Outputs, batch: Batch) -> Terms:
        """Forward KL; if the given labels are soft, they replace ``y_d``."""
        if batch.given_labels.ndim == 2:  # cross-entropy with a soft label has the gradient of forward KL
            return Terms(cross_entropy(outputs.logits, batch.given_labels))
        return Terms(forward_kl(outputs.logits, self.soft_labels[batch.rows]))
