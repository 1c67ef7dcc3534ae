"""Early-learning regularisation: loss and targets against loops."""

import math

import pytest
import torch
from baselines import batch_of, from_recipe, started, trainer_for

from pencil import RecipeError
from pencil.methods import Outputs
from pencil.methods.elr import Elr, clamped_probs, early_learning_loss, moved_targets


def slow_probs(row):
    shifted = [math.exp(value - max(row)) for value in row]
    return [min(max(value / sum(shifted), 1e-4), 1 - 1e-4) for value in shifted]


def test_targets_equal_a_loops():
    method, given = Elr(beta=0.7), (0, 1, 2, 0)
    phase = started(method, given)["train"]
    targets = [[0.0] * 3 for _ in given]
    for step in range(6):
        rows = [[0, 2], [3, 1]][step % 2]
        logits = 4 * torch.randn(2, 3)
        batch = batch_of([given[row] for row in rows], rows)
        terms = phase.loss(Outputs(logits), batch)
        penalties = []
        for row, values in zip(rows, logits.tolist(), strict=True):
            f = slow_probs(values)
            targets[row] = [0.7 * t + 0.3 * p / sum(f) for t, p in zip(targets[row], f, strict=True)]
            penalties.append(math.log(1 - sum(t * p for t, p in zip(targets[row], f, strict=True))))
        ce = -logits.log_softmax(1)[range(2), batch.given_labels].mean().item()
        assert terms.loss.item() == pytest.approx(ce + 3 * sum(penalties) / 2, rel=1e-4)
        phase.after_step(terms.carry, batch, 0.0)
    torch.testing.assert_close(method.state.targets, torch.tensor(targets))
    expected = torch.tensor([[t / sum(row) for t in row] for row in targets])
    torch.testing.assert_close(method.label_probs(), expected)


def test_the_gradient_takes_targets_as_constants():
    """By hand: d log(1 - <f, t>) / d z = -f * (t - <f, t>) / (1 - <f, t>), per row, where nothing is clamped."""
    logits = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    probs = clamped_probs(logits)
    targets = moved_targets(torch.zeros(4, 3, dtype=torch.float64), probs, beta=0.3)
    assert not targets.requires_grad
    early_learning_loss(probs, targets).backward()
    f = logits.detach().softmax(1)
    agreement = (f * targets).sum(1, keepdim=True)
    torch.testing.assert_close(logits.grad, -f * (targets - agreement) / (1 - agreement) / 4)


def test_a_network_that_is_sure_of_itself_keeps_the_loss_finite():
    logits = torch.tensor([[500.0, 0.0, 0.0], [0.0, 40.0, 0.0]], requires_grad=True)
    targets = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    loss = early_learning_loss(clamped_probs(logits), targets)
    assert loss.item() == pytest.approx(math.log(1e-4), rel=1e-3)
    loss.backward()
    assert logits.grad.isfinite().all()


def test_a_row_that_was_never_met_reads_as_given():
    method = Elr()
    phase = started(method)["train"]
    batch = batch_of((0, 1))
    phase.after_step(phase.loss(Outputs(torch.tensor([[0.0, 2.0, 0.0]] * 2)), batch).carry, batch, 0.0)
    probs = method.label_probs()
    assert probs[2].tolist() == [0, 0, 1] and probs[3].tolist() == [1, 0, 0]
    torch.testing.assert_close(probs[0], torch.tensor([0.0, 2.0, 0.0]).softmax(0))  # not shrunk by the start at zero


def test_strength_zero_is_cross_entropy(blobs):
    from pencil.methods import CrossEntropy

    plain = trainer_for(blobs, CrossEntropy(epochs=3)).run()
    same = trainer_for(blobs, Elr(epochs=3, strength=0.0)).run()
    assert all(torch.equal(a, b) for a, b in zip(plain.model.parameters(), same.model.parameters(), strict=True))


def test_it_reads_off_the_right_labels_of_an_easy_task(blobs):
    outcome = trainer_for(blobs, Elr(epochs=25)).run()
    assert (outcome.label_probs.argmax(1) == blobs.clean_labels).all()
    assert outcome.records[-1]["test_accuracy"] > 0.95 and outcome.records[-1]["loss_early_learning"] < 0


def test_from_a_recipe_and_within_a_budget(blobs):
    method = from_recipe("elr", strength=1.0, beta=0.9)
    assert len(trainer_for(blobs, method, epochs=4).run().records) == 4
    with pytest.raises(RecipeError, match=r"method\.beta"):
        from_recipe("elr", beta=1.2)
