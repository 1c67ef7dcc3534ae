"""One protocol for the label mathematics of single-label and multi-label data, so that a method needs no branches."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from pencil.errors import RecipeError
from pencil.labels.losses import (
    Compatibility,
    Divergence,
    NetworkLosses,
    compatibility_loss,
    cross_entropy,
    entropy_loss,
    forward_kl,
    network_losses,
)
from pencil.labels.multilabel_losses import (
    binary_compatibility_loss,
    binary_cross_entropy,
    binary_label_gradient,
    binary_network_losses,
)
from pencil.labels.multilabel_store import MultilabelStore
from pencil.labels.protocol import Labels
from pencil.labels.store import LabelStore, forward_kl_label_gradient, init_scale, label_gradient
from pencil.labels.top_k import TopKLabelStore

SINGLE_LABEL_PROBABILITY = 0.999
MULTI_LABEL_PROBABILITY = 0.99
"""Initial probability of the given label, unless another one is chosen."""


class LabelForm(Protocol):
    """The mathematics of PENCIL for one form of labels; tensors hold one batch."""

    def given_loss(self, logits: Tensor, given_labels: Tensor) -> Tensor:
        """Return the cross-entropy with the given labels, Eq. 1."""

    def store(
        self,
        given_labels: Tensor,
        num_classes: int,
        *,
        top_k: int | None,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> Labels:
        """Return a new store of learnable labels, with ``top_k`` entries per row or with all entries."""

    def network_losses(
        self, logits: Tensor, label_logits: Tensor, given_labels: Tensor, *, beta: float, class_mean: bool
    ) -> NetworkLosses:
        """Return ``L_c / c + beta * L_e / c`` and its parts."""

    def label_gradient(
        self, losses: NetworkLosses, logits: Tensor, label_logits: Tensor, given_labels: Tensor, pull: float
    ) -> Tensor:
        """Return the gradient by which labels move with step size ``step``; ``losses`` belong to the same batch."""

    def compatibility_loss(self, label_logits: Tensor, given_labels: Tensor) -> Tensor:
        """Return L_o of these rows."""

    def paper_factors(self, batch_size: int, num_classes: int) -> tuple[float, float]:
        """Return ``step / lambda`` and ``pull / alpha``."""


@dataclass(frozen=True)
class SingleLabel:
    """Softmax: every example has exactly one class.

    Parameters
    ----------
    divergence
        Direction of the KL divergence in L_c: "inverse" (the paper's), "forward", or "both".
    compatibility
        Which L_o is used; see :func:`pencil.compatibility_loss`.
    probability
        Initial probability of the given class; 0.999 by default.
    init_scale
        The paper's K; replaces ``probability``.
    """

    divergence: Divergence
    compatibility: Compatibility
    probability: float | None
    init_scale: float | None

    def given_loss(self, logits: Tensor, given_labels: Tensor) -> Tensor:
        return cross_entropy(logits, given_labels)

    def store(
        self,
        given_labels: Tensor,
        num_classes: int,
        *,
        top_k: int | None,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> Labels:
        probability = SINGLE_LABEL_PROBABILITY if self.probability is None else self.probability
        scale = init_scale(probability, num_classes) if self.init_scale is None else self.init_scale
        if top_k is not None:
            return TopKLabelStore(given_labels, num_classes, k=top_k, scale=scale, device=device, dtype=dtype)
        return LabelStore(given_labels, num_classes, scale=scale, device=device, dtype=dtype)

    def network_losses(
        self, logits: Tensor, label_logits: Tensor, given_labels: Tensor, *, beta: float, class_mean: bool
    ) -> NetworkLosses:
        inverse = network_losses(logits, label_logits, beta=beta, class_mean=class_mean)
        if self.divergence == "inverse":
            return inverse
        forward, scale = forward_kl(logits, label_logits), 1 / logits.shape[1] if class_mean else 1.0
        if self.divergence == "both":
            both = inverse.classification + forward.detach()
            return inverse._replace(loss=inverse.loss + scale * forward, classification=both)
        loss = scale * (forward + beta * entropy_loss(logits))
        return inverse._replace(loss=loss, classification=forward.detach())

    def label_gradient(
        self, losses: NetworkLosses, logits: Tensor, label_logits: Tensor, given_labels: Tensor, pull: float
    ) -> Tensor:
        # Forward KL alone has no inverse part: y_d - y_d = 0.
        probs = losses.label_probs if self.divergence == "forward" else losses.probs
        gradient = label_gradient(losses.label_probs, probs, given_labels, pull=pull, compatibility=self.compatibility)
        if self.divergence == "inverse":
            return gradient
        return gradient + forward_kl_label_gradient(label_logits, logits)

    def compatibility_loss(self, label_logits: Tensor, given_labels: Tensor) -> Tensor:
        return compatibility_loss(label_logits, given_labels, self.compatibility)

    def paper_factors(self, batch_size: int, num_classes: int) -> tuple[float, float]:
        return 1 / (batch_size * num_classes), num_classes


@dataclass(frozen=True)
class MultiLabel:
    """Sigmoid: each class of an example is present or absent independently.

    Each entry is a binary problem, so lambda and alpha apply without the number of classes: ``step = lambda / B``,
    ``pull = alpha``. (With another factor of 1/c, the paper's lambda of 300 would move an Open Images label by only
    0.6.)

    Parameters
    ----------
    divergence
        Direction of the KL divergence in L_c: "inverse", "forward", or "both" (the paper's for Open Images).
    compatibility
        Which L_o is used; see :func:`pencil.compatibility_loss`.
    probability
        Initial probability of an entry that is given as present; 0.99 by default.
    """

    divergence: Divergence
    compatibility: Compatibility
    probability: float | None

    def given_loss(self, logits: Tensor, given_labels: Tensor) -> Tensor:
        return binary_cross_entropy(logits, given_labels) / logits.shape[1]

    def store(
        self,
        given_labels: Tensor,
        num_classes: int,
        *,
        top_k: int | None,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> Labels:
        if top_k is not None:  # the sum of a row's logits is not constant here, so dropped entries would be lost
            raise RecipeError(
                f"training.label_top_k is {top_k}, but the data is multi-label; top-k labels need single-label data; "
                "remove label_top_k."
            )
        probability = MULTI_LABEL_PROBABILITY if self.probability is None else self.probability
        return MultilabelStore(given_labels, probability=probability, device=device, dtype=dtype)

    def network_losses(
        self, logits: Tensor, label_logits: Tensor, given_labels: Tensor, *, beta: float, class_mean: bool
    ) -> NetworkLosses:
        known = ~given_labels.isnan()
        return binary_network_losses(
            logits, label_logits, known, beta=beta, class_mean=class_mean, divergence=self.divergence
        )

    def label_gradient(
        self, losses: NetworkLosses, logits: Tensor, label_logits: Tensor, given_labels: Tensor, pull: float
    ) -> Tensor:
        return binary_label_gradient(
            label_logits,
            logits,
            given_labels,
            pull=pull,
            compatibility=self.compatibility,
            divergence=self.divergence,
        )

    def compatibility_loss(self, label_logits: Tensor, given_labels: Tensor) -> Tensor:
        return binary_compatibility_loss(label_logits, given_labels, self.compatibility)

    def paper_factors(self, batch_size: int, num_classes: int) -> tuple[float, float]:
        return 1 / batch_size, 1.0


def label_form(
    multilabel: bool,
    divergence: Divergence = "inverse",
    compatibility: Compatibility = "published",
    probability: float | None = None,
    init_scale: float | None = None,
) -> LabelForm:
    """Return the label mathematics of single-label or multi-label data; see :class:`SingleLabel`."""
    if not multilabel:
        return SingleLabel(divergence, compatibility, probability, init_scale)
    if init_scale is not None:
        raise RecipeError(
            f"init_scale is {init_scale}, but the data is multi-label; init_scale needs single-label data; "
            "set init_probability instead."
        )
    return MultiLabel(divergence, compatibility, probability)
