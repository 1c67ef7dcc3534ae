"""Plain cross-entropy on the given labels: the baseline of every comparison."""

from pencil.data.examples import Batch
from pencil.labels.forms import label_form
from pencil.methods.base import Epochs, Method, Outputs, Phase, Requirements, Task, Terms
from pencil.methods.schedules import AnySchedule, Cosine, Schedule, as_schedule


class CrossEntropy(Method):
    """One phase of Eq. 1; binary cross-entropy for each class of multi-label data."""

    requirements = Requirements(multilabel=True, row_losses=True)

    def __init__(self, *, epochs: Epochs = 60, lr: Schedule = Cosine(0.02)):
        self.epochs = epochs
        self.lr: AnySchedule = as_schedule(lr)

    def start(self, task: Task) -> tuple[Phase, ...]:
        self.form = label_form(task.multilabel)
        return (Phase("train", self.epochs, self.loss, self.lr),)

    def loss(self, outputs: Outputs, batch: Batch) -> Terms:
        """Eq. 1 on the given labels."""
        return Terms(self.form.given_loss(outputs.logits, batch.given_labels))
