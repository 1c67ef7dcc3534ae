"""What a method declares, what a loss gets, and how the state of a method is saved and loaded."""

from collections import deque
from dataclasses import dataclass, fields, replace

import pytest
import torch
from torch import Tensor, nn

from pencil import RecipeError, recipe
from pencil.data import Splits, from_arrays
from pencil.errors import MethodWarning
from pencil.labels.noise_model import NoiseModel
from pencil.methods import METHODS, Constant, CoTeaching, CrossEntropy, Method, Phase, Requirements, Terms
from pencil.methods.state import load_state, state_tree
from pencil.recipe.resolve import with_runnable_method
from pencil.training import Trainer, TrainingSettings


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"networks": 0}, "expected at least 1 and 0"),
        ({"held_out_rows": -1}, "expected at least 1 and 0"),
        ({"ema_logits": True}, "needs ema=True"),
        ({"networks": 2, "row_losses": True}, "one network without ema_logits"),
        ({"ema": True, "ema_logits": True, "row_losses": True}, "one network without ema_logits"),
    ],
)
def test_requirements_that_contradict_each_other_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        Requirements(**wrong)


def test_every_method_declares_its_requirements():
    several = {name for name, kind in METHODS.items() if kind.requirements.multilabel}
    assert several == {"auto", "pencil", "cross_entropy"}
    starred = {name for name, kind in METHODS.items() if kind.requirements.transition_matrix}
    assert starred == {"forward", "backward", "cnn_crf"}
    assert METHODS["co_teaching"].requirements.networks == 2
    auto = METHODS["auto"]
    assert auto.requirements.ema and auto.requirements.wall_clock and auto.requirements.held_out_rows == 40
    assert not auto(ema=False).requirements.ema and auto.requirements.ema  # of the instance, not of the class


def points(rows=60):
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(rows) % 3
    return from_arrays(torch.randn(rows, 4, generator=generator) + labels[:, None], labels, classes=3)


class Records(Method):
    """Records what its loss gets."""

    requirements = Requirements(networks=2, ema=True, ema_logits=True)

    def start(self, task):
        self.seen = []
        return (Phase("train", 2, self.loss, Constant(0.05)),)

    def loss(self, outputs, batch):
        self.seen.append((outputs, batch))
        losses = [
            nn.functional.cross_entropy(logits, batch.given_labels) for logits in (outputs.logits, *outputs.others)
        ]
        return Terms(sum(losses))


def test_a_loss_gets_the_logits_of_every_network_and_of_the_moving_average():
    method = Records()
    network = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    trainer = Trainer(network, Splits(points()), method, TrainingSettings(batch_size=20, device="cpu"))
    expected, forward = [], trainer.networks.eval_forward

    def note(inputs):
        assert not trainer.networks.emas[0].module.training and not torch.is_grad_enabled()
        expected.append(forward(inputs))
        return expected[-1]

    trainer.networks.eval_forward = note
    trainer.run()
    assert len(method.seen) == 6
    for (outputs, _), ema_logits in zip(method.seen, expected, strict=False):
        (other,) = outputs.others
        assert outputs.logits.requires_grad and other.requires_grad and not outputs.ema_logits.requires_grad
        assert not torch.equal(outputs.logits, other)
        assert torch.equal(outputs.ema_logits, ema_logits)


def test_both_networks_return_to_a_snapshot():
    trainer = Trainer(nn.Linear(4, 3), Splits(points()), Records(), TrainingSettings(batch_size=20, device="cpu"))
    second = trainer.networks.trained[1]
    before = [[value.clone() for value in net.state_dict().values()] for net in (trainer.model, second)]
    snapshot = trainer.snapshot()
    trainer.epoch(trainer.phases[0], 0)
    assert not torch.equal(second.weight, before[1][0])
    trainer.restore_weights(snapshot)
    for net, weights in zip(trainer.networks.trained, before, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(net.state_dict().values(), weights, strict=True))


@dataclass
class State:
    count: int
    rows: Tensor
    recent: deque[Tensor]
    noise: NoiseModel | None = None


def test_a_state_is_loaded_as_it_was_saved():
    noise = NoiseModel(0.3, 0.2, 0.4, 1.5, torch.eye(3))
    saved = State(3, torch.arange(4), deque([torch.ones(2), torch.zeros(2)], maxlen=2), noise)
    tree = state_tree(saved)
    assert set(tree) == {part.name for part in fields(State)} and isinstance(tree["noise"], dict)
    loaded = load_state(State(0, torch.zeros(4), deque(maxlen=2)), tree)
    assert (loaded.count, loaded.recent.maxlen) == (3, 2) and torch.equal(loaded.rows, saved.rows)
    assert isinstance(loaded.noise, NoiseModel) and torch.equal(loaded.noise.transition, noise.transition)
    assert load_state(State(0, torch.zeros(4), deque(maxlen=2)), {**tree, "noise": None}).noise is None
    assert load_state(None, state_tree(None)) is None  # a method without state


def test_too_few_held_out_rows_for_what_a_method_declares_are_refused(monkeypatch):
    monkeypatch.setattr(CrossEntropy, "requirements", replace(CrossEntropy.requirements, min_held_out_rows=20))
    chosen = recipe.parse({"data": {"source": "digits"}, "method": {"name": "cross_entropy"}})
    assert with_runnable_method(chosen, held_out_rows=20) is chosen
    with pytest.raises(
        RecipeError, match=r"cross_entropy needs at least 20 held-out rows, but there are 3; set data.val"
    ):
        with_runnable_method(chosen, held_out_rows=3)


class Bare(nn.Module):
    """Its weights are in no layer that could draw them again."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 3))

    def forward(self, inputs):
        return inputs @ self.weight


def test_networks_side_by_side_that_start_alike_are_warned_of():
    splits = Splits(from_arrays(torch.randn(30, 4), torch.arange(30) % 3))
    with pytest.warns(MethodWarning, match="start with the same weights"):
        Trainer(Bare(), splits, CoTeaching(), TrainingSettings(device="cpu"))
    Trainer(nn.Linear(4, 3), splits, CoTeaching(), TrainingSettings(device="cpu"))
