"""All that touches labels while a network trains, on a pretended CUDA device: no tensor is left on the CPU."""

from contextlib import ExitStack
from dataclasses import replace
from pkgutil import resolve_name
from unittest import mock

import numpy as np
import pytest
import torch
from pretended_cuda import CUDA, PretendedCuda, on_the_cpu, value_of, without_backward
from torch import nn
from torch.utils._pytree import tree_map_only

from pencil.data import Splits, from_arrays
from pencil.labels import LabelLayout, LabelStore, MultilabelStore, TopKLabelStore
from pencil.labels import losses as single
from pencil.labels import multilabel_losses as binary
from pencil.labels.dynamics import TrainingDynamics
from pencil.labels.entry_dynamics import EntryDynamics
from pencil.labels.entry_noise import entry_agreement, entry_log_likelihoods, fit_entry_noise, remaining_entry_trust
from pencil.labels.noise_model import (
    calibrated,
    disagreement_of_surest,
    fit_noise,
    is_chance,
    log_likelihoods,
    log_rarity,
    noise_shape,
    posterior,
    remaining_trust,
)
from pencil.labels.reading import read_entries, read_labels
from pencil.labels.store import forward_kl_label_gradient, label_gradient
from pencil.methods import METHODS, CrossEntropy, Terms
from pencil.models.dropout import drop
from pencil.training import Trainer, TrainingSettings
from pencil.training.distributed import SINGLE_PROCESS
from pencil.training.dynamics import RunDynamics

pytestmark = pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")  # by a deep copy

CLASSES = 3
CPU = torch.device("cpu")


@pytest.fixture
def pretended():
    with PretendedCuda():
        yield


def both(compute, *tensors):
    """Compute with tensors on the CPU and on the pretended device; the results have to be equal. Return the second."""
    expected = compute(*(one.clone() for one in tensors))
    found = compute(*(one.to(CUDA) for one in tensors))
    assert_equal(found, expected)
    return found


def assert_equal(found, expected):
    found, expected = ([one] if not isinstance(one, (tuple, list)) else one for one in (found, expected))
    for one, other in zip(found, expected, strict=True):
        if isinstance(other, torch.Tensor):
            assert torch.allclose(one.cpu().double(), other.double(), atol=1e-6, equal_nan=True)
        else:
            assert one == pytest.approx(other)


# ---- the harness


def on_device(*shape):
    return torch.ones(*shape, device=CUDA)


@pytest.mark.parametrize(
    "misplaced",
    [
        lambda: on_device(3) + torch.ones(3),
        lambda: torch.cat([on_device(3), torch.ones(3)]),
        lambda: torch.ones(3).index_select(0, on_device(3).long()),
        lambda: on_device(3).index_select(0, torch.zeros(2).long()),
        lambda: torch.ones(3)[on_device(3).long()],
        lambda: torch.ones(3)[on_device(3) > 0],
        lambda: on_device(3, 2).gather(1, torch.zeros(3, 1).long()),
        lambda: on_device(3).index_copy_(0, torch.arange(3, device=CUDA), torch.zeros(3)),
        lambda: on_device(3).__setitem__(torch.arange(2), torch.zeros(2)),
        lambda: torch.where(on_device(3) > 0, torch.ones(3), on_device(3)),
        lambda: nn.functional.cross_entropy(on_device(3, 2), torch.zeros(3).long()),
        lambda: torch.bincount(on_device(3).long(), torch.ones(3)),
        lambda: torch.randperm(3, generator=torch.Generator(), device=CUDA),
        lambda: on_device(3).numpy(),
        lambda: nn.Linear(3, 2)(on_device(1, 3)),
    ],
)
@pytest.mark.usefixtures("pretended")
def test_a_misplaced_tensor_is_an_error_each_time(misplaced):
    for _ in range(2):  # what was once refused is not taken as checked
        with pytest.raises((RuntimeError, TypeError)):
            misplaced()


@pytest.mark.usefixtures("pretended")
def test_a_pretended_tensor_has_a_device_and_values():
    values = torch.arange(6.0).to(CUDA)
    assert values.device == CUDA and values.is_cuda and not values.is_cpu
    assert values[values > 3].tolist() == [4, 5] and bool((values > 3).any()) and float(values.sum()) == 15
    part = values[2:4]
    part += 10  # a view: the whole has changed
    values[torch.tensor([0])] = 7.0  # an index may be on the CPU, and a single number
    values *= torch.tensor(2.0)
    assert values.cpu().tolist() == [14, 2, 24, 26, 8, 10]
    copied = values.cpu()
    copied[0] = 0
    assert float(values[0]) == 14


@pytest.mark.usefixtures("pretended")
def test_moving_copies_in_inference_mode_too():
    values = torch.zeros(2)
    with torch.inference_mode():
        moved = values.to(CUDA)
        moved += 1
        back = moved.cpu()
    assert value_of(moved).tolist() == back.tolist() == [1, 1] and back.is_cpu and values.tolist() == [0, 0]


