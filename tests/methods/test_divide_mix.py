"""DivideMix: division, refinement, guessing and MixMatch against loops, and a whole small training."""

import math

import pytest
import torch
from baselines import batch_of, from_recipe, started, trainer_for
from torch.nn import functional

from pencil import RecipeError
from pencil.methods import Mixing, Outputs
from pencil.methods.divide_mix import DivideMix, clean_probs, mixmatch_losses, refined_labels, sharpen


def test_small_losses_are_clean():
    torch.manual_seed(0)
    losses = torch.cat([0.1 * torch.rand(60), 3 + torch.randn(40)]).abs()
    found = clean_probs(losses)
    assert (found[:60] > 0.9).all() and (found[60:] < 0.1).double().mean() > 0.9
    torch.testing.assert_close(clean_probs(7 * losses + 2), found, rtol=1e-3, atol=1e-4)  # losses are scaled first
    assert (clean_probs(torch.full((5,), 2.0)) == 1).all()  # nothing to divide


def test_the_mixture_is_fitted_as_by_hand():
    """The responsibilities of a mixture that expectation maximisation has settled on."""
    torch.manual_seed(1)
    losses = torch.cat([0.2 * torch.rand(50), 0.8 + 0.2 * torch.rand(50)]).double()
    losses = (losses - losses.min()) / (losses.max() - losses.min())
    means, variances, share = [0.1, 0.9], [0.01, 0.01], [0.5, 0.5]
    for _ in range(50):
        density = torch.stack(
            [s * torch.exp(-((losses - m) ** 2) / (2 * v)) / math.sqrt(v)
             for m, v, s in zip(means, variances, share, strict=True)]
        )  # fmt: skip
        parts = density / density.sum(0)
        share = parts.mean(1).tolist()
        means = [float((p * losses).sum() / p.sum()) for p in parts]
        variances = [float((p * (losses - m) ** 2).sum() / p.sum()) + 5e-4 for p, m in zip(parts, means, strict=True)]
    torch.testing.assert_close(clean_probs(losses), parts[0], rtol=0, atol=1e-3)


def test_sharpening_and_refinement_equal_a_loops():
    given, clean = torch.eye(3)[[0, 1]].double(), torch.tensor([0.9, 0.4]).double()
    own = torch.tensor([[0.2, 0.5, 0.3], [0.0, 0.6, 0.4]]).double()
    for row, (y, w, p) in enumerate(zip(given.tolist(), clean.tolist(), own.tolist(), strict=True)):
        mixed = [w * a + (1 - w) * b for a, b in zip(y, p, strict=True)]
        powers = [value ** (1 / 0.5) for value in mixed]
        expected = [value / sum(powers) for value in powers]
        assert refined_labels(given, clean, own, 0.5)[row].tolist() == pytest.approx(expected)
    torch.testing.assert_close(sharpen(own, 1.0), own)


def test_mixmatch_equals_a_loops():
    torch.manual_seed(0)
    logits, targets = torch.randn(4, 3).double(), torch.randn(4, 3).double().softmax(1)
    labelled, mixing = torch.tensor([True, False, True, False]), Mixing(0.8, torch.tensor([1, 0, 3, 2]))
    found = mixmatch_losses(logits, targets, labelled, mixing)
    losses, errors, mean = [], [], torch.zeros(3).double()
    for row in range(4):
        f = logits[row].softmax(0)
        target = 0.8 * targets[row] + 0.2 * targets[mixing.partners[row]]
        if labelled[row]:
            losses.append(-sum(float(t) * math.log(p) for t, p in zip(target, f, strict=True)))
        else:
            errors.append(sum(float(p - t) ** 2 for t, p in zip(target, f, strict=True)) / 3)
        mean += f / 4
    prior = sum(1 / 3 * math.log(1 / 3 / float(p)) for p in mean)
    assert [float(one) for one in found] == pytest.approx([sum(losses) / 2, sum(errors) / 2, prior])
    every = mixmatch_losses(logits, targets, torch.ones(4, dtype=torch.bool), mixing)
    assert every.unlabelled == 0 and every.labelled.isfinite()


def outputs_of(rows=4, classes=3):
    torch.manual_seed(3)
    logits, plain = torch.randn(2, 2 * rows, classes), torch.randn(2, 2 * rows, classes)
    mixings = Mixing(0.75, torch.randperm(2 * rows)), Mixing(0.6, torch.randperm(2 * rows))
    return Outputs(logits[0], (logits[1],), mixings=mixings, plain_logits=tuple(plain))


