"""The estimate of noise from held-out rows, against data that was drawn from the model itself."""

import itertools
from dataclasses import replace

import pytest
import torch
from sklearn.metrics import cohen_kappa_score

from pencil.labels import noise_model
from pencil.labels.chance import agrees_by_chance
from pencil.labels.noise_model import (
    RATES,
    TEMPERATURES,
    NoiseModel,
    calibrated,
    confusion_shape,
    direction,
    dirichlet_log_marginal,
    fit_noise,
    likelihood_grid,
    negative_log_likelihoods,
    noise_shape,
    posterior,
    remaining_trust,
    transition_at,
    unmixed,
    unmixing,
)


def anywhere(classes):
    return (1 - torch.eye(classes, dtype=torch.float64)) / (classes - 1)


def model_of(rate, shape):
    return NoiseModel(rate, rate, rate, 1.0, (1 - rate) * torch.eye(len(shape), dtype=torch.float64) + rate * shape)


def temperature_of(logits, given, model, weights=None):
    return calibrated(model, logits, given, weights, (0.0,)).temperature


def drawn(rate, shape, rows=2000, sharpness=4.0, seed=0):
    """Logits, true classes drawn from them, and labels drawn from those."""
    generator = torch.Generator().manual_seed(seed)
    logits = sharpness * torch.randn(rows, len(shape), generator=generator)
    true = logits.softmax(dim=1).multinomial(1, generator=generator)[:, 0]
    moved = shape[true].multinomial(1, generator=generator)[:, 0]
    wrong = torch.rand(rows, generator=generator) < rate
    return logits, true, torch.where(wrong, moved, true)


def test_the_likelihood_is_a_sum_over_all_ways_to_get_a_label():
    logits, _, given = drawn(0.3, anywhere(4), rows=7)
    shape, rate, temperature = confusion_shape(given, given.roll(1), 4), 0.3, 0.7
    total = 0.0
    for row, label in enumerate(given.tolist()):
        odds = torch.exp(logits[row].double() / temperature)
        ways = [
            float(odds[true] / odds.sum()) * (1 - rate if true == label else rate * float(shape[true, label]))
            for true in range(4)
        ]
        total -= float(torch.tensor(sum(ways)).log())
    rates, temperatures = (torch.tensor([0.0, one], dtype=torch.float64) for one in (rate, temperature))
    found = negative_log_likelihoods(logits, given, shape, rates, temperatures[1:])
    assert float(found[0, 1]) == pytest.approx(total, rel=1e-5)


@pytest.mark.parametrize("absorbed", [0.0, 0.5])
def test_temperatures_and_rates_in_parts_are_those_one_by_one(absorbed, monkeypatch):
    monkeypatch.setattr(noise_model, "VALUES", 200)
    logits, _, given = drawn(0.3, anywhere(4), rows=30)
    rates, temperatures = torch.tensor([0.1, 0.2, 0.4]).double(), torch.tensor([0.5, 1.0]).double()
    found = negative_log_likelihoods(logits, given, anywhere(4), rates, temperatures, absorbed=absorbed)
    for row, temperature in enumerate(temperatures.tolist()):
        for column, rate in enumerate(rates.tolist()):
            transition = transition_at(rate, anywhere(4))
            model = NoiseModel(rate, rate, rate, temperature, transition, absorbed)
            likelihoods = (model.true_log_probs(logits.double()).exp() @ transition).gather(1, given[:, None])
            assert float(found[row, column]) == pytest.approx(-float(likelihoods.log().sum()), rel=1e-6)


@pytest.mark.parametrize("rate", [0.0, 0.2, 0.5])
@pytest.mark.parametrize("absorbed", [0.0, 1.0])
@pytest.mark.parametrize("rows", [30, 400])
def test_no_temperature_that_is_left_out_is_the_best_at_any_rate(rate, absorbed, rows):
    logits, _, given = drawn(rate, anywhere(5), rows=rows)
    rates = RATES[RATES < 0.8]
    grid = likelihood_grid(logits, given, anywhere(5), rates, absorbed)
    everything = negative_log_likelihoods(logits, given, anywhere(5), rates, TEMPERATURES, absorbed=absorbed)
    torch.testing.assert_close(grid.amin(dim=0), everything.amin(dim=0))


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.3, 0.5, 0.7])
@pytest.mark.parametrize("classes", [3, 10])
def test_the_rate_of_drawn_noise_is_found(rate, classes):
    if rate == 0.7 and classes == 3:
        pytest.skip("beyond chance: 0.67")
    logits, _, given = drawn(rate, anywhere(classes))
    found = fit_noise(logits, given, anywhere(classes))
    assert found.rate == pytest.approx(rate, abs=0.06)
    assert found.low <= rate + 0.01 and rate - 0.01 <= found.high
    assert found.high - found.low < 0.12
    torch.testing.assert_close(found.transition.sum(dim=1), torch.ones(classes, dtype=torch.float64))


