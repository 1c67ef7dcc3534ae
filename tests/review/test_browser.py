"""The review page in a real browser: a person's session from the first key to the last."""

import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from browser import expect, person
from review_runs import HOSTILE, many_classes_run, one_class_run, served, serving, write_run

import pencil
from pencil.data import from_arrays
from pencil.data.examples import Splits
from pencil.review import read_reviews
from pencil.runs.results import build_label_table


def progress(page, words):
    expect(page.locator("#progress")).to_contain_text(words)


def press(page, key):
    """Press a key as a person does: when the input of the row is there."""
    page.locator("#actions .skip[aria-disabled=false]").wait_for()
    page.keyboard.press(key)


def at(page, key):
    expect(page.locator(".facts .key")).to_have_text(f"{key} (train)")


def decided(run):
    return [(found.key, found.decision, found.label) for found in read_reviews(run / "reviews.jsonl")]


def test_a_whole_session(chromium, tmp_path):
    run = one_class_run(tmp_path / "run")
    with serving(run) as server, person(chromium, server.address) as page:
        expect(page.locator(".single .corrected")).to_have_text("dog")
        assert "token" not in page.url
        at(page, 9)
        page.locator(".single.shown").wait_for()  # data is loaded beside
        picture = page.locator(".single > .view img")
        assert picture.evaluate("image => image.decode().then(() => image.naturalWidth)") == 8
        for key, row in (("a", 9), ("k", 6), ("3", 3), ("s", 0)):  # 3 is a bird
            at(page, row)
            press(page, key)
        expect(page.locator(".done h2")).to_have_text("Done: all 4 suspects are decided.")
        progress(page, "4 decided (4 of 4 suspects)")
        page.keyboard.press("u")
        progress(page, "3 decided")
        expect(page.locator("#said")).to_have_text("The decision about 0 is withdrawn.")
        at(page, 0)
        press(page, "o")
        page.keyboard.type("BIR")
        expect(page.locator("#choices li")).to_have_count(1)
        page.keyboard.press("Enter")
        progress(page, "4 decided")
        assert decided(run)[:2] == [("9", "accept", "dog"), ("6", "reject", "cat")]
        assert decided(run)[2:] == [("3", "other", "bird"), ("0", "other", "bird")]
        page.get_by_role("button", name="go through all 12 labels").click()
        at(page, 1)
        page.keyboard.press("g")
        expect(page.locator(".tile")).to_have_count(12)
        expect(page.locator(".tile.here .key")).to_have_text("1")
        expect(page.locator(".tile.reject .badge")).to_have_text("✓ kept cat")
        page.keyboard.press("ArrowLeft")
        expect(page.locator(".tile.here .key")).to_have_text("0")
        page.keyboard.press("End")
        expect(page.locator(".tile.here .key")).to_have_text("11")
        page.keyboard.press("n")  # round again to the first without a decision
        expect(page.locator(".tile.here .key")).to_have_text("1")


def test_the_page_stops_after_the_rows_to_look_at(chromium, tmp_path):
    """The rest is there for those who ask for it."""
    run = one_class_run(tmp_path / "run", rows=30)
    with served(run) as address, person(chromium, address) as page:
        progress(page, "at 1 of 10 suspects · 0 decided")
        expect(page.locator("#show option").first).to_have_text("suspects (10)")
        expect(page.locator("#show option").nth(2)).to_have_text("corrections (10)")
        expect(page.locator("#show")).to_have_attribute("title", "10 suspects, all of them corrections")
        expect(page.locator("#actions .reject")).to_have_text("k keep: cat")
        expect(page.locator("#actions .reject")).to_have_attribute("title", "keep: cat (key k)")
        for number in range(10):
            press(page, "k" if number % 2 else "a")
            progress(page, f"{number + 1} decided")
        expect(page.locator(".done h2")).to_have_text("Done: all 10 suspects are decided.")
        expect(page.locator(".done")).to_contain_text("The other 20 labels were kept as given, and they are not")
        expect(page.locator(".done code")).to_have_text(f"pencil labels {run} --reviewed")
        page.keyboard.press("n")
        expect(page.locator(".done")).to_be_visible()
        assert len(decided(run)) == 10
        page.get_by_role("button", name="go through all 30 labels").click()
        progress(page, "of 30 · 10 decided (10 of 10 suspects)")
        at(page, 1)
        expect(page.locator("#actions .accept")).to_contain_text("it is dog")


