"""Losses for multi-label data (an example may have several classes): every (example, class) entry is binary.

``f = sigmoid(logits)``, ``y_d = sigmoid(label_logits)``, both of shape ``(batch, classes)``; ``given_labels`` are
probabilities of the same shape, NaN for unknown entries. Unknown entries are excluded from losses and updates. Each
loss is a sum over classes and a mean over the batch, like its single-label counterpart in ``losses.py``.
"""

import torch
from torch import Tensor
from torch.nn import functional

from pencil.labels.losses import Compatibility, Divergence, NetworkLosses, at_least_fp32


def binary_cross_entropy(logits: Tensor, given_labels: Tensor) -> Tensor:
    """CE(y_hat, f), Eq. 1, for every class."""
    known = ~given_labels.isnan()
    entries = _cross_entropy(at_least_fp32(logits), torch.where(known, given_labels, 0.0))
    return _reduce(entries, known)


def inverse_binary_kl(logits: Tensor, label_logits: Tensor, known: Tensor) -> Tensor:
    """KL(f || y_d), Eq. 4-5: ``f log(f / y_d) + (1 - f) log((1 - f) / (1 - y_d))``."""
    return _reduce(_kl(at_least_fp32(logits), label_logits), known)


def forward_binary_kl(logits: Tensor, label_logits: Tensor, known: Tensor) -> Tensor:
    """KL(y_d || f), Eq. 2-3."""
    return _reduce(_kl(label_logits, at_least_fp32(logits)), known)


def binary_entropy(logits: Tensor, known: Tensor) -> Tensor:
    """H(f), L_e."""
    values = at_least_fp32(logits)
    return _reduce(_cross_entropy(values, values.sigmoid()), known)


def binary_compatibility_loss(label_logits: Tensor, given_labels: Tensor, kind: Compatibility = "printed") -> Tensor:
    """L_o: the printed CE(y_hat, y_d), or with ``y_d`` in place of logits as in the authors' single-label code."""
    return binary_cross_entropy(label_logits.sigmoid() if kind == "published" else label_logits, given_labels)


def binary_network_losses(
    logits: Tensor, label_logits: Tensor, known: Tensor, *, beta: float, class_mean: bool, divergence: Divergence
) -> NetworkLosses:
    """Return ``L_c / c + beta * L_e / c`` and its parts; the paper uses both directions of L_c for Open Images."""
    values = at_least_fp32(logits)
    classification = values.new_zeros(())
    if divergence != "forward":
        classification = inverse_binary_kl(values, label_logits, known)
    if divergence != "inverse":
        classification = classification + forward_binary_kl(values, label_logits, known)
    entropy = binary_entropy(values, known)
    scale = 1 / logits.shape[1] if class_mean else 1.0
    loss = scale * (classification + beta * entropy)
    return NetworkLosses(
        loss, classification.detach(), entropy.detach(), values.detach().sigmoid(), label_logits.sigmoid()
    )


def binary_label_gradient(
    label_logits: Tensor,
    logits: Tensor,
    given_labels: Tensor,
    *,
    pull: float = 0.0,
    compatibility: Compatibility = "printed",
    divergence: Divergence = "inverse",
) -> Tensor:
    """Return the gradient of ``L_c + pull * L_o`` with respect to the label logits, times ``B``.

    Inverse KL: ``y_d - f``. Forward KL: ``y_d (1 - y_d) (y_tilde - z)``. L_o: ``y_d - y_hat`` as printed,
    ``y_d (1 - y_d) (sigmoid(y_d) - y_hat)`` as published. Zero for unknown entries.

    Parameters
    ----------
    label_logits
        Label logits ``y_tilde``, of shape ``(batch, classes)``.
    logits
        The network's logits ``z``, of the same shape.
    given_labels
        Given probabilities ``y_hat``, of the same shape, NaN for unknown entries.
    pull
        Strength of the compatibility loss, the paper's ``alpha``.
    compatibility
        "printed" or "published"; see :func:`binary_compatibility_loss`.
    divergence
        Direction of the KL divergence in L_c: "inverse", "forward", or "both".
    """
    y_d, values = label_logits.sigmoid(), at_least_fp32(logits)
    slope = y_d * (1 - y_d)
    gradient = torch.zeros_like(y_d)
    if divergence != "forward":
        gradient += y_d - values.sigmoid()
    if divergence != "inverse":
        gradient += slope * (label_logits - values)
    if pull and compatibility == "printed":
        gradient += pull * (y_d - given_labels)
    elif pull:
        gradient += pull * slope * (y_d.sigmoid() - given_labels)
    return torch.where(given_labels.isnan(), 0.0, gradient)


def _reduce(entries: Tensor, known: Tensor) -> Tensor:
    """Return the sum over the known entries of a row, averaged over rows."""
    return torch.where(known, entries, 0.0).sum() / len(entries)


def _cross_entropy(logits: Tensor, probs: Tensor) -> Tensor:
    """Return the cross-entropy of each entry, in log space: ``softplus(z) - p z``."""
    return functional.softplus(logits) - probs * logits


def _kl(logits: Tensor, other_logits: Tensor) -> Tensor:
    """Return KL(sigmoid(logits) || sigmoid(other_logits)) of each entry, without taking the log of a probability."""
    return logits.sigmoid() * (logits - other_logits) + functional.softplus(other_logits) - functional.softplus(logits)
