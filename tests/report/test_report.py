"""Reports as a reader meets them: whole pages, parsed; runs that were trained, and runs made up to be nasty."""

import base64
import io
import re
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
import typer
from conftest import paint
from PIL import Image
from torch import nn
from typer.testing import CliRunner

from pencil.cli.report import report as command
from pencil.data import from_arrays
from pencil.data.examples import Splits
from pencil.data.inputs.base import TensorInputs
from pencil.data.sources.torch_dataset import DatasetInputs
from pencil.errors import DataError, RunError
from pencil.job import run_recipe
from pencil.recipe import parse
from pencil.report import gallery, page, write_comparison, write_report
from pencil.report.figures import Line, draw, draw_reliability, phases_of
from pencil.report.page import short
from pencil.report.words import page_percent, probability
from pencil.runs.label_table import LabelTable
from pencil.runs.pictures import show_row
from pencil.runs.results import build_label_table, summarize_labels
from pencil.runs.run import Run
from pencil.runs.summary import CalibrationBin, Summary

pytestmark = pytest.mark.filterwarnings("ignore:auto (cannot|needs):UserWarning")  # tested in test_auto.py

VOID = {"meta", "br", "img", "link", "hr", "input"}
HOSTILE = [
    "<script>alert(1)</script>",
    '" onload="x\' & </title>',
    "$\\frac{1}{",
    "_hidden",
    "鳥\u202egpj\x00",
    "plain",
]


class Page(HTMLParser):
    """A page taken apart; tags that do not balance are an error."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.words = [], [], []
        self.feed(text)
        self.close()
        assert self.open == [], f"left open: {self.open}"

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        assert len(dict(attrs)) == len(attrs), f"an attribute twice in {tag}"
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-3:]}"
        self.open.pop()

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.words.append(data)

    @property
    def text(self):
        return re.sub(r"\s+", " ", "".join(self.words))

    def all(self, name):
        return [attrs for tag, attrs in self.tags if tag == name]


@cache
def draw_once(title, unit, lines, phases, mark):
    return draw(title, unit, lines, phases, mark)


@pytest.fixture(autouse=True)
def _each_figure_once(monkeypatch):
    """Most tests show the same run, and drawing is what takes the time."""
    monkeypatch.setattr(
        page, "draw", lambda title, unit, lines, phases, mark: draw_once(title, unit, tuple(lines), tuple(phases), mark)
    )


def opened(path):
    """The page in a file, which must be sound: alone in the world, without scripts, accessible."""
    raw = path.read_text(encoding="utf-8")
    seen = Page(raw)
    names = {tag for tag, _ in seen.tags}
    assert not names & {"script", "iframe", "object", "link", "form"}
    for tag, attrs in seen.tags:
        for name, value in attrs.items():
            assert not name.startswith("on"), (tag, name)
            assert name in ("xmlns", "xmlns:xlink") or not re.search("https?:", value or "") or name in ("alt", "title")
            if name in ("src", "href"):
                assert value.startswith(("data:image/", "#")), (tag, value)
    assert "@import" not in raw and not re.search(r"url\((?!#)", raw)
    ids = [attrs["id"] for _, attrs in seen.tags if "id" in attrs]
    assert len(ids) == len(set(ids)), "an id twice"
    assert {attrs["href"][1:] for attrs in seen.all("use")} <= set(ids)
    assert all(attrs.get("alt") for attrs in seen.all("img"))
    assert all(attrs.get("scope") in ("row", "col") for attrs in seen.all("th"))
    plots = [attrs for attrs in seen.all("svg") if attrs.get("class") == "plot"]
    assert plots and all(attrs.get("role") == "img" for attrs in plots)
    assert len(seen.all("title")) == 1 + len(plots)
    return seen


def made_up(given, label_probs, *, classes, keys=None, clean=None, epochs=4, **summary):
    """A finished run in memory that nobody trained."""
    multilabel = given.ndim == 2
    x = np.arange(3 * len(given), dtype=np.float32).reshape(-1, 3)
    train = from_arrays(x, given, classes=classes, keys=keys, clean_labels=clean, multilabel=multilabel)
    splits, probs = Splits(train), torch.as_tensor(label_probs, dtype=torch.float32)
    phases = ["warm up", "correction", "finetune"]
    metrics = [
        {"epoch": e + 1, "phase": phases[min(2, e * 3 // epochs)], "loss": 2 / (e + 1), "labels_changed": e,
         "label_entropy": 0.1 * e, "train_accuracy": 0.5, "seconds": 1.0}
        for e in range(epochs)
    ]  # fmt: skip
    found = {
        "method": "pencil", "seed": 0, "seconds": 1.0 * epochs, "epochs": epochs, "best_epoch": epochs,
        "labels": summarize_labels(train, probs).model_dump(), "injected_noise_rate": None,
        "data": {"rows": splits.sizes(), "classes": list(train.classes), "multilabel": multilabel,
                 "input_shape": [3], "input_type": "float"},
    }  # fmt: skip
    recipe = parse({"name": "made-up", "data": {"source": "python"}, "model": {"name": "mlp"}})
    return Run(
        nn.Identity(), build_label_table(splits, probs, None), metrics, Summary.from_dict(found | summary), recipe
    )


def some_probs(rows, size, seed=0):
    return torch.distributions.Dirichlet(torch.full((size,), 0.4)).sample((rows,))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Pictures in an npz file with clean labels, a test set and hostile names, and a run on them."""
    folder = tmp_path_factory.mktemp("trained")
    rng = np.random.default_rng(0)
    clean = np.arange(120) % 3
    x = rng.integers(0, 60, (120, 8, 8), dtype=np.uint8)
    x[np.arange(120), clean * 2] = 255
    given = np.where(rng.random(120) < 0.3, (clean + 1) % 3, clean)
    np.savez(
        folder / "bars.npz", x=x[:90], y=given[:90], clean_labels=clean[:90], x_test=x[90:], y_test=clean[90:],
        classes=HOSTILE[:3], keys=[f"<b>{i}</b>.png" for i in range(90)],
    )  # fmt: skip
    recipe = parse(
        {
            "data": {"source": str(folder / "bars.npz")},
            "model": {"name": "mlp"},
            "method": {"name": "pencil", "pull": 0.0, "step": 8.0},
            "seed": 2,  # a run that may judge labels: with few held-out rows it depends on luck
            "training": {"epochs": 9, "batch_size": 16},
        }
    )
    run_recipe(recipe, folder / "run", progress=False)
    return folder / "run"


