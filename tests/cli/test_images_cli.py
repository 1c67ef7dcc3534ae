"""The verbs on folders and tables of images, as a user meets them."""

import csv
import io
import json
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from commands import pencil
from conftest import paint, truncate
from PIL import Image
from readers import from_folder

from pencil import open_run
from pencil.export import select_labels
from pencil.labels.dynamics import TrainingDynamics
from pencil.runs.results import RowEvidence, build_label_table

pytestmark = pytest.mark.filterwarnings("ignore:auto (cannot|needs):UserWarning")  # tested in test_auto.py

QUICK = ["--method", "cross_entropy", "--epochs", "2", "--set", "training.batch_size=8"]


def shade(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8), (value,) * 3).save(path)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Dark and light pictures in a folder per class, a table of the same, and a run on each."""
    folder = tmp_path_factory.mktemp("images")
    lines = ["id,path,label"]
    for number in range(24):
        name = "light" if number % 2 else "dark"
        shade(folder / f"shades/{name}/{number:02}.png", 4 * number + 130 * (number % 2))
        lines.append(f"s{number},{name}/{number:02}.png,{name}")
    (folder / "table.csv").write_text("\n".join(lines))
    words = ["--set", "data.cache=none", "--set", "data.workers=1"]
    pencil("train", "shades", "--out", "runs/folder", *QUICK, *words, cwd=folder)
    table = ["--set", "data.root=shades", "--set", "data.columns.key=id"]
    pencil("train", "table.csv", "--out", "runs/table", *QUICK, *table, cwd=folder)
    return folder


def test_labels_of_both_runs_carry_their_keys(home):
    of_folder = list(csv.DictReader(io.StringIO(pencil("labels", "runs/folder", cwd=home).stdout)))
    assert len(of_folder) == 24 and all(row["key"].startswith(row["given"]) for row in of_folder)
    of_table = list(csv.DictReader(io.StringIO(pencil("labels", "runs/table", "--order", "data", cwd=home).stdout)))
    assert [row["key"] for row in of_table] == [f"s{number}" for number in range(24)]
    assert [row["given"] for row in of_table] == ["dark", "light"] * 12


def test_mirror_images_are_averaged_in(home):
    ramp = np.tile(np.linspace(0, 255, 8, dtype=np.uint8), (8, 1))  # not its own mirror image
    Image.fromarray(np.stack([ramp] * 3, axis=2)).save(home / "ramp.png")
    Image.fromarray(np.stack([ramp[:, ::-1]] * 3, axis=2)).save(home / "mirrored.png")
    once, twice = ([json.loads(line)["probabilities"] for line in pencil(
        "predict", "runs/folder", "ramp.png", "mirrored.png", "--json", *more, cwd=home).stdout.splitlines()]
        for more in ([], ["--mirror"]))  # fmt: skip
    logits = [np.log([probs["dark"], probs["light"]]) for probs in once]
    mean = np.exp(np.mean(logits, axis=0))
    for probs in twice:
        assert probs["dark"] == pytest.approx(mean[0] / mean.sum(), abs=1e-5)
    found = json.loads(pencil("evaluate", "runs/folder", "--data", "shades", "--mirror", "--json", cwd=home).stdout)
    assert found["mirror"] is True and "mirror images" in pencil(
        "evaluate", "runs/folder", "--data", "shades", "--mirror", cwd=home).stdout  # fmt: skip


def test_evaluate_on_a_folder_and_a_table(home):
    for run, data in (("folder", "shades"), ("table", "table.csv")):
        found = json.loads(pencil("evaluate", f"runs/{run}", "--data", data, "--json", cwd=home).stdout)
        assert found["rows"] == 24 and set(found["per_class"]) == {"dark", "light"}
    wrong = pencil("evaluate", "runs/folder", "--data", "table.csv", cwd=home, code=2)
    assert (
        "24 of 24 images cannot be read: 'dark/00.png' (row 0): no such file" in wrong.stderr
    )  # its paths start at another root


def test_predict_a_folder_a_table_and_one_image(home):
    for words, keys in (
        (["runs/folder", "shades"], {f"{('dark', 'light')[n % 2]}/{n:02}.png" for n in range(24)}),
        (["runs/table", "table.csv"], {f"s{number}" for number in range(24)}),
        (["runs/folder", "shades/dark/00.png"], {"00.png"}),
    ):
        rows = list(csv.DictReader(io.StringIO(pencil("predict", *words, cwd=home).stdout)))
        assert {row["key"] for row in rows} == keys and {row["class"] for row in rows} <= {"dark", "light"}
    (home / "nothing").mkdir(exist_ok=True)
    assert "contains no images" in pencil("predict", "runs/folder", "nothing", cwd=home, code=2).stderr
    assert "does not exist" in pencil("predict", "runs/folder", "nothing.png", cwd=home, code=2).stderr


@pytest.mark.filterwarnings("default")  # the command line prints them
def test_predict_answers_for_all_images_but_those_that_cannot_be_read(home, tmp_path):
    truncate(paint(tmp_path / "new/b.png"))
    shade(tmp_path / "new/a.png", 3)
    shade(tmp_path / "new/c.png", 250)
    run = home / "runs/folder"
    done = pencil("predict", run, "new", cwd=tmp_path, code=1)
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert [row["class"] for row in rows] == ["dark", "", "light"]
    assert [bool(row["error"]) for row in rows] == [False, True, False]
    assert rows[1]["confidence"] == "" and "truncated" in rows[1]["error"]
    assert done.stderr == "error: 1 of 3 inputs cannot be read; all others have predictions\n"
    lines = list(map(json.loads, pencil("predict", run, "new", "--json", cwd=tmp_path, code=1).stdout.splitlines()))
    assert lines[1]["class"] is None and "truncated" in lines[1]["error"] and lines[2]["class"] == "light"
    assert "error" not in lines[0]
    (tmp_path / "new/b.png").unlink()
    assert pencil("predict", run, "new", cwd=tmp_path).stdout.startswith("key,class,confidence\n")


def test_predict_answers_for_the_other_rows_of_a_table(home, tmp_path):
    shade(tmp_path / "a.png", 3)
    (tmp_path / "t.csv").write_text("path;note\na.png;x\n;y\nsub\\gone.png;z\n../out.png;u\n")
    done = pencil("predict", home / "runs/folder", "t.csv", cwd=tmp_path, code=1)
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert [row["class"] for row in rows] == ["dark", "", "", ""]
    assert [row["key"] for row in rows] == ["a.png", "", "sub/gone.png", "../out.png"]
    assert (
        rows[1]["error"] == "there is no path"
        and "no such file" in rows[2]["error"]
        and "leads out" in rows[3]["error"]
    )


def test_predict_says_why_nothing_can_be_read(home, tmp_path):
    (tmp_path / "a.png").write_text("no image")
    done = pencil("predict", home / "runs/folder", "a.png", cwd=tmp_path, code=2)
    assert "none of these 1 inputs can be read, the first because it is not an image" in done.stderr


@pytest.fixture
def messy(pets):
    """Something of everything that can be wrong."""
    shutil.copy(pets / "cat/1.png", pets / "dog/copy.png")
    paint(pets / "cat/wide.png", 3, (8, 16))
    truncate(pets / "dog/5.png")
    (pets / "cat/text.jpg").write_text("no image")
    return pets


@pytest.mark.filterwarnings("default")  # the command line prints them
def test_check_says_all_that_is_wrong_and_refuses(messy):
    (messy / "fish").mkdir()
    done = pencil("check", "pets", cwd=messy.parent, code=2)
    for words in (
        "21 rows, images of 8 x 8 to 8 x 16 pixels, 95% of them 8 x 8", "unreadable images: 2", "dog/5.png: ",
        "cat/text.jpg: it is not an image that Pillow can read", "groups of exact duplicates: 1",
        "groups of duplicates with different labels: 1", "cat/1.png (cat), dog/copy.png (dog)",
    ):  # fmt: skip
        assert words in done.stdout, done.stdout
    assert "ready to train" not in done.stdout
    assert "2 of 23 train images cannot be read: 'cat/text.jpg' (row " in done.stderr and "; 'dog/5.png'" in done.stderr
    assert "contains no images and is not used as a class: 'fish'" in done.stderr
    tree = json.loads(pencil("check", "pets", "--json", cwd=messy.parent, code=2).stdout)
    assert tree["ready"] is False and len(tree["problems"]) == 1
    assert tree["data"]["train"]["class_counts"] == {"cat": 11, "dog": 10}
    assert [fault["name"] for fault in tree["data"]["train"]["unreadable"]] == ["cat/text.jpg", "dog/5.png"]


@pytest.mark.filterwarnings("default")  # the command line prints them
def test_check_agrees_with_train(messy):
    """What it calls ready trains, with the rows it counted; what it refuses is refused."""
    skip = ["--set", "data.bad_rows=skip", "--set", "data.cache=memory"]
    done = pencil("check", "pets", *skip, *QUICK, cwd=messy.parent)
    assert "ready to train" in done.stdout and done.stderr == "" and "unreadable images: 2" in done.stdout
    plan = json.loads(pencil("check", "pets", *skip, *QUICK, "--json", cwd=messy.parent).stdout)
    assert plan["ready"] and sum(plan["rows"].values()) == 21
    summary = json.loads(pencil("train", "pets", *skip, *QUICK, "--json", cwd=messy.parent).stdout)
    assert summary["data"]["rows"] == plan["rows"] and summary["data"]["input_shape"] == plan["input_shape"]
    assert "cannot be read" in pencil("train", "pets", *QUICK, cwd=messy.parent, code=2).stderr


@pytest.mark.filterwarnings("default")
def test_images_that_cannot_be_read_have_no_label(messy):
    skip = ["--set", "data.bad_rows=skip"]
    done = pencil("train", "pets", *skip, "--out", "run", *QUICK, cwd=messy.parent)
    assert "unread      2 rows could not be read and have no label: " in done.stdout
    run = open_run(messy.parent / "run")
    assert sorted(run.summary.data.unread_keys) == ["cat/text.jpg", "dog/5.png"] and run.summary.data.unread == 2
    assert len(run.labels) == run.summary.labels.total == sum(run.summary.data.rows.values()) == 21
    assert not {"cat/text.jpg", "dog/5.png"} & set(run.labels["key"].to_pylist())
    page = (messy.parent / "run/report.html").read_text()
    assert "2 rows could not be read and have no label" in page and "cat/text.jpg" in page
    pencil("labels", "run", "--anyway", "--format", "imagefolder", "--out", "repaired", cwd=messy.parent)
    pencil("train", "repaired", "--out", "again", *QUICK, cwd=messy.parent)  # nothing in it is unreadable
    assert len(open_run(messy.parent / "again").labels) == 21


def test_unread_rows_of_earlier_runs_are_no_labels_either(messy):
    """Their label tables have such rows, with no mean margin."""
    splits = from_folder(messy)
    dynamics = TrainingDynamics(splits.train.given_labels, 2)
    dynamics.add(torch.arange(1, 23), torch.zeros(22, 2))
    evidence = RowEvidence(torch.full((23,), 0.1), dynamics.evidence())
    labels = build_label_table(splits, torch.full((23, 2), 0.5), evidence=(evidence, None))
    assert labels.unread.sum() == 1 and len(select_labels(labels)) == 22


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("labels", ["cat;dog", ""], ids=["several", "unlabelled"])
def test_other_rows_that_cannot_be_read_have_no_label(pets, labels):
    lines = [f"{name}/{number}.png,{name}" for number in range(10) for name in ("cat", "dog")]
    lines += [f"cat/more.png,{labels}", f"cat/0-again.png,{labels}"]
    paint(pets / "cat/0-again.png")
    (pets / "cat/more.png").write_bytes(b"")
    (pets / "t.csv").write_text("\n".join(["path,label", *lines]))
    words = ["--set", "data.bad_rows=skip", *(["--set", "data.multilabel=true"] if labels else [])]
    pencil("train", "pets/t.csv", *words, "--out", "run", *QUICK, cwd=pets.parent)
    run = open_run(pets.parent / "run")
    assert run.summary.data.unread_keys == ("cat/more.png",) and len(run.labels) == 21
    assert not np.isnan(run.labels.probs).any()


def test_check_names_what_is_odd(pets):
    for number in range(10):
        paint(pets / f"cat/{number}.png", number, (32, 32)), paint(pets / f"dog/{number}.png", 50 + number, (32, 32))
    shutil.copytree(pets, pets.parent / "held")
    for number in range(10):
        paint(pets.parent / f"held/cat/{number}.png", 200 + number, (32, 32))
    Image.open(pets / "cat/3.png").point(lambda value: 5 + 9 * value // 10).save(pets / "dog/3-again.png")
    Image.new("RGB", (32, 32), "navy").save(pets / "dog/navy.png")
    paint(pets / "owl/wide.png", 99, (16, 160))
    paint(pets.parent / "held/owl/0.png", 98, (32, 32))
    words = ["check", "pets", "--set", "data.test=held", *QUICK]
    shown = pencil(*words, cwd=pets.parent).stdout
    for part in (
        "groups of near-duplicates: 1\n              cat/3.png, dog/3-again.png\n",
        "groups of near-duplicates with different labels: 1\n              cat/3.png (cat), dog/3-again.png (dog)\n",
        "nearly blank images: 1\n              dog/navy.png\n",
        "images of extreme size or shape: 1\n              owl/wide.png: 16 x 160 pixels\n",
        "in more than one split\n            groups of exact duplicates: 10\n",
        "dog/0.png in train, dog/0.png in test\n", "and 5 more; --json lists them all",
        "fewer than 10 training rows: owl (1)\n", "time        about 1 s on this machine\n",
    ):  # fmt: skip
        assert part in shown, shown
    tree = json.loads(pencil(*words, "--json", cwd=pets.parent).stdout)
    assert tree["data"]["train"]["blank"] == ["dog/navy.png"] and tree["data"]["train"]["rare_classes"] == {"owl": 1}
    assert len(tree["overlap"]["duplicates"]) == 10 and tree["overlap"]["conflicting_duplicates"] == []
    assert 0 < tree["training_seconds"] < 60 and tree["not_timed"] is None


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.2, "1 s"), (42.4, "42 s"), (240, "4.0 min"), (1500, "25 min"), (9000, "2.5 h"), (300_000, "3.5 days")],
)
def test_times_have_a_fitting_unit(seconds, words):
    from pencil.terminal import duration

    assert duration(seconds) == words


def test_check_looks_at_every_split(pets):
    shutil.copytree(pets, pets.parent / "held")
    truncate(pets.parent / "held/cat/0.png")
    done = pencil("check", "pets", "--set", "data.test=held", cwd=pets.parent, code=2)
    assert "1 of 20 test images cannot be read: 'cat/0.png' (row 0): " in done.stderr
    assert "train       20 rows" in done.stdout and "test        19 rows" in done.stdout


@pytest.mark.filterwarnings("default")
def test_a_split_of_which_nothing_can_be_read(pets):
    shutil.copytree(pets, pets.parent / "all/train")
    truncate(paint(pets.parent / "all/val/cat/0.png"))
    skip = ["--set", "data.bad_rows=skip"]
    assert "1 of 1 validation images cannot" in pencil("check", "all", *skip, cwd=pets.parent, code=2).stderr
    assert "none of the 1 images can be read" in pencil("train", "all", *skip, cwd=pets.parent, code=2).stderr


def test_images_are_no_input_for_a_network_of_arrays(home):
    pencil("train", "digits", "--out", "runs/digits", *QUICK, "--set", "data.rows=40", cwd=home)
    done = pencil("predict", "runs/digits", "shades/dark/00.png", cwd=home, code=2)
    assert "00.png contains images; the run was trained on arrays of shape (1, 8, 8)" in done.stderr
    for words in (["evaluate", "runs/digits", "--data", "shades"], ["predict", "runs/digits", "shades"]):
        done = pencil(*words, cwd=home, code=2)
        assert done.stderr.endswith(
            "shades contains images; the run was trained on arrays of shape (1, 8, 8); pass data of that kind.\n"
        )


def test_a_table_is_no_data_for_a_network_of_images(home):
    (home / "cells.csv").write_text("age;size;label\n1;2,5;dark\n2;3,5;light\n")
    (home / "bare.csv").write_text("age;size\n1;2,5\n")
    np.savez(home / "cells.npz", x=np.ones((2, 4)), y=["dark", "grey"])
    for name, seen in (
        ("cells.csv", "the table columns 'age', 'size', 'label'"),
        ("bare.csv", "the table columns"),
        ("cells.npz", "vectors of 4 numbers"),
    ):
        for words in (["evaluate", "runs/folder", "--data", name], ["predict", "runs/folder", name]):
            done = pencil(*words, cwd=home, code=2)
            assert (
                f"error: {name} contains {seen}" in done.stderr
                and "; the run was trained on images; pass" in done.stderr
            )
            assert "bad row" not in done.stderr


def test_check_of_chosen_rows_speaks_of_those(messy):
    plan = json.loads(
        pencil(
            "check", "pets", "--set", "data.rows=12", "--set", "data.bad_rows=skip", "--json", cwd=messy.parent
        ).stdout
    )
    assert plan["data"]["train"]["rows"] == 12


def test_check_refuses_a_size_that_no_probe_would_meet(pets, monkeypatch):
    monkeypatch.setattr("pencil.data.inputs.images.PROBES", 2)
    paint(pets / "cat/5.png", size=(8, 9))
    done = pencil("check", "pets", "--set", "data.resize=none", cwd=pets.parent, code=2)
    assert "train images range from 8 x 8 to 8 x 9 pixels; expected one size" in done.stderr


def test_check_of_tables_and_arrays(home, tmp_path):
    shown = pencil("check", "table.csv", "--set", "data.root=shades", cwd=home).stdout
    assert "24 rows, images of 8 x 8 pixels" in shown and "ready to train" in shown
    x = np.zeros((12, 4), np.float32)
    x[:8] = np.arange(32).reshape(8, 4)
    np.savez(tmp_path / "mine.npz", x=x, y=["a", "b"] * 6, keys=[f"k{number}" for number in range(12)])
    shown = pencil("check", "mine.npz", cwd=tmp_path).stdout
    assert "12 rows of 4" in shown and "k8 (a), k9 (b), k10 (a), k11 (b)" in shown


def test_check_of_several_labels(tmp_path):
    for number in range(4):
        paint(tmp_path / f"{number}.png", number)
    table = pa.table(
        {"path": [f"{n}.png" for n in range(4)], "sea": [1.0, None, 1.0, 0.0], "sky": [0.0, 1.0, 1.0, 1.0]}
    )
    pq.write_table(table, tmp_path / "t.parquet")
    done = pencil("check", "t.parquet", "--set", "data.columns.indicators=['sea', 'sky']", cwd=tmp_path)
    assert "1 of 8 labels is unknown" in done.stdout and "ready to train" in done.stdout
    assert [line.split() for line in done.stdout.splitlines() if line.startswith("s")][:2] == [
        ["sea", "2"],
        ["sky", "3"],
    ]


def test_many_classes_are_shown_in_part(tmp_path):
    y = np.repeat(np.arange(40), np.arange(2, 42))
    np.savez(tmp_path / "many.npz", x=np.random.default_rng(0).normal(size=(len(y), 2)), y=[f"c{k:02}" for k in y])
    shown = pencil("check", "many.npz", cwd=tmp_path).stdout
    assert "40 classes; the largest and the smallest ones" in shown
    assert "c39" in shown and "c00" in shown and "c20" not in shown
