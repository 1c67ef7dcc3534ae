"""All that touches labels while a network trains, on a pretended CUDA device: no tensor is left on the CPU."""

from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pkgutil import resolve_name
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch
from pretended_cuda import CUDA, PretendedCuda, on_the_cpu, value_of, without_backward
from torch import nn
from torch.utils._pytree import tree_map_only

from pencil.data import Splits, from_arrays
from pencil.integrations.pencil_labels import PencilLabels
from pencil.labels import LabelLayout, LabelStore, MultilabelStore, TopKLabelStore
from pencil.labels import losses as single
from pencil.labels import multilabel_losses as binary
from pencil.labels.chance import is_chance
from pencil.labels.dynamics import TrainingDynamics
from pencil.labels.entry_dynamics import EntryDynamics
from pencil.labels.entry_noise import entry_agreement, entry_log_likelihoods, fit_entry_noise, remaining_entry_trust
from pencil.labels.noise_model import (
    calibrated,
    disagreement_of_surest,
    fit_noise,
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
from pencil.training.distributed import SINGLE_PROCESS, ProcessGroup
from pencil.training.run_dynamics import RunDynamics

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
    return from_arrays(inputs.astype(np.float32), given if kind == "hard" else entries, multilabel=kind == "multilabel")


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
    weights = torch.linspace(0.5, 1.5, len(train)) if method.requirements.row_losses else None
    splits = Splits(replace(train, pinned=pinned, weights=weights), examples(kind, 1, 30), examples(kind, 2, 6))
    settings = TrainingSettings(batch_size=12, precision="fp32", **settings)
    return Trainer(network(), splits, method, settings, device=device, make_network=network)


TRANSITION = (0.8 * torch.eye(CLASSES) + 0.2 / CLASSES).tolist()
OPTIONS = {
    "auto": {"patience": 1, "max_backbone": 0.3},
    "joint_optimization": {"prior": "given"},
    **{name: {"transition": TRANSITION} for name in ("forward", "backward", "cnn_crf")},
}


EPOCHS = {"auto": 4, "pencil": 3, "confident_learning": 4}
SLOW_ON_THE_CPU = (
    "pencil.labels.noise_model.negative_log_likelihoods",
    "pencil.labels.entry_noise._fit",
    "pencil.training.run_dynamics.judge",
    "pencil.training.run_dynamics.judge_entries",
)


@contextmanager
def using(device):
    """Pretend where the device is; long computations on the CPU are not slowed down by it."""
    with ExitStack() as stack:
        if device == CUDA:
            stack.enter_context(PretendedCuda())
            for name in SLOW_ON_THE_CPU:
                stack.enter_context(mock.patch(name, on_the_cpu(resolve_name(name))))
        yield


def trained(make, kind, device, options=None, **settings):
    """Run a method on a device; then let another trainer load its state, as from a file, and go on."""
    with using(device):
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
def test_a_run_is_the_same_on_a_pretended_gpu(name, kind, monkeypatch):
    monkeypatch.setattr("pencil.labels.multi_label.WORTH_CORRECTING", 1.0)  # of so few entries none would be corrected
    options, epochs = OPTIONS.get(name), EPOCHS.get(name, 2)
    run, record, probs = trained(METHODS[name], kind, CPU, options, epochs=epochs)
    found, found_record, found_probs = trained(METHODS[name], kind, CUDA, options, epochs=epochs)
    assert [one["phase"] for one in found.records] == [one["phase"] for one in run.records]
    if name == "auto":
        assert {one["phase"] for one in run.records} == {"backbone", "correction", "finetune"}
    assert_equal(found.label_probs, run.label_probs)
    assert_equal(found.judgement.issue_scores, run.judgement.issue_scores)
    assert_equal(found.validation_probs, run.validation_probs)
    assert found_record["loss"] == pytest.approx(record["loss"], rel=1e-4)
    if probs is not None:
        assert found_probs[0] == "cuda"
        assert_equal(found_probs[1], probs[1])


@pytest.mark.parametrize("name", [pytest.param("auto", marks=pytest.mark.slow), "pencil"])
def test_a_run_with_top_k_labels(name):
    runs = [
        trained(METHODS[name], "hard", device, OPTIONS.get(name), epochs=EPOCHS[name], label_top_k=2)
        for device in (CPU, CUDA)
    ]
    assert_equal(runs[1][0].label_probs, runs[0][0].label_probs)


# ---- label stores

ROWS = torch.tensor([4, 0, 2])
GIVEN = torch.arange(6) % CLASSES
PINNED = torch.arange(6) == 2
SOFT = 0.7 * nn.functional.one_hot(GIVEN, CLASSES) + 0.1
ENTRIES = torch.where(torch.eye(6, CLASSES) == 1, torch.nan, nn.functional.one_hot(GIVEN, CLASSES).float())
LOGITS = torch.linspace(-3, 3, 9).sin().view(3, CLASSES) * 3
STORES = {
    "dense": (lambda given, _: LabelStore(given, CLASSES, device=given.device), GIVEN),
    "soft": (lambda given, _: LabelStore(given, CLASSES, device=given.device), SOFT),
    "top_k": (lambda given, k: TopKLabelStore(given, CLASSES, k=k, device=given.device), GIVEN),
    "all_k": (lambda given, _: TopKLabelStore(given, CLASSES, k=CLASSES, device=given.device), SOFT),
    "multilabel": (lambda given, _: MultilabelStore(given, device=given.device), ENTRIES),
}


@pytest.mark.usefixtures("pretended")
@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("kind", STORES)
def test_label_stores(kind, sharded):
    make, given = STORES[kind]
    layout = LabelLayout(
        SINGLE_PROCESS if sharded else None, top_k=2, pinned=PINNED
    )  # marks of pinned rows: on the CPU

    def use(given, rows, logits):
        store = layout.build(given, make)
        for compatibility in ("printed", "published"):
            store.local.update(rows, logits, step=2.0, pull=0.5, compatibility=compatibility)
        store.write(rows[:1], store[rows[:1]] + logits[:1])
        saved = {name: value.cpu() for name, value in store.state_dict().items()}
        read = [store[rows], store.probs(), store.probs(rows), store.evidence(0.5, rows), store.initial_logits()]
        read += [store.gather(store.probs()), store.mean(store.probs().mean(dim=0))]
        store.reset()
        store.load_state_dict(saved)  # as it comes from a checkpoint
        read += [store.probs(), store.pinned]
        assert all(one.device == given.device for one in read)
        return read

    both(use, given, ROWS, LOGITS)


@pytest.mark.usefixtures("pretended")
def test_a_store_moves_to_the_device():
    store = LabelStore([0, 1, 2, 0], CLASSES)
    store.pinned = torch.tensor([True, False, False, False])
    store.to(CUDA).update(torch.arange(3, device=CUDA), LOGITS.to(CUDA), step=1.0, pull=1.0)
    assert LabelStore([0, 1], device=CUDA).probs().device == store.probs().device == store.pinned.device == CUDA


# ---- losses

LABEL_LOGITS = LOGITS.flip(0) / 2
KNOWN = ~ENTRIES[ROWS].isnan()


@pytest.mark.usefixtures("pretended")
@pytest.mark.parametrize("given", [GIVEN[ROWS], SOFT[ROWS]], ids=["hard", "soft"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_single_label_losses(given, dtype):
    def losses(logits, label_logits, given):
        found = [single.cross_entropy(logits, given), single.cross_entropy(logits, given, 0.1)]
        found += [single.forward_kl(logits, label_logits), single.inverse_kl(logits, label_logits)]
        found += [single.entropy_loss(logits), forward_kl_label_gradient(label_logits, logits)]
        probs = [label_logits.softmax(dim=1), logits.float().softmax(dim=1)]
        for kind in single.COMPATIBILITIES:
            found.append(single.compatibility_loss(label_logits, given, kind))
            found.append(label_gradient(*probs, given, pull=0.5, compatibility=kind))
        found += single.network_losses(logits.requires_grad_(), label_logits, beta=0.3, class_mean=True)
        context = SimpleNamespace(saved_tensors=[label_logits], scale=0.5, dtype=dtype)  # no engine runs this backward
        found.append(single._NetworkLosses.backward(context, torch.ones((), device=logits.device))[0])
        return [one.detach() for one in found]

    both(losses, LOGITS.to(dtype), LABEL_LOGITS, given)


@pytest.mark.usefixtures("pretended")
@pytest.mark.parametrize("divergence", ["inverse", "forward", "both"])
def test_multilabel_losses(divergence):
    def losses(logits, label_logits, given, known):
        found = [binary.binary_cross_entropy(logits, given), binary.binary_entropy(logits, known)]
        for kind in single.COMPATIBILITIES:
            found.append(binary.binary_compatibility_loss(label_logits, given, kind))
            options = {"pull": 0.5, "compatibility": kind, "divergence": divergence}
            found.append(binary.binary_label_gradient(label_logits, logits, given, **options))
        return [
            *found,
            *binary.binary_network_losses(
                logits, label_logits, known, beta=0.3, class_mean=True, divergence=divergence
            ),
        ]

    both(losses, LOGITS, LABEL_LOGITS, ENTRIES[ROWS], KNOWN)


@pytest.mark.usefixtures("pretended")
def test_dropout_of_a_perceptron_stays_on_the_device():
    assert drop(torch.ones(4, 3, device=CUDA), 0.5).device == CUDA


# ---- training dynamics and judgements


@pytest.mark.usefixtures("pretended")
@pytest.mark.parametrize("make", [TrainingDynamics, EntryDynamics])
@pytest.mark.parametrize("classes", [CLASSES, 40], ids=["dense", "many"])
@pytest.mark.parametrize("world", [None, SINGLE_PROCESS], ids=["replicated", "sharded"])
def test_dynamics(make, classes, world):
    given = torch.arange(6) if make is TrainingDynamics else torch.eye(6, classes)

    def record(given, rows, logits):
        dynamics = make(given % classes, classes, LabelLayout(world))
        dynamics.add(rows, logits)
        dynamics.add(rows[:2], -logits[:2])
        again = make(given % classes, classes, LabelLayout(world))
        again.load_state_dict({name: value.cpu() for name, value in dynamics.state_dict().items()})
        again.add(rows, logits)
        evidence = again.evidence()
        found = [getattr(evidence, name) for name in evidence.__dataclass_fields__]
        if make is TrainingDynamics:
            found.append(again.local_evidence(torch.tensor([0, 3])).log_probs)
        assert all(one.is_cpu for one in found)  # judgements are made on the CPU
        return found

    both(record, given, ROWS, torch.randn(3, classes))


@pytest.fixture
def group():
    """A process group of one rank on the pretended device, whose collectives copy what is sent."""
    world = ProcessGroup.__new__(ProcessGroup)
    world.device, world.rank, world.size, world.joined_here = CUDA, 0, 1, False
    copies = {
        "all_gather_into_tensor": lambda received, sent: received.copy_(_on(CUDA, sent)),
        "all_to_all_single": lambda received, sent, *_counts: received.copy_(_on(CUDA, sent)),
        "all_reduce": lambda summed: _on(CUDA, summed),
    }
    with ExitStack() as stack:
        for name, copy in copies.items():
            stack.enter_context(mock.patch(f"torch.distributed.{name}", copy))
        yield world


def _on(device, sent):
    assert sent.device == device  # NCCL sends nothing else
    return sent


@pytest.mark.usefixtures("pretended")
@pytest.mark.parametrize("kind", STORES)
def test_a_store_that_is_sharded_over_gpus(kind, group):
    make, given = STORES[kind]
    store = LabelLayout(group, top_k=2, pinned=PINNED).build(given.to(CUDA), make)
    replicated = LabelLayout(top_k=2, pinned=PINNED).build(given, make)
    for one, rows, values in ((store, ROWS.to(CUDA), LOGITS.to(CUDA)), (replicated, ROWS, LOGITS)):
        one.write(rows, one[rows] + values - values.mean(dim=1, keepdim=True))
    assert_equal(store[ROWS.to(CUDA)], replicated[ROWS])
    assert_equal(store.gather(store.probs()), replicated.probs())
    assert_equal(store.mean(store.probs().mean(dim=0)), replicated.probs().mean(dim=0))


@pytest.mark.parametrize("kind", ["hard", "soft", "multilabel"])
def test_judgements_by_the_dynamics_of_a_device(kind, group):
    train, held_out = examples(kind, 0, 24), examples(kind, 1, 30)
    logits = [network()(one.some_inputs(len(one))).detach() for one in (train, held_out)]

    def judged(device, world):
        dynamics = RunDynamics(Splits(train, held_out), LabelLayout(world), device)
        dynamics.add(torch.arange(20, device=device), logits[0][:20].to(device))
        dynamics.add_evaluation(logits[1])
        dynamics.add_predictions(logits[0].to(device))
        found = dynamics.judge()
        results = [found.probs, found.held_out_probs, found.issue_scores, found.noise.rate]
        if dynamics.can_judge_shards():
            shards = dynamics.judge_shards()
            results[0], results[2] = shards.posterior(torch.arange(24)), shards.issue_scores
        return results

    expected = judged(CPU, None)
    for world in (None, group):
        with using(CUDA):
            assert_equal(judged(CUDA, world), expected)


@pytest.mark.usefixtures("pretended")
def test_the_labels_of_a_loop_of_ones_own_follow_the_network():
    labels = PencilLabels(GIVEN, CLASSES, backbone_epochs=1, correction_epochs=1)
    for epoch in range(3):
        labels.begin_epoch(epoch)
        assert labels.loss(LOGITS.to(CUDA).requires_grad_(), ROWS).device == CUDA  # rows come from a data loader
        labels.optimizer_stepped()
    labels.load_state_dict(labels.state_dict())
    assert labels.store.label_logits.device == CUDA


HELD_OUT = examples("hard", 3, 30)
PREDICTED = network()(HELD_OUT.some_inputs(30)).detach()


@pytest.mark.usefixtures("pretended")
@pytest.mark.parametrize("absorbed", [0.0, 0.5])
def test_the_noise_model_on_the_device_of_the_training_rows(absorbed):
    soft = torch.nn.functional.one_hot(HELD_OUT.given_labels, CLASSES) * 0.7 + 0.1

    def judged(logits, given, soft):
        shape = noise_shape(logits, given)
        noise = replace(fit_noise(logits, given, shape), absorbed=absorbed)
        again = calibrated(noise, logits, given)
        rarity = log_rarity(given, CLASSES)
        found = [posterior(logits, labels, noise, 0.5, rarity) for labels in (given, soft)]
        assert all(one.device == logits.device for one in found)
        found += [noise.rate, again.temperature, remaining_trust(logits, given, noise, 0.9), rarity, shape]
        found += [log_likelihoods(logits, given, noise.transition), log_likelihoods(logits, given)]
        found += [is_chance(logits, given), disagreement_of_surest(logits, given)]
        reading = read_labels(logits.softmax(dim=1), given)
        return [*found, reading.corrected, reading.changed, reading.entropy]

    both(judged, PREDICTED, HELD_OUT.given_labels, soft)


@pytest.mark.usefixtures("pretended")
def test_the_noise_model_of_entries_on_the_device_of_the_training_rows():
    given = torch.nn.functional.one_hot(HELD_OUT.given_labels, CLASSES).float()
    given[0, 0] = torch.nan

    def judged(logits, given):
        with mock.patch("pencil.labels.entry_noise._fit", on_the_cpu(resolve_name("pencil.labels.entry_noise._fit"))):
            noise = fit_entry_noise(logits, given)
        found = [noise.posterior(logits, given, 0.5), noise.wrong(logits, given)]
        found.append(entry_log_likelihoods(logits, given, noise))
        assert all(one.device == logits.device for one in found)
        entries = read_entries(logits.sigmoid(), given)
        found += [entry_agreement(logits, given), remaining_entry_trust(logits, given, noise, 0.9), entries.changed]
        return [*found, entries.corrected, entries.known]

    both(judged, PREDICTED, given)
