"""Predictions of a network for rows of data, and the check that a network fits the data."""

import copy
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from pencil.data.examples import Examples
from pencil.data.inputs import Inputs
from pencil.errors import DataError, ModelError, PencilError
from pencil.models.probe import FAULTS, first_line
from pencil.training.compute import CPU, Compute
from pencil.training.distributed import SINGLE_PROCESS, World

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
    after_batch: Callable[[], None] | None = None,
) -> Tensor:
    """Return the network's logits for these rows as fp32 on the CPU; NaN for a row that cannot be read.

    Parameters
    ----------
    model
        Set to evaluation mode meanwhile.
    inputs, rows
        The rows of these inputs, all by default.
    forward
        Called in place of the model: a compiled version of it, or another output, of any shape per row.
    batch_size, compute
        How the forward passes run.
    after_batch
        Called after every batch.
    """
    run = model if forward is None else forward
    was_training = model.training
    model.eval()
    found: list[tuple[Tensor | None, Tensor]] = []
    for values, kept in inputs.batches((torch.arange(len(inputs)) if rows is None else rows).split(batch_size)):
        with compute.context():
            outputs = run(compute.place(values)).float().cpu() if len(values) else None
        found.append((outputs, torch.ones(len(values), dtype=torch.bool) if kept is None else kept))
        if after_batch is not None:
            after_batch()
    model.train(was_training)
    shape = next((outputs.shape[1:] for outputs, _ in found if outputs is not None), None)
    if shape is None:
        raise DataError(f"none of these {sum(len(kept) for _, kept in found)} inputs can be read.")
    return torch.cat([_with_unreadable(outputs, kept, shape) for outputs, kept in found])


def _with_unreadable(outputs: Tensor | None, kept: Tensor, shape: Sequence[int]) -> Tensor:
    """The outputs at the places of the rows that could be read, NaN at the others."""
    if outputs is not None and len(outputs) == len(kept):
        return outputs
    every = torch.full((len(kept), *shape), torch.nan)
    if outputs is not None:
        every[kept] = outputs
    return every


def predict_examples(
    model: nn.Module,
    examples: Examples,
    *,
    forward: Callable[[Tensor], Tensor] | None = None,
    compute: Compute = CPU,
    world: World = SINGLE_PROCESS,
    after_batch: Callable[[], None] | None = None,
) -> Tensor:
    """Return the logits of all examples; of several processes each predicts its part, and all get the whole.

    ``after_batch`` is called equally often by all processes.
    """
    rows, logits = world.local(examples.rows), torch.empty(0, examples.num_classes)
    if len(rows):
        logits = predict_logits(model, examples.inputs, rows, forward=forward, compute=compute, after_batch=after_batch)
    most = math.ceil(len(examples) / world.size)
    if after_batch is not None and math.ceil(len(rows) / BATCH) < math.ceil(most / BATCH):
        after_batch()
    return world.all_gather_local(logits, len(examples))


def check_model(model: nn.Module, examples: Examples, compute: Compute = CPU, batch_size: int = 2) -> None:
    """Raise ModelError for a network that cannot take these inputs, or does not return one logit per class."""
    values = examples.some_inputs(min(2, batch_size))
    was_training = model.training
    try:
        with torch.no_grad(), compute.context():
            logits = model.eval()(compute.place(values))  # lazy layers get their shapes here
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
            f"the model returns {tuple(logits.shape)} for {len(values)} inputs; expected {expected}, one logit for "
            f"each of the {examples.num_classes} classes; change its last layer, or pass classes=... to name more."
        )
