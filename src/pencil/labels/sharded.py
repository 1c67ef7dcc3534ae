"""Where the label rows of a run are stored: replicated on every process, or sharded over processes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from pencil.labels.losses import Compatibility
from pencil.labels.protocol import Labels


class Collectives(Protocol):
    """The collective operations that a sharded store needs (``training/distributed.py`` implements them)."""

    rank: int
    size: int

    def all_to_all(self, rows: Tensor, ranks: Tensor, /) -> tuple[Tensor, list[int]]: ...

    def return_to_senders(self, rows: Tensor, counts: list[int], ranks: Tensor, /) -> Tensor: ...

    def all_reduce_sum(self, values: Tensor, /) -> Tensor: ...

    def all_gather_ints(self, *values: int) -> list[tuple[int, ...]]: ...

    def all_gather(self, rows: Tensor, counts: list[int], /) -> Tensor: ...


@dataclass(frozen=True)
class LabelLayout:
    """How the labels of a run are stored.

    Parameters
    ----------
    sharded_over
        The processes over which rows are sharded; None replicates all rows on every process.
    top_k
        How many label logits are kept per row; None keeps all.
    pinned
        True for rows whose labels never move; None if every row may move.
    """

    sharded_over: Collectives | None = None
    top_k: int | None = None
    pinned: Tensor | None = None

    def build(self, given_labels: Tensor, make_store: Callable[[Tensor, int | None], Labels]) -> Labels:
        """Return the store for these labels.

        Parameters
        ----------
        given_labels
            Given labels of all rows.
        make_store
            ``make_store(given_labels, top_k)`` returns the store for the rows of this process.
        """
        world = self.sharded_over
        local = slice(None) if world is None else slice(world.rank, None, world.size)
        store = make_store(given_labels[local], self.top_k)
        if self.pinned is not None:
            store.pinned = self.pinned[local].to(given_labels.device)
        return store if world is None else ShardedLabelStore(store, world, len(given_labels))


REPLICATED = LabelLayout()


def send_to_owners(world: Collectives | None, rows: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Send rows and their values to the ranks that hold them; return what this rank receives, by local position.

    Without other ranks (None) every row is local. All ranks must call this together.
    """
    if world is None:
        return rows, values
    owners = rows % world.size
    (rows, _), (values, _) = world.all_to_all(rows, owners), world.all_to_all(values, owners)
    return rows // world.size, values


def gather_rows(world: Collectives | None, local_values: Tensor) -> Tensor:
    """Return the values of all rows in order, given this rank's rows (``i mod W``); all ranks must call this."""
    if world is None:
        return local_values
    counts = [count for (count,) in world.all_gather_ints(len(local_values))]
    gathered = world.all_gather(local_values, counts)
    in_order = torch.empty_like(gathered)
    for rank, part in enumerate(gathered.split(counts)):
        in_order[rank :: world.size] = part
    return in_order


class ShardedLabelStore:
    """Any label store, sharded over processes: row ``i`` is on rank ``i mod W``.

    ``labels[rows]`` and :meth:`write` exchange rows by all-to-all, so all ranks must call them together, each with its
    own rows. See :class:`pencil.labels.Labels` for the members that work on local rows.

    Parameters
    ----------
    local
        The store of this rank's rows.
    world
        The processes that hold the other rows.
    count
        Number of rows on all ranks.
    """

    def __init__(self, local: Labels, world: Collectives, count: int):
        self.local, self.world, self.count = local, world, count
        self.local_rows: Tensor = torch.arange(world.rank, count, world.size)

    @property
    def num_classes(self) -> int:
        return self.local.num_classes

    @property
    def given_labels(self) -> Tensor:
        return self.local.given_labels

    @property
    def pinned(self) -> Tensor | None:
        return self.local.pinned

    @pinned.setter
    def pinned(self, pinned: Tensor | None) -> None:
        self.local.pinned = pinned

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, rows: Tensor) -> Tensor:
        """Return the label logits of these rows, from the ranks that hold them."""
        owners = rows % self.world.size
        requested, counts = self.world.all_to_all(rows, owners)
        return self.world.return_to_senders(self.local[requested // self.world.size], counts, owners)

    def write(self, rows: Tensor, label_logits: Tensor) -> None:
        """Replace the label logits of these rows on the ranks that hold them; pinned rows stay as they are."""
        self.local.write(*send_to_owners(self.world, rows, label_logits))

    def reset(self) -> None:
        self.local.reset()

    def initial_logits(self, rows: Tensor | None = None) -> Tensor:
        return self.local.initial_logits(rows)

    def to_probs(self, label_logits: Tensor) -> Tensor:
        return self.local.to_probs(label_logits)

    def probs(self, rows: Tensor | None = None) -> Tensor:
        return self.local.probs(rows)

    def evidence(self, pull: float, rows: Tensor | None = None, compatibility: Compatibility = "printed") -> Tensor:
        return self.local.evidence(pull, rows, compatibility)

    def mean(self, local_mean: Tensor) -> Tensor:
        """Return the mean over all rows of the training set, given the mean over the local rows."""
        return self.world.all_reduce_sum(local_mean * len(self.local_rows)) / self.count

    def gather(self, local_values: Tensor) -> Tensor:
        """Return the values of all rows in order, given the values of the local rows."""
        return gather_rows(self.world, local_values)

    def state_dict(self) -> dict[str, Tensor]:
        return self.local.state_dict()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.local.load_state_dict(state)
