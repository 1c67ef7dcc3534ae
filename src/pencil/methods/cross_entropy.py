"""Plain cross-entropy on the given labels: what everyone starts from, and what every method is measured against."""

from torch import Tensor

from pencil.data.examples import Batch
from pencil.losses import cross_entropy
from pencil.methods.base import Epochs, Method, Phase, Task, Terms
from pencil.schedules import AnySchedule, Cosine, Schedule, as_schedule


class CrossEntropy(Method):
    """One phase of Eq. 1."""

    def __init__(self, *, epochs: Epochs = 60, lr: Schedule = Cosine(0.02)):
        self.epochs = epochs
        self.lr: AnySchedule = as_schedule(lr)

    def start(self, task: Task) -> tuple[Phase, ...]:
        return (Phase("train", self.epochs, self.loss, self.lr),)

    def loss(self, logits: Tensor, batch: Batch) -> Terms:
        return Terms(cross_entropy(logits, batch.given_labels))
