"""Dynamics, noise model and judgement of multi-label entries."""

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score

from pencil.labels.chance import learned_classes, rank_sums, ranks_rows
from pencil.labels.dynamics import FLOOR
from pencil.labels.entry_dynamics import EntryDynamics, EntryEvidence
from pencil.labels.entry_judging import judge_entries, row_issue_scores
from pencil.labels.entry_noise import fit_entry_noise
from pencil.labels.suspects import confident_entry_rate, confident_rate


def visits(rows=6, classes=3, count=5, seed=0):
    return 3 * torch.randn(count, rows, classes, generator=torch.Generator().manual_seed(seed))


def given_entries(rows=6, classes=3):
    given = (torch.rand(rows, classes, generator=torch.Generator().manual_seed(7)) < 0.4).float()
    given[2, 1] = torch.nan
    return given


def seen_entries(rows, classes=5, *, false_positives=0.05, false_negatives=0.2, signal=3.0, seed=0):
    """Log-odds that know the truth but take every class for rarer than it is, and labels with known noise."""
    generator = torch.Generator().manual_seed(seed)
    clean = torch.rand(rows, classes, generator=generator) < 0.25
    log_odds = signal * (clean.float() - 0.5) + torch.randn(rows, classes, generator=generator) - 1.5
    flips = torch.rand(rows, classes, generator=generator)
    wrong = flips < torch.where(clean, false_negatives, false_positives)
    evidence = EntryEvidence(log_odds, torch.full((rows,), 5))
    return evidence, (clean ^ wrong).float(), wrong


def test_means_weigh_a_visit_by_its_number():
    logits = visits()
    dynamics = EntryDynamics(given_entries(), 3)
    for one in logits:
        order = torch.randperm(6)
        dynamics.add(order, one[order])
    found = dynamics.evidence()
    weights = torch.arange(1.0, 6.0)[:, None, None] / 15
    torch.testing.assert_close(found.log_odds, (weights * logits.clamp(FLOOR, -FLOOR)).sum(dim=0))
    assert found.visits.tolist() == [5] * 6


@pytest.mark.parametrize(("classes", "precision"), [(3, torch.float32), (40, torch.float16)])
def test_a_copy_of_the_state_goes_on_alike(classes, precision):
    one, other = (EntryDynamics(given_entries(classes=classes), classes) for _ in range(2))
    logits = visits(classes=classes)
    for step in logits[:2]:
        one.add(torch.arange(6), step)
    other.load_state_dict({name: value.clone() for name, value in one.state_dict().items()})
    for step in logits[2:]:
        one.add(torch.arange(6), step)
        other.add(torch.arange(6), step)
    assert one.means.dtype == precision
    assert all(one.state_dict()[name].equal(value) for name, value in other.state_dict().items())


def test_both_rates_are_found_and_the_interval_holds_the_truth():
    evidence, given, wrong = seen_entries(800)
    noise = fit_entry_noise(evidence.log_odds, given)
    assert noise.false_positives.tolist() == pytest.approx([0.05] * 5, abs=0.02)
    assert noise.false_negatives.tolist() == pytest.approx([0.2] * 5, abs=0.06)
    assert noise.low < float(wrong.double().mean()) < noise.high < noise.low + 0.08
    assert noise.shift.min() > 1  # the network takes classes for rarer than they are


def test_clean_and_separable_labels_have_a_rate_near_zero():
    evidence, given, _ = seen_entries(300, false_positives=0.0, false_negatives=0.0, signal=12.0)
    noise = fit_entry_noise(evidence.log_odds, given)
    assert noise.rate < 0.01 and np.isfinite(noise.sharpness)


def test_scores_find_wrong_rows_and_are_probabilities():
    (train, given, wrong), (held, held_given, held_wrong) = seen_entries(800), seen_entries(400, seed=1)
    given[0] = torch.nan
    found = judge_entries(train, given, held, held_given)
    assert found.knows
    assert found.issue_scores[0] == 0 and found.issue_scores.min() >= 0 and found.issue_scores.max() <= 1
    assert float(found.issue_scores.mean()) == pytest.approx(float(wrong.any(dim=1).double().mean()), abs=0.06)
    naive = torch.where(given > 0.5, -train.log_odds, train.log_odds).nan_to_num(-9).amax(dim=1)
    by_score, by_network = (
        average_precision_score(wrong[1:].any(dim=1), one[1:]) for one in (found.issue_scores, naive)
    )
    assert by_score > by_network + 0.05
    right = ((found.held_out_probs > 0.5) != (held_given > 0.5)) == held_wrong
    assert right.double().mean() > 1 - held_wrong.double().mean() + 0.02


def test_what_was_memorised_is_matched_to_held_out_rows():
    (train, given, wrong), (held, held_given, _) = seen_entries(800), seen_entries(400, seed=1)
    sure = EntryEvidence(train.log_odds + 1.5 * (2 * given - 1), train.visits)
    found = judge_entries(sure, given, held, held_given)
    assert float(found.issue_scores.mean()) == pytest.approx(float(wrong.any(dim=1).double().mean()), abs=0.06)


