"""PENCIL for any LightningModule: ``labels.loss(logits, rows)`` in ``training_step``, and a callback for the rest."""

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
    """Tells labels which epoch it is, moves them after each optimizer step, and keeps them in checkpoints.

    With accumulated gradients, labels move when the optimizer does. Training in several processes is refused: each
    would move labels of its own.
    """

    def __init__(self, labels: PencilLabels):
        self.labels = labels
        self._steps = 0

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.world_size > 1:
            raise TrainingError(
                f"Lightning runs {trainer.world_size} processes, and each would move labels of its own; expected "
                "devices=1 (`pencil train --processes N` trains in several, to the result of one)."
            )

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._steps = trainer.global_step

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.labels.begin_epoch(trainer.current_epoch)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step > self._steps:  # else gradients are still being gathered
            self._steps = trainer.global_step
            self.labels.optimizer_stepped()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.labels.epoch = None

    def state_dict(self) -> dict[str, Tensor]:
        return self.labels.state_dict()

    def load_state_dict(self, state_dict: dict[str, Tensor]) -> None:
        self.labels.load_state_dict(state_dict)
