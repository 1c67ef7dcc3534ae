"""The label store of multi-label data: one label logit per (example, class)."""

import math
from typing import Any

import torch
from torch import Tensor

from pencil.data.given.given_labels import as_indicators
from pencil.errors import RecipeError
from pencil.labels.losses import Compatibility, Divergence
from pencil.labels.multilabel_losses import binary_label_gradient
from pencil.labels.protocol import Labels
from pencil.labels.rows import apply_gradient, drop_pinned, set_rows


class MultilabelStore:
    """The label probabilities of multi-label data (an example may have several classes), kept as fp32 logits.

    Unknown entries stay at one half; they are neither trained on nor changed.

    Parameters
    ----------
    given_labels
        Probabilities of shape ``(rows, classes)``, NaN where an entry is unknown.
    probability
        Initial probability of an entry that is given as 1 (entries given as 0 start at one minus it); soft labels in
        between start at the given probability.
    device
        Where the labels are kept.
    dtype
        Dtype of the label logits; use fp32 under mixed precision too.

    Attributes
    ----------
    label_logits
        The label logits of all rows.
    known
        True for the entries that are given.
    True for rows whose labels never move; None if every row may move.
        True for the rows that never move; None where every row may move.
    """

    local_rows: Tensor | None = None

    def __init__(
        self,
        given_labels: Any,
        *,
        probability: float = 0.99,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float32,
    ):
        if not 0.5 < probability < 1:
            raise RecipeError(f"initial probability is {probability}; expected a value between 0.5 and 1.")
        self.given_labels = as_indicators(given_labels).to(device, dtype)
        self.num_classes = self.given_labels.shape[1]
        self.known = ~self.given_labels.isnan()
        self.scale = math.log(probability / (1 - probability))
        self.pinned: Tensor | None = None
        self.reset()

    @property
    def local(self) -> Labels:
        return self

    def initial_logits(self, rows: Tensor | None = None) -> Tensor:
        """Return the logits of the given probabilities, clipped at the initial probability."""
        given = self.given_labels if rows is None else self.given_labels[rows]
        return given.nan_to_num(0.5).logit().clamp_(-self.scale, self.scale)

    def reset(self) -> None:
        """Replace all labels by the given labels."""
        self.label_logits = self.initial_logits()

    def __len__(self) -> int:
        return len(self.label_logits)

    def __repr__(self) -> str:
        return f"MultilabelStore({len(self):,} rows, {self.num_classes:,} classes, on {self.label_logits.device})"

    def __getitem__(self, rows: Tensor) -> Tensor:
        """Return a copy of the label logits of these rows."""
        return self.label_logits.index_select(0, rows)

    def update(
        self,
        rows: Tensor,
        logits: Tensor,
        *,
        step: float,
        pull: float = 0.0,
        compatibility: Compatibility = "printed",
        divergence: Divergence = "inverse",
    ) -> None:
        """``y_tilde -= step * gradient`` for these rows, with the gradient of :func:`binary_label_gradient`.

        Parameters
        ----------
        rows
            Row numbers of the examples, without repeats.
        logits
            The network's logits for them, of shape ``(batch, classes)``; no gradient flows back.
        step
            Step size, ``lambda / B`` in the paper's symbols.
        pull
            Strength of the compatibility loss, the paper's ``alpha``.
        compatibility, divergence
            The loss that the gradient belongs to; see :func:`binary_label_gradient`.

        Raises
        ------
        TrainingError
            If logits are not finite. No label is changed in this case.
        """
        label_logits, given = self[rows], self.given_labels.index_select(0, rows)
        gradient = binary_label_gradient(
            label_logits, logits.detach(), given, pull=pull, compatibility=compatibility, divergence=divergence
        )
        apply_gradient(self, rows, label_logits, gradient, step)

    def write(self, rows: Tensor, label_logits: Tensor) -> None:
        """Replace the label logits of these rows, without repeats; pinned rows stay as they are."""
        set_rows(self.label_logits, *drop_pinned(self.pinned, rows, label_logits))

    def to_probs(self, label_logits: Tensor) -> Tensor:
        """Return ``y_d = sigmoid(y_tilde)``."""
        return label_logits.sigmoid()

    def probs(self, rows: Tensor | None = None) -> Tensor:
        """Return the label probabilities of these rows (all rows by default)."""
        return self.to_probs(self.label_logits if rows is None else self[rows])

    def evidence(self, pull: float, rows: Tensor | None = None) -> Tensor:
        """Return ``(1 + pull) * y_d - pull * y_hat``: the printed compatibility term removed, as for single labels."""
        probs = self.probs(rows)
        if not pull:
            return probs
        return probs.mul_(1 + pull).sub_(self.to_probs(self.initial_logits(rows)), alpha=pull).clamp_(0, 1)

    def mean(self, local_mean: Tensor) -> Tensor:
        """Return the value unchanged: all rows are local."""
        return local_mean

    def gather(self, local_values: Tensor) -> Tensor:
        """Return the values unchanged: all rows are local."""
        return local_values

    def state_dict(self) -> dict[str, Tensor]:
        return {"label_logits": self.label_logits}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.label_logits.copy_(state["label_logits"])
