"""A noise model for multi-label data, with false negatives (missing classes) and false positives (wrong classes).

Class k is present in a row with probability ``q = sigmoid(sharpness * z + shift[k])``, where ``z`` are the network's
log-odds. A present class is missing from the label with probability ``fn = false_negatives[k]``; an absent class is
named with probability ``fp = false_positives[k]``. A class is therefore named with probability
``m = fp + (1 - fp - fn) * q``. A network predicts that a class it has not learned yet is absent; ``shift`` corrects
this bias.

A given probability y means that the class is named with probability ``y' = sigmoid(confidence * logit(y))``; its
likelihood is ``y' m + (1 - y') (1 - m)``. ``confidence`` is above 1 where annotators were surer than they stated.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from pencil.labels.entry_caution import Curvature, arrow_curvature, cautious_values, squared_error
from pencil.labels.noise_model import NORMAL_95
from pencil.seeding import some_places

MAX_ENTRIES = 50_000
"""Entries are subsampled to this number; more do not change the result."""
PRIOR_MEAN = (0.0, 0.0, -2.0, -2.0, 0.0)
PRIOR_SPREAD = (2.0, 5.0, 2.0, 2.0, 1.0)
"""Priors of log sharpness, shift, logits of twice the rates, log confidence; separable data cannot bound sharpness."""
SHARED = len(PRIOR_MEAN)
STARTS = ((0.0, 0.0, -3.0, -3.0, 0.0), (0.0, 0.0, -1.0, -1.0, 0.0))
CLASS_SPREAD = (1.0, 0.7, 0.7)
"""Prior spread of shift and rates between classes: classes with few rows shrink towards the shared values."""


@dataclass(frozen=True)
class EntryNoise:
    """The noise model; ``rate`` is the fraction of wrong entries, with its 95 % interval.

    ``shift``, ``false_positives`` and ``false_negatives`` have one value per class.
    """

    sharpness: float
    shift: Tensor
    false_positives: Tensor
    false_negatives: Tensor
    confidence: float
    rate: float
    low: float
    high: float

    def log_odds(self, network_log_odds: Tensor) -> Tensor:
        """Return the log-odds that classes are present, from the network alone."""
        return self.sharpness * network_log_odds + self.shift.to(network_log_odds)

    def label_log_odds(self, given: Tensor) -> Tensor:
        """Return the log-likelihood ratio ``P(y | present) / P(y | absent)`` of the labels; 0 where unknown."""
        named = sharpened(given, torch.tensor(self.confidence).to(given))
        return _label_log_odds(named, self.false_positives.to(given), self.false_negatives.to(given)).nan_to_num(0.0)

    def posterior(self, network_log_odds: Tensor, given: Tensor, trust: float = 1.0) -> Tensor:
        """Return the log-odds that classes are present, given prediction and label (Bayes' rule).

        Parameters
        ----------
        network_log_odds
            Log-odds of the network, (rows, classes).
        given
            Given probabilities of the same shape; unknown entries (NaN) are ignored.
        trust
            Exponent of the label's likelihood.
        """
        return self.log_odds(network_log_odds) + trust * self.label_log_odds(given)

    def wrong(self, network_log_odds: Tensor, given: Tensor) -> Tensor:
        """Return the probability that each given entry is wrong; unknown entries count as absent."""
        given = given.double()
        present = self.posterior(network_log_odds.double(), given).sigmoid()
        return torch.where(given > 0.5, 1 - present, present)


@dataclass(frozen=True)
class CautiousNoise:
    """The noise model with the fewest wrong entries that held-out labels allow, separately for each class and kind.

    All values are (2, classes): first for entries that do not name the class, then for entries that do.
    """

    sharpness: Tensor
    shift: Tensor
    false_positives: Tensor
    false_negatives: Tensor
    confidence: Tensor

    def wrong(self, network_log_odds: Tensor, given: Tensor) -> Tensor:
        """Return the probability that each given entry is wrong; unknown entries count as absent."""
        given, network_log_odds = given.double(), network_log_odds.double()
        absent, named = (self._present(network_log_odds, given, kind) for kind in (0, 1))
        return torch.where(given > 0.5, 1 - named, absent)

    def _present(self, network_log_odds: Tensor, given: Tensor, kind: int) -> Tensor:
        rates = self.false_positives[kind].to(given), self.false_negatives[kind].to(given)
        label = _label_log_odds(sharpened(given, self.confidence[kind].to(given)), *rates).nan_to_num(0.0)
        return (self.sharpness[kind].to(given) * network_log_odds + self.shift[kind].to(given) + label).sigmoid()


def fit_entry_noise(log_odds: Tensor, given: Tensor) -> EntryNoise:
    """Return the noise model of held-out rows, by maximum likelihood with wide priors.

    Per-class values shrink towards a shared mean.

    Parameters
    ----------
    log_odds
        Log-odds of the network, (rows, classes).
    given
        Given probabilities of the same shape; NaN entries are ignored.
    """
    return _fit(_some_entries(log_odds, given), given.shape[1])[0]


def fit_entry_noise_range(log_odds: Tensor, given: Tensor) -> tuple[EntryNoise, CautiousNoise]:
    """Return the noise model of :func:`fit_entry_noise`, and the cautious model that the labels also allow.

    The interval of the rate includes the estimation error of all values and the sampling error of the number of wrong
    entries.
    """
    entries, classes = _some_entries(log_odds, given), given.shape[1]
    model, best, curvature = _fit(entries, classes)
    return model, _cautious(best, curvature, entries, classes)


def _fit(entries: tuple[Tensor, Tensor, Tensor], classes: int) -> tuple[EntryNoise, Tensor, Curvature]:
    """Return the most probable noise model, its values, and the curvature of the cost there."""
    found = [_minimize(start, entries, classes) for start in STARTS]
    best = min(found, key=lambda values: float(_cost(values, *entries)))
    curvature = arrow_curvature(lambda values: _cost(values, *entries), best, SHARED)
    rate = float(_rate(best, *entries))
    variance = squared_error(curvature, lambda values: _rate(values, *entries), best)
    error = (variance + rate * (1 - rate) / max(1, len(entries[0]))) ** 0.5
    low, high = max(0.0, rate - NORMAL_95 * error), min(0.5, rate + NORMAL_95 * error)
    return _as_model(best, rate, low, high), best, curvature


def entry_log_likelihoods(log_odds: Tensor, given: Tensor, noise: EntryNoise) -> Tensor:
    """Return the log-probability of the known labels of each row, (rows,)."""
    given, rates = given.double(), (noise.false_positives.to(given.device), noise.false_negatives.to(given.device))
    named = sharpened(given, given.new_tensor(noise.confidence))
    return _log_likelihood(noise.log_odds(log_odds.double()), named, *rates).nan_to_num(0.0).sum(dim=1)


def sharpened(given: Tensor, confidence: Tensor) -> Tensor:
    """Return ``sigmoid(confidence * logit(y))``; 0, 1 and NaN stay."""
    soft = (given > 0) & (given < 1)
    return torch.where(soft, (confidence * torch.where(soft, given, 0.5).logit()).sigmoid(), given)


def remaining_errors(log_odds: Tensor, given: Tensor, noise: EntryNoise) -> float:
    """Return the fraction of wrong entries that remain under the posterior, counting those that it breaks."""
    wrong = noise.wrong(log_odds, given)[~given.isnan()]
    return float(torch.minimum(wrong, 1 - wrong).sum() / wrong.sum().clamp_min(1e-12))


def entry_agreement(log_odds: Tensor, given: Tensor) -> float:
    """Return the fraction of known entries whose prediction agrees with the given value."""
    known = ~given.isnan()
    return float(((log_odds > 0) == (given > 0.5))[known].double().mean())


def remaining_entry_trust(log_odds: Tensor, given: Tensor, noise: EntryNoise, agreement: float) -> float:
    """Return the fraction of a given label's weight that the prediction for its training row does not yet contain.

    Like :func:`pencil.labels.noise_model.remaining_trust`: the part already contained is the weight at which posteriors
    of held-out rows agree with their labels as often as predictions for training rows agree with theirs.
    """
    for weight in torch.linspace(0.0, 1.0, 21).tolist():
        repeated = weight * noise.label_log_odds(given.double()) / noise.sharpness
        if entry_agreement(log_odds.double() + repeated, given) >= agreement:
            return 1 - float(weight)
    return 0.0


def _as_model(values: Tensor, rate: float, low: float, high: float) -> EntryNoise:
    sharpness, shift, false_positives, false_negatives, confidence = _unpack(values)
    return EntryNoise(float(sharpness), shift, false_positives, false_negatives, float(confidence), rate, low, high)


def _some_entries(log_odds: Tensor, given: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Log-odds, given probability and class of known entries, at most ``MAX_ENTRIES``."""
    rows, classes = (~given.isnan()).cpu().nonzero(as_tuple=True)
    some = some_places(len(rows), MAX_ENTRIES)
    rows, classes = rows[some], classes[some]
    z = log_odds.cpu()[rows, classes].float().double()  # drop the last bits, which differ between processes
    return z, given.cpu()[rows, classes].double(), classes


def _label_log_odds(y: Tensor, false_positives: Tensor, false_negatives: Tensor) -> Tensor:
    """``log P(y | present) / P(y | absent)``."""
    if_present = y * (1 - false_negatives) + (1 - y) * false_negatives
    if_absent = y * false_positives + (1 - y) * (1 - false_positives)
    return if_present.log() - if_absent.log()


def _log_likelihood(log_odds: Tensor, y: Tensor, false_positives: Tensor, false_negatives: Tensor) -> Tensor:
    """``log(y m + (1 - y) (1 - m))`` of each entry, where ``log_odds`` are the log-odds that its class is present."""
    named = false_positives + (1 - false_positives - false_negatives) * log_odds.sigmoid()
    return (y * named + (1 - y) * (1 - named)).clamp_min(1e-12).log()


def _unpack(values: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Sharpness, shift, both rates of each class (below one half) and confidence, from unconstrained values.

    The shared values come first, followed by each class's deviation from the shared shift and rates.
    """
    shift, false_positives, false_negatives = values[1:4, None] + values[SHARED:].reshape(3, -1)
    return values[0].exp(), shift, false_positives.sigmoid() / 2, false_negatives.sigmoid() / 2, values[4].exp()


def _cost(values: Tensor, z: Tensor, y: Tensor, k: Tensor) -> Tensor:
    """Negative log-likelihood and log-prior."""
    sharpness, shift, false_positives, false_negatives, confidence = _unpack(values)
    common = (values[:SHARED] - values.new_tensor(PRIOR_MEAN)) / values.new_tensor(PRIOR_SPREAD)
    own = values[SHARED:].reshape(3, -1) / values.new_tensor(CLASS_SPREAD)[:, None]
    named = sharpened(y, confidence)
    likelihood = _log_likelihood(sharpness * z + shift[k], named, false_positives[k], false_negatives[k])
    return (common.square().sum() + own.square().sum()) / 2 - likelihood.sum()


def _minimize(start: tuple[float, ...], entries: tuple[Tensor, Tensor, Tensor], classes: int) -> Tensor:
    values = torch.tensor([*start, *[0.0] * 3 * classes], dtype=torch.float64, requires_grad=True)
    search = torch.optim.LBFGS([values], max_iter=200, line_search_fn="strong_wolfe")

    def cost() -> Tensor:
        search.zero_grad()
        found = _cost(values, *entries)
        found.backward()
        return found

    with torch.enable_grad():
        search.step(cost)
    return values.detach()


def _rate(values: Tensor, z: Tensor, y: Tensor, k: Tensor) -> Tensor:
    """The fraction of wrong entries, from the posterior of each entry."""
    return _wrong(values, z, y, k).mean()


def _wrong(values: Tensor, z: Tensor, y: Tensor, k: Tensor) -> Tensor:
    """The probability that each entry is wrong."""
    sharpness, shift, false_positives, false_negatives, confidence = _unpack(values)
    label = _label_log_odds(sharpened(y, confidence), false_positives[k], false_negatives[k])
    present = (sharpness * z + shift[k] + label).sigmoid()
    return torch.where(y > 0.5, 1 - present, present)


def _cautious(
    best: Tensor, curvature: Curvature, entries: tuple[Tensor, Tensor, Tensor], classes: int
) -> CautiousNoise:
    """The models with the fewest wrong entries of each class: one for named entries, one for unnamed entries."""
    z, y, k = entries

    def lowest(chosen: Tensor) -> Tensor:
        def by_class(values: Tensor) -> Tensor:
            wrong = _wrong(values, z[chosen], y[chosen], k[chosen])
            return wrong.new_zeros(classes).index_add(0, k[chosen], wrong)

        shared, own = cautious_values(curvature, by_class, best)
        moved = torch.cat([shared, shared[:, 1:4] + own], dim=1).T
        return torch.stack([moved[0].exp(), moved[5], moved[6].sigmoid() / 2, moved[7].sigmoid() / 2, moved[4].exp()])

    return CautiousNoise(*torch.stack([lowest(y <= 0.5), lowest(y > 0.5)], dim=1))
