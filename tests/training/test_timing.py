"""The estimate of how long training takes, against training."""

import time
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import paint
from torch import nn

from pencil import recipe
from pencil.data import Splits, from_arrays
from pencil.data.inputs.augment import ImageSteps
from pencil.errors import TrainingError
from pencil.job import check as checking
from pencil.job import run_recipe
from pencil.job.check import check_recipe
from pencil.methods import CrossEntropy, DivideMix, Pencil, Requirements, Views
from pencil.training import Trainer, TrainingSettings
from pencil.training import timing as timing_module
from pencil.training import trainer as trainer_module
from pencil.training.timing import affordable_epochs, estimate_seconds


def recipe_of(source, *assignments):
    return recipe.parse(recipe.override({"data": {"source": str(source)}}, assignments))


class Clock:
    """Takes the place of the module ``time``: only what sleeps takes time, so results do not depend on the machine."""

    def __init__(self):
        self.now = self.slept = 0.0

    def perf_counter(self):
        self.now += 1e-5  # looking at it takes a little, so that no loop waits for ever
        return self.now

    def sleep(self, seconds):
        self.now += seconds
        self.slept += seconds


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    for module in (timing_module, trainer_module):
        monkeypatch.setattr(module, "time", made)
    return made


class Slow(nn.Module):
    """A network whose passes take a known time: a part for each call, a part for each row."""

    def __init__(self, clock, call=0.0, row=0.0):
        super().__init__()
        self.linear, self.clock, self.call, self.row, self.rows = nn.Linear(4, 2), clock, call, row, []

    def forward(self, inputs):
        self.clock.sleep(self.call + self.row * len(inputs))
        self.rows.append(len(inputs))
        return self.linear(inputs)


def trainer_of(model, rows=256, epochs=5, method=None, **settings):
    x = np.random.default_rng(0).normal(size=(rows + 64, 4)).astype(np.float32)
    examples = from_arrays(x, np.arange(rows + 64) % 2)
    splits = Splits(examples.subset(torch.arange(rows)), test=examples.subset(torch.arange(rows, rows + 64)))
    return Trainer(model, splits, method or CrossEntropy(epochs=epochs), TrainingSettings(**settings))


def test_short_epochs_are_counted_up(clock):
    """16 steps and one evaluation of 5 ms each: 0.085 s an epoch, of 40 epochs."""
    model = Slow(clock, call=0.005)
    found = estimate_seconds(trainer_of(model, epochs=40, batch_size=16))
    assert clock.slept < 6
    assert found == pytest.approx(40 * 0.085, rel=0.1)


def test_long_epochs_are_estimated_from_a_few_steps(clock):
    """512 steps of 20 ms: 10 s an epoch."""
    model = Slow(clock, call=0.02)
    found = estimate_seconds(trainer_of(model, rows=8192, epochs=30, batch_size=16))
    assert clock.slept < 6
    assert found == pytest.approx(30 * 10.24, rel=0.1)


def test_a_batch_that_takes_too_long_is_estimated_from_fewer_rows(clock):
    """A batch takes 0.1 s and 50 ms per row: 12.9 s, far more than the estimate may take; 4 of them are an epoch."""
    model = Slow(clock, call=0.1, row=0.05)
    found = estimate_seconds(trainer_of(model, rows=1024, epochs=10, batch_size=256))
    assert clock.slept < 8 and max(model.rows) < 64
    assert found == pytest.approx(10 * (4 * 12.9 + 64 * 0.05), rel=0.15)


def test_the_budget_of_the_recipe_is_the_time():
    from pencil.methods import Auto

    assert estimate_seconds(trainer_of(nn.Linear(4, 2), method=Auto(), minutes=7)) == 420


def test_every_phase_counts(clock):
    method = Pencil(backbone_epochs=10, correction_epochs=20, finetune_epochs=10)
    found = estimate_seconds(trainer_of(Slow(clock, call=0.01), method=method, rows=128, batch_size=32))
    assert found == pytest.approx(40 * 0.05, rel=0.1)


class TwoViews(CrossEntropy):
    """Ten epochs with one view of every row, then ten with two."""

    requirements = Requirements()

    def start(self, task):
        (phase,) = super().start(task)
        return replace(phase, name="one", epochs=10), replace(phase, epochs=10, views=Views(second="weak"))

    def loss(self, outputs, batch):
        return super().loss(replace(outputs, logits=outputs.of_rows(len(batch.rows))), batch)


def test_phases_count_by_the_views_that_their_steps_see(clock):
    """0.5 ms per row: 128 in an epoch of the first phase and 256 of the second; 64 are evaluated after each."""
    found = estimate_seconds(trainer_of(Slow(clock, row=0.0005), method=TwoViews(), rows=128, batch_size=32))
    assert found == pytest.approx(10 * (0.096 + 0.16), rel=0.15)


