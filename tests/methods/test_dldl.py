"""Fixed soft labels: the loss against a loop, what it converges to, and what it does not claim."""

import math
import tomllib

import pytest
import torch

import pencil
from pencil import RecipeError, recipe
from pencil.data import Batch, Splits
from pencil.methods import METHODS, Outputs, Task
from pencil.methods.dldl import Dldl
from pencil.methods.schedules import Cosine
from pencil.models import mlp
from pencil.seeding import seeded
from pencil.training import Trainer, TrainingSettings


def started(method, given, classes):
    (phase,) = method.start(Task(given, classes, 8, torch.device("cpu")))
    return phase


def test_the_loss_is_that_of_smoothed_labels():
    """Class by class: p for the given one, (1 - p) / (c - 1) for each other."""
    given, logits = torch.tensor([3, 0, 1, 1, 2]), torch.randn(5, 4, dtype=torch.float64)
    phase = started(Dldl(init_probability=0.7), given, 4)
    rows = torch.tensor([4, 0, 2])
    expected = 0.0
    for row in rows.tolist():
        total = sum(math.exp(value) for value in logits[row].tolist())
        for k in range(4):
            y = 0.7 if k == given[row] else 0.1
            expected += y * math.log(y / (math.exp(logits[row, k]) / total)) / 3
    batch = Batch(rows, torch.zeros(3, 1), given[rows])
    assert phase.loss(Outputs(logits[rows]), batch).loss.item() == pytest.approx(expected, rel=1e-6)


def test_the_network_stops_at_the_soft_label():
    given = torch.tensor([1])
    phase = started(Dldl(init_probability=0.8), given, 3)
    logits = torch.tensor([[0.1, 0.8, 0.1]], dtype=torch.float64).log().requires_grad_()
    phase.loss(Outputs(logits), Batch(torch.tensor([0]), torch.zeros(1, 1), given)).loss.backward()
    torch.testing.assert_close(logits.grad, torch.zeros_like(logits), atol=1e-7, rtol=0)


def test_it_learns_never_moves_labels_and_claims_none(blobs):
    with seeded(0, "test"):
        network = mlp(2, 3, width=16)
    method = Dldl(epochs=12, lr=0.1)
    trainer = Trainer(network, Splits(blobs, test=blobs), method, TrainingSettings(batch_size=16, device="cpu"))
    before = method.soft_labels.label_logits.clone()
    outcome = trainer.run()
    assert torch.equal(before, method.soft_labels.label_logits)
    assert method.label_probs() is None and not any(key.startswith("label") for key in method.metrics())
    assert not [key for key in outcome.records[-1] if key in ("labels_changed", "labels_correct")]
    assert (outcome.label_probs.argmax(1) == blobs.clean_labels).all()  # the network's word stands for them
    given = outcome.label_probs.gather(1, blobs.clean_labels[:, None])
    assert 0.75 < given.mean() < 0.95  # as sure as the labels, not surer


def test_soft_given_labels_are_taken_as_they_are():
    """A network that says just what the labels say has nothing to learn."""
    given = torch.tensor([[0.6, 0.4, 0.0], [0.1, 0.9, 0.0]])
    phase = started(Dldl(init_probability=0.9), given, 3)
    logits = given.clamp(min=1e-9).log().requires_grad_()
    phase.loss(Outputs(logits), Batch(torch.arange(2), torch.zeros(2, 1), given)).loss.backward()
    torch.testing.assert_close(logits.grad, torch.zeros(2, 3), atol=1e-6, rtol=0)


def test_through_a_recipe_and_a_budget(blobs):
    assert METHODS["dldl"] is Dldl and not Dldl.requirements.transition_matrix
    chosen = recipe.parse({"method": {"name": "dldl", "init_probability": 0.8}})
    assert recipe.parse(tomllib.loads(chosen.to_toml())).method == chosen.method
    method = chosen.build_method()
    assert (method.epochs, method.lr, method.init_probability) == (60, Cosine(0.02), 0.8)
    run = pencil.fit("mlp", blobs, method="dldl", epochs=2, progress=False)
    assert len(run.metrics) == 2


def test_probabilities_that_cannot_be_are_refused():
    with pytest.raises(RecipeError, match=r"method.init_probability: .*less than 1; saw 1.0"):
        recipe.parse({"method": {"name": "dldl", "init_probability": 1.0}})
    with pytest.raises(RecipeError, match=r"initial probability is 0\.2; expected a value between 1/3 and 1"):
        started(Dldl(init_probability=0.2), torch.tensor([0, 1, 2]), 3)
