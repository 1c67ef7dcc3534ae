"""PENCIL's three phases for any training loop: the loss of the current epoch, and the label updates."""

from collections.abc import Mapping
from typing import Any, Literal

from torch import Tensor
from torch.utils.data import Dataset

from pencil.data.given.given_labels import as_given_labels
from pencil.errors import RecipeError, TrainingError
from pencil.labels.losses import Compatibility, cross_entropy, is_held, pencil_loss
from pencil.labels.store import LabelStore, init_scale

PhaseName = Literal["backbone", "correction", "finetune"]
INIT_PROBABILITY = 0.999
STATE = "label_logits"


class PencilLabels:
    """The learnable labels of a training set, for a training loop outside pencil.

    The loop makes three calls: :meth:`begin_epoch` at the start of an epoch, :meth:`loss` for the loss of a batch, and
    :meth:`optimizer_stepped` after the optimizer's step, which updates the labels of that batch. The integrations make
    the first and the last call. The loop sets the learning rate: high and constant while labels are updated, decaying
    during fine-tuning.

    Parameters
    ----------
    given_labels
        Class indices of shape ``(rows,)`` or distributions of shape ``(rows, classes)``, in the order of the dataset.
    num_classes
        Number of classes; by default the largest class index plus one, or the number of columns.
    backbone_epochs
        Epochs of cross-entropy with the given labels.
    correction_epochs
        Epochs in which labels are updated. All later epochs fine-tune the network on the fixed labels.
    step, pull, beta, compatibility, class_mean
        As in the method ``pencil``: step size of the labels, strength and kind of the compatibility loss (see
        :meth:`pencil.LabelStore.update`), weight of the entropy loss and the mean over classes (see
        :func:`pencil.pencil_loss`).
    scale
        K of Eq. 8; by default such that the given class starts at a probability of 0.999.

    Attributes
    ----------
    store
        The :class:`pencil.LabelStore` that holds the labels.
    epoch
        The current epoch, counted from zero; None outside of training.
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
                "expected at least 0 and 1, because labels are only updated in correction epochs; set more epochs."
            )
        given, classes = as_given_labels(given_labels, num_classes)
        self.store = LabelStore(given, classes, scale=init_scale(INIT_PROBABILITY, classes) if scale is None else scale)
        self.backbone_epochs, self.correction_epochs = backbone_epochs, correction_epochs
        self.step, self.pull, self.beta = step, pull, beta
        self.compatibility: Compatibility = compatibility
        self.class_mean = class_mean
        self.epoch: int | None = None
        self._pending: list[tuple[Tensor, Tensor]] = []

    def __len__(self) -> int:
        return len(self.store)

    def begin_epoch(self, epoch: int) -> None:
        """Set the current epoch, counted from zero."""
        self.epoch = epoch

    @property
    def phase(self) -> PhaseName:
        """The phase of the current epoch."""
        if self.epoch is None:
            raise TrainingError(
                "no epoch has started; expected begin_epoch(0) before the first loss; pass "
                "callbacks=[PencilCallback(labels)] to the Lightning Trainer, or train with PencilTrainer."
            )
        if self.epoch < self.backbone_epochs:
            return "backbone"
        return "correction" if self.epoch < self.backbone_epochs + self.correction_epochs else "finetune"

    def loss(self, logits: Tensor, rows: Tensor) -> Tensor:
        """Return the loss of a batch in the current phase.

        Parameters
        ----------
        logits
            The network's logits, of shape ``(batch, classes)``.
        rows
            Row numbers of the batch's examples in ``given_labels``, without duplicates; see :class:`WithRows`.
        """
        phase = self.phase
        if self.store.label_logits.device != logits.device:  # only once; later steps need no copy
            self.store.to(logits.device)
        rows = self._checked(rows.to(logits.device), logits)
        if phase == "backbone":
            return cross_entropy(logits, self.store.given_labels.index_select(0, rows))
        if phase == "correction":
            self._pending.append((rows, logits.detach()))
        beta = self.beta if phase == "correction" else 0.0
        return pencil_loss(logits, self.store[rows], beta=beta, class_mean=self.class_mean)

    def optimizer_stepped(self) -> None:
        """Update the labels of every batch since the last step: one, or several with accumulated gradients."""
        pending, self._pending = self._pending, []
        for rows, logits in pending:
            self.store.update(rows, logits, step=self.step, pull=self.pull, compatibility=self.compatibility)

    def forget(self) -> None:
        """Discard the batches since the last step because their step was skipped; their labels are not updated."""
        self._pending = []

    def probs(self) -> Tensor:
        """Return the label distributions, without the effect of a compatibility loss that lets no label change."""
        pull = self.pull if is_held(self.pull, self.compatibility) else 0.0
        return self.store.evidence(pull, compatibility=self.compatibility)

    def corrected(self) -> Tensor:
        """Return the corrected label of every row: its most probable class."""
        return self.probs().argmax(dim=1)

    def state_dict(self) -> dict[str, Tensor]:
        """Return a copy of the label logits on the CPU."""
        return {STATE: self.store.label_logits.cpu().clone()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore the state returned by :meth:`state_dict`."""
        seen, expected = tuple(state[STATE].shape), tuple(self.store.label_logits.shape)
        if seen != expected:
            raise TrainingError(
                f"the saved labels have {seen[0]:,} rows and {seen[1]} classes; expected {expected[0]:,} and "
                f"{expected[1]}; resume with the training set that they were saved with."
            )
        self.store.load_state_dict(state)
        self.forget()

    def _checked(self, rows: Tensor, logits: Tensor) -> Tensor:
        """Return the checked rows; wrong rows would silently train on the labels of other examples."""
        expected = (len(rows), self.store.num_classes)
        if rows.ndim != 1 or tuple(logits.shape) != expected:
            raise TrainingError(
                f"logits have shape {tuple(logits.shape)} and rows have shape {tuple(rows.shape)}; expected one row "
                f"number and {self.store.num_classes} logits per example; pass logits and rows of the same batch."
            )
        if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < len(self):
            raise TrainingError(
                f"a batch has rows {int(rows.min())} to {int(rows.max())}; expected 0 to {len(self) - 1}, the row "
                "numbers of given_labels; wrap the training set in WithRows, and call loss only in training."
            )
        if len(rows.unique()) < len(rows):
            raise TrainingError(
                "a batch contains a row twice; expected each row once; sample examples without replacement."
            )
        return rows


ROW = "row"
"""The key of the row number in examples that are mappings."""


class WithRows(Dataset[Any]):
    """Any map-style dataset with the row number added to every example: ``(x, y, row)``, or a mapping with ``row``.

    >>> WithRows([("a", 0), ("b", 1)])[1]
    ('b', 1, 1)

    Parameters
    ----------
    dataset
        Examples are tuples or mappings; example ``i`` has row number ``i``.
    """

    def __init__(self, dataset: Any):
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, row: int) -> Any:
        example = self.dataset[row]
        return {**example, ROW: row} if isinstance(example, Mapping) else (*example, row)
