"""The review's server as a browser, a stranger and a power cut meet it."""

import io
import json
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from http.cookiejar import CookieJar

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from review_runs import HOSTILE, many_classes_run, one_class_run, serving
from starlette.testclient import TestClient

from pencil.cli.review import review as command
from pencil.errors import PencilWarning, RunError
from pencil.review import read_reviews
from pencil.review.guard import HEADERS, Access
from pencil.review.queue import Filter
from pencil.review.server import PAGE_ROWS, build_app
from pencil.review.session import SAMPLES, Review

PORT = 8123
HOME = f"http://127.0.0.1:{PORT}"


class Browser(TestClient):
    """A tab of a person's browser: came in by the address, knows the page's token."""

    def __init__(self, review, access, enter=True):
        super().__init__(build_app(review, access), base_url=HOME)
        self.access = access
        self.csrf = ""
        if enter:
            assert self.get(f"/?token={access.token}").status_code == 200
            self.csrf = self.get("/api/begin").json()["csrf"]

    def decide(self, row, decision, label=(), headers=None, query=""):
        sent = {"origin": HOME, "x-csrf-token": self.csrf} | (headers or {})
        body = {"decision": decision, "label": list(label)} | ({} if row is None else {"row": row})
        return self.post(f"/api/decide{query}", json=body, headers={k: v for k, v in sent.items() if v is not None})

    def accept(self, query="", **body):
        headers = {"origin": HOME, "x-csrf-token": self.csrf}
        return self.post(f"/api/accept{query}", json=body, headers=headers)

    def rows(self, query=""):
        return self.get(f"/api/page{query}").json()["rows"]


@pytest.fixture
def run(tmp_path):
    return one_class_run(tmp_path / "run")


@pytest.fixture
def review(run):
    with Review(run) as opened:
        yield opened


@pytest.fixture
def access():
    return Access(PORT)


@pytest.fixture
def browser(review, access):
    return Browser(review, access)


def test_a_session(browser, run):
    first = browser.rows()[0]
    assert (first["row"], first["key"], first["given"], first["corrected"]) == (9, "9", "cat", "dog")
    made = browser.decide(9, "accept").json()
    assert made["made"]["decision"] == "accept" and made["made"]["label"] == "dog" and made["decided"] == 1
    assert browser.decide(6, "reject").json()["made"]["label"] == "cat"
    assert browser.decide(3, "other", [2]).json()["made"]["label"] == "bird"
    assert browser.decide(0, "skip").json()["looked_at"] == 4
    assert [(found.key, found.decision, found.label) for found in read_reviews(run / "reviews.jsonl")] == [
        ("9", "accept", "dog"),
        ("6", "reject", "cat"),
        ("3", "other", "bird"),
        ("0", "skip", None),
    ]
    assert [row["decision"] for row in browser.rows()[:5]] == ["accept", "reject", "other", "skip", None]
    assert browser.get("/api/page").json()["position"] == 4


def test_another_class_that_is_the_corrected_or_given_one_is_called_so(browser):
    assert browser.decide(9, "other", [1]).json()["made"]["decision"] == "accept"
    assert browser.decide(9, "other", [0]).json()["made"]["decision"] == "reject"


def test_undo_takes_back_this_row_or_the_newest(browser, run):
    assert browser.decide(None, "undo").json()["made"] is None
    browser.decide(9, "accept")
    browser.decide(6, "accept")
    assert browser.decide(9, "undo").json()["made"]["decision"] is None
    undone = browser.decide(None, "undo").json()
    assert undone["made"]["row"] == 6 and undone["decided"] == 0
    assert read_reviews(run / "reviews.jsonl") == []
    before = (run / "reviews.jsonl").read_bytes()
    browser.decide(9, "undo")
    assert (run / "reviews.jsonl").read_bytes() == before


