"""Nothing outside of a run directory is touched through a symbolic link in it, by any command.

A run that somebody else made may have a link wherever pencil writes: to another run's folder, to a file of the user's.
The fast tests take the places one by one; the slow one replaces every file and folder of a stopped and of a finished
run, runs every command on each, and compares names, bytes and times of everything else before and after.
"""

import hashlib
import itertools
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from test_fuzz_directories import _train, run_command, run_python, snapshot

import pencil
from pencil import files
from pencil.auditing.deciding import Decider
from pencil.auditing.questions import questions_of
from pencil.auditing.sample import open_sample
from pencil.errors import RunError
from pencil.files import make_folder, move, refuse_links, remove, write_text
from pencil.loggers.trackers import refuse_links_out
from pencil.review.session import Review
from pencil.runs.audited import write_audit
from pencil.runs.directory import RunReader, RunWriter
from pencil.runs.layout import is_empty
from pencil.runs.lock import RunLock

STEP = "checkpoints/step-0000000099"
ASIDE = "checkpoints/.step-0000000099"
PLACES = (
    "checkpoints",
    "checkpoints/finetune",
    STEP,
    f"{ASIDE}.partial",
    f"{ASIDE}.old",
    ".labels.parquet.parts",
    "labels.parquet",
    "audited.parquet",
    "checkpoints/best.safetensors",
    "metrics.jsonl",
    "reviews.jsonl",
    "audit.json",
    "report.html",
    ".lock",
)
"""What is replaced by a link; the slow test takes every one of them, in a stopped run and in a finished one."""
REFUSED = "is a symbolic link; expected a regular file or folder inside a run directory"


@pytest.fixture(scope="module")
def top(tmp_path_factory):
    """The runs to be linked in, a third run that is linked to, and files of the user's."""
    top = tmp_path_factory.mktemp("links")
    rng, labels = np.random.default_rng(0), np.arange(40) % 3
    np.savez(top / "data.npz", x=rng.normal(size=(40, 3)).astype(np.float32), y=labels, classes=["a", "b", "c"])
    _train(top, "finished", "data.npz", "pencil", 3)
    _train(top, "stopped", "data.npz", "pencil", 6, stop_after=4)
    with Review(top / "finished") as review:
        review.decide(0, "skip", [])
    open_sample(top / "finished")
    mine = shutil.copytree(top / "stopped", top / "mine")
    (newest,) = sorted((mine / "checkpoints").glob("step-*"))[-1:]
    shutil.copytree(mine / "checkpoints", mine / "checkpoints/finetune")
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    left = f".best.safetensors.{ended.pid}-{files._machine()}-0.safetensors"  # which the next writer may remove
    (mine / "checkpoints" / left).write_text("half")
    for name in (STEP, f"{ASIDE}.partial", f"{ASIDE}.old", ".labels.parquet.parts"):
        shutil.copytree(newest, mine / name)
    for name in ("reviews.jsonl", "audit.json", "report.html", "labels.parquet", "checkpoints/best.safetensors"):
        shutil.copyfile(top / "finished" / name, mine / name)
    shutil.copyfile(top / "finished" / "labels.parquet", mine / "audited.parquet")
    (mine / ".lock").write_text("{}")
    (top / "outside").mkdir()
    (top / "outside" / "precious.txt").write_text("mine")
    keys = RunReader(top / "finished").labels.keys.to_pylist()
    (top / "sheet.csv").write_text("key,label\n" + "".join(f"{key},a\n" for key in keys))
    return top


def with_link(top, kind, place, *, target=None):
    """A copy of a run in which a place leads to the same place of another run, or to a target."""
    run = top / "received"
    shutil.rmtree(run, ignore_errors=True)
    shutil.copytree(top / kind, run)
    (run / "sub").symlink_to(top / "outside")
    remove(run / place)
    (run / place).symlink_to(top / "mine" / place if target is None else target)
    return run


def outside(top):
    """Names, kinds, times and bytes of everything beside the received run."""
    skipped = {top / "received", top / "cwd", top / "out"}
    found = snapshot(top, skipped)
    return {
        path: (*seen, hashlib.sha256(Path(path).read_bytes()).hexdigest() if Path(path).is_file() else "")
        for path, seen in found.items()
    }


