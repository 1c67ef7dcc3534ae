"""The network of a run for other programs: torch.export, ONNX or plain weights, checked against the original."""

import copy
import importlib.util
import json
import logging
import os
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from pencil._version import __version__
from pencil.data.inputs.augment import centre_crop
from pencil.data.inputs.transform import Normalization, Transform
from pencil.data.read import read_source
from pencil.errors import ModelError, PencilError, RunError
from pencil.files import atomic_write, sync_file
from pencil.models.probe import FAULTS, first_line
from pencil.runs.run import Run

ENDINGS = {"torch-export": ".pt2", "onnx": ".onnx", "safetensors": ".safetensors"}
FORMATS = tuple(ENDINGS)
PACKAGES = ("onnx", "onnxscript", "onnxruntime")
TRIED = 32
"""Number of inputs on which the exported network is compared with the original."""
INPUT, OUTPUT = "inputs", "logits"


@dataclass(frozen=True)
class Exported:
    """The written file, and the largest difference of any logit from the original on ``inputs``."""

    path: Path
    metadata: dict[str, Any]
    inputs: int
    from_data: bool
    largest_difference: float


def export_model(
    run: Run, kind: str, path: Path | str, *, preparation: bool | None = None, tolerance: float = 1e-4
) -> Exported:
    """Write the network to a new file, read it back, and keep the file if it reproduces the logits.

    Parameters
    ----------
    run : Run
        The run.
    kind : str
        ``torch-export``, ``onnx`` or ``safetensors``.
    path : Path or str
        A new file, with the suffix of its format.
    preparation : bool, optional
        Whether the exported network takes raw inputs (uint8 images of the training size, or unscaled numbers) and crops
        and normalises them itself. The default is True for formats with a graph. A network trained on a table takes
        vectors made by :meth:`Run.prepare`; the metadata names their columns.
    tolerance : float
        Largest allowed difference of a logit, relative to the largest logit or to 1, whichever is larger.

    Raises
    ------
    ModelError
        If the network cannot be converted, or its outputs differ.
    RunError
        If the file cannot be written.
    """
    path = Path(path)
    _refuse(kind, path)
    if kind == "safetensors" and preparation:
        raise RunError(
            "safetensors stores weights without a graph, so it cannot include the preparation; remove "
            "--with-preparation (the metadata describes it)."
        )
    inside = kind != "safetensors" if preparation is None else preparation
    network = copy.deepcopy(run.model).cpu().float().eval()
    raw, from_data = _some_inputs(run)
    transform = _transform(run, raw)
    prepared = transform.apply(raw, torch.arange(len(raw)), None)
    given, module = (raw, _Prepared(network, transform, raw)) if inside else (prepared, network)
    metadata = _describe(run, given, transform, inside)
    with torch.inference_mode():
        expected = network(prepared)
    try:
        with ExitStack() as stack:
            temporary = stack.enter_context(
                atomic_write(path, new=True)
            )  # renamed last: its presence marks a complete export
            if kind == "torch-export":
                beside = stack.enter_context(atomic_write(path.with_suffix(".json"), new=True))
                beside.write_text(json.dumps(metadata, indent=2) + "\n", encoding="utf-8")
            again = _WRITERS[kind](module, given[:2], temporary, metadata)
            difference = _largest_difference(again, given, expected)
            limit = tolerance * max(1.0, float(expected.abs().max()))
            if not difference <= limit:
                raise ModelError(
                    f"the logits of the exported network differ by up to {difference:.2g} on {len(given)} inputs; "
                    f"expected at most {limit:.2g}; nothing was written; allow more with --tolerance."
                )
            sync_file(temporary)  # slow, so do it before the other file is renamed
    except safetensors.SafetensorError as error:
        raise RunError(f"cannot write {path}: {error}; free space or name another file.") from error
    return Exported(path, metadata, len(given), from_data, difference)


class _Prepared(nn.Module):
    """The network with the preparation of its inputs: the centre crop and the normalisation."""

    def __init__(self, network: nn.Module, transform: Transform, raw: Tensor):
        super().__init__()
        self.network = network
        self.size = None if transform.crop is None else (transform.crop, transform.crop)
        self.normalized = transform.normalization is not None
        if transform.normalization is not None:
            shape = (1, -1) + (1,) * (raw.ndim - 2)
            mean, std = (
                torch.tensor(values).view(shape)
                for values in (transform.normalization.mean, transform.normalization.std)
            )
            unit = 255.0 if raw.dtype == torch.uint8 else 1.0
            self.register_buffer("scale", 1 / (unit * std))
            self.register_buffer("shift", -mean / std)

    def forward(self, inputs: Tensor) -> Tensor:
        if self.size is not None:
            inputs = centre_crop(inputs, self.size)
        inputs = inputs.float()
        if self.normalized:
            inputs = inputs * self.scale + self.shift  # type: ignore[operator]
        logits: Tensor = self.network(inputs)
        return logits


def _refuse(kind: str, path: Path) -> None:
    if kind not in ENDINGS:
        raise RunError(f"the format is {kind!r}; expected {', '.join(FORMATS)}.")
    if path.suffix != ENDINGS[kind]:
        raise RunError(f"the file is {path}; expected a name that ends in {ENDINGS[kind]} for {kind}.")
    if not path.parent.is_dir():
        raise RunError(f"cannot write {path}: folder {path.parent} does not exist; name a file in an existing folder.")
    files = (path, path.with_suffix(".json")) if kind == "torch-export" else (path,)
    for file in files:
        if os.path.lexists(file):
            raise RunError(f"{file} already exists; name a new file.")
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None] if kind == "onnx" else []
    if missing:
        raise RunError(f"ONNX needs {', '.join(missing)}; install it with pip install 'pencil-labels[onnx]'.")


