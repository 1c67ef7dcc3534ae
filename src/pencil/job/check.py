"""Everything short of training: inspect every row, build the model, plan the phases, time some steps."""

import copy
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pencil.data.check.inspection import Inspection, count_classes, inspect, refusals
from pencil.data.check.overlap import Overlap, find_overlap
from pencil.data.examples import UNKNOWN, Examples, Splits
from pencil.data.inputs.geometry import decodes_once, default_workers, image_size
from pencil.data.inputs.images import MEASURED
from pencil.data.prepare import choose_rows
from pencil.data.read import load
from pencil.data.settings import DataSettings
from pencil.errors import PencilError, TrainingError, setting
from pencil.job.assembly import Job, assemble
from pencil.job.network import needs_trial
from pencil.job.quality import choose_quality
from pencil.models import FrozenNetwork, ModelSettings
from pencil.recipe import Recipe
from pencil.training import Trainer
from pencil.training.compute import pick_device
from pencil.training.features import count_missing, random_features
from pencil.training.timing import BUDGET, estimate_features, estimate_finetuning, estimate_seconds

SMALL_CACHE = 64 * 2**20
"""Images of up to this many bytes are decoded into memory for the check, if training would do the same."""


@dataclass(frozen=True)
class CheckResult:
    """The result of `pencil check`: an inspection of the data, the plan, and every problem that would make training
    fail.

    ``not_run`` maps keys of the recipe to Python files that were not executed; what they define is not checked and not
    part of the plan. ``overlap`` lists rows in more than one split. ``seconds`` is the estimated training time on this
    machine; if it is unknown, ``not_timed`` is the reason.
    """

    data: dict[str, Examples]
    findings: dict[str, Inspection]
    plan: dict[str, Any] | None
    problems: tuple[PencilError, ...]
    not_run: dict[str, Path] = field(default_factory=dict)
    overlap: Overlap | None = None
    seconds: float | None = None
    not_timed: str | None = None


def check_recipe(chosen: Recipe) -> CheckResult:
    """Inspect every row, then corrupt, split, build, plan the phases, and time a few steps."""
    loaded, settings, not_run = load(chosen.data), chosen.data, chosen.refused_files()
    loaded = replace(loaded, train=choose_rows(settings, loaded.train, chosen.seed))
    parts = {name: part for name, part in vars(loaded).items() if part is not None}
    workers = default_workers() if settings.workers is None else settings.workers
    findings = {name: inspect(part, workers, settings.max_pixels) for name, part in parts.items()}
    problems: list[PencilError] = [p for name, found in findings.items() for p in refusals(found, name, settings)]
    overlap = find_overlap({name: part for name, part in parts.items() if name != "unlabelled"}, findings)
    plan, seconds, not_timed = None, None, None
    if all(
        found.rows > len(found.unreadable) for found in findings.values()
    ):  # otherwise already reported as a problem
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message=f".*(the row is skipped|{UNKNOWN})")  # part of the inspection
                changed = {"data": settings.model_copy(update={"rows": None, "bad_rows": "skip"})}
                stand_in = _with_stand_ins(chosen, not_run).model_copy(update=changed)
                quality = choose_quality(
                    stand_in, Splits(**parts), gpu=pick_device(chosen.training.device).type == "cuda"
                )
                stand_in = stand_in if quality is None else quality.chosen(stand_in)
                job = assemble(stand_in, Splits(**parts), cache=_trial_cache(settings, parts))
                trainer = _timed_copy(job).trainer()  # raises for a network that cannot train on these inputs
                unread = {key for name, found in findings.items() for key in _unread(parts[name], found)}
                plan = _plan(job, trainer, not_run, needs_trial(chosen, loaded), unread)
        except PencilError as error:
            problems.append(error)
        if plan is not None and not problems:
            cached = decodes_once(settings, job.prepared.splits.train)
            seconds, not_timed = _time(job, trainer, cached, bool(not_run))
    return CheckResult(parts, findings, plan, tuple(problems), not_run, overlap, seconds, not_timed)


