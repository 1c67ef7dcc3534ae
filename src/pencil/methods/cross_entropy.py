"""Plain cross-entropy on the given labels: the baseline of every comparison."""

from pencil.data.examples import Batch
from pencil.errors import RecipeError
from pencil.labels.forms import label_form
from pencil.labels.losses import cross_entropy
from pencil.methods.base import Epochs, Fraction, Method, Outputs, Phase, Requirements, Task, Terms
from pencil.methods.schedules import AnySchedule, Cosine, Schedule, as_schedule


class CrossEntropy(Method):
    """One phase of Eq. 1; for multi-label data, binary cross-entropy of each class.

    Parameters
    ----------
    epochs, lr
        Length of the phase, and its learning rate.
    label_smoothing
        The fraction of each given label that is spread evenly over all classes; for single-label data.
    """

    requirements = Requirements(multilabel=True, row_losses=True, label_arrays=0)

    def __init__(self, *, epochs: Epochs = 60, lr: Schedule = Cosine(0.02), label_smoothing: Fraction = 0.0):
        self.epochs, self.label_smoothing = epochs, label_smoothing
        self.lr: AnySchedule = as_schedule(lr)

    def start(self, task: Task) -> tuple[Phase, ...]:
        if task.multilabel and self.label_smoothing:
            raise RecipeError(
                f"method.label_smoothing is {self.label_smoothing}, but the data is multi-label; it needs single-label "
                "data; remove label_smoothing."
            )
        self.form = label_form(task.multilabel)
        return (Phase("train", self.epochs, self.loss, self.lr),)

    def loss(self, outputs: Outputs, batch: Batch) -> Terms:
        """Eq. 1 on the given labels, smoothed if requested."""
        if self.label_smoothing:
            return Terms(cross_entropy(outputs.logits, batch.given_labels, self.label_smoothing))
        return Terms(self.form.given_loss(outputs.logits, batch.given_labels))
