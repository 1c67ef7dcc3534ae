"""A model of the noise in multi-label data: classes that are missing in labels, and classes that should not be there.

A class is present in a row with probability ``q = sigmoid(sharpness * z + shift)``, where ``z`` are the network's
log-odds. A present class is missing in the label with probability ``false_negatives``, an absent one is named with
probability ``false_positives``; both are the same for all classes, of which some may be rare. So a class is named with
probability ``false_positives + (1 - false_positives - false_negatives) * q``. A network says of a class that it has not
found yet what is true of most rows, that it is absent: ``shift`` is the correction for that.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

MAX_ENTRIES = 50_000
"""More entries than this change nothing."""
PRIOR_MEAN = (0.0, 0.0, -2.0, -2.0)
PRIOR_SPREAD = (2.0, 5.0, 2.0, 2.0)
"""Of log sharpness, shift and the logits of twice the rates: wide, but sharpness has no limit on separable data."""
NORMAL_95 = 1.96


@dataclass(frozen=True)
class EntryNoise:
    """The noise model; ``rate`` is the fraction of wrong entries, with its 95 % interval."""

    sharpness: float
    shift: float
    false_positives: float
    false_negatives: float
    rate: float
    low: float
    high: float

    def log_odds(self, network_log_odds: Tensor) -> Tensor:
        """Return the log-odds that classes are present, by the network alone."""
        return self.sharpness * network_log_odds.double() + self.shift

    def wrong(self, network_log_odds: Tensor, given: Tensor) -> Tensor:
        """Return the probability that each given entry is wrong; a soft one counts as a mixture of both labels."""
        given = given.double()
        if_present = given * (1 - self.false_negatives) + (1 - given) * self.false_negatives
        if_absent = given * self.false_positives + (1 - given) * (1 - self.false_positives)
        present = (self.log_odds(network_log_odds) + if_present.log() - if_absent.log()).sigmoid()
        return torch.where(given > 0.5, 1 - present, present)


def fit_entry_noise(log_odds: Tensor, named: Tensor) -> EntryNoise:
    """Return the noise model of entries that the network was not trained on, by maximum likelihood with wide priors.

    Parameters
    ----------
    log_odds
        Of the network, (entries,).
    named
        Whether the class is named in the label, (entries,).
    """
    some = torch.randperm(len(named), generator=torch.Generator().manual_seed(0))[:MAX_ENTRIES]
    z, y = log_odds[some].double(), named[some].double()
    found = [_minimize(start, z, y) for start in ((0.0, 0.0, -3.0, -3.0), (0.0, 0.0, -1.0, -1.0))]
    best = min(found, key=lambda values: float(_cost(values, z, y)))
    sharpness, shift, false_positives, false_negatives = (float(value) for value in _unpack(best))
    rate = float(_rate(best, z))
    error = _error_of_rate(best, z, y)
    return EntryNoise(
        sharpness, shift, false_positives, false_negatives, rate,
        max(0.0, rate - NORMAL_95 * error), min(0.5, rate + NORMAL_95 * error),
    )  # fmt: skip


def _unpack(values: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Sharpness, shift and both rates, each below one half, of unbounded values."""
    return values[0].exp(), values[1], values[2].sigmoid() / 2, values[3].sigmoid() / 2


def _cost(values: Tensor, z: Tensor, y: Tensor) -> Tensor:
    """Negative log-likelihood and log-prior."""
    sharpness, shift, false_positives, false_negatives = _unpack(values)
    named = false_positives + (1 - false_positives - false_negatives) * (sharpness * z + shift).sigmoid()
    distance = (values - values.new_tensor(PRIOR_MEAN)) / values.new_tensor(PRIOR_SPREAD)
    return torch.nn.functional.binary_cross_entropy(named, y, reduction="sum") + distance.square().sum() / 2


def _minimize(start: tuple[float, ...], z: Tensor, y: Tensor) -> Tensor:
    values = torch.tensor(start, dtype=torch.float64, requires_grad=True)
    search = torch.optim.LBFGS([values], max_iter=200, line_search_fn="strong_wolfe")

    def cost() -> Tensor:
        search.zero_grad()
        found = _cost(values, z, y)
        found.backward()
        return found

    with torch.enable_grad():
        search.step(cost)
    return values.detach()


def _rate(values: Tensor, z: Tensor) -> Tensor:
    """The fraction of wrong entries."""
    sharpness, shift, false_positives, false_negatives = _unpack(values)
    present = (sharpness * z + shift).sigmoid()
    return (present * false_negatives + (1 - present) * false_positives).mean()


def _error_of_rate(values: Tensor, z: Tensor, y: Tensor) -> float:
    """Standard error of the rate: the curvature of the cost at its minimum, carried over to the rate."""
    with torch.enable_grad():
        curvature = torch.autograd.functional.hessian(lambda at: _cost(at, z, y), values)
        slope = torch.autograd.functional.jacobian(lambda at: _rate(at, z), values)
    return float((slope @ torch.linalg.pinv(curvature, hermitian=True) @ slope).clamp_min(0).sqrt())
