"""Joint optimisation: its losses against loops, its labels against means taken by hand."""

import math
from collections import deque

import pytest
import torch
from baselines import batch_of, from_recipe, started, trainer_for

from pencil import RecipeError
from pencil.methods import Outputs
from pencil.methods.joint_optimization import JointOptimization, JointOptimizationState, joint_loss, prior_loss
from pencil.methods.state import load_state
from pencil.training import Observer


def test_losses_against_loops():
    logits, soft = torch.randn(5, 3, dtype=torch.float64), torch.rand(5, 3, dtype=torch.float64).softmax(1)
    prior = [0.2, 0.5, 0.3]
    f = [[math.exp(v) / sum(math.exp(w) for w in row) for v in row] for row in logits.tolist()]
    mean = [sum(row[j] for row in f) / 5 for j in range(3)]
    l_p = sum(p * math.log(p / s) for p, s in zip(prior, mean, strict=True))
    l_c = sum(-soft[i, j].item() * math.log(f[i][j]) for i in range(5) for j in range(3)) / 5
    l_e = sum(-f[i][j] * math.log(f[i][j]) for i in range(5) for j in range(3)) / 5
    prior = torch.tensor(prior, dtype=torch.float64)
    assert prior_loss(logits, prior).item() == pytest.approx(l_p)
    assert joint_loss(logits, soft, beta=0.8).item() == pytest.approx(l_c + 0.8 * l_e)
    full = joint_loss(logits, soft, beta=0.8, alpha=1.2, prior_probs=prior).item()
    assert full == pytest.approx(l_c + 1.2 * l_p + 0.8 * l_e)


def test_the_prior_loss_vanishes_only_where_the_mean_prediction_is_the_prior():
    uniform = torch.full((2,), 0.5)
    assert prior_loss(torch.tensor([[30.0, 0.0], [0.0, 30.0]]), uniform).item() == pytest.approx(0, abs=1e-6)
    assert prior_loss(torch.tensor([[3.0, 0.0], [3.0, 0.0]]), uniform) > 0.1
    extreme = prior_loss(torch.tensor([[1000.0, 0.0]], requires_grad=True), uniform)
    assert extreme.isfinite()
    assert prior_loss(torch.zeros(1, 2), torch.tensor([1.0, 0.0])).item() == pytest.approx(math.log(2))


def test_the_prior_is_off_unless_asked_for():
    logits, batch = torch.randn(4, 3), batch_of((0, 1, 2, 0))
    without, strong = started(JointOptimization()), started(JointOptimization(alpha=99.0))
    assert without["joint"].loss(Outputs(logits), batch).loss == strong["joint"].loss(Outputs(logits), batch).loss
    with_prior = started(JointOptimization(prior="uniform"))["joint"].loss(Outputs(logits), batch).loss
    expected = without["joint"].loss(Outputs(logits), batch).loss + 1.2 * prior_loss(logits, torch.full((3,), 1 / 3))
    torch.testing.assert_close(with_prior, expected)
    counted = started(JointOptimization(prior="given"))["joint"].loss(Outputs(logits), batch).loss  # given: 0, 1, 2, 0
    expected = without["joint"].loss(Outputs(logits), batch).loss + 1.2 * prior_loss(
        logits, torch.tensor([0.5, 0.25, 0.25])
    )
    torch.testing.assert_close(counted, expected)


@pytest.mark.parametrize(("window", "update_from"), [(2, 0.5), (3, 0.35), (10, 0.2), (1, 0.0)])
def test_labels_are_the_mean_of_the_last_epochs_predictions(window, update_from):
    epochs, given = 7, (0, 1, 2, 0)
    method = JointOptimization(window=window, update_from=update_from)
    phases = started(method, given)
    said, labels = [], torch.eye(3)[list(given)]
    for epoch in range(epochs):
        phases["joint"].before_epoch(epoch, epochs, None)
        if epoch >= update_from * epochs and said:
            labels = sum(said[-window:]) / len(said[-window:])
        torch.testing.assert_close(method.label_probs(), labels)
        logits = torch.randn(4, 3)
        for rows in ([2, 0], [3, 1]):
            batch = batch_of([given[row] for row in rows], rows)
            terms = phases["joint"].loss(Outputs(logits[rows]), batch)
            phases["joint"].after_step(terms.carry, batch, 0.0)
        said.append(logits.softmax(1))
    phases["final"].on_start(None)
    torch.testing.assert_close(method.label_probs(), sum(said[-window:]) / len(said[-window:]))


def test_a_row_that_is_never_met_keeps_its_label():
    method = JointOptimization(update_from=0.0)
    phase = started(method)["joint"]
    for epoch in range(3):
        phase.before_epoch(epoch, 3, None)
        batch = batch_of((0, 1, 2))
        phase.after_step(phase.loss(Outputs(torch.zeros(3, 3)), batch).carry, batch, 0.0)
    method.relabel(None)
    assert method.label_probs()[3].tolist() == [1, 0, 0]
    torch.testing.assert_close(method.label_probs()[:3], torch.full((3, 3), 1 / 3))


def test_the_last_phase_trains_a_new_network_with_cross_entropy_alone(blobs):
    class Watch(Observer):
        def __init__(self):
            self.networks = []

        def on_epoch_end(self, record):
            self.networks.append(trainer.model)

    watch = Watch()
    method = JointOptimization(joint_epochs=3, final_epochs=2)
    trainer = trainer_for(blobs, method, observers=(watch,))
    outcome = trainer.run()
    assert len({id(network) for network in watch.networks}) == 2 and outcome.model is watch.networks[-1]
    logits, batch = torch.randn(4, 3), batch_of((0, 1, 2, 0))
    expected = -(method.state.soft_labels[:4] * logits.log_softmax(1)).sum(1).mean()
    torch.testing.assert_close(trainer.phases[1].loss(Outputs(logits), batch).loss, expected)


def test_it_corrects_the_labels_of_an_easy_task(blobs):
    outcome = trainer_for(blobs, JointOptimization(joint_epochs=25, final_epochs=10)).run()
    assert outcome.records[0]["labels_correct"] == pytest.approx(1 - 3 / 90)
    assert (outcome.label_probs.argmax(1) == blobs.clean_labels).all()
    torch.testing.assert_close(outcome.label_probs.sum(1), torch.ones(90))
    assert outcome.records[-1]["test_accuracy"] > 0.95


def test_from_a_recipe_and_within_a_budget(blobs):
    method = from_recipe("joint_optimization", prior="uniform", window=3)
    outcome = trainer_for(blobs, method, epochs=9).run()
    assert [record["phase"] for record in outcome.records] == ["joint"] * 6 + ["final"] * 3
    assert outcome.records[2]["label_entropy"] == 0 < outcome.records[3]["label_entropy"]  # from 0.35 of 6 epochs on


@pytest.mark.parametrize("wrong", [{"window": 0}, {"update_from": 1.5}, {"alpha": -1}])
def test_wrong_options_are_named(wrong):
    with pytest.raises(RecipeError, match=f"method.{next(iter(wrong))}"):
        from_recipe("joint_optimization", **wrong)


def test_predictions_of_a_checkpoint_are_moved_to_the_device_of_the_labels():
    """The deque of a new state is still empty, so that it cannot tell."""
    state = JointOptimizationState(torch.zeros(2, 3, device="meta"), deque(maxlen=4))
    tree = {"soft_labels": torch.zeros(2, 3), "history": [torch.ones(2, 3)]}
    loaded = load_state(state, tree)
    assert loaded.history[0].device.type == loaded.soft_labels.device.type == "meta" and loaded.history.maxlen == 4
