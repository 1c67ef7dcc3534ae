"""The command line as a user meets it: entry point in, stdout, stderr and exit code out."""

import csv
import io
import json
import re
import subprocess
import sys

import numpy as np
import pyarrow.parquet as pq
import pytest
from commands import pencil

from pencil.data.datasets import digits


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with a table of digits and a finished run on it."""
    folder = tmp_path_factory.mktemp("cli")
    splits = digits()
    train, test = splits.train, splits.test
    values = train.inputs.values
    np.savez(
        folder / "mine.npz", x=values[train.rows][:400], y=[f"d{label}" for label in train.given_labels[:400]],
        keys=[f"scan_{i}.png" for i in range(400)],
    )  # fmt: skip
    np.savez(folder / "labelled.npz", x=values[test.rows][:100], y=[f"d{label}" for label in test.given_labels[:100]])
    np.save(folder / "new.npy", values[test.rows][:4].numpy())
    done = pencil("train", "mine.npz", "--out", "runs/mine", "--epochs", 8, "--seed", 2, cwd=folder)
    assert "runs/mine" in done.stdout and re.search(r"of\s+400\s+labels", done.stdout)
    assert "epoch 8/8" in done.stderr and "epoch 8/8" not in done.stdout
    return folder


def test_train_as_json_counts_up_run_directories(home):
    for expected in ("runs/digits-cross_entropy", "runs/digits-cross_entropy-2"):
        words = ["train", "digits", "--method", "cross_entropy", "--epochs", "1", "--set", "data.rows=100", "--json"]
        summary = json.loads(pencil(*words, cwd=home).stdout)
        assert summary["path"] == expected and summary["method"] == "cross_entropy"
        assert 0 <= summary["test_accuracy"]["last"] <= 1


def test_evaluate(home):
    result = json.loads(pencil("evaluate", "runs/mine", "--data", "labelled.npz", "--json", cwd=home).stdout)
    assert result["rows"] == 100 and set(result["per_class"]) <= {f"d{k}" for k in range(10)}
    assert "all" in pencil("evaluate", "runs/mine", "--data", "labelled.npz", "--epoch", "best", cwd=home).stdout
    assert "has no test set" in pencil("evaluate", "runs/mine", cwd=home, code=2).stderr


def test_predict(home):
    rows = list(csv.DictReader(io.StringIO(pencil("predict", "runs/mine", "new.npy", cwd=home).stdout)))
    assert [row["key"] for row in rows] == ["0", "1", "2", "3"] and rows[0]["class"].startswith("d")
    lines = pencil("predict", "runs/mine", "new.npy", "--json", cwd=home).stdout.splitlines()
    assert sum(json.loads(lines[0])["probabilities"].values()) == pytest.approx(1, abs=1e-4)


def test_labels(home):
    every = list(csv.DictReader(io.StringIO(pencil("labels", "runs/mine", "--order", "data", cwd=home).stdout)))
    assert len(every) == 400 and every[7]["key"] == "scan_7.png" and "distribution" not in every[0]
    changed = list(csv.DictReader(io.StringIO(pencil("labels", "runs/mine", "--only-changed", cwd=home).stdout)))
    assert len(changed) == sum(row["changed"] == "True" for row in every)
    scores = [float(row["issue_score"]) for row in changed]
    assert scores == sorted(scores, reverse=True)
    sure = pencil("labels", "runs/mine", "--min-confidence", "0.5", "--format", "jsonl", cwd=home).stdout.splitlines()
    assert (
        all(json.loads(line)["confidence"] >= 0.5 for line in sure) and len(json.loads(sure[0])["distribution"]) == 10
    )
    pencil("labels", "runs/mine", "--format", "parquet", "--out", "labels.parquet", cwd=home)
    assert pq.read_table(home / "labels.parquet").num_rows == 400
    assert "in an existing folder" in pencil("labels", "runs/mine", "--out", "no/dir/x.csv", cwd=home, code=2).stderr
    assert "already exists" in pencil("labels", "runs/mine", "--out", "labels.parquet", cwd=home, code=2).stderr


def test_recipes_are_listed_shown_and_run_from_a_file(home):
    assert "digits-symmetric-50" in pencil("recipes", cwd=home).stdout
    shown = pencil("recipes", "show", "digits-symmetric-50", cwd=home).stdout
    (home / "copy.toml").write_text(shown)
    words = ["train", "copy.toml", "--epochs", 3, "--out", "runs/copy", "--set", "data.rows=200"]
    pencil(*words, cwd=home)
    assert (home / "runs/copy/summary.json").exists()


@pytest.mark.filterwarnings("always::pencil.MethodWarning")
def test_check_trains_nothing_and_says_the_plan(home):
    plan = json.loads(pencil("check", "digits-symmetric-50", "--json", cwd=home).stdout)
    assert plan["rows"] == {"train": 1212, "validation": 135, "test": 450}
    assert [phase["name"] for phase in plan["phases"]] == ["backbone", "correction", "finetune"]
    assert 0.4 < plan["injected_noise_rate"] < 0.5
    text = pencil("check", "mine.npz", cwd=home).stdout
    assert "ready to train" in text and "d9" in text and "small_cnn" in text
    assert not (home / "runs/mine-pencil").exists()
    alone = pencil("check", "mine.npz", "--set", "data.validation=0.0", cwd=home)
    assert "the method 'pencil' runs instead" in alone.stderr and "method      pencil; epochs: backbone" in alone.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("train digitz", "did you mean 'digits'?"),
        ("train nope", "or hf/NAME); `pencil recipes` lists the recipes."),
        ("train mine.npz --out runs/mine", "is not empty"),
        (
            "train digits --out runs/mine --resume",
            "runs/mine was started with a different recipe; choose another directory",
        ),
        ("train digits --set training.batch_siz=3 --set sede=1", "did you mean 'training.batch_size'?"),
        ("train digits --set training.batch_size=many", "training.batch_size"),
        ("train digits --method pensil", "no method 'pensil'"),
        ("train digits --model timm/nothing_like_it", "timm has no model"),
        ('train digits --set data.noise={kind="symmetric",rate=50}', "data.noise"),
        ("check nowhere.npz", "nowhere.npz"),
        ("evaluate runs", "is not a run directory"),
        ("evaluate runs/mine --epoch first", "expected last or best"),
        ("labels runs/mine --format xml", "expected csv, jsonl, parquet"),
        ("labels runs/mine --format parquet", "name a file with --out"),
        ("labels runs/mine --out labels.xlsx", "expected a name that ends in .csv, .jsonl or .parquet"),
        ("labels runs/mine --format csv --out labels.parquet", "expected a name that ends in .csv; remove --format"),
        ("predict runs/mine nowhere.npy", "cannot read"),
    ],
)
def test_mistakes_exit_with_2_and_one_clear_message(home, words, message):
    before = sorted(home.rglob("*"))
    done = pencil(*words.split(), cwd=home, code=2)
    assert done.stderr.startswith("error: ") and message in done.stderr
    assert done.stdout == "" and sorted(home.rglob("*")) == before


def test_bad_rows_of_a_file_are_named(home, tmp_path):
    x = np.zeros((4, 3), np.float32)
    cases = {
        "nan": ({"x": x, "y": [np.nan] * 4}, "none of the 4 rows has a label"),
        "range": ({"x": x, "y": [0, 1, 5, 1], "classes": ["a", "b"]}, "label 5 at row 2"),
        "single": ({"x": x, "y": [0, 0, 0, 0]}, "at least two classes"),
        "length": ({"x": x, "y": [0, 1]}, "x has 4 rows but y has 2"),
        "input": (
            {"x": np.full((4, 3), np.nan), "y": [0, 1, 0, 1]},
            "input at row 0 (and 3 more: row 1, ",
        ),
        "minus": ({"x": x, "y": [0, -1, 2, 0]}, "label -1 at row 1 may be a class or mean that there is none"),
    }
    for name, (arrays, message) in cases.items():
        np.savez(tmp_path / f"{name}.npz", **arrays)
        done = pencil("train", f"{name}.npz", cwd=tmp_path, code=2)
        assert message in done.stderr and not (tmp_path / "runs").exists()


def test_as_a_process_of_its_own(home):
    """The same through the interpreter: progress and errors on stderr, results on stdout, exit codes for scripts."""
    run = [sys.executable, "-m", "pencil"]
    good = subprocess.run([*run, "labels", "runs/mine"], cwd=home, capture_output=True, text=True)
    assert good.returncode == 0 and good.stdout.startswith("key,split,given") and good.stderr == ""
    bad = subprocess.run([*run, "train", "digitz"], cwd=home, capture_output=True, text=True)
    assert bad.returncode == 2 and bad.stdout == "" and bad.stderr.count("\n") == 1


def test_version_and_help():
    from pencil import __version__

    assert __version__ in pencil("--version", cwd=".").stdout
    for verb in ("demo", "train", "evaluate", "predict", "labels", "recipes", "check"):
        assert verb in pencil("--help", cwd=".").stdout
        assert "Usage" in pencil(verb, "--help", cwd=".").stdout