def test_noise_that_the_network_learned_is_taken_out():
    """Logits of ``p T``, which is what a network that was trained on noisy labels says."""
    shape = anywhere(10)
    clean, _, given = drawn(0.5, shape, sharpness=6.0)
    noisy = (clean.double().softmax(dim=1) @ model_of(0.5, shape).transition).log()
    found = fit_noise(noisy, given, shape)
    assert found.rate == pytest.approx(0.5, abs=0.08)
    before, after, true = (
        float(log_probs.exp().amax(dim=1).mean())
        for log_probs in (noisy, found.true_log_probs(noisy), clean.double().log_softmax(dim=1))
    )
    assert before < 0.55 and after == pytest.approx(true, abs=0.05)


def test_few_rows_leave_room_for_noise_that_was_not_seen():
    logits = 20 * torch.eye(3)[torch.arange(12) % 3]
    found = fit_noise(logits, torch.arange(12) % 3, anywhere(3))
    assert found.rate >= 0.5 / 12
    assert found.low == 0.0 and found.high > 0.1


def test_the_shape_is_where_labels_go():
    predicted = torch.arange(5).repeat(400)
    given = torch.where(
        torch.rand(2000, generator=torch.Generator().manual_seed(0)) < 0.4, (predicted + 1) % 5, predicted
    )
    shape = confusion_shape(predicted, given, 5)
    torch.testing.assert_close(shape.sum(dim=1), torch.ones(5, dtype=torch.float64))
    assert shape.diagonal().abs().max() == 0
    assert all(shape[k, (k + 1) % 5] > 0.95 for k in range(5))


def class_map(rows=4000, seed=0):
    """A network that knows the true class; four in ten rows of class 0 are labelled 1, all others are right."""
    generator = torch.Generator().manual_seed(seed)
    true = torch.arange(rows) % 4
    logits = 4.0 * torch.eye(4)[true] + torch.randn(rows, 4, generator=generator)
    moved = (true == 0) & (torch.rand(rows, generator=generator) < 0.4)
    return logits, true, torch.where(moved, 1, true)


def test_a_class_that_is_mistaken_more_often_has_its_own_rate():
    logits, true, given = class_map()
    rates = noise_shape(logits, given).sum(dim=1)
    predicted = logits.argmax(dim=1)
    assert float(rates[predicted].mean()) == pytest.approx(1.0)  # of the mean row
    assert float(rates[0]) == pytest.approx(4.0, abs=0.3) and float(rates[1:].max()) < 0.1
    found = fit_noise(logits, given, noise_shape(logits, given))
    torch.testing.assert_close(found.transition.sum(dim=1), torch.ones(4, dtype=torch.float64))
    assert float(found.transition[0, 1]) == pytest.approx(0.4, abs=0.06)
    assert (posterior(logits, given, found).argmax(dim=1) == true).double().mean() > 0.97


def test_classes_that_differ_by_chance_alone_share_one_rate():
    logits, _, given = drawn(0.3, anywhere(5), sharpness=6.0, rows=1500)
    rates = noise_shape(logits, given).sum(dim=1)
    torch.testing.assert_close(rates, torch.ones(5, dtype=torch.float64), atol=0.2, rtol=0)


