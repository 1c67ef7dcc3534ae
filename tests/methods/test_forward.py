"""Loss correction by a transition matrix: against loops, by its theorems, and with an estimated matrix."""

import math
import tomllib

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import pencil
from pencil import RecipeError, recipe
from pencil.data import Splits, from_arrays
from pencil.data.noise import flip, map_matrix, symmetric_matrix
from pencil.methods import METHODS, CrossEntropy, Task
from pencil.methods.forward import (
    Backward,
    Forward,
    ForwardEstimated,
    backward_loss,
    check_transition,
    estimate_transition,
    forward_loss,
    inverse_transition,
)
from pencil.methods.schedules import Constant, Cosine
from pencil.seeding import seeded
from pencil.training import Trainer, TrainingSettings

T = ((0.7, 0.2, 0.1), (0.0, 0.9, 0.1), (0.3, 0.0, 0.7))
GIVEN = torch.tensor([0, 2, 1, 1, 0, 2])
NOISE = symmetric_matrix(3, 0.45)  # 0.7 on the diagonal


def some_logits(dtype=torch.float64):
    return torch.randn(6, 3, dtype=torch.float64).to(dtype)


def as_tuples(matrix):
    return tuple(map(tuple, np.asarray(matrix).tolist()))


def train(examples, method, *, epochs=None):
    with seeded(0, "test"):
        network = nn.Linear(2, 3)  # through three clouds it can say any three distributions, and nothing by heart
    settings = TrainingSettings(batch_size=45, device="cpu", epochs=epochs)
    trainer = Trainer(network, Splits(examples, examples, examples), method, settings)
    return trainer.run(), trainer, network


@pytest.fixture(scope="module")
def noisy():
    """Three small clouds, their labels as NOISE gives them."""
    rng, clean = np.random.default_rng(0), np.arange(450) % 3
    x = rng.normal(size=(450, 2)) * 0.1 + np.array([[0, 0], [4, 0], [0, 4]])[clean]
    given = flip(clean, NOISE, seed=1).labels
    return from_arrays(x.astype(np.float32), given, clean_labels=clean)


def test_forward_against_a_loop():
    logits, total = some_logits(), 0.0
    for row, given in zip(logits.tolist(), GIVEN.tolist(), strict=True):
        f = [math.exp(value) / sum(map(math.exp, row)) for value in row]
        total -= math.log(sum(f[i] * T[i][given] for i in range(3))) / 6
    assert forward_loss(logits, GIVEN, torch.tensor(T)).item() == pytest.approx(total, rel=1e-6)


def test_backward_against_a_loop():
    logits, total = some_logits(), 0.0
    inverse = np.linalg.inv(np.array(T))
    for row, given in zip(logits.tolist(), GIVEN.tolist(), strict=True):
        losses = [-math.log(math.exp(value) / sum(map(math.exp, row))) for value in row]
        total += sum(inverse[given, k] * losses[k] for k in range(3)) / 6
    found = backward_loss(logits, GIVEN, inverse_transition(torch.tensor(T, dtype=torch.float64)))
    assert found.item() == pytest.approx(total, rel=1e-9)


@pytest.mark.parametrize("soft", [False, True])
def test_without_noise_both_are_cross_entropy(soft):
    logits = some_logits(torch.float32)
    given = torch.rand(6, 3).softmax(1) if soft else GIVEN
    identity = torch.eye(3)
    expected = functional.cross_entropy(logits, given)
    torch.testing.assert_close(forward_loss(logits, given, identity), expected)
    torch.testing.assert_close(backward_loss(logits, given, inverse_transition(identity)), expected)


def test_one_hot_distributions_are_class_indices():
    logits, hot = some_logits(), functional.one_hot(GIVEN, 3).double()
    matrix = torch.tensor(T, dtype=torch.float64)
    for loss, argument in ((forward_loss, matrix), (backward_loss, inverse_transition(matrix))):
        torch.testing.assert_close(loss(logits, hot, argument), loss(logits, GIVEN, argument))


def test_backward_is_unbiased():
    """Theorem 1: over the noisy labels of a clean class its mean is the clean cross-entropy; that of CE is not."""
    logits, inverse = some_logits(), inverse_transition(torch.tensor(T, dtype=torch.float64))
    for row in logits:
        each = [backward_loss(row[None], torch.tensor([j]), inverse).item() for j in range(3)]
        plain = [functional.cross_entropy(row[None], torch.tensor([j])).item() for j in range(3)]
        for clean in range(3):
            mean = sum(T[clean][j] * each[j] for j in range(3))
            assert mean == pytest.approx(plain[clean], rel=1e-9)
            assert sum(T[clean][j] * plain[j] for j in range(3)) != pytest.approx(plain[clean], rel=1e-3)


