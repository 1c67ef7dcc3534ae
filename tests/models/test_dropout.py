"""Dropout that is added for training: only to perceptrons, and without a trace."""

import torch
from torch import nn

from pencil.models.dropout import add_dropout
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


def test_other_networks_stay_as_they_are():
    own = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 3))
    assert add_dropout(small_cnn(1, 3)) == add_dropout(own) == add_dropout(nn.Linear(8, 3)) == []
