"""Two kinds of labels, one method: an example is of one class, or may be of several at once."""

from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from pencil.errors import RecipeError
from pencil.labels.losses import (
    Compatibility,
    NetworkLosses,
    compatibility_loss,
    cross_entropy,
    entropy_loss,
    forward_kl,
    network_losses,
)
from pencil.labels.multilabel_losses import (
    Divergence,
    binary_compatibility_loss,
    binary_cross_entropy,
    binary_label_gradient,
    binary_network_losses,
)
from pencil.labels.multilabel_store import BinaryLabelStore
from pencil.labels.store import LabelStore, forward_kl_label_gradient, init_scale, label_gradient
from pencil.labels.top_k import TopKLabelStore


class LabelKind(Protocol):
    """The mathematics of PENCIL for one kind of labels."""

    def given_loss(self, logits: Tensor, given_labels: Tensor) -> Tensor:
        """Eq. 1 on the labels as they were given."""

    def store(self, given_labels: Tensor, num_classes: int, *, top_k: int | None, **where: Any) -> LabelStore:
        """The labels to be learned."""

    def network_losses(
        self, logits: Tensor, label_logits: Tensor, given_labels: Tensor, *, beta: float, class_mean: bool
    ) -> NetworkLosses:
        """``L_c / c + beta * L_e / c`` and its parts."""

    def label_gradient(
        self, losses: NetworkLosses, logits: Tensor, label_logits: Tensor, given_labels: Tensor, pull: float
    ) -> Tensor:
        """The direction in which labels move, in units of ``step``."""

    def compatibility(self, label_logits: Tensor, given_labels: Tensor) -> Tensor:
        """L_o over these rows."""

    def scale(self, batch_size: int, num_classes: int) -> tuple[float, float]:
        """What turns the paper's lambda and alpha into step and pull."""


@dataclass(frozen=True)
class OneClass:
    """Softmax: each example is of exactly one class."""

    divergence: Divergence
    compatibility_kind: Compatibility
    probability: float | None
    init_scale: float | None

    def given_loss(self, logits: Tensor, given_labels: Tensor) -> Tensor:
        return cross_entropy(logits, given_labels)

    def store(self, given_labels: Tensor, num_classes: int, *, top_k: int | None, **where: Any) -> LabelStore:
        probability = 0.999 if self.probability is None else self.probability
        scale = init_scale(probability, num_classes) if self.init_scale is None else self.init_scale
        if top_k is not None:
            return TopKLabelStore(given_labels, num_classes, k=top_k, scale=scale, **where)
        return LabelStore(given_labels, num_classes, scale=scale, **where)

    def network_losses(
        self, logits: Tensor, label_logits: Tensor, given_labels: Tensor, *, beta: float, class_mean: bool
    ) -> NetworkLosses:
        inverse = network_losses(logits, label_logits, beta=beta, class_mean=class_mean)
        if self.divergence == "inverse":
            return inverse
        forward, share = forward_kl(logits, label_logits), 1 / logits.shape[1] if class_mean else 1.0
        if self.divergence == "both":
            both = inverse.classification + forward.detach()
            return inverse._replace(loss=inverse.loss + share * forward, classification=both)
        loss = share * (forward + beta * entropy_loss(logits))
        return inverse._replace(loss=loss, classification=forward.detach())

    def label_gradient(
        self, losses: NetworkLosses, logits: Tensor, label_logits: Tensor, given_labels: Tensor, pull: float
    ) -> Tensor:
        kind = self.compatibility_kind
        towards = (
            losses.label_probs if self.divergence == "forward" else losses.probs
        )  # forward KL alone: y_d - y_d = 0
        gradient = label_gradient(losses.label_probs, towards, given_labels, pull=pull, compatibility=kind)
        if self.divergence == "inverse":
            return gradient
        return gradient + forward_kl_label_gradient(label_logits, logits)

    def compatibility(self, label_logits: Tensor, given_labels: Tensor) -> Tensor:
        return compatibility_loss(label_logits, given_labels, self.compatibility_kind)

    def scale(self, batch_size: int, num_classes: int) -> tuple[float, float]:
        return 1 / (batch_size * num_classes), num_classes


@dataclass(frozen=True)
class ManyClasses:
    """Sigmoid: each class is present or absent by itself.

    Every entry is a binary problem, so lambda and alpha act on it as they stand: ``step = lambda / B``,
    ``pull = alpha``. (With a further 1/c the paper's lambda of 300 would move a label of Open Images by 0.6 in all.)
    """

    divergence: Divergence
    compatibility_kind: Compatibility
    probability: float | None

    def given_loss(self, logits: Tensor, given_labels: Tensor) -> Tensor:
        return binary_cross_entropy(logits, given_labels) / logits.shape[1]

    def store(self, given_labels: Tensor, num_classes: int, *, top_k: int | None, **where: Any) -> LabelStore:
        if top_k is not None:  # nothing ties the entries of a row together
            raise RecipeError("training.label_top_k is for one class per example; these labels name several at once.")
        return BinaryLabelStore(
            given_labels, probability=0.99 if self.probability is None else self.probability, **where
        )

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
            compatibility=self.compatibility_kind,
            divergence=self.divergence,
        )

    def compatibility(self, label_logits: Tensor, given_labels: Tensor) -> Tensor:
        return binary_compatibility_loss(label_logits, given_labels, self.compatibility_kind)

    def scale(self, batch_size: int, num_classes: int) -> tuple[float, float]:
        return 1 / batch_size, 1.0


def label_kind(
    multilabel: bool,
    divergence: Divergence = "inverse",
    compatibility: Compatibility = "published",
    probability: float | None = None,
    init_scale: float | None = None,
) -> LabelKind:
    """The mathematics that a task's labels need."""
    if not multilabel:
        return OneClass(divergence, compatibility, probability, init_scale)
    if init_scale is not None:
        raise RecipeError("init_scale is for one class per example; several at once start at init_probability.")
    return ManyClasses(divergence, compatibility, probability)
