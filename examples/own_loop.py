"""PENCIL in a plain PyTorch loop, with the label store and the losses only, compared with cross-entropy.

Run it: python examples/own_loop.py
"""

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

import pencil
from pencil.data.noise import flip, symmetric_matrix


def noisy_digits(rate=0.5, seed=0):
    """Return training inputs, their given and clean labels, test inputs and test labels."""
    x, y = load_digits(return_X_y=True)
    parts = train_test_split(x / 16, y, test_size=0.25, random_state=seed)
    x, x_test, clean, y_test = (torch.as_tensor(part) for part in parts)
    noisy = flip(clean, symmetric_matrix(10, rate), seed).labels
    return x.float(), torch.as_tensor(noisy), clean, x_test.float(), y_test


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))


def train(model, x, epochs, loss_of, after_step=lambda rows, logits, epoch: None):
    """Train as in any loop: the learning rate is constant for three quarters of the epochs, then decays."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    last = epochs // 4
    for epoch in range(epochs):
        optimizer.param_groups[0]["lr"] = 0.1 * min(1.0, (epochs - epoch) / last)
        for rows in torch.randperm(len(x)).split(64):
            logits = model(x[rows])
            loss = loss_of(rows, logits, epoch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            after_step(rows, logits, epoch)
    return model


def train_with_pencil(model, x, given, epochs):
    labels = pencil.LabelStore(given, num_classes=10)
    backbone, finetune = 2, epochs - epochs // 4  # the epochs in which labels start and stop moving

    def loss_of(rows, logits, epoch):
        if epoch < backbone:
            return pencil.cross_entropy(logits, given[rows])
        return pencil.pencil_loss(logits, labels[rows], beta=0.4 if epoch < finetune else 0.0)

    def move_labels(rows, logits, epoch):
        if backbone <= epoch < finetune:
            labels.update(rows, logits, step=0.5)

    return train(model, x, epochs, loss_of, move_labels), labels


def main(epochs=48):
    x, given, clean, x_test, y_test = noisy_digits()
    plain = train(network(), x, epochs, lambda rows, logits, _: pencil.cross_entropy(logits, given[rows]))
    model, labels = train_with_pencil(network(), x, given, epochs)
    scores = [float((net(x_test).argmax(dim=1) == y_test).float().mean()) for net in (plain, model)]
    right = [float((found == clean).float().mean()) for found in (given, labels.probs().argmax(dim=1))]
    print(f"test accuracy: cross-entropy {scores[0]:.1%}, PENCIL {scores[1]:.1%}")
    print(f"training labels right: as given {right[0]:.1%}, corrected {right[1]:.1%}")
    return scores, right


if __name__ == "__main__":
    main()
