"""The method auto: when it leaves the backbone phase, how it moves labels, when it abstains, and what runs instead."""

import copy
import time
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import pencil
from pencil import recipe
from pencil.data import Batch, Splits, from_arrays
from pencil.errors import MethodWarning, RecipeError, TrainingError
from pencil.labels.noise_model import log_likelihoods
from pencil.methods import Auto, CrossEntropy, Outputs
from pencil.methods.auto import LIGHT_DROPOUT
from pencil.methods.auto_backbone import (
    noise_share,
    relative_targets,
    spread_noise,
    spread_noise_loss,
    spread_noise_model,
)
from pencil.methods.elr import clamped_probs, early_learning_loss
from pencil.methods.forward import forward_loss
from pencil.models import mlp
from pencil.training import Trainer, TrainingSettings


def blobs(rows, seed, rate=0.4, classes=4):
    """Clouds that a network tells apart, with labels that it can learn by heart."""
    generator = torch.Generator().manual_seed(seed)
    clean = torch.arange(rows) % classes
    points = torch.randn(rows, 24, generator=generator) + 4.0 * nn.functional.one_hot(clean, 24)
    moved = (clean + torch.randint(1, classes, (rows,), generator=generator)) % classes
    wrong = torch.rand(rows, generator=generator) < rate
    return from_arrays(points, torch.where(wrong, moved, clean), classes=classes, clean_labels=clean)


def trainer_of(method, rate=0.4, *, epochs=24, rows=600, held_out=150, **options):
    splits = Splits(blobs(rows, 0, rate), blobs(held_out, 1, rate) if held_out else None, blobs(400, 2, 0.0))
    torch.manual_seed(0)
    settings = TrainingSettings(batch_size=32, epochs=epochs, device="cpu", **options)
    return Trainer(mlp(24, 4, width=128), splits, method, settings, seed=1)


def right(outcome, trainer):
    return float((outcome.label_probs.argmax(dim=1) == trainer.splits.train.clean_labels).double().mean())


@pytest.fixture(scope="module")
def noisy():
    trainer = trainer_of(Auto(lr=0.05), rows=1500, held_out=200)
    return trainer, trainer.run()


def test_it_leaves_the_backbone_before_mistakes_are_learned():
    memorising = Auto(lr=0.05, early_learning=0.0, dropout=False)
    outcome = trainer_of(memorising, rows=1500, held_out=200).run()
    phases = [record["phase"] for record in outcome.records]
    assert len(phases) == 24
    assert 1 < phases.count("backbone") < 12
    assert phases.count("finetune") == 6
    assert phases == sorted(phases, key=["backbone", "correction", "finetune"].index)
    assert "network restored to epoch" in outcome.findings["choices"][0]


def test_a_network_that_does_not_memorise_stays_in_the_backbone_phase(noisy):
    """The likelihood of few held-out rows goes up and down by chance: that ends nothing."""
    assert {record["phase"] for record in noisy[1].records} == {"backbone"}


def test_it_repairs_labels_and_beats_cross_entropy(noisy):
    trainer, outcome = noisy
    plain = trainer_of(CrossEntropy(lr=0.05), rows=1500, held_out=200).run()
    assert right(outcome, trainer) > 0.93
    assert outcome.records[-1]["test_accuracy"] > plain.records[-1]["test_accuracy"] + 0.1


def test_it_finds_the_noise_rate(noisy):
    found, noise = noisy[1].findings, noisy[1].judgement.noise
    assert noise.low <= 0.4 <= noise.high
    assert noise.rate == pytest.approx(0.4, abs=0.1)
    assert np.asarray(found["transition"]).sum(axis=1) == pytest.approx(1.0)


def test_the_learning_rate_is_one_cosine_over_all_phases(noisy):
    rates = [record["lr"] for record in noisy[1].records]
    expected = [0.05 * (1 + np.cos(np.pi * epoch / 24)) / 2 for epoch in range(24)]
    assert rates == pytest.approx(expected)


def test_clean_labels_stay(noisy):
    trainer = trainer_of(Auto(lr=0.05), rate=0.0)
    outcome = trainer.run()
    assert right(outcome, trainer) > 0.98
    assert outcome.judgement.noise.low == 0.0


def test_labels_without_meaning_are_left_alone():
    trainer = trainer_of(Auto(lr=0.05), rate=0.75)
    with pytest.warns(MethodWarning, match="better than chance"):
        outcome = trainer.run()
    assert torch.equal(outcome.label_probs.argmax(dim=1), trainer.splits.train.given_labels)
    assert {record["phase"] for record in outcome.records} == {"backbone"}


