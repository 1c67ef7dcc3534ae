"""Training dynamics: running means of what was predicted before each step."""

import numpy as np
import pytest
import torch

from pencil.labels.dynamics import FLOOR, TOP_K, TrainingDynamics


def visits(rows=7, classes=4, count=5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, rows, classes, generator=generator)


def test_means_are_those_of_all_visits():
    logits, given = visits(), torch.tensor([0, 1, 2, 3, 0, 1, 2])
    dynamics = TrainingDynamics(given, 4)
    for one in logits:
        order = torch.randperm(7)
        dynamics.add(order, one[order])
    found = dynamics.evidence()
    probs = np.exp(logits.numpy()) / np.exp(logits.numpy()).sum(axis=2, keepdims=True)
    own = probs[:, np.arange(7), given.numpy()]
    other = np.where(np.eye(4)[given.numpy()] > 0, -1, probs).max(axis=2)
    np.testing.assert_allclose(found.log_probs, np.log(probs).mean(axis=0), atol=1e-5)
    np.testing.assert_allclose(found.log_given, np.log(own).mean(axis=0), atol=1e-5)
    np.testing.assert_allclose(found.margin, (own - other).mean(axis=0), atol=1e-5)
    np.testing.assert_allclose(found.disagreement, (other > own).mean(axis=0), atol=1e-6)
    assert found.visits.tolist() == [5] * 7


def test_rows_are_counted_by_their_own_visits():
    dynamics = TrainingDynamics(torch.tensor([0, 1]), 2)
    dynamics.add(torch.tensor([1]), torch.tensor([[0.0, 1.0]]))
    assert dynamics.evidence().visits.tolist() == [0, 1]


def test_one_sure_visit_does_not_outweigh_all_others():
    dynamics = TrainingDynamics(torch.tensor([0]), 2)
    dynamics.add(torch.tensor([0]), torch.tensor([[-500.0, 500.0]]))
    assert dynamics.evidence().log_given.item() == pytest.approx(FLOOR)


def test_with_many_classes_the_largest_means_are_kept():
    logits = visits(rows=3, classes=100, count=4, seed=1) + 6 * torch.eye(100)[[11, 6, 42]]
    small, given = TrainingDynamics(torch.tensor([5, 6, 7]), 100), torch.tensor([5, 6, 7])
    for one in logits:
        small.add(torch.arange(3), one)
    exact = logits.log_softmax(dim=2).clamp_min(FLOOR).mean(dim=0)
    found = small.evidence()
    assert small.means.shape == (3, TOP_K) and small.means.dtype == torch.float16
    assert found.log_probs.argmax(dim=1).tolist() == exact.argmax(dim=1).tolist() == [11, 6, 42]
    torch.testing.assert_close(found.log_given, exact.gather(1, given[:, None])[:, 0], atol=1e-4, rtol=0)


def test_a_copy_of_the_state_goes_on_alike():
    one, other = (TrainingDynamics(torch.tensor([0, 1, 1]), 40) for _ in range(2))
    logits = visits(rows=3, classes=40, count=4)
    for step in logits[:2]:
        one.add(torch.arange(3), step)
    other.load_state_dict({name: value.clone() for name, value in one.state_dict().items()})
    for step in logits[2:]:
        one.add(torch.arange(3), step)
        other.add(torch.arange(3), step)
    assert all(one.state_dict()[name].equal(value) for name, value in other.state_dict().items())
