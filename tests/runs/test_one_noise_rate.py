"""A run has one noise rate: every text about it shows the same estimate and the same interval, and no other rate."""

import html
import json
import re
from dataclasses import replace

import numpy as np
import pytest

import pencil
from pencil.cli.show import result_lines
from pencil.report import write_report
from pencil.runs.advice import explain_difference, wrong_labels
from pencil.runs.layout import SUMMARY
from pencil.runs.summary import AuditSummary

ABOUT_WRONG = re.compile(r"wrong|noise rate", re.IGNORECASE)
PERCENT = re.compile(r"(\d+(?:\.\d+)?)\s?%")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Three clouds of points with a fifth of the labels redrawn."""
    rng = np.random.default_rng(0)
    clean = rng.integers(0, 3, 400)
    x = rng.normal(size=(400, 6)).astype(np.float32) + 2.5 * np.eye(3, 6, dtype=np.float32)[clean]
    given = np.where(rng.random(400) < 0.2, rng.integers(0, 3, 400), clean)
    return pencil.fit("mlp", (x, given), out=tmp_path_factory.mktemp("one") / "run", epochs=8)


def audited(summary):
    """The same run after an audit, which found another rate."""
    rate = {"estimate": 0.333, "low": 0.222, "high": 0.444}
    tree = {"population": 400, "rows": 100, "cannot_tell": 0, "no_class": 0, "given_wrong": rate}
    audit = AuditSummary.model_validate({**tree, "corrected_right": {"estimate": 0.9, "low": 0.8, "high": 0.95}})
    return summary.model_copy(update={"audit": audit})


def renderings(run, summary, path):
    """Every text that tells how a run went, by name."""
    page = write_report(replace(run, summary=summary), path)
    labels = summary.labels
    return {
        "terminal": "\n".join(text for _, text in result_lines(summary)),
        "report": html.unescape(re.sub(r"<style>.*?</style>|<[^>]+>", " ", page.read_text(), flags=re.DOTALL)),
        "advice": wrong_labels(summary) + explain_difference(summary, labels.total_changed / labels.total),
        "notebook": str(summary.noise_rate),
        "verdict": "\n".join(summary.verdict.reasons),
        "choices": "\n".join(summary.findings["choices"]),
    }


def rates_in(text):
    """The percentages of the clauses that speak of wrong labels or of noise."""
    clauses = re.split(r"[.;:](?:\s|$)|,\s|\n", text)
    return {number for clause in clauses if ABOUT_WRONG.search(clause) for number in PERCENT.findall(clause)}


@pytest.mark.parametrize("with_audit", [False, True])
def test_every_text_shows_the_same_rate_and_no_other(run, tmp_path, with_audit):
    summary = audited(run.summary) if with_audit else run.summary
    rate = summary.noise_rate
    changed = f"{100 * summary.labels.total_changed / summary.labels.total:.1f}"
    shown = {f"{100 * value:.1f}" for value in (rate.estimate, rate.low, rate.high)}
    for name, text in renderings(run, summary, tmp_path / "r.html").items():
        assert rates_in(text) <= {*shown, "95", changed}, name
        if name in ("terminal", "report", "advice", "notebook"):
            assert str(rate) in text, name
    assert str(rate).startswith(f"{100 * rate.estimate:.1f} % (95 % interval ")


def test_the_files_hold_the_numbers_that_are_shown(run):
    """Rounded once, where they are written: no reader can round them otherwise."""
    tree = json.loads((run.path / SUMMARY).read_text())
    rate = tree["findings"]["noise_rate"]
    assert rate == run.summary.noise_rate.model_dump() == {name: round(value, 3) for name, value in rate.items()}
    assert not [name for name in tree["findings"] if "rate" in name and name != "noise_rate"]
    assert not [name for record in run.metrics for name in record if "noise" in name]


def test_changed_and_wrong_are_named_differently(run, tmp_path):
    lines = dict(result_lines(run.summary))
    assert "of the given labels" in lines["wrong"] and "wrong" not in lines["labels"]
    page = write_report(run, tmp_path / "r.html").read_text()
    assert "<dt>estimated wrong</dt>" in page and "<dt>corrections</dt>" in page
