"""The label store of single-label data: one row of label logits per example, and their closed-form update."""

import math
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from pencil.data.given.given_labels import as_given_labels
from pencil.errors import RecipeError
from pencil.labels.losses import COMPATIBILITIES, Compatibility, at_least_fp32, row_dot
from pencil.labels.protocol import Labels
from pencil.labels.rows import apply_gradient, drop_pinned, set_rows

PAPER_INIT_SCALE = 10.0
"""K of Eq. 8."""


def init_scale(probability: float, num_classes: int) -> float:
    """Return the K of Eq. 8 that gives the given class this initial probability: ``log((c - 1) p / (1 - p))``."""
    if not 1 / num_classes < probability < 1:
        raise RecipeError(f"initial probability is {probability}; expected a value between 1/{num_classes} and 1.")
    return math.log((num_classes - 1) * probability / (1 - probability))


def label_gradient(
    label_probs: Tensor,
    probs: Tensor,
    given_labels: Tensor,
    *,
    pull: float = 0.0,
    compatibility: Compatibility = "printed",
) -> Tensor:
    """Return ``(y_d - f) + pull * (y_d - y_hat)``: the gradient of Eq. 28 plus the gradient of the compatibility loss.

    It is the gradient of the overall loss with respect to ``label_logits``, times ``B * c``, so that it is independent
    of batch size and class count. Every row sums to zero (Proposition 1).

    Parameters
    ----------
    label_probs
        Label distributions ``y_d``, of shape ``(batch, classes)``.
    probs
        The network's predictions ``f``, of the same shape.
    given_labels
        Class indices ``(batch,)`` or distributions ``(batch, classes)``.
    pull
        Strength of the compatibility loss, ``alpha * c`` in the paper's symbols.
    compatibility
        "printed" is the formula above. With "published" the second term is the gradient of what the authors' code
        computes: ``y_d * (g - <y_d, g>)`` with ``g = softmax(y_d) - y_hat``.
    """
    if compatibility not in COMPATIBILITIES:
        raise ValueError(f"compatibility is {compatibility!r}; expected one of {', '.join(COMPATIBILITIES)}")
    gradient = label_probs - probs
    if pull == 0:
        return gradient
    if compatibility == "printed":
        return _subtract_given(gradient.add_(label_probs, alpha=pull), given_labels, pull)
    twice = label_probs.softmax(dim=1)
    g = _subtract_given(twice, given_labels, 1.0)
    return gradient.addcmul_(label_probs, g.sub_(row_dot(label_probs, g).unsqueeze(1)), value=pull)


def forward_kl_label_gradient(label_logits: Tensor, logits: Tensor) -> Tensor:
    """Return ``y_d * (log(y_d / f) - KL(y_d || f))``, Eq. 24: nearly zero for a class of low label probability."""
    log_y = label_logits.log_softmax(dim=1)
    log_ratio = log_y - at_least_fp32(logits).log_softmax(dim=1)
    label_probs = log_y.exp()
    return label_probs * (log_ratio - row_dot(label_probs, log_ratio).unsqueeze(1))


def anchor_free(label_probs: Tensor, initial_probs: Tensor, pull: float) -> Tensor:
    """Return the evidence of each row: the label distribution without the printed compatibility term.

    The printed update converges to ``y_d = (f + pull * y_hat) / (1 + pull)``, where the given class keeps the maximum
    whenever ``pull >= 1``. The evidence ``(1 + pull) * y_d - pull * y_hat`` equals ``f`` there, so the corrected label
    is its maximum. Here the initial distribution, nearly ``y_hat``, replaces ``y_hat``, so that a label that has not
    moved is read as given. Before convergence the evidence can leave the simplex; it is clipped and normalised.
    """
    evidence = label_probs.mul(1 + pull).sub_(initial_probs, alpha=pull).clamp_(min=0)
    return evidence.div_(evidence.sum(dim=1, keepdim=True))


def published_anchor_free(label_probs: Tensor, initial_probs: Tensor, given_labels: Tensor, pull: float) -> Tensor:
    """Return :func:`anchor_free` for the published compatibility loss: ``y_d`` plus its force, which is ``f`` at rest.

    The force on the initial distribution is taken off, so that a label that has not moved is read as given.
    """

    def force(probs: Tensor) -> Tensor:
        return label_gradient(probs, probs, given_labels, pull=pull, compatibility="published")

    evidence = (label_probs + force(label_probs) - force(initial_probs)).clamp_(min=0)
    return evidence.div_(evidence.sum(dim=1, keepdim=True))


