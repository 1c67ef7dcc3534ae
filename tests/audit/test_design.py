"""The sample: strata, allocation, and an order that can be stopped and extended."""

from itertools import pairwise

import numpy as np
import pytest

from pencil.auditing.design import allocate, build_strata, draw_sample


def rows_of(count=2000, changed=0.1, seed=0):
    rng = np.random.default_rng(seed)
    return rng.random(count) < changed, rng.beta(8, 1, count)


def test_strata_are_changed_or_kept_and_intervals_of_confidence():
    changed, confidence = rows_of()
    strata = build_strata(changed, confidence)
    assert len(strata.sizes) == 6 and strata.sizes.sum() == 2000 and strata.changed.sum() == 2
    for flag in (False, True):
        numbers = np.flatnonzero(strata.changed == flag)
        ranges = [confidence[strata.of_row == number] for number in numbers]
        assert all(low.max() <= high.min() for low, high in pairwise(ranges))
        assert (changed[np.isin(strata.of_row, numbers)] == flag).all()
    np.testing.assert_allclose(strata.means(confidence)[0], confidence[strata.of_row == 0].mean())


@pytest.mark.parametrize("changed", [0, 1, 7, 30])
def test_few_rows_have_few_strata(changed):
    strata = build_strata(np.arange(30) < changed, np.linspace(0.3, 1, 30))
    assert strata.sizes.sum() == 30 and strata.sizes.min() >= 1
    assert strata.changed.sum() == {0: 0, 1: 1, 7: 1, 30: 2}[changed]


def test_equal_confidences_are_cut_too():
    strata = build_strata(np.zeros(100, dtype=bool), np.ones(100))
    assert strata.sizes.tolist() == [25, 25, 25, 25]


def greedy(strata, rows):
    """The same rule, one row after the other."""
    sizes = strata.sizes
    spread = sizes * strata.doubt
    changes, close = spread * strata.changed, sizes * (strata.doubt**2 - 0.01 + 1e-6)
    claims = 0.5 * sizes / sizes.sum() + 0.3 * close / close.sum() + 0.2 * changes / changes.sum()
    drawn = np.minimum(2, sizes)
    while drawn.sum() < rows:
        drawn[np.where(drawn < sizes, claims / (drawn + 0.5), -1).argmax()] += 1
    return drawn


@pytest.mark.parametrize("rows", [25, 60, 100, 400])
def test_allocation_is_that_of_seats(rows):
    strata = build_strata(*rows_of(500))
    turns = allocate(strata, rows)
    assert np.bincount(turns).tolist() == greedy(strata, rows).tolist()
    assert turns.tolist() == allocate(strata, 500)[:rows].tolist()  # a larger sample takes no row back


def test_no_answer_counts_for_more_than_twice_its_fraction():
    changed, _ = rows_of(5000, 0.02)
    strata = build_strata(changed, np.where(changed, 0.6, 0.9999))
    drawn = np.bincount(allocate(strata, 100))
    assert (strata.sizes / 5000 / drawn).max() <= 2.2 / 100
    assert drawn[strata.changed].sum() >= 25


def test_a_small_population_is_looked_at_completely():
    strata = build_strata(*rows_of(40, 0.3))
    assert sorted(draw_sample(strata, (100,), seed=3).tolist()) == list(range(40))


def test_the_sample_is_seeded_and_extended_without_change():
    strata = build_strata(*rows_of())
    first = draw_sample(strata, (60,), seed=1)
    assert first.tolist() == draw_sample(strata, (60,), seed=1).tolist()
    assert first.tolist() != draw_sample(strata, (60,), seed=2).tolist()
    more = draw_sample(strata, (60, 130), seed=1)
    assert more[:60].tolist() == first.tolist() and len(set(more.tolist())) == 130
    assert np.bincount(strata.of_row[more]).tolist() == np.bincount(allocate(strata, 130)).tolist()


def test_the_sample_does_not_follow_noise_that_was_injected_with_its_seed():
    """Noise injected with ``default_rng(seed)`` would decide which rows a sample of the same stream contains."""
    strata = build_strata(np.zeros(2000, dtype=bool), np.linspace(0.5, 1, 2000))
    found = []
    for seed in range(30):
        noisy = np.random.default_rng(seed).random(2000) < 0.2
        found.append(noisy[draw_sample(strata, (100,), seed)].mean())
    assert abs(np.mean(found) - 0.2) < 0.03


def test_every_beginning_from_25_rows_on_has_all_strata():
    for seed in range(20):
        strata = build_strata(*rows_of(seed=seed))
        shown = strata.of_row[draw_sample(strata, (100,), seed)]
        assert np.bincount(shown[:25], minlength=6).min() >= 2


def test_rows_of_a_stratum_are_drawn_and_shown_with_equal_probability():
    strata = build_strata(np.arange(60) % 3 == 0, np.linspace(0.5, 0.99, 60))
    drawn, place = np.zeros(60), np.zeros(60)
    for seed in range(3000):
        sample = draw_sample(strata, (30,), seed)
        drawn[sample] += 1
        place[sample[:15]] += 1
    for number in range(len(strata.sizes)):
        inside = strata.of_row == number
        for counts in (drawn, place):
            rate = counts[inside].mean() / 3000
            error = np.sqrt(rate * (1 - rate) / 3000)
            assert np.abs(counts[inside] / 3000 - rate).max() <= 4 * error + 1e-9
