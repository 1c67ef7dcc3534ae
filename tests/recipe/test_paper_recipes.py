"""The recipes that quote the paper: their numbers, and that each of them really trains."""

import json
import math

import miniatures
import pyarrow.parquet as pq
import pytest
import torch

from pencil import job, recipe
from pencil.data.read import load
from pencil.methods import Task

# alpha = 0.1 with 100 or 200 classes holds every label
pytestmark = pytest.mark.filterwarnings("ignore:pull is [12]0 with:pencil.errors.MethodWarning")

PAPER = [name for name, tree in recipe.shipped().items() if tree.get("paper")]
SMALL = {
    "training.batch_size": 4,
    "training.device": "cpu",
    "model.pretrained": False,  # no download in a test
    "model.attention_width": 32,
}


@pytest.fixture(scope="session")
def roots(tmp_path_factory):
    made = {}
    for name, make in miniatures.MAKERS.items():
        made[name] = tmp_path_factory.mktemp(name)
        make(made[name])
    return made


def shrink(name, roots):
    """The recipe as it ships, on its miniature, with small batches and small images."""
    tree = recipe.find(name)
    source = tree["data"]["source"]
    changes = dict(SMALL, **{"data.root": str(roots[source])})
    if "resize" in tree["data"]:
        changes |= {"data.resize": 40} | ({"data.crop": 32} if "crop" in tree["data"] else {})
    if source == "open_images":
        changes |= {"data.options": {"classes": 4, "train_images": 4, "validation_images": 2, "test_images": 2}}
    for key, value in changes.items():
        tree = recipe.assign(tree, key.split("."), value)
    return recipe.parse(tree, name)


@pytest.mark.parametrize("name", PAPER)
def test_two_steps_of_every_phase(name, roots):
    chosen = shrink(name, roots)
    made = job.assemble(chosen, load(chosen.data))
    trainer = made.trainer()
    before = {key: value.clone() for key, value in trainer.model.state_dict().items()}
    for phase in trainer.phases[:3]:  # repetitive training repeats the last two
        if phase.on_start is not None:
            phase.on_start(trainer)
        trainer.model.train()
        labels = None if made.method.labels is None else made.method.labels.label_logits.clone()
        for batch, _ in zip(trainer.splits.train.batches(4), range(2), strict=False):
            result = trainer.step(phase, 0.0, batch)
            assert result.rows == 4 and math.isfinite(float(result.terms.loss.detach()))
        if labels is not None:
            moved = not torch.equal(labels, made.method.labels.label_logits)
            assert moved == phase.name.startswith("correction"), phase.name
    after = trainer.model.state_dict()
    assert any(not torch.equal(before[key], after[key]) for key in before)


@pytest.mark.parametrize(
    "name",
    ["cub200-lambda1000-alpha0.1", "clothing1m", "coco-attention-b0", "open-images-pencil", "cifar10-asymmetric-40"],
)
def test_a_whole_run_of_each_dataset(name, roots, tmp_path):
    chosen = shrink(name, roots)
    chosen = chosen.model_copy(update={"training": chosen.training.model_copy(update={"epochs": 3})})
    run = job.run_recipe(chosen, tmp_path / "run")
    assert 0 <= run.summary.test.last <= 1 and run.summary.score == ("map" if run.multilabel else "accuracy")
    table = pq.read_table(tmp_path / "run" / "labels.parquet")
    assert table.num_rows == sum(count for split, count in run.summary.data.rows.items() if split != "test")
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["epochs"] == 3


