"""The loop: phases, metrics, determinism, what it refuses."""

import math
import time
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from pencil import ModelError, RecipeError, TrainingError
from pencil.data import Splits, from_arrays, from_dataset
from pencil.data.inputs.augment import Augmentation
from pencil.labels.entry_noise import entry_agreement
from pencil.labels.forms import label_form
from pencil.labels.losses import cross_entropy
from pencil.labels.store import LabelStore
from pencil.methods import Auto, CrossEntropy, Method, Pencil, Phase, Terms, fit_budget
from pencil.methods.schedules import Constant, Linear, StepDecay
from pencil.models import mlp
from pencil.seeding import seeded
from pencil.training import Observer, Trainer, TrainingSettings
from pencil.training.compute import cpu_runs_bf16, pick_device, pick_precision
from pencil.training.metrics import LabelTotals
from pencil.training.settings import OptimizerSettings, build_optimizer


def network(features=2, classes=3):
    with seeded(0, "test"):
        return mlp(features, classes, width=16)


def short_pencil(**options):
    defaults = {"backbone_epochs": 3, "correction_epochs": 6, "finetune_epochs": 3, "step": 2.0, "pull": 0.0}
    return Pencil(**{**defaults, **options})


def train(examples, method=None, *, settings=None, seed=0, model=None, **options):
    settings = settings or TrainingSettings(batch_size=16, device="cpu")
    trainer = Trainer(
        model or network(),
        Splits(examples, examples, examples),
        method or short_pencil(),
        settings,
        seed=seed,
        **options,
    )
    return trainer.run(), trainer


def test_metrics_of_every_epoch(blobs):
    outcome, _ = train(blobs)
    assert [record["phase"] for record in outcome.records] == ["backbone"] * 3 + ["correction"] * 6 + ["finetune"] * 3
    last = outcome.records[-1]
    expected = {
        "epoch", "phase", "phase_epoch", "lr", "label_step", "loss", "loss_classification", "loss_entropy",
        "loss_compatibility", "train_accuracy", "validation_loss", "validation_accuracy", "test_accuracy",
        "labels_changed", "label_entropy", "labels_correct", "seconds",
    }  # fmt: skip
    assert expected == set(last)
    assert all(math.isfinite(value) for key, value in last.items() if key != "phase")
    assert [record["label_step"] for record in outcome.records] == [0.0] * 3 + [2.0] * 6 + [0.0] * 3


def test_training_agreement_of_several_classes_is_over_known_entries():
    """A row without known entries says nothing, and a row with one known entry counts for one."""
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(50, 3, generator=generator)
    given = (points > 0).float()
    given[:15], given[15:30, 1:] = torch.nan, torch.nan
    examples = from_arrays(points, given.numpy(), multilabel=True)
    model = nn.Linear(3, 3)
    nn.init.eye_(model.weight)
    nn.init.constant_(model.bias, 0.3)
    expected = entry_agreement(model(points).detach(), given)
    settings = TrainingSettings(batch_size=16, device="cpu", optimizer=OptimizerSettings(weight_decay=0.0))
    method = short_pencil(backbone_epochs=1, correction_epochs=0, finetune_epochs=0, lr=1e-12)
    outcome, trainer = train(examples, method, settings=settings, model=model)
    assert 0.5 < expected < 1
    assert trainer.train_accuracy == outcome.records[0]["train_accuracy"] == pytest.approx(expected, abs=1e-12)


def test_it_corrects_the_wrong_labels_of_an_easy_task(blobs):
    outcome, trainer = train(blobs, short_pencil(backbone_epochs=10, correction_epochs=20, step=4.0))
    assert outcome.records[0]["labels_correct"] == pytest.approx(1 - 3 / 90)
    assert outcome.records[-1]["labels_correct"] == 1.0 and outcome.records[-1]["labels_changed"] == 3
    assert (outcome.label_probs.argmax(1) == blobs.clean_labels).all()
    assert trainer.method.labels.label_logits.sum(1).mean().item() == pytest.approx(
        trainer.method.labels.scale, rel=1e-5
    )