@pytest.mark.parametrize("absorbed", [0.0, 0.5, 1.0])
def test_unmixing_undoes_what_a_network_has_absorbed(absorbed):
    """Every row by itself: the distribution that the mixture of clean and noisy predictions was made of."""
    shape = torch.tensor([[0, 0.9, 0.1], [0.5, 0, 0.5], [0.2, 0.8, 0]], dtype=torch.float64)
    transition = transition_at(0.4, shape)
    probs = torch.rand(8, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 0.1
    probs /= probs.sum(dim=1, keepdim=True)
    mixed = torch.zeros_like(probs)
    for row, true, said in itertools.product(range(8), range(3), range(3)):
        as_it_is = (1 - absorbed) * float(true == said)
        mixed[row, said] += probs[row, true] * (as_it_is + absorbed * transition[true, said])
    torch.testing.assert_close(unmixed(mixed, unmixing(transition, absorbed)), probs)


def test_a_prediction_surer_than_noise_allows_stays_a_distribution():
    transition = transition_at(0.4, anywhere(3))
    found = unmixed(torch.tensor([[0.98, 0.01, 0.01]], dtype=torch.float64), unmixing(transition, 1.0))
    assert (found > 0).all() and float(found.sum()) == pytest.approx(1.0) and float(found[0, 0]) > 0.999


def test_a_class_map_that_the_network_has_learned_is_seen_through():
    """The network predicts noisy labels, 60 : 40 for every row of class 0, and is sure of all others."""
    clean, true, given = class_map()
    shape = torch.zeros(4, 4, dtype=torch.float64)
    shape[0, 1] = 4.0
    logits = (clean.double().softmax(dim=1) @ transition_at(0.1, shape)).log()
    found = fit_noise(logits, given, noise_shape(logits, given))
    assert found.absorbed > 0 and float(found.transition[0, 1]) == pytest.approx(0.4, abs=0.06)
    fixed = posterior(logits, given, found).argmax(dim=1)
    assert (given == true).double().mean() < 0.91 and (fixed == true).double().mean() > 0.97


def test_rows_that_are_surer_than_noise_allows_limit_the_rate():
    """Classes that resemble each other, but every label is right: rows of all shades between two classes."""
    generator = torch.Generator().manual_seed(0)
    logits = 6.0 * torch.randn(3000, 2, generator=generator)
    given = logits.softmax(dim=1).multinomial(1, generator=generator)[:, 0]
    assert fit_noise(logits, given, anywhere(2)).high < 0.03


def test_noise_without_direction_is_not_unmixed():
    assert direction(anywhere(10)) == pytest.approx(0.0) and direction(anywhere(2)) == 0.0
    one_way = torch.eye(5, dtype=torch.float64).roll(1, dims=1)
    assert direction(one_way) == pytest.approx(1.0) and 0 < direction((one_way + anywhere(5)) / 2) < 1
    clean, _, given = drawn(0.5, anywhere(10), sharpness=6.0)
    logits = (clean.double().softmax(dim=1) @ transition_at(0.5, anywhere(10))).log()
    assert calibrated(model_of(0.5, anywhere(10)), logits[:200], given[:200]).absorbed == 0.0


def test_a_class_that_is_never_predicted_goes_anywhere():
    shape = confusion_shape(torch.zeros(4, dtype=torch.long), torch.tensor([0, 1, 1, 1]), 3)
    torch.testing.assert_close(shape[2], torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64))


def test_the_posterior_is_bayes_rule():
    shape = torch.tensor([[0, 0.9, 0.1], [0.5, 0, 0.5], [0.2, 0.8, 0]], dtype=torch.float64)
    model, logits = model_of(0.4, shape), torch.randn(9, 3, generator=torch.Generator().manual_seed(1))
    given = torch.arange(9) % 3
    found = posterior(logits, given, replace(model, temperature=1.5)).exp()
    for row, true in itertools.product(range(9), range(3)):
        prior = (logits[row].double() / 1.5).softmax(dim=0)
        joint = prior * model.transition[:, given[row]]
        assert float(found[row, true]) == pytest.approx(float(joint[true] / joint.sum()), abs=1e-6)
    without = posterior(logits, given, replace(model, temperature=1.5), trust=0.0)
    torch.testing.assert_close(without, (logits / 1.5).log_softmax(dim=1))


def test_few_rows_leave_the_temperature_near_one():
    shape = anywhere(6)
    logits, _, given = drawn(0.3, shape, sharpness=3.0, rows=2000)
    few = [temperature_of(3.0 * logits[k : k + 10], given[k : k + 10], model_of(0.3, shape)) for k in range(0, 200, 10)]
    weights = torch.full((2000,), 0.005, dtype=torch.float64)  # as ten rows
    assert sum(few) / len(few) < 2.5 < temperature_of(3.0 * logits, given, model_of(0.3, shape))
    assert temperature_of(3.0 * logits, given, model_of(0.3, shape), weights) < 2.5


def test_the_temperature_of_logits_that_are_too_sure_is_found():
    shape = anywhere(6)
    logits, _, given = drawn(0.3, shape, sharpness=3.0)
    assert temperature_of(2.0 * logits, given, model_of(0.3, shape)) == pytest.approx(2.0, rel=0.2)


