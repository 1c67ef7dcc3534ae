"""How long a person waits for the review page, measured in a real browser.

    python benchmarks/review.py [--rows 100000] [--decisions 60] [--json FILE]

A run directory with this many rows is written without training: small random images of ten classes, one in five with
another corrected label. `pencil review` serves it, and Chromium shows it. A decision lasts from the key press until the
next row and its picture are shown; its processor time includes everything beside the row, and does not depend on other
load. Needs
playwright, Chromium (`make browser`) and Linux.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from playwright.sync_api import Browser, Page, sync_playwright

from pencil.data import from_arrays
from pencil.data.examples import Splits
from pencil.runs.layout import FORMAT
from pencil.runs.results import build_label_table

CLASSES = 10
WATCH = """
window.waits = {};
let pressed = 0, before = null;
const shown = () => {
  const single = document.querySelector(".single");
  if (single && !window.waits.first) window.waits.first = performance.now();
  const key = document.querySelector(".single.shown .facts .key");
  if (key && pressed && key.textContent !== before) {
    window.waits.decision = performance.now() - pressed;
    pressed = 0;
  }
};
new MutationObserver(shown).observe(document, { subtree: true, childList: true, attributes: true });
document.addEventListener("keydown", () => {
  before = document.querySelector(".facts .key").textContent;
  delete window.waits.decision;
  pressed = performance.now();
}, true);
"""


def write_run(folder: Path, rows: int) -> Path:
    """Write a finished run and its data."""
    rng, names = np.random.default_rng(0), [f"class {code}" for code in range(CLASSES)]
    images, given = rng.integers(0, 256, (rows, 28, 28), dtype=np.uint8), rng.integers(0, CLASSES, rows)
    believed = np.where(rng.random(rows) < 0.2, rng.integers(0, CLASSES, rows), given)
    probs = rng.dirichlet(np.ones(CLASSES), rows)
    probs[np.arange(rows), believed] += rng.uniform(1, 9, rows)
    probs /= probs.sum(axis=1, keepdims=True)
    np.savez(folder / "data.npz", x=images, y=given, classes=names)
    run = folder / "run"
    run.mkdir()
    examples = from_arrays(images, given, classes=names)
    build_label_table(Splits(examples), torch.from_numpy(probs), None).write(run / "labels.parquet")
    (run / "environment.json").write_text(json.dumps({"format": FORMAT}))
    (run / "recipe.toml").write_text(f'[data]\nsource = "{folder / "data.npz"}"\n')
    (run / "summary.json").write_text("{}")
    return run


def enter(browser: Browser, address: str) -> tuple[Page, float]:
    """Open the address in a browser with an empty cache; return the milliseconds until the first row is drawn."""
    page = browser.new_page(bypass_csp=True)  # the conditions that are waited for are code
    page.set_default_timeout(300_000)
    page.add_init_script(WATCH)
    page.goto(address)
    page.locator(".single").wait_for()
    return page, float(page.evaluate("window.waits.first"))


def decide(page: Page, count: int) -> list[float]:
    """Press a key this many times, each time once the row is shown; return the milliseconds until the next one is."""
    waits = []
    for number in range(count):
        page.locator(".single.shown").wait_for()
        page.wait_for_timeout(150)  # a person looks, and the page loads what is beside the row
        page.keyboard.press("ars"[number % 3])
        waits.append(page.wait_for_function("window.waits.decision").json_value())
    return waits


def timed(page: Page, action: str, there: str) -> float:
    """Return the milliseconds from an action in the page until a condition holds in a drawn frame."""
    took: float = page.evaluate(
        f"""async () => {{
            const start = performance.now();
            {action};
            while (!({there})) await new Promise((done) => setTimeout(done, 5));
            return performance.now() - start;
        }}"""
    )
    return took


def processor_time(page: Page, server: int) -> float:
    """Return the seconds that the page's main thread and the server have computed so far."""
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    metrics = {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}
    fields = Path(f"/proc/{server}/stat").read_text().rpartition(")")[2].split()
    of_server = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return float(metrics["TaskDuration"]) + of_server


def measure(page: Page, decisions: int, server: int) -> dict[str, Any]:
    """Return all waits in milliseconds."""
    found: dict[str, Any] = {}
    page.locator(".single.shown").wait_for()
    found["decision while rows are compared"] = decide(page, decisions)
    page.locator(".near").first.wait_for()
    page.wait_for_function("!document.querySelector('.beside').textContent.includes('so far')")
    before = processor_time(page, server)
    found["decision"] = decide(page, decisions)
    found["processor time of a decision"] = 1000 * (processor_time(page, server) - before) / decisions
    found["last row"] = timed(page, "press('End')", "position === page.total - 1 && seen() !== undefined")
    found["what is beside a row"] = timed(page, "draw()", "document.querySelector('.near')")
    found["search"] = timed(page, "$('key').value = '777'; next(() => load())", "page.total < begin.rows")
    page.evaluate("() => { $('key').value = ''; return next(() => load()); }")
    found["filter"] = timed(page, "$('show').value = 'kept'; next(() => load())", "page.total < begin.rows")
    page.evaluate("() => { $('show').value = 'all'; return next(() => load()); }")
    found["grid of 48"] = timed(
        page, "next(toggle)", "tiles.length && tiles.every((tile) => tile.firstElementChild.shown)"
    )
    found["samples of a lot"] = timed(page, "next(openLot)", "lot && looked() && !$('lot-accept').disabled")
    found["rows of the lot"] = page.evaluate("lot.count")
    found["accepting the lot"] = timed(page, "$('lot-accept').click()", "!$('lot').open && page.decided > 1000")
    found["undoing the lot"] = timed(page, "press('u')", "page.decided < 1000")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--decisions", type=int, default=60)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    words = ["--no-sandbox"] if os.geteuid() == 0 else []
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        command = [sys.executable, "-m", "pencil", "review", str(write_run(Path(folder), options.rows)), "--no-browser"]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        browser = playwright.chromium.launch(executable_path=chromium, args=words)
        try:
            assert server.stdout is not None
            address = server.stdout.readline().strip()
            page, first = enter(browser, address)
            found = {"first page of a new server": first} | measure(page, options.decisions, server.pid)
            found["first page"] = [enter(browser, address)[1] for _ in range(10)]
        finally:
            browser.close()
            server.terminate()
            server.wait()
    print(f"{options.rows:,} rows; load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    for name, value in found.items():
        if isinstance(value, list):
            ordered = sorted(value)
            p95 = ordered[int(0.95 * (len(ordered) - 1))]
            middle = statistics.median(value)
            print(
                f"{name:<34} median {middle:6.0f} ms   p95 {p95:6.0f} ms   max {ordered[-1]:6.0f} ms   n {len(value)}"
            )
        else:
            print(f"{name:<34} {value:13,.0f}{'' if name == 'rows of the lot' else ' ms'}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