def test_pages_filters_and_the_next_undecided(browser):
    page = browser.get("/api/page?count=5&start=7").json()
    assert (page["start"], page["position"], page["total"], len(page["rows"])) == (5, 7, 12, 5)
    assert browser.get("/api/page?count=5&row=11").json()["start"] == 10
    assert [row["row"] for row in browser.rows("?show=changed")] == [9, 6, 3, 0]
    assert [row["row"] for row in browser.rows("?pair=0-1&low=0.7&high=0.9")] == [9, 6]
    empty = browser.get("/api/page?pair=2-0&start=3").json()
    assert (empty["total"], empty["rows"], empty["position"]) == (0, [], 0)
    for row in (6, 3, 0):
        browser.decide(row, "accept")
    assert browser.get("/api/page?show=changed&after=6").json()["position"] == 0  # from the top again
    assert browser.get("/api/page?start=999999").json()["position"] == 11


def test_rows_with_and_without_a_decision(browser):
    for row in (6, 3):
        browser.decide(row, "accept")
    assert [row["row"] for row in browser.rows("?show=changed&decided=no")] == [9, 0]
    assert [row["row"] for row in browser.rows("?decided=yes")] == [6, 3]
    page = browser.get("/api/page?show=changed&decided=no&after=6").json()
    assert (page["position"], page["total"], page["of"], page["decided"]) == (1, 2, 4, 2)


def test_keys_are_searched_in_capitals_or_not(tmp_path, access):
    run = one_class_run(tmp_path / "run")
    table = pq.read_table(run / "labels.parquet")
    keys = [f"{'Cats' if row % 2 else 'dogs'}/é%_{row}.JPG" for row in range(12)]
    pq.write_table(table.set_column(0, "key", [keys]), run / "labels.parquet")
    with Review(run) as review:
        browser = Browser(review, access)
        assert [row["row"] for row in browser.rows("?key=cATS/")] == [9, 3, 1, 5, 7, 11]
        assert [row["row"] for row in browser.rows("?key=%25_11.jpg")] == [11]
        assert browser.rows("?key=.*") == []


def test_a_lot_is_accepted_and_withdrawn_in_one_step(browser, review, run):
    browser.decide(9, "reject")
    lot = browser.get("/api/lot?pair=0-1&low=0.6").json()
    assert lot["count"] == 3 and [row["row"] for row in lot["rows"]] == [0, 3, 6]  # from the least confident on
    assert [row["row"] for row in browser.get("/api/lot?low=0.7").json()["rows"]] == [6]
    made = browser.accept("?pair=0-1&low=0.6", count=3, seen=[0, 3, 6], without=[3])
    assert made.json() == {"count": 2, "of": 4, "decided": 3, "to_look_at": 4, "looked_at": 3}
    found = {one.key: one for one in read_reviews(run / "reviews.jsonl")}
    assert {key: (one.decision, one.label) for key, one in found.items()} == {
        "9": ("reject", "cat"), "6": ("accept", "dog"), "0": ("accept", "dog"),
    }  # fmt: skip
    assert found["6"].lot == found["0"].lot != "" == found["9"].lot
    browser.decide(1, "skip")
    undone = browser.decide(6, "undo").json()
    assert undone["count"] == 2 and undone["decided"] == 2
    assert [one.key for one in read_reviews(run / "reviews.jsonl")] == ["9", "1"]


def test_a_lot_of_an_earlier_start_is_withdrawn_too(run, access):
    with Review(run) as review:
        browser = Browser(review, access)
        assert browser.accept("?low=0.6", count=4, seen=[0, 3, 6, 9]).json()["count"] == 4
        browser.decide(6, "reject")
    with Review(run) as review:
        browser = Browser(review, access)
        assert browser.decide(None, "undo").json()["made"]["key"] == "6"
        assert browser.decide(None, "undo").json()["count"] == 4
        assert not review.decided.any()
        assert browser.decide(None, "undo").json()["count"] == 0


@pytest.mark.parametrize(
    ("query", "body"),
    [
        ("", {"count": 3, "seen": [0, 3, 6, 9]}),
        ("", {"count": 4, "seen": [0, 3, 6]}),
        ("", {"seen": [0, 3, 6, 9]}),
        ("", {"count": True, "seen": [0, 3, 6, 9]}),
        ("", {"count": 4, "seen": "all"}),
        ("", {"count": 4, "seen": [0, 3, 6, 9], "without": [0, 3, 6, 9]}),
        ("?show=kept", {"count": 8, "seen": [1, 2, 4, 5, 7, 8, 10, 11]}),  # only changes are accepted
        ("?pair=1-2", {"count": 0, "seen": []}),
    ],
)
def test_a_lot_that_nobody_looked_at_is_refused(browser, run, query, body):
    assert browser.accept(query, **body).status_code == 400
    assert (run / "reviews.jsonl").read_bytes() == b""