TABLE_1 = {  # learning rate, alpha, beta, lambda at the start and at the end of PENCIL learning
    "cifar10-symmetric-10": (0.02, 0.1, 0.8, 200, 200),
    "cifar10-symmetric-30": (0.03, 0.1, 0.8, 300, 300),
    "cifar10-symmetric-50": (0.04, 0.1, 0.8, 400, 400),
    "cifar10-symmetric-70": (0.08, 0.1, 0.8, 800, 800),
    "cifar10-symmetric-90": (0.12, 0.1, 0.4, 1200, 1200),
    "cifar10-asymmetric-10": (0.06, 0.1, 0.4, 600, 600),
    "cifar10-asymmetric-20": (0.06, 0.1, 0.4, 600, 600),
    "cifar10-asymmetric-30": (0.06, 0.1, 0.4, 600, 600),
    "cifar10-asymmetric-40": (0.03, 0.0, 0.4, 3000, 0),
    "cifar10-asymmetric-50": (0.03, 0.0, 0.4, 4000, 0),
}
CIFAR100 = {f"cifar100-symmetric-{r}": (0.35, 0.1, 0.4, 10000, 10000) for r in (20, 40, 60, 80)} | {
    f"cifar100-asymmetric-{r}": (0.35, 0.1, 0.4, 10000, 10000) for r in (10, 20, 30, 40)
}


@pytest.mark.parametrize(("name", "numbers"), (TABLE_1 | CIFAR100).items())
def test_cifar_has_the_numbers_of_section_4(name, numbers, roots):
    """Read off the phases as the trainer would run them: 70, 130 and 120 epochs, 0.2 divided by 10 after 40 and 80."""
    lr, alpha, beta, first, last = numbers
    chosen = recipe.parse(recipe.find(name), name)
    assert chosen.data.noise.rate == int(name.rsplit("-", 1)[1]) / 100 and chosen.data.validation == 0.1
    assert chosen.data.augmentation.crop_padding == 4 and chosen.data.augmentation.flip
    optimizer = chosen.training.optimizer
    assert (optimizer.name, optimizer.momentum, optimizer.weight_decay) == ("sgd", 0.9, 1e-4)
    method = chosen.build_method()
    classes = 100 if "cifar100" in name else 10
    phases = method.start(task(classes, chosen.training.batch_size))
    assert [phase.epochs for phase in phases] == [70, 130, 120]
    assert chosen.training.batch_size == 128
    assert phases[0].lr(69.9, 70) == phases[1].lr(129.9, 130) == lr
    assert [phases[2].lr(epoch, 120) for epoch in (0, 39, 40, 79, 80, 119)] == pytest.approx(
        [0.2, 0.2, 0.02, 0.02, 0.002, 0.002]
    )
    assert phases[1].label_step(0, 130) * 128 * classes == pytest.approx(first)
    assert phases[1].label_step(130, 130) * 128 * classes == pytest.approx(last)
    assert method.label_pull == pytest.approx(alpha * classes) and method.beta == beta
    assert method.labels.scale == 10.0


def test_clothing1m_has_two_lambdas_and_three_rates():
    chosen = recipe.parse(recipe.find("clothing1m"), "clothing1m")
    phases = chosen.build_method().start(task(14, 32))
    assert [phase.epochs for phase in phases] == [5, 10, 10]
    assert [phase.lr(0, phase.epochs) for phase in phases] == [1.6e-3, 8e-4, 5e-4]
    assert phases[2].lr(5, 10) == pytest.approx(5e-5)
    assert [phases[1].label_step(epoch, 10) * 32 * 14 for epoch in (0, 4.9, 5, 9.9)] == pytest.approx(
        [3000, 3000, 500, 500]
    )
    assert chosen.training.optimizer.weight_decay == 1e-3 and chosen.data.resize == 256 and chosen.data.crop == 224
    assert chosen.method["alpha"] == 0.08 and chosen.method["beta"] == 0.8 and chosen.training.batch_size == 32


