"""A run from start to end: claim the directory, read the data, choose the network, train, judge, write."""

import os
import shlex
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from pencil.data.check.inspection import find_conflicts
from pencil.data.examples import Splits
from pencil.data.read import load
from pencil.errors import PencilError, PencilWarning, RunError, Stopped, warn
from pencil.files import refuse_path
from pencil.job.assembly import Job, as_runnable, assemble, held_out_accuracy
from pencil.job.finetuning import finetuning_trainer, with_finetuned
from pencil.job.network import Trial, try_networks
from pencil.job.quality import choose_quality
from pencil.loggers.events import Events, log_result
from pencil.loggers.progress import show_progress
from pencil.loggers.trackers import MetricsFile, Trackers, refuse_missing
from pencil.methods import Method
from pencil.models import refuse_unknown
from pencil.recipe import CUSTOM, Recipe
from pencil.report import write_report
from pencil.report.page import REPORT
from pencil.runs import resume as resuming
from pencil.runs.annotators import annotators_of
from pencil.runs.claim import Start, clear_finished, start_or_resume
from pencil.runs.directory import RunReader, RunWriter
from pencil.runs.label_files import write_label_part
from pencil.runs.label_parts import build_label_parts
from pencil.runs.label_table import LabelTable
from pencil.runs.layout import FINETUNE, LABELS, is_unfinished
from pencil.runs.leftovers import checkpoints_of, left_checkpoints
from pencil.runs.notebook import show_first
from pencil.runs.results import build_label_table, describe_environment, row_evidence, summarize
from pencil.runs.run import Run, open_run
from pencil.runs.unread import find_unread, with_unread, without_unread
from pencil.runs.verdict_facts import keep_given_labels
from pencil.training import Observer, Outcome, Trainer
from pencil.training.checkpointing import Checkpointer, StopRequest
from pencil.training.cluster import check_engine
from pencil.training.compute import Compute, pick_device
from pencil.training.distributed import World, joined
from pencil.training.outliers import find_outliers
from pencil.user_file import Trust

Result = TypeVar("Result")
Out = Path | str | Callable[[bool], Path] | None
"""The run directory, or a function of ``resume`` that returns it and is called on rank 0 only."""


def run_recipe(
    recipe: Recipe,
    out: Out = None,
    *,
    data: Splits | None = None,
    model: nn.Module | None = None,
    method: Method | None = None,
    resume: bool = False,
    allow_changed: bool = False,
    progress: bool | Observer | None = None,
    engine: str = "local",
) -> Run:
    """Train a recipe: start a new run, or resume the run in ``out``.

    Problems with the directory are reported before anything else, problems with recipe or data before anything is
    written. A run with a directory saves checkpoints and stops on request. Only rank 0 writes.

    Parameters
    ----------
    recipe
        The recipe. A resumed run must have been started with the same recipe.
    out
        The run directory; by default nothing is written.
    data, model, method
        Objects that replace the recipe's data, model and method.
    resume
        Resume the run in ``out`` if there is one; the result is the same as without the interruption. A finished run of
        the same recipe is opened.
    allow_changed
        Resume even if rows were added or removed; labels are matched by key.
    progress
        Show progress on stderr; by default only on a terminal. An observer receives it instead.
    engine
        Where the features of a frozen backbone are computed: "local", or "ray" for a Ray cluster.
    """
    check_engine(engine)
    if out is not None and not callable(out):
        refuse_path(Path(out))
    started, trial = time.monotonic(), None
    with ExitStack() as stack:
        request = None if out is None else stack.enter_context(StopRequest())  # first, because joining may take a while
        device = pick_device(recipe.training.device)
        world = stack.enter_context(joined(device))
        # a replaced agent counts its restarts from 0, so any rank that resumes decides for all ranks
        resumes = any(flag for (flag,) in world.all_gather_ints(int(resume)))
        start = _on_first_rank(world, lambda: start_or_resume(_path(out, resumes), resumes, recipe.data, stack))
        if start.finished:
            assert start.path is not None
            resuming.check_finished(start.path, recipe, data)
            return _open_finished(start.path, model, data, recipe.trust)
        first = world.rank == 0
        display = (*stack.enter_context(show_progress(progress if first else False)), *((Events(),) if first else ()))
        report = _Features(display, request)
        if start.resumes:
            assert start.path is not None
            job, changed_from = _resumed_job(start.path, recipe, data, model, method, allow_changed, report)
            restore = partial(resuming.restore, start.path, changed_from=changed_from)
        else:
            if model is None and recipe.model.name != "auto":
                refuse_unknown(recipe.model.name)  # before the data is read, which may take minutes
            loaded = load(recipe.data) if data is None else data
            if start.claims_later:
                world.all_gather_ints(0)  # all ranks have listed the folders of the data
                _on_first_rank(world, lambda: start.claim(stack))
            if model is None:
                gpu = device.type == "cuda"
                train = partial(held_out_accuracy, pause=partial(_stop_trial, request))
                trial = _on_first_rank(world, lambda: try_networks(recipe, loaded, train, gpu=gpu))
                recipe = recipe if trial is None else trial.chosen(recipe)
                quality = _on_first_rank(world, lambda: choose_quality(recipe, loaded, gpu=gpu))
                recipe = recipe if quality is None else quality.chosen(recipe)
                _say(display, *(one.describe() for one in (trial, quality) if one is not None))
            job, restore = assemble(recipe, loaded, model=model, method=method, report=report), None
        try:
            execution = Execution(job, start, world, device, request, display, trial, started, engine)
            return execution.run(stack, restore)
        except Stopped as stopped:
            stopped.path = start.path
            raise