def folder_recipe(folder, *more):
    for number in range(12):
        paint(folder / f"a/{number}.png", number, (16, 16)), paint(folder / f"b/{number}.png", 50 + number, (16, 16))
    words = ["training.epochs=3", "method.name=cross_entropy", "training.batch_size=8", "model.name=small_cnn", *more]
    return recipe_of(folder, *words)


@pytest.mark.parametrize("cache", ["auto", "none"])
def test_images_are_read_as_in_training(tmp_path, cache, monkeypatch):
    chosen = folder_recipe(tmp_path / "photos", f"data.cache={cache}", "data.workers=0")
    seen = []
    monkeypatch.setattr(checking, "estimate_seconds", lambda trainer, cached: seen.append((trainer, cached)) or 1.0)
    assert check_recipe(chosen).seconds == 1.0
    ((trainer, cached),) = seen
    assert cached is (cache == "auto") and (trainer.splits.train.inputs.in_memory is not None) is cached


def test_reading_counts_where_images_are_decoded_in_every_epoch(tmp_path, monkeypatch, clock):
    import pencil.data.inputs.images as images

    real = images.decode
    monkeypatch.setattr(images, "decode", lambda *words: clock.sleep(0.02) or real(*words))
    chosen = folder_recipe(tmp_path / "photos", "data.cache=none", "data.workers=0", "training.epochs=10")
    found = check_recipe(chosen)
    assert found.seconds == pytest.approx(10 * 24 * 0.02, rel=0.2)


def test_augmentation_image_by_image_counts_in_every_epoch_where_decoded_images_are_kept(tmp_path, monkeypatch, clock):
    real, seen = ImageSteps._apply, []
    monkeypatch.setattr(ImageSteps, "_apply", lambda *words: clock.sleep(0.02) or real(*words))
    monkeypatch.setattr(checking, "estimate_seconds", lambda trainer, cached: seen.append(trainer) or 1.0)
    words = ("data.cache=none", "data.workers=0", "training.epochs=10", "data.augmentation=photos")
    check_recipe(folder_recipe(tmp_path / "photos", *words))
    rows = len(seen[0].splits.train)
    assert estimate_seconds(seen[0], cached=True) > 10 * rows * 0.02 * 0.8


def test_a_step_that_fails_is_a_reason_and_no_error(tmp_path, monkeypatch):
    def fail(*_words, **_options):
        raise TrainingError("the loss became nan")

    monkeypatch.setattr(checking, "estimate_seconds", fail)
    found = check_recipe(folder_recipe(tmp_path / "photos"))
    assert found.seconds is None and found.not_timed == "a step failed: the loss became nan" and not found.problems


def test_compiling_is_not_timed(tmp_path):
    found = check_recipe(folder_recipe(tmp_path / "photos", "training.compile=true"))
    assert found.seconds is None and "training.compile" in found.not_timed


def test_nothing_is_written_or_said(tmp_path, recwarn):
    chosen = folder_recipe(tmp_path / "photos", f"data.cache='{tmp_path / 'cache'}'")
    before = sorted(tmp_path.rglob("*"))
    assert check_recipe(chosen).seconds > 0
    assert sorted(tmp_path.rglob("*")) == before and not recwarn.list


def test_workers_share_the_cores(monkeypatch):
    monkeypatch.setattr(timing_module.os, "sched_getaffinity", lambda _process: range(4), raising=False)
    overlapped = timing_module._overlapped
    assert overlapped(4, 0, 10, 3) == 13
    assert overlapped(4, 3, 10, 30) == 17.5  # 40 + 30 core seconds on 4 cores
    assert overlapped(4, 1, 1, 30) == 30  # the one worker is the bottleneck


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("digits",),
        ("digits", "method.name=co_teaching", "training.epochs=20"),
        ("digits", "model.name=preact_resnet32", "training.epochs=2"),
    ],
)
def test_the_estimate_is_within_thirty_per_cent(words):
    """On a machine with other work to do, the best of three."""
    chosen, ratios = recipe_of(*words), []
    for _ in range(3):
        found = check_recipe(chosen).seconds
        started = time.perf_counter()
        run_recipe(chosen)
        ratios.append(found / (time.perf_counter() - started))
        if 0.7 < ratios[-1] < 1.3:
            return
    raise AssertionError(f"estimates as fractions of the real time: {ratios}")


def test_as_many_epochs_of_every_phase_are_timed_to_plan_for_a_time():
    """In proportion the first of DivideMix's phases would have one, which is the slow first one of the run."""
    trainer = trainer_of(nn.Linear(4, 2), method=DivideMix(), device="cpu")
    assert affordable_epochs(trainer, 2.0) >= 2
    assert Counter(record["phase"] for record in trainer.records) == {phase.name: 3 for phase in trainer.phases}
