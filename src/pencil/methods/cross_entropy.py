"""Plain cross-entropy on the given labels: what everyone starts from, and what every method is measured against."""

from torch import Tensor

from pencil.data.examples import Batch
from pencil.labels.forms import label_form
from pencil.methods.base import Epochs, Method, Phase, Task, Terms
from pencil.methods.schedules import AnySchedule, Cosine, Schedule, as_schedule


class CrossEntropy(Method):
    """One phase of Eq. 1, binary for every class where an example may be of several."""

    takes_multilabel = True
    by_row = True

    def __init__(self, *, epochs: Epochs = 60, lr: Schedule = Cosine(0.02)):
        self.epochs = epochs
        self.lr: AnySchedule = as_schedule(lr)

    def start(self, task: Task) -> tuple[Phase, ...]:
        self.kind = label_form(task.multilabel)
        return (Phase("train", self.epochs, self.loss, self.lr),)

    def loss(self, logits: Tensor, batch: Batch) -> Terms:
        return Terms(self.kind.given_loss(logits, batch.given_labels))