def test_forward_is_least_at_the_clean_posterior():
    """Theorem 2: where noisy labels come as T says, no network does better than the one that says the clean class."""
    matrix, clean = torch.tensor(T, dtype=torch.float64), torch.tensor([[0.6, 0.3, 0.1]], dtype=torch.float64)
    logits = clean.log().requires_grad_()
    forward_loss(logits, clean @ matrix, matrix).backward()
    torch.testing.assert_close(logits.grad, torch.zeros_like(logits), atol=1e-12, rtol=0)
    assert forward_loss(torch.zeros_like(clean), clean @ matrix, matrix) > forward_loss(logits, clean @ matrix, matrix)


def test_backward_may_be_negative():
    inverse = inverse_transition(torch.tensor(symmetric_matrix(3, 0.5)))
    assert backward_loss(torch.tensor([[30.0, 0.0, 0.0]]), torch.tensor([0]), inverse) < -5


def test_gradients_agree_with_finite_differences():
    matrix = torch.tensor(T, dtype=torch.float64)
    logits = some_logits().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: forward_loss(x, GIVEN, matrix), logits)
    assert torch.autograd.gradcheck(lambda x: backward_loss(x, GIVEN, inverse_transition(matrix)), logits)


def test_sure_networks_zeros_and_half_precision_stay_finite():
    logits = torch.tensor([[80.0, 0.0, 0.0]], requires_grad=True)
    for matrix in (torch.eye(3), torch.tensor([[1.0, 0, 0], [1.0, 0, 0], [0.5, 0, 0.5]])):  # nothing is given as 1
        loss = forward_loss(logits, torch.tensor([1]), matrix)
        (gradient,) = torch.autograd.grad(loss, logits)
        assert loss.isfinite() and gradient.isfinite().all()
    logits = some_logits(torch.bfloat16)
    assert forward_loss(logits, GIVEN, torch.tensor(T)).dtype == torch.float32
    assert backward_loss(logits, GIVEN, torch.eye(3, dtype=torch.float64)).dtype == torch.float32


@pytest.mark.parametrize("matrix", [symmetric_matrix(3, 1.0), map_matrix(3, 0.5, {0: 1, 1: 0})])
def test_a_singular_matrix_has_no_backward_loss(matrix):
    with pytest.raises(
        RecipeError, match=r"is singular \(.* to \S+\); backward needs its inverse, .* use method forward"
    ):
        inverse_transition(torch.tensor(matrix))
    task = Task(torch.tensor([0, 1, 2]), 3, 8, torch.device("cpu"))
    with pytest.raises(RecipeError, match="is singular"):
        Backward(transition=as_tuples(matrix)).start(task)
    assert Forward(transition=as_tuples(matrix)).start(task)


def test_anchor_points_give_the_matrix_back():
    """One row in twenty is surely of its class, so its noisy posterior is a row of T; the others are mixtures."""
    matrix = torch.tensor(T)
    mixtures = torch.rand(400, 3).softmax(1)
    anchors = torch.eye(3)[torch.arange(60) % 3]
    probs = torch.cat([mixtures, anchors])[torch.randperm(460)] @ matrix
    for percentile in (97, 100):
        torch.testing.assert_close(estimate_transition(probs, percentile), matrix)
    outlier = torch.tensor([[0.02, 0.96, 0.02]])
    assert not torch.allclose(estimate_transition(torch.cat([probs, outlier]), 100), matrix)
    torch.testing.assert_close(estimate_transition(torch.cat([probs, outlier]), 97), matrix)
    unread = torch.full((5, 3), torch.nan)
    torch.testing.assert_close(estimate_transition(torch.cat([unread, probs]), 97), matrix)


@pytest.mark.parametrize("percentile", [0, 12.5, 50, 97, 99.9, 100])
def test_the_row_at_the_percentile(percentile):
    probs = torch.rand(101, 4, dtype=torch.float64).softmax(1)
    found = estimate_transition(probs, percentile)
    for k in range(4):
        value = np.percentile(probs[:, k].numpy(), percentile, method="lower")
        (row,) = (probs[:, k] == value).nonzero()[:, 0].tolist()
        assert torch.equal(found[k], probs[row])


@pytest.mark.parametrize(("method", "options"), [(Forward, {"epochs": 10, "lr": 0.1}), (Backward, {"epochs": 10})])
def test_with_the_true_matrix_the_network_learns_the_clean_class(noisy, method, options):
    outcome, _, _ = train(noisy, method(transition=as_tuples(NOISE), **options))
    assert (outcome.label_probs.argmax(1) == noisy.clean_labels).double().mean() > 0.98
    assert all(math.isfinite(record["loss"]) for record in outcome.records)


