"""ELR+: two networks, targets by the average of the other one, mixed inputs; against loops."""

import math

import pytest
import torch
from baselines import batch_of, from_recipe, started, trainer_for
from test_elr import slow_probs

from pencil.methods import Mixing, Outputs
from pencil.methods.elr_plus import ElrPlus


def test_losses_and_targets_equal_a_loops():
    method, given = ElrPlus(strength=2.0, beta=0.6), (0, 1, 2)
    phase = started(method, given)["train"]
    assert phase.views.mixup == 1.0
    targets = [[[0.0] * 3 for _ in given] for _ in range(2)]
    for _ in range(3):
        logits, averaged = 3 * torch.randn(2, 3, 3), 3 * torch.randn(2, 3, 3)
        mixings = Mixing(0.7, torch.tensor([2, 0, 1])), Mixing(0.9, torch.tensor([0, 2, 1]))
        batch = batch_of(given)
        outputs = Outputs(logits[0], (logits[1],), averaged[0], (averaged[1],), mixings)
        terms, expected = phase.loss(outputs, batch), 0.0
        for network in range(2):
            for row in range(3):
                f = slow_probs(averaged[1 - network][row].tolist())
                old = targets[network][row]
                targets[network][row] = [0.6 * t + 0.4 * p / sum(f) for t, p in zip(old, f, strict=True)]
            weight, partners = mixings[network].weight, mixings[network].partners.tolist()
            for row in range(3):
                log_f = logits[network][row].log_softmax(0).tolist()
                f = slow_probs(logits[network][row].tolist())
                loss = -weight * log_f[given[row]] - (1 - weight) * log_f[given[partners[row]]]
                mixed = [
                    weight * own + (1 - weight) * other
                    for own, other in zip(targets[network][row], targets[network][partners[row]], strict=True)
                ]
                agreement = sum(t * p for t, p in zip(mixed, f, strict=True))
                expected += (loss + 2.0 * math.log(1 - agreement)) / 3
        assert terms.loss.item() == pytest.approx(expected, rel=1e-4)
        phase.after_step(terms.carry, batch, 0.0)
    torch.testing.assert_close(method.state.targets, torch.tensor(targets))
    mean = torch.tensor(targets).mean(0)
    torch.testing.assert_close(method.label_probs(), mean / mean.sum(1, keepdim=True))
    torch.testing.assert_close(method.label_probs(torch.tensor([1])), (mean / mean.sum(1, keepdim=True))[[1]])


def test_without_mixup_inputs_and_labels_are_plain():
    method, logits, averaged = ElrPlus(mixup=0.0, strength=0.0), torch.randn(2, 4, 3), torch.randn(2, 4, 3)
    phase, batch = started(method)["train"], batch_of((0, 1, 2, 0))
    assert phase.views.mixup == 0
    terms = phase.loss(Outputs(logits[0], (logits[1],), averaged[0], (averaged[1],)), batch)
    expected = sum(torch.nn.functional.cross_entropy(one, batch.given_labels) for one in logits)
    torch.testing.assert_close(terms.loss, expected)


def test_a_row_that_was_never_met_reads_as_given():
    method = ElrPlus()
    started(method)
    assert method.label_probs().argmax(1).tolist() == [0, 1, 2, 0]


def test_the_average_of_the_first_network_is_kept_and_labels_are_read_off_the_targets(blobs):
    trainer = trainer_for(blobs, ElrPlus(epochs=25))
    outcome = trainer.run()
    assert outcome.model is trainer.networks.emas[0].module and len(trainer.networks.emas) == 2
    assert outcome.records[-1]["test_accuracy"] > 0.95
    assert (outcome.label_probs.argmax(1) == blobs.clean_labels).double().mean() > 0.95


def test_from_a_recipe_and_within_a_budget(blobs):
    assert len(trainer_for(blobs, from_recipe("elr_plus", mixup=0.5), epochs=3).run().records) == 3