def test_same_seed_same_bits_other_seed_other_bits(blobs):
    """Dropout included; the global generator is neither used nor moved."""

    def model():
        with seeded(0, "model"):
            return nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3))

    before = torch.get_rng_state()
    (first, a), (again, b) = train(blobs, model=model()), train(blobs, model=model())
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(99)
    third, _ = train(blobs, model=model())
    for other in (again, third):
        assert all(torch.equal(x, y) for x, y in zip(first.model.parameters(), other.model.parameters(), strict=True))
        assert torch.equal(first.label_probs, other.label_probs)
    assert torch.equal(a.method.labels.label_logits, b.method.labels.label_logits)
    different, _ = train(blobs, model=model(), seed=1)
    assert not torch.equal(first.label_probs, different.label_probs)


def test_best_epoch_is_chosen_on_validation_alone(blobs):
    """Validation here rewards the worst network: labels that no input explains. The test set says the opposite."""
    clean = from_arrays(blobs.inputs.values, blobs.clean_labels)
    wrong = from_arrays(blobs.inputs.values, (blobs.clean_labels + 1) % 3)
    settings = TrainingSettings(batch_size=16)
    outcome = Trainer(network(), Splits(blobs, wrong, clean), short_pencil(), settings).run()
    validation = [record["validation_accuracy"] for record in outcome.records]
    test = [record["test_accuracy"] for record in outcome.records]
    assert outcome.best_epoch == validation.index(max(validation)) + 1 != test.index(max(test)) + 1
    without = Trainer(network(), Splits(blobs), short_pencil(), settings).run()
    assert without.best_epoch == len(without.records)
    assert all(torch.equal(v, without.model.state_dict()[k]) for k, v in without.best_weights.items())


def test_best_weights_are_those_of_the_best_epoch(blobs):
    class Snapshot(Observer):
        def __init__(self):
            self.weights = []

        def on_epoch_end(self, record):
            self.weights.append({k: v.clone() for k, v in trainer.model.state_dict().items()})

    watcher = Snapshot()
    trainer = Trainer(
        network(), Splits(blobs, blobs), short_pencil(), TrainingSettings(batch_size=16), observers=(watcher,)
    )
    outcome = trainer.run()
    kept = watcher.weights[outcome.best_epoch - 1]
    assert all(torch.equal(value, kept[name]) for name, value in outcome.best_weights.items())


def test_a_phase_of_zero_epochs_is_skipped_and_none_left_is_refused(blobs):
    outcome, _ = train(blobs, short_pencil(backbone_epochs=0, finetune_epochs=0))
    assert {record["phase"] for record in outcome.records} == {"correction"}
    with pytest.raises(TrainingError, match="every phase has zero epochs"):
        train(blobs, short_pencil(backbone_epochs=0, correction_epochs=0, finetune_epochs=0))


def test_repetitive_training_resets_labels_and_reduces_rates(blobs):
    method = short_pencil(rounds=3, round_factor=0.5)
    outcome, _ = train(blobs, method)
    names = list(dict.fromkeys(record["phase"] for record in outcome.records))
    assert names == ["backbone", "correction", "finetune", "correction 2", "finetune 2", "correction 3", "finetune 3"]
    steps = {record["phase"]: record["label_step"] for record in outcome.records}
    assert steps["correction"] == 2.0 and steps["correction 3"] == 0.5


def test_each_round_starts_from_the_given_labels(blobs):
    class Watch(Observer):
        def __init__(self):
            self.moved = []

        def on_step(self):
            start = LabelStore(blobs.given_labels, 3, scale=method.labels.scale).label_logits
            self.moved.append(int((method.labels.label_logits != start).any(dim=1).sum()))

    method, watch = short_pencil(rounds=2), Watch()
    train(blobs, method, observers=(watch,))
    steps = len(watch.moved) // 21  # 3 + 2 * (6 + 3) epochs
    second = (3 + 6 + 3) * steps
    assert watch.moved[second - 1] == 90  # every label has moved in the first round,
    assert watch.moved[second] == 16  # and after one step of the second only those of one batch have


