"""The address in the command line of a browser, which every user of the machine can read, works once."""

import webbrowser

import pytest
from review_runs import one_class_run
from starlette.testclient import TestClient

from pencil.cli.review import review as command
from pencil.review import server
from pencil.review.guard import Access, OneTimeCode
from pencil.review.server import build_app
from pencil.review.session import Review

PORT = 8123


def client(review, access):
    return TestClient(build_app(review, access), base_url=f"http://127.0.0.1:{PORT}")


@pytest.fixture
def review(tmp_path):
    with Review(one_class_run(tmp_path / "run")) as opened:
        yield opened


def test_the_one_time_address_works_once(review):
    access = Access(PORT)
    mine, other = client(review, access), client(review, access)
    assert other.get("/?once=guess").status_code == 403 and other.get("/?once=").status_code == 403
    entered = mine.get(access.one_time_address, follow_redirects=False)
    assert (entered.status_code, entered.headers["location"]) == (303, "/")
    assert (
        "httponly" in entered.headers["set-cookie"].lower() and access.once.value not in entered.headers["set-cookie"]
    )
    refused = other.get(access.one_time_address)
    assert refused.status_code == 403 and "works only once" in refused.text and "set-cookie" not in refused.headers
    assert other.get("/api/begin").status_code == 403
    assert mine.get("/api/begin").status_code == 200 and mine.get(access.one_time_address).status_code == 200
    assert other.get(access.address).status_code == 200  # what was printed keeps working


def test_the_one_time_address_expires(review):
    now = [0.0]
    early = Access(PORT, once=OneTimeCode(clock=lambda: now[0]))
    late = Access(PORT, once=OneTimeCode(clock=lambda: now[0]))
    now[0] = 59.0
    assert client(review, early).get(early.one_time_address).status_code == 200
    now[0] = 61.0
    assert client(review, late).get(late.one_time_address).status_code == 403


def test_a_wrong_request_does_not_use_up_the_address(review):
    access = Access(PORT)
    browser = client(review, access)
    assert browser.get(f"/api/begin?once={access.once.value}").status_code == 403
    assert browser.get("/?once=" + access.once.value[:-1]).status_code == 403
    assert browser.get(access.one_time_address).status_code == 200


def test_the_browser_is_started_without_the_token(tmp_path, monkeypatch, capsys):
    opened, seen = [], []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    monkeypatch.setattr(server, "serve", lambda review, access, listening: seen.append(access))
    command(one_class_run(tmp_path / "run"))
    (access,) = seen
    assert opened == [access.one_time_address] and access.token not in opened[0] and access.session not in opened[0]
    assert capsys.readouterr().out.strip() == access.address and access.once.value not in access.address
