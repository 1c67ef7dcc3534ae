"""How long training will take on this machine: a few real steps are timed and extrapolated to the whole run."""

import copy
import os
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import repeat
from statistics import median

import torch
from torch import Tensor

from pencil.data.examples import Batch, Splits
from pencil.data.inputs.augment import View
from pencil.data.inputs.transform import rows_within
from pencil.methods.base import Phase, Views
from pencil.models import FrozenNetwork
from pencil.seeding import seeded
from pencil.training.compute import in_threads
from pencil.training.evaluation import BATCH
from pencil.training.trainer import Trainer

BUDGET = 3.0
"""Time limit of an estimate, in seconds."""
MOST_STEPS = 10
LEAST_EPOCHS = 3
"""Number of epochs that are timed if they are short; the first one is warm-up."""
TIMED_EPOCHS = 3
"""Epochs of every phase that are timed to plan a run for a time budget; the first of each is warm-up."""
READ_ROWS = 8
"""Rows that are read at a time to measure reading."""


def estimate_seconds(trainer: Trainer, *, cached: bool = False) -> float:
    """Return how long the run of this trainer will take, without loading the data and writing the results.

    If epochs are short, some are trained. Otherwise steps of the first phase are timed, on less than a full batch
    if that takes too long. Phases with other views of the rows are scaled by the time of their steps. Reading
    (once, if decoded images are ``cached``), evaluation and predictions of all rows are added: one prediction for
    the labels, and one for each phase that begins with a hook. The trainer's networks and labels move, so it cannot
    be used afterwards. Nothing is written.
    """
    if trainer.settings.minutes is not None:
        return 60 * trainer.settings.minutes
    until = time.perf_counter() + BUDGET
    with warnings.catch_warnings(), seeded(trainer.seed, "timing"):
        warnings.simplefilter("ignore")  # training itself will issue these warnings
        source = _Source(trainer, time.perf_counter() + BUDGET / 4)
        trainer.networks.trained.train()
        first = trainer.phases[0]
        if first.before_epoch is not None:  # some methods allocate there what a step stores
            first.before_epoch(0, first.epochs, trainer)
        step = _time_step(trainer, source, first, until)
        costs = {first.views: 1.0}
        for phase in trainer.phases:
            if phase.views not in costs:
                costs[phase.views] = _time_step(trainer, source, phase, until) / step
        row = _time_evaluation(trainer, source, step, until)
        epoch = _epoch_seconds(trainer, source, step, row, cached)
        if source.reading is None and LEAST_EPOCHS * epoch < BUDGET / 2:
            return _time_epochs(trainer, costs, until)
    epochs = sum(phase.epochs * costs[phase.views] for phase in trainer.phases)
    predictions = 1 + sum(phase.on_start is not None for phase in trainer.phases)
    once = 0.0
    if source.reading is not None and cached:
        once = sum(trainer.splits.sizes().values()) * source.reading / max(1, source.workers)
    return once + epochs * epoch + predictions * sum(trainer.splits.sizes().values()) * row


def estimate_features(splits: Splits, network: FrozenNetwork, missing: int, budget: float = BUDGET) -> float:
    """Return how long it takes to compute the features of ``missing`` images, by computing some for ``budget`` s."""
    if missing == 0:
        return 0.0
    inputs, rows, until = splits.train.inputs, splits.train.rows, time.perf_counter() + budget
    extractor, reading, computing = network.extractor(), list[float](), list[float]()
    with in_threads(extractor) as forward:
        for chunk in rows.split(READ_ROWS):
            values = torch.empty(0)

            def read(chunk: Tensor = chunk) -> None:
                nonlocal values
                values = next(iter(inputs.in_process().batches([chunk]))).values

            reading.append(_seconds_of(read) / len(chunk))
            if len(values):
                computing.append(_seconds_of(partial(forward, values)) / len(values))
            if len(computing) > 1 and time.perf_counter() > until:
                break
    workers = getattr(inputs, "workers", 0)
    per_image = _overlapped(torch.get_num_threads(), workers, _typical(computing), _typical(reading))
    return missing * per_image