@pytest.mark.parametrize("held", [0.0, 0.5, 1.0])
def test_what_a_network_has_learned_of_a_label_is_not_counted_again(held):
    """Answers for training rows that hold a share of their labels' evidence, and held-out answers that hold none."""
    shape, rate = anywhere(5), 0.4
    model = model_of(rate, shape)
    train, _, labels = drawn(rate, shape, sharpness=1.0, rows=4000, seed=1)
    learned = posterior(train, labels, model, trust=held)
    agreement = float((learned.argmax(dim=1) == labels).double().mean())
    logits, _, given = drawn(rate, shape, sharpness=1.0, rows=4000, seed=2)
    assert remaining_trust(logits, given, model, agreement) == pytest.approx(1 - held, abs=0.16)


def test_more_agreement_than_labels_could_give_leaves_no_trust():
    logits, _, given = drawn(0.4, anywhere(5), sharpness=8.0)
    assert remaining_trust(logits, given, model_of(0.4, anywhere(5)), agreement=1.01) == 0.0


def test_the_evidence_for_a_shape_is_that_of_an_urn():
    """Drawn one by one from an urn that gains a ball of the colour drawn, in any order."""
    mean, strength = anywhere(3), torch.tensor(2.5, dtype=torch.float64)
    counts = torch.tensor([[0.0, 2.0, 1.0], [0.0, 0.0, 0.0], [3.0, 0.0, 0.0]], dtype=torch.float64)
    total = 0.0
    for row, expected in zip(counts, mean, strict=True):
        urn = strength * expected
        for colour in torch.repeat_interleave(torch.arange(3), row.long()).tolist():
            total += float((urn[colour] / urn.sum()).log())
            urn[colour] += 1
    assert float(dirichlet_log_marginal(counts, mean, strength)) == pytest.approx(total)


@pytest.mark.parametrize("one_way", [True, False])
def test_few_labels_a_class_tell_whether_they_go_one_way(one_way):
    classes, rows = 100, 800
    generator = torch.Generator().manual_seed(0)
    predicted = torch.arange(rows) % classes
    anyone = (predicted + torch.randint(1, classes, (rows,), generator=generator)) % classes
    shape = confusion_shape(predicted, (predicted + 1) % classes if one_way else anyone, classes)
    next_one = shape[torch.arange(classes), (torch.arange(classes) + 1) % classes]
    assert bool((next_one > 0.9).all()) if one_way else float(shape.max()) < 0.02


def test_few_rows_do_not_make_a_prediction_surer_than_it_was():
    """All of three rows are right: likelihood alone would take the lowest temperature."""
    logits, given = torch.tensor([[2.0, 0.0], [0.0, 2.0], [2.5, 0.0]]), torch.tensor([0, 1, 0])
    model = NoiseModel(0.05, 0.0, 0.1, 1.0, torch.tensor([[0.95, 0.05], [0.05, 0.95]], dtype=torch.float64))
    assert temperature_of(logits, given, model) >= 0.5
    many = torch.distributions.Categorical(logits=logits.repeat(700, 1)).sample()
    clean = NoiseModel(0.001, 0.0, 0.1, 1.0, torch.tensor([[0.999, 0.001], [0.001, 0.999]], dtype=torch.float64))
    assert 0.7 < temperature_of(logits.repeat(700, 1), many, clean) < 1.3  # which they have


def test_predictions_of_one_class_agree_by_chance_however_frequent_it_is():
    given = torch.tensor([0] * 90 + [1] * 10)
    assert agrees_by_chance(torch.zeros(100, dtype=torch.int64), given)
    finds_the_rare_class = torch.cat([torch.tensor([0] * 75 + [1] * 15), torch.ones(10, dtype=torch.int64)])
    assert (finds_the_rare_class == given).double().mean() < 0.9  # less often than by predicting the frequent one
    assert not agrees_by_chance(finds_the_rare_class, given)


@pytest.mark.parametrize("agreement", [0.0, 0.1, 0.5])
def test_chance_is_that_of_cohens_kappa(agreement):
    """Predictions that repeat a fraction of the labels and are drawn at random elsewhere."""
    generator = torch.Generator().manual_seed(1)
    given = torch.multinomial(torch.tensor([0.6, 0.3, 0.1]), 3000, replacement=True, generator=generator)
    repeated = torch.rand(3000, generator=generator) < agreement
    predicted = torch.where(repeated, given, given[torch.randperm(3000, generator=generator)])
    assert agrees_by_chance(predicted, given) == (cohen_kappa_score(predicted.numpy(), given.numpy()) < 0.04)
