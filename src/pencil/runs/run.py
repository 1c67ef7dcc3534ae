"""Runs: what a finished one has to say, as an object and read from its directory."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from pencil.data.arrays import as_input_tensor, as_inputs
from pencil.data.examples import Splits
from pencil.data.inputs import Inputs, TensorInputs
from pencil.data.prepare import prepare_inputs
from pencil.errors import DataError, ModelError, RunError
from pencil.models import build
from pencil.recipe import CUSTOM, Recipe, parse, read
from pencil.runs.label_table import summarize_labels
from pencil.runs.layout import LABELS, METRICS, RECIPE, SUMMARY, WEIGHTS, is_run
from pencil.training import Outcome, Record
from pencil.training.evaluation import Compute, predict_logits
from pencil.training.metrics import SCORES, to_probs


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
        return to_probs(self._said(self.model, inputs, rows), self.multilabel)

    def class_maps(self, x: Any) -> Tensor:
        """Where each class was found in new images or inputs: (n, classes, height, width), by the attention structure.

        The values are logits of regions before they are summed up; an image that cannot be read has NaN.
        """
        maps = getattr(self.model, "maps", None)
        if not callable(maps):
            raise ModelError(
                f"this network ({self.recipe.model.name}) has no map for each class; expected the attention structure; "
                "train one with model.attention=true."
            )
        return self._said(maps, as_inputs(x))

    def _said(self, forward: Callable[[Tensor], Tensor], inputs: Inputs, rows: Tensor | None = None) -> Tensor:
        """What a part of the network makes of inputs, prepared as the training inputs were."""
        inputs = prepare_inputs(inputs, self.recipe.data)
        if inputs.shape is not None:
            trained_on = self.summary["data"]
            expected = tuple(trained_on["input_shape"]), trained_on["input_type"]
            seen = inputs.shape, input_type(inputs)
            if seen != expected:
                raise DataError(
                    f"inputs are {seen[1]} of shape {seen[0]}; this network was trained on {expected[1]} of shape "
                    f"{expected[0]}."
                )
        device = next((parameter.device for parameter in self.model.parameters()), torch.device("cpu"))
        return predict_logits(self.model, inputs, rows, forward=forward, compute=Compute(device))


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
    if not is_run(path):
        raise RunError(f"{path} is not a run directory (it has no {RECIPE}); name one that `pencil train` made.")
    if not (path / SUMMARY).is_file():
        raise RunError(f"the run in {path} has not finished (it has no {SUMMARY}); go on with `pencil resume {path}`.")


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
        **({"findings": outcome.findings} if outcome.findings else {}),
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
    return "uint8" if inputs.dtype == torch.uint8 else "float"
