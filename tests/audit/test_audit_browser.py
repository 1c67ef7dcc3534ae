"""The audit page in a real browser."""

import contextlib
import os
import subprocess
import sys

from audit_runs import make_entry_run, make_run
from browser import expect, person
from review_runs import served_app

from pencil.auditing.blind import Blind
from pencil.auditing.blind_page import build_app
from pencil.auditing.sample import open_sample
from pencil.decisions import read_reviews

COMMAND = "import sys; sys.argv[0] = 'pencil'; from pencil.cli import main; main()"
MANY = ("<b>bold</b>", "dog\n\u202e& cat", *(f"kind {number:02d}" for number in range(28)))


@contextlib.contextmanager
def auditing(chromium, run, *words):
    """The page of an audit; nothing may go wrong in it: no script error, no breach of its own policy."""
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, "audit", str(run), "--no-browser", *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    try:
        with person(chromium, process.stdout.readline().strip()) as page:
            yield page
    finally:
        process.kill()
        process.communicate()


@contextlib.contextmanager
def shown(chromium, run, rows=None):
    """The page of an audit from a thread of this process, which spares the start of another."""
    with (
        Blind(run, open_sample(run, rows)) as blind,
        served_app(lambda access: build_app(blind, access)) as address,
        person(chromium, address) as page,
    ):
        yield page


def press(page, key):
    """Press a key as a person does: when the picture is there."""
    page.locator(".single.shown").wait_for()
    page.keyboard.press(key)


def answers(run):
    return [(found.decision, found.label) for found in read_reviews(run / "reviews.jsonl")]


def test_a_whole_session(chromium, tmp_path):
    run = tmp_path / "run"
    make_run(run, rows=60)
    with auditing(chromium, run, "--rows", "25") as page:
        progress = page.locator("#progress")
        expect(progress).to_have_text("0 of 25 rows")
        page.locator("img.picture").wait_for()
        assert page.locator("img.picture").evaluate("image => image.decode().then(() => image.naturalWidth)") == 8
        first = page.locator(".offered button").first.inner_text().split()[-1]
        for number, key in enumerate("1sx", 1):
            press(page, key)
            expect(progress).to_have_text(f"{number} of 25 rows")
        page.keyboard.press("ArrowRight")  # no row is passed over
        expect(page.locator(".facts .quiet")).to_have_text("row 4 of 25")
        page.keyboard.press("ArrowLeft")
        expect(page.locator("button.chosen")).to_have_text("x none of the classes")
        page.keyboard.press("u")
        expect(progress).to_have_text("2 of 25 rows")
        expect(page.locator("button.chosen")).to_have_count(0)
        page.locator(".single.shown").wait_for()
        page.get_by_role("button", name="cannot tell").click()
        for number in range(3, 25):
            expect(progress).to_have_text(f"{number} of 25 rows")
            press(page, "2")
        expect(page.locator(".done h2")).to_have_text("All rows are answered.")
        page.keyboard.press("ArrowLeft")
        expect(page.locator(".facts .quiet")).to_have_text("row 25 of 25, answered")
    found = answers(run)
    assert found[0][1] == first and [kind for kind, _ in found[1:3]] == ["skip", "skip"] and len(found) == 25


def test_nothing_is_answered_before_its_picture_is_shown(chromium, tmp_path):
    run = tmp_path / "run"
    make_run(run, rows=60)
    with shown(chromium, run, 25) as page:
        page.locator(".single.shown").wait_for()
        held = []
        page.route("**/picture/1", lambda route: held.append(route))
        page.keyboard.press("1")
        expect(page.locator("#progress")).to_have_text("1 of 25 rows")
        for key in "1xs":
            page.keyboard.press(key)
        page.wait_for_timeout(200)
        assert len(answers(run)) == 1 and len(held) == 1
        held[0].continue_()
        press(page, "s")
        expect(page.locator("#progress")).to_have_text("2 of 25 rows")


def test_many_classes_with_odd_names(chromium, tmp_path):
    run = tmp_path / "run"
    make_run(run, classes=MANY, rows=300)
    with shown(chromium, run) as page:
        expect(page.locator(".offered button")).to_have_count(8)
        page.keyboard.press("o")
        expect(page.locator("#chooser")).to_be_visible()
        page.keyboard.type("bold")
        expect(page.locator("#choices li")).to_have_text(["<b>bold</b>"])
        press(page, "Enter")
        expect(page.locator("#progress")).to_have_text("1 of 100 rows")
        page.keyboard.press("o")
        expect(page.locator("#chooser")).to_be_visible()
        page.keyboard.type("dog")
        expect(page.locator("#choices li")).to_have_text([r"dog\u000a\u202e& cat"])
        page.keyboard.press("Escape")  # the text
        page.keyboard.press("Escape")
        expect(page.locator("#chooser")).not_to_be_visible()
        assert page.locator("script").count() == 2 and page.locator("b").count() == 0
    assert [label for _, label in answers(run)] == ["<b>bold</b>"]


def test_digits_have_their_own_keys(chromium, tmp_path):
    run = tmp_path / "run"
    make_run(run, classes=tuple("0123456789"))
    with shown(chromium, run) as page:
        expect(page.locator("#progress")).to_have_text("0 of 100 rows")
        press(page, "7")
        expect(page.locator("#progress")).to_have_text("1 of 100 rows")
        press(page, "0")
        expect(page.locator("#progress")).to_have_text("2 of 100 rows")
    assert [label for _, label in answers(run)] == ["7", "0"]


def test_entries_are_answered_with_yes_and_no(chromium, tmp_path):
    run = tmp_path / "run"
    make_entry_run(run, classes=("<b>sea</b>", "sky", "sun"))
    with shown(chromium, run, 25) as page:
        progress = page.locator("#progress")
        expect(progress).to_have_text("0 of 25 entries")
        assert page.locator(".asked").inner_text() in {
            f"Is {name} in this row?" for name in ("<b>sea</b>", "sky", "sun")
        }
        expect(page.locator(".offered button")).to_have_text(["y yes", "n no"])
        expect(page.locator(".rest button")).to_have_text(["s cannot tell"])
        for number, key in enumerate("yns", 1):
            press(page, key)
            expect(progress).to_have_text(f"{number} of 25 entries")
        for key in "x1o/":  # keys of single-label data
            press(page, key)
        page.keyboard.press("ArrowLeft")
        expect(page.locator("button.chosen")).to_have_text("s cannot tell")
        page.keyboard.press("u")
        expect(progress).to_have_text("2 of 25 entries")
        press(page, "y")
        expect(progress).to_have_text("3 of 25 entries")
        assert page.locator("b").count() == 0
    assert [kind for kind, _ in answers(run)] == ["present", "absent", "present"]
