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

IN_PROCESS = """
import sys
from pencil.cli import main
sys.argv = ["pencil", "labels", *sys.argv[1:]]
try:
    main()
except SystemExit as stop:
    assert not stop.code
heavy = [name for name in ("torch", "pandas", "matplotlib", "pencil.recipe", "pencil.data") if name in sys.modules]
print(heavy, file=sys.stderr)
"""


@pytest.mark.parametrize("words", [[], ["--only-changed"], ["--min-confidence", "0.7"], ["--format", "jsonl"]], ids=str)
@pytest.mark.parametrize("make", [one_class_run, many_classes_run])
def test_labels_need_no_torch(tmp_path, make, words):
    run = make(tmp_path / "run")
    done = subprocess.run([sys.executable, "-c", IN_PROCESS, run, *words], capture_output=True, text=True)
    assert done.stderr.strip() == "[]" and done.stdout


@pytest.mark.parametrize(
    "words", [["--format", "parquet", "--out", "o"], ["--format", "cleanlab"], ["--reviewed"], ["--entries"]], ids=str
)
def test_no_other_format_needs_it_either(tmp_path, words):
    run = many_classes_run(tmp_path / "run")
    done = subprocess.run([sys.executable, "-c", IN_PROCESS, run, *words], capture_output=True, text=True, cwd=tmp_path)
    assert "torch" not in done.stderr.splitlines()[-1] and "pencil.recipe" not in done.stderr.splitlines()[-1]


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


def test_labels_need_neither_torch_nor_pandas(tmp_path):
    """Their imports are what a person would wait for."""
    run = one_class_run(tmp_path / "run", rows=20, shape=(1,))
    code = f"""
import sys
sys.argv = ["pencil", "labels", {str(run)!r}]
from pencil.cli import main
try:
    main()
except SystemExit as ended:
    assert not ended.code
heavy = {{"torch", "pandas", "sklearn", "scipy", "matplotlib"}} & sys.modules.keys()
sys.exit(str(heavy) if heavy else 0)
"""
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
