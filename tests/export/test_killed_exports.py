"""Exports are complete or absent: processes are killed in the middle of each, and nothing has the final name."""

import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest
from commands import pencil
from conftest import paint
from review_runs import many_classes_run

from pencil import files
from pencil.bench.spec import Spec
from pencil.cli import bench
from pencil.export import network
from pencil.files import TEMPORARY, write_json

FORK = multiprocessing.get_context("fork")  # torch is imported already
SPEC = {
    "name": "small",
    "seeds": [1],
    "recipe": {"data": {"source": "digits"}},
    "datasets": [{"name": "digits"}],
    "noises": [{"name": "half", "set": {"data": {"noise": {"kind": "symmetric", "rate": 0.5}}}}],
    "methods": [{"name": "cross_entropy", "set": {"method": {"name": "cross_entropy"}}}],
}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A run on images whose network has maps, and a run of multi-label data."""
    top = tmp_path_factory.mktemp("killed")
    for number in range(10):
        paint(top / f"pets/cat/{number}.png", number)
        paint(top / f"pets/dog/{number}.png", 100 + number)
    words = ["train", "pets", "--out", "run", "--method", "cross_entropy", "--epochs", "1", "--model", "small_cnn"]
    pencil(*words, "--set", "model.attention=true", "--set", "model.attention_width=4", cwd=top)
    many_classes_run(top / "several")
    return top


def tables(out):
    """Write the tables and the plot of a benchmark whose one cell is done."""
    spec = Spec.model_validate(SPEC)
    (cell,) = spec.cells()
    summary = {"test_accuracy": {"best": 0.5, "last": 0.5}, "seconds": 1.0, "labels": {}}
    result = {"status": "done", "summary": summary, "curves": {"test_accuracy": [0.4, 0.5]}}
    (out / "cells").mkdir(exist_ok=True)
    write_json(out / "cells" / f"{cell.identity()}.json", result)
    bench._write_tables(spec, spec, out)


EXPORTS = {
    "a.csv": ["labels", "run"],
    "a.jsonl": ["labels", "run", "--format", "jsonl"],
    "a.parquet": ["labels", "run", "--format", "parquet"],
    "entries.csv": ["labels", "several", "--entries"],
    "cleanlab.csv": ["labels", "run", "--format", "cleanlab"],
    "cleanlab.npz": ["labels", "run", "--format", "cleanlab"],
    "hf": ["labels", "run", "--format", "huggingface"],
    "links": ["labels", "run", "--format", "imagefolder"],
    "tasks": ["labels", "run", "--format", "labelstudio"],
    "dataset": ["labels", "run", "--format", "fiftyone"],
    "copies": ["labels", "run", "--format", "imagefolder", "--copy"],
    "net.safetensors": ["export", "run", "--format", "safetensors"],
    "net.pt2": ["export", "run", "--format", "torch-export"],
    "net.onnx": ["export", "run", "--format", "onnx"],
    "report.html": ["report", "run"],
    "compared.html": ["report", "run", "run"],
    "maps.npz": ["predict", "run", "pets"],
}
TABLES = ("results.json", "results.md", "results.html", "digits-half.svg")


def export(home, out, name):
    if name in TABLES:
        tables(out)
    else:
        option = "--maps" if name == "maps.npz" else "--out"
        words = ["--anyway"] if EXPORTS[name][0] == "labels" else []  # the run is too short for a verdict
        pencil(*EXPORTS[name], *words, option, out / name, cwd=home)


def pause_in(name, when, pause):
    """Call ``pause`` as soon as the temporary file of an export exists, or when all is done but its name."""
    create, sync, rename = files._create, files.sync_file, Path.rename

    def ours(path):
        return path.name.startswith(f".{name}.")

    def begun(temporary, folder):
        mode = create(temporary, folder)
        if ours(temporary):
            (temporary / "half" if folder else temporary).write_bytes(b"half")
            pause()
        return mode

    def written(temporary):
        sync(temporary)
        _ = ours(temporary) and pause()

    def renamed(self, target):
        _ = ours(self) and pause()
        return rename(self, target)

    if when == "begun":
        files._create = begun
    else:
        files.sync_file = network.sync_file = written
        Path.rename = renamed


def kill(home, out, name, number, when):
    """Kill a process while it writes."""
    reached = FORK.Event()

    def work():
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        pause_in(name, when, lambda: (reached.set(), time.sleep(60)))
        export(home, out, name)

    process = FORK.Process(target=work)
    process.start()
    assert reached.wait(60), "the export did not come to its temporary file"
    os.kill(process.pid, number)
    process.join(60)
    assert process.exitcode == -number


@pytest.mark.slow
@pytest.mark.parametrize("when", ["begun", "written"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["SIGTERM", "SIGKILL"])
@pytest.mark.parametrize("name", [*EXPORTS, *TABLES])
def test_a_killed_export_leaves_nothing_under_its_name(home, tmp_path, name, number, when):
    kill(home, tmp_path, name, number, when)
    left = [path.name for path in tmp_path.iterdir() if path.name != "cells"]
    assert not os.path.lexists(tmp_path / name)
    assert [found for found in left if TEMPORARY.fullmatch(found)], "it was not killed in the middle"
    assert {found for found in left if not found.startswith(".")} <= set(TABLES) - {name}
    export(home, tmp_path, name)  # the same command again clears what was left
    assert (tmp_path / name).exists()
    assert not [path.name for path in tmp_path.rglob(".*") if TEMPORARY.fullmatch(path.name)]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["SIGTERM", "SIGKILL"])
@pytest.mark.parametrize("name", ["report.html", "compared.html", "results.md"])
def test_a_page_that_is_written_again_stays_as_it_was(home, tmp_path, name, number):
    export(home, tmp_path, name)
    before = (tmp_path / name).read_bytes()
    kill(home, tmp_path, name, number, "begun")
    assert (tmp_path / name).read_bytes() == before


def test_the_metadata_beside_a_graph_is_there_before_it(home, tmp_path, monkeypatch):
    """Two files cannot be renamed at once: one that has its graph has all."""
    placed = []
    put = files._put_in_place
    monkeypatch.setattr(
        files, "_put_in_place", lambda temporary, path, new: placed.append(path) or put(temporary, path, new)
    )
    export(home, tmp_path, "net.pt2")
    assert [path.name for path in placed] == ["net.json", "net.pt2"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["net.json", "net.pt2"]


def test_a_network_that_was_traced_is_exported_as_it_is(home, tmp_path):
    """The attention structure has a traced backbone, whose copies are in training mode."""
    export(home, tmp_path, "net.safetensors")
    assert (tmp_path / "net.safetensors").is_file()
