"""A label store that keeps only the largest label logits of each row, for very many classes."""

from typing import Any

import torch
from torch import Tensor

from pencil.data.given.given_labels import as_given_labels
from pencil.errors import RecipeError
from pencil.labels.losses import Compatibility
from pencil.labels.protocol import Labels
from pencil.labels.rows import drop_pinned
from pencil.labels.store import CHUNK, PAPER_INIT_SCALE, anchor_free, scaled_given_labels, update_single_labels


class TopKLabelStore:
    """The ``k`` largest label logits of each row in half precision; all other classes have equal logits.

    An update never changes the sum of a row's logits (Proposition 1), which is K of Eq. 8. The other classes therefore
    need no memory: each has ``(K - sum of the k) / (c - k)``. Logits are stored relative to the largest logit of the
    row: half precision is accurate near zero, where the probable classes then are. With ``k = c`` nothing is rounded,
    and the store equals :class:`pencil.LabelStore`. A row takes ``k * (2 + 2) + 4`` bytes (4 + 2 above 32,767 classes)
    instead of ``4 * c``.

    Parameters
    ----------
    given_labels
        Class indices of shape ``(rows,)`` or distributions of shape ``(rows, classes)``.
    num_classes
        Number of classes; by default the largest class index plus one, or the number of columns.
    k
        Number of label logits kept per row; values above the number of classes keep all.
    scale
        K of Eq. 8: the initial label logits are ``K * y_hat``.
    device
        Where the labels are kept.
    dtype
        Dtype of the label logits that ``labels[rows]`` returns.

    Attributes
    ----------
    top, index
        The ``k`` largest label logits of each row, relative to ``largest``, and their classes.
    largest
        The largest label logit of each row; 0 with ``k = c``, where ``top`` holds the label logits themselves.
    pinned
        True for rows whose labels never move; None if every row may move.
    """

    local_rows: Tensor | None = None

    def __init__(
        self,
        given_labels: Any,
        num_classes: int | None = None,
        *,
        k: int,
        scale: float = PAPER_INIT_SCALE,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float32,
    ):
        if k < 1:
            raise RecipeError(f"training.label_top_k is {k}; expected at least 1.")
        given, self.num_classes = as_given_labels(given_labels, num_classes)
        self.given_labels = given.to(device) if given.ndim == 1 else given.to(device, dtype)
        self.k = min(k, self.num_classes)
        self.exact = self.k == self.num_classes
        self.scale, self.dtype = scale, dtype
        self.pinned: Tensor | None = None
        self.reset()

    @property
    def local(self) -> Labels:
        return self

    def initial_logits(self, rows: Tensor | None = None) -> Tensor:
        """Return ``y_tilde = K * y_hat`` (Eq. 8) of these rows, dense (all rows by default)."""
        given = self.given_labels if rows is None else self.given_labels[rows]
        return scaled_given_labels(given, self.num_classes, self.scale, self.dtype)

    def reset(self) -> None:
        """Replace all labels by the given labels, chunk by chunk: the dense matrix may not fit into memory."""
        given = self.given_labels
        index_type = torch.int16 if self.num_classes <= 2**15 - 1 else torch.int32
        self.index = torch.empty(len(given), self.k, dtype=index_type, device=given.device)
        self.top = self.index.new_empty(self.index.shape, dtype=self.dtype if self.exact else torch.float16)
        self.largest = self.index.new_zeros(len(given), dtype=self.dtype)
        for chunk in torch.arange(len(given), device=given.device).split(CHUNK):
            self._set(chunk, self.initial_logits(chunk))

    @property
    def label_logits(self) -> Tensor:
        """The label logits of all rows, dense; only for small stores."""
        return self[torch.arange(len(self), device=self.index.device)]

    def __len__(self) -> int:
        return len(self.top)

    def __repr__(self) -> str:
        return f"TopKLabelStore({len(self):,} rows, {self.k} of {self.num_classes:,} classes, on {self.top.device})"

    def __getitem__(self, rows: Tensor) -> Tensor:
        """Return the label logits of these rows, dense."""
        top, index = self.top[rows].to(self.dtype) + self.largest[rows].unsqueeze(1), self.index[rows].long()
        rest = (self.scale - top.sum(dim=1)) / max(1, self.num_classes - self.k)
        return rest.unsqueeze(1).repeat(1, self.num_classes).scatter_(1, index, top)

    def update(
        self,
        rows: Tensor,
        logits: Tensor,
        *,
        step: float,
        pull: float = 0.0,
        compatibility: Compatibility = "printed",
    ) -> None:
        """Update these rows as :meth:`pencil.LabelStore.update` does, and keep the ``k`` largest label logits."""
        update_single_labels(self, rows, logits, step=step, pull=pull, compatibility=compatibility)

    def write(self, rows: Tensor, label_logits: Tensor) -> None:
        """Keep the ``k`` largest label logits of these rows, without repeats; pinned rows stay as they are.

        A constant is added to each row so that its sum is K: the other classes are computed from the sum, and the
        distribution does not depend on the constant. An update does not need it (Proposition 1).
        """
        self._set(*drop_pinned(self.pinned, rows, label_logits))

    def _set(self, rows: Tensor, label_logits: Tensor) -> None:
        top, index = label_logits.topk(self.k, dim=1, sorted=False)
        if not self.exact:
            largest = top.amax(dim=1)
            self.largest[rows] = largest + (self.scale - label_logits.sum(dim=1)) / self.num_classes
            top = top - largest.unsqueeze(1)
        self.top[rows] = top.to(self.top.dtype)
        self.index[rows] = index.to(self.index.dtype)

    def to_probs(self, label_logits: Tensor) -> Tensor:
        """Return ``y_d = softmax(y_tilde)``, Eq. 7."""
        return label_logits.softmax(dim=1)

    def probs(self, rows: Tensor | None = None) -> Tensor:
        """Return the label distributions of these rows (all rows by default)."""
        return self.to_probs(self.label_logits if rows is None else self[rows])

    def evidence(self, pull: float, rows: Tensor | None = None) -> Tensor:
        """Return :meth:`probs` without the effect of a printed compatibility loss of strength ``pull``."""
        probs = self.probs(rows)
        return anchor_free(probs, self.to_probs(self.initial_logits(rows)), pull) if pull else probs

    def mean(self, local_mean: Tensor) -> Tensor:
        """Return the value unchanged: all rows are local."""
        return local_mean

    def gather(self, local_values: Tensor) -> Tensor:
        """Return the values unchanged: all rows are local."""
        return local_values

    def state_dict(self) -> dict[str, Tensor]:
        return {"top": self.top, "index": self.index, "largest": self.largest}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.top.copy_(state["top"])
        self.index.copy_(state["index"])
        self.largest.copy_(state["largest"])