def test_without_held_out_rows_the_backbone_has_a_fixed_length():
    outcome = trainer_of(Auto(lr=0.05), held_out=0, epochs=10).run()
    phases = [record["phase"] for record in outcome.records]
    assert phases.count("backbone") == 2
    assert "no held-out rows" in outcome.findings["choices"][0]


def test_a_network_that_cannot_memorise_is_left_to_learn():
    """One epoch more helps to the end: labels are read off only then."""
    method = Auto(lr=0.001, dropout=False)
    trainer = trainer_of(method, epochs=3)
    outcome = trainer.run()
    assert {record["phase"] for record in outcome.records} == {"backbone"}
    assert "ended in the backbone" in outcome.findings["choices"][0]
    assert right(outcome, trainer) >= float(
        (trainer.splits.train.given_labels == trainer.splits.train.clean_labels).double().mean()
    )


def test_correction_that_does_harm_is_undone():
    """A fast learning rate after the switch ruins the network; what it had learned before is kept."""
    method = Auto(lr=0.05, max_backbone=0.5)
    trainer = trainer_of(method, epochs=10)
    before = method.correction_loss

    def harmful(outputs, batch):
        return before(Outputs(-outputs.logits), batch)

    method.correction_loss = harmful
    with pytest.warns(MethodWarning, match="made predictions of held-out labels worse"):
        outcome = trainer.run()
    assert outcome.records[-1]["test_accuracy"] > 0.8
    assert right(outcome, trainer) > 0.8


def test_the_kept_network_is_the_mean_of_the_trained_one():
    trainer = trainer_of(Auto(lr=0.05), epochs=2)
    weights, update = [], trainer.networks.emas[0].update

    def update_and_note():
        update()
        weights.append(copy.deepcopy(trainer.networks.trained[0].state_dict()))

    trainer.networks.emas[0].update = update_and_note
    trainer.epoch(trainer.phases[0], 0)
    for name, value in trainer.model.state_dict().items():
        if value.is_floating_point():
            torch.testing.assert_close(value, torch.stack([w[name] for w in weights]).mean(dim=0), rtol=1e-4, atol=1e-5)


def test_without_averaging_the_trained_network_is_kept():
    trainer = trainer_of(Auto(lr=0.05, ema=False), epochs=2)
    assert trainer.model is trainer.networks.trained[0]


@pytest.mark.parametrize("options", [{"divergence": "inverse"}, {"anchored": False}])
def test_every_switch_trains(options):
    trainer = trainer_of(Auto(lr=0.02, **options))
    assert right(trainer.run(), trainer) > 0.85


def test_pinned_rows_stay_where_they_are():
    trainer = trainer_of(Auto(lr=0.05), epochs=8)
    method = trainer.method
    method.labels.pinned = torch.arange(600) < 50
    before = method.labels.label_logits[:50].clone()
    trainer.run()
    assert torch.equal(method.labels.label_logits[:50], before)
    assert not torch.equal(method.labels.label_logits[50:100], before)


def test_it_plans_by_the_clock():
    trainer = trainer_of(Auto(lr=0.02), epochs=None, minutes=1.5 / 60)
    outcome = trainer.run()
    assert len(outcome.records) >= 3
    assert sum(record["seconds"] for record in outcome.records) < 6


def test_the_clock_ends_a_correction_that_is_slower_than_the_backbone():
    class Slow(Auto):
        def correction_loss(self, outputs, batch):
            time.sleep(0.004)
            return super().correction_loss(outputs, batch)

    method = Slow(lr=0.05, early_learning=0.0, dropout=False, max_backbone=0.3)
    outcome = trainer_of(method, epochs=None, minutes=3 / 60).run()
    phases = Counter(record["phase"] for record in outcome.records)
    assert min(phases.values()) >= 1 and set(phases) == {"backbone", "correction", "finetune"}
    assert phases["finetune"] <= 0.25 * len(outcome.records) + 1
    assert sum(record["seconds"] for record in outcome.records) < 4.5


def test_other_methods_refuse_the_clock():
    with pytest.raises(TrainingError, match=r"set training\.epochs"):
        trainer_of(CrossEntropy(), epochs=None, minutes=1.0)


def test_auto_is_the_default_and_pencil_is_never_replaced():
    assert recipe.parse({}).method["name"] == "auto"
    assert recipe.parse({"method": {"lr": 0.1}}).method["name"] == "auto"
    assert recipe.parse({"method": {"name": "pencil"}}).method["name"] == "pencil"
    points, labels = np.random.default_rng(0).normal(size=(90, 5)).astype(np.float32), np.arange(90) % 3
    assert pencil.fit("mlp", (points, labels), epochs=3, method="pencil").summary.method == "pencil"


