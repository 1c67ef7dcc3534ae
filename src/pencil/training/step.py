"""One step of many processes: each has computed its piece of a batch, and all need one loss."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pencil.data.examples import Batch, Examples
from pencil.errors import TrainingError
from pencil.labels.sharded import LabelLayout
from pencil.methods.base import Phase, Terms
from pencil.training.distributed import World
from pencil.training.metrics import training_hits
from pencil.training.settings import TrainingSettings

Sharing = Callable[[Phase, list[Tensor], Batch, list[int], World, bool], "Shared"]


@dataclass(frozen=True)
class Shared:
    """What came of a batch. ``loss`` is this rank's part: the gradients of all ranks add up to that of the batch.

    ``terms`` hold what the batch as a whole has lost; ``batch`` and ``logits`` are the rows that this rank has seen.
    """

    loss: Tensor
    terms: Terms
    batch: Batch
    logits: Tensor
    right: float


def rows_of_all(batch: Batch, chunk: Tensor, complete: bool, world: World) -> tuple[Tensor, list[int]]:
    """The rows of a batch that can be read, and how many of them each rank has; all, where inputs are ``complete``."""
    if world.size == 1:
        return batch.rows, [len(batch.rows)]
    if complete:
        return chunk.to(batch.rows.device), [len(part) for part in chunk.tensor_split(world.size)]
    counts = [count for (count,) in world.all_gather_ints(len(batch.rows))]
    return world.all_gather(batch.rows, counts), counts


def over_whole_batch(
    phase: Phase, said: list[Tensor], batch: Batch, counts: list[int], world: World, multilabel: bool
) -> Shared:
    """Everyone sees the logits of all rows, so that a loss may do with them what it likes, and labels move alike."""
    logits = tuple(world.all_gather(mine, counts) for mine in said)
    terms = phase.loss(logits if len(logits) > 1 else logits[0], batch)
    answers = logits[0] if batch.partners is None else logits[-1]  # about mixtures there is no right answer
    right = training_hits(answers.detach(), batch.given_labels, multilabel)
    return Shared(terms.loss, terms, batch, logits[0], right)


def over_own_rows(
    phase: Phase, said: list[Tensor], batch: Batch, counts: list[int], world: World, multilabel: bool
) -> Shared:
    """Everyone sees its own rows only, which a loss that is a mean over rows allows: no logits travel."""
    (logits,), own, everyone = said, len(batch.rows), sum(counts)
    terms = phase.loss(logits, batch)  # of no rows it is no number, but all ranks have to fetch labels together
    loss = terms.loss * (own / everyone) if own else logits.sum()
    right = training_hits(logits.detach(), batch.given_labels, multilabel)
    sums = torch.zeros(2 + len(terms.parts), dtype=torch.float64)
    if own:
        lost = [own * float(term.detach()) for term in (terms.loss, *terms.parts.values())]
        sums += torch.tensor([*lost, right], dtype=torch.float64)
    *totals, right = world.all_reduce_sum(sums).tolist()
    whole, *parts = [torch.tensor(total / everyone, dtype=torch.float64) for total in totals]
    return Shared(loss, Terms(whole, dict(zip(terms.parts, parts, strict=True)), terms.carry), batch, logits, right)


REPLICATED_BYTES = 2**30
"""Larger labels are not copied to every process."""


def choose_layout(
    settings: TrainingSettings, train: Examples, by_row: bool, world: World
) -> tuple[LabelLayout, Sharing]:
    """Labels are dealt out over processes where a copy on each would be too large, if the method's loss allows it."""
    sharded = settings.label_layout == "sharded"
    if settings.label_layout == "auto":
        sharded = len(train) * (settings.label_top_k or train.num_classes) * 4 > REPLICATED_BYTES
    if not sharded or world.size == 1 or not by_row:
        return LabelLayout(None, settings.label_top_k, train.pinned), over_whole_batch
    return LabelLayout(world, settings.label_top_k, train.pinned), over_own_rows


def failure(what: str, where: str, shared: Shared, all_keys: np.ndarray) -> TrainingError:
    """What happened, and to which rows; nothing has moved yet."""
    bad = ~shared.logits.isfinite().all(dim=1)
    rows = shared.batch.rows[bad if bad.any() else torch.ones_like(bad)].cpu()
    keys = ", ".join(map(repr, all_keys[rows.numpy()][:5].tolist()))
    more = f" and {len(rows) - 5} more" if len(rows) > 5 else ""
    return TrainingError(
        f"the {what} in {where}, in a batch with the rows {keys}{more}; weights and labels are as they were before "
        "this step; lower the learning rate, set training.clip_norm, or look at those rows."
    )
