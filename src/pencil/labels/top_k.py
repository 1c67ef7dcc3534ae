"""Label logits reduced to the largest entries of each row, for very many classes."""

from typing import Any

import torch
from torch import Tensor

from pencil.errors import RecipeError
from pencil.labels.store import CHUNK, LabelStore


class TopKLabelStore(LabelStore):
    """The ``k`` largest logits of each row in half precision; the others share what is left of the row's sum.

    An update never changes the sum of a row's logits (Proposition 1), so the rest needs no memory: every class that is
    not among the ``k`` has ``(sum - sum of the k) / (c - k)``. With ``k = c`` nothing is rounded, and it is the dense
    store. Per row ``k * (2 + 2)`` bytes (4 + 2 above 32,767 classes) take the place of ``4 * c``.
    """

    def __init__(self, given_labels: Any, num_classes: int | None = None, *, k: int, **options: Any):
        if k < 1:
            raise RecipeError(f"training.label_top_k is {k}; expected at least 1.")
        self.k = k
        super().__init__(given_labels, num_classes, **options)

    def reset(self) -> None:
        """Never all rows at once: the dense matrix is what there is no room for."""
        self.k = min(self.k, self.num_classes)
        given, exact = self.given_labels, self.k == self.num_classes
        index_type = torch.int16 if self.num_classes <= 2**15 - 1 else torch.int32
        self.index = torch.empty(len(given), self.k, dtype=index_type, device=given.device)
        self.top = self.index.new_empty(self.index.shape, dtype=self.dtype if exact else torch.float16)
        self.row_sums = self.index.new_empty(len(given), dtype=self.dtype)
        for chunk in torch.arange(len(given), device=given.device).split(CHUNK):
            dense = self.initial_logits(chunk)
            self.row_sums[chunk] = dense.sum(dim=1)
            self._set(chunk, dense)

    @property
    def label_logits(self) -> Tensor:  # type: ignore[override]
        """All rows, dense: for small stores."""
        return self[torch.arange(len(self), device=self.index.device)]

    def __len__(self) -> int:
        return len(self.top)

    def __getitem__(self, rows: Tensor) -> Tensor:
        top, index = self.top[rows].to(self.dtype), self.index[rows].long()
        rest = (self.row_sums[rows] - top.sum(dim=1)) / max(1, self.num_classes - self.k)
        return rest.unsqueeze(1).repeat(1, self.num_classes).scatter_(1, index, top)

    def _set(self, rows: Tensor, label_logits: Tensor) -> None:
        top, index = label_logits.topk(self.k, dim=1, sorted=False)
        self.top[rows] = top.to(self.top.dtype)
        self.index[rows] = index.to(self.index.dtype)

    def state_dict(self) -> dict[str, Tensor]:
        return {"top": self.top, "index": self.index}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.top.copy_(state["top"])
        self.index.copy_(state["index"])