@pytest.mark.parametrize("settings", [{"method.patience": 9}, {"method.patience": 4}, {"method.pace": 0.1}])
def test_a_number_that_cannot_be_used_is_refused_even_at_its_default(settings):
    points, labels = np.random.default_rng(0).normal(size=(90, 5)).astype(np.float32), np.arange(90) % 3
    with pytest.raises(RecipeError, match=f"has no {next(iter(settings)).removeprefix('method.')}; remove"):
        pencil.fit("mlp", (points, labels), epochs=3, settings={"data.validation": 0.0, **settings})


@pytest.mark.parametrize(("rows", "held_out"), [(600, 60), (200, 40), (90, 27)])
def test_of_few_rows_more_are_held_out_to_decide_by(rows, held_out):
    points, labels = np.random.default_rng(0).normal(size=(rows, 5)).astype(np.float32), np.arange(rows) % 3
    run = pencil.fit("mlp", (points, labels), epochs=1)
    assert run.labels["split"].to_pylist().count("validation") == held_out
    assert run.recipe.data.validation == pytest.approx(held_out / rows)
    other = pencil.fit("mlp", (points, labels), epochs=1, method="cross_entropy")
    assert other.recipe.data.validation == 0.1


def test_without_held_out_rows_one_line_names_what_runs_instead():
    points, labels = np.random.default_rng(0).normal(size=(90, 5)).astype(np.float32), np.arange(90) % 3
    settings = {"method.lr": 0.07, "method.rounds": 2, "data.validation": 0.0}
    with pytest.warns(
        MethodWarning, match="auto needs at least 5 held-out rows, but there are 0; the method 'pencil' runs"
    ):
        few = pencil.fit("mlp", (points, labels), epochs=5, settings=settings).recipe
    assert few.method["name"] == "pencil" and few.method["rounds"] == 2
    assert few.method["lr"]["value"] == few.method["finetune_lr"]["start"] == 0.07


def test_its_own_number_of_epochs_is_kept_by_what_runs_instead():
    points, labels = np.random.default_rng(0).normal(size=(90, 5)).astype(np.float32), np.arange(90) % 3
    settings = {"method.epochs": 4, "data.validation": 0.0}
    with pytest.warns(MethodWarning, match="the method 'pencil' runs instead"):
        assert pencil.fit("mlp", (points, labels), settings=settings).summary.epochs == 4


def test_another_round_is_begun_as_long_as_it_pays():
    def run(**options):
        return trainer_of(
            Auto(lr=0.05, max_backbone=0.05, dropout=False, **options), rate=0.5, rows=600, held_out=300
        ).run()

    once, again = run(), run(rounds=9)
    phases = [record["phase"] for record in again.records]
    rounds = 1 + sum(name.startswith("correction ") for name in set(phases))
    assert 2 <= rounds < 9  # the first round pays here, and some round does not
    left = len(once.records) - phases.count("backbone")
    assert len(phases) == len(once.records) + (rounds - 1) * left
    assert sum(choice.startswith("another round") for choice in again.findings["choices"]) == rounds - 1
    assert any(choice.startswith("no further round") for choice in again.findings["choices"])


@pytest.mark.parametrize("top_k", [2, 4])
def test_it_repairs_labels_that_are_kept_by_their_largest_entries(top_k):
    trainer = trainer_of(Auto(lr=0.05), label_top_k=top_k)
    assert right(trainer.run(), trainer) > 0.9


def test_the_regulariser_hardly_holds_predictions_that_follow_the_frequencies():
    """The gradient of ``log(1 - <f, t>)`` where f and t are the frequencies, by relative targets and by ELR's own."""
    frequency = torch.tensor([0.9, 0.08, 0.02], dtype=torch.float64)
    targets = 0.7 * frequency.repeat(4, 1)
    pulls = []
    for tried in (relative_targets(targets, frequency), targets):
        logits = frequency.log().repeat(4, 1).requires_grad_()
        early_learning_loss(clamped_probs(logits), tried).backward()
        pulls.append(float(-logits.grad[0, 0]))
    assert 0 < pulls[0] < 0.5 * pulls[1]
    torch.testing.assert_close(relative_targets(targets, frequency).sum(dim=1), targets.sum(dim=1))