def test_a_budget_keeps_each_phases_share():
    def loss(logits, batch):
        return Terms(logits.sum())

    phases = (
        Phase("a", 70, loss, Constant(1.0)),
        Phase("b", 130, loss, Linear(1.0)),
        Phase("c", 120, loss, StepDecay(0.2, at=(40, 80))),
    )
    shrunk = fit_budget(phases, 32)
    assert [phase.epochs for phase in shrunk] == [7, 13, 12]
    assert shrunk[2].lr(3.9, 12) == 0.2 and shrunk[2].lr(4.0, 12) == pytest.approx(0.02)
    for budget in range(3, 400):
        counts = [phase.epochs for phase in fit_budget(phases, budget)]
        assert sum(counts) == budget and min(counts) >= 1
    with pytest.raises(RecipeError, match="too few for 3 phases a, b, c"):
        fit_budget(phases, 2)


def test_a_loss_that_is_not_finite_stops_before_weights_or_labels_move(blobs):
    class Diverges(Method):
        def start(self, task):
            self.steps = 0
            return (Phase("train", 3, self.loss, Constant(0.1)),)

        def loss(self, outputs, batch):
            self.steps += 1
            factor = torch.inf if self.steps == 8 else 1.0
            return Terms(factor * cross_entropy(outputs.logits, batch.given_labels))

    class Watch(Observer):
        def on_step(self):
            self.weights = {k: v.clone() for k, v in model.named_parameters()}

    model, watch = network(), Watch()
    with pytest.raises(
        TrainingError, match=r"the loss became inf in epoch 2 \(phase train\).*rows '\d+'.*lower the learning"
    ):
        train(blobs, Diverges(), model=model, observers=(watch,))
    assert all(torch.equal(value, watch.weights[name]) for name, value in model.named_parameters())


def test_the_rows_of_a_bad_batch_are_named(blobs):
    class Poisoned(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(2, 3)

        def forward(self, x):
            logits = self.inner(x)
            return logits + torch.where(x[:, :1] == x_bad, torch.nan, 0.0) if self.training else logits

    x_bad = blobs.inputs.values[41, 0]
    method = short_pencil()
    with pytest.raises(
        TrainingError, match=r"the loss became nan .* with the rows '41'; weights and labels are unchanged"
    ):
        train(blobs, method, model=Poisoned())


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Linear(2, 7), r"returns \(2, 7\) for 2 inputs; expected \(2, 3\), one logit for each of the 3 classes"),
        (nn.Linear(5, 3), r"cannot train on inputs of shape \(2, 2\)"),
        (nn.Linear(2, 2), r"returns \(2, 2\) for 2 inputs; expected \(2, 3\)"),
    ],
)
def test_a_model_that_does_not_fit_is_refused(blobs, model, message):
    with pytest.raises(ModelError, match=message):
        train(blobs, model=model)


@pytest.mark.parametrize("name", ["sgd", "rmsprop", "adamw"])
def test_every_optimizer_learns(blobs, name):
    lr = 0.01 if name != "sgd" else 0.1
    settings = TrainingSettings(batch_size=16, optimizer=OptimizerSettings(name=name, momentum=0.5))
    outcome, trainer = train(blobs, CrossEntropy(epochs=15, lr=lr), settings=settings)
    assert outcome.records[-1]["test_accuracy"] > 0.9
    assert type(trainer.optimizer).__name__.lower() == name


def test_rmsprop_has_the_papers_settings():
    settings = OptimizerSettings(name="rmsprop", momentum=0.9, alpha=0.9, weight_decay=4e-5)
    optimizer = build_optimizer([nn.Linear(1, 1)], settings)
    group = optimizer.param_groups[0]
    assert (group["alpha"], group["momentum"], group["weight_decay"]) == (0.9, 0.9, 4e-5)


@pytest.mark.parametrize("factors", [{"body": 0.1, "body.1": 5.0}, {"body.1": 5.0, "body": 0.1}])
def test_the_longest_prefix_of_a_parameter_gives_its_learning_rate(factors):
    network = nn.ModuleDict({"body": nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), "head": nn.Linear(2, 2)})
    found = build_optimizer([network], OptimizerSettings(lr_factors=factors)).param_groups
    parts = {0.1: network["body"][0], 5.0: network["body"][1], 1.0: network["head"]}
    assert {group["factor"]: set(group["params"]) for group in found} == {
        factor: set(part.parameters()) for factor, part in parts.items()
    }
    covered = OptimizerSettings(lr_factors={**factors, "body.0": 2.0})  # nothing is left for body itself
    assert {group["factor"] for group in build_optimizer([network], covered).param_groups} == {1.0, 2.0, 5.0}
    with pytest.raises(RecipeError, match=r"names 'bod'; the network's parts are body, head"):
        build_optimizer([network], OptimizerSettings(lr_factors={"bod": 2.0}))


