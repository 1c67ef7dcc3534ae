"""Two processes and one run, signals to a group, inputs that changed, a disk that is full at the end."""

import contextlib
import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import commands
import numpy as np
import pytest
from test_faults import FORK, SELDOM, Net, blobs, result, stopped, train, undisturbed  # noqa: F401

import pencil
from pencil import DataError, RunError, TrainingError
from pencil.runs import manifest
from pencil.runs.layout import FINETUNE
from pencil.runs.leftovers import checkpoints_of
from pencil.runs.lock import RunLock
from pencil.training.checkpointing import StopRequest

SEED = int(os.environ.get("PENCIL_FUZZ_SEED", "0"))
"""Of the moments at which the slow tests interfere."""
HANGS = 600
"""Seconds after which a process hangs: far more than it needs on a machine with ten other jobs."""

# ---- start or resume is decided under the lock


def test_a_run_that_another_process_finishes_meanwhile_is_only_opened(tmp_path, monkeypatch):
    """The other one ends between our look at the directory and our lock."""
    whole, path = tmp_path / "whole", tmp_path / "run"
    train(whole, SELDOM)
    stopped(path, monkeypatch)
    enter = RunLock.__enter__

    def finished_meanwhile(self):
        shutil.rmtree(path)
        shutil.copytree(whole, path)
        return enter(self)

    monkeypatch.setattr(RunLock, "__enter__", finished_meanwhile)
    before = {file.name: file.read_bytes() for file in whole.rglob("*") if file.is_file()}
    assert train(path, SELDOM).summary.epochs == 8
    assert {file.name: file.read_bytes() for file in path.rglob("*") if file.is_file()} == before


def test_a_new_run_looks_once_more_under_its_lock(tmp_path, monkeypatch):
    path, enter = tmp_path / "run", RunLock.__enter__

    def begun_meanwhile(self):
        enter(self)
        (path / "recipe.toml").write_text("")
        return self

    monkeypatch.setattr(RunLock, "__enter__", begun_meanwhile)
    with pytest.raises(RunError, match="is not empty"):
        pencil.fit(Net(), blobs(), out=path, epochs=2, progress=False)
    assert not (path / ".lock").exists()


def _train_in_child(path, delay):
    time.sleep(delay)
    try:
        train(path, SELDOM)
    except RunError as error:
        os._exit(3 if "in use by process" in str(error) else 4)
    os._exit(0)


@pytest.mark.slow
def test_two_resumes_at_any_moment_never_harm_the_run(tmp_path, monkeypatch, undisturbed):  # noqa: F811
    draw, codes = random.Random(SEED), []
    stopped(tmp_path / "stopped", monkeypatch)
    shutil.copytree(tmp_path / "stopped", tmp_path / "alone")
    started = time.monotonic()
    train(tmp_path / "alone", SELDOM)
    longest = 3 * (time.monotonic() - started)  # so the second of a pair begins while the first runs, or after it
    for number in range(60):
        path = tmp_path / f"run-{number}"
        shutil.copytree(tmp_path / "stopped", path)
        both = [FORK.Process(target=_train_in_child, args=(path, delay)) for delay in (0.0, draw.uniform(0.0, longest))]
        for process in both:
            process.start()
        for process in both:
            process.join(timeout=HANGS)
        codes.append(tuple(process.exitcode for process in both))
        assert set(codes[-1]) <= {0, 3}, codes[-1]
        assert result(path) == undisturbed
        shutil.rmtree(path)
    assert (0, 3) in codes and (0, 0) in codes  # some met the lock, some the finished run


# ---- signals


def test_signals_of_one_moment_are_one_request():
    now = [0.0]
    request = StopRequest(clock=lambda: now[0])
    with request:
        os.kill(os.getpid(), signal.SIGINT)
        now[0] = 0.4
        os.kill(os.getpid(), signal.SIGINT)  # the launcher passes on what the terminal has sent already
        assert request.signal == "SIGINT"
        now[0] = 5.0
        with pytest.raises(KeyboardInterrupt):  # a person who presses once more means it
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.1)


