"""Further views and mixtures of a batch, and the averaged network that is asked about them."""

import pytest
import torch
from ranks import in_ranks
from torch import nn

from pencil.data import Splits, from_arrays
from pencil.data.augment import Augmentation
from pencil.data.examples import Batch
from pencil.errors import RecipeError
from pencil.methods import AutoPencil
from pencil.methods.base import Method, Phase, Terms
from pencil.methods.schedules import Constant
from pencil.training import Trainer, TrainingSettings
from pencil.training.distributed import join
from pencil.training.looks import mixed


def pictures(rows, seed=0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(rows) % 3
    images = 0.6 * torch.randn(rows, 1, 6, 6, generator=generator)
    images[torch.arange(rows), 0, 2 * labels, 1:5] += 1.0
    given = torch.where(torch.rand(rows, generator=generator) < 0.3, (labels + 1) % 3, labels)
    return from_arrays(images, given, classes=3, clean_labels=labels)


class Asks(Method):
    """Notes what it is told about every batch."""

    averages, looks, mixup = True, 2, 0.4

    def start(self, task):
        self.heard = []
        return (Phase("train", 1, self.loss, Constant(0.05)),)

    def loss(self, said, batch):
        self.heard.append((said, batch))
        return Terms(nn.functional.cross_entropy(said[0], batch.given_labels))


def test_the_averaged_network_is_asked_about_unmixed_views():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    method = Asks()
    trainer = Trainer(
        network,
        Splits(pictures(60)),
        method,
        TrainingSettings(batch_size=20, device="cpu"),
        augmentation=Augmentation(crop_padding=2),
    )
    asked, logits = [], trainer.learner.logits

    def note(batch):
        said = logits(batch)
        trainer.model.eval()
        asked.append([trainer.model(view) for view in batch.views])
        return said

    trainer.learner.logits = note
    trainer.run()
    assert len(method.heard) == 3
    for (said, batch), expected in zip(method.heard, asked, strict=True):
        first, second = batch.views
        assert len(said) == 3 and not said[1].requires_grad
        torch.testing.assert_close(said[1], expected[0])
        torch.testing.assert_close(said[2], expected[1])
        assert not torch.equal(first, second)  # other crops of the same rows
        positions = {int(row): place for place, row in enumerate(batch.rows)}
        others = torch.tensor([positions[int(row)] for row in batch.partners])
        torch.testing.assert_close(batch.inputs, batch.fraction * first + (1 - batch.fraction) * first[others])
    assert trainer.records[-1]["train_accuracy"] == pytest.approx(
        sum(float((said[2].argmax(dim=1) == batch.given_labels).double().sum()) for said, batch in method.heard) / 60
    )


def test_mixtures_are_a_function_of_seed_and_step():
    batch = Batch(torch.arange(8), torch.randn(8, 5), torch.zeros(8, dtype=torch.long))
    again, other = mixed(batch, 0.3, 1, 7), mixed(batch, 0.3, 1, 8)
    assert torch.equal(mixed(batch, 0.3, 1, 7).inputs, again.inputs)
    assert again.fraction != other.fraction
    assert all(0.5 <= mixed(batch, 0.3, 1, step).fraction <= 1 for step in range(50))


EXTRAS = [{"teacher": 1}, {"teacher": 2}, {"mixup": 0.3}, {"pair": True}, {"rounds": 3}]


def repaired(options, epochs=24, world=None):
    train, held_out = pictures(360), pictures(90, seed=1)
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(36, 64), nn.ReLU(), nn.Linear(64, 3))
    settings = TrainingSettings(batch_size=32, epochs=epochs, device="cpu")
    where = {} if world is None else {"world": world}
    trainer = Trainer(network, Splits(train, held_out), AutoPencil(lr=0.05, **options), settings, seed=1, **where)
    outcome = trainer.run()
    return float((outcome.label_probs.argmax(dim=1) == train.clean_labels).double().mean()), outcome


@pytest.mark.parametrize("options", EXTRAS, ids=str)
def test_every_extra_repairs_labels(options):
    assert repaired(options)[0] > 0.9


def test_labels_of_mixtures_need_the_average():
    with pytest.raises(RecipeError, match="average is false"):
        AutoPencil(mixup=0.3, average=False)


def test_another_round_is_begun_as_long_as_it_pays():
    once, again = repaired({"longest": 0.05})[1], repaired({"longest": 0.05, "rounds": 9})[1]
    phases = [record["phase"] for record in again.records]
    rounds = 1 + sum(name.startswith("correction ") for name in set(phases))
    assert 2 <= rounds < 9  # the first round pays here, and some round does not
    left = len(once.records) - phases.count("backbone")
    assert len(phases) == len(once.records) + (rounds - 1) * left
    assert sum(choice.startswith("another round") for choice in again.findings["choices"]) == rounds - 1
    assert any(choice.startswith("no further round") for choice in again.findings["choices"])


def test_both_networks_of_a_pair_go_back():
    trainer_options = TrainingSettings(batch_size=32, epochs=2, device="cpu")
    network = nn.Sequential(nn.Flatten(), nn.Linear(36, 3))
    trainer = Trainer(network, Splits(pictures(60)), AutoPencil(pair=True), trainer_options)
    before = [[value.clone() for value in net.state_dict().values()] for net in (trainer.model, trainer.networks[1])]
    snapshot = trainer.snapshot()
    trainer.epoch(trainer.phases[0], 0)
    assert not torch.equal(trainer.networks[1].state_dict()["1.weight"], before[1][0])
    trainer.put_back(snapshot)
    for net, weights in zip((trainer.networks[0], trainer.networks[1]), before, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(net.state_dict().values(), weights, strict=True))


def _in_world(options):
    share, outcome = repaired(options, epochs=12, world=join(torch.device("cpu")))
    return share, outcome.label_probs.numpy()


@pytest.mark.slow
def test_two_ranks_mix_their_own_rows_and_agree_on_labels():
    (share, labels), (_, other) = in_ranks(2, _in_world, {"mixup": 0.3})
    assert share > 0.85
    assert (labels == other).all()
