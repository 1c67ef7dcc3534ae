"""The losses of the paper, one pure function per equation.

Every loss takes logits of shape ``(batch, classes)``, computes in log space and in at least fp32, and returns the mean
over the batch. ``f = softmax(logits)`` is the network's prediction, ``y_d = softmax(label_logits)`` the label
distribution (Eq. 7), ``given_labels`` the possibly wrong labels: class indices ``(batch,)`` or distributions
``(batch, classes)``.
"""

from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

Compatibility = Literal["printed", "published"]
COMPATIBILITIES = get_args(Compatibility)
Divergence = Literal["inverse", "forward", "both"]
"""Direction of the KL divergence of L_c."""


def at_least_fp32(values: Tensor) -> Tensor:
    """Return half-precision values as fp32 (bf16's spacing near 10 exceeds a typical label update); fp64 stays."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def log_probs(logits: Tensor) -> Tensor:
    """Return ``log softmax(logits)`` in at least fp32."""
    return at_least_fp32(logits).log_softmax(dim=1)


def row_dot(left: Tensor, right: Tensor) -> Tensor:
    """Return the dot product of each row; unlike torch's dot products it stays in fp32 under autocast."""
    return (left * right).sum(dim=1)


def cross_entropy(logits: Tensor, given_labels: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """CE(y_hat, f), Eq. 1, for class indices or for distributions.

    With label smoothing (Szegedy et al. 2016) this fraction of ``y_hat`` is spread evenly over all classes.
    """
    return functional.cross_entropy(at_least_fp32(logits), given_labels, label_smoothing=label_smoothing)


def forward_kl(logits: Tensor, label_logits: Tensor) -> Tensor:
    """KL(y_d || f), Eq. 2-3: the loss of DLDL. A class with a label probability near zero stays there (Eq. 24)."""
    log_y = log_probs(label_logits)
    return (log_y.exp() * (log_y - log_probs(logits))).sum(dim=1).mean()


def inverse_kl(logits: Tensor, label_logits: Tensor) -> Tensor:
    """KL(f || y_d), Eq. 4-5: a class with a label probability near zero can still gain probability (Eq. 28)."""
    log_f = log_probs(logits)
    return (log_f.exp() * (log_f - log_probs(label_logits))).sum(dim=1).mean()


def compatibility_loss(label_logits: Tensor, given_labels: Tensor, kind: Compatibility = "printed") -> Tensor:
    """L_o, which keeps the label distribution near the given label.

    Parameters
    ----------
    label_logits
        Label logits of shape ``(batch, classes)``.
    given_labels
        Class indices ``(batch,)`` or distributions ``(batch, classes)``.
    kind
        "printed" is the paper's CE(y_hat, y_d). "published" is what the authors' code computes: it passes ``y_d``,
        already a probability, to a cross-entropy that applies softmax once more. Its gradient vanishes once a label
        has flipped, which is why their code corrects labels at an ``alpha`` at which the printed form cannot.
    """
    if kind not in COMPATIBILITIES:
        raise ValueError(f"compatibility is {kind!r}; expected one of {', '.join(COMPATIBILITIES)}")
    if kind == "published":
        return cross_entropy(at_least_fp32(label_logits).softmax(dim=1), given_labels)
    return cross_entropy(label_logits, given_labels)


def is_held(pull: float, compatibility: Compatibility) -> bool:
    """Return whether the compatibility loss holds every label, even against a network that is certain of another class.

    At a tie of both classes, ``y_d - f`` moves the given class away by 1/2; the compatibility loss moves it back by
    ``pull / 2`` as printed, and by ``pull / 4`` as published.
    """
    return pull >= (1 if compatibility == "printed" else 2)


def entropy_loss(logits: Tensor) -> Tensor:
    """H(f), the L_e of the paper: it drives the network to one class instead of a flat distribution."""
    log_f = log_probs(logits)
    return -(log_f.exp() * log_f).sum(dim=1).mean()


def pencil_loss(logits: Tensor, label_logits: Tensor, *, beta: float = 0.0, class_mean: bool = True) -> Tensor:
    """Return the part of the overall loss that trains the network: ``L_c / c + beta * L_e / c``.

    ``alpha * L_o`` does not depend on the network; it acts on the labels alone, in :meth:`pencil.LabelStore.update`.

    Parameters
    ----------
    logits
        The network's logits, of shape ``(batch, classes)``.
    label_logits
        Label logits of the same rows, ``labels[rows]``. No gradient flows into them: their update is closed form.
    beta
        Weight of the entropy loss L_e.
    class_mean
        False omits the ``1 / c``, so that the network's effective learning rate does not shrink with the number of
        classes.
    """
    return network_losses(logits, label_logits, beta=beta, class_mean=class_mean).loss


class NetworkLosses(NamedTuple):
    """The network's differentiable loss; its parts L_c and L_e and both distributions, without gradient."""

    loss: Tensor
    classification: Tensor
    entropy: Tensor
    probs: Tensor
    label_probs: Tensor


def network_losses(logits: Tensor, label_logits: Tensor, *, beta: float, class_mean: bool) -> NetworkLosses:
    """Return :func:`pencil_loss` with its parts and the distributions of network and labels, from a single pass."""
    scale = 1 / logits.shape[1] if class_mean else 1.0
    return NetworkLosses(*_NetworkLosses.apply(logits, label_logits, beta, scale))


class _NetworkLosses(torch.autograd.Function):
    """``scale * (L_c + beta * L_e)`` with its closed-form gradient, in few passes over the batch.

    Per row, with ``b = (1 - beta) * logits - label_logits``, the gradient with respect to the logits is
    ``f * (b - <f, b>)``: the derivative of ``log f`` adds nothing, since ``<f, d log f>`` is zero, and the normalisers
    of both softmaxes cancel. So no matrix of logarithms is needed; the losses need one number per row.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, label_logits: Tensor, beta: float, scale: float) -> tuple[Tensor, ...]:
        values = at_least_fp32(logits)
        f, y = values.softmax(dim=1), label_logits.softmax(dim=1)
        minus_b = label_logits.sub(values, alpha=1 - beta)
        minus_f_b, f_logits = row_dot(f, minus_b), row_dot(f, values)
        f_log_f = f_logits - _log_sum_exp(values, f)
        f_log_y = minus_f_b.add(f_logits, alpha=1 - beta) - _log_sum_exp(label_logits, y)
        entropy = -f_log_f.mean()
        classification = (f_log_f - f_log_y).mean()
        ctx.save_for_backward(minus_b.sub_(minus_f_b.unsqueeze(1)).mul_(f))
        ctx.scale, ctx.dtype = -scale / max(1, len(f)), logits.dtype  # a rank may have no rows
        ctx.mark_non_differentiable(classification, entropy, f, y)
        ctx.set_materialize_grads(False)
        return scale * (classification + beta * entropy), classification, entropy, f, y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor | None, *_: None) -> tuple[Tensor | None, None, None, None]:
        if grad_output is None:
            return None, None, None, None
        (gradient,) = ctx.saved_tensors
        return (gradient * (grad_output * ctx.scale)).to(ctx.dtype), None, None, None


def _log_sum_exp(logits: Tensor, probs: Tensor) -> Tensor:
    """Return the normaliser of a softmax, computed from its largest entry, which is at least ``1 / c``."""
    return logits.amax(dim=1) - probs.amax(dim=1).log_()