def _path(out: Out, resumes: bool) -> Path | None:
    return out(resumes) if callable(out) else None if out is None else Path(out)


def resume_run(
    path: Path | str,
    *,
    data: Splits | None = None,
    model: nn.Module | None = None,
    method: Method | None = None,
    allow_changed: bool = False,
    progress: bool | None = None,
    engine: str = "local",
    trust: Trust | bool = False,
) -> Run:
    """Resume the run in a directory with its stored recipe; see :func:`run_recipe`.

    ``trust`` are the Python files that the stored recipe may execute; none by default.
    """
    path = Path(path)
    reader = RunReader(path, finished=False)
    if not is_unfinished(path):
        return _open_finished(path, model, data, trust)
    return run_recipe(
        reader.recipe(with_method=True, trust=trust),
        path,
        data=data,
        model=model,
        method=method,
        resume=True,
        allow_changed=allow_changed,
        progress=progress,
        engine=engine,
    )


def _open_finished(path: Path, model: nn.Module | None, data: Splits | None, trust: Trust | bool) -> Run:
    """Open the finished run, and complete the cleanup of a process that was killed after the summary."""
    run = open_run(path, model=model, trust=trust)
    if int(os.environ.get("RANK", "0")) == 0:
        clear_finished(path)
        if not os.path.lexists(path / REPORT):
            _write_report(run, data)
    return run


def _on_first_rank(world: World, action: Callable[[], Result]) -> Result:
    """Return the result of rank 0 on every rank; raise its error on every rank."""
    found: Result | PencilError | None = None
    if world.rank == 0:
        try:
            found = action()
        except PencilError as error:
            found = error
    found = world.broadcast_object(found)
    if isinstance(found, PencilError):
        raise found
    return cast(Result, found)


def _resumed_job(
    path: Path,
    expected: Recipe,
    data: Splits | None,
    model: nn.Module | None,
    method: Method | None,
    allow_changed: bool,
    report: Callable[[int, int], None],
) -> tuple["Job", resuming.RecordedRows | None]:
    """The job of an interrupted run; its stored recipe and rows must match."""
    resuming.check_unchanged(path)
    reader = RunReader(path, finished=False)
    stored = resuming.with_free_keys(reader.recipe(with_method=True, trust=expected.trust), expected)
    for what, name, given in (("network", stored.model.name, model), ("method", stored.method["name"], method)):
        if name == CUSTOM and given is None:
            raise RunError(
                f"the {what} of {path} was passed as a Python object; resume with pencil.fit(..., out=..., "
                "resume=True)."
            )
    loaded = load(stored.data) if data is None else data
    same, changed_from = resuming.match_rows(path, stored, loaded, allow_changed)
    held_out = None if changed_from is None else changed_from.validation
    job = assemble(stored, same, model=model, method=method, held_out=held_out, encoder=reader.encoder, report=report)
    expected = as_runnable(expected, job.prepared.splits) if method is None else expected
    resuming.check_same_recipe(path, job.recipe, expected)
    resuming.check_same_pins(path, job.fingerprints, job.recipe.data.pinned)
    return job, changed_from