def test_a_closed_connection_saves_like_a_stop():
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whoever runs the tests may ignore it
    try:
        with StopRequest() as request:
            os.kill(os.getpid(), signal.SIGHUP)
            assert request.signal == "SIGHUP"
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_closed_connection_is_ignored_under_nohup():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopRequest() as request:
            os.kill(os.getpid(), signal.SIGHUP)
            assert request.signal is None
            os.kill(os.getpid(), signal.SIGTERM)
            assert request.signal == "SIGTERM"
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def launch_group(out, *words):
    """``pencil train --processes 2`` as a terminal would start it: a process group of its own."""
    command = [sys.executable, "-m", "pencil", "train", "digits", "--method", "pencil", "--processes", "2", "--out"]
    words = [*command, str(out), "--epochs", "40", "--model", "mlp", *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    return subprocess.Popen(words, start_new_session=True, env=environment, stderr=subprocess.PIPE, text=True)


def wait_for(condition, process, seconds=HANGS):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end and process.poll() is None, process.stderr.read()
        time.sleep(0.02)


def epochs_done(out):
    return len((out / "metrics.jsonl").read_text().splitlines()) if (out / "metrics.jsonl").exists() else 0


@pytest.mark.slow
def test_ctrl_c_to_the_group_saves_every_time(tmp_path):
    draw = random.Random(SEED)
    for number in range(12):
        out = tmp_path / f"run-{number}"
        group = launch_group(out)
        wait_for(lambda out=out: epochs_done(out) >= 1, group)
        time.sleep(draw.uniform(0.0, 1.0))
        os.killpg(group.pid, signal.SIGINT)
        _, text = group.communicate(timeout=HANGS)
        assert group.returncode == 75, text
        assert "stopped by SIGINT" in text and "Traceback" not in text
        assert any((out / "checkpoints").glob("step-*"))


@pytest.mark.slow
def test_ranks_whose_launcher_died_save_and_stop(tmp_path):
    out = tmp_path / "run"
    group = launch_group(out)
    wait_for(lambda: epochs_done(out) >= 1, group)
    os.kill(group.pid, signal.SIGKILL)
    group.wait()
    end = time.monotonic() + HANGS
    while not any((out / "checkpoints").glob("step-*")):
        assert time.monotonic() < end, "no rank has saved"
        time.sleep(0.1)
    while (out / ".lock").exists():
        assert time.monotonic() < end, "rank 0 still runs"
        time.sleep(0.1)
    assert epochs_done(out) < 40
    group.stderr.close()


# ---- inputs, recipe and machine that changed


def changed(kind):
    x, y = (values.copy() for values in blobs())
    if kind == "noise":
        x = np.random.default_rng(9).normal(size=x.shape).astype(np.float32)
    if kind == "one row":
        x[7] += 1.0
    if kind == "two rows swapped":
        same = np.flatnonzero(y == y[0])[:2]
        x[same] = x[same[::-1]]
    return x, y


@pytest.mark.parametrize("kind", ["noise", "one row", "two rows swapped"])
def test_other_inputs_are_refused(kind, tmp_path, monkeypatch):
    stopped(tmp_path / "run", monkeypatch)
    with pytest.raises(DataError, match=r"the data has changed since .*: train inputs differ; restore it"):
        train(tmp_path / "run", data=changed(kind))


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("recipe.toml", "seed = 0", "seed = 1"),
        ("recipe.toml", "batch_size = 16", "batch_size = 32"),
        ("environment.json", '"threads"', '"thread"'),
    ],
)
def test_files_that_the_run_began_with_are_protected(file, old, new, tmp_path, monkeypatch):
    stopped(tmp_path / "run", monkeypatch)
    path = tmp_path / "run" / file
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(RunError, match=f"{file} was modified after the run started"):
        train(tmp_path / "run")


def test_rows_are_protected(tmp_path, monkeypatch):
    stopped(tmp_path / "run", monkeypatch)
    path = tmp_path / "run" / "rows.parquet"
    path.write_bytes(path.read_bytes() + b" ")
    with pytest.raises(RunError, match=r"rows.parquet was modified after the run started"):
        train(tmp_path / "run")


