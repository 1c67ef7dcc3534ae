"""What a report is made of, read without the network: tables and numbers only."""

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pencil.errors import RunError
from pencil.recipe import Recipe, parse, read
from pencil.runs.layout import ENVIRONMENT, METRICS, RECIPE, SUMMARY
from pencil.runs.run import Run, read_label_table
from pencil.training import Record


@dataclass(frozen=True)
class Material:
    """A finished run, but for its network; ``environment`` is empty where the run has no directory."""

    labels: pa.Table
    metrics: list[Record]
    summary: dict[str, Any]
    recipe: Recipe
    environment: dict[str, Any]
    path: Path | None

    @property
    def name(self) -> str:
        return self.recipe.name if self.path is None else self.path.absolute().name

    @property
    def classes(self) -> list[str]:
        return [str(name) for name in self.summary["data"]["classes"]]

    @property
    def multilabel(self) -> bool:
        return bool(self.summary["data"]["multilabel"])

    @property
    def score(self) -> str:
        """What success is measured by, as the metrics name it."""
        return "map" if self.multilabel else "accuracy"

    @cached_property
    def trained(self) -> pa.Table:
        """The labels of the training rows."""
        return self._of(pc.equal(self.labels["split"].cast(pa.string()), "train"))

    @cached_property
    def held_out(self) -> pa.Table:
        """The labels of the validation rows, for which the network's word stands."""
        return self._of(pc.not_equal(self.labels["split"].cast(pa.string()), "train"))

    def _of(self, chosen: pa.ChunkedArray) -> pa.Table:
        return self.labels.filter(chosen).combine_chunks()


def gather(run: Run | Path | str) -> Material:
    """The material of a run in memory, or of one in a directory."""
    if isinstance(run, Run):
        environment = run.path / ENVIRONMENT if run.path is not None else None
        seen = _json(environment) if environment is not None and environment.is_file() else {}
        return Material(run.labels, run.metrics, run.summary, run.recipe, seen, run.path)
    path = Path(run)
    labels = read_label_table(path)  # refuses what is not a finished run
    recipe = parse(read(path / RECIPE), str(path / RECIPE), with_method=False)
    try:
        lines = (path / METRICS).read_text(encoding="utf-8").splitlines()
        metrics = [json.loads(line) for line in lines]
    except (OSError, ValueError) as error:
        raise RunError(f"the run in {path} is damaged: {METRICS}: {error}") from error
    environment = path / ENVIRONMENT
    seen = _json(environment) if environment.is_file() else {}
    return Material(labels, metrics, _json(path / SUMMARY), recipe, seen, path)


def _json(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(f"the run in {path.parent} is damaged: {path.name}: {error}") from error
    return found
