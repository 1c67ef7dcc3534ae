"""A label store that keeps only the largest label logits of each row, for very many classes."""

from typing import Any, ClassVar

import torch
from torch import Tensor

from pencil.errors import RecipeError
from pencil.labels.rows import drop_pinned, row_blocks
from pencil.labels.store import PAPER_INIT_SCALE, LabelStore


class TopKLabelStore(LabelStore):
    """The ``k`` largest label logits of each row in half precision; all other classes have equal logits.

    An update never changes the sum of a row's logits (Proposition 1), which is K of Eq. 8. The other classes therefore
    need no memory: each has ``(K - sum of the k) / (c - k)``. Logits are stored relative to the largest logit of the
    row: half precision is accurate near zero, where the probable classes then are. With ``k = c`` nothing is rounded,
    and the store equals :class:`pencil.LabelStore`, which documents all other members. A row takes
    ``k * (2 + 2) + 4`` bytes (4 + 2 above 32,767 classes) instead of ``4 * c``.

    Parameters
    ----------
    given_labels, num_classes, scale, device
        As for :class:`pencil.LabelStore`.
    k
        Number of label logits kept per row; values above the number of classes keep all.
    dtype
        Dtype of the label logits that ``labels[rows]`` returns.

    Attributes
    ----------
    top, index
        The ``k`` largest label logits of each row, relative to ``largest``, and their classes.
    largest
        The largest label logit of each row; 0 with ``k = c``, where ``top`` holds the label logits themselves.
    """

    stored: ClassVar[tuple[str, ...]] = ("top", "index", "largest")

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
        self.k = k
        super().__init__(given_labels, num_classes, scale=scale, device=device, dtype=dtype)

    def reset(self) -> None:
        """Replace all labels by the given labels, in blocks: the dense matrix may not fit into memory."""
        given, self.k = self.given_labels, min(self.k, self.num_classes)
        self.exact = self.k == self.num_classes
        index_type = torch.int16 if self.num_classes <= 2**15 - 1 else torch.int32
        self.index = torch.empty(len(given), self.k, dtype=index_type, device=given.device)
        self.top = self.index.new_empty(self.index.shape, dtype=self.dtype if self.exact else torch.float16)
        self.largest = self.index.new_zeros(len(given), dtype=self.dtype)
        for block in row_blocks(len(given), self.num_classes):
            rows = block.to(given.device)
            self._set(rows, self.initial_logits(rows))

    @property
    def label_logits(self) -> Tensor:  # type: ignore[override]
        """The label logits of all rows, dense; only for small stores."""
        return self[torch.arange(len(self), device=self.index.device)]

    def _described(self) -> str:
        return f"{self.k} of {self.num_classes:,} classes"

    def __getitem__(self, rows: Tensor) -> Tensor:
        """Return the label logits of these rows, dense."""
        top, index = self.top[rows].to(self.dtype) + self.largest[rows].unsqueeze(1), self.index[rows].long()
        rest = (self.scale - top.sum(dim=1)) / max(1, self.num_classes - self.k)
        return rest.unsqueeze(1).repeat(1, self.num_classes).scatter_(1, index, top)

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