def test_what_only_moves_bits_is_a_warning_that_names_it(tmp_path, monkeypatch, undisturbed):  # noqa: F811
    stopped(tmp_path / "run", monkeypatch)
    from pencil.runs import resume

    here = resume.describe_environment
    monkeypatch.setattr(resume, "describe_environment", lambda prints: {**here(prints), "threads": 64, "torch": "9.9"})
    with pytest.warns(UserWarning, match=r"last bits: torch is '9.9' .*; threads is 64"):
        train(tmp_path / "run")
    assert result(tmp_path / "run") == undisturbed


def image_folder(root):
    from PIL import Image

    random_pixels = np.random.default_rng(0)
    for number in range(40):
        path = root / ("cat" if number % 2 else "dog") / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random_pixels.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(path)
    return root


@pytest.mark.parametrize("how", ["stat", "content"])
def test_image_files_are_known_by_their_time_or_on_request_by_content(how, tmp_path):
    from readers import from_folder

    from pencil.data.examples import fingerprints

    root = image_folder(tmp_path / "images")
    content, file = how == "content", root / "cat" / "1.png"

    def seen():
        return fingerprints(vars(from_folder(root)), content=content)["train inputs"]

    before = seen()
    os.utime(file, (1, 1))
    assert (seen() == before) == content  # touched, but the same picture
    times = file.stat()
    file.write_bytes((root / "cat" / "3.png").read_bytes())
    os.utime(file, (times.st_atime, times.st_mtime))
    assert content <= (seen() != before)


# ---- a full disk, and numbers that are not finite


def no_room():
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("name", ["labels.parquet", "model.safetensors", "summary.json"])
def test_a_disk_that_is_full_at_the_end_loses_nothing(name, tmp_path, monkeypatch, undisturbed):  # noqa: F811
    path = tmp_path / "run"
    from pencil import files

    put = files._put_in_place

    def full(temporary, target, new):
        if Path(target).name == name:
            raise no_room()
        put(temporary, target, new)

    with monkeypatch.context() as patch:
        patch.setattr(files, "_put_in_place", full)
        with pytest.raises(RunError, match=rf"cannot be written: cannot write .*{name}: No space.*`pencil resume"):
            train(path, SELDOM)
    assert not (path / "summary.json").exists() and any((path / "checkpoints").glob("step-*"))
    steps = []
    with monkeypatch.context() as patch:
        patch.setattr("pencil.training.step.TrainingStep.__call__", lambda *_: steps.append(1))
        train(path, SELDOM)
    assert not steps  # training had ended: only the results are written
    assert result(path) == undisturbed


@pytest.mark.parametrize("saved", ["nothing", "an earlier step"])
def test_results_that_cannot_be_written_name_the_checkpoint_that_there_is(saved, tmp_path, monkeypatch, undisturbed):  # noqa: F811
    from pencil import files
    from pencil.runs import checkpoints

    path, written, put = tmp_path / "run", checkpoints._write, files._put_in_place
    room = iter([saved != "nothing"] * 3 + [False] * 10**3)  # for the three files of one checkpoint

    def full(path, chunks):
        if not next(room):
            raise no_room()
        return written(path, chunks)

    def full_later(temporary, target, new):
        if Path(target).name == "model.safetensors":
            raise no_room()
        put(temporary, target, new)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "_write", full)
        patch.setattr(files, "_put_in_place", full_later)
        with warnings.catch_warnings(), pytest.raises(RunError) as raised:
            warnings.simplefilter("ignore")
            train(path, {**SELDOM, "training.checkpoint_epochs": 3})
    there = [one.name for one in (path / "checkpoints").iterdir()]
    expected = {
        "nothing": "There is no checkpoint: free space, then train again from the beginning with",
        "an earlier step": "The last checkpoint is from an earlier step: free space, then continue from there with",
    }
    assert len(there) == (saved != "nothing") and expected[saved] in str(raised.value)
    assert "checkpoint contains" not in str(raised.value) and f"`pencil resume {path}`" in str(raised.value)
    train(path, SELDOM)
    assert result(path) == undisturbed


