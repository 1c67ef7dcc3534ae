"""The noise model of multi-label entries: rates of each class, posterior, likelihood."""

import math
from itertools import product

import pytest
import torch

from pencil.labels.entry_noise import (
    EntryNoise,
    entry_log_likelihoods,
    fit_entry_noise,
    fit_entry_noise_range,
    sharpened,
)

POSITIVES, NEGATIVES = torch.tensor([0.05, 0.1, 0.02]).double(), torch.tensor([0.2, 0.3, 0.0]).double()
SHIFT = torch.tensor([-0.5, 0.0, 1.0]).double()
NOISE = EntryNoise(1.5, SHIFT, POSITIVES, NEGATIVES, 1.0, 0.1, 0.05, 0.15)


def noisy_entries(rows, positives, negatives, *, seed=0, confidences=False):
    """Log-odds that know the truth, and labels whose noise differs from class to class."""
    generator = torch.Generator().manual_seed(seed)
    clean = torch.rand(rows, len(positives), generator=generator) < 0.3
    log_odds = 5.0 * (clean.double() - 0.5) + torch.randn(clean.shape, generator=generator).double() - 1.0
    rate = torch.where(clean, torch.tensor(negatives), torch.tensor(positives))
    wrong = torch.rand(clean.shape, generator=generator) < rate
    given = (clean ^ wrong).double()
    if confidences:  # right nine times in ten, whatever the class
        given = torch.where(given > 0.5, 0.9, 0.1)
    return log_odds, given, wrong


def joint(q, y, positives, negatives):
    """P(present, named, y) by enumeration; a given probability y is one that the class is named."""
    table = {}
    for present, named in product((False, True), repeat=2):
        drawn = q if present else 1 - q
        flip = (negatives if present else positives) if present != named else 1 - (negatives if present else positives)
        table[present, named] = drawn * flip * (y if named else 1 - y)
    return table


@pytest.mark.parametrize("y", [0.0, 0.1, 0.5, 0.7, 1.0])
@pytest.mark.parametrize("z", [-3.0, 0.4, 2.0])
def test_posterior_and_likelihood_are_those_of_the_whole_table(y, z):
    log_odds, given = torch.full((1, 3), z).double(), torch.full((1, 3), y).double()
    found, likelihood = NOISE.posterior(log_odds, given).sigmoid(), 0.0
    wrong = NOISE.wrong(log_odds, given)
    for k in range(3):
        table = joint(1 / (1 + math.exp(-float(SHIFT[k]) - 1.5 * z)), y, float(POSITIVES[k]), float(NEGATIVES[k]))
        total = sum(table.values())
        present = (table[True, True] + table[True, False]) / total
        assert float(found[0, k]) == pytest.approx(present)
        assert float(wrong[0, k]) == pytest.approx(1 - present if y > 0.5 else present)
        likelihood += math.log(total)
    assert float(entry_log_likelihoods(log_odds, given, NOISE)) == pytest.approx(likelihood)


def test_an_unknown_entry_says_nothing():
    log_odds, given = torch.tensor([[0.3, -1.0, 2.0]]).double(), torch.tensor([[1.0, torch.nan, 0.0]]).double()
    found = NOISE.posterior(log_odds, given)
    assert float(found[0, 1]) == pytest.approx(1.5 * -1.0)
    known = entry_log_likelihoods(
        log_odds[:, ::2], given[:, ::2], EntryNoise(1.5, SHIFT[::2], POSITIVES[::2], NEGATIVES[::2], 1.0, 0, 0, 0)
    )
    assert entry_log_likelihoods(log_odds, given, NOISE).equal(known)


def test_trust_is_the_exponent_of_the_label():
    log_odds, given = torch.zeros(1, 3).double(), torch.tensor([[1.0, 0.0, 0.5]]).double()
    none, half, whole = (NOISE.posterior(log_odds, given, trust) for trust in (0.0, 0.5, 1.0))
    assert none.equal(SHIFT[None])
    torch.testing.assert_close(half - none, (whole - none) / 2)


def test_rates_of_each_class_are_found():
    positives, negatives = [0.02, 0.02, 0.15, 0.02], [0.05, 0.4, 0.1, 0.1]
    log_odds, given, wrong = noisy_entries(2000, positives, negatives)
    noise = fit_entry_noise(log_odds, given)
    assert noise.false_positives.tolist() == pytest.approx(positives, abs=0.03)
    assert noise.false_negatives.tolist() == pytest.approx(negatives, abs=0.06)
    assert noise.low < float(wrong.double().mean()) < noise.high


