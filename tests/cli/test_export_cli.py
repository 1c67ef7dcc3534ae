"""What leaves a run by the command line: labels in every format, the network, predictions on files from all over."""

import csv
import io
import json
import re
import shlex

import numpy as np
import pytest
from commands import pencil
from PIL import Image

QUICK = ["--method", "cross_entropy", "--epochs", "12", "--set", "training.batch_size=8", "--set", "data.validation=0"]
WRONG = (2, 5, 9)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A table of twenty pictures with notes, black cats and white dogs, and a run on it that mends three labels."""
    folder = tmp_path_factory.mktemp("leaving")
    lines = ["id,path,label,note"]
    for number in range(20):
        path, is_dog = f"pets/{number % 4}/{number // 4}.png", number % 2
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (150 + 5 * number if is_dog else 5 * number,) * 3).save(folder / path)
        given = ("cat", "a/dog")[not is_dog if number in WRONG else is_dog]
        lines.append(f'p{number},{path},{given},"{number:03}, x"')
    (folder / "table.csv").write_text("\n".join(lines))
    pencil("train", "table.csv", "--out", "run", *QUICK, "--set", "data.columns.key=id", cwd=folder)
    return folder


def lines_of(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_labels_with_the_columns_of_their_table(home):
    rows = lines_of(pencil("labels", "run", "--with-columns", cwd=home).stdout)  # as they came
    assert [row["id"] for row in rows] == [row["key"] for row in rows] == [f"p{number}" for number in range(20)]
    assert [row["note"] for row in rows] == [f"{number:03}, x" for number in range(20)]
    plain = lines_of(pencil("labels", "run", "--only-changed", cwd=home).stdout)
    words = ["--with-columns", "--only-changed", "--order", "issues"]
    found = lines_of(pencil("labels", "run", *words, cwd=home).stdout)
    assert [{name: row[name] for name in plain[0]} for row in found] == plain and {row["id"] for row in found} == {
        f"p{i}" for i in WRONG
    }
    assert [row["note"] for row in found] == [f"{int(row['key'][1:]):03}, x" for row in plain]


def test_suspects_are_listed_with_the_most_probable_issue_first(home):
    rows = lines_of(pencil("labels", "run", cwd=home).stdout)
    expected = [row for row in rows if row["suspect"] == "True"]
    assert lines_of(pencil("labels", "run", "--suspects", cwd=home).stdout) == expected
    assert {f"p{i}" for i in WRONG} <= {row["key"] for row in expected} and len(expected) < len(rows)
    joined = lines_of(pencil("labels", "run", "--suspects", "--with-columns", cwd=home).stdout)
    assert {row["id"] for row in joined} == {row["key"] for row in expected}


@pytest.mark.filterwarnings("ignore:.*(they are|it is) skipped")
def test_a_table_comes_back_with_the_rows_that_the_run_left_out(tmp_path):
    lines = [f"p{i},{i / 10},{i % 2},{'xyz'[i % 2]},{'test' if i % 5 == 0 else 'train'}" for i in range(30)]
    lines[7] = "p7,0.7,1,?,train"  # a label that is none of the classes
    (tmp_path / "table.csv").write_text("\n".join(["id,a,b,label,split", *lines]))
    roles = ("key=id", "split=split", "numbers=['a', 'b']")
    sets = [*(f"data.columns.{role}" for role in roles), "data.classes=['x', 'y']", "data.bad_rows=skip"]
    words = [word for value in sets for word in ("--set", value)]
    pencil("train", "table.csv", "--out", "run", *QUICK, *words, cwd=tmp_path)
    done = pencil("labels", "run", "--with-columns", "--anyway", "--out", "repaired.csv", cwd=tmp_path)
    assert (
        "30 rows written to repaired.csv" in done.stderr and "7 of the 30 rows are not part of the run" in done.stderr
    )
    written = (tmp_path / "repaired.csv").read_text()
    rows = lines_of(written)
    assert [",".join(list(row.values())[:5]) for row in rows] == lines
    assert [row["id"] for row in rows if row["corrected"] == ""] == ["p0", "p5", "p7", "p10", "p15", "p20", "p25"]
    done = pencil("labels", "run", "--with-columns", cwd=tmp_path)
    assert done.stdout == written and "7 of the 30 rows are not part of the run" in done.stderr
    done = pencil("labels", "run", "--with-columns", "--min-confidence", "0.01", cwd=tmp_path)
    assert len(lines_of(done.stdout)) == 23 and "not part of the run" not in done.stderr


def test_labels_for_cleanlab_and_datasets(home):
    rows = lines_of(pencil("labels", "run", "--format", "cleanlab", cwd=home).stdout)
    changed = {row["key"] for row in rows if row["is_label_issue"] == "True"}
    assert changed == {row["key"] for row in lines_of(pencil("labels", "run", "--only-changed", cwd=home).stdout)}
    sure = ["--min-confidence", "0.6", "--only-changed"]
    done = pencil("labels", "run", "--format", "cleanlab", *sure, "--anyway", "--out", "sure.npz", cwd=home)
    with np.load(home / "sure.npz") as saved:
        assert f"{len(saved['keys'])} labels written to sure.npz" in done.stderr and len(saved["keys"])
        assert saved["is_label_issue"].all() and (saved["pred_probs"].max(axis=1) >= 0.6).all()
        assert saved["classes"].tolist() == ["a/dog", "cat"]
    pencil("labels", "run", "--format", "huggingface", "--anyway", "--out", "hf", cwd=home)
    assert (home / "hf/dataset_info.json").is_file()


def test_images_sorted_into_folders(home):
    done = pencil("labels", "run", "--format", "imagefolder", "--anyway", "--out", "sorted", cwd=home)
    assert (
        "class 'a/dog' is in the folder 'a_dog'" in done.stderr
        and "20 images written to sorted (20 hard links)" in done.stderr
    )
    for row in lines_of(pencil("labels", "run", "--with-columns", cwd=home).stdout):
        folder = home / "sorted" / row["corrected"].replace("/", "_")
        assert any(link.samefile(home / row["path"]) for link in folder.iterdir())
    words = ["--only-changed", "--copy", "--anyway", "--out", "copied"]
    done = pencil("labels", "run", "--format", "imagefolder", *words, cwd=home)
    changed = lines_of(pencil("labels", "run", "--only-changed", cwd=home).stdout)
    assert f"images written to copied ({len(changed)} cop" in done.stderr
    assert [path.lstat().st_nlink for path in (home / "copied").glob("*/*")] == [1] * len(changed)


def test_a_folder_of_symbolic_links_says_how_to_train_on_it(home):
    words = ["labels", "run", "--format", "imagefolder", "--anyway", "--symlinks", "--out", "my links"]
    said = pencil(*words, cwd=home).stderr
    root = (home / "pets").resolve()
    command = re.search(r"`pencil (train 'my links' --set data.root=(\S+))`", said)
    assert command and command[2] == str(root)
    pencil("check", *shlex.split(command[1])[1:], cwd=home)
    refused = pencil("check", "my links", cwd=home, code=2)
    for said in (refused.stderr, refused.stdout):
        assert said.count("it is behind a link") == 1 and said.count("the same") == 4
        assert f"allow it with --set data.root={home.resolve()}" in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--format", "xml"],
            "--format is 'xml'; expected csv, jsonl, parquet, table, cleanlab, huggingface, imagefolder",
        ),
        (["--format", "imagefolder"], "name a new one with --out FOLDER"),
        (["--format", "huggingface", "--anyway", "--out", "run"], "it already exists; name a new folder"),
        (["--format", "cleanlab", "--with-columns"], "--with-columns only works with the formats csv, jsonl, parquet"),
        (["--entries", "--with-columns"], "remove one of them"),
        (["--copy"], "--copy only works with --format imagefolder"),
        (["--symlinks"], "--symlinks only works with --format imagefolder"),
        (
            ["--format", "imagefolder", "--out", "o", "--copy", "--symlinks"],
            "--copy and --symlinks are mutually exclusive",
        ),
        (["--format", "table"], "name it with --out"),
        (["--format", "table", "--out", "o.csv", "--only-changed"], "remove --only-changed"),
        (["--format", "table", "--out", "o.csv", "--suspects"], "remove --suspects"),
        (["--only-changed", "--suspects"], "--suspects includes every row of --only-changed"),
        (["--diagnostics", "d.csv"], "--diagnostics only works with --format table"),
        (["--format", "table", "--out", "o.csv", "--diagnostics", "d.txt"], "expected a .csv, .jsonl or .parquet file"),
        (["--format", "table", "--out", "o.csv", "--diagnostics", "o.csv", "--anyway"], "o.csv: it already exists"),
        (["--format", "csv", "--json"], "--json means --format jsonl, but --format is 'csv'"),
        (["--min-confidence", "90"], "--min-confidence is 90; expected a probability from 0 to 1"),
        (["--min-confidence", "-0.1"], "--min-confidence is -0.1; expected"),
        (["--min-confidence", "nan"], "--min-confidence is nan; expected"),
    ],
)
def test_what_does_not_go_together(home, words, message):
    assert message in pencil("labels", "run", *words, cwd=home, code=2).stderr


def test_predict_files_and_folders(home):
    rows = lines_of(
        pencil("predict", "run", "pets/0/0.png", "pets/1", home / "pets/2", "pets/1/0.png", cwd=home).stdout
    )
    expected = [
        "pets/0/0.png",
        *(f"pets/1/{n}.png" for n in range(5)),
        *(str(home / f"pets/2/{n}.png") for n in range(5)),
    ]
    assert [row["key"] for row in rows] == expected
    (alone,) = lines_of(pencil("predict", "run", "pets/1/3.png", cwd=home).stdout)
    assert alone == {**rows[4], "key": "3.png"}
    for word, message in (
        ("table.csv", "table.csv is not an image"),
        ("gone.png", "gone.png does not exist; expected an image"),
        ("run", "run contains no images"),
    ):
        assert message in pencil("predict", "run", "pets/1/3.png", word, cwd=home, code=2).stderr


def test_export(home):
    words = ["export", "run", "--format", "safetensors", "--epoch", "best"]
    done = pencil(*words, "--out", "net.safetensors", cwd=home)
    assert "takes float32 of shape (batch, 3, 8, 8), returns logits for 2 classes" in done.stdout
    assert "on 20 inputs of the run's data" in done.stdout
    found = json.loads(pencil(*words, "--out", "again.safetensors", "--json", cwd=home).stdout)
    assert found["largest_difference"] < 1e-5 and found["metadata"]["classes"] == ["a/dog", "cat"]
    assert "already exists" in pencil(*words, "--out", "net.safetensors", cwd=home, code=2).stderr


def test_reviewed_labels_are_merged(home):
    first = json.loads(pencil("labels", "run", "--format", "jsonl", "--order", "data", cwd=home).stdout.splitlines()[0])
    other = "cat" if first["corrected"] == "a/dog" else "a/dog"
    decision = {"key": first["key"], "split": first["split"], "decision": "other", "label": other}
    decision |= {"given": first["given"], "corrected": first["corrected"], "time": "2026-01-01T00:00:00+00:00"}
    (home / "run" / "reviews.jsonl").write_text(json.dumps(decision) + "\n")
    merged = pencil("labels", "run", "--reviewed", "--format", "jsonl", "--order", "data", cwd=home).stdout.splitlines()
    (home / "run" / "reviews.jsonl").unlink()
    line = json.loads(merged[0])
    assert line["corrected"] == other and line["reviewed"] and line["confidence"] == 1.0
    assert not json.loads(merged[1])["reviewed"]


def test_a_removed_image_is_in_no_folder(home):
    row = json.loads(pencil("labels", "run", "--format", "jsonl", "--order", "data", cwd=home).stdout.splitlines()[0])
    decision = {name: row[name] for name in ("key", "split", "given", "corrected")} | {
        "decision": "none",
        "label": None,
    }
    (home / "run" / "reviews.jsonl").write_text(json.dumps(decision) + "\n")
    words = ["labels", "run", "--reviewed", "--anyway", "--format", "imagefolder", "--out", "without"]
    said = pencil(*words, cwd=home).stderr
    (home / "run" / "reviews.jsonl").unlink()
    assert "19 images written" in said and "1 row left out, because a person removed it" in said
    assert len(list((home / "without").rglob("*.png"))) == 19


def test_labels_of_a_run_that_is_not_reliable_are_written_only_on_request(home):
    refused = pencil("labels", "run", "--out", "doubtful.csv", cwd=home, code=2)
    assert "the verdict of this run is 'do" in refused.stderr and "--anyway" in refused.stderr
    assert not (home / "doubtful.csv").exists()
    assert "warning: the verdict" in pencil("labels", "run", cwd=home).stderr
    assert "warning: the verdict" in pencil("labels", "run", "--suspects", "--out", "look.csv", cwd=home).stderr
    assert (home / "look.csv").read_text().startswith("key,")
    pencil("labels", "run", "--suspects", "--format", "imagefolder", "--out", "look", cwd=home, code=2)
    pencil("labels", "run", "--anyway", "--out", "doubtful.csv", cwd=home)
    rows = lines_of((home / "doubtful.csv").read_text())
    scores = [float(row["issue_score"]) for row in rows]
    assert scores == sorted(scores, reverse=True) and 0 <= min(scores) <= max(scores) <= 1
