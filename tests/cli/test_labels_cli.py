"""`pencil labels` answers at once: it imports neither torch nor pandas."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from commands import pencil
from review_runs import many_classes_run, one_class_run

from pencil.terminal import counted

HEAVY = """
import contextlib, io, json, sys
from pencil.cli import main

for words in json.loads(sys.argv[1]):
    sys.argv = ["pencil", "labels", *words]
    written = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    try:
        with contextlib.redirect_stdout(written):
            main()
    except SystemExit as stop:
        assert not stop.code, words
    assert written.buffer.getvalue() or "--out" in words, words
heavy = ("torch", "pandas", "sklearn", "scipy", "matplotlib", "pencil.recipe", "pencil.data")
print(json.dumps([name for name in heavy if name in sys.modules]))
"""


def heavy_modules(folder, *commands):
    """What these commands import together, of what a person would wait for."""
    command = [sys.executable, "-c", HEAVY, json.dumps(commands)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_labels_need_no_torch(tmp_path):
    one_class_run(tmp_path / "one"), many_classes_run(tmp_path / "many")
    words = ([], ["--only-changed"], ["--min-confidence", "0.7"], ["--format", "jsonl"])
    assert heavy_modules(tmp_path, *([run, *each] for run in ("one", "many") for each in words)) == []


def test_no_other_format_needs_it_either(tmp_path):
    many_classes_run(tmp_path / "run")
    words = (["--format", "parquet", "--out", "o"], ["--format", "cleanlab"], ["--reviewed"], ["--entries"])
    assert not {"torch", "pencil.recipe"} & set(heavy_modules(tmp_path, *(["run", *each] for each in words)))


@pytest.mark.parametrize("words", [["labels", "run"], ["labels", "run", "--json"], ["runs", "."]], ids=str)
def test_a_reader_that_has_seen_enough_is_no_error(tmp_path, words):
    """As `| head -1`: here the pipe is closed before anything is written."""
    one_class_run(tmp_path / "run", rows=3000, shape=(1,))
    gone, end = os.pipe()
    os.close(gone)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pencil", *words], stdout=end, stderr=subprocess.PIPE, text=True, cwd=tmp_path
        )
    finally:
        os.close(end)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
def test_a_full_disk_is_one_line(tmp_path):
    one_class_run(tmp_path / "run")
    with Path("/dev/full").open("wb") as full:
        words = [sys.executable, "-m", "pencil", "labels", "run"]
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "No space left on device" in done.stderr


def test_json_is_for_programs(tmp_path):
    run = one_class_run(tmp_path / "run")
    rows = [json.loads(line) for line in pencil("labels", run, "--json", cwd=tmp_path).stdout.splitlines()]
    assert len(rows) == 12 and rows[0]["changed"] is True


def test_one_label_is_not_several(tmp_path):
    run = one_class_run(tmp_path / "run")
    for bound, said in (("0.949", "1 label"), ("0", "12 labels")):
        done = pencil("labels", run, "--min-confidence", bound, "--out", f"{bound}.csv", cwd=tmp_path)
        assert done.stderr == f"{said} written to {bound}.csv\n"
    assert (counted(1, "copy", "copies"), counted(2, "copy", "copies")) == ("1 copy", "2 copies")
