"""The verbs on data of several classes at once, as a user meets them."""

import csv
import io
import json
import re
from shutil import copytree

import numpy as np
import pyarrow.parquet as pq
import pytest
from commands import pencil
from conftest import paint

from pencil.data.read import load
from pencil.data.settings import DataSettings
from pencil.review.queue import Filter
from pencil.review.session import Review

pytestmark = pytest.mark.filterwarnings("ignore:auto (cannot|needs):UserWarning")  # tested in test_auto.py

NAMES = ["sea", "sky", "sun"]


def rows_of(text):
    return list(csv.DictReader(io.StringIO(text)))


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Arrays with an indicator matrix (one in five of what is there is not said), and a run on them."""
    folder = tmp_path_factory.mktemp("several")
    rng = np.random.default_rng(0)
    clean = (rng.random((300, 3)) < 0.4).astype(np.int64)
    x = (clean @ rng.normal(size=(3, 8)) + 0.3 * rng.normal(size=(300, 8))).astype(np.float32)
    given = np.where((clean == 1) & (rng.random(clean.shape) < 0.2), 0, clean)
    np.savez(
        folder / "mine.npz", x=x[:200], y=given[:200], clean_labels=clean[:200], classes=NAMES,
        keys=[f"p{i}" for i in range(200)], x_test=x[200:], y_test=clean[200:],
    )  # fmt: skip
    np.savez(folder / "other.npz", x=x[200:], y=np.eye(3)[np.arange(100) % 3])  # could be one class each
    np.savez(folder / "hard.npz", x=x[200:], y=np.arange(100) % 3)
    np.savez(folder / "new.npz", x=x[200:205])
    soft = given[:200].astype(np.float32)
    soft[soft == 1] = 0.9
    soft[:2], soft[4, 0], soft[7] = np.nan, np.nan, 0
    np.savez(folder / "soft.npz", x=x[:200], y=soft)
    settings = ["--method", "pencil", "--set", "training.batch_size=16", "--set", "data.validation=0.2"]
    done = pencil("train", "mine.npz", "--out", "run", "--epochs", 20, *settings, cwd=folder)
    assert "test mAP after 20 epochs" in done.stdout and "pencil audit run" in done.stdout
    words = " ".join(done.stdout.split())
    assert re.search("verdict (reliable|doubtful)", words) and "points of right labels" in words
    assert "test mAP" in done.stderr
    return folder


def test_training_and_review_count_the_same_rows(home):
    shown = " ".join(pencil("show", "run", cwd=home).stdout.split())
    labels, rows = re.search(r"look at .* (\d+) suspects in (\d+) rows \(worth a look\)", shown).groups()
    with Review(home / "run") as review:
        assert review.queue.lists.startswith(f"{labels} suspects in {rows} rows, ")
        assert len(review.queue.rows(Filter("look"))) == int(rows)
    assert 0 < int(rows) <= int(labels)


def test_check_counts_what_there_is(home):
    shown = pencil("check", "mine.npz", cwd=home).stdout
    assert re.search(r"multi-label, 0\.\d of 3 classes per row on average\n +\d+ rows have no class\n", shown)
    assert "ready to train" in shown and "unknown" not in shown
    counts = [line.split() for line in shown.splitlines() if line.startswith(("sea", "sky", "sun"))]
    with np.load(home / "mine.npz") as arrays:
        assert counts == [
            [name, str(arrays["y"][:, k].sum()), str(arrays["y_test"][:, k].sum())] for k, name in enumerate(NAMES)
        ]


def test_check_of_soft_and_unknown_labels(home):
    refused = pencil("check", "soft.npz", cwd=home, code=2)
    assert "--set data.multilabel=true" in refused.stderr
    done = pencil("check", "soft.npz", "--set", "data.multilabel=true", cwd=home)
    assert "7 of 600 labels are unknown" in done.stdout and done.stderr == ""
    assert "2 rows have no known label" in done.stdout
    tree = json.loads(pencil("check", "soft.npz", "--set", "data.multilabel=true", "--json", cwd=home).stdout)
    assert tree["data"]["train"]["unknown_rows"] == 2 and tree["data"]["train"]["rows_without_class"] > 0


@pytest.mark.filterwarnings("default")  # the command line prints them
def test_train_warns_of_unknown_rows(home):
    words = ["train", "soft.npz", "--set", "data.multilabel=true", "--epochs", 3, "--set", "data.validation=0"]
    done = pencil(*words, "--out", "soft", cwd=home)
    assert done.stderr.count("warning: 2 of 200 training rows have no known labels and are ignored in training") == 1
    assert "verdict doubtful no rows were held out" in " ".join(done.stdout.split()) and "pencil audit" in done.stdout
    shown = pencil("labels", "soft", "--entries", cwd=home)
    rows = rows_of(shown.stdout)
    assert "'doubtful'" in shown.stderr and "pencil review soft" in shown.stderr and "pencil audit soft" in shown.stderr
    assert {row["changed"] for row in rows} == {"False"}  # nothing is proposed, so there is nothing to refuse
    assert "200 labels written" in pencil("labels", "soft", "--out", "soft.csv", cwd=home).stderr
    assert [row["given"] for row in rows[:3]] == ["", "", ""] and rows[21]["given"] == "0" and len(rows) == 600


def test_a_doubtful_run_that_changes_labels_is_refused_without_anyway(home, tmp_path):
    run = copytree(home / "run", tmp_path / "run")
    tree = json.loads((run / "summary.json").read_text())
    tree["verdict"] = {"level": "doubtful", "reasons": ["too few rows"]}
    (run / "summary.json").write_text(json.dumps(tree))
    refused = pencil("labels", "run", "--out", "l.csv", cwd=tmp_path, code=2).stderr
    assert "of its proposed labels are not reviewed" in refused and "--anyway" in refused
    assert "pencil audit run" in refused and not (tmp_path / "l.csv").exists()
    assert "200 labels written" in pencil("labels", "run", "--anyway", "--out", "l.csv", cwd=tmp_path).stderr


def test_evaluate_shows_every_score_at_a_threshold(home):
    shown = pencil("evaluate", "run", cwd=home).stdout
    for words in ("average precision", "F1 above 0.5", "mean of classes", "all labels (micro)", "sky"):
        assert words in shown
    scores = {
        cut: json.loads(pencil("evaluate", "run", "--threshold", cut, "--json", cwd=home).stdout) for cut in (0.01, 0.5)
    }
    assert scores[0.5] == json.loads(pencil("evaluate", "run", "--json", cwd=home).stdout)
    assert scores[0.5]["map"] == scores[0.01]["map"] > 0.98 and scores[0.5]["map_micro"] > 0.98
    assert scores[0.5]["f1"] > 0.85 > scores[0.01]["f1"] > 0.4
    assert scores[0.01]["threshold"] == 0.01 and set(scores[0.5]["class_f1"]) == set(scores[0.5]["per_class"])


def test_evaluate_takes_other_data_for_what_the_run_is(home):
    found = json.loads(pencil("evaluate", "run", "--data", "other.npz", "--json", cwd=home).stdout)
    assert found["class_rows"] == {"sea": 34, "sky": 33, "sun": 33} and "map" in found
    assert "labels are int64 of shape" in pencil("evaluate", "run", "--data", "hard.npz", cwd=home, code=2).stderr


def test_predict_names_all_classes_above_the_threshold(home):
    found = json.loads(pencil("predict", "run", "new.npz", "--json", cwd=home).stdout.splitlines()[0])
    for cut in (0.5, 0.01, 0.99):
        row = rows_of(pencil("predict", "run", "new.npz", "--threshold", cut, cwd=home).stdout)[0]
        present = [name for name in NAMES if found["probabilities"][name] > cut]
        assert row["class"] == ";".join(present)
        sure = min(p if name in present else 1 - p for name, p in found["probabilities"].items())
        assert float(row["confidence"]) == pytest.approx(sure, abs=1e-4)


def test_labels_row_by_row_and_entry_by_entry(home):
    rows = rows_of(pencil("labels", "run", "--order", "data", cwd=home).stdout)
    entries = rows_of(pencil("labels", "run", "--entries", cwd=home).stdout)
    assert len(rows) == 200 and len(entries) == 600 and [e["class"] for e in entries[:3]] == NAMES
    for number, row in enumerate(rows):
        mine = entries[3 * number : 3 * number + 3]
        assert {entry["key"] for entry in mine} == {row["key"]}
        for name, value in (("given", "1"), ("corrected", "1")):
            assert row[name] == ";".join(entry["class"] for entry in mine if entry[name] == value)
        assert int(row["changed"]) == sum(entry["changed"] == "True" for entry in mine)
    suspects = rows_of(pencil("labels", "run", "--entries", "--suspects", cwd=home).stdout)
    counts = json.loads((home / "run" / "summary.json").read_text())["labels"]
    assert 0 < len(suspects) == counts["suspects"] == sum(entry["suspect"] == "True" for entry in entries)
    scores = [float(entry["issue_score"]) for entry in suspects]
    assert (
        scores == sorted(scores, reverse=True)
        and len({entry["key"] for entry in suspects}) == counts["rows_to_look_at"]
    )
    listed = rows_of(pencil("labels", "run", "--suspects", cwd=home).stdout)
    assert len(listed) == counts["rows_to_look_at"]
    named = {(row["key"], name) for row in listed for name in row["suspects"].split(";")}
    assert named == {(entry["key"], entry["class"]) for entry in suspects}
    changed = rows_of(pencil("labels", "run", "--entries", "--only-changed", cwd=home).stdout)
    assert 0 < len(changed) == sum(int(row["changed"]) for row in rows)
    words = ["labels", "run", "--entries", "--format=parquet", "--out=e.parquet", "--anyway"]
    assert "600 labels" in pencil(*words, cwd=home).stderr
    assert pq.read_table(home / "e.parquet").num_rows == 600


def test_maps_of_the_attention_structure(home):
    images = np.random.default_rng(0).integers(0, 256, (40, 8, 8), dtype=np.uint8)
    np.savez(home / "images.npz", x=images, y=np.random.default_rng(1).integers(0, 2, (40, 3)), classes=NAMES)
    words = ["train", "images.npz", "--method", "cross_entropy", "--epochs", 1, "--out", "maps"]
    pencil(*words, "--set", "model.attention=true", "--set", "model.attention_width=4", cwd=home)
    plain = pencil("predict", "maps", "images.npz", cwd=home).stdout
    assert pencil("predict", "maps", "images.npz", "--maps", "where.npz", cwd=home).stdout == plain
    with np.load(home / "where.npz") as saved:
        assert saved["classes"].tolist() == NAMES and saved["keys"].tolist() == [str(i) for i in range(40)]
        assert saved["maps"].shape[:2] == (40, 3) and saved["maps"].ndim == 4
    assert "already exists" in pencil("predict", "maps", "images.npz", "--maps", "where.npz", cwd=home, code=2).stderr
    done = pencil("predict", "run", "new.npz", "--maps", "no.npz", cwd=home, code=2)
    assert "has no class maps" in done.stderr and not (home / "no.npz").exists()


def test_options_for_several_classes_are_refused_for_one(home):
    pencil("train", "hard.npz", "--method", "cross_entropy", "--epochs", 1, "--out", "hard", cwd=home)
    done = pencil("labels", "hard", "--entries", cwd=home, code=2)
    assert "are single-label; --entries only works with multi-label data" in done.stderr and done.stdout == ""
    for verb in (["evaluate", "hard", "--data", "hard.npz"], ["predict", "hard", "new.npz"]):
        assert (
            "--threshold only works with multi-label runs" in pencil(*verb, "--threshold", 0.3, cwd=home, code=2).stderr
        )
    assert "expected a probability" in pencil("evaluate", "run", "--threshold", 1.5, cwd=home, code=2).stderr
    other = pencil("evaluate", "run", "--data", "hard.npz", cwd=home, code=2).stderr
    assert other.endswith("a column for each class; pass multi-label data, as in training.\n")
    wrong = pencil("evaluate", "hard", "--data", "mine.npz", cwd=home, code=2)
    assert "label distribution at row" in wrong.stderr


def test_exported_cells_of_several_classes_are_read_again(tmp_path):
    """A table with `sea;sky` in it is trained on, and what `pencil labels` writes of it is the same data."""
    cells = ["sea", "sky", "sea;sky", "", "sun;sea", "sun"] * 5
    for number in range(len(cells)):
        paint(tmp_path / f"{number}.png", number)
    lines = [f"{number}.png,{cell}" for number, cell in enumerate(cells)]
    (tmp_path / "t.csv").write_text("\n".join(["path,label", *lines]))
    asked = pencil("check", "t.csv", cwd=tmp_path, code=2).stderr
    assert "label 'sea;sky' at row 4" in asked and "--set data.multilabel=true" in asked
    quick = ["--method", "pencil", "--epochs", "3", "--set", "data.multilabel=true"]
    pencil("train", "t.csv", *quick, "--out", "run", cwd=tmp_path)
    pencil("labels", "run", "--order", "data", "--anyway", "--out", "l.csv", cwd=tmp_path)
    columns = {"path": "key", "label": "given"}
    first = load(DataSettings(source=str(tmp_path / "t.csv"), multilabel=True)).train
    again = load(DataSettings(source=str(tmp_path / "l.csv"), multilabel=True, columns=columns)).train
    assert again.classes == first.classes == ("sea", "sky", "sun") and again.keys.tolist() == first.keys.tolist()
    assert again.given_labels.tolist() == first.given_labels.tolist()