def test_a_page_says_all_there_is_to_say(trained):
    made = write_report(trained)
    assert made == trained / "report.html"
    seen = opened(made)
    for words in (
        "What to do next", "of the training labels were right before", "The test accuracy of the network is",
        "Phases: backbone (epoch",
        "Labels right", "Label entropy", "Labels changed", "Changes between classes", "Class by class",
        "The most confident corrections", "Suspects that did not change",
        "Repeat this run", "data fingerprint, train", 'name = "pencil"',
        f"pencil train {trained}/recipe.toml --out {trained}-again",
    ):  # fmt: skip
        assert words in seen.text, words
    pictures = [attrs["src"] for attrs in seen.all("img")]
    assert pictures
    image = Image.open(io.BytesIO(base64.b64decode(pictures[0].removeprefix("data:image/png;base64,"))))
    assert image.size == (8, 8)


def test_the_same_run_gives_the_same_bytes(trained, tmp_path, monkeypatch):
    monkeypatch.setattr(page, "draw", draw)
    one, other = (write_report(trained, tmp_path / name) for name in ("one.html", "other.html"))
    assert one.read_bytes() == other.read_bytes()
    pair = [write_comparison([trained, trained], tmp_path / f"{name}.html").read_bytes() for name in "ab"]
    assert pair[0] == pair[1]


def test_figures_on_the_page_are_those_of_the_table(tmp_path):
    given = np.array([0] * 6 + [1] * 4)
    probs = torch.tensor([[0.95, 0.05]] * 4 + [[0.04, 0.96]] * 2 + [[0.1, 0.9]] * 3 + [[0.55, 0.45]])
    seen = opened(write_report(made_up(given, probs, classes=["cat", "dog"]), tmp_path / "r.html"))
    assert "30.0 % of the labels changed" in seen.text
    assert "Of 10 labels, 3 were changed: 30.0 %" in seen.text
    assert "2 of the changes (66.7 %) have a confidence of at least 90 %" in seen.text
    assert "suspects3worth a look: the corrections" in re.sub(r"\s*\n\s*", "", "".join(seen.words))
    assert "from “cat” to “dog” (2 labels)" in seen.text
    raw = (tmp_path / "r.html").read_text()
    lines = re.findall(r"<tr><th scope=\"row\"><bdi>(\w+)</bdi></th>(.*?)</tr>", raw)
    cells = [(name, re.findall(r">([^<]+)</td>", rest)) for name, rest in lines]
    assert cells[:2] == [("cat", ["4", "2"]), ("dog", ["1", "3"])]
    assert ("cat", ["6", "5", "2", "1", "33.3\N{NO-BREAK SPACE}%"]) in cells


