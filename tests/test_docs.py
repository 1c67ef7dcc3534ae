"""Every Python snippet, every `pencil` command and every relative link in the pages really works."""

import inspect
import json
import multiprocessing
import os
import re
import runpy
import shlex
import subprocess
import sys
import warnings
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from commands import pencil
from PIL import Image

from pencil.data.datasets import digits
from pencil.methods import METHODS, Constant, Cosine, StepDecay

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
FORK = multiprocessing.get_context("fork")
FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
TEST = re.compile(r"`([\w/]*\.py)?(?:::(\w+))?`")
LINK = re.compile(r"\[[^\]]*\]\(([^)#:\s]*)(#[^)]*)?\)")


def blocks(language: str) -> list[pytest.param]:
    return [
        pytest.param(code, id=f"{page.name}-{number}")
        for page in PAGES
        for number, (kind, code) in enumerate(FENCE.findall(page.read_text()))
        if kind == language
    ]


@pytest.mark.parametrize("code", blocks("python"))
def test_python_snippet_runs(code, tmp_path):
    """As a user would: a script of its own in an empty folder, with warnings as errors."""
    (tmp_path / "snippet.py").write_text(code)
    process = FORK.Process(target=run_script, args=(tmp_path, "snippet.py"))
    process.start()
    process.join()
    assert process.exitcode == 0, (tmp_path / "output").read_text()


def run_script(folder, name):
    """Run a script in a process of its own, in which torch and pencil are imported already."""
    sys.settrace(None)  # coverage would take as long as the script
    os.chdir(folder)
    with open("output", "w") as output:  # noqa: PTH123 - beside the script
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
    sys.argv, sys.path[0] = [name], str(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "`isinstance.treespec, LeafSpec.`", FutureWarning)  # lightning, newest torch
        runpy.run_path(name, run_name="__main__")


@pytest.fixture
def workplace(tmp_path):
    """A folder with the data and the reviews that the pages talk about, and nothing else."""
    splits = digits()
    train, test = splits.train, splits.test
    values = train.inputs.values
    np.savez(tmp_path / "shoes.npz", x=values[train.rows][:300], y=train.given_labels[:300])
    np.savez(tmp_path / "new.npz", x=values[test.rows][:5])
    rng = np.random.default_rng(0)
    scenes = rng.random((200, 4)) < 0.4
    x = scenes @ rng.normal(size=(4, 8)) + 0.3 * rng.normal(size=(200, 8))
    np.savez(tmp_path / "scenes.npz", x=x, y=scenes, classes=["sea", "sky", "sun", "tree"])
    lines = ["path,tag"]
    for i, image in enumerate(values[train.rows][:60, 0].numpy()):
        name = ("cat", "dog")[i % 2]
        (tmp_path / "photos" / name).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(tmp_path / "photos" / name / f"{i}.png")
        (tmp_path / "album" / name).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).resize((72, 72)).save(tmp_path / "album" / name / f"{i}.png")
        (tmp_path / "clothes" / name).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(tmp_path / "clothes" / name / f"{i}.png")
        lines.append(f"photos/{name}/{i}.png,{name}")
    (tmp_path / "crawl.csv").write_text("\n".join(lines))
    tickets = ["priority,hours,customer,message,label"]
    for i in range(80):
        words = ("the invoice is wrong and I was charged twice", "the page does not load on my new phone")[i % 2]
        tickets.append(f"{i % 3},{i % 7 or ''},C-{i},{words} {i},{('billing', 'technical')[i % 2]}")
    (tmp_path / "tickets.csv").write_text("\n".join(tickets))
    decision = {"key": "7", "split": "train", "decision": "other", "label": "3", "given": "7", "corrected": "7"}
    (tmp_path / "reviews.jsonl").write_text(json.dumps(decision) + "\n")
    return tmp_path


@pytest.mark.parametrize("code", blocks("console"))
def test_console_commands_run_one_after_the_other(code, workplace):
    """As printed, but for a short budget; `make` targets have tests of their own."""
    for line in code.splitlines():
        command = line.removeprefix("$ ").split("  #")[0].strip()
        if command.startswith("pencil "):
            words = shlex.split(command)[1:]
            if words[0] == "labels" and "--out" in words:
                words.append("--anyway")  # after three epochs no run is reliable
            if "--budget" in words:
                words[words.index("--budget") + 1] = "2s"
            elif words[0] == "train":
                words += ["--epochs", "3"]
            if words[0] in ("review", "audit") and "--import" not in words:
                opens_a_page(words, workplace)
            else:
                pencil(*words, cwd=workplace)


