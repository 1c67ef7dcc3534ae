"""A whole job: recipe and data in, a finished run out. The command line, ``fit`` and the estimator all come here."""

import copy
import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from torch import nn

from pencil import models, recipe
from pencil.data.examples import Examples, Splits
from pencil.data.noise import transition_matrix
from pencil.data.prepare import PreparedData, prepare
from pencil.data.sources import load
from pencil.errors import PencilError
from pencil.loggers.metrics import MetricsFile
from pencil.loggers.progress import show_progress
from pencil.loggers.trackers import Trackers, refuse_missing
from pencil.methods import Method, find_method
from pencil.recipe import Recipe
from pencil.recipe.schema import AUTOMATIC
from pencil.report import write_report
from pencil.runs.directory import RunWriter, checkpoints_of
from pencil.runs.results import build_label_table, build_row_table, describe_environment, summarize
from pencil.runs.run import Run
from pencil.seeding import derive_seed
from pencil.training import Observer, Outcome, Trainer
from pencil.training.checkpointing import Pauses, StopRequest
from pencil.training.distributed import World, join
from pencil.training.settings import pick_device


def run_recipe(chosen: Recipe, out: Path | str | None = None, *, progress: bool | None = None) -> Run:
    """Run a recipe from beginning to end, writing to ``out`` where it is given."""
    return execute(assemble(chosen, load(chosen.data)), out, progress=progress)


@dataclass(frozen=True)
class Job:
    """A recipe with everything it names brought to life; nothing has been trained or written yet."""

    recipe: Recipe
    prepared: PreparedData
    network: nn.Module
    method: Method
    weights: dict[str, str] | None = None
    fingerprints: Mapping[str, str] = field(default_factory=dict)
    rows: pa.Table = field(default_factory=lambda: pa.table({}))
    make_network: Callable[[int], nn.Module] | None = None

    def trainer(self, observers: tuple[Observer, ...] = (), **where: Any) -> Trainer:
        return Trainer(
            self.network,
            self.prepared.splits,
            self.method,
            self.recipe.training,
            seed=self.recipe.seed,
            augmentation=self.recipe.data.augmentation,
            observers=observers,
            make_network=self.make_network,
            **where,
        )


def assemble(
    chosen: Recipe,
    loaded: Splits,
    *,
    model: nn.Module | None = None,
    method: Method | None = None,
    held_out: np.ndarray | None = None,
) -> Job:
    """Prepare the data and build network and method; what was left to be derived is filled into the recipe.

    ``held_out`` names the validation rows by key, where they are not to be drawn.
    """
    prepared = prepare(chosen.data, loaded, chosen.seed, held_out, _telling(chosen, loaded, method))
    examples = prepared.splits.train
    weights, make_network = None, None
    if model is None:
        chosen = chosen.model_copy(update={"model": models.resolve(chosen.model, examples.input_shape)})
        make_network = _network_maker(chosen, examples)
        network = make_network(0)
        weights = models.provenance(chosen.model, network, examples.num_classes)
    else:
        network = copy.deepcopy(model)
    chosen = _tell_transition(chosen.model_copy(update={"data": prepared.settings}), examples)
    chosen = set_by_hand(chosen, prepared.splits)
    trained_by = chosen.build_method() if method is None else copy.deepcopy(method)
    fingerprints = {name: part.fingerprint() for name, part in vars(loaded).items() if part is not None}
    if prepared.pinned_digest is not None:
        fingerprints["pinned"] = prepared.pinned_digest
    rows = build_row_table(loaded, prepared.splits)
    return Job(chosen, prepared, network, trained_by, weights, fingerprints, rows, make_network)


FEWEST = 5
"""PENCIL sets itself by no fewer held-out rows."""


def set_by_hand(chosen: Recipe, splits: Splits) -> Recipe:
    """PENCIL sets itself where it can; several classes at once, or no rows held out, have numbers set by hand."""
    if chosen.method["name"] != AUTOMATIC:
        return chosen
    if splits.train.multilabel:
        return chosen.with_method("pencil")
    if splits.validation is not None and len(splits.validation) >= FEWEST:
        return chosen
    lr = chosen.method["lr"]
    return chosen.with_method("pencil", lr=lr, finetune_lr={"kind": "cosine", "start": lr})


