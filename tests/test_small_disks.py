"""Real disks without room: no command ends in a traceback, and with room it ends as if there had always been some."""

import contextlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent / "runs"))
from test_fuzz_directories import _train, run_command, run_python

from pencil.auditing.sample import open_sample
from pencil.errors import RunError
from pencil.files import write
from pencil.review.session import Review
from pencil.runs.directory import RunReader

SIZES = ("size=16k", "size=48k", "size=96k", "size=300k", "nr_inodes=3", "nr_inodes=7", "nr_inodes=20")
PAGE = 4096
ROOM = "size=64m,nr_inodes=10000"


@contextlib.contextmanager
def mounted(folder, options):
    """A file system of this size at a folder; a test where nothing may be mounted is skipped."""
    folder.mkdir(exist_ok=True)
    words = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(words, capture_output=True).returncode:
        pytest.skip("mounting needs root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def resize(disk, options):
    subprocess.run(["mount", "-o", f"remount,{options}", str(disk)], check=True)


def leave(disk, room):
    """Make a disk so small that it has this much room, in bytes or inodes, beside what is on it."""
    kind, number = room.split("=")
    paths = [disk, *disk.rglob("*")]
    used = sum(-(-path.stat().st_size // PAGE) * PAGE for path in paths if path.is_file())
    resize(disk, f"size={used + 1024 * int(number.rstrip('k'))}" if kind == "size" else
           f"nr_inodes={len(paths) + int(number)}")  # fmt: skip


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Data, a finished run, a stopped one, and what a run of the same recipe comes to."""
    home = tmp_path_factory.mktemp("home")
    rng, labels = np.random.default_rng(0), np.arange(300) % 3
    x = (rng.normal(size=(300, 20)) + np.eye(3, 20)[labels]).astype(np.float32)
    np.savez(home / "data.npz", x=x, y=labels, classes=["a", "b", "c"])
    _train(home, "finished", "data.npz", "pencil", 6)
    _train(home, "stopped", "data.npz", "pencil", 6, stop_after=4)
    with Review(home / "finished") as review:
        review.decide(0, "skip", [])
    keys = open_sample(home / "finished").all_where()
    (home / "sheet.csv").write_text("key,split,label\n" + "".join(f"{key},{split},a\n" for key, split in keys))
    return home


def train_words(home, run):
    """The command that made the runs of this module."""
    data = home / "data.npz"
    words = ["train", data, "--method", "pencil", "--model", "mlp", "--epochs", "6", "--out", run, "--resume"]
    return [*words, "--set", f"data.test={data}", "--set", "training.checkpoint_epochs=2"]


def result(run):
    """All that a run leaves behind, but for how long it took."""
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for record in records:
        del record["seconds"]
    weights = [(run / name).read_bytes() for name in ("model.safetensors", "checkpoints/best.safetensors")]
    return records, weights, RunReader(run).labels.table.to_pylist()


def end(words, disk, python=None):
    """Run a command on a disk without room: it succeeds, or it names a file of the disk in one line."""
    code, _, error = run_command(words, disk.parent) if python is None else run_python(python, words, disk.parent)
    said = [line for line in error.splitlines() if not line.startswith(("warning: ", "epoch ", "  "))]
    assert code in (0, 2), error
    if code == 2:
        (line,) = (line for line in said if line.startswith("error: "))
        assert str(disk) in line and ("No space left on device" in line or "cannot lock" in line), error
    return code, error


SOME = ("size=48k", "nr_inodes=7")
"""The disks of the fast tests."""


def some(sizes):
    return [size if size in SOME else pytest.param(size, marks=pytest.mark.slow) for size in sizes]


@pytest.mark.parametrize("size", some(SIZES))
def test_a_run_on_a_small_disk_is_resumed_to_the_same_bits(size, home, tmp_path):
    with mounted(tmp_path / "disk", size) as disk:
        code, error = end(train_words(home, disk / "run"), disk)
        assert code == 2 or "warning" in error  # a report that does not fit
        if "The last checkpoint contains them" in error:
            assert any((disk / "run" / "checkpoints").glob("step-*"))
        resize(disk, ROOM)
        code, _, error = run_command(train_words(home, disk / "run"), tmp_path)
        assert code == 0, error
        assert result(disk / "run") == result(home / "finished")
        assert not list((disk / "run").glob(".*"))


@pytest.mark.slow
@pytest.mark.parametrize("room", SIZES)
def test_a_stopped_run_is_resumed_with_little_room(room, home, tmp_path):
    with mounted(tmp_path / "disk", ROOM) as disk:
        shutil.copytree(home / "stopped", disk / "run")
        leave(disk, room)
        end(["resume", disk / "run"], disk)
        resize(disk, ROOM)
        code, _, error = run_command(["resume", disk / "run"], tmp_path)
        assert code == 0, error
        assert result(disk / "run") == result(home / "finished") and not list((disk / "run").glob(".*"))


OUTPUTS = {
    "csv": (["labels", "finished", "--anyway", "--out", "DISK/l.csv"], "size=16k"),
    "jsonl": (["labels", "finished", "--anyway", "--format", "jsonl", "--out", "DISK/l.jsonl"], "size=16k"),
    "parquet": (["labels", "finished", "--anyway", "--format", "parquet", "--out", "DISK/l.parquet"], "size=4k"),
    "npz": (["labels", "finished", "--anyway", "--format", "cleanlab", "--out", "DISK/l.npz"], "size=4k"),
    "folder": (["labels", "finished", "--anyway", "--format", "huggingface", "--out", "DISK/hf"], "nr_inodes=3"),
    "report": (["report", "finished", "--out", "DISK/r.html"], "size=16k"),
    "network": (["export", "finished", "--format", "safetensors", "--out", "DISK/n.safetensors"], "size=16k"),
    "sheet": (["audit", "finished", "--sheet", "DISK/s.csv"], "nr_inodes=1"),
}


@pytest.mark.parametrize("name", [name if name == "network" else pytest.param(name, marks=pytest.mark.slow)
                                  for name in OUTPUTS])  # fmt: skip
def test_an_output_that_does_not_fit_leaves_nothing(name, home, tmp_path):
    words, size = OUTPUTS[name]
    with mounted(tmp_path / "disk", size) as disk:
        words = [home / word if word == "finished" else word.replace("DISK", str(disk)) for word in words]
        assert end(words, disk)[0] == 2
        assert list(disk.iterdir()) == []
        resize(disk, ROOM)
        code, _, error = run_command(words, tmp_path)
        assert code == 0 and len(list(disk.iterdir())) == 1, error


@pytest.mark.slow
@pytest.mark.parametrize("room", ["size=0k", "nr_inodes=0"])
@pytest.mark.parametrize("command", ["review", "audit"])
def test_a_decision_that_cannot_be_saved_is_said_and_earlier_ones_stay(command, room, home, tmp_path):
    with mounted(tmp_path / "disk", ROOM) as disk:
        run = shutil.copytree(home / "finished", disk / "run")
        kept = (run / "reviews.jsonl").read_bytes()
        words = run if command == "review" else ["audit", run, "--answers", home / "sheet.csv"]
        python = "review" if command == "review" else None
        leave(disk, room)
        assert end(words, disk, python)[0] == 2
        assert (run / "reviews.jsonl").read_bytes() == kept and not (run / ".lock").exists()
        resize(disk, ROOM)
        assert end(words, disk, python)[0] == 0
        assert (run / "reviews.jsonl").read_bytes().startswith(kept)


def test_weights_that_do_not_fit_are_an_error_with_their_file(tmp_path):
    import torch
    from safetensors.torch import save_file

    for size in ("size=16k", "nr_inodes=2"):  # the folder and our temporary file: safetensors makes another one
        with mounted(tmp_path / "disk", size) as disk:
            expected = rf"cannot write {disk / 'model.safetensors'}: No space left on device; the previous file"
            with pytest.raises(RunError, match=expected):
                write(disk / "model.safetensors", lambda path: save_file({"w": torch.zeros(10_000)}, path))
            assert list(disk.iterdir()) == []