def test_a_picture_never_covers_its_label(chromium, tmp_path):
    run = one_class_run(tmp_path / "run", shape=(160, 160))
    with serving(run) as server, person(chromium, server.address) as page:
        page.locator(".single.shown").wait_for()
        for width in (1160, 1200, 1280, 1600, 1100, 800):
            page.set_viewport_size({"width": width, "height": 1000})
            picture = page.locator(".single > .view .picture").bounding_box()
            facts = page.locator(".single .facts").bounding_box()
            assert picture["x"] >= 0 and picture["x"] + picture["width"] < facts["x"], width


def test_nothing_to_look_at_is_said(chromium, tmp_path):
    data = from_arrays(np.zeros((6, 8, 8), dtype=np.uint8), np.arange(6) % 2, classes=["cat", "dog"])
    probs = 0.05 + 0.9 * torch.eye(2)[torch.arange(6) % 2]
    run = write_run(tmp_path / "run", build_label_table(Splits(data), probs, None))
    with served(run) as address, person(chromium, address) as page:
        expect(page.locator(".done h2")).to_contain_text("Nothing to look at")
        expect(page.locator("#actions button:visible")).to_have_text(["u undo"])
        page.get_by_role("button", name="go through all 6 labels").click()
        at(page, 0)


def test_ten_classes_have_a_key_each_and_names_are_not_cut(chromium, tmp_path):
    names = [f"class number {number} with a name that is rather long" for number in range(11)]
    run = one_class_run(tmp_path / "run", names, rows=24)
    cut = "found => found.some((one) => one.scrollWidth > one.clientWidth + 1)"
    with served(run) as address, person(chromium, address) as page:
        expect(page.locator("#keys kbd").last).to_have_text("0")
        expect(page.locator(".bar .name").first).to_be_visible()
        assert not page.locator("#actions button, .bar .name, .near h2").evaluate_all(cut)
        press(page, "0")
        progress(page, "1 decided")
        page.keyboard.press("g")
        page.locator(".tile").first.wait_for()
        assert not page.locator(".tile .given, .tile .corrected").evaluate_all(cut)
    assert decided(run)[0][1:] == ("other", names[9])


def test_duplicates_and_texts_beside_a_row_can_be_read(chromium, tmp_path, monkeypatch):
    """Texts stand one below the other, as wide as there is room; the same text with another label comes first."""
    monkeypatch.chdir(tmp_path)
    words = ["the parcel has not arrived yet and nobody knows where", "the card was charged twice and needs a refund"]
    lines = [f"{words[row % 2]} since day {row // 2},{['parcel', 'card'][row % 2]}" for row in range(40)]
    Path("t.csv").write_text("\n".join(["text,label", *lines, f"{words[0]} since day 0,card"]))
    run = pencil.fit("mlp", "t.csv", out=tmp_path / "run", epochs=1, label="label").path
    with served(run) as address, person(chromium, address) as page:
        page.evaluate("() => { $('show').value = 'all'; $('key').value = '42'; refilter(); }")  # its line
        expect(page.locator(".twins h2")).to_have_text("The same row with another label", timeout=60_000)
        expect(page.locator(".twins figcaption strong")).to_have_text("parcel")
        texts = page.locator(".near .cells dd")
        texts.nth(2).wait_for()  # at least three; cells are loaded one by one
        assert all(texts.nth(number).bounding_box()["width"] > 300 for number in range(texts.count()))


