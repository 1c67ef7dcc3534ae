"""Co-teaching: who chooses what for whom, how much is forgotten, and what is kept in the end."""

import pytest
import torch
from baselines import batch_of, from_recipe, started, trainer_for

from pencil import RecipeError
from pencil.data import from_arrays
from pencil.methods import Outputs
from pencil.methods.co_teaching import CoTeaching, co_teaching_losses, forget_fraction, small_loss_rows
from pencil.training import Observer


def test_the_share_that_is_forgotten_rises_over_the_ramp():
    assert [forget_fraction(t, 200, 0.5, 0.05) for t in (0, 1, 5, 10, 199)] == pytest.approx([0, 0.05, 0.25, 0.5, 0.5])
    assert forget_fraction(0, 10, 0.3, ramp=0.0) == 0.3


@pytest.mark.parametrize(("forget", "kept"), [(0.0, range(10)), (0.3, [0, 1, 2, 4, 6, 8, 9]), (0.9, [6]), (0.99, [6])])
def test_small_losses_are_kept(forget, kept):
    losses = torch.tensor([1.0, 2.0, 3.0, 9.0, 4.0, 8.0, 0.5, 7.0, 5.0, 1.5])
    assert sorted(small_loss_rows(losses, forget).tolist()) == sorted(kept)


def test_each_network_learns_from_what_its_peer_finds_easy():
    first, second = (torch.randn(6, 3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    given = torch.tensor([0, 1, 2, 0, 1, 2])
    losses = co_teaching_losses(first, second, given, forget=0.5)

    def row_losses(logits):
        return [-torch.log_softmax(row, 0)[label].item() for row, label in zip(logits.detach(), given, strict=True)]

    for own, peer, found in ((first, second, losses[0]), (second, first, losses[1])):
        ranked = sorted(range(6), key=row_losses(peer).__getitem__)
        assert found.item() == pytest.approx(sum(row_losses(own)[row] for row in ranked[:3]) / 3)
        found.backward()
        assert set(own.grad.abs().sum(1).nonzero()[:, 0].tolist()) == set(ranked[:3])


def test_with_nothing_forgotten_it_is_twice_cross_entropy():
    method, (first, second) = CoTeaching(), torch.randn(2, 4, 3)
    phase, batch = started(method)["train"], batch_of((0, 1, 2, 0))
    expected = sum(torch.nn.functional.cross_entropy(logits, batch.given_labels) for logits in (first, second))
    torch.testing.assert_close(phase.loss(Outputs(first, (second,)), batch).loss, expected)


def test_soft_given_labels_are_taken():
    logits, soft = torch.randn(4, 3), torch.rand(4, 3).softmax(1)
    first, _ = co_teaching_losses(logits, torch.randn(4, 3), soft, forget=0.0)
    torch.testing.assert_close(first, -(soft * logits.log_softmax(1)).sum(1).mean())


class Context:
    def __init__(self, validation_accuracy=None, logits=None):
        self.validation_accuracy, self.logits = validation_accuracy, logits

    def predict(self, *, best=False):
        return self.logits


def shares(method, context, epochs):
    phase, found = started(method)["train"], []
    for epoch in range(epochs):
        phase.before_epoch(epoch, epochs, context)
        found.append(method.metrics()["forget_fraction"])
    return found


def test_the_rate_is_estimated_once_after_the_ramp():
    found = shares(CoTeaching(ramp=0.2), Context(0.7), 10)
    assert found == pytest.approx([0, 0] + [0.3] * 8)
    assert shares(CoTeaching(ramp=0.2), Context(0.05), 10)[-1] == 0.8  # no network forgets nearly everything
    assert shares(CoTeaching(ramp=0.0), Context(0.7), 2) == pytest.approx([0, 0.3])  # not before it has learned
    assert shares(CoTeaching(ramp=0.2, forget_rate=0.4), Context(0.7), 10)[:4] == pytest.approx([0, 0.2, 0.4, 0.4])


def test_without_validation_rows_training_rows_serve():
    logits = torch.tensor([[9.0, 0, 0], [9.0, 0, 0], [torch.nan] * 3, [9.0, 0, 0]])  # of (0, 1, unread, 0)
    assert shares(CoTeaching(ramp=0.5), Context(None, logits), 2)[-1] == pytest.approx(1 / 3)


@pytest.mark.parametrize("validation", [True, False])
def test_two_networks_are_trained_and_the_first_is_kept(blobs, validation):
    class Watch(Observer):
        def on_step(self):
            self.second = trainer.networks.trained[1]

    watch = Watch()
    trainer = trainer_for(blobs, CoTeaching(epochs=12, ramp=0.5), validation=validation, observers=(watch,))
    start = [[p.detach().clone() for p in network.parameters()] for network in trainer.networks.trained]
    outcome = trainer.run()
    first, second = trainer.networks.trained
    assert outcome.model is first and second is watch.second
    for network, before in zip((first, second), start, strict=True):
        assert not any(torch.equal(a, b) for a, b in zip(network.parameters(), before, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert set(outcome.best_weights) == set(first.state_dict())
    last = outcome.records[-1]
    assert last["test_accuracy"] > 0.95 and 0 < last["forget_fraction"] < 0.2
    assert (outcome.label_probs.argmax(1) == blobs.clean_labels).double().mean() > 0.95  # the network's predictions


def test_wrong_labels_are_not_among_the_rows_that_are_kept(blobs):
    method = CoTeaching(epochs=15, ramp=0.5, forget_rate=3 / 90)
    trainer = trainer_for(blobs, method)
    trainer.run()
    inputs = blobs.inputs.values
    for network in trainer.networks.trained:
        losses = torch.nn.functional.cross_entropy(network.eval()(inputs), blobs.given_labels, reduction="none")
        kept = small_loss_rows(losses, method.state.forget)
        assert (blobs.given_labels == blobs.clean_labels)[kept].all() and len(kept) == 87


def test_from_a_recipe_and_within_a_budget(blobs):
    method = from_recipe("co_teaching", forget_rate=0.2)
    assert len(trainer_for(blobs, method, epochs=3).run().records) == 3
    assert from_recipe("co_teaching").forget_rate is None
    with pytest.raises(RecipeError, match=r"method\.forget_rate"):
        from_recipe("co_teaching", forget_rate=1.0)


def test_soft_labels_train(blobs):
    soft = torch.nn.functional.one_hot(blobs.given_labels, 3) * 0.9 + 0.1 / 3
    outcome = trainer_for(from_arrays(blobs.inputs.values, soft), CoTeaching(epochs=4), validation=False).run()
    assert outcome.records[-1]["forget_fraction"] < 0.8