def test_a_large_lot_shows_rows_of_all_confidences(tmp_path, access):
    with Review(one_class_run(tmp_path / "run", rows=900)) as review:
        assert len(review.lot(Filter(high=0.8))["rows"]) == review.lot(Filter(high=0.8))["count"] == 172  # all
        lot = review.lot(Filter())
        shown = [row["confidence"] for row in lot["rows"]]
        assert lot["count"] == 300 and len(shown) == SAMPLES and shown == sorted(shown)
        changed = review.queue.confidence[review.queue.changed]
        assert (shown[0], shown[-1]) == (changed.min(), changed.max())


@pytest.mark.parametrize(
    "query",
    [
        *("?start=-1", "?start=1e3", "?start=٣", "?row=../etc", "?pair=1", "?low=x", "?show=secret", "?count=a"),
        *("?after=", "?decided=maybe", f"?key={'x' * 501}"),
    ],
)
def test_odd_questions_are_refused(browser, query):
    assert browser.get(f"/api/page{query}").status_code == 400


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{" * 5000,
        b'{"row": 1}',
        b'{"row": 1, "decision": "delete"}',
        b'{"row": 1, "decision": "other", "label": [7]}',
        b'{"row": 1, "decision": "other", "label": [-1]}',
        b'{"row": 1, "decision": "other", "label": [true]}',
        b'{"row": 1, "decision": "other", "label": []}',
        b'{"row": 1, "decision": "other", "label": "cat"}',
        b'{"row": "../../x", "decision": "accept"}',
        b'{"row": -1, "decision": "accept"}',
        b'{"row": true, "decision": "accept"}',
        b'{"row": 12, "decision": "accept"}',
        b'{"decision": "accept"}',
        b'{"row": 1, "decision": "accept", "more": "' + b"x" * 70_000 + b'"}',
    ],
)
def test_odd_decisions_are_refused_and_write_nothing(browser, run, body):
    done = browser.post("/api/decide", content=body, headers={"origin": HOME, "x-csrf-token": browser.csrf})
    assert done.status_code in (400, 404, 413)
    assert (run / "reviews.jsonl").read_bytes() == b""


def test_without_the_token_nothing_is_told(review, access):
    stranger = Browser(review, access, enter=False)
    for path in ("/", "/?token=", "/?token=guess", "/api/begin", "/api/page", "/picture/0", "/static/app.js", "/no"):
        done = stranger.get(path)
        assert done.status_code == 403 and "cat" not in done.text and "set-cookie" not in done.headers
    stranger.cookies.set(access.cookie, access.token)  # the address's token is not the cookie's
    assert stranger.get("/api/begin").status_code == 403
    stranger.cookies.set(access.cookie, "é")
    assert stranger.get("/api/begin", headers={"cookie": f"{access.cookie}=guess"}).status_code == 403
    assert Browser(review, Access(PORT), enter=False).get(f"/?token={access.token}").status_code == 403


def test_the_address_gives_a_strict_cookie_and_leaves_no_token_behind(review, access):
    stranger = Browser(review, access, enter=False)
    done = stranger.get(f"/?token={access.token}", follow_redirects=False)
    assert (done.status_code, done.headers["location"]) == (303, "/")
    cookie = done.headers["set-cookie"].lower()
    assert "httponly" in cookie and "samesite=strict" in cookie and access.token.lower() not in cookie
    assert len({access.token, access.session, access.csrf}) == 3 and len(access.token) >= 43
    assert stranger.get(f"/api/begin?token={access.token}").status_code == 200  # by the cookie
    stranger.cookies.clear()
    assert stranger.get(f"/api/begin?token={access.token}").status_code == 403  # the token opens the door only


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        f"evil.example:{PORT}",
        "127.0.0.1",
        "127.0.0.1:9",
        f"127.0.0.1.evil.example:{PORT}",
        f"192.168.0.7:{PORT}",
        "",
        f"localhost:{PORT}:{PORT}",
        f"evil.example@127.0.0.1:{PORT}",
    ],
)
def test_another_host_is_refused_even_with_the_cookie(browser, host):
    assert browser.get("/api/begin", headers={"host": host}).status_code == 421