def test_few_rows_of_equal_classes_share_their_rates():
    log_odds, given, _ = noisy_entries(60, [0.05] * 8, [0.2] * 8)
    noise = fit_entry_noise(log_odds, given)
    for rates in (noise.false_positives, noise.false_negatives):
        assert float(rates.max() - rates.min()) < 0.15


def test_unknown_entries_are_left_out_of_the_fit():
    log_odds, given, _ = noisy_entries(300, [0.05] * 3, [0.2] * 3)
    padded = torch.cat([log_odds, torch.randn(200, 3).double()]), torch.cat([given, torch.full((200, 3), torch.nan)])
    one, other = fit_entry_noise(log_odds, given), fit_entry_noise(*padded)
    assert other.rate == pytest.approx(one.rate, abs=1e-4) and other.shift.tolist() == pytest.approx(
        one.shift.tolist(), abs=1e-2
    )


def test_confidences_that_say_how_often_they_are_wrong_are_taken_at_their_word():
    log_odds, given, wrong = noisy_entries(2000, [0.1] * 4, [0.1] * 4, confidences=True)
    noise = fit_entry_noise(log_odds, given)
    weights = noise.label_log_odds(torch.full((1, 4), 0.9).double())
    assert float(weights.mean()) == pytest.approx(math.log(9), abs=0.3)
    assert noise.rate == pytest.approx(float(wrong.double().mean()), abs=0.02)


def test_labels_that_are_surer_than_they_say_are_taken_so():
    """Wrong three times in a hundred, but given with a probability of 0.7."""
    log_odds, given, wrong = noisy_entries(2000, [0.03] * 4, [0.03] * 4)
    noise = fit_entry_noise(log_odds, torch.where(given > 0.5, 0.7, 0.3).double())
    assert noise.confidence > 2
    assert noise.rate == pytest.approx(float(wrong.double().mean()), abs=0.02)
    assert sharpened(torch.tensor([0.0, 0.5, 0.7, 1.0]), torch.tensor(2.0)).tolist() == pytest.approx(
        [0.0, 0.5, 0.49 / (0.49 + 0.09), 1.0]
    )


def test_the_cautious_model_doubts_entries_less_and_less_so_with_many_rows():
    gaps = []
    for rows in (60, 3000):
        log_odds, given, _ = noisy_entries(rows, [0.05] * 4, [0.2] * 4)
        estimate, cautious = fit_entry_noise_range(log_odds, given)
        wrong, surely_wrong = (model.wrong(log_odds, given) for model in (estimate, cautious))
        for named in (True, False):
            chosen = (given > 0.5) == named
            assert surely_wrong[chosen].mean() < wrong[chosen].mean()
        gaps.append(float((wrong - surely_wrong).mean()))
    assert gaps[1] < gaps[0] / 3


def test_the_cautious_probability_is_that_of_the_model_of_its_class_and_kind():
    log_odds, given, _ = noisy_entries(80, [0.05, 0.1], [0.2, 0.3])
    cautious = fit_entry_noise_range(log_odds, given)[1]
    found = cautious.wrong(log_odds, given)
    for kind in (0, 1):
        values = (cautious.shift, cautious.false_positives, cautious.false_negatives)
        for k in range(2):
            one = EntryNoise(float(cautious.sharpness[kind, k]), *(value[kind] for value in values), 1.0, 0, 0, 0)
            chosen = given[:, k] == kind
            torch.testing.assert_close(found[chosen, k], one.wrong(log_odds, given)[chosen, k])


def test_a_class_that_was_not_learned_is_left_alone():
    """Its log-odds hardly differ from row to row, as those of a class that the network has not found yet.

    Log-odds that differ and mean nothing would be taken at their word, as sharpness is that of all classes; that is for
    :func:`pencil.labels.entry_judging.learned_classes` to see.
    """
    log_odds, given, wrong = noisy_entries(400, [0.05] * 4, [0.25] * 4)
    log_odds[:, 0] = 0.1 * torch.randn(400, generator=torch.Generator().manual_seed(5)).double() - 1
    cautious = fit_entry_noise_range(log_odds, given)[1].wrong(log_odds, given) > 0.5
    assert int(cautious[:, 0].sum()) <= 4
    assert int((cautious & wrong)[:, 1:].sum()) > 10 * int((cautious & ~wrong)[:, 1:].sum())


def test_the_interval_holds_the_rate_of_other_rows_about_as_often_as_it_says():
    """95 % of 60 draws is 57; that of the rows themselves would be narrower by the chance of drawing them."""
    held, rate = 0, 0.3 * 0.2 + 0.7 * 0.05
    for seed in range(60):
        noise = fit_entry_noise(*noisy_entries(150, [0.05] * 3, [0.2] * 3, seed=seed)[:2])
        held += noise.low < rate < noise.high
    assert held >= 53