def test_harm_is_not_hidden(tmp_path):
    given = np.arange(8) % 2
    run = made_up(given, np.eye(2)[1 - given] * 0.8 + 0.1, classes=["a", "b"], clean=given)
    seen = opened(write_report(run, tmp_path / "r.html"))
    assert "The changes did more harm than good" in seen.text
    assert "0 changes of training labels repaired a wrong label, 8 broke a right label" in seen.text


def test_names_cannot_break_out(tmp_path):
    rng = np.random.default_rng(0)
    keys = [f"{HOSTILE[i % 6]}{i}" for i in range(60)]
    run = made_up(rng.integers(0, 6, 60), some_probs(60, 6), classes=HOSTILE, keys=keys)
    metrics = [record | {"phase": HOSTILE[i]} for i, record in enumerate(run.metrics)]
    summary = run.summary.model_copy(update={"method": "</style><script>x</script>.py:M"})
    recipe = run.recipe.model_copy(update={"name": "<img src=x onerror=y>", "description": "</pre><script>"})
    seen = opened(write_report(replace(run, metrics=metrics, summary=summary, recipe=recipe), tmp_path / "r.html"))
    for words in ("<script>alert(1)</script>", '" onload="x\' & </title>', "$\\frac{1}{", "_hidden", "鳥"):
        assert words in seen.text
    raw = (tmp_path / "r.html").read_text()
    assert "\u202e" not in raw.split("<pre>")[0] and "\x00" not in raw


def test_several_classes_at_once(tmp_path):
    rng = np.random.default_rng(0)
    given = (rng.random((40, 3)) < 0.5).astype(np.float32)
    given[0], given[1:, 2] = [1, 1, 0], 0
    given[3, 1] = np.nan
    probs = np.where(np.isnan(given), 0.5, given * 0.9 + 0.05)
    probs[5] = 1 - probs[5]
    probs[6, 0] = 0.52
    run = made_up(given, probs, classes=["sea & sky", "<sun>", "never"])
    seen = opened(write_report(run, tmp_path / "r.html"))
    changed = run.summary.labels.changed
    assert f"Of 119 known labels (a row and a class each), {changed} were changed" in seen.text
    assert "added" in seen.text and "removed" in seen.text and "Changes between classes" not in seen.text
    assert "now absent" in seen.text or "now present" in seen.text
    assert "Entries that agree with the network" in seen.text
    assert "passed as Python objects" in seen.text and "call pencil.fit again" in seen.text


def test_nothing_known_but_the_labels(tmp_path):
    """No clean labels, no validation, no test set, one epoch, nothing changed."""
    given = np.arange(12) % 3
    seen = opened(
        write_report(made_up(given, np.eye(3)[given], classes=["a", "b", "c"], epochs=1), tmp_path / "r.html")
    )
    assert "No label changed" in seen.text and "No other label is a suspect" in seen.text
    assert "There is no test set" in seen.text and "There are none." in seen.text
    assert "Labels right" not in seen.text and "dotted line" not in seen.text
    assert "No label changed." in seen.text


@pytest.mark.parametrize(("rows", "size"), [(50_000, 10), (4_000, 1_000)])
def test_fifty_thousand_rows_stay_small(tmp_path, rows, size):
    rng = np.random.default_rng(0)
    given = np.concatenate([np.arange(size), rng.integers(0, size, rows - size)])
    classes = [f"class number {k} with a long name" for k in range(size)]
    keys = [f"{'folder/' * 20}{i}.jpg" for i in range(rows)]
    probs = some_probs(rows, size)
    made = write_report(made_up(given, probs, classes=classes, keys=keys, epochs=200), tmp_path / "r.html")
    assert made.stat().st_size < 1_000_000
    seen = opened(made)
    assert ("988 others are omitted" in seen.text) == ("900 others are omitted" in seen.text) == (size == 1000)


