"""Everything short of training: look at every row, build the model, lay out the phases, name every problem."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pencil.data.examples import UNKNOWN, Examples, Splits
from pencil.data.geometry import default_workers
from pencil.data.inspection import Inspection, count_classes, inspect, refusals
from pencil.data.prepare import choose_rows
from pencil.data.sources import load
from pencil.errors import PencilError
from pencil.job import Job, assemble
from pencil.models import ModelSettings
from pencil.recipe import Recipe
from pencil.training import Trainer


@dataclass(frozen=True)
class CheckResult:
    """The result of `pencil check`: an inspection of the data, the plan, and every reason why training would fail.

    ``not_run`` are the Python files that the recipe names and that were not executed, by key. What they define is not
    checked, and the plan is without it.
    """

    data: dict[str, Examples]
    findings: dict[str, Inspection]
    plan: dict[str, Any] | None
    problems: tuple[PencilError, ...]
    not_run: dict[str, Path] = field(default_factory=dict)


def check_recipe(chosen: Recipe) -> CheckResult:
    """Everything short of training: look at every row, then corrupt, split, build, lay out the phases."""
    loaded, settings, not_run = load(chosen.data), chosen.data, chosen.refused_files()
    loaded = replace(loaded, train=choose_rows(settings, loaded.train, chosen.seed))
    parts = {name: part for name, part in vars(loaded).items() if part is not None}
    workers = default_workers() if settings.workers is None else settings.workers
    findings = {name: inspect(part, workers, settings.max_pixels) for name, part in parts.items()}
    problems: list[PencilError] = [p for name, found in findings.items() for p in refusals(found, name, settings)]
    by_instance = settings.noise is not None and "instance" in settings.noise.kinds  # which looks at pixels in memory
    cache = settings.cache if by_instance else "none"
    trial = settings.model_copy(update={"rows": None, "cache": cache, "unreadable": "skip"})
    plan = None
    if all(found.rows > len(found.unreadable) for found in findings.values()):  # else it is among the problems already
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings(
                    "ignore", message=f".*(the row is left out|{UNKNOWN})"
                )  # part of the inspection
                job = assemble(_with_stand_ins(chosen, not_run).model_copy(update={"data": trial}), Splits(**parts))
                plan = _plan(job, job.trainer(), not_run)
        except PencilError as error:
            problems.append(error)
    return CheckResult(parts, findings, plan, tuple(problems), not_run)


def _with_stand_ins(chosen: Recipe, not_run: Mapping[str, Path]) -> Recipe:
    """The recipe with a method and a network of pencil's own where those of a file may not be executed."""
    if "method.name" in not_run:
        chosen = chosen.with_method("cross_entropy")
    if "model.name" in not_run:
        chosen = chosen.model_copy(update={"model": ModelSettings()})
    return chosen


def _plan(job: Job, trainer: Trainer, not_run: Mapping[str, Path]) -> dict[str, Any]:
    """What would be trained; None for what only a file that was not executed knows."""
    train, parameters = job.prepared.splits.train, job.network.parameters()
    own_method, own_model = "method.name" in not_run, "model.name" in not_run
    return {
        "rows": job.prepared.splits.sizes(),
        "class_counts": count_classes(train),
        "input_shape": list(train.input_shape),
        "injected_noise_rate": job.prepared.noise_rate,
        "model": None if own_model else job.recipe.model.name,
        "parameters": None if own_model else sum(parameter.numel() for parameter in parameters),
        "phases": None if own_method else [{"name": one.name, "epochs": one.epochs} for one in trainer.phases],
    }
