"""sample_weight: the loss of each row times its weight; methods whose loss is no mean over rows refuse it."""

import numpy as np
import pytest
import torch
from torch import nn

import pencil
from pencil.errors import DataError, TrainingError
from pencil.methods import CrossEntropy


def cloud(rows=64):
    draw = np.random.default_rng(0)
    y = draw.integers(0, 2, rows)
    return (draw.normal(size=(rows, 3)) + y[:, None]).astype(np.float32), y


def fit(x, y, **options):
    torch.manual_seed(0)
    whole = {"training.batch_size": len(x), "data.validation": 0.0, "data.normalize": "none"}
    method = options.pop("method", CrossEntropy(epochs=1, lr=0.1))
    return pencil.fit(nn.Linear(3, 2), (x, y), method=method, settings=whole, progress=False, **options)


def test_one_step_is_that_of_the_weighted_mean():
    x, y = cloud()
    weights = np.random.default_rng(1).random(len(x))
    network = fit(x, y, sample_weight=np.ones(len(x))).model
    plain = fit(x, y).model
    torch.testing.assert_close(network.weight, plain.weight, rtol=0, atol=0)
    only = np.where(np.arange(len(x)) < 2, 1.0, 0.0)  # 0 leaves a row out of every step
    moved = fit(x, y, sample_weight=only).model
    flipped = np.where(only > 0, y, 1 - y)
    torch.testing.assert_close(fit(x, flipped, sample_weight=only).model.weight, moved.weight, rtol=0, atol=0)
    one, ten = (fit(x, y, sample_weight=scale * weights).model for scale in (1, 10))
    torch.testing.assert_close(one.weight, ten.weight)
    assert not torch.equal(one.weight, plain.weight)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"sample_weight": [1.0]},
            DataError,
            r"sample_weight is float64 of shape \(1,\); expected one number per row; pass an array of length 64",
        ),
        ({"sample_weight": np.r_[1, -1, np.ones(62)]}, DataError, r"sample_weight at row 1 is -1.0; expected"),
        ({"sample_weight": np.zeros(64)}, DataError, r"sample_weight at row 0 is 0.0; expected .* not all 0"),
        (
            {"sample_weight": np.ones(64), "method": "co_teaching", "epochs": 1},
            TrainingError,
            r"CoTeaching does not support sample_weight; expected a method that declares row_losses",
        ),
    ],
)
def test_refused(options, error, message):
    with pytest.raises(error, match=message):
        fit(*cloud(), **options)
