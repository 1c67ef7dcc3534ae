"""What can go wrong with a run goes wrong here, for real: processes are killed, files damaged, rows moved."""

import json
import multiprocessing
import os
import random
import signal
import time
import warnings

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import pencil
from pencil import DataError, RecipeError, RunError, Stopped, TrainingError
from pencil.data.inputs.augment import NAMED
from pencil.runs.checkpoints import Checkpoints
from pencil.runs.directory import RunReader, RunWriter
from pencil.training import checkpointing

FORK = multiprocessing.get_context("fork")  # torch is imported already: a run takes a second


def blobs(rows=90, seed=0):
    rng = np.random.default_rng(seed)
    labels = np.arange(rows) % 3
    points = rng.normal(size=(rows, 4)) + 2 * np.eye(4)[labels]
    return points.astype(np.float32), np.where(rng.random(rows) < 0.3, (labels + 1) % 3, labels)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.layers = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 3))

    def forward(self, x):
        return self.layers(x)


OFTEN = {"training.batch_size": 16, "training.checkpoint_minutes": 1e-6}  # after every step
SELDOM = {"training.batch_size": 16}


def train(out, settings=OFTEN, data=None, network=Net, **options):
    data = data or blobs()
    return pencil.fit(
        network(), data, out=out, test=blobs(30, 1), epochs=8, settings=settings, resume=True, progress=False, **options
    )


def result(path):
    """All that a run leaves behind, but for how long it took."""
    records = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    for record in records:
        del record["seconds"]
    summary = json.loads((path / "summary.json").read_text())
    del summary["seconds"]
    weights = {name: value.numpy().tobytes() for name, value in load_file(path / "model.safetensors").items()}
    best = {name: value.numpy().tobytes() for name, value in load_file(path / "checkpoints/best.safetensors").items()}
    labels = pencil.open_run(path, model=Net()).labels.sort_by("key").to_pylist()
    return records, summary, weights, best, labels


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    path = tmp_path_factory.mktemp("undisturbed") / "run"
    train(path, SELDOM)
    return result(path)


def stop_at(monkeypatch, step):
    """Ask for a stop at the so-manieth place where training could be saved."""
    places = iter(range(10**9))
    original = checkpointing.Checkpointer.__call__

    def look(self, trainer):
        if next(places) == step:
            self.request.signal = "SIGTERM"
        original(self, trainer)

    monkeypatch.setattr(checkpointing.Checkpointer, "__call__", look)


def stopped(path, monkeypatch, step=17, **options):
    with monkeypatch.context() as patch:
        stop_at(patch, step)
        with pytest.raises(Stopped, match="everything is saved"):
            train(path, **options)


# 1: kill -9, anywhere


def kill_until_done(path, kills, longest):
    random.seed(0)
    killed = 0
    for _ in range(kills):
        child = FORK.Process(target=train, args=(path, OFTEN, None, Slow))
        child.start()
        child.join(timeout=random.uniform(0.05, longest))
        if child.is_alive():
            killed += 1
        child.kill()
        child.join()
        if (path / "summary.json").exists():
            break
    train(path)
    return killed


def test_killed_five_times_it_comes_to_the_same_bits(tmp_path, undisturbed):
    assert kill_until_done(tmp_path / "run", kills=5, longest=0.4) == 5
    assert result(tmp_path / "run") == undisturbed


@pytest.mark.slow
def test_killed_fifty_times_it_comes_to_the_same_bits(tmp_path, undisturbed):
    killed, number = 0, 0
    while killed < 50:
        path = tmp_path / str(number)
        killed += kill_until_done(path, kills=10, longest=0.6)
        assert result(path) == undisturbed
        number += 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_stops(number, tmp_path, undisturbed):
    path = tmp_path / "run"

    def work():
        try:
            train(path, SELDOM, network=Slow)
        except Stopped:
            os._exit(75)

    child = FORK.Process(target=work)
    child.start()
    while not (path / "metrics.jsonl").exists():
        time.sleep(0.01)
    os.kill(child.pid, number)
    child.join(timeout=20)
    assert child.exitcode == 75
    assert len(list((path / "checkpoints").glob("step-*"))) == 1
    train(path)
    assert result(path) == undisturbed


class Slow(Net):
    def forward(self, x):
        time.sleep(0.02)
        return super().forward(x)


# 2: no room left


def test_a_full_disk_is_said_and_training_goes_on(tmp_path, monkeypatch, undisturbed):
    import errno

    import pencil.runs.checkpoints

    write, left = pencil.runs.checkpoints._write, iter([True] * 6 + [False] * 5 + [True] * 10**6)

    def full(path, chunks):
        if not next(left):
            path.write_bytes(b"half of it")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(path, chunks)

    monkeypatch.setattr(pencil.runs.checkpoints, "_write", full)
    with pytest.warns(
        UserWarning, match="No space left on device; the earlier checkpoints are intact.*Training continues"
    ):
        train(tmp_path / "run")
    assert result(tmp_path / "run") == undisturbed


