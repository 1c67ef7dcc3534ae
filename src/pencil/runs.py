"""The run directory: the only writer and the only reader of it.

recipe.toml         resolved: run it again with `pencil train recipe.toml`
environment.json    versions, machine, data fingerprint
metrics.jsonl       one line per epoch
labels.parquet      every row: given and corrected label, confidence, distribution
model.safetensors   the network after the last epoch; checkpoints/best.safetensors at the best noisy-validation epoch
summary.json        the result in numbers; written last, so a directory that has it is whole
"""

import json
import os
import platform
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from pencil._version import __version__
from pencil.data.arrays import as_input_tensor
from pencil.data.examples import Splits
from pencil.data.images import ImageInputs
from pencil.data.inputs import Inputs, TensorInputs
from pencil.data.prepare import conform
from pencil.errors import DataError, RunError
from pencil.label_table import summarize_labels
from pencil.models import build
from pencil.recipe import CUSTOM, Recipe, parse, read
from pencil.training import Observer, Outcome, Record
from pencil.training.evaluation import Compute, predict_logits
from pencil.training.metrics import SCORES, to_probs

RECIPE, ENVIRONMENT, METRICS = "recipe.toml", "environment.json", "metrics.jsonl"
LABELS, MODEL, BEST, SUMMARY = "labels.parquet", "model.safetensors", "checkpoints/best.safetensors", "summary.json"
WEIGHTS = {"last": MODEL, "best": BEST}


@dataclass(frozen=True)
class Run:
    """A finished run: the network (last epoch), the label table, the metrics of every epoch and the summary."""

    model: nn.Module
    labels: pa.Table
    metrics: list[Record]
    summary: dict[str, Any]
    recipe: Recipe
    path: Path | None = None

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(self.summary["data"]["classes"])

    @property
    def multilabel(self) -> bool:
        """Whether an example may be of several classes at once."""
        return bool(self.summary["data"]["multilabel"])

    def predict_probs(self, x: Any) -> Tensor:
        """Class probabilities for new inputs, prepared as the training inputs were."""
        return self.predict_inputs(TensorInputs(as_input_tensor(x)))

    def predict_inputs(self, inputs: Inputs, rows: Tensor | None = None) -> Tensor:
        """The same for these rows of inputs that are examples already; a row that cannot be read has NaN."""
        inputs = conform(inputs, self.recipe.data)
        if isinstance(inputs, TensorInputs):
            trained_on = self.summary["data"]
            expected = tuple(trained_on["input_shape"]), trained_on["input_type"]
            seen = inputs.finish.shape(inputs.values.shape[1:]), input_type(inputs)
            if seen != expected:
                raise DataError(
                    f"inputs are {seen[1]} of shape {seen[0]}; this network was trained on {expected[1]} of shape "
                    f"{expected[0]}."
                )
        device = next((parameter.device for parameter in self.model.parameters()), torch.device("cpu"))
        logits = predict_logits(self.model, inputs, rows, compute=Compute(device))
        return to_probs(logits, self.multilabel)


class RunDirectory(Observer):
    """Writes a run as it goes: nothing is overwritten, nothing is left half-written."""

    def __init__(self, path: Path):
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise RunError(f"{path} already holds something; expected a new directory; choose another with --out.")
        self.path = path

    def begin(self, recipe: Recipe, environment: dict[str, Any]) -> None:
        try:
            (self.path / "checkpoints").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"cannot write to {self.path}: {error.strerror}; choose another directory.") from error
        _write_text(self.path / RECIPE, recipe.to_toml())
        _write_text(self.path / ENVIRONMENT, json.dumps(environment, indent=2) + "\n")

    def epoch_ended(self, record: Record) -> None:
        try:
            with (self.path / METRICS).open("a", encoding="utf-8") as lines:
                lines.write(json.dumps(record) + "\n")
        except OSError as error:
            raise RunError(f"cannot write {self.path / METRICS}: {error.strerror}.") from error

    def finish(self, run: Run, best_weights: dict[str, Tensor]) -> None:
        _write(self.path / LABELS, lambda target: pq.write_table(run.labels, target, compression="zstd"))
        _write(self.path / MODEL, lambda target: _save_weights(run.model.state_dict(), target))
        _write(self.path / BEST, lambda target: _save_weights(best_weights, target))
        _write_text(self.path / SUMMARY, json.dumps(run.summary, indent=2) + "\n")