@dataclass(frozen=True)
class Execution:
    """A job and its environment: directory, processes, device, stop request, progress."""

    job: Job
    start: Start
    world: World
    device: torch.device
    request: StopRequest | None = None
    display: tuple[Observer, ...] = ()
    trial: Trial | None = None
    started: float = field(default_factory=time.monotonic)
    engine: str = "local"

    @property
    def path(self) -> Path | None:
        """The run directory."""
        return self.start.path

    def run(self, stack: ExitStack, restore: Callable[[Trainer], None] | None) -> Run:
        """Train and write the results; ``restore`` loads the state of an interrupted run into the trainer."""
        job, display = self.job, self.display
        refuse_missing(job.recipe.training.log, self.path)
        directory = self.start.writer
        metrics = None if directory is None else MetricsFile(directory)
        trackers = None if directory is None else Trackers(job.recipe, directory.path)
        observers = tuple(observer for observer in (metrics, *display, trackers) if observer is not None)
        checkpointer = self._checkpointer()
        records = job.prepared.splits.train.inputs.records
        if restore is None and records is not None:
            _say(display, f"columns: {records.roles.describe()}")
        report, waiting = _Features(display, self.request), _Waiting(display, self.request)
        job = job.with_features(Compute(self.device), report, waiting, self.engine)
        options = {"on_pause": checkpointer, "world": self.world, "device": self.device}
        passed = self.world.broadcast_object(time.monotonic() - self.started)  # so that all ranks plan the same epochs
        trainer = job.trainer(observers, passed, **options)
        if restore is not None:
            restore(trainer)
        if directory is not None and restore is None:
            trial = None if self.trial is None else asdict(self.trial)
            directory.begin(
                job.recipe, describe_environment(job.fingerprints, job.weights, trial), job.rows, job.prepared.encoder
            )
        elif directory is not None:
            directory.truncate_metrics(trainer.records)
        if trackers is not None:
            stack.enter_context(trackers).begin(trainer.records)
        outcome = self._train(trainer, directory)
        # needed to finish later if the results cannot be written
        saved = checkpointer is not None and checkpointer.save_final(trainer)
        if job.recipe.model.finetune_epochs:
            outcome, saved = self._finetuned(job, outcome, observers, directory)
            model, best_weights = outcome.model, outcome.best_weights
        else:
            model, best_weights = job.whole_network(outcome)
        run = replace(self, job=job)._finished(model, outcome, best_weights, directory, saved)
        if self.world.rank == 0:
            log_result(self.path, run.summary)
        if directory is not None:
            _write_report(run, job.prepared.splits)
        if trackers is not None:
            trackers.finish(run)
        return run

    def _train(self, trainer: Trainer, directory: RunWriter | None) -> Outcome:
        """Train; on failure, record the reason in the run directory and at the top of its report."""
        if directory is not None:
            directory.forget_failure()
        try:
            return trainer.run(whole=self.path is None or bool(self.job.recipe.model.finetune_epochs))
        except Stopped:
            raise
        except Exception as error:
            if directory is not None:
                directory.record_failure(error)
                with suppress(PencilError):
                    write_report(directory.path)
            raise

    def _finetuned(
        self, job: Job, trained: Outcome, observers: tuple[Observer, ...], directory: RunWriter | None
    ) -> tuple[Outcome, bool]:
        """Fine-tune the whole network; return the outcome and whether a checkpoint contains all of it.

        Fine-tuning resumes from the last checkpoint of this stage if there is one.
        """
        checkpointer = self._checkpointer(FINETUNE)
        options = {"on_pause": checkpointer, "world": self.world, "device": self.device}
        trainer = finetuning_trainer(job, trained, observers, **options)
        if self.path is not None:
            resuming.restore(self.path, trainer, None, stage=FINETUNE)
        if directory is not None:
            directory.truncate_metrics(trainer.records)
        outcome = with_finetuned(trained, self._train(trainer, directory))
        return outcome, checkpointer is not None and checkpointer.save_final(trainer)

    def _checkpointer(self, stage: str = "") -> Checkpointer | None:
        if self.path is None or self.request is None:
            return None
        training = self.job.recipe.training
        return Checkpointer(
            checkpoints_of(self.path, training.checkpoints_kept, stage),
            self.request,
            minutes=training.checkpoint_minutes,
            epochs=training.checkpoint_epochs,
            world=self.world,
        )

    def _finished(
        self,
        model: nn.Module,
        outcome: Outcome,
        best_weights: dict[str, Tensor],
        directory: RunWriter | None,
        saved: bool,
    ) -> Run:
        """Return the run and write its results to its directory, if any; ``saved``: a checkpoint contains them too."""
        job, every = self.job, self.job.prepared.splits
        compute = Compute.of(job.recipe.training, self.device)
        scores = find_outliers(every, outcome.model, job.features, compute, self.world)
        conflicts = _on_first_rank(self.world, lambda: _conflicts(every if job.features is None else job.features))
        outcome = replace(outcome, outlier_scores=scores, conflicts=conflicts)
        unread = find_unread(outcome, self.world.all_gather_object) if job.recipe.data.bad_rows == "skip" else {}
        splits, outcome = without_unread(every, outcome, unread)
        outcome = keep_given_labels(splits, outcome, only_outliers=True)
        summary, outcome = summarize(splits, outcome, job.recipe, job.prepared.noise_rate, self.world)
        summary = with_unread(summary, every, unread)
        annotators = annotators_of(splits, outcome.judgement.consensus)
        labels = self._label_table(splits, outcome) if outcome.shard is None else None
        written = self._write_parts(splits, outcome, directory) if labels is None else labels

        def write() -> None:
            if directory is not None:
                results = written, outcome.records, model.state_dict(), best_weights, summary, annotators
                _write_results(directory, saved, *results)

        if labels is None:  # the other ranks are waiting for it
            assert self.path is not None
            _on_first_rank(self.world, write)
            labels = LabelTable.open(self.path / LABELS)
        else:
            write()
        environment = {} if directory is None else directory.environment
        shown = show_first(labels, splits) if self.world.rank == 0 else {}
        encoder = job.prepared.encoder
        found = model, labels, outcome.records, summary, job.recipe, self.path, environment, encoder, shown
        return Run(*found, annotators=annotators)

    def _label_table(self, splits: Splits, outcome: Outcome) -> LabelTable:
        return build_label_table(
            splits,
            outcome.label_probs,
            outcome.validation_probs,
            row_evidence(outcome),
            outcome.unlabelled_probs,
            self.job.rows["key"],
            outcome.outlier_scores.get("unlabelled"),
        )

    def _write_parts(self, splits: Splits, outcome: Outcome, directory: RunWriter | None) -> dict[str, str]:
        """Write the label table in parts, each rank its own rows; return the digests of all parts."""
        world, order = self.world, self.job.rows["key"]
        folder = _on_first_rank(world, lambda: cast(RunWriter, directory).begin_label_parts())
        top_k = self.job.recipe.training.label_top_k
        parts = build_label_parts(splits, outcome, order, world.rank, world.size, top_k)
        found: dict[str, str] | PencilError
        try:
            found = write_label_part(folder, world.rank, world.size, parts)
        except PencilError as error:
            found = error
        digests: dict[str, str] = {}
        for one in world.all_gather_object(found):
            if isinstance(one, PencilError):
                raise one
            digests |= one
        return digests