def test_gradients_are_clipped(blobs):
    tight = TrainingSettings(batch_size=16, clip_norm=1e-6, optimizer=OptimizerSettings(momentum=0.0, weight_decay=0.0))
    model = nn.Linear(2, 3)
    before = model.weight.detach().clone()
    train(blobs, CrossEntropy(epochs=1, lr=1.0), settings=tight, model=model)
    assert 0 < (model.weight - before).norm() <= 1e-5


def test_learning_rate_follows_its_schedule_within_an_epoch(blobs):
    seen = []

    class Watch(Observer):
        def on_step(self):
            seen.append(trainer.optimizer.param_groups[0]["lr"])

    method = CrossEntropy(epochs=2, lr=Linear(1.0))
    trainer = Trainer(network(), Splits(blobs), method, TrainingSettings(batch_size=30), observers=(Watch(),))
    trainer.run()
    assert seen == pytest.approx([1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6])


def test_a_dataset_read_item_by_item_trains_like_one_in_memory(blobs):
    items = from_dataset([(x, int(y)) for x, y in zip(blobs.inputs.values, blobs.given_labels, strict=True)], classes=3)
    assert torch.equal(train(items)[0].label_probs, train(blobs)[0].label_probs)


def test_soft_given_labels_train(blobs):
    soft = nn.functional.one_hot(blobs.given_labels, 3).float() * 0.9 + 0.1 / 3
    examples = from_arrays(blobs.inputs.values, soft)
    outcome, _ = train(examples)
    assert outcome.records[-1]["validation_accuracy"] > 0.9


def test_training_images_are_augmented_and_others_are_not():
    """A network that remembers what it was shown: the same image twice in training differs, in evaluation never."""
    seen = {True: [], False: []}

    class Remembers(nn.Module):
        def __init__(self):
            super().__init__()
            self.last = nn.Linear(64, 2)

        def forward(self, x):
            seen[self.training].append(x.detach().clone())
            return self.last(x.flatten(1))

    image = np.random.default_rng(0).integers(0, 256, (1, 8, 8), dtype=np.uint8)
    examples = from_arrays(np.repeat(image, 20, axis=0), np.arange(20) % 2)
    model, settings = Remembers(), TrainingSettings(batch_size=20, device="cpu")
    floats = from_arrays(examples.inputs.values.float(), examples.given_labels)
    trainer = Trainer(
        model, Splits(floats, floats), CrossEntropy(epochs=2), settings, augmentation=Augmentation(2, True)
    )
    for kept in seen.values():
        kept.clear()
    trainer.run()
    assert all(len(batch.unique(dim=0)) > 5 for batch in seen[True])
    assert all(len(batch.unique(dim=0)) == 1 for batch in seen[False])


def test_channels_last_gives_the_same_network():
    images = torch.rand(40, 1, 8, 8)
    examples = from_arrays(images, np.arange(40) % 2)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2))
    state = {k: v.clone() for k, v in model.state_dict().items()}
    results = []
    for channels_last in (False, True):
        model.load_state_dict(state)
        settings = TrainingSettings(batch_size=8, channels_last=channels_last, device="cpu")
        results.append(Trainer(model, Splits(examples), CrossEntropy(epochs=2), settings).run().records[-1]["loss"])
    assert results[0] == pytest.approx(results[1], rel=1e-4)


def test_lazy_layers_are_seeded(blobs):
    def weights():
        return train(blobs, model=nn.Sequential(nn.LazyLinear(3)))[0].model[0].weight

    first = weights()
    torch.manual_seed(7)
    assert torch.equal(first, weights())