def estimate_finetuning(splits: Splits, network: FrozenNetwork) -> float:
    """Return how long one epoch of fine-tuning takes, from two forward and backward passes on a few images."""
    whole, images = copy.deepcopy(network).thaw().train(), splits.train.some_inputs(READ_ROWS)

    def step() -> None:
        whole(images.float()).sum().backward()

    step()
    evaluated = sum(len(part) for part in (splits.validation, splits.test) if part is not None)
    return (len(splits.train) + evaluated / 3) * _seconds_of(step) / len(images)


def _typical(seconds: list[float]) -> float:
    """The median without the first value, which includes memory allocation and kernel selection."""
    return median(seconds[1:] or seconds or [0.0])


class _Source:
    """Batches for timed steps. Rows that are not in memory are read once and reused for every step.

    ``reading`` is the time in seconds to read one such row; None for rows in memory, whose reading is part of the step.
    ``augmenting`` is the time per row in every later epoch, if decoded images are cached and augmented one by one.
    ``starting`` is the time in seconds until the worker processes of one pass over the data have started.
    """

    def __init__(self, trainer: Trainer, until: float):
        self.trainer, self.train = trainer, trainer.splits.train
        self.workers: int = getattr(self.train.inputs, "workers", 0)
        self.reading: float | None = None
        self.augmenting = self.starting = 0.0
        self.values: Tensor | None = None
        if self.train.inputs.in_memory is None:
            self._read(until)

    def _read(self, until: float) -> None:
        """Read rows until there is a batch, or the time is up; the first rows are warm-up."""
        inputs, parts, seconds = self.train.inputs.in_process(), list[Tensor](), list[float]()
        view = View(self.trainer.seed, 0, self.trainer.augmentation)
        for chunk in self.train.rows.split(READ_ROWS):
            started = time.perf_counter()
            values, _ = next(iter(inputs.batches([chunk], view)))
            seconds.append((time.perf_counter() - started) / len(chunk))
            parts += [values] if len(values) else []
            enough = sum(map(len, parts)) >= self.trainer.settings.batch_size
            if parts and (enough or time.perf_counter() > until):
                break
        self.values = torch.cat(parts)
        self.reading = median(seconds[1:] or seconds)
        if view.augmentation is not None and view.augmentation.per_image:
            some = self.train.rows[:READ_ROWS]
            plain = _seconds_of(lambda: next(iter(inputs.batches([some])))) / len(some)
            self.augmenting = max(0.0, self.reading - plain)
        if self.workers:
            one = _seconds_of(lambda: next(iter(self.train.inputs.batches([self.train.rows[:1]], view))))
            self.starting = self.workers * max(0.0, one - self.reading)

    def batches(self, count: int) -> Iterator[Batch]:
        """Yield batches of this many rows endlessly, on the device of the networks."""
        train, positions = self.train, torch.arange(min(count, len(self.train)))
        view = View(self.trainer.seed, 0, self.trainer.augmentation)
        if self.values is None:
            made = train.load_batches([positions] * 2 * MOST_STEPS, view)
        else:
            values = self.values[positions % len(self.values)]
            made = repeat(Batch(positions, values, train.given_labels[positions]))
        return (self.trainer.compute.place_batch(batch) for batch in made)


def _time_step(trainer: Trainer, source: _Source, phase: Phase, until: float) -> float:
    """Return the seconds of a step of this phase on a full batch."""
    size = min(trainer.settings.batch_size, len(trainer.splits.train))

    def step(batches: Iterator[Batch]) -> float:
        return _seconds_of(lambda: trainer.step(phase, 0.0, next(batches)))

    def steps(rows: int, most: int, seconds: float) -> list[float]:
        """Times of steps, at least one, without the first, which includes memory allocation and kernel selection."""
        batches, stop = source.batches(rows), time.perf_counter() + seconds
        times = [step(batches), step(batches)]
        while len(times) <= most and time.perf_counter() < stop:
            times.append(step(batches))
        return times[1:]

    few, left = min(2, size), until - time.perf_counter()
    small = min(steps(few, 3, left / 8))
    if small * size / few <= left / 4:
        return median(steps(size, MOST_STEPS, left / 3))
    rows = min(size, int(few * left / 4 / small))  # rows are slower in small batches, so this stays within the time
    if rows <= 2 * few:
        return small * size / few
    some = min(steps(rows, 2, left / 4))
    return some + (size - rows) * max(some - small, 0.0) / (rows - few)


