"""A table of numbers, categories and text, as a user meets it: train, predict, evaluate, resume, check, export."""

import csv
import io
import json
import os
import random
import signal

import numpy as np
import pytest
from commands import pencil

from pencil.runs.directory import RunWriter

HEADER = ["id", "age", "income", "city", "note", "label"]
WORDS = {"yes": "good great fine happy sun the a of", "no": "bad poor sad rain dark the a of"}
CITIES = {"yes": ["Rome", "Oslo", "Bonn"], "no": ["Lima", "Kyiv", "Bonn"]}


def write(path, rows, seed, *, label=True, city=None, leave_out=()):
    rng = random.Random(seed)
    kept = [name for name in HEADER if name not in leave_out and (label or name != "label")]
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, kept, extrasaction="ignore")
        table.writeheader()
        for row in range(rows):
            given = rng.choice(["yes", "no"])
            table.writerow(
                {
                    "id": row,
                    "age": "" if rng.random() < 0.1 else round(rng.gauss(30 + 15 * (given == "yes"), 6), 1),
                    "income": round(rng.lognormvariate(3, 1), 2),
                    "city": city or rng.choice(CITIES[given]),
                    "note": " ".join(rng.choices(WORDS[given].split(), k=8)) + f" {row}",
                    "label": given,
                }
            )
    return path


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with a table and a finished run on it."""
    folder = tmp_path_factory.mktemp("records")
    write(folder / "mine.csv", 200, 0)
    done = pencil("train", "mine.csv", "--out", "runs/mine", "--epochs", 6, cwd=folder)
    expected = "columns: numbers: age, income; categories: city; text: note"
    assert expected in " ".join(done.stderr.split())
    return folder


def test_the_report_shows_cells_and_no_markup_of_the_data(tmp_path):
    write(tmp_path / "mine.csv", 200, 0)
    lines = (tmp_path / "mine.csv").read_text().replace("good", "<b>good</b>").splitlines()
    wrong = [
        line.removesuffix("yes") + "no" if line.endswith("yes") and i < 20 else line for i, line in enumerate(lines)
    ]
    (tmp_path / "mine.csv").write_text("\n".join(wrong))
    pencil("train", "mine.csv", "--out", "run", "--epochs", 8, "--method", "pencil", cwd=tmp_path)
    page = (tmp_path / "run/report.html").read_text()
    assert "<dt>note</dt>" in page and "&lt;b&gt;good" in page and "<b>good" not in page


def test_predict_takes_new_levels_and_missing_cells(home):
    write(home / "new.csv", 30, 1, label=False, city="Paris")
    rows = list(csv.DictReader(io.StringIO(pencil("predict", "runs/mine", "new.csv", cwd=home).stdout)))
    assert len(rows) == 30 and {row["class"] for row in rows} == {"yes", "no"}
    again = list(csv.DictReader(io.StringIO(pencil("predict", "runs/mine", "new.csv", cwd=home).stdout)))
    assert again == rows
    write(home / "less.csv", 3, 1, label=False, leave_out=("age", "note"))
    missing = pencil("predict", "runs/mine", "less.csv", cwd=home, code=2).stderr
    assert "has no columns 'age' and 'note'; it has" in missing
    assert "add what is missing to the table" in missing and "--set" not in missing  # which predict does not have


def test_predict_names_a_bad_cell_beside_the_other_answers(home):
    (home / "bad.csv").write_text("id;age;income;city;note\n7;40,5;20;Bonn;\n8;old;20;Bonn;\n9;;20;Bonn;\n")
    done = pencil("predict", "runs/mine", "bad.csv", cwd=home, code=1)
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert [bool(row["class"]) for row in rows] == [True, False, True]
    assert [row["error"] for row in rows] == ["", "column 'age' holds 'old'; expected a number or an empty cell", ""]
    assert "--set" not in done.stdout + done.stderr
    (home / "bad.csv").write_text("id;age;income;city;note\n8;old;20;Bonn;\n")
    assert (
        "the first because column 'age' holds 'old'"
        in pencil("predict", "runs/mine", "bad.csv", cwd=home, code=2).stderr
    )


def test_images_and_vectors_are_no_data_for_a_network_of_a_table(home):
    (home / "photos/yes").mkdir(parents=True)
    (home / "photos/yes/0.png").write_bytes(b"")
    np.savez(home / "x.npz", x=np.ones((3, 2)), y=[0, 1, 7])
    for name, seen in (("photos", "images"), ("x.npz", "vectors of 2 numbers")):
        for words in (["evaluate", "runs/mine", "--data", name], ["predict", "runs/mine", name]):
            done = pencil(*words, cwd=home, code=2)
            expected = (
                f"{name} contains {seen}; the run was trained on the table columns 'age', 'income', 'city', 'note'"
            )
            assert expected in done.stderr


def test_evaluate_and_the_rest_of_the_commands(home):
    write(home / "labelled.csv", 100, 2)
    found = json.loads(pencil("evaluate", "runs/mine", "--data", "labelled.csv", "--json", cwd=home).stdout)
    assert found["rows"] == 100 and found["accuracy"] > 0.9
    pencil("export", "runs/mine", "--format", "torch-export", "--out", "net.pt2", cwd=home)
    described = json.loads((home / "net.json").read_text())["preparation"]["encoded"]
    assert described[:4] == ["age", "income", "age is missing", "city = Bonn"]
    assert "whole   encoder.safetensors" in pencil("check", "runs/mine", cwd=home).stdout
    (home / "runs/mine/encoder.safetensors").rename(home / "moved")
    assert "it is missing" in pencil("check", "runs/mine", cwd=home, code=2).stdout
    (home / "moved").rename(home / "runs/mine/encoder.safetensors")
    lines = pencil("labels", "runs/mine", "--with-columns", "--order", "data", cwd=home).stdout.splitlines()
    assert lines[0].startswith("id,age,income,city,note,label,key,") and len(lines) == 201


def test_check_shows_columns(home):
    write(home / "odd.csv", 60, 3)
    lines = (home / "odd.csv").read_text().splitlines()
    twice = lines[1].replace(",yes", ",?").replace(",no", ",yes").replace(",?", ",no")
    (home / "odd.csv").write_text(
        "\n".join(f"{line},{'fixed' if i else 'source'}" for i, line in enumerate([*lines, twice]))
    )
    shown = pencil("check", "odd.csv", "--set", "data.columns.ignore=id", cwd=home).stdout
    assert "numbers: age, income" in shown and "categories: city, source" in shown and "text: note" in shown
    assert "missing values: age" in shown and "constant columns: source" in shown
    assert "groups of duplicates with different labels: 1" in shown
    assert "key: the row number (no column is recognised as an id; set one with --set data.columns.key=NAME)" in shown
    numbered = [f"{line};{i or 'Serial'};{'fixed' if i else 'source'}" for i, line in enumerate(lines)]
    (home / "odd.csv").write_text(
        "\n".join([*numbered, ";".join(["", "", "", "", "", "", "99", "fixed"])]).replace(",", ";")
    )
    shown = pencil("check", "odd.csv", "--set", "data.columns.ignore=id", cwd=home).stdout
    assert "set one with --set data.columns.key=Serial)" in " ".join(shown.split())
    assert "unlabelled  1 row" in shown and shown.count("numbers: ") == shown.count("constant columns: ") == 1


def test_a_stopped_run_resumes_to_the_same_result(home, monkeypatch):
    words = ["train", "mine.csv", "--epochs", 30, "--method", "pencil", "--set", "training.checkpoint_epochs=1"]
    whole = json.loads(pencil(*words, "--out", "runs/whole", "--json", cwd=home).stdout)
    real, epochs = RunWriter.append_metrics, []

    def stop_in_the_third_epoch(self, record):
        real(self, record)
        epochs.append(record["epoch"])
        if len(epochs) == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(RunWriter, "append_metrics", stop_in_the_third_epoch)
        pencil(*words, "--out", "runs/stopped", cwd=home, code=75)
    assert epochs[:3] == [1, 2, 3] and len(epochs) < 30 and not (home / "runs/stopped/summary.json").exists()
    resumed = json.loads(pencil(*words, "--out", "runs/stopped", "--resume", "--json", cwd=home).stdout)
    assert resumed["labels"] == whole["labels"]
    for name in ("model.safetensors", "encoder.safetensors"):
        assert (home / "runs/whole" / name).read_bytes() == (home / "runs/stopped" / name).read_bytes()