def test_each_network_learns_from_the_others_division():
    method, outputs, batch = DivideMix(unlabelled_weight=10.0), outputs_of(), batch_of((0, 1, 2, 0))
    phase = started(method)["divide"]
    assert (phase.views.second, phase.views.mixup) == ("weak", 4.0)
    method.state.clean = torch.tensor([[0.9, 0.2, 0.8, 0.1], [0.3, 0.95, 0.1, 0.7]])
    method.state.unlabelled_weight = 10.0
    terms, expected, targets = phase.loss(outputs, batch), 0.0, []
    views = [[one.softmax(1) for one in plain.split(4)] for plain in outputs.plain_logits]
    guess = sharpen(sum(views[0] + views[1]) / 4, 0.5)
    for network, logits in enumerate((outputs.logits, *outputs.others)):
        rows = []
        for row in range(4):
            w = method.state.clean[1 - network, row]
            own = sum(view[row] for view in views[network]) / 2
            refined = sharpen((w * torch.eye(3)[batch.given_labels[row]] + (1 - w) * own)[None], 0.5)[0]
            rows.append(refined if w > 0.5 else guess[row])
        targets.append(torch.stack(rows))
        labelled = (method.state.clean[1 - network] > 0.5).repeat(2)
        found = mixmatch_losses(logits, targets[-1].repeat(2, 1), labelled, outputs.mixings[network])
        expected += found.labelled + 10.0 * found.unlabelled + found.prior
    torch.testing.assert_close(terms.loss, expected)
    phase.after_step(terms.carry, batch, 0.0)
    torch.testing.assert_close(method.state.refined, (targets[0] + targets[1]) / 2)


def test_warm_up_is_cross_entropy_and_may_penalise_confidence():
    logits, batch = torch.randn(2, 4, 3), batch_of((0, 1, 2, 0))
    plain = sum(functional.cross_entropy(one, batch.given_labels) for one in logits)
    method = DivideMix()
    terms = started(method)["warm-up"].loss(Outputs(logits[0], (logits[1],)), batch)
    torch.testing.assert_close(terms.loss, plain)
    assert method.label_probs().equal(torch.eye(3)[[0, 1, 2, 0]])  # nothing is refined yet
    penalised = started(DivideMix(confidence_penalty=True))["warm-up"].loss(Outputs(logits[0], (logits[1],)), batch)
    negative_entropy = sum((one.softmax(1) * one.log_softmax(1)).sum(1).mean() for one in logits)
    torch.testing.assert_close(penalised.loss, plain + negative_entropy)


class Context:
    """Two networks: the first finds the last row hard, the second the first row; the third cannot be read."""

    def predict(self, *, best=False, network=0):
        logits = 5 * torch.eye(3)[[0, 1, 2, 0]]
        logits[3 if network == 0 else 0] = torch.tensor([0.0, 5.0, 0.0])
        logits[2] = torch.nan
        return logits


def test_each_network_divides_all_rows_before_an_epoch():
    method = DivideMix(unlabelled_weight=20.0, ramp=0.5)
    phase, weights = started(method)["divide"], []
    for epoch in range(5):
        phase.before_epoch(epoch, 8, Context())
        weights.append(method.state.unlabelled_weight)
    assert weights == [0, 5, 10, 15, 20]
    assert [(row > 0.5).tolist() for row in method.state.clean[:, [0, 1, 3]]] == [
        [True, True, False],
        [False, True, True],
    ]
    assert method.metrics()["labelled_fraction"] == 0.75


def test_it_divides_and_relabels_an_easy_task(blobs):
    outcome = trainer_for(blobs, DivideMix(warmup_epochs=6, epochs=12)).run()
    last = outcome.records[-1]
    assert all("labels_correct" in record for record in outcome.records)  # from the first epoch on
    assert [record["phase"] for record in outcome.records] == ["warm-up"] * 6 + ["divide"] * 12
    assert last["test_accuracy"] > 0.95 and last["labelled_fraction"] > 0.5
    assert (outcome.label_probs.argmax(1) == blobs.clean_labels).double().mean() > 0.95


def test_from_a_recipe_and_within_a_budget(blobs):
    method = from_recipe("divide_mix", threshold=0.6, unlabelled_weight=0.0)
    assert len(trainer_for(blobs, method, epochs=4).run().records) == 4
    with pytest.raises(RecipeError, match=r"method\.temperature"):
        from_recipe("divide_mix", temperature=0)