def test_the_refusal_of_a_host_says_what_was_seen_and_what_to_do(browser):
    said = browser.get("/api/begin", headers={"host": "localhost:9000"})
    assert said.status_code == 421 and said.headers["content-type"].startswith("text/plain")
    assert f"the request is for 'localhost:9000'; expected localhost:{PORT} or 127.0.0.1:{PORT}\n" in said.text
    assert f"ssh -L {PORT}:127.0.0.1:{PORT} MACHINE" in said.text
    said = browser.get("/api/begin", headers={"host": "\x1b[2J" + "x" * 500})
    assert r"'\x1b[2Jxxx" in said.text and len(said.text) < 400
    assert "the request is for no host; expected" in browser.access.describe_refusal([])
    remote = Access(PORT, "0.0.0.0", remote=True).describe_refusal(["evil.example"])
    assert f"(or this machine's address, port {PORT})" in remote


def test_browsers_leave_port_80_out(review):
    access = Access(80)
    for host in ("localhost", "127.0.0.1", "[::1]", "localhost:80", "[::1]:80"):
        assert access.knows(host) and not Access(PORT).knows(host), host
    for host in ("evil.example", "evil.example:80", "localhost:", "localhost:x", "::1", "192.168.0.7", "localhost:81"):
        assert not access.knows(host), host
    assert Access(80, "0.0.0.0", remote=True).knows("192.168.0.7")
    browser = Browser(review, access, enter=False)
    browser.base_url = "http://localhost"
    assert browser.get(f"/?token={access.token}").status_code == 200
    browser.csrf = browser.get("/api/begin").json()["csrf"]
    assert browser.decide(0, "accept", headers={"origin": "http://localhost"}).status_code == 200


def test_names_of_this_machine_are_known(browser):
    for host in (f"localhost:{PORT}", f"127.0.0.1:{PORT}", f"[::1]:{PORT}"):
        headers = {"host": host, "cookie": f"{browser.access.cookie}={browser.access.session}"}
        assert browser.get("/api/begin", headers=headers).status_code == 200


def test_with_remote_access_addresses_are_known_and_foreign_names_are_not():
    remote = Access(PORT, "0.0.0.0", remote=True)
    assert remote.knows(f"192.168.0.7:{PORT}") and not remote.knows(f"evil.example:{PORT}")


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": None},
        {"origin": "http://127.0.0.1:9"},
        {"origin": f"https://127.0.0.1:{PORT}"},
        {"origin": f"http://localhost:{PORT}"},  # another origin than the host that was asked
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "cross-site"},
        {"x-csrf-token": None},
        {"x-csrf-token": "guess"},
    ],
)
def test_writes_from_elsewhere_are_refused(browser, run, headers):
    assert browser.decide(9, "accept", headers=headers).status_code == 403
    assert browser.post("/api/accept", json={}, headers={"origin": "null"}).status_code == 403
    assert (run / "reviews.jsonl").read_bytes() == b""


def test_other_verbs_are_refused(browser):
    for verb in ("PUT", "DELETE", "OPTIONS", "PATCH", "HEAD", "TRACE"):
        assert browser.request(verb, "/api/begin").status_code == 405
    assert browser.get("/api/decide").status_code == 405


@pytest.mark.parametrize(
    "path",
    [
        "/static/../server.py",
        "/static/%2e%2e/server.py",
        "/static/..%2fserver.py",
        "/static/",
        "/picture/../../etc/passwd",
        "/picture/%2e%2e%2fetc%2fpasswd",
        "/picture/cat.png",
        "/picture/-1",
        "/picture/99",
        "/picture/1.0",
        "/picture/99999999999999999999999",
        "/numbers/99",
        "/api/details/99",
        "/api/details/x",
        "/reviews.jsonl",
        "//etc/passwd",
    ],
)
def test_paths_lead_nowhere(browser, path):
    browser.get("/api/pictures")
    assert browser.get(path).status_code == 404


