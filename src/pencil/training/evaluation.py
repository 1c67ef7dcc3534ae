"""What a network says about examples, and how often it is right."""

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor, nn

from pencil.data.examples import Batch, Examples
from pencil.data.inputs import Inputs
from pencil.errors import DataError, ModelError, PencilError


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
        return Batch(
            batch.rows.to(self.device, non_blocking=True),
            self.place(batch.inputs),
            batch.given_labels.to(self.device, non_blocking=True),
        )


CPU = Compute(torch.device("cpu"))


@torch.inference_mode()
def predict_logits(
    model: nn.Module,
    inputs: Inputs,
    rows: Tensor | None = None,
    *,
    forward: Callable[[Tensor], Tensor] | None = None,
    batch_size: int = 512,
    compute: Compute = CPU,
) -> Tensor:
    """The network's logits for these rows (all by default) as fp32 on the CPU; ``forward`` may be compiled.

    A row that cannot be read has NaN for logits.
    """
    run = model if forward is None else forward
    was_training = model.training
    model.eval()
    chunks = []
    for values, kept in inputs.batches((torch.arange(len(inputs)) if rows is None else rows).split(batch_size)):
        with compute.context():
            logits = run(compute.place(values)).float().cpu() if len(values) else torch.empty(0, 1)
        chunks.append(logits if kept is None else _spread(logits, kept))
    model.train(was_training)
    if all(chunk.isnan().all() for chunk in chunks) and not any(chunk.shape[1] > 1 for chunk in chunks):
        raise DataError(f"none of these {sum(map(len, chunks))} inputs can be read.")
    return torch.cat([chunk.expand(-1, max(part.shape[1] for part in chunks)) for chunk in chunks])


def _spread(logits: Tensor, kept: Tensor) -> Tensor:
    """Logits at the places of the rows that could be read, NaN at the others."""
    every = torch.full((len(kept), logits.shape[1]), torch.nan)
    every[kept] = logits
    return every


MODEL_FAULTS = (RuntimeError, TypeError, ValueError, AttributeError, AssertionError, LookupError)
"""What a network raises when inputs do not suit it; anything else is a bug to be seen as it is."""


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
    except MODEL_FAULTS as error:
        shape = tuple(values.shape)
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise ModelError(f"the model cannot train on inputs of shape {shape}: {reason}") from error
    expected = (len(values), examples.num_classes)
    if tuple(logits.shape) != expected:
        raise ModelError(
            f"the model gives {tuple(logits.shape)} for {len(values)} inputs; expected {expected}, one logit for "
            f"each of the {examples.num_classes} classes; change its last layer, or pass classes=... to name more."
        )
