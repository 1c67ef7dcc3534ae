"""Every example runs, says what it claims, and is short."""

import csv
import importlib
import json
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

from pencil.data.datasets.small import DEBIAN_FASHION_MNIST

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture
def example(monkeypatch, tmp_path):
    """An example by name, as it would be in a folder of the reader's own."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.chdir(tmp_path)
    yield importlib.import_module
    for path in EXAMPLES.glob("*.py"):
        sys.modules.pop(path.stem, None)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_an_example_is_short(path):
    assert path.read_text().count("\n") <= 80


def test_every_example_is_tested_and_explained():
    page = (EXAMPLES.parent / "docs" / "integrations.md").read_text()
    for path in EXAMPLES.glob("*.py"):
        assert f'example("{path.stem}")' in Path(__file__).read_text()
        assert f"examples/{path.name}" in page


def run_notebook(path):
    """Run the code cells of a notebook one after the other, and return the names that they leave."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4
    names = {"__name__": "__main__"}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [] and cell["execution_count"] is None, "clear the outputs before a commit"
            exec(compile("".join(cell["source"]), f"{path.name}, {cell['id']}", "exec"), names)
    return names


def test_tutorial_notebook(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with plt.ioff(), plt.rc_context({"backend": "Agg"}):
        names = run_notebook(EXAMPLES / "tutorial.ipynb")
        run, audit, again = names["run"], names["audit"], names["again"]
        (figure,) = map(plt.figure, plt.get_fignums())
        assert len(figure.axes) == 10
        plt.close(figure)
    labels = run.summary.labels
    assert labels.correct_after > labels.correct_before + 0.15
    assert f"right before: {labels.correct_before:.1%}" in capsys.readouterr().out
    assert audit.noise_rate.low < 1 - labels.correct_before < audit.noise_rate.high
    assert len(again.labels.suspects()) < len(run.labels.suspects()) / 2
    to_fix = len(run.labels.to_fix())  # held-out rows too
    assert (tmp_path / "to-fix.csv").read_text().count("\n") == to_fix + 1
    assert len(json.loads((tmp_path / "tasks" / "tasks.json").read_text())) == to_fix
    assert "examples/tutorial.ipynb" in (EXAMPLES.parent / "docs" / "integrations.md").read_text()


@pytest.mark.skipif(not DEBIAN_FASHION_MNIST.exists(), reason="Debian's dataset-fashion-mnist is not installed")
def test_clothes(example, tmp_path):
    wrong = example("clothes").main(photos_per_class=20, wrong=0.1)
    with (tmp_path / "truth.csv").open() as file:
        truth = {row["photo"]: row["class"] for row in csv.DictReader(file)}
    photos = list((tmp_path / "clothes").rglob("*.png"))
    assert len(photos) == len(truth) == 140
    assert sum(photo.parent.name != truth[photo.name] for photo in photos) == wrong == 14


def test_own_loop(example, capsys):
    (plain, pencil), (given, corrected) = example("own_loop").main()
    assert pencil > plain + 0.05
    assert corrected > given + 0.3
    assert f"cross-entropy {plain:.1%}, PENCIL {pencil:.1%}" in capsys.readouterr().out


def test_lightning(example):
    accuracy, (given, corrected) = example("lightning_digits").main(epochs=20)
    assert accuracy > 0.85
    assert corrected > given + 0.3


def test_hugging_face(example):
    accuracy, (given, corrected) = example("hugging_face_trainer").main(epochs=12)
    assert accuracy > 0.7
    assert corrected > given + 0.15


def test_text_from_a_csv(example):
    run, (given, corrected) = example("text_from_csv").main(epochs=9)
    assert run.summary.labels.correct_after > run.summary.labels.correct_before + 0.1
    assert corrected > given + 0.1


def test_sklearn(example):
    scores, (given, corrected) = example("sklearn_pipeline").main(epochs=30, folds=2)
    assert scores["pencil"] > scores["cross_entropy"] + 0.05
    assert corrected > given + 0.1


def test_tensorboard(example):
    run, accuracy = example("tensorboard_logging").main(epochs=6)
    assert [step for step, _ in accuracy] == [1, 2, 3, 4, 5, 6]
    assert [value for _, value in accuracy] == pytest.approx([record["test_accuracy"] for record in run.metrics])