def test_every_answer_has_the_headers(browser, review, access):
    stranger = Browser(review, access, enter=False)
    for done in (browser.get("/"), browser.get("/api/page"), browser.get("/no"), stranger.get("/"), browser.put("/")):
        for name, value in HEADERS.items():
            assert done.headers[name] == value
    policy = HEADERS["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self';") and "unsafe" not in policy
    assert browser.get("/").headers["content-type"].startswith("text/html")


def test_the_page_puts_text_in_as_text_only(browser):
    script, html = browser.get("/static/review.js").text, browser.get("/").text
    for risky in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "http"):
        assert risky not in script, risky
    assert "<style" not in html and "onclick" not in html and "style=" not in html
    assert html.count("<script") == 2 and html.count('<script src="/static/review.js"') == 1
    assert html.count('<script id="first" type="application/json">') == 1  # which no browser executes


def test_the_page_holds_what_it_would_ask_for_first(browser):
    sent = re.search(r'type="application/json">(.*?)</script>', browser.get("/").text)[1]
    first = json.loads(sent)
    assert first["begin"] == browser.get("/api/begin").json() and first["begin"]["to_look_at"] == 4
    assert first["page"] == browser.get("/api/page?show=look").json() and first["page"]["of"] == 4
    assert json.loads(sent)["begin"]["page_rows"] == PAGE_ROWS
    assert "begin.page_rows" in browser.get("/static/review.js").text  # which has no such number of its own


def test_hostile_class_names_travel_as_json(tmp_path, access):
    with Review(one_class_run(tmp_path / "evil", HOSTILE)) as review:
        browser = Browser(review, access)
        assert browser.get("/api/begin").json()["classes"] == list(HOSTILE)
        sent = re.search(r'type="application/json">(.*?)</script>', browser.get("/").text)[1]
        assert json.loads(sent)["begin"]["classes"] == list(HOSTILE) and "<" not in sent
        done = browser.decide(9, "other", [2])
        assert done.json()["made"]["label"] == HOSTILE[2] and done.headers["content-type"] == "application/json"
    assert [found.label for found in read_reviews(review.run / "reviews.jsonl")] == [HOSTILE[2]]


def test_pictures_are_made_anew(browser, review):
    assert browser.get("/picture/9").status_code == 404
    assert browser.get("/api/pictures").json()["kind"] in ("loading", "pictures")
    review.pictures.wait()
    assert browser.get("/api/pictures").json() == {"kind": "pictures", "reason": ""}
    done = browser.get("/picture/9")
    assert done.headers["content-type"] == "image/png"
    expected = np.load(review.run.parent / "run.npz")["x"][9]
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(done.content))), expected)


def test_encoded_images_lose_everything_but_pixels_and_are_limited(tmp_path, access, pets):
    from readers import from_folder

    from pencil.review.inputs import Pictures

    run = one_class_run(tmp_path / "run", ("cat", "dog"))
    table = pq.read_table(run / "labels.parquet")
    loaded = from_folder(pets)
    large = Image.fromarray(np.random.default_rng(0).integers(0, 256, (900, 1200, 3), dtype=np.uint8))
    comment = Image.Exif()
    comment[0x010E] = "<script>secret</script>"
    large.save(pets / "cat/0.png", exif=comment)
    (pets / "cat/1.png").write_bytes(b"<svg onload=alert(1)>")
    keys = [str(key) for key in loaded.train.keys[: len(table)]]
    table = table.set_column(0, "key", [keys])
    pq.write_table(table, run / "labels.parquet")
    with Review(run, Pictures(lambda: loaded)) as review:
        review.pictures.wait()
        browser = Browser(review, access)
        done = browser.get(f"/picture/{keys.index('cat/0.png')}")
        shown = Image.open(io.BytesIO(done.content))
        assert done.headers["content-type"] == "image/jpeg" and shown.size == (512, 384) and not shown.getexif()
        bad = browser.get(f"/picture/{keys.index('cat/1.png')}")
        assert bad.status_code == 404 and "cannot be read" in bad.text and "svg" not in bad.text