def test_a_rare_class_is_not_unlearned_before_it_is_learned():
    """Nine in ten rows are of one class; a fifth of the labels is wrong."""
    generator = torch.Generator().manual_seed(0)
    clean = (torch.arange(1000) % 10 == 0).long()
    points = torch.randn(1000, 24, generator=generator) + 4.0 * nn.functional.one_hot(clean, 24)
    given = torch.where(torch.rand(1000, generator=generator) < 0.2, 1 - clean, clean)
    parts = ((0, 500, given), (500, 700, given), (700, 1000, clean))
    splits = Splits(*(from_arrays(points[a:b], labels[a:b], classes=2) for a, b, labels in parts))
    torch.manual_seed(0)
    settings = TrainingSettings(batch_size=32, epochs=30, device="cpu")
    outcome = Trainer(mlp(24, 2, width=64), splits, Auto(lr=0.05), settings, seed=1).run()
    assert outcome.records[-1]["test_accuracy"] > 0.93  # 0.9 by predicting the frequent class


def test_rows_that_cannot_be_read_do_not_count_as_the_first_class():
    trainer = trainer_of(Auto(lr=0.05), 0.1, epochs=6, held_out=0)
    trainer.run()
    method, logits = trainer.method, trainer.predict()

    class Partly:
        held_out = staticmethod(lambda: None)

        def predict(self):
            return logits.clone().index_fill_(0, torch.arange(0, len(logits), 5), torch.nan)

    method.relabel(Partly())
    assert method.state.noise.rate == pytest.approx(0.1, abs=0.05)
    assert method.state.noise.transition[0, 0] > 0.8


@pytest.mark.parametrize(
    ("strength", "rate", "low", "high"), [(9.0, 0.1, 0.7, 1.0), (1.5, 0.02, 0.0, 0.4), (9, 0, 0, 0)]
)
def test_the_early_learning_term_follows_the_share_of_noise_in_the_disagreement(strength, rate, low, high):
    """A strong network disagrees with wrong labels alone, a weak one with right ones too, where it is unsure."""
    trainer = trainer_of(Auto(lr=0.05), epochs=1)
    trainer.run()
    held_out = blobs(4000, 3, rate)
    logits = strength * nn.functional.one_hot(held_out.clean_labels, 4) + torch.randn(4000, 4)
    assert low <= noise_share((logits, held_out.given_labels)) <= high


def test_the_share_of_the_early_learning_term_never_falls():
    trainer = trainer_of(Auto(lr=0.05), epochs=3)
    trainer.run()
    method = trainer.method
    method.state.early_learning_share, method.state.backbone_epochs = 2.0, 0
    method._is_memorising(trainer)
    assert method.state.early_learning_share == 2.0


def test_the_share_of_the_early_learning_term_is_in_the_loss():
    trainer = trainer_of(Auto(lr=0.05), epochs=2)
    trainer.run()
    method, outputs = trainer.method, Outputs(torch.randn(2, 4))
    batch = Batch(torch.tensor([0, 1]), torch.zeros(2, 3), torch.tensor([0, 1]))

    def terms(share):
        method.state.early_learning_share = share
        return method.backbone_loss(outputs, batch)

    none, half, whole = (terms(share) for share in (0.0, 0.5, 1.0))
    assert float(none.loss) == pytest.approx(float(none.parts["classification"]))
    assert float(half.loss) == pytest.approx((float(none.loss) + float(whole.loss)) / 2)


@pytest.mark.parametrize(("classes", "rate"), [(4, 0.3), (10, 0.8)])
def test_the_loss_of_spread_noise_is_the_forward_loss_of_symmetric_noise(classes, rate):
    """``T = (1 - rate) I + rate / c``, written out."""
    logits, given = 3 * torch.randn(50, classes), torch.randint(classes, (50,))
    transition = (1 - rate) * torch.eye(classes) + rate / classes
    torch.testing.assert_close(spread_noise_loss(logits, given, rate), forward_loss(logits, given, transition))
    soft = torch.rand(50, classes).softmax(dim=1)
    torch.testing.assert_close(
        spread_noise_loss(logits, soft, rate), -(soft * (logits.softmax(1) @ transition).log()).sum(1).mean()
    )


def test_a_label_that_the_network_rules_out_hardly_moves_it():
    logits = torch.tensor([[12.0, 0.0, 0.0, 0.0]], requires_grad=True)
    forces = []
    for rate in (1e-9, 0.5):
        (gradient,) = torch.autograd.grad(spread_noise_loss(logits, torch.tensor([1]), rate), logits)
        forces.append(float(gradient.abs().sum()))
    assert forces[0] == pytest.approx(2.0, abs=0.01) and forces[1] < 1e-3


