"""Dropout that is added for training: only to perceptrons, and without a trace."""

import pytest
import torch
from torch import nn

from pencil.models.dropout import add_dropout, drop
from pencil.models.small import mlp, small_cnn


def test_a_perceptron_is_regularised_while_it_trains():
    network = mlp(8, 3)
    names = list(network.state_dict())
    handles = add_dropout(network)
    inputs = torch.randn(16, 8)
    network.train()
    assert len(handles) == 3 and not network(inputs).equal(network(inputs))
    network.eval()
    assert network(inputs).equal(network(inputs)) and list(network.state_dict()) == names
    for handle in handles:
        handle.remove()
    network.train()
    torch.testing.assert_close(network(inputs), network(inputs))


def test_a_weaker_dropout_drops_less():
    layer = nn.Sequential(nn.Linear(4, 2000), nn.Linear(2000, 3))
    seen = []
    added = add_dropout(layer)
    layer[1].register_forward_hook(lambda _, inputs, __: seen.append(float((inputs[0] == 0).double().mean())))
    for strength in (1.0, 0.6, 0.0):
        for one in added:
            one.set_strength(strength)
        layer.train()(torch.rand(64, 4))
    assert seen == pytest.approx([0.5, 0.3, 0.0], abs=0.01)


def test_other_networks_stay_as_they_are():
    own = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 3))
    assert add_dropout(small_cnn(1, 3)) == add_dropout(own) == add_dropout(nn.Linear(8, 3)) == []


@pytest.mark.parametrize("probability", [0.2, 0.5])
def test_values_are_dropped_at_random_and_their_mean_stays(probability):
    torch.manual_seed(0)
    values = torch.rand(301, 203) + 1
    values.requires_grad_()
    dropped = drop(values, probability)
    found, zero = dropped.detach(), dropped == 0
    assert zero.double().mean() == pytest.approx(probability, abs=0.01)
    assert found.mean() == pytest.approx(float(values.detach().mean()), rel=0.02)
    torch.testing.assert_close(found[~zero], (values.detach() / (1 - probability))[~zero], rtol=1e-4, atol=0)
    columns, rows = zero.double().mean(dim=0), zero.double().mean(dim=1)  # no place is dropped more often than another
    assert columns.std() < 1.5 * (probability * (1 - probability) / 301) ** 0.5
    assert rows.std() < 1.5 * (probability * (1 - probability) / 203) ** 0.5
    dropped.sum().backward()
    torch.testing.assert_close(values.grad == 0, zero)
    torch.manual_seed(0)
    torch.rand(301, 203)
    assert drop(values, probability).equal(found)