def test_nothing_known_nothing_changed():
    evidence, given, _ = seen_entries(200, signal=0.0)
    found = judge_entries(evidence, given, evidence, given)
    assert not found.knows and ((found.probs > 0.5) == (given > 0.5)).all()
    assert found.issue_scores.unique().numel() == 1


def test_rows_that_were_never_met_and_single_labels():
    evidence, given, _ = seen_entries(60)
    evidence.visits[3] = 0
    found = judge_entries(evidence, given, None, None)
    assert found.held_out_probs is None and found.issue_scores.isfinite().all()
    assert found.issue_scores[3] == pytest.approx(1 - (1 - found.noise.rate) ** 5)
    all_named = torch.ones_like(given)
    assert (
        not ranks_rows(evidence.log_odds, all_named)
        and judge_entries(evidence, all_named, None, None).probs.isfinite().all()
    )


def test_the_score_of_a_row_is_that_of_any_entry():
    assert row_issue_scores(torch.tensor([[0.5, 0.5], [0.0, 0.2]])).tolist() == pytest.approx([0.75, 0.2])


def test_rank_sums_count_pairs_in_order():
    evidence, given, _ = seen_entries(30, classes=2, seed=3)
    given[0, 0] = torch.nan
    found = rank_sums(evidence.log_odds, given)
    for k in range(2):
        named = [row for row in range(30) if given[row, k] == 1]
        others = [row for row in range(30) if given[row, k] == 0]
        above = sum(float(evidence.log_odds[a, k] > evidence.log_odds[b, k]) for a in named for b in others)
        pairs = len(named) * len(others)
        expected = [above, pairs, pairs * (len(named) + len(others) + 1) / 12]
        torch.testing.assert_close(found[k], torch.tensor(expected, dtype=torch.float64))


def test_entries_of_a_class_that_was_not_learned_stay_as_given():
    """Its log-odds differ from row to row as much as those of others, and mean nothing."""
    parts = []
    for rows, seed in ((800, 1), (300, 2)):
        evidence, given, wrong = seen_entries(rows, seed=seed)
        drawn = torch.randperm(rows, generator=torch.Generator().manual_seed(seed))
        evidence.log_odds[:, 0] = evidence.log_odds[drawn, 0]
        parts.append((evidence, given, wrong))
    (train, given, wrong), (held_out, held_given, _) = parts
    assert learned_classes(held_out.log_odds, held_given).tolist() == [False, True, True, True, True]
    found = judge_entries(train, given, held_out, held_given)
    changed = (found.probs > 0.5) != (given > 0.5)
    assert not changed[:, 0].any() and int((changed & wrong)[:, 1:].sum()) > 50


def test_confident_counts_of_entries_are_those_of_one_binary_problem_per_class():
    rng = torch.Generator().manual_seed(3)
    probs = torch.rand(400, 5, generator=rng)
    given = (torch.rand(400, 5, generator=rng) < 0.2 + 0.6 * probs).float()
    given[torch.rand(400, 5, generator=rng) < 0.1] = torch.nan
    given[:, 4] = given[:, 4].where(given[:, 4].isnan(), torch.zeros(400))  # a class that is never named
    wrong = 0.0
    for k in range(5):
        known = ~given[:, k].isnan()
        pair, named = torch.stack([1 - probs[known, k], probs[known, k]], dim=1), given[known, k].long()
        wrong += confident_rate(lambda pair=pair, named=named: [(pair, named)], 2) * int(known.sum())
    assert confident_entry_rate(probs, given) == pytest.approx(wrong / int((~given.isnan()).sum()), abs=1e-12)
    assert 0.05 < confident_entry_rate(probs, given) < 0.6


def test_suspects_are_the_highest_scores_and_at_most_as_many_as_the_rate_expects():
    (train, given, wrong), (held, held_given, held_wrong) = seen_entries(800), seen_entries(400, seed=1)
    given[0] = torch.nan
    found = judge_entries(train, given, held, held_given)
    suspect = found.entry_scores >= found.suspect_from
    assert 0 < int(suspect.sum()) <= round(found.noise.rate * int((~given.isnan()).sum())) + 1
    assert not suspect[0].any() and not found.entry_scores[0].any()
    assert float(wrong[suspect].double().mean()) > 0.6 > 0.1 > float(wrong[~suspect].double().mean())
    assert float(held_wrong[found.held_out_entry_scores >= found.suspect_from].double().mean()) > 0.6
    chance, labels, _ = seen_entries(200, signal=0.0)
    nothing = judge_entries(chance, labels, chance, labels)
    assert not nothing.knows and not (nothing.entry_scores >= nothing.suspect_from).any()


def test_a_weak_network_has_few_suspects_on_clean_entries():
    """Confident counts alone take its errors for wrong entries."""
    weak, given, _ = seen_entries(1500, false_positives=0.0, false_negatives=0.0, signal=1.5)
    found = judge_entries(weak, given, weak, given)
    assert found.confident > 0.1 > 0.05 > float((found.entry_scores >= found.suspect_from).double().mean())