def commands(run, top):
    """Every command that writes, into the run or where a link in it leads; and two that only read."""
    data, sub = top / "data.npz", run / "sub"
    yield "resume", ["resume", run]
    yield "train --resume", ["train", run / "recipe.toml", "--resume", "--out", run]
    yield "train into", ["train", run / "recipe.toml", "--out", sub / "new"]
    yield "report", ["report", run]
    yield "report into", ["report", run, "--without-data", "--out", sub / "report.html"]
    yield "labels into", ["labels", run, "--anyway", "--out", sub / "labels.csv"]
    yield "labels folder into", ["labels", run, "--anyway", "--format", "huggingface", "--out", run / "checkpoints/hf"]
    yield "audit sheet into", ["audit", run, "--sheet", sub / "sheet.csv"]
    yield "audit answers", ["audit", run, "--answers", top / "sheet.csv"]
    yield "export into", ["export", run, "--format", "safetensors", "--out", sub / "net.safetensors"]
    yield "check", ["check", run]
    yield "evaluate", ["evaluate", run, "--epoch", "best", "--data", data]
    yield "review", None


# One place after the other


@pytest.mark.parametrize("place", ["checkpoints", "checkpoints/finetune"])
@pytest.mark.parametrize("words", ["resume", "train --resume"])
def test_a_linked_folder_of_checkpoints_is_refused(top, place, words):
    run = with_link(top, "stopped", place)
    before = outside(top)
    code, _, error = run_command(dict(commands(run, top))[words], top)
    assert code == 2 and f"{run / place} {REFUSED}" in error and f"remove the link with `rm {run / place}`" in error
    assert len(error.strip().splitlines()) == 1 and outside(top) == before and not (run / ".lock").exists()


def test_a_finished_run_removes_no_checkpoints_of_another(top):
    run = with_link(top, "finished", "checkpoints")
    before = outside(top)
    code, _, error = run_command(["resume", run], top)
    assert code == 2 and REFUSED in error and outside(top) == before


@pytest.mark.parametrize("place", [f"{ASIDE}.partial", f"{ASIDE}.old", ".labels.parquet.parts", "metrics.jsonl"])
def test_a_link_in_place_of_a_leftover_goes_and_its_target_stays(top, place):
    run = with_link(top, "stopped", place)
    before = outside(top)
    code, _, _ = run_command(["resume", run], top)
    assert code in (0, 2) and outside(top) == before  # a checkpoint in .old that is not ours is refused
    assert not (run / place).is_symlink()


@pytest.mark.parametrize("words", ["labels into", "report into", "train into", "export into", "review"])
def test_no_output_goes_through_a_link_in_a_run(top, words):
    run = with_link(top, "finished", "reviews.jsonl")
    before = outside(top)
    listed = dict(commands(run, top))[words]
    code, _, error = run_python("review", run, top) if listed is None else run_command(listed, top)
    assert code == 2 and REFUSED in error and outside(top) == before


@pytest.mark.parametrize("decider", [None, Decider(shift=3.0, weight=1.0)])
@pytest.mark.parametrize("place", ["audited.parquet", "labels.parquet", "manifest.json", "summary.json"])
def test_an_audit_changes_nothing_through_a_link(top, place, decider):
    """A link in place of a file is replaced; a linked label table is read."""
    run = with_link(top, "finished", place, target=top / "finished" / place)
    before = outside(top)
    write_audit(run, None, decider and (lambda part: questions_of(part).redecide((decider,), part)))
    assert outside(top) == before and (run / place).is_symlink() == (place == "labels.parquet")
    assert (run / "audited.parquet").exists() == (decider is not None)


def test_an_audit_in_a_linked_folder_is_refused(top):
    run = with_link(top, "finished", "reviews.jsonl")
    before = outside(top)
    with pytest.raises(RunError, match=REFUSED):
        pencil.audit(run).save()
    assert outside(top) == before


@pytest.mark.parametrize("place", ["checkpoints", "metrics.jsonl"])
def test_a_run_that_begins_writes_through_no_link(tmp_path, place):
    (tmp_path / "outside").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / place).symlink_to(tmp_path / "outside")
    with pytest.raises(RunError, match=REFUSED):
        if place == "checkpoints":
            assert is_empty(tmp_path / "run")
            RunWriter(tmp_path / "run").begin(None, {}, pa.table({}))
        else:
            RunWriter(tmp_path / "run", resume=True).append_metrics({})
    assert list((tmp_path / "outside").iterdir()) == []


