"""Labels that tie: a row without a given label, from the command line to the review page."""

import csv
import io
import json

import numpy as np
import pyarrow.parquet as pq
import pytest
from commands import pencil
from PIL import Image
from starlette.testclient import TestClient

import pencil as package
from pencil.decisions import read_reviews
from pencil.review.guard import Access
from pencil.review.server import build_app
from pencil.review.session import Review
from pencil.runs.label_table import LabelTable

pytestmark = pytest.mark.filterwarnings("ignore:auto (cannot|needs):UserWarning")  # tested in test_auto.py

NAMES = ("dark", "light", "middle")
TIED = {"s3", "s17", "s30"}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Pictures of three shades with the vote fractions of three annotators, who tie for three of the rows."""
    folder = tmp_path_factory.mktemp("annotators")
    lines = [f"id,path,{','.join(NAMES)}"]
    for number in range(60):
        name = ("dark", "middle", "light")[number % 3]
        value = {"dark": 20, "middle": 120, "light": 220}[name] + number % 7
        Image.new("RGB", (8, 8), (value,) * 3).save(folder / f"{number:02}.png")
        votes = list(NAMES) if f"s{number}" in TIED else [name, name, "dark" if number % 5 else name]
        lines.append(f"s{number},{number:02}.png,{','.join(str(votes.count(one) / 3) for one in NAMES)}")
    (folder / "votes.csv").write_text("\n".join(lines))
    pencil(
        "train", "votes.csv", "--out", "run", "--method", "pencil", "--epochs", 12, "--set", "training.batch_size=8",
        "--set", "data.columns.key=id", "--set", 'data.columns.probabilities=["dark", "light", "middle"]', cwd=folder,
    )  # fmt: skip
    return folder


def lines_of(home, *words):
    return {row["key"]: row for row in csv.DictReader(io.StringIO(pencil("labels", "run", *words, cwd=home).stdout))}


def test_the_table_has_no_given_label_where_annotators_tie(home):
    labels = package.open_run(home / "run").labels
    rows = {row["key"]: row for row in labels.to_pylist()}
    assert {key for key, row in rows.items() if row["given"] is None} == TIED
    for key in TIED:
        row = rows[key]
        assert row["candidates"] == list(NAMES) and row["corrected"] in NAMES
        assert not row["changed"] and row["issue_score"] == 0 and np.isnan(row["given_probability"])
    assert all(row["candidates"] == [] and row["given"] in NAMES for key, row in rows.items() if key not in TIED)
    at = labels.keys.to_pylist().index("s3")
    assert labels.given_codes[at] == -1 and labels.given_labels[at] is None
    again = LabelTable.read(home / "run/labels.parquet", ["corrected"])
    assert again.given_codes.tolist() == labels.given_codes.tolist()
    changed = json.loads((home / "run/summary.json").read_text())["labels"]["changed"]
    assert changed == sum(row["changed"] for row in rows.values() if row["split"] == "train")


def test_exports_leave_the_cell_empty(home):
    rows = lines_of(home)
    assert {key for key, row in rows.items() if row["given"] == ""} == TIED
    assert rows["s3"]["given_probability"] == "" and rows["s3"]["candidates"] == "dark;light;middle"
    assert not TIED & set(lines_of(home, "--only-changed"))
    shown = pencil("labels", "run", "--format", "jsonl", cwd=home).stdout.splitlines()
    trees = {tree["key"]: tree for tree in map(json.loads, shown)}
    assert trees["s3"]["given"] is None and trees["s3"]["given_probability"] is None
    issues = lines_of(home, "--format", "cleanlab")
    assert issues["s3"]["given_label"] == "" == issues["s3"]["label_quality"]
    assert issues["s3"]["is_label_issue"] == "False" and issues["s3"]["predicted_label"] in NAMES
    pencil("labels", "run", "--anyway", "--format", "cleanlab", "--out", "issues.npz", cwd=home)
    with np.load(home / "issues.npz") as arrays:
        assert {key for key, code in zip(arrays["keys"], arrays["given_label"], strict=True) if code < 0} == TIED
    pencil("labels", "run", "--anyway", "--format", "parquet", "--out", "labels.parquet", cwd=home)
    assert pq.read_table(home / "labels.parquet")["given"].null_count == 3


def test_a_hugging_face_dataset_has_none(home):
    datasets = pytest.importorskip("datasets")
    pencil("labels", "run", "--anyway", "--format", "huggingface", "--out", "hf", cwd=home)
    found = datasets.load_from_disk(str(home / "hf"))
    assert {row["key"] for row in found if row["given"] is None} == TIED


def test_the_report_says_it(home):
    page = (home / "run/report.html").read_text()
    count = int((package.open_run(home / "run").labels.given_codes < 0).sum())
    words = "One row has" if count == 1 else f"{count} rows have"
    assert f"{words} no given label, because annotators disagree" in page


def test_the_page_shows_the_candidates_and_a_person_decides(home):
    access = Access(8123)
    with Review(home / "run") as review:
        browser = TestClient(build_app(review, access), base_url="http://127.0.0.1:8123")
        browser.get(f"/?token={access.token}")
        headers = {"origin": "http://127.0.0.1:8123", "x-csrf-token": browser.get("/api/begin").json()["csrf"]}
        rows = browser.get("/api/page?show=undecided").json()["rows"]
        assert {row["key"] for row in rows} == TIED
        assert all(row["given"] is None and row["candidates"] == list(NAMES) for row in rows)
        for shown in ("changed", "kept"):
            assert not TIED & {row["key"] for row in browser.get(f"/api/page?show={shown}&count=60").json()["rows"]}
        at = next(row["row"] for row in rows if row["key"] == "s3")
        refused = browser.post("/api/decide", json={"row": at, "decision": "reject", "label": []}, headers=headers)
        assert refused.status_code == 400 and "no given label to return to" in refused.text
        browser.post("/api/decide", json={"row": at, "decision": "other", "label": [0]}, headers=headers)
    assert [(one.key, one.label, one.given) for one in read_reviews(home / "run/reviews.jsonl")] == [
        ("s3", "dark", None)
    ]
    reviewed = lines_of(home, "--reviewed")["s3"]
    assert reviewed["corrected"] == "dark" and reviewed["given"] == "" and reviewed["changed"] == "False"
    assert float(reviewed["issue_score"]) == 0 and reviewed["given_probability"] == ""


def test_an_audit_counts_no_missing_label_as_wrong(home):
    pencil("audit", "run", "--rows", 60, "--sheet", "sheet.csv", cwd=home)
    with (home / "sheet.csv").open() as stream:
        lines = list(csv.DictReader(stream))
    given = {row["key"]: row["given"] for row in lines_of(home).values()}
    with (home / "sheet.csv").open("w") as stream:
        writer = csv.DictWriter(stream, lines[0].keys())
        writer.writeheader()
        writer.writerows({**line, "label": given[line["key"]] or "light"} for line in lines)
    pencil("audit", "run", "--answers", "sheet.csv", cwd=home)
    audit = json.loads((home / "run/summary.json").read_text())["audit"]
    assert audit["rows"] == 60 and audit["given_wrong"]["estimate"] == pytest.approx(0, abs=1e-9)