def test_filters_and_the_search_of_a_key(chromium, tmp_path):
    with served(one_class_run(tmp_path / "run")) as address, person(chromium, address) as page:
        press(page, "a")  # 9
        progress(page, "1 decided")
        page.keyboard.press("g")
        expect(page.locator(".tile")).to_have_count(4)
        page.select_option("#show", "changed")
        page.select_option("#decided", "no")
        expect(page.locator(".tile")).to_have_count(3)
        page.select_option("#decided", "yes")
        expect(page.locator(".tile .key")).to_have_text(["9"])
        page.select_option("#decided", "any")
        page.select_option("#pair", label="cat → dog (4)")
        page.fill("#low", "0.75")
        page.keyboard.press("Enter")
        expect(page.locator(".tile")).to_have_count(2)
        page.fill("#high", "0.1")
        page.keyboard.press("Enter")
        expect(page.locator(".empty")).to_be_visible()
        for name, value in (("#low", "0"), ("#high", "1")):
            page.fill(name, value)
            page.keyboard.press("Enter")
        page.select_option("#show", "all")
        page.select_option("#pair", "")
        expect(page.locator(".tile")).to_have_count(12)
        page.keyboard.press("f")
        page.keyboard.type("1")
        expect(page.locator(".tile .key")).to_have_text(["1", "10", "11"])
        page.keyboard.press("Escape")
        page.keyboard.press("ArrowRight")  # keys are for the rows again
        expect(page.locator(".tile.here .key")).to_have_text("10")


def test_the_list_of_what_is_not_decided_yet(chromium, tmp_path):
    """It gets shorter; no row is passed over at the end of a page."""
    run = one_class_run(tmp_path / "run", rows=150)
    with served(run) as address, person(chromium, address) as page:
        page.select_option("#decided", "no")
        page.select_option("#show", "changed")
        progress(page, "at 1 of 50 · 0 decided")
        for row in (147, 144):
            at(page, row)
            press(page, "s")
        at(page, 141)
        page.evaluate("next(() => move(47))")  # the last row of the page
        at(page, 6)
        press(page, "s")
        at(page, 3)
        progress(page, "at 46 of 47 · 3 decided")
        page.evaluate("next(() => move(0))")
        at(page, 141)
        press(page, "s")
        at(page, 138)
        page.evaluate("next(() => move(46))")
        at(page, 0)


def test_nothing_is_decided_before_its_picture_is_shown(chromium, tmp_path):
    run = one_class_run(tmp_path / "run")
    with served(run) as address, person(chromium, address) as page:
        page.locator(".single.shown").wait_for()
        held = []
        page.route("**/picture/1", lambda route: held.append(route))
        page.select_option("#show", "all")
        page.keyboard.press("f")
        page.keyboard.type("1")  # rows 1, 10 and 11
        at(page, 1)
        page.keyboard.press("Escape")
        for key in "akrs3o/":
            page.keyboard.press(key)
        expect(page.locator("#actions .accept")).to_have_attribute("aria-disabled", "true")
        page.locator("#actions .accept").click(force=True)
        expect(page.locator("#chooser")).not_to_be_visible()
        page.wait_for_timeout(200)
        assert decided(run) == [] and len(held) == 1
        held[0].continue_()
        press(page, "s")
        at(page, 10)
        progress(page, "1 decided")
        page.route("**/api/decide*", lambda route: held.append(route))
        press(page, "a")
        page.keyboard.press("r")  # the answer is not there: it would be about a row that nobody has seen
        page.wait_for_timeout(200)
        held[1].continue_()
        at(page, 11)
        progress(page, "2 decided")
        page.locator(".single.shown").wait_for()
    assert decided(run) == [("1", "skip", None), ("10", "accept", "dog")] and len(held) == 2


def test_when_all_is_decided_only_undo_is_left(chromium, tmp_path):
    run = one_class_run(tmp_path / "run", rows=3)
    with served(run) as address, person(chromium, address) as page:
        page.select_option("#show", "all")
        for number in range(3):
            press(page, "a")
            progress(page, f"{number + 1} decided")
        expect(page.locator(".done h2")).to_have_text("Done: every label is decided.")
        expect(page.locator("#actions button:visible")).to_have_text(["u undo"])
        before = decided(run)
        for key in ("a", "k", "s", "2", "o", "n", "g", "m", "f", "Enter", "ArrowLeft", "End"):
            page.keyboard.press(key)
        page.wait_for_timeout(200)
        assert decided(run) == before and page.locator(".done").is_visible()
        page.keyboard.press("u")
        at(page, 2)
        progress(page, "2 decided")
        press(page, "s")
        page.get_by_role("button", name="look at them again").click()
        at(page, 0)
        expect(page.locator(".single .badge")).to_have_text("✓ accepted dog")
        press(page, "r")
        at(page, 1)
    assert decided(run) == [("1", "accept", "dog"), ("2", "skip", None), ("0", "reject", "cat")]