def test_vectors_are_shown_as_numbers(tmp_path, access):
    with Review(one_class_run(tmp_path / "run", shape=(70,))) as review:
        review.pictures.wait()
        browser = Browser(review, access)
        assert browser.get("/api/pictures").json()["kind"] == "numbers"
        found = browser.get("/numbers/3").json()
        expected = np.load(tmp_path / "run.npz")["x"][3]
        assert found["count"] == 70 and found["values"] == expected[:64].tolist()


def test_without_data_the_page_works_and_says_why(run, access):
    (run.parent / "run.npz").unlink()
    with Review(run) as review:
        review.pictures.wait()
        browser = Browser(review, access)
        said = browser.get("/api/pictures").json()
        assert said["kind"] == "none" and "does not exist" in said["reason"]
        assert browser.get("/picture/0").status_code == 404
        assert browser.decide(9, "accept").status_code == 200


def test_inputs_of_any_dataset_are_shown(run, access):
    from pencil.data.examples import Examples, Splits
    from pencil.data.keys import as_keys
    from pencil.data.sources.torch_dataset import DatasetInputs
    from pencil.review.inputs import Pictures

    items = [(torch.full((2, 4, 6), float(row)), 0) for row in range(11)] + [("not a tensor", 0)]
    items[9][0][0, 1, 2] = -5
    data = Examples(DatasetInputs(items), torch.arange(12), torch.zeros(12).long(), ("a",), as_keys(np.arange(12)))
    with Review(run, Pictures(lambda: Splits(data))) as review:
        review.pictures.wait()
        browser = Browser(review, access)
        pixels = np.asarray(Image.open(io.BytesIO(browser.get("/picture/9").content)))
        assert pixels.shape == (4, 6) and pixels[1, 2] == 0 and pixels[0, 0] == 255
        broken = browser.get("/picture/11")
        assert broken.status_code == 404 and "expected a tensor" in broken.text


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_data_that_fails_in_an_unknown_way_is_said(run, access):
    from pencil.review.inputs import Pictures

    with Review(run, Pictures(lambda: {}["no such thing"])) as review:
        review.pictures.wait()
        assert "see the terminal" in Browser(review, access).get("/api/pictures").json()["reason"]


def test_several_classes_at_once(tmp_path, access):
    run = many_classes_run(tmp_path / "run")
    with Review(run) as review:
        browser = Browser(review, access)
        begin = browser.get("/api/begin").json()
        assert begin["multilabel"] and begin["noun"] == "row"  # rows are counted, here and on the terminal
        assert browser.rows()[0] | {"confidence": 0, "issue_score": 0} == {
            **{
                "row": 0,
                "key": "0",
                "split": "train",
                "given": ["sea"],
                "candidates": [],
                "corrected": ["sky"],
                "confidence": 0,
                "issue_score": 0,
            },
            **{"issue_score": 0, "changed": True, "suspects": ["sea", "sky"], "decision": None, "label": None},
            **{"outlier": False, "outlier_score": 0, "conflict": False},
        }
        browser.decide(0, "other", [2, 0, 2])
        browser.decide(1, "other", [])
        browser.decide(2, "accept")
    assert [found.label for found in read_reviews(run / "reviews.jsonl")] == [("sea", "sun"), (), ("sea",)]


def test_two_tabs_see_each_others_decisions(review, access, run):
    one, two = Browser(review, access), Browser(review, access)
    one.decide(9, "accept")
    two.decide(6, "reject")
    two.decide(9, "reject")
    assert (
        [row["decision"] for row in one.rows()[:3]]
        == ["reject", "reject", None]
        == [row["decision"] for row in two.rows()[:3]]
    )
    one.decide(9, "undo")
    assert one.rows()[0]["decision"] == "accept"
    assert len((run / "reviews.jsonl").read_text().splitlines()) == 4


def test_a_second_server_and_damaged_decisions_are_refused(review, run):
    with pytest.raises(RunError, match="is in use"), Review(run):
        pass
    review.__exit__()
    (run / "reviews.jsonl").write_text('{"key": 1}\n')
    with pytest.raises(RunError, match="line 1"), Review(run):
        pass
    (run / "reviews.jsonl").unlink()
    with Review(run):  # and the lock was given back
        pass