def test_data_that_is_gone_is_no_reason_to_fail(trained, tmp_path, monkeypatch):
    def gone(_settings, *, local):
        raise DataError("'bars.npz' does not exist <b>")

    monkeypatch.setattr(gallery, "load", gone)
    seen = opened(write_report(trained, tmp_path / "r.html"))
    assert not seen.all("img")
    assert "The data could not be loaded: 'bars.npz' does not exist <b>" in seen.text
    assert "<b>1</b>.png" in seen.text or "</b>.png" in seen.text

    def broken(_settings, *, local):
        raise ZeroDivisionError

    monkeypatch.setattr(gallery, "load", broken)
    assert "loaded: ZeroDivisionError" in opened(write_report(trained, tmp_path / "r.html")).text
    seen = opened(write_report(trained, tmp_path / "r.html", with_data=False))
    assert "was not loaded" in seen.text and not seen.all("img")


def test_data_that_has_changed_is_named(trained, tmp_path, monkeypatch):
    load = gallery.load

    def other(settings, *, local):
        splits = load(settings, local=local)
        return Splits(splits.train.subset(torch.arange(60)))

    monkeypatch.setattr(gallery, "load", other)
    assert "The data has changed since this run" in opened(write_report(trained, tmp_path / "r.html")).text


def test_splits_at_hand_are_not_loaded_again(trained, tmp_path, monkeypatch):
    from pencil.data.read import load
    from pencil.recipe import read

    splits = load(parse(read(trained / "recipe.toml"), with_method=False).data)
    monkeypatch.setattr(gallery, "load", lambda _settings, **_: pytest.fail("the data was loaded again"))
    seen = opened(write_report(trained, tmp_path / "r.html", splits=splits))
    assert seen.all("img")


def test_images_in_files(pets, tmp_path):
    paint(pets / "cat/large.png", size=(300, 200))
    recipe = parse(
        {
            "data": {"source": str(pets), "resize": 8, "noise": {"kind": "symmetric", "rate": 0.5}, "validation": 0.0},
            "model": {"name": "mlp"},
            "training": {"epochs": 3, "batch_size": 8},
        }
    )
    run = run_recipe(recipe, tmp_path / "run", progress=False)
    given = run.labels["given"].cast("string").to_pylist()
    flipped = run.labels.table.set_column(3, "corrected", [["dog" if name == "cat" else "cat" for name in given]])
    flipped = flipped.set_column(flipped.column_names.index("changed"), "changed", [[True] * len(given)])
    (pets / "dog/3.png").write_bytes(b"not an image")
    seen = opened(write_report(replace(run, labels=LabelTable(flipped)), tmp_path / "r.html"))
    pictures = [attrs["src"].split(";")[0] for attrs in seen.all("img") if "corrected" in attrs["alt"]]
    assert set(pictures) == {"data:image/png", "data:image/jpeg"}
    shown = {attrs["alt"].split(":")[0] for attrs in seen.all("img")}
    assert "dog/3.png" not in shown and "dog/4.png" in shown and "dog/3.png" in seen.text
    assert f"with mlp on {pets.name};" in seen.text and str(pets) in seen.text  # the whole path is in the recipe


def test_runs_side_by_side(trained, tmp_path):
    rng = np.random.default_rng(0)
    odd = made_up(rng.integers(0, 3, 30), some_probs(30, 3), classes=HOSTILE[:3], method="<script>", epochs=40)
    seen = opened(write_comparison([trained, odd, trained], tmp_path / "c.html"))
    for words in ("Comparison of 3 runs", "Test accuracy, last epoch", "B: made-up", "method.step", "A and C81100.0"):
        assert words in seen.text, words
    assert "A and B" not in seen.text  # no rows in common
    with pytest.raises(RunError, match="expected at least two"):
        write_comparison([trained], tmp_path / "d.html")


