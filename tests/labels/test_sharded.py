"""Layouts, and a sharded store on several ranks against the same store in one process."""

import numpy as np
import torch
from ranks import in_ranks

from pencil.labels import REPLICATED, LabelLayout, LabelStore, MultilabelStore, ShardedLabelStore, TopKLabelStore
from pencil.training.distributed import SINGLE_PROCESS, join

CLASSES, ROWS = 12, 50
GIVEN = torch.arange(ROWS) % CLASSES
PINNED = torch.arange(ROWS) % 7 == 0


def test_a_layout_without_a_world_keeps_all_labels():
    store = LabelLayout(top_k=2).build(GIVEN, lambda labels, k: TopKLabelStore(labels, CLASSES, k=k))
    assert len(store) == 50 and store.local_rows is None and store.k == 2
    assert store.local is store


def test_replicated_is_the_default_layout():
    store = REPLICATED.build(GIVEN, lambda labels, k: LabelStore(labels, CLASSES))
    assert isinstance(store, LabelStore) and store.local_rows is None and store.pinned is None


def test_one_process_that_shards_holds_all_rows():
    layout = LabelLayout(SINGLE_PROCESS, pinned=PINNED)
    store = layout.build(GIVEN, lambda labels, k: LabelStore(labels, CLASSES))
    assert isinstance(store, ShardedLabelStore) and store.local_rows.tolist() == list(range(ROWS))
    assert store.pinned is store.local.pinned and store.pinned.equal(PINNED)
    store.pinned = None
    assert store.local.pinned is None


def make(kind):
    """A function that builds a store of this kind, and the given labels for it."""
    if kind == "multilabel":
        return MultilabelStore, torch.nn.functional.one_hot(GIVEN, CLASSES).float()
    if kind == "top_k":
        return lambda labels: TopKLabelStore(labels, CLASSES, k=3), GIVEN
    return lambda labels: LabelStore(labels, CLASSES), GIVEN


def written(kind, world, pinned):
    """What a store returns after every rank has replaced some rows, none of them twice."""
    build, given = make(kind)
    labels = LabelLayout(world, pinned=PINNED if pinned else None).build(given, lambda mine, _: build(mine))
    generator = torch.Generator().manual_seed(0)
    for _ in range(3):
        rows = torch.randperm(ROWS, generator=generator)[:20]
        values = 10 * torch.randn(20, CLASSES, generator=generator).softmax(dim=1)  # rows keep the sum of Eq. 8
        chosen = torch.arange(20) if world is None else torch.arange(20)[world.rank :: world.size]
        labels.write(rows[chosen], values[chosen])
    local = labels.local_rows
    return {
        "local_rows": None if local is None else local.tolist(),
        "rows": len(labels),
        "read": labels[torch.tensor([ROWS - 1, 0, 8])].numpy(),
        "probs": labels.gather(labels.probs()).numpy(),
        "evidence": labels.gather(labels.evidence(1.0)).numpy(),
        "at_place_1": labels.probs(torch.tensor([1])).numpy(),
        "initial": labels.gather(labels.initial_logits()).numpy(),
        "mean": float(labels.mean(labels.probs()[:, 0].double().mean())),
    }


def sharded(kinds):
    world = join(torch.device("cpu"))
    return {(kind, pinned): written(kind, world, pinned) for kind in kinds for pinned in (False, True)}


def test_three_ranks_hold_what_one_process_holds():
    """Rows that one rank writes are read by the others; every store can be sharded; pinned rows stay pinned."""
    kinds = ("dense", "top_k", "multilabel")
    for rank, found in enumerate(in_ranks(3, sharded, kinds)):
        for (kind, pinned), theirs in found.items():
            alone = written(kind, None, pinned)
            assert theirs["local_rows"] == list(range(rank, ROWS, 3)) and theirs["rows"] == alone["rows"] == ROWS
            for name in ("read", "probs", "evidence", "initial"):
                assert (theirs[name] == alone[name]).all(), (kind, pinned, name)
            at_place_1 = alone["probs"][[rank + 3]]  # places count among the local rows
            np.testing.assert_allclose(theirs["at_place_1"], at_place_1, rtol=1e-6)
            assert abs(theirs["mean"] - alone["mean"]) < 1e-12
