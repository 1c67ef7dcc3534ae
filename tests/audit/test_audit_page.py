"""The audit page tells nobody which label was given: not by names, numbers, order, headers or errors."""

import json

import numpy as np
import pytest
from audit_runs import make_run
from starlette.testclient import TestClient

from pencil.auditing.blind import Blind
from pencil.auditing.blind_page import NO_PICTURE, build_app
from pencil.auditing.sample import open_sample
from pencil.decisions import read_reviews
from pencil.review.guard import HEADERS, Access
from pencil.review.inputs import NotShown
from pencil.review.session import RefusedError

PORT = 8124
HOME = f"http://127.0.0.1:{PORT}"
MANY = tuple(f"kind {number:02d}" for number in range(30))


@pytest.fixture
def run(tmp_path):
    return tmp_path / "run"


@pytest.fixture
def truth(run):
    return make_run(run)


@pytest.fixture
def blind(run, truth):
    with Blind(run, open_sample(run)) as opened:
        yield opened


class Browser(TestClient):
    def __init__(self, blind, enter=True):
        self.access = Access(PORT)
        super().__init__(build_app(blind, self.access), base_url=HOME)
        self.csrf = ""
        if enter:
            assert self.get(f"/?token={self.access.token}").status_code == 200
            self.csrf = self.get("/api/begin").json()["csrf"]

    def answer(self, at, kind, headers=None, **more):
        sent = {"origin": HOME, "x-csrf-token": self.csrf} | (headers or {})
        return self.post("/api/answer", json={"at": at, "kind": kind, **more}, headers=sent)


def test_a_session(blind, run, truth):
    browser = Browser(blind)
    first = browser.get("/api/row").json()
    assert {name: first[name] for name in ("at", "answered", "rows", "done", "kind", "answer")} == {
        "at": 0, "answered": 0, "rows": 100, "done": False, "kind": None, "answer": None,
    }  # fmt: skip
    code = int(truth[blind.sample.rows[0]])
    assert browser.answer(0, "class", **{"class": code}).json()["at"] == 1
    assert browser.answer(1, "skip").json()["answered"] == 2
    assert browser.answer(2, "none").json()["at"] == 3
    seen = browser.get("/api/row?at=0").json()
    assert (seen["kind"], seen["answer"]) == ("class", blind.sample.labels.classes[code])
    assert browser.get("/api/row?at=50").json()["at"] == 3  # no row is passed over
    undone = browser.answer(1, "undo").json()
    assert (undone["at"], undone["kind"], undone["answered"]) == (1, None, 2)
    assert browser.answer(1, "undo").status_code == 400
    kinds = {decision.key: decision.decision for decision in read_reviews(run / "reviews.jsonl")}
    assert list(kinds.values())[1:] == ["none"] and next(iter(kinds.values())) in ("accept", "reject", "other")
    assert all(decision.audit for decision in read_reviews(run / "reviews.jsonl"))


def test_the_last_answer_ends_it(blind):
    for at in range(100):
        last = blind.answer(at, "class", 0)
    assert last["done"] and last["at"] == 100 and blind.row(7)["at"] == 7


def everything(browser, rows):
    """All that the page can get, with headers; pictures as bytes."""
    paths = [
        "/",
        "/static/audit.js",
        "/static/common.js",
        "/static/audit.css",
        "/api/begin",
        "/api/row",
        "/api/pictures",
    ]
    paths += [f"/api/row?at={at}" for at in range(3)]
    paths += [f"/{kind}/{at}" for at in range(rows) for kind in ("picture", "numbers")]
    return {path: browser.get(path) for path in paths}


def test_no_response_depends_on_the_labels(run, tmp_path):
    """The same data with every label shifted: the page gets the same bytes, whatever it asks for."""
    pages = []
    for name in ("one", "other"):
        make_run(tmp_path / name)
        if name == "other":
            shift_labels(tmp_path / name)
        (tmp_path / name).rename(run)
        with Blind(run, open_sample(run)) as blind:
            blind.pictures.wait()
            browser = Browser(blind)
            pages.append({
                path: (found.status_code, sorted(found.headers.items()), found.content.replace(
                    browser.csrf.encode(), b""))
                for path, found in everything(browser, 100).items()
            })  # fmt: skip
            rows = blind.sample.rows.tolist()
        (run).rename(tmp_path / f"{name}-done")
        pages[-1]["rows"] = rows
    assert pages[0] == pages[1] and pages[0]["/picture/0"][0] == 200


def shift_labels(run):
    """Rename the classes of all labels in a circle: every given and corrected label is another one."""
    import pyarrow as pa

    from pencil.runs.directory import RunReader
    from pencil.runs.label_table import LabelTable

    labels = RunReader(run).labels
    table = labels.table
    for name, codes in (("given", labels.given_codes), ("corrected", labels.corrected_codes)):
        shifted = pa.DictionaryArray.from_arrays(pa.array((codes + 1) % 3), pa.array(labels.classes))
        table = table.set_column(table.column_names.index(name), name, shifted)
    moved = np.roll(labels.probs, 1, axis=1)
    column = pa.FixedSizeListArray.from_arrays(pa.array(moved.ravel()), type=table["distribution"].type)
    LabelTable(table.set_column(table.column_names.index("distribution"), "distribution", column)).write(
        run / "labels.parquet"
    )


