"""Generalised cross-entropy: its limits, its truncation, and which rows are left out when."""

import math
import tomllib

import numpy as np
import pytest
import torch
from torch.nn import functional

import pencil
from pencil import RecipeError, recipe
from pencil.data import Batch, Splits, from_arrays
from pencil.methods import METHODS, Outputs, Task, fit_budget
from pencil.methods.lq import Lq, TruncatedLq, confident, is_due, lq_loss, lq_losses
from pencil.methods.schedules import StepDecay
from pencil.models import mlp
from pencil.seeding import seeded
from pencil.training import Trainer, TrainingSettings

GIVEN = torch.tensor([0, 2, 1, 1, 0, 3])


def some_logits():
    return 2 * torch.randn(6, 4, dtype=torch.float64)


def train(examples, method, *, validation=None, epochs=None):
    with seeded(0, "test"):
        network = mlp(2, 3, width=16)
    settings = TrainingSettings(batch_size=16, device="cpu", epochs=epochs)
    return Trainer(network, Splits(examples, validation, examples), method, settings).run()


class Says:
    """A trainer that has nothing to say but these logits, and counts how often it is asked."""

    validation_accuracy = None

    def __init__(self, logits):
        self.logits, self.asked = logits, []

    def predict(self, *, best=False):
        self.asked.append(best)
        return self.logits


@pytest.mark.parametrize("q", [0.1, 0.7, 1.0])
def test_against_a_loop(q):
    logits, expected = some_logits(), []
    for row, given in zip(logits.tolist(), GIVEN.tolist(), strict=True):
        p = math.exp(row[given]) / sum(map(math.exp, row))
        expected.append((1 - p**q) / q)
    assert lq_losses(logits, GIVEN, q).tolist() == pytest.approx(expected, rel=1e-12)
    assert lq_loss(logits, GIVEN, q).item() == pytest.approx(sum(expected) / 6, rel=1e-12)


def test_it_is_an_integral_of_cross_entropys_gradient_weighted_by_p_to_the_q():
    """Section 3.2: dL_q = p^q dCE, by autograd of CE and the weight alone."""
    logits = some_logits().requires_grad_()
    (found,) = torch.autograd.grad(lq_losses(logits, GIVEN, 0.7).sum(), logits)
    log_p = -functional.cross_entropy(logits, GIVEN, reduction="none")
    (expected,) = torch.autograd.grad(-log_p, logits, grad_outputs=log_p.detach().exp() ** 0.7)
    torch.testing.assert_close(found, expected)
    assert torch.autograd.gradcheck(lambda x: lq_loss(x, GIVEN, 0.7), logits)


def test_limits():
    """Cross-entropy as q -> 0, half the absolute error at q = 1; small q loses no digits even in fp32."""
    logits = some_logits()
    torch.testing.assert_close(lq_loss(logits, GIVEN, 1e-9), functional.cross_entropy(logits, GIVEN))
    low = logits.float()
    torch.testing.assert_close(lq_loss(low, GIVEN, 1e-7), functional.cross_entropy(low, GIVEN))
    absolute = (logits.softmax(1) - functional.one_hot(GIVEN, 4)).abs().sum(1)
    torch.testing.assert_close(lq_losses(logits, GIVEN, 1.0), absolute / 2)


def test_distributions_weigh_the_losses_of_the_classes():
    logits, given = some_logits(), torch.rand(6, 4, dtype=torch.float64).softmax(1)
    each = torch.stack([lq_losses(logits, torch.full((6,), k), 0.7) for k in range(4)], dim=1)
    torch.testing.assert_close(lq_losses(logits, given, 0.7), (each * given).sum(1))
    hot = functional.one_hot(GIVEN, 4).double()
    assert torch.equal(confident(logits, hot, 0.5), confident(logits, GIVEN, 0.5))


def test_improbable_labels_stay_finite():
    logits = torch.tensor([[300.0, 0.0]], requires_grad=True)
    loss = lq_loss(logits, torch.tensor([1]), 0.7)
    (gradient,) = torch.autograd.grad(loss, logits)
    assert loss.item() == pytest.approx(1 / 0.7) and gradient.isfinite().all()
    assert lq_loss(some_logits().bfloat16(), GIVEN, 0.7).dtype == torch.float32


@pytest.mark.parametrize("k", [0.2, 0.5])
def test_pruned_rows_differ_from_truncated_ones_by_a_constant_only(k):
    """The truncated loss, row by row; leaving rows out gives its gradient, with the full batch as denominator."""
    logits = some_logits().requires_grad_()
    p = logits.softmax(1)[torch.arange(6), GIVEN]
    kept = p > k
    losses = torch.where(kept, lq_losses(logits, GIVEN, 0.7), (1 - k**0.7) / 0.7)
    assert 0 < kept.sum() < 6
    for row in range(6):
        assert losses[row].item() == pytest.approx((1 - max(p[row].item(), k) ** 0.7) / 0.7)
    assert torch.equal(confident(logits, GIVEN, k), kept)
    (truncated,) = torch.autograd.grad(losses.mean(), logits, retain_graph=True)
    (pruned,) = torch.autograd.grad(lq_loss(logits, GIVEN, 0.7, kept), logits)
    torch.testing.assert_close(pruned, truncated)
    assert (pruned[~kept] == 0).all()