@torch.inference_mode()
def _time_evaluation(trainer: Trainer, source: _Source, step: float, until: float) -> float:
    """Return the seconds to predict one row; ``step`` determines how many rows there is time for."""
    size = min(trainer.settings.batch_size, len(trainer.splits.train))
    shape = trainer.splits.train.input_shape
    wanted = min(BATCH, rows_within(shape, 4))  # batches of another size may be faster or slower
    most = int(max(0.1, until - time.perf_counter()) / 2 * size / step)
    model, was_training = trainer.networks.model, trainer.networks.model.training
    model.eval()
    inputs = next(source.batches(max(1, min(wanted, most)))).inputs

    def predict() -> None:
        with trainer.compute.context():
            trainer.networks.eval_forward(inputs)

    if most >= 2 * wanted:
        predict()  # warm-up
    seconds = _seconds_of(predict)
    model.train(was_training)
    return seconds / len(inputs)


def _seconds_of(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - started


def _epoch_seconds(trainer: Trainer, source: _Source, step: float, row: float, cached: bool) -> float:
    """Return the seconds of an epoch: its steps, and the prediction of held-out and test rows."""
    splits, size = trainer.splits, trainer.settings.batch_size
    evaluated = sum(len(part) for part in (splits.validation, splits.test) if part is not None)
    computing = step * len(splits.train) / min(size, len(splits.train)) + row * evaluated
    if source.reading is None:
        return computing
    threads = 1 if trainer.compute.device.type == "cuda" else torch.get_num_threads()
    if cached:
        return _overlapped(threads, source.workers, computing, source.augmenting * len(splits.train))
    reading = source.reading * (len(splits.train) + evaluated)
    return len(splits.sizes()) * source.starting + _overlapped(threads, source.workers, computing, reading)


def _overlapped(threads: int, workers: int, computing: float, reading: float) -> float:
    """Return the seconds of computation while worker processes read; both share the cores of this machine."""
    if not workers:
        return computing + reading
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(computing, reading / workers, (min(threads, cores) * computing + reading) / cores)


class _EnoughError(Exception):
    """Raised to interrupt training."""


def affordable_epochs(trainer: Trainer, seconds: float) -> int:
    """Return how many epochs of this run fit into a time budget, at least one per phase.

    The same number of epochs of every phase is trained, because phases may differ in speed. The result is
    extrapolated with the proportions of the phases in the whole run. The trainer cannot be used again.
    """
    phases = trainer.phases
    trainer.phases = tuple(phase.stretched(TIMED_EPOCHS) for phase in phases)

    def stop(trainer: Trainer) -> None:
        if len(trainer.records) == TIMED_EPOCHS * len(phases):
            raise _EnoughError

    trainer.on_pause, trainer.observers = stop, ()
    with warnings.catch_warnings(), suppress(_EnoughError):
        warnings.simplefilter("ignore")
        trainer.run()
    timed = {phase.name: [one["seconds"] for one in trainer.records if one["phase"] == phase.name] for phase in phases}
    typical = [phase.epochs * _typical(timed[phase.name]) for phase in phases]
    return max(len(phases), int(seconds * sum(phase.epochs for phase in phases) / sum(typical)))


def _time_epochs(trainer: Trainer, costs: dict[Views, float], until: float) -> float:
    """Train until some epochs are done and the time is up, or to the end; extrapolate the rest by the median epoch.

    ``costs`` are the costs of a step relative to a step of the first phase.
    """

    def stop(trainer: Trainer) -> None:
        late = time.perf_counter() - until
        if len(trainer.records) >= (LEAST_EPOCHS if late < BUDGET else 1) and late > -BUDGET / 2:
            raise _EnoughError

    trainer.on_pause, trainer.observers = stop, ()
    with suppress(_EnoughError):
        trainer.run()
    seconds: list[float] = [record["seconds"] for record in trainer.records]
    planned = [costs[phase.views] for phase in trainer.phases for _ in range(phase.epochs)]
    return sum(seconds) + sum(planned[len(seconds) :]) * median(seconds[1:] or seconds)