def test_keys_rows_and_confidences_are_not_told(run):
    """Keys are often paths with the class in them, and rows are often sorted by class."""
    keys = [f"{['cat', 'dog', 'bird'][number % 3]}/{number:04d}-secret.jpg" for number in range(400)]
    make_run(run, keys=keys)
    with Blind(run, open_sample(run)) as blind:
        blind.pictures.wait()
        for found in everything(Browser(blind), 100).values():
            said = found.text + str(dict(found.headers))
            assert "secret" not in said and "confidence" not in said.replace("no key, label or confidence", "")
        told = json.loads(Browser(blind).get("/api/row").text)
        assert set(told) == {"at", "answered", "rows", "done", "offered", "kind", "answer"}


def test_an_error_does_not_name_the_file(blind, monkeypatch):
    blind.pictures.wait()
    monkeypatch.setattr(blind.pictures, "picture", lambda where: (_ for _ in ()).throw(NotShown("cat/7.jpg is broken")))
    found = Browser(blind).get("/picture/0")
    assert found.status_code == 404 and found.text == NO_PICTURE


def test_data_that_is_gone_is_said_without_names(run, truth):
    run.with_suffix(".npz").unlink()
    with Blind(run, open_sample(run)) as blind:
        blind.pictures.wait()
        said = Browser(blind).get("/api/pictures").json()
    assert said["kind"] == "none" and "--sheet" in said["reason"] and "npz" not in said["reason"]


def test_few_classes_are_all_offered_in_random_order(blind):
    orders = [tuple(blind.offered(at)) for at in range(100)]
    assert all(sorted(order) == [0, 1, 2] for order in orders) and len(set(orders)) == 6
    assert orders == [tuple(blind.offered(at)) for at in range(100)]
    labels, rows = blind.sample.labels, blind.sample.rows
    places = [order.index(int(labels.given_codes[row])) for order, row in zip(orders, rows, strict=True)]
    assert np.bincount(places, minlength=3).min() >= 20


def test_of_many_classes_as_many_are_offered_for_every_row(run):
    make_run(run, classes=MANY, rows=900)
    with Blind(run, open_sample(run, 300)) as blind:
        labels, places = blind.sample.labels, {"given": [], "corrected": []}
        for at, row in enumerate(blind.sample.rows):
            offered = blind.offered(at)
            assert len(set(offered)) == 8
            places["given"].append(offered.index(int(labels.given_codes[row])))
            places["corrected"].append(offered.index(int(labels.corrected_codes[row])))
        for found in places.values():
            assert np.abs(np.bincount(found, minlength=8) - 300 / 8).max() < 25


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b'{"at": 0}', b'{"at": 100, "kind": "skip"}', b'{"at": -1, "kind": "skip"}',
     b'{"at": true, "kind": "skip"}', b'{"at": "cat/1.jpg", "kind": "skip"}', b'{"at": 0, "kind": "accept"}',
     b'{"at": 0, "kind": "class"}', b'{"at": 0, "kind": "class", "class": 3}',
     b'{"at": 0, "kind": "class", "class": -1}', b'{"at": 0, "kind": "class", "class": "cat"}',
     b'{"at": 0, "kind": "class", "class": true}', b'{"at": 0, "kind": "skip", "class": 1}',
     b'{"at": 0, "kind": "undo"}', b'{"kind": "undo"}'],
)  # fmt: skip
def test_odd_answers_are_refused_and_write_nothing(blind, run, body):
    browser = Browser(blind)
    done = browser.post("/api/answer", content=body, headers={"origin": HOME, "x-csrf-token": browser.csrf})
    assert done.status_code in (400, 404) and (run / "reviews.jsonl").read_bytes() == b""


def test_the_guard_of_the_review_stands_before_it(blind, run):
    stranger = Browser(blind, enter=False)
    for path in ("/", "/api/row", "/picture/0", "/static/audit.js"):
        assert stranger.get(path).status_code == 403
    browser = Browser(blind)
    assert browser.answer(0, "skip", headers={"origin": "https://evil.example"}).status_code == 403
    assert browser.answer(0, "skip", headers={"x-csrf-token": "guess"}).status_code == 403
    assert browser.get("/api/row", headers={"host": "evil.example"}).status_code == 421
    assert (run / "reviews.jsonl").read_bytes() == b""
    assert HEADERS.items() <= dict(browser.get("/").headers).items()
    for path in ("/api/page", "/api/decide", "/static/app.js", "/reviews.jsonl", "/picture/100", "/picture/cat.jpg"):
        assert browser.get(path).status_code == 404


def test_the_page_puts_text_in_as_text_only():
    from importlib import resources

    files = (("auditing", "audit.js"), ("review", "common.js"))
    script = "".join((resources.files(f"pencil.{package}") / "static" / name).read_text() for package, name in files)
    assert not [
        word for word in ("innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval(") if word in script
    ]


def test_a_withdrawn_answer_that_was_reviewed_later_is_refused(blind, run):
    from pencil.decisions import Decision, now

    blind.answer(0, "class", 0)
    key, split = blind.sample.where(0)
    blind.history.add(Decision(key, split, "skip", None, "cat", "cat", now()))
    with pytest.raises(RefusedError):
        blind.undo(0)
