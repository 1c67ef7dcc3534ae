"""The losses of the paper, one pure function per equation.

Every function takes logits of shape ``(batch, classes)``, works in log space and in at least fp32, and returns the mean
over the batch. ``f = softmax(logits)`` is the network's prediction, ``y_d = softmax(label_logits)`` the label
distribution (Eq. 7), ``given_labels`` the possibly wrong labels: class indices ``(batch,)`` or distributions
``(batch, classes)``.
"""

from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

Compatibility = Literal["printed", "published"]
COMPATIBILITIES = get_args(Compatibility)


def at_least_fp32(values: Tensor) -> Tensor:
    """Half-precision logits come up to fp32 (bf16's spacing near 10 exceeds a typical label update); fp64 stays."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def log_probs(logits: Tensor) -> Tensor:
    return at_least_fp32(logits).log_softmax(dim=1)


def cross_entropy(logits: Tensor, given_labels: Tensor) -> Tensor:
    """CE(y_hat, f), Eq. 1, for class indices or for distributions."""
    return functional.cross_entropy(at_least_fp32(logits), given_labels)


def forward_kl(logits: Tensor, label_logits: Tensor) -> Tensor:
    """KL(y_d || f), Eq. 2-3: the loss of DLDL. It cannot revive a class that the label rules out (Eq. 24)."""
    log_y = log_probs(label_logits)
    return (log_y.exp() * (log_y - log_probs(logits))).sum(dim=1).mean()


def inverse_kl(logits: Tensor, label_logits: Tensor) -> Tensor:
    """KL(f || y_d), Eq. 4-5: a class that the label rules out today can still come back (Eq. 28)."""
    log_f = log_probs(logits)
    return (log_f.exp() * (log_f - log_probs(label_logits))).sum(dim=1).mean()


def compatibility_loss(label_logits: Tensor, given_labels: Tensor, kind: Compatibility = "printed") -> Tensor:
    """L_o, which keeps the label distribution near the given label.

    ``printed`` is the paper's CE(y_hat, y_d). ``published`` is what the authors' code computes: it passes ``y_d``,
    already a probability, to a cross-entropy that applies softmax once more. Its force fades once a label has flipped,
    which is why their runs correct labels at an ``alpha`` whose printed form never could.
    """
    if kind not in COMPATIBILITIES:
        raise ValueError(f"compatibility is {kind!r}; it is one of {', '.join(COMPATIBILITIES)}")
    if kind == "published":
        return cross_entropy(at_least_fp32(label_logits).softmax(dim=1), given_labels)
    return cross_entropy(label_logits, given_labels)


def entropy_loss(logits: Tensor) -> Tensor:
    """H(f), the L_e of the paper: it lets the network commit to one class instead of settling on a flat label."""
    log_f = log_probs(logits)
    return -(log_f.exp() * log_f).sum(dim=1).mean()


def pencil_loss(logits: Tensor, label_logits: Tensor, *, beta: float = 0.0, class_mean: bool = True) -> Tensor:
    """The part of the overall loss that trains the network: ``L_c / c + beta * L_e / c``.

    ``alpha * L_o`` does not depend on the network; it acts on the labels alone, in :meth:`pencil.LabelStore.update`.
    For the same reason no gradient flows into ``label_logits``: their update is closed form. ``class_mean=False``
    leaves out the ``1 / c``, so that the network's effective learning rate does not shrink with the number of classes.
    """
    loss = network_losses(logits, label_logits, beta)[0]
    return loss / logits.shape[1] if class_mean else loss


def network_losses(logits: Tensor, label_logits: Tensor, beta: float) -> tuple[Tensor, Tensor, Tensor]:
    """``(L_c + beta * L_e, L_c, L_e)``, of which the first can be differentiated with respect to the logits."""
    losses: tuple[Tensor, Tensor, Tensor] = _NetworkLosses.apply(logits, label_logits, beta)
    return losses


class _NetworkLosses(torch.autograd.Function):
    """``L_c + beta * L_e`` with its gradient written out, half the passes over the batch that autograd would make.

    Per row, with ``a = (1 - beta) * log f - log y_d``, the loss is ``<f, a>``. Its gradient with respect to the logits
    is ``f * (a - <f, a>)``: the derivative of ``a`` itself adds nothing, since ``<f, d log f>`` is zero.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, label_logits: Tensor, beta: float) -> tuple[Tensor, Tensor, Tensor]:
        log_f = log_probs(logits)
        f = log_f.exp()
        entropy = -torch.linalg.vecdot(f, log_f).mean()
        a = log_f.mul_(1 - beta).sub_(log_probs(label_logits))
        row_loss = torch.linalg.vecdot(f, a).unsqueeze(1)
        ctx.save_for_backward(a.sub_(row_loss).mul_(f).div_(len(f)))
        ctx.dtype = logits.dtype
        loss = row_loss.mean()
        divergence = loss - beta * entropy
        ctx.mark_non_differentiable(divergence, entropy)
        return loss, divergence, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor, *_: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        return (gradient * grad_output).to(ctx.dtype), None, None
