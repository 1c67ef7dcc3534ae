"""The method auto on multi-label data: labels repaired entry by entry, and left alone where nothing is known."""

import numpy as np
import pytest
import torch

import pencil
from pencil.data import Splits, from_arrays
from pencil.errors import MethodWarning, RecipeError
from pencil.methods import Auto, CrossEntropy, Outputs
from pencil.models import mlp
from pencil.training import Trainer, TrainingSettings

CLASSES, INPUTS = 4, 16


def scenes(rows, seed, *, positives=0.05, negatives=0.25, soft=False):
    """Sums of the patterns of the classes present; some entries are flipped."""
    rng = np.random.default_rng(seed)
    clean = rng.random((rows, CLASSES)) < 0.3
    patterns = np.random.default_rng(99).normal(size=(CLASSES, INPUTS))
    points = clean @ patterns + 0.3 * rng.normal(size=(rows, INPUTS))
    given = clean ^ (rng.random(clean.shape) < np.where(clean, negatives, positives))
    labels = np.where(given, 0.9, 0.1) if soft else given.astype(float)
    return from_arrays(points.astype(np.float32), labels, multilabel=True, clean_labels=clean.astype(float))


def trainer_of(method, *, epochs=12, rows=600, held_out=150, top_k=None, **noise):
    splits = Splits(scenes(rows, 0, **noise), scenes(held_out, 1, **noise), scenes(300, 2, positives=0, negatives=0))
    torch.manual_seed(0)
    settings = TrainingSettings(batch_size=32, epochs=epochs, device="cpu", label_top_k=top_k)
    return Trainer(mlp(INPUTS, CLASSES, width=64), splits, method, settings, seed=1)


def repairs(outcome, trainer):
    """How many entries were repaired, and how many broken."""
    train = trainer.splits.train
    given, now, clean = train.given_labels > 0.5, outcome.label_probs > 0.5, train.clean_labels > 0.5
    return int(((given != clean) & (now == clean)).sum()), int(((given == clean) & (now != clean)).sum())


@pytest.fixture(scope="module")
def noisy():
    trainer = trainer_of(Auto(lr=0.2))
    return trainer, trainer.run()


def test_it_repairs_entries_and_is_no_worse_than_cross_entropy(noisy):
    trainer, outcome = noisy
    repaired, broken = repairs(outcome, trainer)
    assert repaired > 120 and repaired > 8 * broken
    plain = trainer_of(CrossEntropy(lr=0.2)).run()
    assert outcome.records[-1]["test_map"] > plain.records[-1]["test_map"] - 0.005


def test_it_finds_both_rates_and_says_so(noisy):
    found = noisy[1].findings
    assert np.mean(found["false_negatives"]) == pytest.approx(0.25, abs=0.08)
    assert np.mean(found["false_positives"]) == pytest.approx(0.05, abs=0.03)
    assert len(found["false_positives"]) == CLASSES
    assert any("calibrated with sharpness" in choice for choice in found["choices"])


def test_labels_without_meaning_are_left_alone():
    trainer = trainer_of(Auto(lr=0.1), epochs=6, positives=0.5, negatives=0.5)
    with pytest.warns(MethodWarning, match="better than chance"):
        outcome = trainer.run()
    assert repairs(outcome, trainer) == (0, 0)
    assert {record["phase"] for record in outcome.records} == {"backbone"}


@pytest.mark.parametrize("epochs", [1, 2, 5])
def test_a_short_budget_breaks_no_more_entries_than_it_repairs(epochs):
    trainer = trainer_of(Auto(lr=0.05), epochs=epochs)
    repaired, broken = repairs(trainer.run(), trainer)
    assert repaired >= broken


@pytest.mark.parametrize(("epochs", "memory"), [(4, 0.1), (20, 0.5), (80, 1.0)])
def test_averaged_weights_keep_up_with_short_budgets(epochs, memory):
    trainer = trainer_of(Auto(), epochs=epochs)
    steps = -(-600 // 32)
    assert trainer.networks.emas[0].memory == max(1, round(memory * steps))


def test_correction_waits_while_held_out_labels_become_more_likely():
    """The gain over ``patience`` epochs counts, in standard errors of the rows; too few epochs show no end."""
    trainer_of(method := Auto(patience=2))
    method.state.recent_likelihoods = [torch.zeros(100), torch.zeros(100)]
    assert method._progress() == float("inf")
    gain = torch.tensor([0.1, 0.3]).repeat(50)
    method.state.recent_likelihoods += [gain]
    assert method._progress() == pytest.approx(0.2 / (0.1 / 10))
    data = scenes(200, 3)
    known = (20 * (data.clean_labels - 0.5), data.given_labels)
    assert method.form.is_worth_correcting(known, 1.0) and not method.form.is_worth_correcting(known, 3.0)


def test_a_perceptron_trains_without_dropout():
    assert not trainer_of(Auto()).networks._dropout


def test_clean_labels_stay():
    trainer = trainer_of(Auto(lr=0.2), positives=0.0, negatives=0.0)
    assert repairs(trainer.run(), trainer)[1] < 24  # of 2,400 entries


def test_soft_labels_are_repaired():
    trainer = trainer_of(Auto(lr=0.2), soft=True)
    repaired, broken = repairs(trainer.run(), trainer)
    assert repaired > 150 and repaired > 8 * broken


def test_unknown_entries_stay_unknown_and_teach_nothing():
    """Whatever the network says of them, they stay at one half; values behind them have no effect."""
    trainer = trainer_of(Auto(lr=0.2))
    trainer.splits.train.given_labels[:100, 1] = torch.nan
    trainer = Trainer(
        mlp(INPUTS, CLASSES, width=64), trainer.splits, Auto(lr=0.2), TrainingSettings(epochs=4, device="cpu")
    )
    outcome = trainer.run()
    assert outcome.label_probs[:100, 1].eq(0.5).all()
    assert not outcome.label_probs[100:, 1].eq(0.5).any()


def test_correction_that_does_harm_is_undone():
    method = Auto(lr=0.2)
    trainer = trainer_of(method, epochs=8)
    before = method.correction_loss
    method.correction_loss = lambda outputs, batch: before(Outputs(-outputs.logits), batch)
    with pytest.warns(MethodWarning, match="made predictions of held-out labels worse"):
        outcome = trainer.run()
    assert outcome.records[-1]["test_map"] > 0.9
    repaired, broken = repairs(outcome, trainer)
    assert repaired > 4 * broken


def test_top_k_labels_are_refused():
    with pytest.raises(RecipeError, match=r"label_top_k is 2, but the data is multi-label; .* remove label_top_k"):
        trainer_of(Auto(), top_k=2)


def test_nothing_runs_instead_of_it():
    points = np.random.default_rng(0).normal(size=(90, 5)).astype(np.float32)
    run = pencil.fit("mlp", (points, (points[:, :3] > 0).astype(np.float32)), epochs=3, multilabel=True)
    assert run.summary.method == "auto"
    assert run.labels["split"].to_pylist().count("validation") == 27
