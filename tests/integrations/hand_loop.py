"""Data, settings and a loop by hand, which Lightning and the Trainer are compared with."""

import torch

import pencil
from pencil.integrations import PencilLabels
from pencil.labels.store import init_scale

EPOCHS, BATCH = 5, 8


def data():
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(40, 6, generator=generator)
    return x, torch.randint(3, (40,), generator=generator)


def labels():
    return PencilLabels(data()[1], 3, backbone_epochs=1, correction_epochs=3, step=1.5, pull=0.2, beta=0.3)


def by_hand():
    """Return the network and the labels after training."""
    x, given = data()
    torch.manual_seed(1)
    network = torch.nn.Linear(6, 3)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.2)
    store = pencil.LabelStore(given, 3, scale=init_scale(0.999, 3))
    for epoch in range(EPOCHS):
        for rows in torch.arange(40).split(BATCH):
            logits = network(x[rows])
            if epoch < 1:
                loss = pencil.cross_entropy(logits, given[rows])
            else:
                loss = pencil.pencil_loss(logits, store[rows], beta=0.3 if epoch < 4 else 0.0)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if 1 <= epoch < 4:
                store.update(rows, logits, step=1.5, pull=0.2, compatibility="published")
    return network, store
