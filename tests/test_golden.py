"""Small whole runs with known results: a change that moves them is a change of behaviour."""

import json
import subprocess
import sys

import pytest

from pencil import recipe
from pencil.job import run_recipe


def demo(tmp_path, seed):
    command = [sys.executable, "-m", "pencil", "demo", "--seed", str(seed), "--out", str(tmp_path / "demo"), "--json"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return {summary["method"]: summary for summary in json.loads(done.stdout)}


def assert_the_demo_shows_what_it_claims(results):
    """At 50 % symmetric noise PENCIL ends at 96 % or more and repairs the labels; cross-entropy ends below 80 %."""
    assert results["auto"]["test_accuracy"]["last"] >= 0.96
    assert results["auto"]["labels"]["correct_after"] >= 0.96
    assert results["auto"]["labels"]["correct_before"] < 0.6
    assert results["cross_entropy"]["test_accuracy"]["last"] < 0.80
    assert results["auto"]["epochs"] == results["cross_entropy"]["epochs"]


@pytest.mark.slow  # three quarters of a minute; the documentation's commands train the same method
def test_demo(tmp_path):
    assert_the_demo_shows_what_it_claims(demo(tmp_path, 1))
    assert (tmp_path / "demo" / "auto" / "labels.parquet").exists()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 3])
def test_demo_with_the_other_seeds(tmp_path, seed):
    assert_the_demo_shows_what_it_claims(demo(tmp_path, seed))


GOLDEN = {"first_loss": 2.215, "test_accuracy": 0.957, "labels_correct": 0.969, "label_entropy": 0.320}


def test_a_small_run_stays_within_its_band():
    """The digits recipe, smaller and less noisy; the bands allow for other processors, not for another method."""
    overrides = ["data.rows=600", "data.noise.rate=0.3", "training.epochs=20", "training.batch_size=32", "seed=5"]
    tree = recipe.override(recipe.find("digits-symmetric-50"), overrides)
    run = run_recipe(recipe.parse(tree), progress=False)
    last = run.metrics[-1]
    assert run.summary.injected_noise_rate == 0.275  # seeded: exact everywhere
    assert run.metrics[0]["loss"] == pytest.approx(GOLDEN["first_loss"], rel=0.02)
    assert last["test_accuracy"] == pytest.approx(GOLDEN["test_accuracy"], abs=0.03)
    assert last["labels_correct"] == pytest.approx(GOLDEN["labels_correct"], abs=0.02)
    assert last["label_entropy"] == pytest.approx(GOLDEN["label_entropy"], abs=0.06)