# The mechanism


@pytest.fixture
def received(tmp_path):
    """A directory that looks like a run, with a link to another one and to a folder."""
    for name in ("received", "mine"):
        (tmp_path / name / "folder").mkdir(parents=True)
        for mark in files.RUN_MARKS:
            (tmp_path / name / mark).write_text("")
    (tmp_path / "received" / "link").symlink_to(tmp_path / "mine")
    return tmp_path / "received"


def test_every_change_of_a_file_is_refused_behind_a_link(received):
    target, inside = received / "link" / "x", received / "folder" / "y"
    changes = [
        lambda: write_text(target, "x"),
        lambda: make_folder(target),
        lambda: make_folder(received / "link", empty=False),
        lambda: remove(received / "link" / "folder"),
        lambda: move(received / "link" / "folder", received / "z"),
        lambda: move(received / "folder", target),
        lambda: RunLock(received / "link").__enter__(),
        lambda: write_text(received / "link" / ".." / "x", "x"),
    ]
    before = snapshot(received.parent, set())
    for change in changes:
        with pytest.raises(RunError, match=REFUSED):
            change()
    assert snapshot(received.parent, set()) == before
    write_text(inside, "x")
    assert inside.read_text() == "x"


def test_a_run_directory_that_the_user_reaches_through_a_link_is_no_concern(received, monkeypatch):
    (received.parent / "disk").symlink_to(received)
    for path in (received.parent / "disk" / "folder" / "x", received / "folder" / "x", Path("disk/folder/x")):
        monkeypatch.chdir(received.parent)
        write_text(path, "x")
        refuse_links(path, path.parent.parent)
        with RunLock(path.parent.parent):
            pass


def test_a_project_with_a_recipe_may_have_its_runs_on_another_disk(tmp_path):
    """It is no run directory: it has no environment.json."""
    (tmp_path / "project").mkdir()
    (tmp_path / "disk").mkdir()
    (tmp_path / "project" / "recipe.toml").write_text("")
    (tmp_path / "project" / "runs").symlink_to(tmp_path / "disk")
    with RunLock(tmp_path / "project" / "runs" / "one"):
        write_text(tmp_path / "project" / "runs" / "one" / "x", "x")
    assert (tmp_path / "disk" / "one" / "x").is_file()


def test_a_tracker_may_have_links_of_its_own_but_none_that_lead_out(received):
    folder = received / "wandb"
    (folder / "run-1").mkdir(parents=True)
    (folder / "latest-run").symlink_to("run-1")
    refuse_links_out(received, "wandb")
    (folder / "run-1" / "log").symlink_to(received.parent / "mine" / "recipe.toml")  # as W&B leads to its own log
    refuse_links_out(received, "wandb")
    shutil.copytree(folder, received / "mlflow", symlinks=True)
    with pytest.raises(RunError, match=f"run-1/log {REFUSED}"):
        refuse_links_out(received, "mlflow")
    (folder / "debug.log").symlink_to(received.parent / "mine" / "recipe.toml")
    with pytest.raises(RunError, match=f"debug.log {REFUSED}"):
        refuse_links_out(received, "wandb")
    shutil.rmtree(folder)
    folder.symlink_to(received / "folder")
    with pytest.raises(RunError, match=f"wandb {REFUSED}"):
        refuse_links_out(received, "wandb")


# Every place, every command


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", ["stopped", "finished"])
def test_no_command_touches_anything_through_a_link(top, kind):
    """14 places in each of two runs, and 13 commands on each: 364."""
    codes: Counter = Counter()
    wrong = []
    for place, index in itertools.product(PLACES, range(13)):
        run = with_link(top, kind, place)
        name, words = list(commands(run, top))[index]
        for folder in (top / "cwd", top / "out"):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
        before = outside(top)
        code, _, error = run_python("review", run, top / "cwd") if words is None else run_command(words, top / "cwd")
        codes[code] += 1
        after = outside(top)
        if code is None or after != before:
            changed = sorted({path for path, _ in before.items() ^ after.items()})
            wrong.append(f"{kind}: {place}; {name}: exit code {code}, changed {changed[:4]}, {error[-300:]}")
    assert not wrong, f"{len(wrong)} of {sum(codes.values())}:\n" + "\n".join(wrong)
    assert sum(codes.values()) == len(PLACES) * 13 and codes[2] > 0 and codes[0] > 0
