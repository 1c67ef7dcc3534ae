"""What else a method may ask to see of a batch: further views of its rows, and mixtures of them."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from pencil.data.augment import View
from pencil.data.examples import Batch
from pencil.seeding import derive_seed
from pencil.training.distributed import World


def with_views(read: Callable[[View], Iterator[Batch]], view: View, looks: int) -> Iterator[Batch]:
    """Batches with ``looks`` views of their rows for the averaged network, the first as it is trained on."""
    if looks == 0:
        return read(view)
    others = [replace(view, seed=derive_seed(view.seed, "look", number)) for number in range(1, looks)]
    streams = zip(read(view), *(read(other) for other in others), strict=True)
    return (replace(first, views=tuple(batch.inputs for batch in (first, *rest))) for first, *rest in streams)


def mixed(batch: Batch, alpha: float, seed: int, step: int) -> Batch:
    """Every row with another of the batch, all by the same share, drawn from Beta(alpha, alpha) and at least a half."""
    random = np.random.default_rng(derive_seed(seed, "mixup", step))
    share = float(random.beta(alpha, alpha))
    share = max(share, 1 - share)
    others = torch.from_numpy(random.permutation(len(batch.rows))).to(batch.rows.device)
    inputs = torch.lerp(batch.inputs[others], batch.inputs, share)
    return replace(batch, inputs=inputs, partners=batch.rows[others], fraction=share)


def of_all(batch: Batch, rows: Tensor, given_labels: Tensor, counts: list[int], world: World) -> Batch:
    """The batch as all processes together see it; inputs and views are this one's own."""
    partners = None if batch.partners is None else world.all_gather(batch.partners, counts)
    return replace(batch, rows=rows, given_labels=given_labels, partners=partners)