def _say(display: tuple[Observer, ...], *sentences: str) -> None:
    """Report choices that were made before training."""
    for observer in display:
        for sentence in sentences:
            observer.on_choice(sentence)


@dataclass(frozen=True)
class _Features:
    """Shows the progress of features; stops on request, keeping the features computed so far."""

    display: tuple[Observer, ...]
    request: StopRequest | None

    def __call__(self, done: int, total: int) -> None:
        for observer in self.display:
            observer.on_features(done, total)
        if self.request is not None and self.request.signal is not None:
            raise Stopped(
                f"stopped by {self.request.signal} after the features of {done:,} of {total:,} rows; run the same "
                "command to continue (from the beginning if data.cache keeps no features)."
            )


def _stop_trial(request: StopRequest | None, *_progress: object) -> None:
    if request is not None and request.signal is not None:
        raise Stopped(
            f"stopped by {request.signal} while networks were tried; nothing has been trained yet; run the same "
            "command again."
        )


def _conflicts(splits: Splits) -> dict[str, Tensor]:
    """Return which training and held-out rows have a duplicate with another label; empty if that is not known."""
    parts = {name: getattr(splits, name) for name in ("train", "validation")}
    parts = {name: part for name, part in parts.items() if part is not None}
    return dict(zip(parts, find_conflicts(list(parts.values())) or (), strict=False))


@dataclass
class _Waiting:
    """Reports once that another process computes features, and stops on request."""

    display: tuple[Observer, ...]
    request: StopRequest | None
    said: bool = False

    def __call__(self) -> None:
        if not self.said:
            _say(self.display, "waiting for another run that computes features with the same network")
            self.said = True
        if self.request is not None and self.request.signal is not None:
            raise Stopped(f"stopped by {self.request.signal} while another run computed features; start again later.")


def _write_results(directory: RunWriter, saved: bool, *results: Any) -> None:
    """Write the results, the arguments of :meth:`RunWriter.finish`. ``saved``: a checkpoint contains them too."""
    try:
        directory.finish(*results)
    except RunError as error:
        if saved:
            kept, then = "The last checkpoint contains them", "finish"
        elif left_checkpoints(directory.path):
            kept, then = "The last checkpoint is from an earlier step", "continue from there"
        else:
            kept, then = "There is no checkpoint", "train again from the beginning"
        command = f"pencil resume {shlex.quote(str(directory.path))}"
        raise RunError(
            f"training has finished, but its results cannot be written: {error} {kept}: free space, then {then} with "
            f"`{command}`."
        ) from error


def _write_report(run: Run, splits: Splits | None) -> None:
    """The report only uses saved results: if it fails, the run is still complete."""
    try:
        write_report(run, splits=splits)
    except PencilError as error:
        warn(f"the report could not be written: {error}", PencilWarning)
