"""The label store of multi-label data: one label logit per (example, class)."""

import math
from typing import Any

import torch
from torch import Tensor

from pencil.data.given.given_labels import as_indicators
from pencil.errors import RecipeError
from pencil.labels.losses import Compatibility, Divergence
from pencil.labels.multilabel_losses import binary_label_gradient
from pencil.labels.rows import apply_gradient
from pencil.labels.store import LabelStore


class MultilabelStore(LabelStore):
    """The label probabilities of multi-label data (an example may have several classes), kept as fp32 logits.

    Unknown entries stay at one half; they are neither trained on nor changed. :class:`pencil.LabelStore` documents all
    other members.

    Parameters
    ----------
    given_labels
        Probabilities of shape ``(rows, classes)``, NaN where an entry is unknown.
    probability
        Initial probability of an entry that is given as 1 (entries given as 0 start at one minus it); soft labels in
        between start at the given probability.
    device, dtype
        As for :class:`pencil.LabelStore`.
    """

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
        self.scale, self.dtype = math.log(probability / (1 - probability)), dtype
        self.pinned: Tensor | None = None
        self.reset()

    def initial_logits(self, rows: Tensor | None = None) -> Tensor:
        """Return the logits of the given probabilities, clipped at the initial probability."""
        given = self.given_labels if rows is None else self.given_labels[rows]
        return given.nan_to_num(0.5).logit().clamp_(-self.scale, self.scale)

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

        The arguments are those of :meth:`pencil.LabelStore.update`, but ``step`` is ``lambda / B`` in the paper's
        symbols, and ``pull`` is its ``alpha``; ``divergence`` is the direction of the KL divergence in L_c.
        """
        label_logits, given = self[rows], self.given_labels.index_select(0, rows)
        gradient = binary_label_gradient(
            label_logits, logits.detach(), given, pull=pull, compatibility=compatibility, divergence=divergence
        )
        apply_gradient(self, rows, label_logits, gradient, step)

    def to_probs(self, label_logits: Tensor) -> Tensor:
        """Return ``y_d = sigmoid(y_tilde)``."""
        return label_logits.sigmoid()

    def _anchor_free(self, label_probs: Tensor, initial_probs: Tensor, pull: float) -> Tensor:
        """Return ``(1 + pull) * y_d - pull * y_hat`` of each entry, as for single labels."""
        return label_probs.mul_(1 + pull).sub_(initial_probs, alpha=pull).clamp_(0, 1)
