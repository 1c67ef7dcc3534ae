"""Plain cross-entropy on the given labels: what everyone starts from, and what every method is measured against."""

from torch import Tensor

from pencil.data.examples import Batch
from pencil.losses import cross_entropy
from pencil.methods.base import Epochs, Method, Phase, Task, Terms
from pencil.schedules import AnySchedule, Schedule, StepDecay, as_schedule


class CrossEntropy(Method):
    """One phase of Eq. 1 with the learning rate divided by 10 after one and two thirds."""

    def __init__(self, *, epochs: Epochs = 60, lr: Schedule = StepDecay(0.05, at=(20, 40))):
        self.epochs = epochs
        self.lr: AnySchedule = as_schedule(lr)

    def start(self, task: Task) -> tuple[Phase, ...]:
        return (Phase("train", self.epochs, self.loss, self.lr),)

    def loss(self, logits: Tensor, batch: Batch) -> Terms:
        return Terms(cross_entropy(logits, batch.given_labels))
