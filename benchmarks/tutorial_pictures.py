"""The pictures of docs/tutorial.md, from a real session: `python benchmarks/tutorial_pictures.py FOLDER`.

FOLDER holds the files that the commands of the tutorial wrote: clothes, truth.csv and runs/clothes (a finished run, not
yet reviewed), and train.txt, the output of `pencil train`. On the review page and the audit page, a script gives the
answers in truth.csv. Needs Chromium and playwright.
"""

import csv
import html
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

PICTURES = Path(__file__).parent.parent / "docs" / "pictures" / "tutorial"
SIZE = {"width": 1000, "height": 760}
COLOURS = 128
"""Colours of a picture: as few as still look the same, which halves the file."""
TERMINAL = (
    "<body style='margin:0;background:#1d2330'><pre style='margin:0;padding:18px 22px;width:max-content;color:#e6e9ef;\
font:14px/1.45 \"DejaVu Sans Mono\",monospace'>{}</pre></body>"
)


def save(page: Page, name: str, **options: object) -> None:
    path = PICTURES / f"{name}.png"
    page.screenshot(path=path, **options)
    Image.open(path).convert("RGB").quantize(COLOURS).save(path, optimize=True)
    print(path, f"{path.stat().st_size / 1000:.0f} KB", flush=True)


@contextmanager
def served(browser: Browser, folder: Path, command: str) -> Iterator[Page]:
    """The page of `pencil review` or `pencil audit`."""
    words = [Path(sys.executable).with_name("pencil"), command, "runs/clothes", "--no-browser"]
    with subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        page = browser.new_page(viewport=SIZE)
        page.set_default_timeout(120_000)
        page.goto(server.stdout.readline().strip())
        yield page
        page.close()
        server.terminate()


def review(page: Page, truth: dict[str, str]) -> None:
    """Decide every suspect."""
    page.locator(".single.shown").wait_for()
    page.locator(".near img").nth(5).wait_for()
    save(page, "review")
    while page.locator(".done").count() == 0:
        page.locator("#actions .skip[aria-disabled=false]").wait_for()
        shown = page.locator(".facts .key").inner_text()
        right = truth[Path(shown.split(" (")[0]).name]
        if page.locator(".single .corrected").inner_text() == right:
            page.keyboard.press("a")
        elif shown.startswith(f"{right}/"):
            page.keyboard.press("k")
        else:
            page.keyboard.press("o")
            page.keyboard.type(right)
            page.keyboard.press("Enter")
        page.wait_for_function(
            "shown => document.querySelector('.done') || document.querySelector('.facts .key')?.innerText != shown",
            arg=shown,
        )


def audit(page: Page, truth: dict[str, str], rows: Path) -> None:
    """Answer every row."""
    page.locator(".single.shown").wait_for()
    save(page, "audit")
    order = json.loads(rows.read_text())["rows"]
    for number, (key, _) in enumerate(order):
        page.locator("#progress", has_text=f"{number} of {len(order)} rows").wait_for()
        page.locator(".single.shown").wait_for()
        page.locator(".offered button", has_text=truth[Path(key).name]).click()
    page.locator(".done").wait_for()


def main(folder: Path) -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)
    truth = dict(list(csv.reader((folder / "truth.csv").open()))[1:])
    with sync_playwright() as playwright:
        words = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=words)
        page = browser.new_page(viewport=SIZE)
        page.set_content(TERMINAL.format(html.escape((folder / "train.txt").read_text())))
        box = page.locator("pre").bounding_box()
        save(page, "train", clip={"x": 0, "y": 0, "width": box["width"], "height": box["height"]}, full_page=True)
        page.goto((folder / "runs/clothes/report.html").resolve().as_uri())
        save(page, "report")
        page.locator("section[aria-labelledby=sure]").evaluate("section => section.scrollIntoView()")
        save(page, "corrections")
        with served(browser, folder, "review") as page:
            review(page, truth)
        with served(browser, folder, "audit") as page:
            audit(page, truth, folder / "runs/clothes/audit.json")
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