def due(epochs, first=1 / 3, every=1 / 12):
    return [epoch for epoch in range(epochs) if is_due(epoch, epochs, first, every)]


def test_when_rows_are_chosen():
    assert due(120) == [40, 50, 60, 70, 80, 90, 100, 110]  # the paper's
    assert due(30) == [10, 13, 15, 18, 20, 23, 25, 28]
    assert due(12) == [4, 5, 6, 7, 8, 9, 10, 11] and due(3) == [1, 2] and due(1) == []
    assert due(5, first=0, every=1) == [0] and due(5, first=0.4, every=0) == [2, 3, 4] and due(5, first=1) == []
    for epochs in range(2, 200):
        found = due(epochs)
        assert found[0] == math.ceil(epochs / 3) and len(found) == min(8, epochs - found[0])


def test_it_prunes_by_the_best_network_when_due_and_never_all_rows():
    given = torch.tensor([0, 1, 1, 0])
    method = TruncatedLq()
    (phase,) = fit_budget(method.start(Task(given, 2, 4, torch.device("cpu"))), 30)
    context = Says(torch.tensor([[2.0, 0.0], [2.0, 0.0], [0.0, 2.0], [0.0, 0.0]]))  # p: 0.88, 0.12, 0.88, 0.5
    for epoch in range(10):
        phase.before_epoch(epoch, phase.epochs, context)
    assert context.asked == [] and method.metrics() == {"rows_kept": 1.0}
    phase.before_epoch(10, phase.epochs, context)
    assert context.asked == [True] and method.state.chosen.tolist() == [True, False, True, False]  # p = k is out
    assert method.metrics() == {"rows_kept": 0.5}
    rows = torch.tensor([3, 0])
    logits = torch.randn(2, 2)
    terms = phase.loss(Outputs(logits), Batch(rows, torch.zeros(2, 1), given[rows]))
    torch.testing.assert_close(terms.loss, lq_losses(logits[1:], given[:1], 0.7)[0] / 2)
    context.logits = -context.logits
    phase.before_epoch(13, phase.epochs, context)
    assert method.state.chosen.tolist() == [False, True, False, False]  # a row that was out can come back
    context.logits = torch.zeros(4, 2)
    phase.before_epoch(15, phase.epochs, context)
    assert method.state.chosen.all()


def test_it_leaves_the_wrong_labels_out(blobs):
    wrong = blobs.given_labels != blobs.clean_labels
    method = TruncatedLq(epochs=12, lr=StepDecay(0.1, at=(8,)))
    outcome = train(blobs, method, validation=blobs)
    assert torch.equal(~method.state.chosen, wrong)
    kept = [record["rows_kept"] for record in outcome.records]
    assert kept[:4] == [1.0] * 4 and kept[-1] == pytest.approx(1 - 3 / 90)
    assert (outcome.label_probs.argmax(1) == blobs.clean_labels).all() and method.label_probs() is None


def test_lq_holds_out_where_cross_entropy_gives_in():
    """A small network trained for long on few rows learns wrong labels by heart; L_q does not."""
    rng, clean = np.random.default_rng(0), np.arange(60) % 3
    x = rng.normal(size=(60, 2)) * 0.8 + np.array([[0, 0], [4, 0], [0, 4]])[clean]
    given = clean.copy()
    given[::5] = (given[::5] + 1) % 3
    examples = from_arrays(x.astype(np.float32), given, clean_labels=clean)
    probs = {q: train(examples, Lq(q=q, epochs=40, lr=0.2)).label_probs for q in (1e-6, 0.7)}
    sureness = {q: found.gather(1, examples.clean_labels[:, None])[::5].mean() for q, found in probs.items()}
    assert sureness[0.7] > 0.9 > sureness[1e-6] + 0.1


def test_through_a_recipe():
    assert METHODS["lq"] is Lq and METHODS["truncated_lq"] is TruncatedLq
    for name in ("lq", "truncated_lq"):
        chosen = recipe.parse({"method": {"name": name, "q": 0.5}})
        assert recipe.parse(tomllib.loads(chosen.to_toml())).method == chosen.method
        method = chosen.build_method()
        assert (method.q, method.epochs, method.lr) == (0.5, 120, StepDecay(0.01, at=(40, 80)))
    assert (method.k, method.prune_from, method.prune_every) == (0.5, 1 / 3, 1 / 12)
    for key, value in (("q", 0.0), ("q", 1.5), ("k", -1.0), ("prune_from", 40)):
        with pytest.raises(RecipeError, match=rf"method.{key}: .*; saw {value}"):
            recipe.parse({"method": {"name": "truncated_lq", key: value}})


def test_budgets(blobs):
    run = pencil.fit("mlp", blobs, method="truncated_lq", epochs=6, progress=False)
    assert len(run.metrics) == 6 and all("rows_kept" in record for record in run.metrics)
    assert [round(record["lr"], 6) for record in run.metrics] == [0.01, 0.01, 0.001, 0.001, 0.0001, 0.0001]
    assert len(pencil.fit("mlp", blobs, method="lq", epochs=2, progress=False).metrics) == 2
