"""The run directory: what is in it, and the only one who writes it.

recipe.toml         resolved: run it again with `pencil train recipe.toml`
environment.json    versions, machine, data fingerprint
rows.parquet        the keys of all rows in the order they came, and the split that each is in
metrics.jsonl       one line per epoch
labels.parquet      every row: given and corrected label, confidence, distribution
model.safetensors   the network after the last epoch; checkpoints/best.safetensors at the best noisy-validation epoch
manifest.json       the SHA-256 of every file above
summary.json        the result in numbers; written last, so a directory that has it is whole
checkpoints/step-N  what `pencil resume` goes on from, until the run is finished
"""

import json
import platform
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import safetensors.torch
import torch
from torch import Tensor

from pencil._version import __version__
from pencil.errors import RunError
from pencil.files import digest, write, write_text
from pencil.recipe import Recipe
from pencil.runs.checkpoints import Checkpoints, Finding
from pencil.runs.layout import (
    BEST,
    CHECKPOINTS,
    ENVIRONMENT,
    LABELS,
    LISTED,
    MANIFEST,
    METRICS,
    MODEL,
    RECIPE,
    ROWS,
    SUMMARY,
    is_empty,
    is_run,
    is_unfinished,
)
from pencil.runs.lock import RunLock
from pencil.training import Observer, Record


class RunDirectory(Observer):
    """Writes a run as it goes, as the only one: nothing is overwritten, nothing is left half-written."""

    def __init__(self, path: Path, *, resume: bool = False):
        if not resume and not is_empty(path):
            hint = f"; go on with `pencil resume {path}`, or choose" if is_unfinished(path) else "; choose"
            raise RunError(f"{path} already holds something; expected a new directory{hint} another with --out.")
        self.path = path
        self._lock = RunLock(path)

    def __enter__(self) -> "RunDirectory":
        self._lock.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.__exit__()

    def begin(self, recipe: Recipe, environment: dict[str, Any], rows: pa.Table) -> None:
        """What is known before training."""
        (self.path / CHECKPOINTS).mkdir(exist_ok=True)
        write_text(self.path / ENVIRONMENT, json.dumps(environment, indent=2) + "\n")
        write(self.path / ROWS, lambda target: pq.write_table(rows, target, compression="zstd"))
        write_text(self.path / RECIPE, recipe.to_toml())  # last: a directory that has it can be resumed

    def rewind(self, records: list[Record]) -> None:
        """Back to the epochs that a checkpoint knows."""
        write_text(self.path / METRICS, "".join(json.dumps(record) + "\n" for record in records))

    def on_epoch_end(self, record: Record) -> None:
        try:
            with (self.path / METRICS).open("a", encoding="utf-8") as lines:
                lines.write(json.dumps(record) + "\n")
        except OSError as error:
            raise RunError(f"cannot write {self.path / METRICS}: {error.strerror}.") from error

    def finish(
        self, labels: pa.Table, weights: dict[str, Tensor], best_weights: dict[str, Tensor], summary: dict[str, Any]
    ) -> None:
        """The results; then there is nothing left to resume."""
        write(self.path / LABELS, lambda target: pq.write_table(labels, target, compression="zstd"))
        write(self.path / MODEL, lambda target: _save_weights(weights, target))
        write(self.path / BEST, lambda target: _save_weights(best_weights, target))
        digests = {name: digest(self.path / name) for name in LISTED}
        write_text(self.path / MANIFEST, json.dumps(digests, indent=2) + "\n")
        write_text(self.path / SUMMARY, json.dumps(summary, indent=2) + "\n")
        for left in (self.path / CHECKPOINTS).glob("*step-*"):
            shutil.rmtree(left)


def verify(path: Path) -> list[Finding]:
    """A verdict on every file of a finished run and on every checkpoint of one that is not."""
    if not is_run(path):
        raise RunError(f"{path} is not a run directory (it has no {RECIPE}); name one that `pencil train` made.")
    findings = checkpoints_of(path).verify()
    if is_unfinished(path):
        return findings
    try:
        expected = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        json.loads((path / SUMMARY).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        return [*findings, Finding(path / MANIFEST, False, f"cannot read {MANIFEST} or {SUMMARY}: {error}")]
    for name in LISTED:
        file = path / name
        if not file.is_file():
            findings.append(Finding(file, False, "it is missing"))
        elif digest(file) != expected.get(name):
            findings.append(Finding(file, False, f"it is not what was written: expected the SHA-256 in {MANIFEST}"))
        else:
            findings.append(Finding(file, True))
    return findings


def checkpoints_of(path: Path, keep: int = 2) -> Checkpoints:
    return Checkpoints(path / CHECKPOINTS, keep)


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
        "data_fingerprint": dict(
            fingerprints
        ),  # of keys and labels as they came, before noise and split, and of reviews
        "first_weights": weights,
    }


def _save_weights(weights: dict[str, Tensor], target: Path) -> None:
    """Plain tensors, so that torch or timm load them without pencil; tied weights are stored once per name."""
    safetensors.torch.save_file({name: value.cpu().contiguous().clone() for name, value in weights.items()}, target)