def _telling(chosen: Recipe, loaded: Splits, method: Method | None) -> int:
    """How many held-out rows the method would like to decide by."""
    kind = find_method(chosen.method["name"]) if method is None else type(method)
    return 0 if loaded.train.multilabel and not kind.takes_multilabel else kind.telling


def _tell_transition(chosen: Recipe, examples: Examples) -> Recipe:
    """Methods whose definition needs the true transition matrix get that of injected noise, where none is given."""
    name = chosen.method["name"]
    if name == recipe.CUSTOM or not find_method(name).needs_transition or "transition" in chosen.method:
        return chosen
    matrix = transition_matrix(chosen.data.noise, examples.classes)
    if matrix is None:
        return chosen
    return chosen.model_copy(update={"method": {**chosen.method, "transition": matrix.tolist()}})


def _network_maker(chosen: Recipe, examples: Examples) -> Callable[[int], nn.Module]:
    """Networks as the recipe names them: number 0 has the recipe's seed, the others seeds of their own."""
    shape, classes = examples.input_shape, examples.num_classes

    def make(number: int) -> nn.Module:
        seed = derive_seed(chosen.seed, "network", number) if number else chosen.seed
        return models.build(chosen.model, shape, classes, seed)

    return make


Restore = Callable[[Trainer], None]


def execute(
    job: Job, out: Path | str | None = None, *, progress: bool | None = None, restore: Restore | None = None
) -> Run:
    """Train, and gather the results. All refusals come before anything is written.

    A run with a directory saves itself as it goes, and stops when it is asked to. ``restore`` puts the trainer where a
    run that was stopped in that directory left off. Of several processes only the first one writes.
    """
    refuse_missing(job.recipe.training.log, out)
    with ExitStack() as stack:
        request = None if out is None else stack.enter_context(StopRequest())  # first: to be stopped while it joins
        world = join(pick_device(job.recipe.training.device))
        stack.callback(world.leave)
        display = stack.enter_context(show_progress(progress if world.rank == 0 else False))
        directory = None
        if out is not None and world.rank == 0:
            directory = RunWriter(Path(out), resume=restore is not None)
        pauses = None if out is None or request is None else _pauses(job, Path(out), request, world)
        log = None if directory is None else Trackers(job.recipe, directory.path)
        metrics = None if directory is None else MetricsFile(directory)
        observers = tuple(observer for observer in (metrics, *display, log) if observer is not None)
        trainer = job.trainer(observers, pause=pauses, world=world)
        if directory is not None:
            stack.enter_context(directory)
        if restore is not None:
            restore(trainer)
        if directory is not None and restore is None:
            directory.begin(job.recipe, describe_environment(job.fingerprints, job.weights), job.rows)
        elif directory is not None:
            directory.truncate_metrics(trainer.records)
        if log is not None:
            stack.enter_context(log).begin(trainer.records)
        outcome = trainer.run()
        environment = {} if directory is None else directory.environment
        run = _gathered(job, outcome, None if out is None else Path(out), environment)
        if directory is not None:
            directory.finish(run.labels, run.model.state_dict(), outcome.best_weights, run.summary)
            _report(run, splits=job.prepared.splits)
        if log is not None:
            log.finish(run.summary)
    return run


def _pauses(job: Job, out: Path, request: StopRequest, world: World) -> Pauses:
    training = job.recipe.training
    checkpoints = checkpoints_of(out, training.checkpoints_kept)
    return Pauses(
        checkpoints, request, minutes=training.checkpoint_minutes, epochs=training.checkpoint_epochs, world=world
    )


def _report(run: Run, splits: Splits) -> None:
    """The page is drawn from what is saved already: if that fails, the run is none the worse."""
    try:
        write_report(run, splits=splits)
    except PencilError as error:
        warnings.warn(f"the report could not be written: {error}", stacklevel=3)


def _gathered(job: Job, outcome: Outcome, path: Path | None, environment: dict[str, Any]) -> Run:
    splits = job.prepared.splits
    return Run(
        outcome.model,
        build_label_table(splits, outcome.label_probs, outcome.validation_probs),
        outcome.records,
        summarize(splits, outcome, job.recipe, job.prepared.noise_rate),
        job.recipe,
        path,
        environment,
    )
