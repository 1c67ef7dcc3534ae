"""The review page in a real browser: a person's session from the first key to the last."""

import os
import shutil
import signal
from contextlib import contextmanager

import pytest
from review_runs import HOSTILE, many_classes_run, one_class_run, serving

from pencil.review import read_reviews

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
try:
    from playwright.sync_api import expect, sync_playwright
except ImportError:
    sync_playwright = None

MISSING = "THE REVIEW PAGE IS NOT TESTED IN A BROWSER: there is no {}; run `make browser`"
if CHROMIUM is None or sync_playwright is None:
    pytest.skip(MISSING.format("chromium" if CHROMIUM is None else "playwright"), allow_module_level=True)
expect.set_options(timeout=20_000)


@pytest.fixture(scope="module")
def chromium():
    with sync_playwright() as playwright:
        words = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=words)
        yield browser
        browser.close()


@contextmanager
def person(chromium, address):
    """Opens the address; nothing may go wrong in the page: no script error, no breach of its own policy."""
    context = chromium.new_context(viewport={"width": 1200, "height": 800})
    context.set_default_timeout(20_000)
    page, said = context.new_page(), []
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("console", lambda message: said.append(message.text) if message.type == "error" else None)
    page.on("dialog", lambda dialog: said.append(f"dialog: {dialog.message}"))
    page.said = said
    page.goto(address)
    try:
        yield page
        assert said == []
    finally:
        context.close()


def progress(page, words):
    expect(page.locator("#progress")).to_contain_text(words)


def decided(run):
    return [(found.key, found.decision, found.label) for found in read_reviews(run / "reviews.jsonl")]


def test_a_whole_session(chromium, tmp_path):
    run = one_class_run(tmp_path / "run")
    with serving(run) as server, person(chromium, server.address) as page:
        expect(page.locator(".single .corrected")).to_have_text("dog")
        assert "token" not in page.url
        expect(page.locator(".key")).to_contain_text("9 (train)")
        page.locator("img.picture").wait_for()  # data is loaded beside
        assert page.locator("img.picture").evaluate("image => image.decode().then(() => image.naturalWidth)") == 8
        page.keyboard.press("a")  # 9
        expect(page.locator(".key")).to_contain_text("6 (train)")
        page.keyboard.press("r")  # 6
        page.keyboard.press("3")  # 3 is a bird
        page.keyboard.press("s")  # 0
        progress(page, "4 decided (4 of 4 changes)")
        page.keyboard.press("u")
        progress(page, "3 decided")
        expect(page.locator(".key")).to_contain_text("0 (train)")
        page.keyboard.press("o")
        page.keyboard.type("BIR")
        expect(page.locator("#choices li")).to_have_count(1)
        page.keyboard.press("Enter")
        progress(page, "4 decided")
        assert decided(run)[:2] == [("9", "accept", "dog"), ("6", "reject", "cat")]
        assert decided(run)[2:] == [("3", "other", "bird"), ("0", "other", "bird")]
        page.keyboard.press("g")
        expect(page.locator(".tile")).to_have_count(12)
        expect(page.locator(".tile.here .key")).to_have_text("1")
        expect(page.locator(".tile.reject .badge")).to_have_text("✗ rejected, is cat")
        page.keyboard.press("ArrowLeft")
        expect(page.locator(".tile.here .key")).to_have_text("0")
        page.keyboard.press("End")
        expect(page.locator(".tile.here .key")).to_have_text("11")
        page.keyboard.press("n")  # round again to the first without a decision
        expect(page.locator(".tile.here .key")).to_have_text("1")


def test_filters(chromium, tmp_path):
    with serving(one_class_run(tmp_path / "run")) as server, person(chromium, server.address) as page:
        progress(page, "0 decided")
        page.keyboard.press("g")
        page.select_option("#show", "changed")
        expect(page.locator(".tile")).to_have_count(4)
        page.select_option("#pair", label="cat → dog (4)")
        page.fill("#low", "0.75")
        page.keyboard.press("Enter")
        expect(page.locator(".tile")).to_have_count(2)
        page.fill("#high", "0.1")
        page.keyboard.press("Enter")
        expect(page.locator(".empty")).to_be_visible()


def test_killing_the_server_is_said_and_a_new_one_goes_on(chromium, tmp_path):
    run = one_class_run(tmp_path / "run")
    with serving(run) as server, person(chromium, server.address) as page:
        page.locator("img.picture").wait_for()
        page.keyboard.press("a")
        progress(page, "1 decided")
        server.send_signal(signal.SIGKILL)
        server.wait()
        page.keyboard.press("a")
        expect(page.locator("#error")).to_contain_text("Not saved: the server does not respond")
        progress(page, "1 decided")
        page.said.clear()  # the browser's own complaint about the connection
    with serving(run) as server, person(chromium, server.address) as page:
        progress(page, "at 2 of 12 · 1 decided")
        page.keyboard.press("u")  # also what was decided before
        progress(page, "at 1 of 12 · 0 decided")
    assert decided(run) == []


def test_hostile_class_names_are_only_text(chromium, tmp_path):
    run = one_class_run(tmp_path / "run", HOSTILE)
    with serving(run) as server, person(chromium, server.address) as page:
        expect(page.locator(".single .given")).to_have_text(HOSTILE[0])
        expect(page.locator(".single .corrected")).to_have_text(HOSTILE[1])
        page.keyboard.press("a")
        progress(page, "1 decided")
        page.keyboard.press("g")
        expect(page.locator(".tile.accept .badge")).to_contain_text(HOSTILE[1])
        page.keyboard.press("o")
        expect(page.locator("#choices li")).to_have_count(3)
        expect(page.locator("#choices li").last).to_have_text(r"dog\u000a\u202e& cat")  # nothing is turned around
        assert page.locator("script").count() == 2 and page.locator("img[src=x]").count() == 0
        assert page.title() == "run – pencil review"


def test_sets_of_classes_and_numbers(chromium, tmp_path):
    run = many_classes_run(tmp_path / "run")
    with serving(run) as server, person(chromium, server.address) as page:
        expect(page.locator(".single .given")).to_have_text("sea")
        page.locator(".numbers span").first.wait_for()
        assert page.locator(".numbers span").all_inner_texts() == ["1", "0", "0", "0", "0"]
        page.keyboard.press("o")
        expect(page.locator("#choices input:checked")).to_have_count(1)  # sky, as corrected
        page.keyboard.type("sun")
        page.keyboard.press("Enter")
        page.keyboard.press("Control+Enter")
        progress(page, "1 decided")
    assert decided(run) == [("0", "other", ("sky", "sun"))]


def test_two_tabs(chromium, tmp_path):
    with serving(one_class_run(tmp_path / "run")) as server, person(chromium, server.address) as one:
        progress(one, "0 decided")
        two = one.context.new_page()
        two.goto(server.address.split("?")[0])  # by the cookie
        progress(two, "0 decided")
        two.keyboard.press("a")
        progress(two, "1 decided")
        one.evaluate("() => window.dispatchEvent(new Event('focus'))")  # the person comes back to the first
        progress(one, "1 decided")
        one.keyboard.press("n")
        one.keyboard.press("r")
        progress(one, "2 decided")
