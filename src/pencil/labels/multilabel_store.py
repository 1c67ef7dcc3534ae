"""The learnable labels of multi-label data: one logit per (example, class), and what they say in the end."""

import math
from typing import Any

import torch
from torch import Tensor

from pencil.data.given import as_indicators
from pencil.errors import RecipeError
from pencil.labels.losses import Compatibility
from pencil.labels.multilabel_losses import Divergence, binary_label_gradient
from pencil.labels.store import LabelStore


class BinaryLabelStore(LabelStore):
    """Probabilities per entry, kept as fp32 logits. They start at the given probability, cut off at ``probability``.

    Entries given as NaN are unknown: they stay at one half and are neither trained on nor changed.
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
            raise RecipeError(f"initial probability is {probability}; expected one between 0.5 and 1.")
        self.given_labels = as_indicators(given_labels).to(device, dtype)
        self.num_classes = self.given_labels.shape[1]
        self.scale = math.log(probability / (1 - probability))
        self.dtype = dtype
        self.known = ~self.given_labels.isnan()
        self.reset()

    def initial_logits(self, rows: Tensor | None = None) -> Tensor:
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
        """``y_tilde -= step * gradient`` for these rows; see :func:`binary_label_gradient`."""
        label_logits, given = self[rows], self.given_labels.index_select(0, rows)
        gradient = binary_label_gradient(
            label_logits, logits.detach(), given, pull=pull, compatibility=compatibility, divergence=divergence
        )
        self._refuse_non_finite(rows, gradient)
        self.write(rows, label_logits.sub_(gradient, alpha=step))

    def to_probs(self, label_logits: Tensor) -> Tensor:
        return label_logits.sigmoid()

    def evidence(self, pull: float, rows: Tensor | None = None) -> Tensor:
        """``(1 + pull) * y_d - pull * y_hat``: the printed compatibility term taken out, as for one class."""
        probs = self.probs(rows)
        if not pull:
            return probs
        return probs.mul_(1 + pull).sub_(self.to_probs(self.initial_logits(rows)), alpha=pull).clamp_(0, 1)
