"""Everything short of training: look at every row, build the model, lay out the phases, name every problem."""

import warnings
from dataclasses import dataclass, replace
from typing import Any

from pencil.data.examples import UNKNOWN, Examples, Splits
from pencil.data.geometry import default_workers
from pencil.data.inspection import Inspection, count_classes, inspect, refusals
from pencil.data.prepare import choose_rows
from pencil.data.sources import load
from pencil.errors import PencilError
from pencil.job import Job, assemble
from pencil.recipe import Recipe
from pencil.training import Trainer


@dataclass(frozen=True)
class CheckResult:
    """The result of `pencil check`: an inspection of the data, the plan, and every reason why training would fail."""

    data: dict[str, Examples]
    findings: dict[str, Inspection]
    plan: dict[str, Any] | None
    problems: tuple[PencilError, ...]


def check_recipe(chosen: Recipe) -> CheckResult:
    """Everything short of training: look at every row, then corrupt, split, build, lay out the phases."""
    loaded, settings = load(chosen.data), chosen.data
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
                job = assemble(chosen.model_copy(update={"data": trial}), Splits(**parts))
                plan = _plan(job, job.trainer())
        except PencilError as error:
            problems.append(error)
    return CheckResult(parts, findings, plan, tuple(problems))


def _plan(job: Job, trainer: Trainer) -> dict[str, Any]:
    train = job.prepared.splits.train
    return {
        "rows": job.prepared.splits.sizes(),
        "class_counts": count_classes(train),
        "input_shape": list(train.input_shape),
        "injected_noise_rate": job.prepared.noise_rate,
        "model": job.recipe.model.name,
        "parameters": sum(parameter.numel() for parameter in job.network.parameters()),
        "phases": [{"name": phase.name, "epochs": phase.epochs} for phase in trainer.phases],
    }
