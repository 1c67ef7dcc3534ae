"""Where label rows live when they are many: dealt out over processes, or reduced to their largest entries."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from pencil.labels.store import LabelStore


class Exchange(Protocol):
    """What a sharded store needs of the world of processes (see ``training/world.py``)."""

    rank: int
    size: int

    def all_to_all(self, mine: Tensor, towards: Tensor) -> tuple[Tensor, list[int]]: ...

    def return_to_senders(self, answers: Tensor, counts: list[int], towards: Tensor) -> Tensor: ...

    def all_reduce_sum(self, values: Tensor) -> Tensor: ...

    def all_gather_ints(self, *mine: int) -> list[tuple[int, ...]]: ...

    def all_gather(self, mine: Tensor, counts: list[int]) -> Tensor: ...


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
        asked, counts = self.world.all_to_all(rows, owners)
        return self.world.return_to_senders(self.inner[asked // self.world.size], counts, owners)

    def write(self, rows: Tensor, label_logits: Tensor) -> None:
        owners = rows % self.world.size
        theirs, _ = self.world.all_to_all(rows, owners)
        values, _ = self.world.all_to_all(label_logits, owners)
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
        return self.world.all_reduce_sum(value * len(self.own_rows)) / self.count

    def whole(self, mine: Tensor) -> Tensor:
        """What every rank has of its rows, in the order of all rows."""
        counts = [count for (count,) in self.world.all_gather_ints(len(mine))]
        gathered = self.world.all_gather(mine, counts)
        everything = torch.empty_like(gathered)
        for rank, part in enumerate(gathered.split(counts)):
            everything[rank :: self.world.size] = part
        return everything

    def state_dict(self) -> dict[str, Tensor]:
        return self.inner.state_dict()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.inner.load_state_dict(state)
