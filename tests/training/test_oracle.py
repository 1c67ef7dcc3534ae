"""A whole tiny run against an independent, slow NumPy version of it: all three phases, momentum, decay, short batch."""

import numpy as np
import pytest
import torch
from torch import nn

from pencil.data import Splits, from_arrays
from pencil.methods import Pencil
from pencil.methods.schedules import Linear, StepDecay
from pencil.seeding import generator
from pencil.training import Trainer, TrainingSettings
from pencil.training.settings import OptimizerSettings

N, D, C, B = 23, 4, 3, 8
MOMENTUM, DECAY = 0.9, 1e-3
ALPHA, BETA, K = 0.2, 0.4, 10.0


def softmax(z):
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


class Oracle:
    """Softmax regression trained by PENCIL, one example at a time, gradients by the chain rule on paper."""

    def __init__(self, x, given, weight, bias):
        self.x, self.onehot = x, np.eye(C)[given]
        self.weight, self.bias = weight.copy(), bias.copy()
        self.velocity = [np.zeros_like(weight), np.zeros_like(bias)]
        self.label_logits = K * self.onehot

    def step(self, rows, phase, lr, label_lr, compatibility):
        weight_grad, bias_grad = np.zeros_like(self.weight), np.zeros_like(self.bias)
        label_steps = {}
        for i in rows:
            f = softmax(self.x[i : i + 1] @ self.weight.T + self.bias)[0]
            y = softmax(self.label_logits[i : i + 1])[0]
            if phase == "backbone":
                z_grad = f - self.onehot[i]
            else:
                jacobian = np.diag(f) - np.outer(f, f)  # df/dz
                by_f = np.log(f / y) + 1  # d KL(f || y) / df
                if phase == "correction":
                    by_f = by_f - BETA * (np.log(f) + 1)  # + beta * dH/df
                z_grad = jacobian @ by_f / C
            weight_grad += np.outer(z_grad, self.x[i]) / len(rows)
            bias_grad += z_grad / len(rows)
            if phase == "correction":
                label_jacobian = np.diag(y) - np.outer(y, y)  # Eq. 10
                by_y = -f / y / C
                if compatibility == "printed":
                    by_y = by_y - ALPHA * self.onehot[i] / y
                else:
                    by_y = by_y + ALPHA * (softmax(y[None])[0] - self.onehot[i])
                label_steps[i] = label_lr * (label_jacobian @ by_y) / B  # the nominal batch size
        for parameter, grad, velocity in zip(
            (self.weight, self.bias), (weight_grad, bias_grad), self.velocity, strict=True
        ):
            velocity *= MOMENTUM
            velocity += grad + DECAY * parameter
            parameter -= lr * velocity
        for i, change in label_steps.items():
            self.label_logits[i] -= change


@pytest.mark.parametrize("compatibility", ["printed", "published"])
def test_a_whole_run_equals_the_oracle(compatibility):
    rng = np.random.default_rng(1)
    x, given = rng.normal(size=(N, D)), rng.integers(C, size=N)
    model = nn.Linear(D, C).double()
    oracle = Oracle(x, given, model.weight.detach().numpy(), model.bias.detach().numpy())
    counts = {"backbone": 2, "correction": 3, "finetune": 3}
    method = Pencil(
        backbone_epochs=2,
        correction_epochs=3,
        finetune_epochs=3,
        lr=0.3,
        finetune_lr=StepDecay(0.2, at=(1, 2)),
        label_lr=Linear(120.0),
        alpha=ALPHA,
        beta=BETA,
        init_scale=K,
        compatibility=compatibility,
    )
    settings = TrainingSettings(
        batch_size=B, optimizer=OptimizerSettings(momentum=MOMENTUM, weight_decay=DECAY), device="cpu"
    )
    examples = from_arrays(torch.from_numpy(x), given, classes=C)
    outcome = Trainer(model, Splits(examples), method, settings, seed=7).run()

    epoch_number = 0
    for phase, epochs in counts.items():
        for epoch in range(epochs):
            order = torch.randperm(N, generator=generator(7, "order", epoch_number)).numpy()
            for number, start in enumerate(range(0, N, B)):
                progress = epoch + number / 3
                lr = 0.2 * 0.1 ** int(progress) if phase == "finetune" else 0.3
                label_lr = 120.0 * (1 - progress / 3)
                oracle.step(order[start : start + B], phase, lr, label_lr, compatibility)
            epoch_number += 1

    assert np.abs(method.labels.label_logits.numpy() - oracle.label_logits).max() < 1e-11
    assert np.abs(outcome.model.weight.detach().numpy() - oracle.weight).max() < 1e-11
    assert np.abs(outcome.model.bias.detach().numpy() - oracle.bias).max() < 1e-11
    assert np.abs(oracle.label_logits - K * oracle.onehot).max() > 0.5  # the labels really moved