def opens_a_page(words, folder):
    """The command serves its page until it is stopped; a person would be at it now."""
    command = [sys.executable, "-m", "pencil", *words, "--no-browser"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        address = server.stdout.readline()
        server.kill()
        assert address.startswith("http://127.0.0.1:"), server.stderr.read()


@pytest.mark.parametrize(("page", "without"), [("fidelity.md", 5), ("security.md", 9)])
def test_every_test_that_a_page_names_exists(page, without):
    """`file.py::name` in the last column; `::name` alone is in the file before it. A few rows are without a test."""
    rows = [line for line in (ROOT / "docs" / page).read_text().splitlines() if line.startswith("| ")]
    named = 0
    for row in rows:
        file = ""
        for found, name in TEST.findall(row.rsplit("|", 2)[1]):
            file, named = found or file, named + 1
            path = ROOT / "tests" / file
            assert path.is_file(), f"{page} names tests/{file}"
            assert not name or f"def {name}(" in path.read_text(), f"{page} names {file}::{name}"
    assert named >= len(rows) - without  # headers, and the few rows that no test can pin


def test_every_key_of_every_method_is_on_the_page_with_its_default():
    section = (ROOT / "docs/methods.md").read_text().split("## Keys and defaults")[1].split("\n## ")[0]
    cells = [line.split(" | ") for line in section.splitlines() if line.startswith("| `")]
    written = {name: row[1] for row in cells for name in re.findall(r"`(\w+)`", row[0])}
    assert written == {name: keys_and_defaults(method) for name, method in METHODS.items()}


def keys_and_defaults(method) -> str:
    """The arguments of a constructor, as the page writes them."""
    arguments = inspect.signature(method).parameters.values()
    return ", ".join(f"`{one.name}` {default_in_words(one.default)}" for one in arguments)


def default_in_words(value) -> str:
    """A schedule that is none of these three is an error: the page has no words for it yet."""
    match value:
        case None:
            words = "not set"
        case bool():
            words = str(value).lower()
        case str():
            words = f'`"{value}"`'
        case Constant():
            words = f"{value.value:g}"
        case Cosine():
            assert value == Cosine(value.start)
            words = f"cosine from {value.start:g}"
        case StepDecay():
            words = f"{value.start:g} (times {value.factor:g} at {' and '.join(f'{mark:g}' for mark in value.at)})"
        case _:
            words = f"{value:g}" if float(f"{value:g}") == value else str(Fraction(value).limit_denominator(100))
    return words


def test_the_gallery_says_what_the_runs_said():
    """Each JSON file beside a picture is a row of the page's table; the reader's counts add up."""
    page = (ROOT / "docs/gallery.md").read_text()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line[:3] == "| ["]
    rows = {tuple(row[5:] + row[1:2]): row for row in cells}
    pictures = sorted((ROOT / "docs/pictures/gallery").glob("*.json"))
    assert len(rows) == len(cells) == len(pictures)
    for path in pictures:
        run = json.loads(path.read_text())
        rate, low, high = (f"{100 * one:.1f}" for one in run["noise_rate"])
        said = (
            run["verdict"],
            f"{rate} % ({low} to {high} %)",
            *(f"{run[name]:,}" for name in ("corrections", "suspects")),
        )
        row = rows[*said, f"{run['rows']:,}"]
        assert sum(map(int, row[2:5])) == len(run["first"]) == 20
        assert path.with_suffix(".jpg").stat().st_size < 150_000 and f"pictures/gallery/{path.stem}.jpg" in page


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_relative_links_lead_somewhere(page):
    for target, anchor in LINK.findall(page.read_text()):
        linked = page.parent / target if target else page
        assert linked.exists(), f"{page.name} links to {target}"
        assert not anchor or anchor[1:] in headings(linked), f"{page.name} links to {target}{anchor}"


def headings(page: Path) -> set[str]:
    """The anchors of a page's headings, as a git host makes them."""
    found = re.findall(r"(?m)^#+ (.+)$", re.sub(r"(?ms)^```.*?^```", "", page.read_text()))
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in found}
