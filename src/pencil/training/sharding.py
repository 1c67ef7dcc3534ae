"""Which labels are sharded over the processes, and the results of sharded rows, which no process holds in full."""

from collections.abc import Iterator

import torch
from torch import Tensor

from pencil.data.examples import Examples
from pencil.data.pinned import apply_pinned
from pencil.labels.dynamics import TrainingDynamics
from pencil.labels.judging import Judgement
from pencil.labels.rows import row_blocks
from pencil.labels.sharded import LabelLayout
from pencil.methods.base import Method
from pencil.training.distributed import World
from pencil.training.metrics import LabelTotals, Metrics
from pencil.training.record import TrainRows
from pencil.training.run_dynamics import RunDynamics
from pencil.training.settings import TrainingSettings

REPLICATED_BYTES = 2**30
"""Labels up to this size are replicated on every process."""


def choose_layout(settings: TrainingSettings, train: Examples, row_losses: bool, world: World) -> LabelLayout:
    """Return the layout of the labels: sharded if a replica would be too large and the method's loss allows it."""
    sharded = settings.label_layout == "sharded"
    if settings.label_layout == "auto":
        sharded = len(train) * (settings.label_top_k or train.num_classes) * 4 > REPLICATED_BYTES
    over = world if sharded and world.size > 1 and row_losses else None
    return LabelLayout(over, settings.label_top_k, train.pinned)


def label_metrics(method: Method, train: Examples, layout: LabelLayout, device: torch.device) -> Metrics:
    """Return metrics of the labels, in chunks, so that labels are never held twice; sharded ones are summed."""
    labels, totals = method.labels, LabelTotals()
    local = torch.arange(len(train)) if labels is None or labels.local_rows is None else labels.local_rows
    for places in row_blocks(len(local), train.num_classes):
        label_probs = method.label_probs(places.to(device))
        if label_probs is None:
            return {}
        totals.add(label_probs.cpu(), train.subset(local[places]))
    return totals.means(None if layout.sharded_over is None else layout.sharded_over.all_reduce_sum)


def can_judge_shards(method: Method, dynamics: RunDynamics) -> bool:
    """Return whether the labels of a run are sharded and can be judged shard by shard."""
    labels = method.labels
    sharded = labels is not None and labels.local_rows is not None
    return sharded and method.issue_scores() is None and dynamics.can_judge_shards()


def whole_label_probs(method: Method, rows: int, num_classes: int, device: torch.device) -> Tensor | None:
    """Return the label distributions of all rows, on the CPU; None if the method has none."""
    if method.labels is not None and method.labels.local_rows is not None:
        probs = method.label_probs()
        return None if probs is None else method.labels.gather(probs).cpu()
    found: Tensor | None = None
    for places in row_blocks(rows, num_classes):
        probs = method.label_probs(places.to(device))
        if probs is None:
            return None
        found = torch.empty(rows, num_classes, dtype=probs.dtype) if found is None else found
        found[places] = probs.cpu()
    return found


def shard_rows(
    method: Method, train: Examples, dynamics: RunDynamics, judgement: Judgement, device: torch.device
) -> Iterator[TrainRows]:
    """Yield the results of the local rows, in blocks small enough to hold all classes."""
    labels = method.labels
    assert labels is not None and labels.local_rows is not None
    assert isinstance(dynamics.train, TrainingDynamics)
    for places in row_blocks(len(labels.local_rows), train.num_classes):
        rows = labels.local_rows[places]
        part, probs = train.subset(rows), method.label_probs(places.to(device))
        assert probs is not None
        evidence = dynamics.train.local_evidence(places)
        yield TrainRows(rows, apply_pinned(probs.cpu(), part), judgement.posterior(places), evidence)
