"""Rows without a label, from the table to the label that they get at the end."""

import csv
import io
import json
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands import pencil
from PIL import Image
from test_tied_labels import NAMES

import pencil as package
from pencil import Stopped
from pencil.auditing.sample import open_sample
from pencil.data.read import read_inputs
from pencil.decisions import read_reviews
from pencil.job import resume_run, run_recipe
from pencil.review.inputs import pictures_of
from pencil.review.queue import Filter, Queue
from pencil.review.session import Review
from pencil.training.checkpointing import Checkpointer

pytestmark = pytest.mark.filterwarnings("ignore:auto (cannot|needs):UserWarning")  # tested in test_auto.py

EMPTY = {3: "dark", 17: "light", 31: "middle", 40: "middle", 58: "middle"}
SETTINGS = ["--method", "pencil", "--epochs", 10, "--set", "training.batch_size=8", "--set", "data.columns.key=id"]


def write_table(folder, name="t.csv"):
    """Pictures of three shades in a table with semicolons; five rows have no label."""
    lines = ["id;path;label;note"]
    for number in range(60):
        shade = EMPTY.get(number) or ("dark", "middle", "light")[number % 3]
        value = {"dark": 20, "middle": 120, "light": 220}[shade] + number % 7
        Image.new("RGB", (8, 8), (value,) * 3).save(folder / f"{number:02}.png")
        lines.append(f"s{number};{number:02}.png;{'' if number in EMPTY else shade};{number},5")
    (folder / name).write_text("\n".join(lines))


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("unlabelled")
    write_table(folder)
    done = pencil("train", "t.csv", "--out", "run", *SETTINGS, cwd=folder)
    assert "unlabelled  5 rows without a given label were labelled" in done.stdout
    return folder


def test_check_counts_them(home):
    done = pencil("check", "t.csv", *SETTINGS, cwd=home)
    assert re.search(
        r"unlabelled +5 rows, images of 8 x 8 pixels without a label, which are labelled at the end", done.stdout
    )
    assert "ready to train" in done.stdout
    tree = json.loads(pencil("check", "t.csv", *SETTINGS, "--json", cwd=home).stdout)
    assert tree["rows"]["unlabelled"] == 5 and tree["data"]["unlabelled"]["rows"] == 5
    assert sum(tree["data"]["train"]["class_counts"].values()) == 55


def test_they_get_a_label_and_change_nothing_else(home):
    labels = package.open_run(home / "run").labels
    assert labels.keys.to_pylist() == [f"s{number}" for number in range(60)]  # in the order of the table
    rows = {row["key"]: row for row in labels.to_pylist()}
    for number, shade in EMPTY.items():
        row = rows[f"s{number}"]
        assert row["split"] == "unlabelled" and row["given"] is None and row["corrected"] == shade
        assert not row["changed"] and row["issue_score"] == 0 and 1 / 3 < row["confidence"] <= 1
        assert np.isnan(row["given_probability"]) and sum(row["distribution"]) == pytest.approx(1, abs=1e-5)
    assert len(labels.unlabelled) == 5 and len(labels.train) + len(labels.held_out) == 55
    summary = json.loads((home / "run/summary.json").read_text())
    assert summary["data"]["rows"]["unlabelled"] == 5 and summary["labels"]["rows"] == len(labels.train)


def test_the_report_says_how_many(home):
    page = (home / "run/report.html").read_text()
    assert "5 rows have no given label and took part in neither training nor evaluation" in page


