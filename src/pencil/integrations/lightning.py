"""PENCIL for any LightningModule: ``labels.loss(logits, rows)`` in ``training_step``, and a callback."""

from typing import Any

from torch import Tensor

from pencil.errors import TrainingError
from pencil.integrations.pencil_labels import PencilLabels

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError as error:
    raise ImportError(
        "pencil.integrations.lightning needs the lightning library; "
        "install it with pip install 'pencil-labels[lightning]'."
    ) from error


class PencilCallback(Callback):  # type: ignore[misc]
    """Updates the labels after each optimizer step, sets their epoch, and saves them in Lightning's checkpoints.

    With accumulated gradients, labels are updated when the optimizer steps. Several processes raise TrainingError,
    because each would update its own copy of the labels.

    Parameters
    ----------
    labels : PencilLabels
        The labels whose ``loss`` the module returns in ``training_step``.
    """

    def __init__(self, labels: PencilLabels):
        self.labels = labels
        self._steps = 0

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Raise TrainingError for several processes."""
        if trainer.world_size > 1:
            raise TrainingError(
                f"Lightning runs {trainer.world_size} processes, and each would update its own labels; expected one "
                "process; set devices=1 (`pencil train --processes N` supports several)."
            )

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Record the number of previous steps of a resumed run."""
        self._steps = trainer.global_step

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Set the labels' epoch."""
        self.labels.begin_epoch(trainer.current_epoch)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Update the labels if the optimizer has stepped."""
        if trainer.global_step > self._steps:  # otherwise gradients are still being accumulated
            self._steps = trainer.global_step
            self.labels.optimizer_stepped()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leave the training phases."""
        self.labels.epoch = None

    def state_dict(self) -> dict[str, Tensor]:
        """Return the label logits, for Lightning's checkpoint."""
        return self.labels.state_dict()

    def load_state_dict(self, state_dict: dict[str, Tensor]) -> None:
        """Restore the label logits from Lightning's checkpoint."""
        self.labels.load_state_dict(state_dict)
