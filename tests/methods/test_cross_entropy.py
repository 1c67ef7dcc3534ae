import math

import pytest
import torch

from pencil.data.examples import Batch
from pencil.errors import RecipeError
from pencil.labels.losses import cross_entropy
from pencil.methods import CrossEntropy
from pencil.methods.base import Outputs, Task

LOGITS = torch.tensor([[0.0, math.log(3.0), 0.0, 0.0]], dtype=torch.float64)  # probabilities 1/6, 1/2, 1/6, 1/6
CPU = torch.device("cpu")


def test_label_smoothing_spreads_a_fraction_of_the_label_evenly():
    """0.8 of the label stays, and each of the four classes gets 0.05."""
    log_probs = [math.log(1 / 6), math.log(1 / 2), math.log(1 / 6), math.log(1 / 6)]
    expected = -0.8 * log_probs[1] - 0.05 * sum(log_probs)
    assert float(cross_entropy(LOGITS, torch.tensor([1]), 0.2)) == pytest.approx(expected)
    soft = torch.tensor([[0.0, 1.0, 0.0, 0.0]], dtype=torch.float64)
    assert float(cross_entropy(LOGITS, soft, 0.2)) == pytest.approx(expected)
    assert float(cross_entropy(LOGITS, torch.tensor([1]))) == pytest.approx(-log_probs[1])


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_the_method_smooths_the_given_labels(smoothing):
    given = torch.tensor([1])
    method = CrossEntropy(label_smoothing=smoothing)
    method.start(Task(given, 4, 1, CPU))
    terms = method.loss(Outputs(LOGITS), Batch(torch.tensor([0]), torch.zeros(1, 2), given))
    assert float(terms.loss) == pytest.approx(float(cross_entropy(LOGITS, given, smoothing)))


def test_multi_label_data_is_not_smoothed():
    task = Task(torch.zeros(3, 4), 4, 1, CPU, multilabel=True)
    with pytest.raises(
        RecipeError, match=r"label_smoothing is 0.1, but the data is multi-label; .* remove label_smoothing"
    ):
        CrossEntropy(label_smoothing=0.1).start(task)