def _trial_cache(settings: DataSettings, parts: Mapping[str, Examples]) -> str:
    """Return the cache for preparing the data: never one that writes a file or is expensive to fill."""
    if settings.noise is not None and "instance" in settings.noise.kinds:  # which needs the pixels in memory
        return settings.cache
    size, rows = image_size(settings, parts["train"].inputs), sum(map(len, parts.values()))
    if settings.cache == "none" or size is None or rows > MEASURED or rows * 3 * size[0] * size[1] > SMALL_CACHE:
        return "none"
    return "memory"


def _time(job: Job, trainer: Trainer, cached: bool, has_stand_in: bool) -> tuple[float | None, str | None]:
    """Return the estimated training time, or the reason why it is unknown."""
    if has_stand_in:
        return None, "a Python file of the recipe was not run"
    if job.recipe.training.compile:
        return None, "compiling may take minutes (training.compile)"
    try:
        return _seconds_before(job) + estimate_seconds(trainer, cached=cached), None
    except TrainingError as error:
        return None, f"a step failed: {error}"
    except torch.OutOfMemoryError:
        return (
            None,
            f"a step needs more memory than the device has; reduce it with {setting('training.batch_size', 32)}",
        )


def _seconds_before(job: Job) -> float:
    """Return the estimated time for the features and for fine-tuning the whole network on this machine."""
    if not isinstance(job.network, FrozenNetwork) or job.recipe.training.minutes is not None:
        return 0.0
    splits, epochs = job.prepared.splits, job.recipe.model.finetune_epochs
    missing = count_missing(splits, job.network.width, job.feature_folder(job.network))
    seconds = estimate_features(splits, job.network, missing, BUDGET / 2)
    return seconds + (epochs * estimate_finetuning(splits, job.network) if epochs else 0.0)


def _timed_copy(job: Job) -> Job:
    """Return the job with copies of network and method for timing, and random features if the backbone is frozen."""
    features = job.features
    if isinstance(job.network, FrozenNetwork):
        features = random_features(job.prepared.splits, job.network.width)
    return replace(job, network=copy.deepcopy(job.network), method=copy.deepcopy(job.method), features=features)


def _with_stand_ins(chosen: Recipe, not_run: Mapping[str, Path]) -> Recipe:
    """The recipe with pencil's own method and network in place of files that may not be executed."""
    if "method.name" in not_run:
        chosen = chosen.with_method("cross_entropy")
    if "model.name" in not_run:
        chosen = chosen.model_copy(update={"model": ModelSettings()})
    return chosen


def _unread(examples: Examples, found: Inspection) -> list[str]:
    """The keys of the rows that cannot be read."""
    places = np.setdiff1d(np.arange(len(examples)), found.prints.readable)
    return [str(key) for key in examples.keys[places]]


def _readable(examples: Examples, unread: set[str]) -> Examples:
    """The rows that can be read."""
    if not unread:
        return examples
    kept = [place for place, key in enumerate(examples.keys.tolist()) if str(key) not in unread]
    return examples.subset(torch.tensor(kept, dtype=torch.int64))


def _plan(job: Job, trainer: Trainer, not_run: Mapping[str, Path], trial: bool, unread: set[str]) -> dict[str, Any]:
    """The training plan for readable rows; None for values that depend on a file that was not executed."""
    parts = {name: _readable(part, unread) for name, part in vars(job.prepared.splits).items() if part is not None}
    train, parameters = parts["train"], job.network.parameters()
    own_method, own_model = "method.name" in not_run, "model.name" in not_run
    return {
        "rows": {name: len(part) for name, part in parts.items()},
        "class_counts": count_classes(train),
        "input_shape": list(train.input_shape),
        "injected_noise_rate": job.prepared.noise_rate,
        "model": None if own_model else job.recipe.model.name,
        "trained_part": None if own_model else job.recipe.model.train,
        "trial": trial,
        "method": None if own_method else job.recipe.method["name"],
        "parameters": None if own_model else sum(parameter.numel() for parameter in parameters),
        "phases": None if own_method else [{"name": one.name, "epochs": one.epochs} for one in trainer.phases],
    }
