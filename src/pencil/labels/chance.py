"""Whether a network has learned anything: agreement with held-out labels, and the ranking of rows, beyond chance."""

from typing import TypeVar

import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor

from pencil.labels.noise_model import NORMAL_95, SIGNIFICANT

ENOUGH = 0.05
"""With very few rows nothing is significant; there, a value this far above chance is enough."""
CLEARLY = 3.0
"""Standard errors by which a ranking must exceed chance: the test is repeated after every epoch."""

Numbers = TypeVar("Numbers", float, np.ndarray)


def wilson_upper(rate: Numbers, count: Numbers) -> Numbers:
    """Return the upper end of the 95 % Wilson interval of a rate in this many trials."""
    spread = NORMAL_95 * (rate * (1 - rate) / count + NORMAL_95**2 / (4 * count * count)) ** 0.5
    upper: Numbers = (rate + NORMAL_95**2 / (2 * count) + spread) / (1 + NORMAL_95**2 / count)
    return upper


def is_chance(logits: Tensor, given: Tensor, enough: float = 1.0) -> bool:
    """Return whether single-label predictions are no better than chance, in agreement and in ranking.

    A network may predict the frequent class for every row and still know which rows are more probable to have a rare
    one: its predictions agree by chance, but their ranking does not.

    Parameters
    ----------
    logits, given
        Predictions (rows, classes) and given classes of held-out rows.
    enough
        See :func:`agrees_by_chance`.
    """
    if not agrees_by_chance(logits.argmax(dim=1), given, enough):
        return False
    named = torch.nn.functional.one_hot(given, logits.shape[1]).float()
    above, pairs, variance = (float(one) for one in rank_sums(logits.log_softmax(dim=1).cpu(), named.cpu()).sum(dim=0))
    return bool(above <= 0.5 * pairs + CLEARLY * variance**0.5)


def agrees_by_chance(predicted: Tensor, given: Tensor, enough: float = 1.0) -> bool:
    """Return whether predictions agree with given labels no more than by chance, measured by Cohen's kappa.

    Chance agreement is the agreement of predictions and labels with the same class frequencies in random order. A
    network that predicts one class for all rows agrees by chance, however frequent the class is. A network that finds a
    rare class does not, although predicting only the frequent class would agree more often. An agreement that is
    ``enough`` above chance also counts where there are too few rows for significance.
    """
    size = int(max(predicted.max(), given.max())) + 1
    frequencies = [one.bincount(minlength=size).double() / len(one) for one in (predicted, given)]
    chance = float((frequencies[0] * frequencies[1]).sum())
    error = (chance * (1 - chance) / len(given)) ** 0.5
    return bool((predicted == given).double().mean() <= chance + min(SIGNIFICANT * error, enough))


def ranks_rows(log_odds: Tensor, given: Tensor) -> bool:
    """Return whether rows that name a class are ranked above those that do not, significantly better than by chance.

    The test uses the rank sums of all classes together. The mAP of a random ranking is not a fixed threshold: with few
    rows of a class it is far above the class frequency (0.11 instead of 0.025 with one row of forty).
    """
    above, pairs, variance = (float(one) for one in rank_sums(log_odds, given).sum(dim=0))
    return pairs > 0 and above / pairs > 0.5 + min(SIGNIFICANT * variance**0.5 / pairs, ENOUGH)


def learned_classes(log_odds: Tensor, given: Tensor) -> Tensor:
    """Return for each class whether rows that name it are ranked significantly above the other rows."""
    above, pairs, variance = rank_sums(log_odds, given).unbind(dim=1)
    return above > 0.5 * pairs + SIGNIFICANT * variance.sqrt()


def rank_sums(log_odds: Tensor, given: Tensor) -> Tensor:
    """Return for each class three numbers, (classes, 3).

    The number of (positive, negative) row pairs in the right order (ties count half), the number of such pairs, and the
    variance of the first number under a random order.
    """
    sums = torch.zeros(given.shape[1], 3, dtype=torch.float64)
    for k, seen in enumerate((~given.isnan()).unbind(dim=1)):
        named = given[seen, k] > 0.5
        one, other = int(named.sum()), int((~named).sum())
        if one and other:
            above = one * other * float(roc_auc_score(named.numpy(), log_odds[seen, k].numpy()))
            sums[k] = torch.tensor([above, one * other, one * other * (one + other + 1) / 12])
    return sums
