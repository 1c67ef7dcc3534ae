"""The method: units, phases, reading labels, and the paper's claim about the two divergences."""

import pytest
import torch

from pencil.data import Batch
from pencil.errors import MethodWarning
from pencil.labels.store import LabelStore, forward_kl_label_gradient, init_scale
from pencil.methods import METHODS, Outputs, Pencil, Task, find_method
from pencil.methods.schedules import Constant, Linear


def started(method, given=(0, 1, 2, 0), classes=3, batch_size=128):
    labels = torch.tensor(given)
    phases = method.start(Task(labels, classes, batch_size, torch.device("cpu")))
    return {phase.name: phase for phase in phases}


def test_the_papers_symbols_and_ours_say_the_same():
    paper = started(Pencil(alpha=0.1, label_lr=600.0, init_scale=10.0), classes=10, batch_size=128)
    ours = started(Pencil(pull=1.0, step=600 / 1280, init_scale=10.0), classes=10, batch_size=128)
    assert paper["correction"].label_step(0, 1) == pytest.approx(ours["correction"].label_step(0, 1))
    first, second = Pencil(alpha=0.1), Pencil(pull=1.0)
    started(first, classes=10), started(second, classes=10)
    assert first.label_pull == second.label_pull == 1.0
    falling = started(Pencil(label_lr=Linear(3000.0)), classes=10, batch_size=100)["correction"]
    assert [falling.label_step(epoch, 10) for epoch in (0, 5)] == pytest.approx([3.0, 1.5])


def test_how_sure_the_labels_start():
    paper, ours = Pencil(init_scale=10.0), Pencil(init_probability=0.9)
    started(paper), started(ours)
    assert paper.labels.scale == 10.0 and ours.labels.scale == init_scale(0.9, 3)


@pytest.mark.parametrize(
    ("compatibility", "pull"), [("printed", 1.0), ("published", 10.0)]
)  # 10: alpha 0.1, 100 classes
def test_a_strong_pull_warns_and_labels_are_read_without_it(compatibility, pull):
    method = Pencil(compatibility=compatibility, pull=pull, step=1.0)
    with pytest.warns(MethodWarning, match=f"pull is {pull:g} with the {compatibility} compatibility loss"):
        phases = started(method, given=(0, 1))
    logits = torch.tensor([[0.0, 8.0, 0.0], [0.0, 8.0, 0.0]])
    batch = Batch(torch.arange(2), torch.zeros(2, 1), torch.tensor([0, 1]))
    for _ in range(300):
        terms = phases["correction"].loss(Outputs(logits), batch)
        phases["correction"].after_step(terms.carry, batch, 1.0)
    assert method.labels.probs().argmax(1).tolist() == [0, 1]  # by their own maximum labels cannot flip
    assert method.label_probs().argmax(1).tolist() == [1, 1]


def test_only_correction_moves_labels():
    phases = started(Pencil())
    assert phases["correction"].after_step is not None
    assert phases["backbone"].after_step is None and phases["finetune"].after_step is None


def test_losses_of_the_phases():
    method = Pencil(beta=0.4, class_mean=True)
    phases = started(method)
    logits, batch = torch.randn(4, 3), Batch(torch.arange(4), torch.zeros(4, 1), torch.tensor([0, 1, 2, 0]))
    f, y = logits.softmax(1), method.labels.probs()
    kl = (f * (f / y).log()).sum(1).mean()
    entropy = -(f * f.log()).sum(1).mean()
    torch.testing.assert_close(
        phases["backbone"].loss(Outputs(logits), batch).loss, -f.log()[torch.arange(4), batch.given_labels].mean()
    )
    torch.testing.assert_close(phases["correction"].loss(Outputs(logits), batch).loss, (kl + 0.4 * entropy) / 3)
    torch.testing.assert_close(phases["finetune"].loss(Outputs(logits), batch).loss, kl / 3)
    method.class_mean = False
    torch.testing.assert_close(phases["finetune"].loss(Outputs(logits), batch).loss, kl)


def test_with_forward_kl_labels_do_not_move_with_inverse_kl_they_do():  # section 4.5
    given, logits = torch.tensor([0]), torch.tensor([[0.0, 6.0, 0.0]])
    rows = torch.tensor([0])
    inverse, forward = LabelStore(given, 3), LabelStore(given, 3)
    for _ in range(20):
        inverse.update(rows, logits, step=1.0)
        forward.write(rows, forward[rows] - forward_kl_label_gradient(forward[rows], logits))
    assert inverse.probs().argmax() == 1 and forward.probs().argmax() == 0


@pytest.mark.parametrize("divergence", ["inverse", "forward"])
def test_the_method_moves_labels_with_inverse_kl_alone(divergence):  # section 4.5
    method = Pencil(divergence=divergence, init_scale=10.0)
    phase = started(method, given=(0, 1))["correction"]
    before = method.labels.probs().clone()
    logits, batch = torch.tensor([[0.0, 6.0, 0.0]] * 2), Batch(torch.arange(2), torch.zeros(2, 1), torch.tensor([0, 1]))
    for _ in range(20):
        phase.after_step(phase.loss(Outputs(logits), batch).carry, batch, 1.0)
    moved = (method.labels.probs() - before).abs().amax(dim=1)
    assert method.labels.probs().argmax(1).tolist() == ([1, 1] if divergence == "inverse" else [0, 1])
    assert moved[0] > 0.9 if divergence == "inverse" else moved.max() < 0.05


@pytest.mark.parametrize("carry", [False, True])
def test_labels_start_a_further_round_as_given_or_as_the_last_one_left_them(carry):
    method = Pencil(rounds=3, carry_labels=carry)
    phases = started(method)
    given = method.labels.label_logits.clone()
    for name in ("correction", "correction 2", "correction 3"):
        moved = method.labels.label_logits + torch.randn(4, 3)
        method.labels.label_logits = moved.clone()
        if phases[name].on_start is not None:
            phases[name].on_start(None)
        carried = carry and name != "correction"
        assert torch.equal(method.labels.label_logits, moved if carried else given)


def test_the_librarys_own_defaults():
    method = Pencil()
    phases = started(method)
    assert method.label_pull == 0 and method.beta == 0.4 and method.compatibility == "published"
    assert [phase.epochs for phase in phases.values()] == [5, 37, 18]


def test_methods_by_name():
    assert {"pencil", "cross_entropy"} <= set(METHODS)
    assert find_method("pencil") is Pencil
    assert Pencil(step=2).step == Constant(2.0)
