"""Two views of a batch, and inputs mixed with other rows, as requested by the :class:`Views` of a phase."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from pencil.data.examples import Batch, Examples
from pencil.data.inputs.augment import Augmentation, View
from pencil.errors import TrainingError
from pencil.methods.base import Mixing, Phase, Requirements, Views
from pencil.seeding import derive_seed
from pencil.training.distributed import World

SMALLEST_STRONG = 32
"""Strong augmentation shifts by up to 32 pixels, which would leave nothing of smaller images."""


def refuse_views(phases: tuple[Phase, ...], name: str, needs: Requirements) -> None:
    """Raise if a phase has two views or mixes inputs although the method declares a row-wise loss."""
    for phase in phases:
        if needs.row_losses and phase.views != Views():
            raise TrainingError(
                f"the phase {phase.name} of {name} has {phase.views}, which mixes or repeats rows; expected one plain "
                "view with row_losses; remove one of them."
            )


def load_views(
    train: Examples, parts: list[Tensor], augmentation: Augmentation | None, views: Views, seed: int, epoch: int
) -> Iterator[Batch]:
    """Yield a batch for each part, with a second view if one is requested and differs from the first."""
    first, second = _augmented(train, augmentation, views, seed, epoch)
    batches = train.load_batches(parts, first)
    if second is None:
        yield from batches
        return
    for batch, other in zip(batches, train.load_batches(parts, second), strict=True):
        yield replace(batch, second_inputs=other.inputs)


def _augmented(
    train: Examples, augmentation: Augmentation | None, views: Views, seed: int, epoch: int
) -> tuple[View, View | None]:
    """Return the first and the second view; None for the second if it would equal the first."""
    only = View(seed, epoch, augmentation)
    if views.second is None or augmentation in (None, Augmentation()) or len(train.input_shape) != 3:
        return only, None
    assert augmentation is not None
    if views.second == "strong" and _takes_strong(train):
        return replace(only, augmentation=augmentation.weak()), replace(only, augmentation=augmentation.strong())
    return only, replace(only, seed=derive_seed(seed, "second view"))


def _takes_strong(train: Examples) -> bool:
    """Return whether strong augmentation is possible: 8-bit images, grey or RGB, that are not too small."""
    inputs, shape = train.inputs, train.input_shape
    return inputs.dtype == torch.uint8 and inputs.channels in (1, 3) and min(shape[1:]) >= SMALLEST_STRONG


def stacked(batch: Batch, views: Views) -> Tensor:
    """Return the inputs of all views, one after the other; without a second view the first is repeated."""
    if views.second is None:
        return batch.inputs
    return torch.cat([batch.inputs, batch.inputs if batch.second_inputs is None else batch.second_inputs])


def draw_mixing(alpha: float, rows: int, device: torch.device, seed: int, *position: int) -> Mixing:
    """Draw ``max(w, 1 - w)``, w from Beta(alpha, alpha), and a permutation of the rows (MixMatch, Eq. 8 to 11)."""
    random = np.random.default_rng(derive_seed(seed, "mixup", *position))
    weight = float(random.beta(alpha, alpha))
    return Mixing(max(weight, 1 - weight), torch.from_numpy(random.permutation(rows)).to(device))


def gather(values: Tensor, views: Views, counts: list[int], world: World) -> Tensor:
    """Return the rows of all processes, view by view."""
    return torch.cat([world.all_gather(part, counts) for part in values.tensor_split(views.count)])


def mix_local(inputs: Tensor, mixing: Mixing, views: Views, counts: list[int], world: World) -> Tensor:
    """Return this process's mixed inputs, where ``inputs`` holds all processes' inputs, view by view."""
    if world.size == 1:
        return mixing(inputs)
    start, total = sum(counts[: world.rank]), sum(counts)
    own = torch.arange(start, start + counts[world.rank], device=inputs.device)
    places = torch.cat([own + view * total for view in range(views.count)])
    return mixing.weight * inputs[places] + (1 - mixing.weight) * inputs[mixing.partners[places]]