@pytest.mark.parametrize("given", [1000, 2000, 3000])
@pytest.mark.parametrize("alpha", [0, 0.1])
def test_cub200_has_the_numbers_of_section_4(given, alpha):
    chosen = recipe.parse(recipe.find(f"cub200-lambda{given}-alpha{alpha}"), "cub200")
    method = chosen.build_method()
    phases = method.start(task(200, 16))
    assert [phase.epochs for phase in phases] == [35, 65, 60] and chosen.training.batch_size == 16
    assert [phases[0].lr(34, 35), phases[1].lr(64, 65)] == [2e-3, 2e-3]
    assert [phases[2].lr(epoch, 60) for epoch in (0, 19, 20, 39, 40)] == pytest.approx([1e-3, 1e-3, 1e-4, 1e-4, 1e-5])
    assert phases[1].label_step(0, 65) * 16 * 200 == pytest.approx(given) and method.label_pull == alpha * 200
    optimizer = chosen.training.optimizer
    assert (optimizer.momentum, optimizer.weight_decay, method.beta) == (0.9, 1e-4, 0.8)


def test_open_images_pencil_has_the_numbers_of_section_4():
    chosen = recipe.parse(recipe.find("open-images-pencil"), "open-images-pencil")
    entries = Task(torch.zeros(8, 250), 250, 128, torch.device("cpu"), multilabel=True)
    method = chosen.build_method()
    phases = method.start(entries)
    assert [phase.epochs for phase in phases] == [35, 65, 60] and chosen.training.batch_size == 128
    assert [phase.lr(2, phase.epochs) for phase in phases] == pytest.approx([5e-3, 5e-3, 5e-3 * 0.94])
    assert phases[1].label_step(0, 65) * 128 == pytest.approx(300)  # a binary loss has no mean over classes
    assert (method.label_pull, method.beta, method.divergence) == (0.2, 0.2, "both")
    optimizer = chosen.training.optimizer
    assert (optimizer.name, optimizer.momentum, optimizer.alpha, optimizer.weight_decay) == ("rmsprop", 0.9, 0.9, 4e-5)


@pytest.mark.parametrize("kind", ["symmetric", "asymmetric"])
def test_repetitive_training_lowers_both_rates_from_round_to_round(kind):
    chosen = recipe.parse(recipe.find(f"cifar10-repeat-{kind}-30"), "repeat")
    phases = {phase.name: phase for phase in chosen.build_method().start(task(10, 128))}
    once = recipe.parse(recipe.find(f"cifar10-{kind}-30"), "once").build_method().start(task(10, 128))
    for number, name in enumerate(("", " 2", " 3", " 4")):
        correction, finetune = phases["correction" + name], phases["finetune" + name]
        assert correction.lr(0, 130) == pytest.approx(0.9**number * once[1].lr(0, 130))
        assert correction.label_step(0, 130) == pytest.approx(0.9**number * once[1].label_step(0, 130))
        assert finetune.lr(0, 120) == pytest.approx(0.9**number * once[2].lr(0, 120))


def test_open_images_has_the_attention_structure_at_five_times_the_rate(roots):
    chosen = shrink("open-images-attention", roots)
    trainer = job.assemble(chosen, load(chosen.data)).trainer()
    factors = {group["factor"]: len(group["params"]) for group in trainer.optimizer.param_groups}
    assert factors[5.0] == sum(1 for name, _ in trainer.model.named_parameters() if name.startswith("head."))
    phase = trainer.phases[0]
    assert [phase.lr(epoch, 90) for epoch in (0, 1.9, 2, 89)] == pytest.approx([0.05, 0.05, 0.047, 0.05 * 0.94**44])


@pytest.mark.parametrize("size", range(6))
def test_coco_has_the_official_input_sizes(size):
    for family in ("coco", "coco-attention"):
        chosen = recipe.parse(recipe.find(f"{family}-b{size}"), family)
        assert chosen.data.resize == (224, 240, 260, 300, 380, 456)[size]
        assert chosen.model.attention == (family == "coco-attention") and chosen.training.batch_size == 24
        phase = chosen.build_method().start(task(80, 24))[0]
        assert [phase.lr(epoch, 60) for epoch in (0, 20, 40)] == pytest.approx(
            [0.01, 0.001, 0.0001]
        ) and phase.epochs == 60


def task(classes, batch_size):
    return Task(torch.arange(classes), classes, batch_size, torch.device("cpu"))
