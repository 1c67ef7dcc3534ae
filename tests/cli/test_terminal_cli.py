"""What a new user meets in the terminal: the end of a run, the list of runs, lengths, quiet, help, completion."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from commands import pencil
from typer.main import get_command

from pencil.cli import app
from pencil.cli.options import build_recipe, minutes
from pencil.cli.show import program
from pencil.errors import RecipeError


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with a table, a finished run on it, and what was printed at its end."""
    folder = tmp_path_factory.mktemp("terminal")
    rng = np.random.default_rng(0)
    clean = np.arange(300) % 3
    x = (np.eye(3)[clean] * 5 + rng.normal(size=(300, 3))).astype(np.float32)
    np.savez(folder / "blobs.npz", x=x, y=np.where(rng.random(300) < 0.3, (clean + 1) % 3, clean))
    done = pencil("train", "blobs.npz", "--out", "runs/my blobs", "--epochs", 8, "--device", "cpu", cwd=folder)
    return folder, done


def commands_of(text):
    lines = text.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("next"))
    return [line[12:] for line in lines[start:]]


def test_the_end_of_a_run_says_all_that_a_user_needs_within_eighty_columns(home):
    folder, done = home
    lines = done.stdout.splitlines()
    names = [line[:12].strip() for line in lines if line[:12].strip()]
    assert names[:4] == ["verdict", "wrong", "labels", "network"]
    assert names[-5:] == ["network", "chosen", "run", "report", "next"]
    assert all(len(line) <= 80 for line in lines)
    assert re.search(r"^verdict     (reliable|doubtful|do not use the corrections)$", done.stdout, flags=re.MULTILINE)
    lists = r"^labels      \d+ corrections \(labels that changed\), \d+ suspects \(worth a look\),"
    assert re.search(lists, done.stdout, flags=re.MULTILINE)
    assert (folder / "runs/my blobs/report.html").exists() and "runs/my blobs/report.html" in done.stdout


def test_the_next_two_commands_have_the_real_path_and_run(home):
    folder, done = home
    commands = commands_of(done.stdout)
    assert len(commands) == 2 and all("'runs/my blobs'" in line for line in commands)
    assert {line.split()[1] for line in commands} <= {"labels", "review", "audit"}
    listed = next((line for line in commands if " labels " in line), "pencil labels 'runs/my blobs' --only-changed")
    assert pencil(*listed.replace("'runs/my blobs'", "@").split()[1:2], "runs/my blobs", cwd=folder).stdout.count("\n")


def test_show_prints_what_training_printed(home):
    folder, done = home
    assert pencil("show", "runs/my blobs", cwd=folder).stdout == done.stdout
    tree = json.loads(pencil("show", "runs/my blobs", "--json", cwd=folder).stdout)
    assert tree["state"] == "finished" and tree["labels"]["held_out"] + tree["labels"]["rows"] == 300
    assert "is not a run directory" in pencil("show", "runs", cwd=folder, code=2).stderr


def test_runs_lists_every_run_the_last_one_first(home, tmp_path):
    folder, _ = home
    finished = shutil.copytree(folder / "runs/my blobs", tmp_path / "runs/nested/one")
    for name in ("unfinished", "damaged"):
        shutil.copytree(finished, tmp_path / "runs" / name)
    (tmp_path / "runs/unfinished/summary.json").unlink()
    (tmp_path / "runs/damaged/summary.json").write_text("{")
    (tmp_path / "runs/no run").mkdir()
    for age, name in enumerate(("nested/one", "unfinished", "damaged")):
        for path in (tmp_path / "runs" / name).glob("*.*"):
            os.utime(path, (path.stat().st_atime, path.stat().st_mtime - 7200 * age))
    lines = pencil("runs", cwd=tmp_path).stdout.splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["runs/nested/one", "runs/unfinished", "runs/damaged"]
    verdict = json.loads((finished / "summary.json").read_text())["verdict"]["level"]
    assert lines[1].split()[1] in verdict and "auto" in lines[1] and "held-out" in lines[1]
    assert (
        " unfinished " in lines[2] and "epoch 8" in lines[2] and " damaged " in lines[3] and lines[3].endswith("4.0 h")
    )
    tree = json.loads(pencil("runs", "runs", "--json", cwd=tmp_path).stdout)
    assert [run["state"] for run in tree] == ["finished", "unfinished", "damaged"]
    assert tree[0]["verdict"]["level"] == verdict and "summary.json" in tree[2]["reason"]
    assert json.loads(pencil("runs", "runs/no run", "--json", cwd=tmp_path).stdout) == []
    assert "no runs in runs/no run" in pencil("runs", "runs/no run", cwd=tmp_path).stderr
    assert "folder nowhere does not exist" in pencil("runs", "nowhere", cwd=tmp_path, code=2).stderr
    assert "unfinished after 8 epochs" in pencil("show", "runs/unfinished", cwd=tmp_path).stdout


