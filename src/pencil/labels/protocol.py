"""The protocol of a label store: what methods, the trainer and resuming need from it."""

from typing import Protocol, runtime_checkable

from torch import Tensor

from pencil.labels.losses import Compatibility

HeldOut = tuple[Tensor, Tensor]
"""Logits and (noisy) given labels of held-out rows."""


@runtime_checkable
class Labels(Protocol):
    """The learnable labels of a training set: one row of label logits per example.

    A process holds all rows, or in a sharded store only some of them, its local rows. ``labels[rows]`` and
    :meth:`write` take row numbers of the whole training set; in a sharded store all ranks must call them together. All
    other members work on the local rows and need no other rank, except :meth:`mean` and :meth:`gather`.

    Attributes
    ----------
    num_classes
        Number of columns of the label logits.
    given_labels
        Given labels of the local rows.
    pinned
        True for local rows whose labels never move; None if every row may move.
    local_rows
        Row numbers of the local rows; None if all rows are local.
    local
        The store of the local rows, with row numbers from zero; the store itself if all rows are local.
    """

    pinned: Tensor | None

    @property
    def num_classes(self) -> int: ...

    @property
    def given_labels(self) -> Tensor: ...

    @property
    def local_rows(self) -> Tensor | None: ...

    @property
    def local(self) -> "Labels": ...

    def __len__(self) -> int:
        """Return the number of rows of the whole training set."""

    def __getitem__(self, rows: Tensor) -> Tensor:
        """Return a copy of the label logits of these rows."""

    def write(self, rows: Tensor, label_logits: Tensor) -> None:
        """Replace the label logits of these rows, without repeats; pinned rows stay as they are."""

    def reset(self) -> None:
        """Replace all labels, including pinned ones, by the given labels."""

    def initial_logits(self, rows: Tensor | None = None) -> Tensor:
        """Return the label logits that :meth:`reset` sets, for all local rows or for these local positions."""

    def to_probs(self, label_logits: Tensor) -> Tensor:
        """Return the label distributions of these label logits."""

    def probs(self, rows: Tensor | None = None) -> Tensor:
        """Return the label distributions of all local rows, or of these local positions."""

    def evidence(self, pull: float, rows: Tensor | None = None, compatibility: Compatibility = "printed") -> Tensor:
        """Return :meth:`probs` without the effect of a compatibility loss of strength ``pull``."""

    def mean(self, local_mean: Tensor) -> Tensor:
        """Return the mean over all rows of the training set, given the mean over the local rows."""

    def gather(self, local_values: Tensor) -> Tensor:
        """Return the values of all rows in order, given the values of the local rows."""

    def state_dict(self) -> dict[str, Tensor]:
        """Return what :meth:`load_state_dict` needs to restore the labels of the local rows; not a copy."""

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore the labels of the local rows."""
