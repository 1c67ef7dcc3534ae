"""Judging labels: simulated networks of known knowledge, with and without memorised labels."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score

from pencil.labels.dynamics import TrainingDynamics
from pencil.labels.judging import judge
from pencil.labels.judging_rule import sample_rows
from pencil.labels.matching import match_quantiles, relative_ranks
from pencil.labels.reading import bin_totals, calibration

CLASSES = 5


def simulate(rows, rate, *, memorised=0.0, strength=3.0, visits=20, seed=0, counts=None):
    """Rows whose network knows their class up to noise, and repeats a part of the given label."""
    rng = np.random.default_rng(seed)
    clean = rng.choice(CLASSES, rows, p=counts)
    wrong = rng.random(rows) < rate
    given = np.where(wrong, (clean + rng.integers(1, CLASSES, rows)) % CLASSES, clean)
    knowledge = strength * np.eye(CLASSES)[clean] + rng.normal(size=(rows, CLASSES))
    dynamics = TrainingDynamics(torch.from_numpy(given), CLASSES)
    for _ in range(visits):
        logits = knowledge + memorised * np.eye(CLASSES)[given] + 0.5 * rng.normal(size=(rows, CLASSES))
        dynamics.add(torch.arange(rows), torch.from_numpy(logits).float())
    return dynamics.evidence(), torch.from_numpy(given), torch.from_numpy(clean)


@pytest.mark.parametrize("memorised", [0.0, 2.0])
@pytest.mark.parametrize("rate", [0.05, 0.3])
def test_training_rows_are_judged_like_held_out_rows(rate, memorised):
    train, given, clean = simulate(3000, rate, memorised=memorised, seed=1)
    held_out, held_given, held_clean = simulate(600, rate, seed=2)
    found = judge(train, given, held_out, held_given)
    for probs, true in ((found.probs, clean), (found.held_out_probs, held_clean)):
        top = probs.max(dim=1)
        assert calibration(bin_totals(top.values, top.indices == true))["error"] < 0.06
        assert (top.indices == true).double().mean() > 1 - rate
    wrong = (given != clean).numpy()
    assert average_precision_score(wrong, found.issue_scores) > 0.7
    assert found.issue_scores.mean() == pytest.approx(wrong.mean(), abs=0.06)
    assert found.noise.low - 0.01 <= wrong.mean() <= found.noise.high + 0.01 and found.knows


def test_who_knows_nothing_changes_nothing_and_is_not_sure():
    train, given, _ = simulate(400, 0.3, strength=0.0, memorised=6.0, seed=3)
    held_out, held_given, _ = simulate(200, 0.3, strength=0.0, seed=4)
    found = judge(train, given, held_out, held_given)
    assert not found.knows
    assert found.probs.argmax(dim=1).equal(given) and found.held_out_probs.argmax(dim=1).equal(held_given)
    assert 0.5 < float(found.probs.max()) < 0.7


@pytest.mark.parametrize("seed", [0, 4])  # without the limit of negligible rates, 5 and 13 labels change
def test_clean_labels_stay_as_given(seed):
    train, given, _ = simulate(2000, 0.0, strength=2.0, memorised=0.5, seed=10 + seed)
    held_out, held_given, _ = simulate(300, 0.0, strength=2.0, seed=50 + seed)
    found = judge(train, given, held_out, held_given)
    assert found.probs.argmax(dim=1).equal(given) and found.noise.rate < 0.005 and found.noise.low == 0
    assert found.noise.high > 0.02  # nothing excludes that the network is right where it disagrees


@pytest.mark.parametrize("seed", [1, 3])  # two and one of the 60 held-out labels are wrong
def test_a_strong_network_corrects_a_few_wrong_labels(seed):
    """Too few rows are held out to exclude a noise rate of 0, but wrong labels lose in nearly all visits."""
    train, given, clean = simulate(1200, 0.02, strength=9.0, seed=20 + seed)
    held_out, held_given, _ = simulate(60, 0.02, strength=9.0, seed=60 + seed)
    found = judge(train, given, held_out, held_given)
    wrong = given != clean
    assert found.noise.low == 0 and (found.probs.argmax(dim=1) == clean)[wrong].double().mean() > 0.8
    assert found.probs.argmax(dim=1)[~wrong].equal(given[~wrong])


def test_who_abstains_still_puts_rows_in_order():
    train, given, clean = simulate(400, 0.3, seed=3)
    held_out, held_given, _ = simulate(40, 0.3, strength=0.0, seed=4)
    found = judge(train, given, held_out, held_given)
    assert not found.knows and found.probs.argmax(dim=1).equal(given)
    assert average_precision_score((given != clean).numpy(), found.issue_scores) > 0.7
    for scores in (found.issue_scores, found.held_out_issue_scores):
        assert 0 < float(scores.max() - scores.min()) < 0.003 and scores.max() < 0.5


def test_a_class_that_was_not_learned_keeps_its_rows():
    train, given, _ = simulate(1000, 0.1, seed=5)
    held_out, held_given, _ = simulate(300, 0.1, seed=6)
    for rows in (train, held_out):
        rows.log_probs[:, 4] = -9.2
    found = judge(train, given, held_out, held_given)
    labelled = given == 4
    assert found.lost_classes == (4,) and (found.probs.argmax(dim=1)[labelled] == 4).all()


def test_rows_that_were_never_met_keep_their_label():
    train, given, _ = simulate(500, 0.2, seed=7)
    visits = train.visits.clone()
    visits[:10] = 0
    train = type(train)(train.log_probs, train.log_given, train.margin, train.disagreement, visits)
    found = judge(train, given, *simulate(200, 0.2, seed=8)[:2])
    assert found.probs[:10].argmax(dim=1).equal(given[:10])


def test_a_tie_is_no_given_label():
    train, given, clean = simulate(600, 0.1, seed=9)
    soft = torch.nn.functional.one_hot(given, CLASSES).double()
    soft[0] = 0.0
    soft[0, [(int(clean[0]) + 1) % CLASSES, int(clean[0])]] = 0.5
    held_out, held_given, _ = simulate(300, 0.1, seed=10)
    found = judge(train, soft.float(), held_out, held_given)
    assert int(found.probs[0].argmax()) == int(clean[0])


def test_quantiles_keep_the_order_and_take_the_values():
    scores = torch.tensor([3.0, 1.0, 2.0])
    assert match_quantiles(scores, torch.tensor([0.1, 0.9, 0.5])).tolist() == pytest.approx([0.9, 0.1, 0.5])
    many = match_quantiles(torch.arange(101.0), torch.tensor([0.0, 1.0]))
    assert float(many[50]) == 0.5 and (many.diff() >= 0).all()
    assert many[:25].tolist() == [0.0] * 25 and many[-25:].tolist() == [1.0] * 25  # beyond the middle of the two parts


def test_rows_that_are_equally_sure_keep_their_order():
    """Held-out rows with wrong labels are all certain, and more of them than of the training rows."""
    train, given, _ = simulate(600, 0.02, seed=11)
    held_out, held_given, held_clean = simulate(300, 0.02, seed=12)
    held_given = torch.where(torch.arange(300) < 30, (held_clean + 1) % CLASSES, held_clean)
    certain = replace(held_out, log_probs=torch.nn.functional.one_hot(held_clean, CLASSES).float() * 60 - 60)
    scores = judge(train, given, certain, held_given).issue_scores
    assert len(scores.unique()) == 600
    for number in range(CLASSES):  # among classes their rarity counts too
        own = given == number
        assert scores[own].argsort(descending=True).equal(train.log_given[own].argsort())


def test_a_few_rows_are_not_spread_over_the_values_of_many():
    many = torch.cat([torch.zeros(90), torch.ones(10)])
    assert match_quantiles(torch.tensor([0.3, 0.7]), many).tolist() == [0.0, 0.0]
    assert torch.equal(match_quantiles(many, many), many.double())
    assert relative_ranks(torch.tensor([5.0, 1.0])).tolist() == [0.75, 0.25]


def test_the_sample_of_training_rows_has_all_classes():
    given = torch.arange(20_000) % 10
    counts = given[sample_rows(torch.ones(len(given)), given)].bincount(minlength=10)
    assert int(counts.sum()) == 2000 and counts.min() > 150


@pytest.mark.parametrize("tied", ["held-out rows", "training rows"])
def test_rows_that_all_tie_say_nothing(tied):
    train, given, _ = simulate(60, 0.2)
    held_out, held_given, _ = simulate(8, 0.2, seed=1)
    half = torch.zeros(1, CLASSES)
    half[0, :2] = 0.5
    if tied == "held-out rows":
        held_given = half.expand(8, -1)
    else:
        given = half.expand(60, -1)
    found = judge(train, given, held_out, held_given)
    assert found.probs.isfinite().all() and found.issue_scores.isfinite().all()
    if tied == "training rows":
        assert not found.knows and found.noise.high == 1.0