def open_run(path: Path | str, *, model: nn.Module | None = None, epoch: str = "last") -> Run:
    """Read a finished run. A network that was built by name is built again; pass your own otherwise."""
    path = Path(path)
    if epoch not in WEIGHTS:
        raise RunError(f"epoch is {epoch!r}; expected {' or '.join(WEIGHTS)}.")
    _refuse_unfinished(path)
    recipe = parse(read(path / RECIPE), str(path / RECIPE), with_method=False)
    with _damage_named(path):
        summary = json.loads((path / SUMMARY).read_text(encoding="utf-8"))
        metrics = [json.loads(line) for line in (path / METRICS).read_text(encoding="utf-8").splitlines()]
        weights = safetensors.torch.load_file(path / WEIGHTS[epoch])
    if model is None:
        if recipe.model.name == CUSTOM:
            raise RunError(f"the network of {path} came from Python; open it with pencil.open_run(path, model=...).")
        model = build(
            recipe.model, summary["data"]["input_shape"], len(summary["data"]["classes"]), recipe.seed, fresh=True
        )
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise RunError(f"the weights in {path} do not fit this model: {str(error).splitlines()[0]}") from error
    return Run(model.eval(), read_label_table(path), metrics, summary, recipe, path)


def read_label_table(path: Path | str) -> pa.Table:
    """The labels of a finished run; the network is not needed."""
    _refuse_unfinished(Path(path))
    with _damage_named(Path(path)):
        return pq.read_table(Path(path) / LABELS)


@contextmanager
def _damage_named(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, pa.ArrowException, safetensors.SafetensorError) as error:
        raise RunError(f"the run in {path} is damaged: {error}") from error


def _refuse_unfinished(path: Path) -> None:
    if not (path / RECIPE).is_file():
        raise RunError(f"{path} is not a run directory (it has no {RECIPE}); name one that `pencil train` made.")
    if not (path / SUMMARY).is_file():
        raise RunError(f"the run in {path} did not finish (it has no {SUMMARY}); train it again.")


def summarize(splits: Splits, outcome: Outcome, recipe: Recipe, noise_rate: float | None) -> dict[str, Any]:
    """The result in numbers. Accuracies are at the best noisy-validation epoch and at the last one."""
    train = splits.train
    best, last = outcome.records[outcome.best_epoch - 1], outcome.records[-1]
    scores: dict[str, Any] = {
        name: {"best": best[name], "last": last[name]}
        for name in (f"{split}_{score}" for split in ("validation", "test") for score in SCORES.values())
        if name in last
    }
    return {
        "method": recipe.method["name"],
        "seed": recipe.seed,
        "seconds": sum(record["seconds"] for record in outcome.records),
        "epochs": len(outcome.records),
        "best_epoch": outcome.best_epoch,
        **scores,
        "labels": summarize_labels(train, outcome.label_probs),
        "injected_noise_rate": noise_rate,
        "data": {
            "rows": splits.sizes(),
            "classes": list(train.classes),
            "multilabel": train.multilabel,
            "input_shape": list(train.input_shape),
            "input_type": input_type(train.inputs),
        },
    }


def input_type(inputs: Inputs) -> str:
    """uint8 images are scaled by 255 and floats are not, so the two must not be mixed up later."""
    if isinstance(inputs, ImageInputs) or (isinstance(inputs, TensorInputs) and inputs.values.dtype == torch.uint8):
        return "uint8"
    return "float"


def describe_environment(fingerprints: Mapping[str, str], weights: dict[str, str] | None = None) -> dict[str, Any]:
    """What a result may hang on besides the recipe."""
    return {
        "pencil": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "platform": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "threads": torch.get_num_threads(),
        "data_fingerprint": dict(fingerprints),  # of keys and labels as they came, before noise and split
        "first_weights": weights,
    }


def free_path(parent: Path, name: str) -> Path:
    """The first of ``name``, ``name-2``, ``name-3`` ... that does not exist."""
    number = 1
    while (candidate := parent / (name if number == 1 else f"{name}-{number}")).exists():
        number += 1
    return candidate


def _save_weights(weights: dict[str, Tensor], target: Path) -> None:
    """Plain tensors, so that torch or timm load them without pencil; tied weights are stored once per name."""
    safetensors.torch.save_file({name: value.cpu().contiguous().clone() for name, value in weights.items()}, target)


def _write_text(path: Path, text: str) -> None:
    _write(path, lambda target: target.write_text(text, encoding="utf-8"))


def _write(path: Path, save: Callable[[Path], Any]) -> None:
    """Write beside the target, flush to disk, then rename: a reader sees the old file or the new one, never a half."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        save(temporary)
        with temporary.open("rb+") as written:
            os.fsync(written.fileno())
        temporary.replace(path)
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror or error}; what was there before is unharmed.") from error
    finally:
        temporary.unlink(missing_ok=True)
