"""Predictions of a network for rows of data, and the check that a network fits the data."""

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pencil.data.examples import Examples
from pencil.data.inputs.base import Inputs
from pencil.errors import DataError, ModelError, PencilError
from pencil.models.probe import FAULTS, as_network, first_line, refuse_untrainable
from pencil.training.compute import CPU, Compute
from pencil.training.distributed import SINGLE_PROCESS, World

BATCH = 512


Found = list[tuple[Tensor | None, Tensor]]
"""For each batch: the outputs (None if none of its rows can be read), and a mask of the readable rows."""


def predict_logits(
    model: nn.Module,
    inputs: Inputs,
    rows: Tensor | None = None,
    *,
    forward: Callable[[Tensor], Tensor] | None = None,
    batch_size: int = BATCH,
    compute: Compute = CPU,
    finite: bool = False,
) -> Tensor:
    """Return the network's logits for these rows as fp32 on the CPU; NaN for unreadable rows.

    The network is in evaluation mode during the call. ``forward`` is called instead of it: a compiled version, or a
    function with another output of any shape per row. With ``finite``, a logit of a readable row that is NaN or
    infinite is a ModelError that names the rows.
    """
    rows = torch.arange(len(inputs)) if rows is None else rows
    found = _outputs(model, inputs, rows.split(batch_size), model if forward is None else forward, compute)
    shape = next((outputs.shape[1:] for outputs, _ in found if outputs is not None), None)
    if shape is None:
        raise _nothing_read(inputs, rows)
    logits = torch.cat([_with_unreadable(outputs, kept, shape) for outputs, kept in found])
    if finite:
        _refuse_non_finite(logits, torch.cat([kept for _, kept in found]), rows, inputs)
    return logits


def with_mirror_image(forward: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Return a function that averages the logits of each image and its mirror image."""
    return lambda images: (forward(images) + forward(images.flip(-1))) / 2


@torch.inference_mode()
def _outputs(
    model: nn.Module,
    inputs: Inputs,
    chunks: Sequence[Tensor],
    run: Callable[[Tensor], Tensor],
    compute: Compute,
    after_batch: Callable[[], None] | None = None,
) -> Found:
    """Run the network in evaluation mode on each chunk of rows."""
    was_training, found = model.training, Found()
    model.eval()
    for values, kept in inputs.batches(chunks):
        with compute.context():
            outputs = run(compute.place(values)).float().cpu() if len(values) else None
        found.append((outputs, torch.ones(len(values), dtype=torch.bool) if kept is None else kept))
        if after_batch is not None:
            after_batch()
    model.train(was_training)
    return found


def _nothing_read(inputs: Inputs, rows: Tensor) -> DataError:
    reason = inputs.fault_of(int(rows[0]))
    return DataError(
        f"none of these {len(rows)} inputs can be read{'' if reason is None else f', the first because {reason}'}; "
        "expected at least one readable input; check the files."
    )


def _refuse_non_finite(logits: Tensor, kept: Tensor, rows: Tensor, inputs: Inputs) -> None:
    """Raise ModelError if the logits of a readable row are not finite."""
    bad = kept & ~logits.flatten(1).isfinite().all(dim=1)
    if bad.any():
        names = [_name_row(inputs, row) for row in rows[bad][:3].tolist()]
        more = ", ..." if int(bad.sum()) > len(names) else ""
        raise ModelError(
            f"the network returns NaN or infinity for {int(bad.sum())} of {len(rows)} inputs ({', '.join(names)}"
            f"{more}); expected finite numbers; check these inputs: their values may be far larger than in training."
        )


def _name_row(inputs: Inputs, row: int) -> str:
    file = inputs.file_of(row)
    return f"row {row}" if file is None else f"row {row}, {file}"


def _with_unreadable(outputs: Tensor | None, kept: Tensor, shape: Sequence[int]) -> Tensor:
    """The outputs at the positions of the readable rows, NaN at the others."""
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
    """Return the logits of all examples; each of several processes predicts a part, and all get the whole.

    Unreadable rows have NaN; it is an error only if no process can read any row. All processes call ``after_batch``
    equally often.
    """
    rows, found = world.local(examples.rows), Found()
    if len(rows):
        found = _outputs(
            model, examples.inputs, rows.split(BATCH), model if forward is None else forward, compute, after_batch
        )
    most = math.ceil(len(examples) / world.size)
    if after_batch is not None and math.ceil(len(rows) / BATCH) < math.ceil(most / BATCH):
        after_batch()
    shape = (examples.num_classes,)
    parts = [_with_unreadable(outputs, kept, shape) for outputs, kept in found]
    logits = world.all_gather_local(torch.cat([torch.empty(0, *shape), *parts]), len(examples))
    if len(logits) and logits[:, 0].isnan().all():  # on every process, or on none
        read = any(outputs is not None for outputs, _ in found)  # then the network predicts NaN
        if not any(count for (count,) in world.all_gather_ints(int(read))):
            raise _nothing_read(examples.inputs, examples.rows)
    return logits


def check_model(model: nn.Module, examples: Examples, compute: Compute = CPU, batch_size: int = 2) -> None:
    """Raise ModelError if a network cannot train on these inputs, or does not return one logit per class."""
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
            "the outputs of the model do not depend on a trainable parameter; expected logits with a gradient; remove "
            "no_grad() and detach() from its forward, or unfreeze a layer that it uses."
        )


def _refuse_outputs(outputs: Any, mode: str, rows: int, num_classes: int) -> None:
    """Raise ModelError unless a network returned one logit per class, as a floating-point tensor."""
    if not isinstance(outputs, Tensor):
        remedy = "return only the logits, or wrap the model in a module that does"
        raise ModelError(
            f"the model returns a {type(outputs).__name__} in {mode} mode; expected a tensor of logits; {remedy}."
        )
    if not outputs.is_floating_point():
        raise ModelError(
            f"the model returns {outputs.dtype} in {mode} mode; expected floating-point logits; remove argmax from it."
        )
    expected = (rows, num_classes)
    if tuple(outputs.shape) != expected:
        raise ModelError(
            f"the model returns {tuple(outputs.shape)} for {rows} inputs; expected {expected}, one logit for "
            f"each of the {num_classes} classes; change its last layer, or pass classes=... to name more."
        )
