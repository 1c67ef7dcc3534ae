"""The learnable label distributions: one row of logits per training example, and their closed-form update."""

import math
from typing import Any

import torch
from torch import Tensor

from pencil.data.given import as_given_labels
from pencil.errors import RecipeError, TrainingError
from pencil.labels.losses import COMPATIBILITIES, Compatibility, at_least_fp32, row_dot

CHUNK = 65536
"""Rows that are processed at a time where all at once would not fit."""
PAPER_INIT_SCALE = 10.0
"""K of Eq. 8."""


def init_scale(probability: float, num_classes: int) -> float:
    """The K of Eq. 8 at which the given class starts with this probability: ``log((c - 1) p / (1 - p))``."""
    if not 1 / num_classes < probability < 1:
        raise RecipeError(f"initial probability is {probability}; expected one between 1/{num_classes} and 1.")
    return math.log((num_classes - 1) * probability / (1 - probability))


def label_gradient(
    label_probs: Tensor,
    probs: Tensor,
    given_labels: Tensor,
    *,
    pull: float = 0.0,
    compatibility: Compatibility = "printed",
) -> Tensor:
    """``(y_d - f) + pull * (y_d - y_hat)``: the direction in which Eq. 28 and the compatibility loss move the labels.

    It is the gradient of the overall loss with respect to ``label_logits``, times ``B * c``, so that it depends on
    neither batch size nor class count; ``pull = alpha * c``. With ``compatibility="published"`` the second term is the
    gradient of what the authors' code computes, ``y_d * (g - <y_d, g>)`` with ``g = softmax(y_d) - y_hat``. Every row
    sums to zero (Proposition 1).
    """
    if compatibility not in COMPATIBILITIES:
        raise ValueError(f"compatibility is {compatibility!r}; it is one of {', '.join(COMPATIBILITIES)}")
    gradient = label_probs - probs
    if pull == 0:
        return gradient
    if compatibility == "printed":
        return _subtract_given(gradient.add_(label_probs, alpha=pull), given_labels, pull)
    twice = label_probs.softmax(dim=1)
    g = _subtract_given(twice, given_labels, 1.0)
    return gradient.addcmul_(label_probs, g.sub_(row_dot(label_probs, g).unsqueeze(1)), value=pull)


def forward_kl_label_gradient(label_logits: Tensor, logits: Tensor) -> Tensor:
    """``y_d * (log(y_d / f) - KL(y_d || f))``, Eq. 24: nearly zero for every class that the label rules out."""
    log_y = label_logits.log_softmax(dim=1)
    log_ratio = log_y - at_least_fp32(logits).log_softmax(dim=1)
    label_probs = log_y.exp()
    return label_probs * (log_ratio - row_dot(label_probs, log_ratio).unsqueeze(1))


def anchor_free(label_probs: Tensor, initial_probs: Tensor, pull: float) -> Tensor:
    """What the network said about each row: the label distribution with the printed compatibility term taken out.

    The printed update comes to rest at ``y_d = (f + pull * y_hat) / (1 + pull)``, where the given class keeps the
    maximum whenever ``pull >= 1``. The evidence ``(1 + pull) * y_d - pull * y_hat`` is ``f`` there, so a label can be
    read off it. The initial distribution, nearly ``y_hat``, takes its place here: so a label that has not moved reads
    as it was given. On the way to rest the evidence can leave the simplex; it is cut back to it.
    """
    evidence = label_probs.mul(1 + pull).sub_(initial_probs, alpha=pull).clamp_(min=0)
    return evidence.div_(evidence.sum(dim=1, keepdim=True))


