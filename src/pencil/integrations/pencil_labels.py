"""PENCIL's three phases for a loop that is not ours: which loss to train on in this epoch, and when labels move."""

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils.data import Dataset

from pencil.errors import RecipeError, TrainingError
from pencil.labels.losses import Compatibility, cross_entropy, pencil_loss
from pencil.labels.store import LabelStore, init_scale

PhaseName = Literal["backbone", "correction", "finetune"]
INIT_PROBABILITY = 0.999
STATE = "label_logits"


class PencilLabels:
    """The labels of a training set, which learn beside a network.

    The loop says three things: which epoch has begun (:meth:`begin_epoch`), what the network says about which rows
    (:meth:`loss`, which gives what to train on), and that the optimizer has stepped (:meth:`optimizer_stepped`, upon
    which labels move). The integrations say the first and the last by themselves. ``step``, ``pull``, ``beta`` and
    ``compatibility`` are those of the method ``pencil``; the learning rate is the loop's own: high and constant while
    labels move, falling in the end.
    """

    def __init__(
        self,
        given_labels: Any,
        num_classes: int | None = None,
        *,
        backbone_epochs: int,
        correction_epochs: int,
        step: float = 2.0,
        pull: float = 0.0,
        beta: float = 0.4,
        compatibility: Compatibility = "published",
        class_mean: bool = True,
        scale: float | None = None,
    ):
        if backbone_epochs < 0 or correction_epochs < 1:
            raise RecipeError(
                f"backbone_epochs is {backbone_epochs} and correction_epochs {correction_epochs}; "
                "expected at least 0 and 1: without correction no label ever moves."
            )
        self.store = LabelStore(given_labels, num_classes)
        self.store.scale = init_scale(INIT_PROBABILITY, self.store.num_classes) if scale is None else scale
        self.store.reset()
        self.backbone_epochs, self.correction_epochs = backbone_epochs, correction_epochs
        self.step, self.pull, self.beta = step, pull, beta
        self.compatibility: Compatibility = compatibility
        self.class_mean = class_mean
        self.epoch: int | None = None
        self._said: list[tuple[Tensor, Tensor]] = []

    def __len__(self) -> int:
        return len(self.store)

    def begin_epoch(self, epoch: int) -> None:
        """Epochs count from zero."""
        self.epoch = epoch

    @property
    def phase(self) -> PhaseName:
        if self.epoch is None:
            raise TrainingError(
                "no epoch has begun; expected begin_epoch(0) first: give the Lightning Trainer "
                "callbacks=[PencilCallback(labels)], or train with PencilTrainer."
            )
        if self.epoch < self.backbone_epochs:
            return "backbone"
        return "correction" if self.epoch < self.backbone_epochs + self.correction_epochs else "finetune"

    def loss(self, logits: Tensor, rows: Tensor) -> Tensor:
        """What this batch is trained on; ``rows`` are the places of its examples in ``given_labels``."""
        phase = self.phase
        self._follow(logits.device)
        rows = self._checked(rows.to(logits.device), logits)
        if phase == "backbone":
            return cross_entropy(logits, self.store.given_labels.index_select(0, rows))
        if phase == "correction":
            self._said.append((rows, logits.detach()))
        beta = self.beta if phase == "correction" else 0.0
        return pencil_loss(logits, self.store[rows], beta=beta, class_mean=self.class_mean)

    def optimizer_stepped(self) -> None:
        """Move the labels of every batch since the last step: one, or several where gradients are accumulated."""
        said, self._said = self._said, []
        for rows, logits in said:
            self.store.update(rows, logits, step=self.step, pull=self.pull, compatibility=self.compatibility)

    def forget(self) -> None:
        """The step on what was said last did not happen, so no label moves for it."""
        self._said = []

    def probs(self) -> Tensor:
        """The label distributions; a printed compatibility term so strong that no label could flip is taken out."""
        holds_all = self.compatibility == "printed" and self.pull >= 1
        return self.store.evidence(self.pull if holds_all else 0.0)

    def corrected(self) -> Tensor:
        """The most probable class of every row."""
        return self.probs().argmax(dim=1)

    def state_dict(self) -> dict[str, Tensor]:
        return {STATE: self.store.label_logits.cpu().clone()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        seen, expected = tuple(state[STATE].shape), tuple(self.store.label_logits.shape)
        if seen != expected:
            raise TrainingError(
                f"the saved labels are of {seen[0]:,} rows and {seen[1]} classes; expected {expected[0]:,} and "
                f"{expected[1]}: go on with the training set that they were saved with."
            )
        self.store.load_state_dict(state)
        self.forget()

    def _follow(self, device: torch.device) -> None:
        """Labels live where the network speaks, so that no step waits for a copy."""
        store = self.store
        if store.label_logits.device != device:
            store.label_logits, store.given_labels = store.label_logits.to(device), store.given_labels.to(device)
            store.pinned = None if store.pinned is None else store.pinned.to(device)

    def _checked(self, rows: Tensor, logits: Tensor) -> Tensor:
        """Rows that cannot be right would teach the wrong labels without a word."""
        expected = (len(rows), self.store.num_classes)
        if rows.ndim != 1 or tuple(logits.shape) != expected:
            raise TrainingError(
                f"logits are of shape {tuple(logits.shape)} and rows of {tuple(rows.shape)}; "
                f"expected one row number for each example and {self.store.num_classes} logits."
            )
        if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < len(self):
            raise TrainingError(
                f"a batch has rows {int(rows.min())} to {int(rows.max())}; expected 0 to {len(self) - 1}, the places "
                "in given_labels: wrap the training set in WithRows, and call loss in training only."
            )
        if len(rows.unique()) < len(rows):
            raise TrainingError("a batch names a row twice; expected each once: draw examples without replacement.")
        return rows


ROW = "row"
"""The name of the row number in examples that are mappings."""


class WithRows(Dataset[Any]):
    """Any map-style dataset, each of whose examples also says its row: ``(x, y, row)``, or a mapping with a ``row``.

    >>> WithRows([("a", 0), ("b", 1)])[1]
    ('b', 1, 1)
    """

    def __init__(self, dataset: Any):
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, row: int) -> Any:
        example = self.dataset[row]
        return {**example, ROW: row} if isinstance(example, Mapping) else (*example, row)