def _some_inputs(run: Run) -> tuple[Tensor, bool]:
    """Return raw inputs from the run's data if readable, otherwise random ones; and whether they are from the data."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings about rows and labels do not matter here
            examples = read_source(run.recipe.data.source, run.recipe.data, local=True).train
        some = torch.linspace(
            0, len(examples) - 1, min(TRIED, len(examples))
        ).long()  # spread over the data, to cover every class
        raw = run.prepare(examples.inputs).raw(examples.rows[some]).values
        values = raw if raw.dtype == torch.uint8 else raw.float()
    except PencilError:
        values = None
    data, rng = run.summary.data, torch.Generator().manual_seed(run.recipe.seed)
    shape = data.input_shape
    if values is not None and len(values) and _transform(run, values).shape(values.shape[1:]) == shape:
        return values, True
    if isinstance(run.recipe.data.resize, tuple):  # image files are resized before the crop
        shape = (shape[0], *run.recipe.data.resize)
    if data.input_type == "uint8":
        return torch.randint(0, 256, (TRIED, *shape), generator=rng, dtype=torch.uint8), False
    return torch.randn(TRIED, *shape, generator=rng), False


def _transform(run: Run, raw: Tensor) -> Transform:
    settings = run.recipe.data
    normalization = settings.normalize if isinstance(settings.normalize, Normalization) else None
    return Transform(normalization, settings.crop if raw.ndim == 4 else None)


def _describe(run: Run, given: Tensor, transform: Transform, inside: bool) -> dict[str, Any]:
    """Return the metadata that a program needs to use the network, and its origin."""
    normalization = transform.normalization
    return {
        "classes": list(run.classes),
        "multilabel": run.multilabel,
        "input": {"name": INPUT, "type": str(given.dtype).removeprefix("torch."), "shape": ["batch", *given.shape[1:]]},
        "output": {"name": OUTPUT, "activation": "sigmoid" if run.multilabel else "softmax"},
        "preparation": {
            "included": inside,
            "resize": list(run.recipe.data.resize) if isinstance(run.recipe.data.resize, tuple) else None,
            "crop": transform.crop,
            "divide_by": 255 if run.summary.data.input_type == "uint8" else 1,
            "mean": None if normalization is None else list(normalization.mean),
            "std": None if normalization is None else list(normalization.std),
            "encoded": None if run.encoder is None else list(run.encoder.names),
        },
        "model": run.recipe.model.name,
        "run": None if run.path is None else run.path.name,
        "pencil": __version__,
    }


Forward = Callable[[Tensor], Tensor]


def _largest_difference(forward: Forward, given: Tensor, expected: Tensor) -> float:
    """Compare a batch of all inputs and a batch of one, because batches may have any size."""
    with torch.inference_mode():
        found = (forward(given) - expected).abs().max(), (forward(given[:1]) - expected[:1]).abs().max()
    return float(max(found))


def _graph(module: nn.Module, example: Tensor) -> torch.export.ExportedProgram:
    batch = torch.export.Dim("batch", min=1)
    if len(example) < 2:
        example = torch.cat([example, example])  # with a single example, the tracer would treat the size as fixed
    try:
        return torch.export.export(module, (example,), dynamic_shapes=({0: batch},), strict=False)
    except FAULTS as error:
        raise ModelError(f"torch.export cannot trace this network: {first_line(error)}") from error


def _write_torch_export(module: nn.Module, example: Tensor, path: Path, metadata: dict[str, Any]) -> Forward:
    torch.export.save(_graph(module, example), path, extra_files={"metadata.json": json.dumps(metadata)})
    loaded: Forward = torch.export.load(path).module()
    return loaded


def _write_onnx(module: nn.Module, example: Tensor, path: Path, metadata: dict[str, Any]) -> Forward:
    import onnx
    import onnxruntime

    program = _graph(module, example)
    chatter = logging.getLogger("torch.onnx")
    level = chatter.level
    chatter.setLevel(logging.ERROR)
    try:
        converted = torch.onnx.export(
            program, dynamo=True, input_names=[INPUT], output_names=[OUTPUT], verbose=False, external_data=False
        )
    except (torch.onnx.OnnxExporterError, *FAULTS) as error:
        raise ModelError(f"torch.onnx cannot convert this network: {first_line(error)}") from error
    finally:
        chatter.setLevel(level)
    assert converted is not None
    proto = converted.model_proto
    for end in (*proto.graph.input, *proto.graph.output):
        end.type.tensor_type.shape.dim[0].dim_param = "batch"
    onnx.helper.set_model_props(
        proto, {name: value if isinstance(value, str) else json.dumps(value) for name, value in metadata.items()}
    )
    onnx.save_model(proto, path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def forward(values: Tensor) -> Tensor:
        (logits,) = session.run([OUTPUT], {INPUT: np.ascontiguousarray(values.numpy())})
        return torch.from_numpy(logits)

    return forward


def _write_safetensors(module: nn.Module, _example: Tensor, path: Path, metadata: dict[str, Any]) -> Forward:
    weights = {name: value.contiguous().clone() for name, value in module.state_dict().items()}
    words = {name: value if isinstance(value, str) else json.dumps(value) for name, value in metadata.items()}
    safetensors.torch.save_file(weights, path, {"format": "pt", **words})
    other = copy.deepcopy(module).eval()  # the copy of a traced network is in training mode
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()  # so that the outputs come from the file
    other.load_state_dict(safetensors.torch.load_file(path))
    return other


_WRITERS: dict[str, Callable[[nn.Module, Tensor, Path, dict[str, Any]], Forward]] = {
    "torch-export": _write_torch_export,
    "onnx": _write_onnx,
    "safetensors": _write_safetensors,
}