def test_many_corrections_are_accepted_after_a_look_and_undone_at_once(chromium, tmp_path):
    run = one_class_run(tmp_path / "run", rows=150)
    with served(run) as address, person(chromium, address) as page:
        press(page, "r")
        progress(page, "1 decided")
        held, released = [], False
        page.route("**/picture/*small", lambda route: route.continue_() if released else held.append(route))
        page.keyboard.press("m")
        expect(page.locator("#lot-low")).to_have_value("0.9")
        page.select_option("#lot-pair", label="cat → dog (50)")
        page.fill("#lot-low", "0.7")
        page.keyboard.press("Enter")
        expect(page.locator("#lot-words")).to_contain_text("All 34 are shown.")
        expect(page.locator("#lot-words")).to_contain_text("Scroll through all of them first.")
        expect(page.locator("#lot-accept")).to_be_disabled()
        expect(page.locator("#lot-samples .tile")).to_have_count(34)
        released = True  # requests that arrive from now on pass at once
        for route in held:
            route.continue_()
        for tile in page.locator("#lot-samples .tile").all():
            tile.scroll_into_view_if_needed()
        wrong = page.locator("#lot-samples .tile").first
        key = wrong.get_attribute("title")
        wrong.focus()
        page.keyboard.press("Space")
        expect(wrong).to_have_attribute("aria-pressed", "true")
        page.get_by_role("button", name="accept 33 corrections").click()
        expect(page.locator("#lot")).not_to_be_visible()
        expect(page.locator("#said")).to_contain_text("33 corrections accepted")
        progress(page, "34 decided")
        made = decided(run)
        assert len(made) == 34 and key not in [row for row, _, _ in made]
        press(page, "s")
        progress(page, "35 decided")
        page.keyboard.press("u")
        progress(page, "34 decided")
        page.keyboard.press("u")  # the whole lot
        progress(page, "1 decided")
        expect(page.locator("#said")).to_have_text("33 decisions are withdrawn.")
    assert [kind for _, kind, _ in decided(run)] == ["reject"]


def test_probabilities_and_rows_like_it_are_beside_a_row(chromium, tmp_path):
    run = one_class_run(tmp_path / "run", rows=30)
    with served(run) as address, person(chromium, address) as page:
        at(page, 27)
        expect(page.locator(".bar .name")).to_have_text(["dog corrected", "cat given", "bird"])
        assert float(page.locator(".bar meter").first.evaluate("meter => meter.value")) == pytest.approx(
            0.926, abs=1e-3
        )
        expect(page.locator(".near h2")).to_have_text(["cat given", "dog corrected"])
        expect(page.locator(".near").nth(1).locator("img")).to_have_count(3)
        expect(page.locator(".near").first).to_contain_text("no other row with this label was kept")
        keys = page.locator(".near").nth(1).locator("figcaption").all_inner_texts()
        assert all(int(key) % 3 == 1 for key in keys)  # dogs that were kept
        page.select_option("#show", "all")
        page.keyboard.press("End")  # a kept row is compared with the next most probable class
        expect(page.locator(".near h2 small").first).to_have_text("given")
        expect(page.locator(".near h2 small").last).to_have_text("next most probable")


def test_on_a_phone_buttons_do_what_keys_do(chromium, tmp_path):
    run = one_class_run(tmp_path / "run")
    phone = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
    with served(run) as address, person(chromium, address, **phone) as page:
        page.locator(".single.shown").wait_for()
        expect(page.locator("kbd:visible")).to_have_count(0)
        page.get_by_role("button", name="accept: dog").tap()
        at(page, 6)
        page.locator("#actions .next").tap()
        at(page, 3)
        page.locator("#actions .undo").tap()
        at(page, 9)
        progress(page, "0 decided")
        page.locator("#view").tap()
        page.locator(".tile").nth(3).tap()
        expect(page.locator(".tile.here .key")).to_have_text("0")
        page.get_by_role("button", name="keep: cat").tap()
        progress(page, "1 decided")
        page.locator("#more").tap()
        page.select_option("#decided", "yes")
        expect(page.locator(".tile .key")).to_have_text(["0"])
        assert page.evaluate("document.documentElement.scrollWidth") == 390  # nothing is cut off at the side
    assert decided(run) == [("0", "reject", "cat")]
    with served(run) as address, person(chromium, address, viewport=phone["viewport"]) as page:  # without touch
        page.locator(".single.shown").wait_for()
        expect(page.locator("kbd:visible")).to_have_count(0)


