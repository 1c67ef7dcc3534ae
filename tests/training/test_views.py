"""Two views of a batch and inputs that are mixed: what a loss gets, alone and on several ranks."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from ranks import in_ranks
from torch import nn

from pencil.data import Splits, from_arrays
from pencil.data.inputs.augment import Augmentation, View
from pencil.errors import TrainingError
from pencil.methods import Constant, Method, Phase, Requirements, Terms, Views
from pencil.training import Trainer, TrainingSettings
from pencil.training.distributed import join
from pencil.training.views import draw_mixing, load_views

CROP = Augmentation(crop_padding=2, flip=True)


def images(side=8, dtype=torch.uint8, rows=20):
    generator = torch.Generator().manual_seed(0)
    values = torch.randint(0, 256, (rows, 3, side, side), generator=generator, dtype=torch.uint8)
    return from_arrays(values.to(dtype), torch.arange(rows) % 2)


class Sees(Method):
    """Records what its loss gets."""

    requirements = Requirements(networks=2)

    def __init__(self, views, networks=2, **needs):
        self.views, self.requirements = views, Requirements(networks=networks, **needs)

    def start(self, task):
        self.seen = []
        return (Phase("train", 2, self.loss, Constant(0.05), views=self.views),)

    def loss(self, outputs, batch):
        self.seen.append((outputs, batch))
        return Terms(sum((logits**2).mean() for logits in (outputs.logits, *outputs.others)))


def views_of(examples, second, augmentation=CROP):
    (batch,) = load_views(examples, [torch.arange(len(examples))], augmentation, Views(second=second), 3, 1)
    return batch


def test_weak_views_are_two_draws_of_one_augmentation():
    examples = images()
    batch = views_of(examples, "weak")
    (expected,) = examples.batches(20, view=View(3, 1, CROP))
    assert batch.inputs.equal(expected.inputs) and not batch.inputs.equal(batch.second_inputs)
    assert views_of(examples, None).second_inputs is None
    again = views_of(examples, "weak")
    assert again.second_inputs.equal(batch.second_inputs)  # a function of seed, epoch and row


def test_the_strong_view_stands_beside_the_weak_one():
    examples = images(side=32)
    jitter = replace(CROP, colour_jitter=0.5)
    batch = views_of(examples, "strong", jitter)
    (weak,) = examples.batches(20, view=View(3, 1, CROP))
    (strong,) = examples.batches(20, view=View(3, 1, CROP.strong()))
    assert batch.inputs.equal(weak.inputs) and batch.second_inputs.equal(strong.inputs)
    for other in (images(side=8), images(side=32, dtype=torch.float32)):  # too small, or of unknown range
        assert views_of(other, "strong").second_inputs.equal(views_of(other, "weak").second_inputs)


def test_without_augmentation_both_views_are_equal():
    vectors = from_arrays(torch.randn(20, 4), torch.arange(20) % 2)
    for examples, augmentation in ((images(), None), (images(), Augmentation()), (vectors, CROP)):
        assert views_of(examples, "strong", augmentation).second_inputs is None
    method = Sees(Views(second="strong"), networks=1)
    Trainer(nn.Linear(4, 2), Splits(vectors), method, TrainingSettings(batch_size=10, device="cpu")).run()
    first, second = method.seen[0][0].logits.tensor_split(2)
    assert first.equal(second) and len(first) == 10


def test_networks_train_on_mixed_inputs_and_predict_plain_ones():
    vectors = from_arrays(torch.randn(20, 4), torch.arange(20) % 2)
    method = Sees(Views(second="weak", mixup=4.0))
    trainer = Trainer(nn.Linear(4, 2), Splits(vectors), method, TrainingSettings(batch_size=10, device="cpu"), seed=7)
    weights = [network.weight.detach().clone() for network in trainer.networks.trained]
    bias = [network.bias.detach().clone() for network in trainer.networks.trained]
    trainer.run()
    outputs, batch = method.seen[0]
    stacked = torch.cat([batch.inputs, batch.inputs])
    assert len(method.seen) == 4 and outputs.mixings[0].partners.tolist() != outputs.mixings[1].partners.tolist()
    for number, logits in enumerate((outputs.logits, *outputs.others)):
        mixing = outputs.mixings[number]
        assert 0.5 <= mixing.weight <= 1 and sorted(mixing.partners.tolist()) == list(range(20))
        mixed = mixing.weight * stacked + (1 - mixing.weight) * stacked[mixing.partners]
        torch.testing.assert_close(logits, mixed @ weights[number].T + bias[number])
        torch.testing.assert_close(outputs.plain_logits[number], stacked @ weights[number].T + bias[number])
        assert not outputs.plain_logits[number].requires_grad
    assert outputs.of_rows(10).equal(outputs.plain_logits[0][:10])
    assert method.seen[1][0].mixings[0].partners.tolist() != outputs.mixings[0].partners.tolist()


def test_averaged_networks_predict_plain_inputs_in_their_place():
    vectors = from_arrays(torch.randn(20, 4), torch.arange(20) % 2)
    method = Sees(Views(mixup=1.0), ema=True, ema_logits=True)
    trainer = Trainer(nn.Linear(4, 2), Splits(vectors), method, TrainingSettings(batch_size=10, device="cpu"))
    averages = [ema.module for ema in trainer.networks.emas]
    outputs = trainer.step._forward(*first_batch(trainer), [10], (0, 0))
    assert outputs.plain_logits == () and len(averages) == 2
    inputs = first_batch(trainer)[0].inputs
    torch.testing.assert_close(outputs.ema_logits, averages[0](inputs))
    torch.testing.assert_close(outputs.ema_others[0], averages[1](inputs))


def first_batch(trainer):
    return next(trainer.splits.train.batches(10)), trainer.phases[0].views


def test_the_weight_of_a_mixing_is_drawn_from_the_beta_distribution():
    drawn = np.array([draw_mixing(4.0, 3, torch.device("cpu"), 0, step).weight for step in range(2000)])
    random = np.random.default_rng(1).beta(4.0, 4.0, 20000)
    assert drawn.mean() == pytest.approx(np.maximum(random, 1 - random).mean(), abs=0.01)


def test_plain_predictions_leave_batch_statistics_alone():
    vectors = from_arrays(torch.randn(20, 4), torch.arange(20) % 2)
    network = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 2))
    trainer = Trainer(network, Splits(vectors), Sees(Views(mixup=1.0)), TrainingSettings(batch_size=10, device="cpu"))
    trainer.networks.trained.train()
    before = network[0].running_mean.clone()
    trainer.step._plain_logits(torch.randn(10, 4))
    assert network[0].running_mean.equal(before) and network.training


def test_what_cannot_be_mixed_is_refused():
    tokens = from_arrays(torch.randn(20, 4), torch.arange(20) % 2)
    method = Sees(Views(mixup=1.0))
    trainer = Trainer(nn.Linear(4, 2), Splits(tokens), method, TrainingSettings(batch_size=10, device="cpu"))
    batch = replace(first_batch(trainer)[0], inputs=torch.ones(10, 4, dtype=torch.int64))
    with pytest.raises(TrainingError, match="not tokens"):
        trainer.step(trainer.phases[0], 0.0, batch)
    with pytest.raises(TrainingError, match="expected one plain view with row_losses"):
        Trainer(nn.Linear(4, 2), Splits(tokens), Sees(Views(second="weak"), networks=1, row_losses=True))


def mixed_and_gathered():
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(23, 4, generator=generator, dtype=torch.float64)
    method = Sees(Views(second="weak", mixup=2.0))
    torch.manual_seed(0)
    network = nn.Linear(4, 2).double()
    world = join(torch.device("cpu"))
    settings = TrainingSettings(batch_size=8, device="cpu")
    trainer = Trainer(network, Splits(from_arrays(values, torch.arange(23) % 2)), method, settings, world=world)
    trainer.run()
    outputs, batch = method.seen[-1]
    tensors = outputs.logits, outputs.others[0], *outputs.plain_logits, batch.rows.double(), network.weight
    return [one.detach().numpy() for one in tensors]


def test_two_ranks_see_what_one_sees():
    alone = mixed_and_gathered()
    for rank in in_ranks(2, mixed_and_gathered):
        for found, expected in zip(rank, alone, strict=True):
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
