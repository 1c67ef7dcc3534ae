"""Sparse over-parameterisation: losses and closed-form gradients against autograd and loops, and what it learns."""

import math

import pytest
import torch
from baselines import batch_of, from_recipe, started, trainer_for
from torch.nn import functional

from pencil import RecipeError
from pencil.methods import Outputs
from pencil.methods.sop import INIT, Sop, SopPlus, label_noise, noisy_probs, sop_loss, u_gradient, v_gradient


def rows_of_noise(rows=40, classes=4):
    """Rows with u and v from nothing to above the limit of 1, for hard and for soft labels."""
    torch.manual_seed(0)
    logits = 3 * torch.randn(rows, classes, dtype=torch.float64)
    given = functional.one_hot(torch.randint(classes, (rows,)), classes).double()
    given[::5] = 0.8 * given[::5] + 0.2 / classes
    u, v = 1.3 * torch.rand(rows, 1, dtype=torch.float64), 1.3 * torch.rand(rows, classes, dtype=torch.float64)
    return logits, u, v, given


def test_the_prediction_with_noise_equals_a_loops():
    logits, u, v, given = rows_of_noise()
    found = noisy_probs(logits.softmax(1), label_noise(u, v, given))
    for row in range(len(logits)):
        f = logits[row].softmax(0).tolist()
        shifted = [
            max(p + min(float(u[row]) ** 2 * y, 1) - min(w**2 * (1 - y), 1), 1e-4)
            for p, y, w in zip(f, given[row].tolist(), v[row].tolist(), strict=True)
        ]
        expected = [max(value / sum(shifted), 1e-4) for value in shifted]
        assert found[row].tolist() == pytest.approx(expected)
        loss = -sum(y * math.log(q) for y, q in zip(given[row].tolist(), expected, strict=True))
        one = sop_loss(logits[row : row + 1], label_noise(u[row : row + 1], v[row : row + 1], given[row : row + 1]),
                       given[row : row + 1])  # fmt: skip
        assert float(one) == pytest.approx(loss)


def test_closed_form_gradients_are_autograds():
    logits, u, v, given = rows_of_noise()
    u.requires_grad_()
    v.requires_grad_()
    added, removed = (u**2 * given).clamp(0, 1), (v**2 * (1 - given)).clamp(0, 1)
    q = (logits.softmax(1) + added - removed.detach()).clamp(min=1e-4)
    r = functional.normalize(q, p=1).clamp(min=1e-4)
    (expected_u,) = torch.autograd.grad(-(given * r.log()).sum(), u)
    predicted = functional.one_hot(logits.argmax(1), 4).double()
    (expected_v,) = torch.autograd.grad((predicted + added.detach() - removed - given).square().sum(), v)
    now = logits, u.detach(), v.detach(), given
    torch.testing.assert_close(u_gradient(*now), expected_u)
    torch.testing.assert_close(v_gradient(*now), expected_v)
    assert (expected_u != 0).any() and (expected_u == 0).any()  # limited and not


def test_a_step_is_gradient_descent_on_the_mean_over_the_nominal_batch():
    method = Sop(lr_u=3.0, lr_v=5.0)
    phase, batch = started(method, (0, 1, 2, 0), dtype=torch.float64)["train"], batch_of((0, 2), (0, 2))
    method.state.u[:], method.state.v[:] = 0.3, 0.2
    logits = torch.tensor([[0.0, 2.0, 0.0], [0.0, 0.0, 1.0]], dtype=torch.float64)
    now = logits, method.state.u[[0, 2]], method.state.v[[0, 2]], torch.eye(3).double()[[0, 2]]
    terms = phase.loss(Outputs(logits), batch)
    phase.after_step(terms.carry, batch, 0.0)
    torch.testing.assert_close(method.state.u[[0, 2]], now[1] - 3 / 4 * u_gradient(*now))
    torch.testing.assert_close(method.state.v[[0, 2]], now[2] - 5 / 4 * v_gradient(*now))
    assert (method.state.u[[1, 3]] == 0.3).all() and (method.state.v[[1, 3]] == 0.2).all()


def test_at_first_it_is_cross_entropy():
    method, logits = Sop(), torch.randn(4, 3)
    phase, batch = started(method)["train"], batch_of((0, 1, 2, 0))
    terms = phase.loss(Outputs(logits), batch)
    assert terms.loss.item() == pytest.approx(functional.cross_entropy(logits, batch.given_labels).item(), rel=1e-5)
    assert (method.state.u == INIT).all() and method.metrics()["noise_fraction"] == pytest.approx(0, abs=1e-12)


def test_a_label_that_the_network_never_believes_becomes_noise():
    method = Sop(lr_u=10 / 32, lr_v=10 / 32)  # for a batch of 4 what 10 is for one of 128
    phase, batch = started(method, (0, 1))["train"], batch_of((0, 1))
    logits = torch.tensor([[-2.0, 3.0, 0.0], [-2.0, 3.0, 0.0]])  # the first label is wrong, the second right
    for _ in range(100):
        phase.after_step(phase.loss(Outputs(logits), batch).carry, batch, 0.0)
    noise = label_noise(method.state.u, method.state.v, method.given_probs)
    assert noise.added[0, 0] > 0.9 and noise.added[1].max() < 1e-3
    assert noise.removed[0, 1] > 0.9 and noise.removed[1].max() < 1e-3  # the class that was predicted instead


def test_the_terms_of_sop_plus():
    method, (weak, strong) = SopPlus(consistency=0.5, balance=0.25), torch.randn(2, 4, 3)
    phase, batch = started(method)["train"], batch_of((0, 1, 2, 0))
    assert phase.views.second == "strong"
    terms = phase.loss(Outputs(torch.cat([weak, strong])), batch)
    f, g = weak.softmax(1), strong.softmax(1)
    consistency = (f * (f / g).log()).sum(1).mean()
    balance = (1 / 3 * (1 / 3 / f.mean(0)).log()).sum()
    plain = functional.cross_entropy(weak, batch.given_labels)
    torch.testing.assert_close(terms.loss, plain + 0.5 * consistency + 0.25 * balance, rtol=1e-4, atol=1e-5)
    assert terms.carry.equal(weak)


def test_no_gradient_reaches_the_weak_view_through_consistency():
    method, weak, strong = SopPlus(balance=0.0), torch.randn(4, 3, requires_grad=True), torch.randn(4, 3)
    phase, batch = started(method)["train"], batch_of((0, 1, 2, 0))
    phase.loss(Outputs(torch.cat([weak, strong])), batch).loss.backward()
    plain = weak.detach().clone().requires_grad_()
    functional.cross_entropy(plain, batch.given_labels).backward()
    torch.testing.assert_close(weak.grad, plain.grad, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("kind", [Sop, SopPlus])
def test_it_learns_an_easy_task(blobs, kind):
    outcome = trainer_for(blobs, kind(epochs=25)).run()
    assert outcome.records[-1]["test_accuracy"] > 0.95
    assert (outcome.label_probs.argmax(1) == blobs.clean_labels).double().mean() > 0.95  # the network's predictions


def test_from_a_recipe_and_within_a_budget(blobs):
    method = from_recipe("sop_plus", lr_v=100.0, consistency=0.0)
    assert len(trainer_for(blobs, method, epochs=4).run().records) == 4
    with pytest.raises(RecipeError, match=r"method\.lr_u"):
        from_recipe("sop", lr_u=-1)