def test_killing_the_server_is_said_and_a_new_one_goes_on(chromium, tmp_path):
    run = one_class_run(tmp_path / "run")
    with serving(run) as server, person(chromium, server.address) as page:
        press(page, "a")
        progress(page, "1 decided")
        at(page, 6)
        page.locator(".single.shown").wait_for()
        server.send_signal(signal.SIGKILL)
        server.wait()
        press(page, "a")
        expect(page.locator("#error")).to_contain_text("Not saved: the server does not respond")
        progress(page, "1 decided")
        page.said.clear()  # the browser's own complaint about the connection
    with serving(run) as server, person(chromium, server.address) as page:
        progress(page, "at 2 of 4 suspects · 1 decided")
        page.keyboard.press("u")  # also what was decided before
        progress(page, "at 1 of 4 suspects · 0 decided")
    assert decided(run) == []


def test_hostile_class_names_are_only_text(chromium, tmp_path):
    run = one_class_run(tmp_path / "run", HOSTILE)
    with served(run) as address, person(chromium, address) as page:
        expect(page.locator(".single .labels .given")).to_have_text(HOSTILE[0])
        expect(page.locator(".single .labels .corrected")).to_have_text(HOSTILE[1])
        expect(page.locator(".bar .name").first).to_have_text(f"{HOSTILE[1]} corrected")
        expect(page.locator(".near h2").first).to_have_text(f"{HOSTILE[0]} given")
        press(page, "a")
        progress(page, "1 decided")
        page.keyboard.press("m")
        expect(page.locator("#lot-pair option").last).to_have_text(f"{HOSTILE[0]} → {HOSTILE[1]} (4)")
        page.keyboard.press("Escape")
        expect(page.locator("#lot")).not_to_be_visible()
        page.keyboard.press("g")
        expect(page.locator(".tile.accept .badge")).to_contain_text(HOSTILE[1])
        press(page, "o")
        expect(page.locator("#choices li")).to_have_count(3)
        expect(page.locator("#choices li").last).to_have_text(r"dog\u000a\u202e& cat")  # nothing is turned around
        assert page.locator("script").count() == 2 and page.locator("img[src=x]").count() == 0
        assert page.title() == "run – pencil review"


def test_sets_of_classes_and_numbers(chromium, tmp_path):
    run = many_classes_run(tmp_path / "run")
    with served(run) as address, person(chromium, address) as page:
        expect(page.locator(".single .labels .given")).to_have_text("sea")
        page.locator(".single.shown").wait_for()
        assert page.locator(".single > .view .numbers span").all_inner_texts() == ["1", "0", "0", "0", "0"]
        press(page, "o")
        expect(page.locator("#choices input:checked")).to_have_count(1)  # sky, as corrected
        page.keyboard.type("sun")
        page.keyboard.press("Enter")
        page.keyboard.press("Control+Enter")
        progress(page, "1 decided")
    assert decided(run) == [("0", "other", ("sky", "sun"))]


def test_two_tabs(chromium, tmp_path):
    with served(one_class_run(tmp_path / "run")) as address, person(chromium, address) as one:
        progress(one, "0 decided")
        two = one.context.new_page()
        two.goto(address.split("?")[0])  # by the cookie
        progress(two, "0 decided")
        press(two, "a")
        progress(two, "1 decided")
        one.evaluate("() => window.dispatchEvent(new Event('focus'))")  # the person comes back to the first
        progress(one, "1 decided")
        one.keyboard.press("n")
        at(one, 6)
        press(one, "r")
        progress(one, "2 decided")