def test_a_full_disk_leaves_the_last_checkpoint_and_no_orphan(tmp_path, monkeypatch, undisturbed):
    import errno

    import pencil.runs.checkpoints

    path = tmp_path / "run"
    stopped(path, monkeypatch)
    before = sorted((path / "checkpoints").iterdir())
    with monkeypatch.context() as patch:

        def full(path, chunks):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        patch.setattr(pencil.runs.checkpoints, "_write", full)
        stop_at(patch, 9)
        with pytest.raises(RunError, match="No space left on device; the earlier checkpoints are intact; free space"):
            train(path, {**SELDOM, "training.checkpoint_minutes": 10.0})
    assert sorted((path / "checkpoints").iterdir()) == before
    train(path)
    assert result(path) == undisturbed


# 3: damaged checkpoints


@pytest.mark.parametrize("damage", ["truncated", "flipped"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(damage, tmp_path, monkeypatch, undisturbed):
    path = tmp_path / "run"
    stopped(path, monkeypatch)
    newest = Checkpoints(path / "checkpoints").newest().path
    file = newest / "training.safetensors"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content if damage == "flipped" else content[: len(content) // 2])
    with pytest.warns(UserWarning, match=f"a checkpoint is damaged: .*{newest.name}/training.safetensors .*Using"):
        train(path)
    assert result(path) == undisturbed


# 4: a loss that is no number


class Poisoned(Net):
    calls = 0

    def forward(self, x):
        Poisoned.calls += self.training
        return super().forward(x) * (torch.nan if Poisoned.calls == 20 else 1.0)


def test_a_nan_loss_stops_before_anything_moves_and_the_last_checkpoint_is_good(tmp_path, undisturbed):
    path = tmp_path / "run"
    with pytest.raises(TrainingError, match=r"the loss became nan in epoch \d \(phase \w+\), in a batch with the rows"):
        train(path, network=Poisoned)
    state = Checkpoints(path / "checkpoints").newest().part("training")
    assert all(value.isfinite().all() for value in state["networks"]["networks"][0].values())
    assert state["method"]["labels"]["label_logits"].isfinite().all()
    train(path)  # with a network that does not fail
    assert result(path) == undisturbed


# 5, a corrupt image in the middle of an epoch, is in data/test_folder.py
# 6: the data has changed meanwhile


def keyed(order, points=None, labels=None):
    given = blobs()
    points, labels = given[0] if points is None else points, given[1] if labels is None else labels
    from pencil.data import from_arrays

    return from_arrays(points[order], labels[order], classes=3, keys=[f"row-{i}" for i in order])


def test_rows_in_another_order_keep_their_labels(tmp_path, monkeypatch):
    straight, shuffled = keyed(np.arange(90)), keyed(np.random.default_rng(3).permutation(90))
    train(tmp_path / "whole", SELDOM, straight)
    stopped(tmp_path / "run", monkeypatch, data=straight)
    with pytest.warns(UserWarning, match="order of the rows has changed; they are matched by key"):
        train(tmp_path / "run", data=shuffled)
    assert result(tmp_path / "run") == result(tmp_path / "whole")


def test_rows_that_came_or_went_are_refused_or_mapped_by_key(tmp_path, monkeypatch):
    path = tmp_path / "run"
    points, labels = blobs(100)
    before = keyed(np.arange(90), points, labels)
    stopped(path, monkeypatch, step=50, data=before, settings=OFTEN)
    after = keyed(np.r_[10:100], points, labels)
    with pytest.raises(DataError, match="10 rows were removed, 10 added; restore it, or use --allow-changed"):
        train(path, data=after)
    state = Checkpoints(path / "checkpoints").newest().part("training")
    rows = RunReader(path, finished=False).rows.to_pylist()
    then = [row["key"] for row in rows if row["split"] == "train"]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        now = resumed_state(path, after, monkeypatch)
    assert any("10 rows were removed, 10 added; labels are matched by key" in str(one.message) for one in said)
    old, new = state["method"]["labels"]["label_logits"], now["method"]["labels"]["label_logits"]
    keys = now["keys"]
    moved = [key for key in keys if key in then]
    assert len(moved) > 50 and new[[keys.index(key) for key in moved]].equal(old[[then.index(key) for key in moved]])
    assert {f"row-{i}" for i in range(90, 100)} <= set(keys) and now["position"]["step"] == 0
    held = {row["key"] for row in rows if row["split"] == "validation"}
    assert held.isdisjoint(keys)


@pytest.mark.parametrize("step", [30, 50])  # in the backbone phase, and in the correction that follows it
def test_a_run_goes_on_to_its_end_with_rows_that_came_or_went(step, tmp_path, monkeypatch):
    """The default method compares epochs by the held-out rows, which are others than before, and fewer."""
    from pencil.data import Splits, from_arrays
    from pencil.job import resume_run

    path, (points, labels) = tmp_path / "run", blobs(100)
    settings = {**OFTEN, "method.max_backbone": 0.7, "method.rounds": 2}
    stopped(path, monkeypatch, step=step, data=keyed(np.arange(90), points, labels), settings=settings)
    state = Checkpoints(path / "checkpoints").newest().part("training")["method"]["state"]
    assert state["best_logits"] is not None and bool(state["backbone_epochs"]) == (step == 50)
    splits = Splits(keyed(np.r_[10:100], points, labels), test=from_arrays(*blobs(30, 1), classes=3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        run = resume_run(path, data=splits, model=Net(), allow_changed=True, progress=False)
    assert len(run.labels) == 90 and len(run.metrics) >= 8
    assert any("the rows changed after epoch" in choice for choice in run.summary.findings["choices"])


def resumed_state(path, data, monkeypatch):
    """The state right after the trainer was restored with changed rows."""
    from pencil.data import Splits, from_arrays
    from pencil.job import resume_run
    from pencil.training import Trainer

    seen = {}

    def run(trainer, **_):
        seen.update(trainer.state_dict(), keys=trainer.splits.train.keys.tolist())
        raise KeyboardInterrupt

    test = from_arrays(*blobs(30, 1), classes=3)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Trainer, "run", run)
        resume_run(path, data=Splits(data, test=test), model=Net(), allow_changed=True, progress=False)
    return seen


def test_another_recipe_is_refused(tmp_path, monkeypatch):
    stopped(tmp_path / "run", monkeypatch)
    with pytest.raises(RecipeError, match=r"different recipe.*\n  training.batch_size is 32; expected 16"):
        train(tmp_path / "run", {"training.batch_size": 32})


@pytest.mark.parametrize("key", ["data.test_rows", "data.validation"])
def test_a_key_whose_name_begins_like_a_derived_one_is_compared_too(key, tmp_path, monkeypatch):
    """A run fills in data.test and data.validation; data.test_rows is another key, and a number is no open value."""
    stopped(tmp_path / "run", monkeypatch)
    value = {"data.test_rows": 20, "data.validation": 0.2}[key]
    with pytest.raises(RecipeError, match=rf"different recipe.*\n  {key} is {value!r}; expected"):
        train(tmp_path / "run", {**OFTEN, key: value})


def test_augmentation_by_name_goes_on_and_another_one_is_refused(tmp_path, monkeypatch):
    """The run stores what the name stands for, and what it became where nothing was set."""
    pixels = np.random.default_rng(0).integers(0, 256, (40, 16, 16, 3), dtype=np.uint8)

    def fit(path, augmentation):
        settings = {"training.batch_size": 16, "data.workers": 0}
        settings |= {} if augmentation is None else {"data.augmentation": augmentation}
        data, options = (pixels, np.arange(40) % 2), {"method": "cross_entropy", "epochs": 3, "progress": False}
        return pencil.fit("small_cnn", data, out=path, settings=settings, resume=True, **options)

    for name, other in (("photos", "none"), (None, "photos")):
        whole, path = fit(tmp_path / f"whole {name}", name), tmp_path / f"run {name}"
        with monkeypatch.context() as patch, pytest.raises(Stopped):
            stop_at(patch, 5)
            fit(path, name)
        with pytest.raises(RecipeError, match=r"different recipe(.|\n)*data.augmentation.flip is"):
            fit(path, other)
        resumed = fit(path, name)
        weights = resumed.model.state_dict(), whole.model.state_dict()
        assert all(weights[0][key].equal(weights[1][key]) for key in weights[0])
        assert resumed.recipe.data.augmentation == NAMED[name or "none"]


# 9: two writers


def test_a_second_process_is_refused_while_the_first_one_writes(tmp_path, monkeypatch):
    path = tmp_path / "run"
    stopped(path, monkeypatch)
    ready, done = FORK.Event(), FORK.Event()

    def hold():
        with RunWriter(path, resume=True):
            ready.set()
            done.wait(timeout=20)

    holder = FORK.Process(target=hold)
    holder.start()
    ready.wait(timeout=20)
    with pytest.raises(RunError, match=f"in use by process {holder.pid} on .*only one process may write"):
        train(path)
    holder.kill()  # and leaves its lock behind
    holder.join()
    train(path)


def test_a_finished_run_is_only_opened(tmp_path, undisturbed):
    train(tmp_path / "run", SELDOM)
    again = train(tmp_path / "run", SELDOM)
    assert again.path == tmp_path / "run" and result(again.path) == undisturbed


def test_killed_before_it_had_begun_it_begins(tmp_path, undisturbed):
    """What is left then is no run, and nothing of a user's."""
    path = tmp_path / "run"
    (path / "checkpoints").mkdir(parents=True)
    for name in (".lock", "environment.json", ".rows.parquet.123"):
        (path / name).write_text("")
    train(path, SELDOM)
    assert result(path) == undisturbed
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "environment.json").write_text("mine")
    with pytest.raises(RunError, match="is not empty"):
        train(tmp_path / "mine", SELDOM)