def test_precision_and_device_are_resolved_with_care():
    cpu = torch.device("cpu")
    assert pick_precision("auto", cpu) is None and pick_precision("fp32", cpu) is None
    with pytest.raises(RecipeError, match="fp16 on a CPU"):
        pick_precision("fp16", cpu)
    with pytest.raises(RecipeError, match="expected auto, cpu, cuda"):
        pick_device("gpu0")
    if not torch.cuda.is_available():
        assert pick_device("auto") == cpu
        with pytest.raises(RecipeError, match="no GPU is visible"):
            pick_device("cuda")


def test_bf16_on_a_cpu_that_has_it_keeps_labels_in_fp32(blobs):
    if not cpu_runs_bf16():
        with pytest.raises(RecipeError, match="does not support it"):
            pick_precision("bf16", torch.device("cpu"))
        return
    settings = TrainingSettings(batch_size=16, precision="bf16", device="cpu")
    outcome, trainer = train(blobs, settings=settings)
    assert trainer.method.labels.label_logits.dtype == torch.float32
    assert outcome.records[-1]["test_accuracy"] > 0.8


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])  # it calls g++
def test_compiled_training_agrees_with_eager(blobs, backend, monkeypatch):
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    state = {k: v.clone() for k, v in nn.Linear(2, 3).state_dict().items()}
    results = []
    for compiled in (False, True):
        model = nn.Linear(2, 3)
        model.load_state_dict(state)
        settings = TrainingSettings(batch_size=16, compile=compiled, device="cpu", epochs=3)
        results.append(train(blobs, settings=settings, model=model)[0].records[-1]["loss"])
    assert results[0] == pytest.approx(results[1], rel=1e-4)


def test_rows_are_judged_again_only_after_another_visit(blobs):
    _, trainer = train(blobs, CrossEntropy(epochs=1))
    before = trainer.judge()
    assert trainer.judge() is before
    trainer.dynamics.add(torch.arange(len(blobs)), torch.randn(len(blobs), 3))
    assert not torch.equal(trainer.judge().issue_scores, before.issue_scores)


class Masked(nn.Module):
    """A network with a mask of infinities, as attention layers have."""

    def __init__(self, persistent):
        super().__init__()
        self.layer = nn.Linear(2, 3)
        self.register_buffer("mask", torch.tensor([0.0, 0.0, 0.0, -torch.inf]), persistent=persistent)

    def forward(self, inputs):
        scores = torch.cat([self.layer(inputs), inputs.new_zeros(len(inputs), 1)], dim=1) + self.mask
        return scores[:, :3]


@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize("method", [Auto(), CrossEntropy()])
def test_a_mask_of_infinities_is_no_broken_network(blobs, method, persistent):
    settings = TrainingSettings(batch_size=16, epochs=2, device="cpu")
    outcome, _ = train(blobs, method, settings=settings, model=Masked(persistent))
    assert math.isfinite(outcome.records[-1]["validation_loss"])
    assert torch.equal(outcome.model.mask, Masked(True).mask)


def test_an_epochs_time_contains_what_the_method_decides_after_it(blobs):
    class Slow(CrossEntropy):
        def on_epoch_end(self, context):
            time.sleep(0.2)

    outcome, _ = train(blobs, Slow(), settings=TrainingSettings(batch_size=16, epochs=1, device="cpu"))
    assert outcome.records[0]["seconds"] > 0.2


def test_the_entropy_of_labels_is_that_of_known_entries():
    given = torch.tensor([[1.0, torch.nan], [0.0, torch.nan]])
    totals = LabelTotals()
    totals.add(torch.tensor([[1.0, 0.5], [0.5, 0.5]]), from_arrays(torch.zeros(2, 3), given.numpy(), multilabel=True))
    assert totals.means()["label_entropy"] == pytest.approx(math.log(2) / 2)


def test_training_agreement_leaves_out_rows_whose_classes_tie():
    given = torch.tensor([[0.5, 0.5, 0.0], [0.0, 1.0, 0.0], [0.0, 0.2, 0.8], [0.5, 0.0, 0.5]])
    logits = torch.tensor([[0.0, 1.0, 0.0], [0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
    assert label_form(False).hits(logits, given) == (1.0, 2.0)
