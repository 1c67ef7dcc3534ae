"""Where label rows live when they are many: dealt out over processes, or reduced to their largest entries."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from pencil.errors import RecipeError
from pencil.labels import LabelStore

CHUNK = 65536


class Exchange(Protocol):
    """What a sharded store needs of the world of processes (see ``training/world.py``)."""

    rank: int
    size: int

    def exchange(self, mine: Tensor, towards: Tensor) -> tuple[Tensor, list[int]]: ...

    def give_back(self, answers: Tensor, counts: list[int], towards: Tensor) -> Tensor: ...

    def total(self, values: Tensor) -> Tensor: ...

    def hear_numbers(self, *mine: int) -> list[tuple[int, ...]]: ...

    def gather(self, mine: Tensor, counts: list[int]) -> Tensor: ...


@dataclass(frozen=True)
class LabelLayout:
    """How the labels of a run are kept: whole on every process or dealt out over them, all entries or ``top_k``.

    ``pinned`` is true for the rows whose labels never move.
    """

    sharded_over: Exchange | None = None
    top_k: int | None = None
    pinned: Tensor | None = None

    def place(self, given_labels: Tensor, make: Callable[[Tensor, int | None], LabelStore]) -> LabelStore:
        """The store of these labels, or of this process's share of them; ``make(given_labels, top_k)`` builds it."""
        world = self.sharded_over
        mine = slice(None) if world is None else slice(world.rank, None, world.size)
        store = make(given_labels[mine], self.top_k)
        if self.pinned is not None:
            store.pinned = self.pinned[mine].to(given_labels.device)
        return store if world is None else ShardedLabelStore(store, world, len(given_labels))


WHOLE = LabelLayout()


class ShardedLabelStore(LabelStore):
    """Row ``i`` lives on rank ``i mod W``; rows are fetched and written by all-to-all, by all ranks together.

    ``inner`` is any store of this rank's rows. What is read as a whole (``probs()``, ``label_logits``) are these rows,
    ``own_rows`` of all.
    """

    def __init__(self, inner: LabelStore, world: Exchange, count: int):
        self.inner, self.world, self.count = inner, world, count
        self.own_rows: Tensor = torch.arange(world.rank, count, world.size)
        self.num_classes, self.scale, self.dtype = inner.num_classes, inner.scale, inner.dtype
        self.given_labels = inner.given_labels

    @property
    def label_logits(self) -> Tensor:  # type: ignore[override]
        return self.inner.label_logits

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, rows: Tensor) -> Tensor:
        owners = rows % self.world.size
        asked, counts = self.world.exchange(rows, owners)
        return self.world.give_back(self.inner[asked // self.world.size], counts, owners)

    def write(self, rows: Tensor, label_logits: Tensor) -> None:
        owners = rows % self.world.size
        theirs, _ = self.world.exchange(rows, owners)
        values, _ = self.world.exchange(label_logits, owners)
        self.inner.write(theirs // self.world.size, values)

    def reset(self) -> None:
        self.inner.reset()

    def to_probs(self, label_logits: Tensor) -> Tensor:
        return self.inner.to_probs(label_logits)

    def evidence(self, pull: float, rows: Tensor | None = None) -> Tensor:
        """Of my own rows, or of these places among them."""
        return self.inner.evidence(pull, rows)

    def mean(self, value: Tensor) -> Tensor:
        """A mean over my rows, as one over all rows."""
        return self.world.total(value * len(self.own_rows)) / self.count

    def whole(self, mine: Tensor) -> Tensor:
        """What every rank has of its rows, in the order of all rows."""
        counts = [count for (count,) in self.world.hear_numbers(len(mine))]
        gathered = self.world.gather(mine, counts)
        everything = torch.empty_like(gathered)
        for rank, part in enumerate(gathered.split(counts)):
            everything[rank :: self.world.size] = part
        return everything

    def state_dict(self) -> dict[str, Tensor]:
        return self.inner.state_dict()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.inner.load_state_dict(state)


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
