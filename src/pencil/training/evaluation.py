"""What a network says about examples, and how often it is right."""

import copy
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from pencil.data.examples import Batch, Examples
from pencil.data.inputs import Inputs
from pencil.errors import DataError, ModelError, PencilError
from pencil.models.probe import FAULTS, first_line


class Compute(NamedTuple):
    """Where and how forward passes run."""

    device: torch.device
    autocast: torch.dtype | None = None
    memory_format: torch.memory_format = torch.preserve_format

    def context(self) -> AbstractContextManager[object]:
        return nullcontext() if self.autocast is None else torch.autocast(self.device.type, self.autocast)

    def place(self, inputs: Tensor) -> Tensor:
        if inputs.ndim == 4 and self.memory_format != torch.preserve_format:
            return inputs.to(self.device, non_blocking=True, memory_format=self.memory_format)
        return inputs.to(self.device, non_blocking=True)

    def place_batch(self, batch: Batch) -> Batch:
        return replace(
            batch,
            rows=batch.rows.to(self.device, non_blocking=True),
            inputs=self.place(batch.inputs),
            given_labels=batch.given_labels.to(self.device, non_blocking=True),
            views=tuple(self.place(view) for view in batch.views),
        )


CPU = Compute(torch.device("cpu"))
BATCH = 512


@torch.inference_mode()
def predict_logits(
    model: nn.Module,
    inputs: Inputs,
    rows: Tensor | None = None,
    *,
    forward: Callable[[Tensor], Tensor] | None = None,
    batch_size: int = BATCH,
    compute: Compute = CPU,
    between: Callable[[], None] | None = None,
) -> Tensor:
    """The network's logits for these rows (all by default) as fp32 on the CPU; ``forward`` may be compiled.

    A row that cannot be read has NaN for logits. ``forward`` may also be another thing that the network says, of any
    shape that begins with a row for each input. ``between`` is called after every batch.
    """
    run = model if forward is None else forward
    was_training = model.training
    model.eval()
    found: list[tuple[Tensor | None, Tensor]] = []
    for values, kept in inputs.batches((torch.arange(len(inputs)) if rows is None else rows).split(batch_size)):
        with compute.context():
            said = run(compute.place(values)).float().cpu() if len(values) else None
        found.append((said, torch.ones(len(values), dtype=torch.bool) if kept is None else kept))
        if between is not None:
            between()
    model.train(was_training)
    shape = next((said.shape[1:] for said, _ in found if said is not None), None)
    if shape is None:
        raise DataError(f"none of these {sum(len(kept) for _, kept in found)} inputs can be read.")
    return torch.cat([_spread(said, kept, shape) for said, kept in found])


def _spread(said: Tensor | None, kept: Tensor, shape: Sequence[int]) -> Tensor:
    """What was said at the places of the rows that could be read, NaN at the others."""
    if said is not None and len(said) == len(kept):
        return said
    every = torch.full((len(kept), *shape), torch.nan)
    if said is not None:
        every[kept] = said
    return every


def check_model(model: nn.Module, examples: Examples, compute: Compute = CPU, batch_size: int = 2) -> None:
    """Refuse a network that cannot take these inputs, to predict or to train, or does not give one logit per class."""
    values = examples.some_inputs(min(2, batch_size))
    was_training = model.training
    try:
        with torch.no_grad(), compute.context():
            logits = model.eval()(compute.place(values))  # lazy layers take shape here
            copy.deepcopy(model).train()(compute.place(values))
        model.train(was_training)
    except PencilError:
        raise
    except FAULTS as error:
        shape = tuple(values.shape)
        reason = first_line(error)
        raise ModelError(f"the model cannot train on inputs of shape {shape}: {reason}") from error
    expected = (len(values), examples.num_classes)
    if tuple(logits.shape) != expected:
        raise ModelError(
            f"the model gives {tuple(logits.shape)} for {len(values)} inputs; expected {expected}, one logit for "
            f"each of the {examples.num_classes} classes; change its last layer, or pass classes=... to name more."
        )