def test_a_full_disk_is_said_and_the_decision_is_not_shown(browser, monkeypatch):
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    done = browser.decide(9, "accept")
    assert done.status_code == 507 and "not saved" in done.text
    assert browser.rows()[0]["decision"] is None


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        ("recipe.toml", "not a run directory"),
        ("summary.json", "has not finished"),
        ("labels.parquet", "labels.parquet: it is missing"),
    ],
)
def test_what_is_no_finished_run_is_refused(run, missing, words):
    (run / missing).unlink()
    with pytest.raises(RunError, match=words):
        Review(run)


def knock(address):
    """A browser of a few lines: the opener has the cookie then."""
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
    opener.open(address).read()
    home = address.split("/?")[0]
    begin = json.load(opener.open(f"{home}/api/begin"))

    def decide(row, decision):
        headers = {"origin": home, "x-csrf-token": begin["csrf"]}
        body = json.dumps({"row": row, "decision": decision}).encode()
        return json.load(opener.open(urllib.request.Request(f"{home}/api/decide", body, headers)))

    return decide, lambda: json.load(opener.open(f"{home}/api/page"))


@pytest.mark.parametrize("seconds", [0.3, pytest.param(1.5, marks=pytest.mark.slow)])
def test_ctrl_c_while_the_data_loads_is_a_clean_end(run, seconds):
    """A thread that imports torch would abort a process that exits."""
    with serving(run) as process:
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
        opener.open(process.address).read()
        home = process.address.split("/?")[0]
        assert json.load(opener.open(f"{home}/api/pictures"))["kind"] == "loading"
        assert json.load(opener.open(f"{home}/api/details/3"))["twins"] == []  # at once, without an import
        time.sleep(seconds)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "terminate" not in err and "Exception" not in err, err


def test_background_work_that_catches_everything_is_stopped_too():
    from pencil.review.inputs import Pictures

    caught = threading.Event()

    def load():
        while True:
            try:
                while True:
                    time.sleep(0.01)
            except BaseException:
                if caught.is_set():
                    raise
                caught.set()

    pictures = Pictures(load)
    pictures.stop()  # nothing to do
    pictures.start()
    pictures.stop()
    assert caught.is_set() and pictures.state.kind == "none"


def test_an_unexpected_failure_is_one_line(review, access, monkeypatch):
    def fail(*_):
        raise ImportError("cannot import name 'x' from partially\ninitialized module")

    monkeypatch.setattr(review.details, "of", fail)
    browser = Browser(review, access)
    with pytest.warns(PencilWarning, match=r"request GET /api/details/3 failed: ImportError: .*partially init") as told:
        answer = browser.get("/api/details/3")
    assert answer.status_code == 500 and "\n" not in str(told[0].message)
    assert browser.decide(9, "accept").status_code == 200


def test_killing_the_server_loses_nothing_and_a_new_one_goes_on(run):
    with serving(run) as process:
        decide, _ = knock(process.address)
        decide(9, "accept")
        decide(6, "reject")
        process.send_signal(signal.SIGKILL)
        process.wait()
    (run / "reviews.jsonl").write_bytes((run / "reviews.jsonl").read_bytes() + b'{"key": "3", "deci')  # as it may end
    with serving(run) as process:
        decide, page = knock(process.address)
        assert [row["decision"] for row in page()["rows"][:3]] == ["accept", "reject", None]
        decide(3, "accept")
    assert [found.key for found in read_reviews(run / "reviews.jsonl")] == ["9", "6", "3"]


def test_the_server_starts_without_torch(run):
    """Which takes seconds to import: the first page must not wait for it."""
    code = "import sys, pencil.cli.review, pencil.review.server; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.0.7", "example.org", "::"])
def test_other_machines_are_let_in_only_on_demand(run, host):
    with pytest.raises(RunError, match="--allow-remote"):
        command(run, host=host)


def test_a_port_that_is_taken_is_named(run):
    with serving(run) as process:
        port = int(process.address.split(":")[2].split("/")[0])
        with pytest.raises(RunError, match=f"port {port}: .*choose another --port"):
            command(one_class_run(run.parent / "two"), port=port)