class Forgetful(CrossEntropy):
    """Keeps what it needs of every row, and forgets to put it where the network is."""

    def start(self, task):
        self.weights = torch.ones(len(task.given_labels))
        return super().start(task)

    def loss(self, outputs, batch):
        return Terms(super().loss(outputs, batch).loss * self.weights[batch.rows].mean())


def test_a_method_that_leaves_a_tensor_on_the_cpu_fails():
    trained(Forgetful, "hard", CPU, epochs=1)
    with pytest.raises(RuntimeError, match="device"):
        trained(Forgetful, "hard", CUDA, epochs=1)


# ---- methods: whole runs


def examples(kind, seed, rows):
    """Three clouds in the plane, some labels given wrong: as classes, as distributions, or of several classes."""
    rng = np.random.default_rng(seed)
    clean = np.arange(rows) % CLASSES
    inputs = rng.normal(size=(rows, 2)) * 0.8 + np.array([[0, 0], [4, 0], [0, 4]])[clean]
    given = clean.copy()
    given[:: rows // 4] = (clean[:: rows // 4] + 1) % CLASSES
    entries = np.eye(CLASSES)[given].astype(np.float32)
    if kind == "soft":
        entries = 0.8 * entries + 0.2 / CLASSES
    if kind == "multilabel":
        entries[3, 1] = np.nan
    return from_arrays(
        inputs.astype(np.float32), given if kind == "hard" else entries, multilabel=kind == "multilabel"
    )


def network(_number=0):
    """A network that tells the clouds apart: labels get corrected although no gradient is computed."""
    layer = nn.Linear(2, CLASSES)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[-1.0, -1.0], [1.0, 0.0], [0.0, 1.0]]))
        layer.bias.copy_(torch.tensor([2.0, -1.0, -1.0]))
    return nn.Sequential(layer)


def make_trainer(method, kind, device, **settings):
    train = examples(kind, 0, 24)
    pinned = torch.zeros(len(train), dtype=torch.bool)
    pinned[:2] = True
    splits = Splits(replace(train, pinned=pinned), examples(kind, 1, 30), examples(kind, 2, 6))
    settings = TrainingSettings(batch_size=12, precision="fp32", **settings)
    return Trainer(network(), splits, method, settings, device=device, make_network=network)


OPTIONS = {
    "auto": {"patience": 1, "max_backbone": 0.3},
    "joint_optimization": {"prior": "given"},
    **dict.fromkeys(("forward", "backward", "cnn_crf"), {"transition": (0.8 * torch.eye(3) + 0.2 / 3).tolist()}),
}


EPOCHS = {"auto": 4, "pencil": 3, "confident_learning": 4}
SLOW_ON_THE_CPU = (
    "pencil.labels.noise_model.negative_log_likelihoods",
    "pencil.labels.entry_noise._fit",
    "pencil.training.dynamics.judge",
    "pencil.training.dynamics.judge_entries",
)


def trained(make, kind, device, options=None, **settings):
    """Run a method on a device; then let another trainer load its state, as from a file, and go on."""
    with ExitStack() as stack:
        if device == CUDA:
            stack.enter_context(PretendedCuda())
            for name in SLOW_ON_THE_CPU:
                stack.enter_context(mock.patch(name, on_the_cpu(resolve_name(name))))
        trainer = make_trainer(make(**options or {}), kind, device, **settings)
        with without_backward(trainer):
            outcome = trainer.run()
        resumed = make_trainer(make(**options or {}), kind, device, **settings)
        resumed.load_state_dict(tree_map_only(torch.Tensor, lambda one: one.cpu().clone(), trainer.state_dict()))
        with without_backward(resumed):
            resumed.epoch(resumed.phases[-1], 0)
        probs = resumed.method.label_probs()
        where = None if probs is None else (probs.device.type, probs.cpu())
    return outcome, resumed.records[-1], where


RUNS = [
    *((name, "hard") for name in METHODS),
    *((name, "multilabel") for name, method in METHODS.items() if method.requirements.multilabel),
    *(pytest.param(name, "soft", marks=pytest.mark.slow) for name in METHODS),
]


@pytest.mark.parametrize(("name", "kind"), RUNS)
def test_a_run_is_the_same_on_a_pretended_gpu(name, kind):
    options, epochs = OPTIONS.get(name), EPOCHS.get(name, 2)
    run, record, probs = trained(METHODS[name], kind, CPU, options, epochs=epochs)
    found, found_record, found_probs = trained(METHODS[name], kind, CUDA, options, epochs=epochs)
    assert [one["phase"] for one in found.records] == [one["phase"] for one in run.records]
    assert_equal(found.label_probs, run.label_probs)
    assert_equal(found.judgement.issue_scores, run.judgement.issue_scores)
    assert_equal(found.validation_probs, run.validation_probs)
    assert found_record["loss"] == pytest.approx(record["loss"], rel=1e-4)
    if probs is not None:
        assert found_probs[0] == "cuda"
        assert_equal(found_probs[1], probs[1])
