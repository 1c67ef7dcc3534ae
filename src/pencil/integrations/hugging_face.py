"""PENCIL for the Hugging Face Trainer: the same call, with ``pencil_labels=`` for the labels to correct."""

from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from pencil.data.given.given_labels import hard_labels
from pencil.errors import TrainingError
from pencil.integrations.pencil_labels import ROW, PencilLabels, WithRows

try:
    from transformers import Trainer, TrainerCallback
    from transformers.trainer_utils import get_last_checkpoint
except ImportError as error:
    raise ImportError(
        "pencil.integrations.hugging_face needs the transformers and accelerate libraries; "
        "install them with pip install 'pencil-labels[transformers]'."
    ) from error

FILE = "pencil_labels.safetensors"
"""The file of the labels in each checkpoint of the Trainer."""


class PencilTrainer(Trainer):  # type: ignore[misc]
    """A Trainer for sequence, image or any other classification with labels that may be wrong.

    Checkpoints also contain the labels, and ``train(resume_from_checkpoint=...)`` restores them. Evaluation is
    unchanged.

    Parameters
    ----------
    *arguments, **options
        The arguments of the Trainer.
    pencil_labels : PencilLabels
        Labels of ``train_dataset``, row by row.

    Raises
    ------
    TrainingError
        If training would run on several devices, with another loss, or with labels that do not fit ``train_dataset``.
    """

    train_dataset: Any

    def __init__(self, *arguments: Any, pencil_labels: PencilLabels, **options: Any):
        super().__init__(*arguments, **options)
        self.pencil_labels = pencil_labels
        self._check_arguments()
        self.model_accepts_loss_kwargs = (
            False  # the loss is a batch mean, which the Trainer divides when accumulating gradients
        )
        self.train_dataset = WithRows(self.train_dataset)
        self.add_callback(_LabelCallback(self))

    def train(self, resume_from_checkpoint: str | bool | None = None, *arguments: Any, **options: Any) -> Any:
        """Train like the Trainer; a resumed run restores its labels first."""
        checkpoint = resume_from_checkpoint
        if checkpoint:
            self._load_labels(get_last_checkpoint(self.args.output_dir) if checkpoint is True else checkpoint)
        return super().train(resume_from_checkpoint, *arguments, **options)

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """Return the loss of the current phase in training, and the model's own loss in evaluation."""
        if not model.training:
            inputs = {name: value for name, value in inputs.items() if name != ROW}
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        if ROW not in inputs:
            raise TrainingError(
                f"a training batch has no {ROW!r}; expected the data collator to keep it; use a collator that keeps "
                "this column."
            )
        inputs = dict(inputs)
        rows, given = inputs.pop(ROW), inputs.pop("labels", None)
        if given is not None:
            self._check_labels(rows, given)
        outputs = model(**inputs)
        loss = self.pencil_labels.loss(outputs["logits"] if isinstance(outputs, dict) else outputs[0], rows)
        return (loss, outputs) if return_outputs else loss

    def _set_signature_columns_if_needed(self) -> None:
        """Keep the row number, which the Trainer would remove because the model does not take it."""
        super()._set_signature_columns_if_needed()
        if ROW not in self._signature_columns:
            self._signature_columns += [ROW]

    def _load_labels(self, checkpoint: str | None) -> None:
        path = Path(checkpoint or str(self.args.output_dir)) / FILE
        if not path.is_file():
            raise TrainingError(
                f"there is no {path}; expected a checkpoint of PencilTrainer, which contains the labels."
            )
        self.pencil_labels.load_state_dict(safetensors.torch.load_file(path))

    def _check_arguments(self) -> None:
        """Raise TrainingError for arguments that are incompatible with label correction."""
        processes = max(self.args.world_size, self.args.n_gpu)
        if processes > 1:
            raise TrainingError(
                f"the Trainer runs on {processes} devices, and each would update its own labels; expected one "
                "device; set CUDA_VISIBLE_DEVICES=0 (`pencil train --processes N` supports several)."
            )
        if self.compute_loss_func is not None or self.label_smoother is not None:
            argument = "label_smoothing_factor" if self.compute_loss_func is None else "compute_loss_func"
            raise TrainingError(f"{argument} is given, but PENCIL defines the loss; remove it.")
        if self.train_dataset is None or not hasattr(self.train_dataset, "__len__"):
            raise TrainingError(
                "train_dataset has no length; expected a map-style dataset whose rows are always in the same order."
            )
        if len(self.train_dataset) != len(self.pencil_labels):
            raise TrainingError(
                f"train_dataset has {len(self.train_dataset):,} rows and pencil_labels has "
                f"{len(self.pencil_labels):,}; expected one label per row; build pencil_labels from the labels of "
                "train_dataset."
            )

    def _check_labels(self, rows: Tensor, given: Tensor) -> None:
        """Raise TrainingError if the labels of the batch differ from the labels of its rows in ``pencil_labels``."""
        expected = hard_labels(self.pencil_labels.store.given_labels)[
            rows.to(self.pencil_labels.store.given_labels.device)
        ]
        if given.ndim == 1 and not torch.equal(expected.to(given), given):
            bad = int((expected.to(given) != given).nonzero()[0])
            raise TrainingError(
                f"row {int(rows[bad])} of train_dataset has class {int(given[bad])}, but given_labels has "
                f"{int(expected[bad])}; expected the same labels in the same order."
            )


class _LabelCallback(TrainerCallback):  # type: ignore[misc]
    """Passes the Trainer's events to the labels."""

    def __init__(self, trainer: PencilTrainer):
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.trainer.pencil_labels.forget()  # an earlier attempt that ran out of memory may have left batches

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.trainer.pencil_labels.begin_epoch(int(state.epoch or 0))

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        labels = self.trainer.pencil_labels
        if self.trainer.accelerator.optimizer_step_was_skipped:  # fp16 gradients overflowed
            labels.forget()
        labels.optimizer_stepped()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.trainer.pencil_labels.epoch = None

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        safetensors.torch.save_file(self.trainer.pencil_labels.state_dict(), folder / FILE)