class LabelStore:
    """The label distributions of a training set, kept as fp32 logits (``y_tilde``), one row per example.

    ``labels[rows]`` returns the label logits to train on; :meth:`update` moves the same rows after the network has
    predicted them.

    >>> import torch
    >>> labels = LabelStore(torch.tensor([0, 2, 1]), num_classes=3)
    >>> labels.probs().argmax(dim=1)
    tensor([0, 2, 1])

    Parameters
    ----------
    given_labels
        Class indices of shape ``(rows,)`` or distributions of shape ``(rows, classes)``: a tensor, an array or a list.
    num_classes
        Number of classes; by default the largest class index plus one, or the number of columns.
    scale
        K of Eq. 8: the initial label logits are ``K * y_hat``. See :func:`pencil.labels.init_scale`.
    device
        Where the labels are kept; the network's device avoids copies.
    dtype
        Dtype of the label logits; use fp32 under mixed precision too.

    Attributes
    ----------
    label_logits
        The label logits of all rows.
    pinned
        True for rows whose labels never move; None if every row may move.
    """

    local_rows: Tensor | None = None
    stored: ClassVar[tuple[str, ...]] = ("label_logits",)  # the tensors with one row per example that labels consist of
    label_logits: Tensor

    def __init__(
        self,
        given_labels: Any,
        num_classes: int | None = None,
        *,
        scale: float = PAPER_INIT_SCALE,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float32,
    ):
        given, self.num_classes = as_given_labels(given_labels, num_classes)
        self.given_labels = given.to(device) if given.ndim == 1 else given.to(device, dtype)
        self.scale, self.dtype = scale, dtype
        self.pinned: Tensor | None = None
        self.reset()

    @property
    def local(self) -> Labels:
        return self

    def initial_logits(self, rows: Tensor | None = None) -> Tensor:
        """Return ``y_tilde = K * y_hat`` (Eq. 8) of these rows (all rows by default)."""
        given = self.given_labels if rows is None else self.given_labels[rows]
        if given.ndim == 2:
            return given * self.scale
        zeros = torch.zeros(len(given), self.num_classes, device=given.device, dtype=self.dtype)
        return zeros.scatter_(1, given[:, None], self.scale)

    def reset(self) -> None:
        """Replace all labels by the given labels."""
        self.label_logits = self.initial_logits()

    def to(self, device: torch.device | str) -> Self:
        """Move the store to a device and return it."""
        for name in (*self.stored, "given_labels"):
            setattr(self, name, getattr(self, name).to(device))
        self.pinned = None if self.pinned is None else self.pinned.to(device)
        return self

    def __len__(self) -> int:
        return len(self.given_labels)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self):,} rows, {self._described()}, on {self.given_labels.device})"

    def _described(self) -> str:
        return f"{self.num_classes:,} classes"

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
    ) -> None:
        """``y_tilde -= step * [(y_d - f) + pull * (y_d - y_hat)]`` for these rows; all other rows stay as they are.

        Parameters
        ----------
        rows
            Row numbers of the examples, without repeats.
        logits
            The network's logits for them, of shape ``(batch, classes)``; no gradient flows back.
        step
            Step size, ``lambda / (B * c)`` in the paper's symbols.
        pull
            Strength of the compatibility loss, ``alpha * c`` in the paper's symbols.
        compatibility
            The compatibility loss; see :func:`pencil.labels.label_gradient`.

        Raises
        ------
        TrainingError
            If logits are not finite. No label is changed in this case.
        """
        label_logits = self[rows]
        gradient = label_gradient(
            label_logits.softmax(dim=1),
            at_least_fp32(logits.detach()).softmax(dim=1),
            self.given_labels.index_select(0, rows),
            pull=pull,
            compatibility=compatibility,
        )
        apply_gradient(self, rows, label_logits, gradient, step)

    def write(self, rows: Tensor, label_logits: Tensor) -> None:
        """Replace the label logits of these rows, without repeats; pinned rows stay as they are."""
        set_rows(self.label_logits, *drop_pinned(self.pinned, rows, label_logits))

    def to_probs(self, label_logits: Tensor) -> Tensor:
        """Return ``y_d = softmax(y_tilde)``, Eq. 7."""
        return label_logits.softmax(dim=1)

    def probs(self, rows: Tensor | None = None) -> Tensor:
        """Return the label distributions of these rows (all rows by default)."""
        return self.to_probs(self.label_logits if rows is None else self[rows])

    def evidence(self, pull: float, rows: Tensor | None = None, compatibility: Compatibility = "printed") -> Tensor:
        """Return :meth:`probs` without the effect of a compatibility loss of strength ``pull``."""
        probs = self.probs(rows)
        if not pull:
            return probs
        initial_probs = self.to_probs(self.initial_logits(rows))
        if compatibility == "published":
            given_labels = self.given_labels if rows is None else self.given_labels.index_select(0, rows)
            return published_anchor_free(probs, initial_probs, given_labels, pull)
        return self._anchor_free(probs, initial_probs, pull)

    def _anchor_free(self, label_probs: Tensor, initial_probs: Tensor, pull: float) -> Tensor:
        return anchor_free(label_probs, initial_probs, pull)

    def mean(self, local_mean: Tensor) -> Tensor:
        """Return the value unchanged: all rows are local."""
        return local_mean

    def gather(self, local_values: Tensor) -> Tensor:
        """Return the values unchanged: all rows are local."""
        return local_values

    def state_dict(self) -> dict[str, Tensor]:
        return {name: getattr(self, name) for name in self.stored}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        for name in self.stored:
            getattr(self, name).copy_(state[name])


def _subtract_given(values: Tensor, given_labels: Tensor, weight: float) -> Tensor:
    """``values -= weight * y_hat`` in place, without building the one-hot matrix."""
    if given_labels.ndim == 2:
        return values.sub_(given_labels, alpha=weight)
    return values.scatter_(1, given_labels.unsqueeze(1), -weight, reduce="add")