def test_a_write_error_while_a_run_begins_is_mended_by_resuming(tmp_path, monkeypatch, undisturbed):  # noqa: F811
    from pencil import files

    put, path = files._put_in_place, tmp_path / "run"
    for name in ("environment.json", "rows.parquet", "manifest.json", "recipe.toml"):

        def full(temporary, target, new, name=name):
            if Path(target).name == name:
                raise no_room()
            put(temporary, target, new)

        with monkeypatch.context() as patch:
            patch.setattr(files, "_put_in_place", full)
            with pytest.raises(RunError, match=rf"cannot write .*{name}: No space left on device"):
                train(path, SELDOM)
        assert not (path / ".lock").exists() and (path / "checkpoints").is_dir()
    train(path, SELDOM)
    assert result(path) == undisturbed


@pytest.mark.parametrize("held", [False, True])
def test_what_a_killed_process_left_in_a_finished_run_goes_unless_the_lock_is_held(held, tmp_path, undisturbed):  # noqa: F811
    path = tmp_path / "run"
    train(path, SELDOM)
    (path / "report.html").unlink()
    (path / ".lock").write_text("{}")
    checkpoints_of(path).save(3, {"training": {"step": 3}})
    with RunLock(path) if held else contextlib.nullcontext():
        train(path, SELDOM)
        left = any((path / "checkpoints").glob("step-*"))
        assert ((path / ".lock").exists(), left, (path / "report.html").is_file()) == (held, held, True)
    train(path, SELDOM)
    assert not (path / ".lock").exists() and not any((path / "checkpoints").glob("step-*"))
    assert result(path) == undisturbed


def test_a_metrics_line_that_cannot_be_written_does_not_stop_training(tmp_path, monkeypatch, undisturbed):  # noqa: F811
    opened, failures = Path.open, iter([True, False, True] + [False] * 100)

    def full(self, mode="r", *arguments, **options):
        if self.name == "metrics.jsonl" and mode == "a" and next(failures):
            raise no_room()
        return opened(self, mode, *arguments, **options)

    monkeypatch.setattr(Path, "open", full)
    with pytest.warns(UserWarning, match=r"cannot write .*metrics.jsonl: No space .*training continues"):
        train(tmp_path / "run", SELDOM)
    assert result(tmp_path / "run") == undisturbed
    assert all(found.ok for found in manifest.verify(tmp_path / "run"))


def test_a_network_with_statistics_that_are_not_finite_is_an_error(tmp_path):
    x, y = blobs()
    x[3, 0] = 1e30
    with pytest.raises(TrainingError, match=r"of the network is not finite after"):
        train(tmp_path / "run", {**SELDOM, "data.normalize": "none", "method.name": "cross_entropy"}, data=(x, y))
    assert not (tmp_path / "run" / "summary.json").exists()


def test_the_manifest_covers_the_first_files_from_the_start(tmp_path, monkeypatch):
    stopped(tmp_path / "run", monkeypatch)
    names = set(json.loads((tmp_path / "run" / "manifest.json").read_text()))
    assert names == {"recipe.toml", "environment.json", "rows.parquet"}
    statuses = {found.path.name: found.ok for found in manifest.verify(tmp_path / "run")}
    assert names <= set(statuses) and all(statuses.values())


def test_checkpoints_of_fine_tuning_are_checked_too(tmp_path, monkeypatch):
    path = tmp_path / "run"
    stopped(path, monkeypatch)
    checkpoints_of(path, stage=FINETUNE).save(3, {"training": {"step": 3}})
    head = next((path / "checkpoints").glob("step-*"))
    damaged = path / "checkpoints/finetune/step-0000000003"
    statuses = {found.path: found.ok for found in manifest.verify(path)}
    assert statuses[damaged] and statuses[head]
    (damaged / "training.json").write_bytes(b"{}")
    statuses = {found.path: found for found in manifest.verify(path)}
    assert not statuses[damaged].ok and "training.json" in statuses[damaged].reason and statuses[head].ok
    said = commands.pencil("check", "run", cwd=tmp_path, code=2)
    assert "BROKEN  checkpoints/finetune/step-0000000003" in said.stdout and "is damaged; see above" in said.stderr
