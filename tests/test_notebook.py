"""Objects on the last line of a notebook cell: a short line, and of a run a small page; progress as one output."""

import re
import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from review_runs import suspecting

import pencil
from pencil.data.noise import flip, symmetric_matrix
from pencil.labels import MultilabelStore, TopKLabelStore
from pencil.labels.reading import read_entries, read_labels
from pencil.loggers.progress import SECONDS_PER_UPDATE, NotebookBar, show_progress
from pencil.methods import Phase, Terms
from pencil.methods.schedules import Constant

LONGEST = 400
"""Characters of any object: five lines of a notebook."""
HOSTILE = "<script>alert('x')</script>\x1b[2J" + "long " * 300


@pytest.fixture(scope="module")
def run():
    clean = np.arange(160) % 2
    noise = np.random.default_rng(0).integers(0, 60, (160, 6, 6))
    images = (noise + 150 * clean[:, None, None]).astype(np.uint8)
    given = flip(clean, symmetric_matrix(2, 0.2), seed=0).labels
    return pencil.fit("small_cnn", (images, given), classes=["fine", HOSTILE], method="elr", epochs=8)


def test_every_public_object_is_a_short_line(run):
    many = torch.arange(3000) % 1000
    probs = torch.eye(1000)[many]
    entries = torch.eye(4)[torch.arange(4)]
    objects = [
        run,
        run.data,
        run.labels,
        run.labels.given_labels,
        run.summary,
        run.summary.data,
        run.summary.labels,
        run.recipe,
        pencil.PencilClassifier(),
        pencil.LabelStore(many, 1000),
        TopKLabelStore(many, 1000, k=8),
        MultilabelStore(entries, probability=0.9),
        pencil.find_issues(many.numpy()[:60] % 3, np.eye(3)[many.numpy()[:60] % 3] * 0.9 + 0.03),
        read_labels(probs, many),
        read_entries(entries, entries),
    ]
    for shown in objects:
        assert repr(shown).startswith(type(shown).__name__)
        for text in (repr(shown), str(shown)):
            assert len(text) <= LONGEST and "\x1b" not in text, text
    assert "labels changed" in repr(run) and " suspects, " in repr(run) and run.summary.verdict.level in repr(run)


def test_the_page_of_a_run_is_small_self_contained_and_escaped(run):
    page = run._repr_html_()
    assert run.summary.verdict.level in page and f"corrections of {run.summary.labels.total:,} labels" in page
    assert f"{run.summary.labels.suspects:,}</b><br><small>suspects" in page
    assert run.summary.labels.total_changed > 0 and "The first labels to fix" in page
    assert page.count("<img") == min(6, run.summary.labels.total_changed) and 'src="data:image/png;base64,' in page
    assert "<script" not in page and "\x1b" not in page and "&lt;script&gt;" in page
    assert not re.search(r"https?:|\bon\w+=|url\(", page) and len(page) < 20_000
    without = re.sub(
        r'src="data:[^"]*"', "", pencil.runs.run.Run(run.model, run.labels, [], run.summary, run.recipe)._repr_html_()
    )
    assert "<img" not in without and "fine" in without  # a run that was opened: keys and labels


def test_a_label_table_shows_its_first_rows(run):
    page = run.labels.to_fix()._repr_html_()
    assert repr(run.labels.to_fix()) in page and page.count("<tr>") == 1 + min(6, run.summary.labels.total_changed)
    assert "<script" not in page and "&lt;script&gt;" in run.labels._repr_html_() and len(page) < 5_000
    assert "<table" not in run.labels.slice(0, 0)._repr_html_()


def test_a_run_without_changes_says_so(run):
    kept = run.labels.filter(~run.labels.changed)
    page = replace(run, labels=kept.filter(~kept.suspect))._repr_html_()
    assert "No label was changed." in page and "The first" not in page
    page = replace(run, labels=suspecting(kept, [0]))._repr_html_()
    assert "No label was changed." in page and "The first suspects:" in page


class Notebook:
    """What IPython has in a notebook, as far as it is used: outputs by number, and how often each was replaced."""

    def __init__(self, monkeypatch):
        self.outputs, self.updates = [], 0
        shell = SimpleNamespace(kernel=object())
        package, display = ModuleType("IPython"), ModuleType("IPython.display")
        package.get_ipython, display.display = lambda: shell, self.display
        monkeypatch.setitem(sys.modules, "IPython", package)
        monkeypatch.setitem(sys.modules, "IPython.display", display)

    def display(self, page, *, raw, display_id):
        assert raw and display_id
        self.outputs.append(page)
        return SimpleNamespace(update=self.update)

    def update(self, page, *, raw):
        assert raw
        self.outputs[-1], self.updates = page, self.updates + 1


def test_progress_in_a_notebook_is_one_output(monkeypatch, capsys):
    notebook = Notebook(monkeypatch)
    with show_progress(None) as (bar,):
        assert isinstance(bar, NotebookBar)
        now = iter(np.arange(0.0, 1000.0, SECONDS_PER_UPDATE / 10).tolist())
        bar.now = lambda: next(now)
        phases = (Phase("<b>", 4, lambda *_: Terms(torch.zeros(())), Constant(0.1)),)
        bar.on_choice("columns: <a>")
        bar.on_start(phases, 50, 0, 0)
        for epoch in range(1, 5):
            for _ in range(50):
                bar.on_step()
            bar.on_epoch_end({"epoch": epoch, "phase": "<b>", "loss": 0.5, "validation_accuracy": 0.75})
    assert len(notebook.outputs) == 1 and 10 < notebook.updates < 100  # of 200 steps
    page = notebook.outputs[0]
    assert "columns: &lt;a&gt;" in page["text/html"] and "&lt;b&gt;" in page["text/html"]
    assert '<progress max="200" value="200' in page["text/html"] and "held-out 75.0%" in page["text/plain"]
    assert capsys.readouterr() == ("", "")


def test_a_notebook_that_wants_no_progress_gets_none(monkeypatch):
    notebook = Notebook(monkeypatch)
    with show_progress(False) as observers:
        assert observers == ()
    assert notebook.outputs == []
