"""The pages say what the figures are: generated parts, numbers in prose, and miniatures of every experiment."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))
import pages  # noqa: E402 - a script, not a package
import results  # noqa: E402

FIGURES = pages.read_figures()
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
COMPLETE = list(pages.exempt())
"""The files in which every decimal and every percentage has to be covered."""
SLOW = {"detection", "photos", "canvases", "tables", "kl-analysis"}
"""Miniatures that would take the others to more than a minute of a processor."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_generated_parts_are_what_the_figures_give(page):
    for part in pages.BLOCK.finditer(page.read_text(encoding="utf-8")):
        assert part[0] == part[1] + pages.block(part[2], FIGURES) + part[3], (
            "run `python benchmarks/results.py --pages`"
        )


@pytest.mark.parametrize(("file", "claim"), [(file, one) for file, some in pages.claims().items() for one in some])
def test_a_number_in_prose_is_its_figure(file, claim):
    text = (ROOT / file).read_text(encoding="utf-8")
    match = pages.find_claim(text, claim)
    assert match is not None, f"{file} does not say: {claim}"
    assert list(match.groups()) == [pages.formatted(place, FIGURES) for place in pages.PLACE.finditer(claim)]


@pytest.mark.parametrize("file", COMPLETE)
def test_every_number_is_measured_or_a_setting(file):
    text = (ROOT / file).read_text(encoding="utf-8")
    assert pages.uncovered(text, file) == [], "add a claim or a setting to benchmarks/claims.toml"
    for words in pages.exempt()[file]:
        assert " ".join(words.split()) in " ".join(text.split()), f"{file} no longer has these words"


def test_a_new_number_is_noticed():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert pages.uncovered(text + "\nNow 99.9 % and 0.5 points better, `0.3` in code.\n", "README.md") == [
        "99.9",
        "0.5",
    ]
    changed = text.replace("± ", "± 1", 1)
    assert changed != text and pages.with_numbers(changed, pages.claims()["README.md"][1], FIGURES) == text


def test_pages_cover_all_experiments_and_experiments_fit_into_six_hours():
    """Numbers are checked on all pages of results except two, whose prose tells of single measurements by hand."""
    prose = {"docs/results/detection.md", "docs/results/cifar10.md"}
    assert {f"docs/results/{page.name}" for page in (ROOT / "docs/results").glob("*.md")} - prose < set(COMPLETE)
    shown = {part[2].split(".")[0] for page in PAGES for part in pages.BLOCK.finditer(page.read_text(encoding="utf-8"))}
    assert shown == {*pages.experiments(), "index"}
    assert sum(one["minutes"] for one in pages.experiments().values()) <= 360


def test_grid_names_who_is_first_where_we_are_not():
    def entry(noise, method, *values):
        found = {"dataset": "d", "noise": noise, "method": method, "seed": 0}
        return [{**found, "seed": seed, "last": value} for seed, value in enumerate(values, 1)]

    runs = [
        *entry("a", "auto", 90.0, 92.0),
        *entry("a", "elr", 93.5),
        *entry("b", "auto", 80.0),
        *entry("b", "elr", 80.0),
    ]
    figures = pages.grouped(runs, ["dataset", "noise", "method"], ["last"])
    table = {"rows": ["noise"], "columns": "method", "measure": "last", "first": "auto", "mean": True}
    assert pages.grid(table, figures).splitlines() == [
        "| noise | auto | elr | first |",
        "|---|---|---|---|",
        "| a | 91.0 ± 1.4 (2) | 93.5 (1) | **elr**, by 3.5 |",  # where both have a run,
        "| b | 80.0 (1) | 80.0 (1) | auto |",
        "| **mean** | 85.0 (1) | 86.8 (1) | **elr**, by 1.8 |",
    ]
    assert pages.counts(table, figures) == {"rows": 2, "first": 1, "first or second": 2}


def test_what_was_left_out_is_measured_once_its_file_is_there(tmp_path):
    experiment, out, file = {"commands": ["python -c pass"], "uses": ["spam.csv"]}, tmp_path / "out", "spam.csv"
    figures = {"complete": True, "left_out": [file]}
    for _ in range(2):  # the same command is not repeated
        assert results.run_experiment(experiment, out, 1, tmp_path, "commands") == [file]
    assert len(list(out.glob("log-*"))) == 1 and results.up_to_date("text", figures, tmp_path)
    (tmp_path / file).touch()
    assert not results.up_to_date("text", figures, tmp_path)
    assert results.run_experiment(experiment, out, 1, tmp_path, "commands") == [] and len(list(out.glob("log-*"))) == 2


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Small files of the kinds that pencil does not ship."""
    folder, rng = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    classes = np.arange(120) % 2
    words = (("good", "fine", "great"), ("bad", "dull", "poor"))
    texts = [" ".join(rng.choice(words[one], 4)) for one in classes]
    names = np.array(["positive", "negative"])
    given = np.where(rng.random(120) < 0.1, names[1 - classes], names[classes])
    lines = [
        f"{row},{text},{one},{names[gold]}"
        for row, (text, one, gold) in enumerate(zip(texts, given, classes, strict=True))
    ]
    (folder / "sentiment.csv").write_text("\n".join(["row,text,first_annotator,gold", *lines]))
    votes = [f"{row},{who},{given[row] if who else names[classes[row]]}" for row in range(120) for who in range(3)]
    (folder / "sentiment_votes.csv").write_text("\n".join(["row,annotator,label", *votes]))
    x = classes[:, None, None] * 100 + rng.integers(0, 100, (120, 8, 8))
    np.savez(folder / "faces-original.npz", x=x.astype(np.uint8), y=classes, clean_labels=classes)
    return folder


def names_commits():
    """Whether git knows the commit of these files, which are not always a repository (an archive, for instance)."""
    asked = ["git", "-C", ROOT, "rev-parse", "--verify", "--quiet", "HEAD:src/pencil"]
    return shutil.which("git") is not None and not subprocess.run(asked, capture_output=True).returncode


@pytest.mark.skipif(not names_commits(), reason="figures belong to a commit, and these files have none")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in pages.experiments()]
)
def test_miniature_of_an_experiment_writes_figures_and_pages(name, tmp_path, data):
    """Everything that `make results` does, in seconds: commands, figures, tables and the index."""
    site = tmp_path / "site"
    shutil.copytree(ROOT / "docs", site / "docs")
    shutil.copy(ROOT / "README.md", site)
    (site / "docs/results/figures" / f"{name}.json").unlink(missing_ok=True)
    command = [sys.executable, ROOT / "benchmarks/results.py", "--miniature", "--jobs", "1", "--only", name]
    command += ["--site", site, "--work", tmp_path / "work", "--data", data]
    done = subprocess.run(command, capture_output=True, text=True)
    logs = "\n".join(path.read_text() for path in (tmp_path / "work").rglob("log-*.txt"))
    assert done.returncode == 0, done.stdout + done.stderr + logs
    found = json.loads((site / "docs/results/figures" / f"{name}.json").read_text(encoding="utf-8"))
    assert found["complete"] and found["figures"] and found["machine"]["cores"]
    page = (site / "docs" / pages.experiments()[name]["page"]).read_text(encoding="utf-8")
    shown = [part for part in pages.BLOCK.finditer(page) if part[2].startswith(f"{name}.")]
    assert any(f"Commit `{found['commit']}`" in part[0] for part in shown)
