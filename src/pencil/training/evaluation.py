"""Predictions of a network for rows of data, and the check that a network fits the data."""

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pencil.data.examples import Examples
from pencil.data.inputs import Inputs
from pencil.errors import DataError, ModelError, PencilError
from pencil.models.probe import FAULTS, as_network, first_line, refuse_untrainable
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
    finite: bool = False,
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
    finite
        Raise ModelError, with the rows, if a logit of a row that can be read is NaN or infinite.
    """
    run = model if forward is None else forward
    was_training = model.training
    model.eval()
    found: list[tuple[Tensor | None, Tensor]] = []
    rows = torch.arange(len(inputs)) if rows is None else rows
    for values, kept in inputs.batches(rows.split(batch_size)):
        with compute.context():
            outputs = run(compute.place(values)).float().cpu() if len(values) else None
        found.append((outputs, torch.ones(len(values), dtype=torch.bool) if kept is None else kept))
        if after_batch is not None:
            after_batch()
    model.train(was_training)
    shape = next((outputs.shape[1:] for outputs, _ in found if outputs is not None), None)
    if shape is None:
        reason = inputs.fault_of(int(rows[0]))
        raise DataError(
            f"none of these {len(rows)} inputs can be read{'' if reason is None else f', the first because {reason}'}; "
            "expected at least one that can; check the files."
        )
    logits = torch.cat([_with_unreadable(outputs, kept, shape) for outputs, kept in found])
    if finite:
        _refuse_non_finite(logits, torch.cat([kept for _, kept in found]), rows, inputs)
    return logits


def _refuse_non_finite(logits: Tensor, kept: Tensor, rows: Tensor, inputs: Inputs) -> None:
    """Raise ModelError if the logits of a row that could be read are not finite."""
    bad = kept & ~logits.flatten(1).isfinite().all(dim=1)
    if bad.any():
        names = [_name_row(inputs, row) for row in rows[bad][:3].tolist()]
        more = ", ..." if int(bad.sum()) > len(names) else ""
        raise ModelError(
            f"the network returns NaN or infinity for {int(bad.sum())} of {len(rows)} inputs ({', '.join(names)}"
            f"{more}); expected numbers; check these inputs, whose values may be far larger than those of training."
        )


def _name_row(inputs: Inputs, row: int) -> str:
    file = inputs.file_of(row)
    return f"row {row}" if file is None else f"row {row}, {file}"


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
    """Raise ModelError for a network that cannot train on these inputs, or does not return one logit per class."""
    model = as_network(model)
    values = examples.some_inputs(min(2, batch_size))
    was_training = model.training
    try:
        with compute.context():
            with torch.no_grad():
                logits = model.eval()(compute.place(values))  # lazy layers get their shapes here
            refuse_untrainable(model)
            trained = copy.deepcopy(model).train()(compute.place(values))
    except PencilError:
        raise
    except FAULTS as error:
        shape = tuple(values.shape)
        reason = first_line(error)
        raise ModelError(f"the model cannot train on inputs of shape {shape}: {reason}") from error
    finally:
        model.train(was_training)
    for outputs, mode in ((logits, "evaluation"), (trained, "training")):
        _refuse_outputs(outputs, mode, len(values), examples.num_classes)
    if not trained.requires_grad:
        raise ModelError(
            "the outputs of the model do not depend on a parameter that trains; expected logits with a gradient; leave "
            "no_grad() and detach() out of its forward, or unfreeze a layer that it uses."
        )


def _refuse_outputs(outputs: Any, mode: str, rows: int, num_classes: int) -> None:
    """Raise ModelError unless a network returned one logit per class, as a tensor of floating point numbers."""
    if not isinstance(outputs, Tensor):
        remedy = "return the logits alone, or wrap the model in a module that does"
        raise ModelError(
            f"the model returns a {type(outputs).__name__} in {mode} mode; expected a tensor of logits; {remedy}."
        )
    if not outputs.is_floating_point():
        raise ModelError(
            f"the model returns {outputs.dtype} in {mode} mode; expected floating point logits; leave argmax out of it."
        )
    expected = (rows, num_classes)
    if tuple(outputs.shape) != expected:
        raise ModelError(
            f"the model returns {tuple(outputs.shape)} for {rows} inputs; expected {expected}, one logit for "
            f"each of the {num_classes} classes; change its last layer, or pass classes=... to name more."
        )