def answers(kind, rows=4000, classes=5, rate=0.4):
    """Return confident predictions, and labels of which a fraction is wrong: spread over all classes, or mapped."""
    generator = torch.Generator().manual_seed(5)
    clean = torch.randint(classes, (rows,), generator=generator)
    shift = torch.randint(0, classes, (rows,), generator=generator) if kind == "spread" else 1
    wrong = torch.rand(rows, generator=generator) < rate
    logits = 9.0 * nn.functional.one_hot(clean, classes) + torch.randn(rows, classes, generator=generator)
    return logits, torch.where(wrong, (clean + shift) % classes, clean)


def test_only_noise_without_a_direction_is_spread_noise():
    assert 0.33 < spread_noise(answers("spread")) < 0.4  # less than is true, by about a standard error
    assert spread_noise(answers("map")) < 0.02
    assert spread_noise(answers("spread", rate=0.0)) == 0.0
    assert spread_noise(answers("spread", rows=12, rate=0.1)) < 0.1


def test_no_spread_noise_where_it_cannot_be_told_from_a_bad_network():
    assert spread_noise(answers("spread", classes=2)) == 0.0  # the noise of two classes has no direction
    assert spread_noise(answers("spread", classes=101)) == 0.0
    logits, given = answers("spread", rate=0.0)
    assert spread_noise((logits.roll(1, dims=1), given)) == 0.0  # all predictions are wrong


def test_a_surer_network_does_not_look_as_if_it_memorised():
    """Random labels become less likely with confidence in the true classes, unless the likelihood knows of them."""
    logits, given = answers("spread", rate=0.5)
    noise = spread_noise_model(0.5, 5)
    sure, surer = (log_likelihoods(scale * logits, given, noise.transition).mean() for scale in (1.0, 100.0))
    assert float(surer) == pytest.approx(float(sure), abs=0.02)
    sure, surer = (log_likelihoods(scale * logits, given).mean() for scale in (1.0, 100.0))
    assert float(surer) < float(sure) - 0.5
    assert spread_noise_model(0.0, 5) is None


def test_a_network_at_chance_has_no_spread_noise():
    """Else a rate that is too high would keep the network at chance."""
    trainer = trainer_of(Auto(lr=0.0, loss_correction=True), epochs=2)
    trainer.method.state.spread_noise = 0.9
    trainer.run()
    assert trainer.method.state.spread_noise == 0.0


def test_loss_correction_learns_through_random_labels():
    """With 60 % of the labels wrong, it corrects nearly all of them, and says how many it took for random."""
    trainer = trainer_of(Auto(lr=0.05, loss_correction=True), rate=0.6, rows=1500, held_out=200)
    outcome = trainer.run()
    assert right(outcome, trainer) > 0.9
    backbone = [record for record in outcome.records if record["phase"] == "backbone"]
    assert 0.3 < backbone[-1]["spread_noise"] < 0.9


def test_dropout_is_light_until_training_rows_are_fitted_better_than_held_out_ones():
    def strengths(rows, held_out, **options):
        trainer, found = trainer_of(Auto(lr=0.05, **options), rows=rows, held_out=held_out, epochs=12), []
        watch = SimpleNamespace(on_start=lambda *_: None, on_step=lambda: None, on_epoch_end=lambda _: None)
        watch.on_plan = lambda phases: found.append(phases[-1].dropout)
        trainer.observers = (watch,)
        trainer.run()
        return found

    memorising = strengths(100, 500, early_learning=0.0)
    assert memorising[0] == LIGHT_DROPOUT and memorising[-1] == 1.0 and memorising == sorted(memorising)
    assert set(strengths(1500, 500)) == {LIGHT_DROPOUT}
    assert set(strengths(1500, 200)) == {1.0} == set(strengths(300, 0))  # too few to see it


def test_a_tie_is_no_wrong_label():
    """A third of the rows do not say which of two classes they are; the others are right."""
    train, held_out = (blobs(rows, seed, 0.0) for rows, seed in ((900, 0), (300, 1)))
    splits = Splits(*(replace(part, given_labels=with_ties(part)) for part in (train, held_out)))
    torch.manual_seed(0)
    settings = TrainingSettings(batch_size=32, epochs=8, device="cpu")
    trainer = Trainer(mlp(24, 4, width=128), splits, Auto(lr=0.05), settings, seed=1)
    outcome = trainer.run()
    assert len(trainer.held_out()[0]) == 200
    assert any("every label judged by its training dynamics" in choice for choice in outcome.findings["choices"])
    assert outcome.judgement.noise.rate < 0.005


def with_ties(examples):
    """Soft labels; every third row has the class before its own with the same probability."""
    soft = nn.functional.one_hot(examples.given_labels, 4).float()
    soft[::3] = (soft[::3] + soft[::3].roll(-1, dims=1)) / 2
    return soft