def test_runs_and_show_need_no_torch(home):
    folder, _ = home
    code = "from pencil.cli import app, sys; app(sys.argv[1:], standalone_mode=False); sys.exit('torch' in sys.modules)"
    for words in (["runs", "runs"], ["show", "runs/my blobs"]):
        subprocess.run([sys.executable, "-c", code, *words], cwd=folder, check=True, capture_output=True)


def test_quiet_prints_the_run_directory_and_nothing_else(home):
    folder, _ = home
    done = pencil("train", "blobs.npz", "--out", "runs/quiet", "--epochs", 2, "--quiet", cwd=folder)
    assert (done.stdout, done.stderr) == ("runs/quiet\n", "")
    again = pencil("resume", "runs/quiet", "--quiet", cwd=folder)
    assert (again.stdout, again.stderr) == ("runs/quiet\n", "")


def test_the_device_is_that_of_the_command_line(home):
    folder, _ = home
    assert tomllib.loads((folder / "runs/my blobs/recipe.toml").read_text())["training"]["device"] == "cpu"
    seen = pencil("train", "blobs.npz", "--device", "tpu", cwd=folder, code=2).stderr
    assert "'tpu'; expected auto, cpu, cuda or cuda:N" in seen


def test_a_budget_has_a_unit_and_excludes_epochs(home):
    folder, _ = home
    assert [minutes(text) for text in ("90s", "10m", "1.5h")] == [1.5, 10.0, 90.0]
    wrong = pencil("train", "blobs.npz", "--budget", "10", cwd=folder, code=2).stderr
    assert "'10', which has no unit; write 10s, 10m or 10h" in wrong
    for text in ("soon", "-5m", "m", "nanm", "infh"):
        with pytest.raises(RecipeError, match="expected a time such as 90s"):
            minutes(text)
    both = pencil("train", "blobs.npz", "--budget", "10m", "--epochs", 3, cwd=folder, code=2).stderr
    assert "--epochs 3 and --budget 10m both set the training length" in both
    other = pencil("train", "blobs.npz", "--budget", "10m", "--method", "elr", cwd=folder, code=2).stderr
    assert "Elr does not support a time budget" in other and "training will take" not in other
    words = ["train", "blobs.npz", "--set", "training.epochs=3", "--set", "training.minutes=3"]
    assert "epochs and minutes both set the length" in pencil(*words, cwd=folder, code=2).stderr


def test_a_length_on_the_command_line_replaces_that_of_the_recipe():
    timed = build_recipe("digits-symmetric-50-auto", budget="2m").training
    assert (timed.epochs, timed.minutes) == (None, 2.0)
    counted = build_recipe("digits-symmetric-50-auto", epochs=7).training
    assert (counted.epochs, counted.minutes) == (7, None)


def test_a_budget_counts_epochs_within_their_number(home):
    folder, _ = home
    said = pencil("train", "blobs.npz", "--out", "runs/timed", "--budget", "2s", cwd=folder).stderr
    epochs = [tuple(map(int, found)) for found in re.findall(r"^epoch (\d+)/(\d+) ", said, flags=re.MULTILINE)]
    assert epochs and all(epoch <= planned for epoch, planned in epochs) and epochs[-1][0] == epochs[-1][1]


def test_how_a_user_calls_pencil(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(sys, "argv", ["/somewhere/pencil/__main__.py"])
    assert program().endswith(" -m pencil")
    monkeypatch.setattr(sys, "argv", [str(Path("bin/pencil").absolute())])
    assert program() == "bin/pencil"


@pytest.mark.parametrize("words", [(), *((name,) for name in get_command(app).commands), ("recipes", "show")])
def test_help_shows_no_type_for_flags_and_names_the_command(words):
    shown = pencil(*words, "--help", cwd=".").stdout
    assert "<bool>" not in shown and f"Usage: {' '.join(['pencil', *words])}" in shown


@pytest.mark.parametrize(("word", "expected"), [("re", {"resume", "report", "review", "recipes"}), ("ru", {"runs"})])
def test_the_shell_completes_commands(word, expected):
    """In a process of its own, as a shell asks; the script of the shell is printed by --show-completion."""
    asked = {"_PENCIL_COMPLETE": "complete_bash", "COMP_WORDS": f"pencil {word}", "COMP_CWORD": "1"}
    words = [sys.executable, "-m", "pencil"]
    done = subprocess.run(words, env={**os.environ, **asked}, capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == expected