def test_what_is_there_is_not_overwritten_unless_it_is_a_report(trained, tmp_path):
    precious = tmp_path / "thesis.html"
    precious.write_text("years of work")
    with pytest.raises(RunError, match="is not a pencil report"):
        write_report(trained, precious)
    assert precious.read_text() == "years of work"
    with pytest.raises(RunError, match="is a folder"):
        write_report(trained, tmp_path)
    with pytest.raises(RunError, match="cannot write"):
        write_report(trained, tmp_path / "nowhere/r.html")
    write_report(trained)
    write_report(trained)
    with pytest.raises(RunError, match="has no directory"):
        write_report(made_up(np.arange(4) % 2, np.eye(2)[np.arange(4) % 2], classes=["a", "b"]))
    with pytest.raises(RunError, match="is not a run directory"):
        write_report(tmp_path)


def test_damage_is_named(trained, tmp_path):
    import shutil

    copy = shutil.copytree(trained, tmp_path / "copy")
    (copy / "metrics.jsonl").write_text("{")
    with pytest.raises(RunError, match=r"is damaged: metrics\.jsonl"):
        write_report(copy)


def test_the_command(trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    app = typer.Typer()
    app.command()(command)
    runner = CliRunner()
    done = runner.invoke(app, [str(trained), "--out", "r.html"])
    assert (done.exit_code, done.output.strip()) == (0, "r.html")
    done = runner.invoke(app, [str(trained), str(trained), "--without-data"])
    assert done.output.strip() == "comparison.html"
    opened(tmp_path / "comparison.html")


def test_phases_and_odd_curves():
    records = [{"phase": "a", "phase_epoch": 1}, {"phase": "a", "phase_epoch": 2}, {"phase": "a", "phase_epoch": 1}]
    assert [(p.name, p.first, p.last) for p in phases_of([*records, {"phase": "b"}])] == [
        ("a", 1, 2), ("a", 3, 3), ("b", 4, 4),
    ]  # fmt: skip
    nan = float("nan")
    for values in ((nan, 1.0, nan), (0.0, 0.0), (nan,), (1e9, 2e9), (-1.0, 3.0)):
        plot = draw("Odd", "x", [Line("a", values)])
        assert "nan" not in plot.svg.lower()
    lines = [Line(str(place), (1.0, 2.0), place) for place in range(24)]
    assert len({(line.colour, line.dash) for line in lines}) >= 12


def test_small_words():
    assert [page_percent(share) for share in (0, 0.00012, 0.1234, 1)] == [
        f"{number}\N{NO-BREAK SPACE}%" for number in ("0.0", "0.012", "12.3", "100.0")
    ]
    assert probability(0.99999) == "over 99.9\N{NO-BREAK SPACE}%"
    assert short("a" * 100, 20) == "a" * 10 + "…" + "a" * 9
    assert short("a\u202eb\nc") == "a�b�c" and short("क्‍ष") == "क्‍ष"


def test_inputs_that_are_no_images():
    assert show_row(TensorInputs(torch.tensor([[1.0, 2.5]])), 0).words == "1, 2.5"
    assert show_row(TensorInputs(torch.zeros(1, 64)), 0).words == "0, 0, 0, 0, 0, 0, ... (64 numbers)"
    assert "5 x 4" in show_row(TensorInputs(torch.zeros(1, 5, 4)), 0).words
    assert show_row(TensorInputs(torch.rand(1, 3, 200, 100)), 0).picture.startswith("data:image/jpeg")
    assert show_row(TensorInputs(torch.zeros(1, 1, 4, 4)), 0).coarse
    pairs = DatasetInputs([(torch.rand(3, 64, 64), 0), (torch.tensor([1.0, 2.0]), 1)], workers=2)
    assert show_row(pairs, 0).picture and show_row(pairs, 1).words == "1, 2"
    holey = TensorInputs(torch.zeros(2, 3), readable=torch.tensor([True, False]))
    assert show_row(holey, 0) and show_row(holey, 1) is None


def test_reliability_is_drawn_and_told():
    bins = [CalibrationBin(rows=30, confidence=0.55, right=0.5), CalibrationBin(rows=900, confidence=0.97, right=0.98)]
    svg = draw_reliability(bins)
    assert "<title>Confidence and fraction right: 30 labels with confidence 55%, 50% right; " in svg
    assert "900 labels with confidence 97%, 98% right</title>" in svg
    assert svg.count("<use") + svg.count("<path") > 2  # dots, a line and the diagonal