class LabelStore:
    """The label distributions of a training set, kept as fp32 logits (``y_tilde``), one row per example.

    >>> import torch
    >>> labels = LabelStore(torch.tensor([0, 2, 1]), num_classes=3)
    >>> labels.probs().argmax(dim=1)
    tensor([0, 2, 1])

    ``labels[rows]`` gives the logits to train on; :meth:`update` moves the same rows once the network has spoken.
    ``own_rows`` says which rows are held here, where that is not all of them; ``pinned`` is true for rows that stay as
    they were given, whatever is written to them.
    """

    own_rows: Tensor | None = None
    pinned: Tensor | None = None

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
        self.scale = scale
        self.dtype = dtype
        self.reset()

    def initial_logits(self, rows: Tensor | None = None) -> Tensor:
        """``y_tilde = K * y_hat`` (Eq. 8)."""
        given = self.given_labels if rows is None else self.given_labels[rows]
        if given.ndim == 2:
            return given * self.scale
        zeros = torch.zeros(len(given), self.num_classes, device=given.device, dtype=self.dtype)
        return zeros.scatter_(1, given[:, None], self.scale)

    def reset(self) -> None:
        """Back to the labels as they were given."""
        self.label_logits = self.initial_logits()

    def __len__(self) -> int:
        return len(self.label_logits)

    def __getitem__(self, rows: Tensor) -> Tensor:
        """The label logits of these rows, to train on; a copy."""
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
        """``y_tilde -= step * [(y_d - f) + pull * (y_d - y_hat)]`` for these rows; every other row stays as it is.

        ``step = lambda / (B * c)`` and ``pull = alpha * c`` in the paper's symbols. Each row is named once.
        """
        label_logits = self[rows]
        gradient = label_gradient(
            label_logits.softmax(dim=1),
            at_least_fp32(logits.detach()).softmax(dim=1),
            self.given_labels.index_select(0, rows),
            pull=pull,
            compatibility=compatibility,
        )
        self._refuse_non_finite(rows, gradient)
        self.write(rows, label_logits.sub_(gradient, alpha=step))

    def _refuse_non_finite(self, rows: Tensor, gradient: Tensor) -> None:
        if not gradient.sum().isfinite():
            bad = rows[~gradient.isfinite().all(dim=1)].tolist()
            raise TrainingError(f"the logits of row {bad[0]} are not finite; the labels are as they were before.")

    def write(self, rows: Tensor, label_logits: Tensor) -> None:
        """Set these rows, each of which is named once; pinned ones stay as they are."""
        if self.pinned is not None:
            free = ~self.pinned.index_select(0, rows)
            rows, label_logits = rows[free], label_logits[free]
        self._set(rows, label_logits)

    def _set(self, rows: Tensor, label_logits: Tensor) -> None:
        if rows.is_cpu:  # NumPy writes rows several times faster than torch's index_copy_ and index_add_ do
            self.label_logits.numpy()[rows.numpy()] = label_logits.numpy()
        else:
            self.label_logits.index_copy_(0, rows, label_logits)

    def to_probs(self, label_logits: Tensor) -> Tensor:
        """``y_d``, Eq. 7."""
        return label_logits.softmax(dim=1)

    def probs(self, rows: Tensor | None = None) -> Tensor:
        """The label distributions of these rows, of all by default."""
        return self.to_probs(self.label_logits if rows is None else self[rows])

    def evidence(self, pull: float, rows: Tensor | None = None) -> Tensor:
        """The label distributions with a printed compatibility term of this strength taken out again."""
        probs = self.probs(rows)
        return anchor_free(probs, self.to_probs(self.initial_logits(rows)), pull) if pull else probs

    def mean(self, value: Tensor) -> Tensor:
        """A mean over the rows that are held here, as one over all rows."""
        return value

    def state_dict(self) -> dict[str, Tensor]:
        return {"label_logits": self.label_logits}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.label_logits.copy_(state["label_logits"])


def _subtract_given(values: Tensor, given_labels: Tensor, weight: float) -> Tensor:
    """``values -= weight * y_hat`` in place, without building the one-hot matrix."""
    if given_labels.ndim == 2:
        return values.sub_(given_labels, alpha=weight)
    return values.scatter_(1, given_labels.unsqueeze(1), -weight, reduce="add")