def test_exports_have_them(home):
    done = pencil("labels", "run", "--with-columns", "--anyway", "--out", "l.csv", cwd=home)
    assert "60 labels written" in done.stderr
    with (home / "l.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream, delimiter=";"))
    assert list(rows[0])[:5] == ["id", "path", "label", "note", "key"]
    assert [row["id"] for row in rows] == [f"s{number}" for number in range(60)] and rows[7]["note"] == "7,5"
    assert {row["id"]: row["corrected"] for row in rows if row["label"] == ""} == {
        f"s{number}": shade for number, shade in EMPTY.items()
    }
    changed = csv.DictReader(io.StringIO(pencil("labels", "run", "--only-changed", cwd=home).stdout))
    assert not {f"s{number}" for number in EMPTY} & {row["key"] for row in changed}
    for kind, out in (("cleanlab", "c.csv"), ("imagefolder", "sorted"), ("parquet", "l.parquet")):
        pencil("labels", "run", "--format", kind, "--anyway", "--out", out, cwd=home)
    assert (home / "sorted/dark/03.png").stat().st_nlink == 2 and len(pq.read_table(home / "l.parquet")) == 60


def test_the_review_page_and_the_audit(home):
    queue = Queue(home / "run")
    shown = queue.rows(Filter(show="undecided"))
    assert {queue.where(row) for row in shown} == {(f"s{number}", "unlabelled") for number in EMPTY}
    assert queue.describe(int(shown[0]))["given"] is None
    pictures = pictures_of(home / "run")
    pictures.wait()
    assert pictures.picture(("s17", "unlabelled"))[1] == "image/png"
    sample = open_sample(home / "run", 40)
    assert len(sample.population) == 55 and all(split != "unlabelled" for _, split in sample.all_where())


@pytest.mark.filterwarnings("default")  # the command line prints them
def test_evaluation_leaves_them_out(home):
    done = pencil("evaluate", "run", "--data", "t.csv", "--json", cwd=home)
    assert json.loads(done.stdout)["rows"] == 55 and "5 rows of t.csv have no label and are ignored" in done.stderr


def test_a_person_labels_some_and_they_are_trained_on(home, tmp_path):
    with Review(home / "run") as review:
        for key, kind in (("s3", "accept"), ("s17", "other")):
            row = review.queue.find({(key, "unlabelled")})[key, "unlabelled"]
            review.decide(row, kind, [] if kind == "accept" else [NAMES.index("middle")])
    merged = package.open_run(home / "run").labels.merge_decisions(read_reviews(home / "run/reviews.jsonl"))
    found = {row["key"]: row["corrected"] for row in merged.to_pylist()}
    assert found["s3"] == "dark" and found["s17"] == "middle"
    pencil("train", "t.csv", "--out", tmp_path / "again", *SETTINGS, "--pinned", "run/reviews.jsonl", cwd=home)
    again = {row["key"]: row for row in package.open_run(tmp_path / "again").labels.to_pylist()}
    assert [again[key]["split"] in ("train", "validation") for key in ("s3", "s17", "s31")] == [True, True, False]
    assert again["s17"]["given"] == again["s17"]["corrected"] == "middle" and again["s17"]["pinned"]
    assert again["s31"]["split"] == "unlabelled" and not again["s31"]["pinned"]


def test_a_run_that_was_stopped_gives_them_the_same_labels(home, tmp_path, monkeypatch):
    save_or_stop = Checkpointer.__call__

    def stop(self, trainer):
        if len(trainer.records) == 4:
            self.request.signal = "SIGTERM"
        save_or_stop(self, trainer)

    with monkeypatch.context() as patch, pytest.raises(Stopped):
        patch.setattr(Checkpointer, "__call__", stop)
        run_recipe(package.open_run(home / "run").recipe, tmp_path / "run")
    resumed = resume_run(tmp_path / "run")
    assert repr(resumed.labels.to_pylist()) == repr(package.open_run(home / "run").labels.to_pylist())  # NaN too


@pytest.mark.filterwarnings("ignore:the data has changed")
def test_other_unlabelled_rows_are_other_data(home, tmp_path):
    write_table(tmp_path)
    pencil("train", "t.csv", "--out", "run", *SETTINGS, cwd=tmp_path)
    (tmp_path / "run/summary.json").unlink()  # as if it had been stopped
    lines = (tmp_path / "t.csv").read_text().splitlines()
    (tmp_path / "t.csv").write_text("\n".join(line for line in lines if not line.startswith("s40;")))
    done = pencil("resume", "run", cwd=tmp_path, code=2)
    assert "the data has changed" in done.stderr and "unlabelled" in done.stderr


def test_frozen_features_votes_and_python(tmp_path):
    """Photos on features of a frozen backbone, whose labels are votes of annotators; some have none."""
    images, rng = [], np.random.default_rng(0)
    for number in range(24):
        pixels = rng.integers(0, 60, (72, 96, 3)) + 190 * (number % 2)
        stream = io.BytesIO()
        Image.fromarray(pixels.astype(np.uint8)).save(stream, "PNG")
        images.append(stream.getvalue())
    votes = [[None, "dark", "light"][0 if number >= 20 else 1 + number % 2] for number in range(24)]
    table = {"image": images, "ann": votes, "bob": votes}
    pq.write_table(pa.table(table), tmp_path / "t.parquet")
    words = ["--set", 'data.columns.label=["ann", "bob"]', "--set", "data.cache=none", "--set", "data.workers=0"]
    pencil("train", "t.parquet", "--out", "run", "--method", "elr", "--epochs", 15, *words, cwd=tmp_path)
    run = package.open_run(tmp_path / "run")
    assert run.recipe.model.train == "head"
    rows = [row for row in run.labels.to_pylist() if row["split"] == "unlabelled"]
    assert [row["key"] for row in rows] == ["20", "21", "22", "23"] and all(row["candidates"] == [] for row in rows)
    assert [row["corrected"] for row in rows] == ["dark", "light", "dark", "light"]
    predicted = run.predict_inputs(*read_inputs([tmp_path / "t.parquet"], run.recipe.data)[:1])[20:]
    assert all(predicted.argmax(dim=1).numpy() == run.labels.unlabelled.corrected_codes)


def test_arrays_in_python():
    rng = np.random.default_rng(0)
    kind = np.arange(120) % 3
    x = rng.normal(size=(120, 4)) + 5 * np.eye(4)[kind]
    y = np.where(np.arange(120) % 10 == 0, np.nan, kind + 1)
    run = package.fit("mlp", (x, y), method="elr", epochs=20, progress=False)
    assert run.classes == ("1", "2", "3") and run.summary.data.rows["unlabelled"] == 12
    found = run.labels.unlabelled
    assert found.keys.to_pylist() == [str(number) for number in range(0, 120, 10)]
    assert found["corrected"].to_pylist() == [str(kind[number] + 1) for number in range(0, 120, 10)]