def test_forward_is_sure_of_the_clean_class_where_cross_entropy_learns_the_noise(noisy):
    def confidence(method):
        probs = train(noisy, method)[0].label_probs
        return probs.gather(1, noisy.clean_labels[:, None]).mean()

    assert confidence(Forward(transition=as_tuples(NOISE), epochs=15, lr=Cosine(0.1))) > 0.9
    assert confidence(CrossEntropy(epochs=15, lr=Cosine(0.1))) < 0.75


def test_the_matrix_is_estimated_from_the_trained_network_and_the_next_one_is_fresh(noisy):
    method = ForwardEstimated(estimate_epochs=15, forward_epochs=20, lr=Cosine(0.1))
    outcome, trainer, first = train(noisy, method)
    assert [record["phase"] for record in outcome.records] == ["estimate"] * 15 + ["forward"] * 20
    torch.testing.assert_close(method.state.transition.sum(1), torch.ones(3))
    assert (method.state.transition - torch.tensor(NOISE)).abs().max() < 0.12
    assert trainer.model is not first
    weights = zip(trainer.model.parameters(), first.parameters(), strict=True)
    assert not any(torch.equal(mine, other) for mine, other in weights)
    assert (outcome.label_probs.argmax(1) == noisy.clean_labels).double().mean() > 0.98
    assert outcome.label_probs.gather(1, noisy.clean_labels[:, None]).mean() > 0.9


@pytest.mark.parametrize("method", [Forward, Backward])
def test_the_true_matrix_must_be_given(blobs, method):
    assert method.requirements.transition_matrix
    with pytest.raises(RecipeError, match=r"true transition matrix, which is known in .* use method forward_estimated"):
        train(blobs, method())


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (as_tuples(np.eye(2)), "has 2 rows of 2 numbers; expected 3 rows of 3, one for each class"),
        (((1.0, 0.0), (0.0, 1.0), (1.0, 0.0, 0.0)), "has 3 rows of 2 or 3 numbers; expected 3 rows of 3"),
        ((), "has 0 rows of no numbers"),
        (
            as_tuples(0.5 * np.eye(3)),
            r"row 0 of method.transition is \[0.5, 0.0, 0.0\], with sum 0.5; expected the prob",
        ),
        (((1.0, 0.0, 0.0), (1.1, -0.1, 0.0), (0.0, 0.0, 1.0)), "row 1 of method.transition"),
        (((1.0, 0.0, 0.0), (0.0, math.nan, 1.0), (0.0, 0.0, 1.0)), "row 1 of method.transition"),
    ],
)
def test_a_matrix_that_is_none_is_named(matrix, message):
    with pytest.raises(RecipeError, match=message):
        check_transition(matrix, 3)


def test_through_a_recipe():
    assert [METHODS[name] for name in ("forward", "backward", "forward_estimated")] == [
        Forward, Backward, ForwardEstimated,
    ]  # fmt: skip
    chosen = recipe.parse({"method": {"name": "forward", "transition": [list(row) for row in T]}})
    again = recipe.parse(tomllib.loads(chosen.to_toml()))
    assert again.build_method().transition == chosen.build_method().transition == T
    assert recipe.parse({"method": {"name": "backward"}}).build_method().transition is None
    method = recipe.parse({"method": {"name": "forward_estimated", "forward_lr": 0.01}}).build_method()
    assert (method.estimate_epochs, method.forward_epochs, method.percentile) == (30, 30, 97)
    assert (method.lr, method.forward_lr) == (
        Cosine(0.02),
        Constant(0.01),
    ) and not method.requirements.transition_matrix
    with pytest.raises(RecipeError, match=r"method.percentile: .*; saw 120"):
        recipe.parse({"method": {"name": "forward_estimated", "percentile": 120}})


def test_budgets(blobs):
    outcome, _, _ = train(blobs, ForwardEstimated(), epochs=5)
    assert [record["phase"] for record in outcome.records].count("estimate") in (2, 3)
    with pytest.raises(RecipeError, match="1 epoch is too few for 2 phases estimate, forward"):
        train(blobs, ForwardEstimated(), epochs=1)
    matrix = [[0.9, 0.1, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]  # as the labels of blobs really are
    for name in ("forward", "backward"):
        run = pencil.fit("mlp", blobs, method=name, epochs=2, settings={"method.transition": matrix}, progress=False)
        assert len(run.metrics) == 2
