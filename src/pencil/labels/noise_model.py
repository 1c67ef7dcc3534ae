"""A model of the label noise, estimated from a network's predictions for rows that it was not trained on.

The true class of a row is drawn from ``p``. If the true class is k, the given label is another class with probability
``e * r[k]`` (some classes are mislabelled more often), drawn from row k of a matrix ``R`` with a zero diagonal. With
the shape ``S = diag(r) R``, the transition matrix is ``T = I + e (S - diag(r))``, and ``P(given | x) = (p T)[given]``.

The network's calibrated predictions ``q = softmax(z / t)`` do not always equal ``p``. A network trained on noisy labels
predicts noisy labels, ``q = p T``; a network that was kept from learning the noise comes closer to ``p``. The model is
``q = p ((1 - a) I + a T)``, where a is the absorbed fraction of the noise; :func:`unmixed` computes p from q. Without
it, a class-dependent error (40 % of all sevens labelled as ones) would be taken for sevens that look like ones.

The shape is estimated from training rows; the rate e, the temperature t and the absorbed fraction a from held-out rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from pencil.data.given.given_labels import hard_labels, has_tie
from pencil.labels.rows import rows_at_a_time
from pencil.seeding import some_places

TEMPERATURES = torch.logspace(-1.0, 0.8, 19, dtype=torch.float64)
RATES = torch.cat([torch.linspace(0.0, 0.1, 11), torch.linspace(0.12, 0.98, 44)]).double()
ABSORBED = (0.0, 0.5, 1.0)
"""Candidates for the fraction of the noise that predictions contain."""
ABSORBING = 4.0
"""Likelihood gain in nats required of an absorbed fraction of 1 if noise has no direction; see :func:`direction`."""
MANY_CLASSES = 100
"""With more classes, predictions count as free of noise: the confusions of many classes cannot be estimated."""
UNLIKELY = 1e-4
"""Lower limit of a class probability after noise is removed from predictions; at most a hundredth of the mean class."""
COOLER, WARMER = 1.0, 0.2
"""Standard deviations of the prior on the logarithm of a temperature, below and above 0.

Networks trained on corrected labels, and means over all epochs, tend to be underconfident rather than overconfident."""
STRENGTHS = torch.logspace(-1.0, 4.0, 26, dtype=torch.float64)
"""Candidate weights, in rows, of the uniform prior on the shape of the noise."""
SLACK = 0.5
"""The largest rate within this many nats of the best likelihood is chosen: in doubt, labels count as noisy."""
INTERVAL = 1.92
"""Drop of the log-likelihood at the interval ends: half the 95 % quantile of chi-square with one degree of freedom."""
CONFIDENT_FRACTION, CONFIDENT_ROWS = 0.5, 150
"""Rows used to extrapolate the noise of the most confident rows: this fraction, or this many if that is more."""
SUREST_FRACTION, SUREST_ROWS = 0.5, 1000
"""Rows used to count the shape of the noise: this fraction of each predicted class, more if there are few rows."""
SIGNIFICANT = 2.0
"""A difference counts if it exceeds this many standard errors."""
NORMAL_95 = 1.96
"""Standard errors on either side of the mean that contain 95 % of a normal distribution."""
RARITY = 2.0
"""Exponent of class rarity: with 1, corrections still lost right labels of classes a tenth as frequent."""
MAX_ROWS = 10_000
"""Rows are subsampled at random to this number; more do not change the result."""
RATE_STRIDE = 8
"""Every eighth rate is used to find the range of temperatures needed."""
VALUES = 2**17
"""Probabilities computed at a time while rates and temperatures are compared; they fit in a cache."""


@dataclass(frozen=True)
class NoiseModel:
    """A noise rate with its 95 % interval, the transition matrix, and how predictions relate to true classes.

    The interval assumes this model: noise that the inputs explain is taken for truth, so the rate may be far higher.

    Attributes
    ----------
    rate, low, high
        Fraction of wrong labels, and its interval.
    temperature
        Divides the logits to calibrate predictions.
    transition
        Probability of each given label (column) for each true class (row).
    absorbed
        Fraction of the noise that the predictions contain.
    """

    rate: float
    low: float
    high: float
    temperature: float
    transition: Tensor
    absorbed: float = 0.0

    def true_log_probs(self, logits: Tensor) -> Tensor:
        """Return the log-probabilities of the true classes, given these predictions."""
        log_probs = (logits / self.temperature).log_softmax(dim=1)
        if not self.absorbed:
            return log_probs
        return unmixed(log_probs.exp(), self._unmixing.to(logits)).log()

    @cached_property
    def _unmixing(self) -> Tensor:
        return unmixing(self.transition, self.absorbed)


def confusion_shape(predicted: Tensor, given: Tensor, num_classes: int) -> Tensor:
    """Return R: the distribution of the labels of each predicted class, among rows where the two differ.

    Counts are smoothed towards uniform by a Dirichlet prior whose weight maximises their marginal likelihood (empirical
    Bayes): if all labels go to one class, few rows are enough to show it; if they spread out, many rows are needed.
    """
    counts = torch.zeros(num_classes, num_classes, dtype=torch.float64)
    counts.index_put_((predicted.cpu(), given.cpu()), torch.ones(len(given), dtype=torch.float64), accumulate=True)
    counts.fill_diagonal_(0.0)
    uniform = (1 - torch.eye(num_classes, dtype=torch.float64)) / max(1, num_classes - 1)
    strength = best_strength(counts, uniform)
    return (counts + strength * uniform) / (counts.sum(dim=1, keepdim=True) + strength)


def noise_shape(logits: Tensor, given: Tensor) -> Tensor:
    """Return the shape of the noise from the predictions for many rows: R, each row times its class's relative rate.

    Only the most confident rows of each predicted class are counted: there, disagreement is noise; elsewhere, the
    network is often wrong.
    """
    return shape_by_top(*top_classes(logits), given, logits.shape[1])


def top_classes(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return the probability of the most probable class of each row, in fp64, and that class."""
    tops = [block.double().softmax(dim=1).max(dim=1) for block in logits.split(rows_at_a_time(logits.shape[1]))]
    return torch.cat([top.values for top in tops]), torch.cat([top.indices for top in tops])


def shape_by_top(confidence: Tensor, predicted: Tensor, given: Tensor, num_classes: int) -> Tensor:
    """Return :func:`noise_shape` from the most probable class of each row and its probability."""
    fraction = max(SUREST_FRACTION, min(1.0, SUREST_ROWS / max(1, len(given))))
    surest = confidence_ranks(confidence, predicted) <= fraction
    counted, labels = predicted[surest].cpu(), given[surest].cpu()
    relative = relative_rates(counted, labels, predicted.bincount(minlength=num_classes).cpu())
    return relative[:, None] * confusion_shape(counted, labels, num_classes)


def relative_rates(predicted: Tensor, given: Tensor, rows: Tensor) -> Tensor:
    """Return the noise rate of each class relative to the mean row; 1 where the data shows no difference.

    Fractions of wrong labels shrink towards their mean by a Beta prior whose weight maximises the marginal likelihood
    of the counts. ``rows`` are the row counts of the classes; weighted by them, the result has mean 1.
    """
    wrong = predicted != given
    counts = torch.stack([predicted[part].bincount(minlength=len(rows)) for part in (~wrong, wrong)], dim=1).double()
    mean = (counts.sum(dim=0) + 0.5) / (counts.sum() + 1)
    strength = best_strength(counts, mean.expand_as(counts))
    rates = (counts[:, 1] + strength * mean[1]) / (counts.sum(dim=1) + strength)
    return rates * rows.sum() / (rates * rows).sum()


def best_strength(counts: Tensor, mean: Tensor) -> Tensor:
    """Return the weight of the prior around ``mean`` that maximises the probability of the counts."""
    return STRENGTHS[torch.stack([dirichlet_log_marginal(counts, mean, one) for one in STRENGTHS]).argmax()]


def dirichlet_log_marginal(counts: Tensor, mean: Tensor, strength: Tensor) -> Tensor:
    """Return the log-probability of the counts, each row drawn from its own Dirichlet sample around ``mean``."""
    prior = strength * mean
    possible = prior > 0
    gained = torch.lgamma((counts + prior)[possible]) - torch.lgamma(prior[possible])
    return gained.sum() + (torch.lgamma(strength) - torch.lgamma(counts.sum(dim=1) + strength)).sum()


def unmixing(transition: Tensor, absorbed: float) -> Tensor:
    """Return the inverse of ``(1 - a) I + a T``, which removes noise from predictions."""
    identity = torch.eye(transition.shape[-1]).to(transition)
    inverse: Tensor = torch.linalg.inv(torch.lerp(identity, transition, absorbed))
    return inverse


def unmixed(probs: Tensor, inverse: Tensor) -> Tensor:
    """Return ``p`` of ``q = p ((1 - a) I + a T)``: ``q`` times the inverse, mapped back to a distribution.

    Where q is more confident than any mixture of the matrix rows, p would have negative entries; they become small.
    """
    solved = (probs @ inverse).clamp_min(min(UNLIKELY, 0.01 / probs.shape[-1]))
    return solved / solved.sum(dim=-1, keepdim=True)


def negative_log_likelihoods(
    logits: Tensor,
    given: Tensor,
    shape: Tensor,
    rates: Tensor,
    temperatures: Tensor,
    weights: Tensor | None = None,
    absorbed: float = 0.0,
) -> Tensor:
    """``-sum log P(given | x)`` over (optionally weighted) rows, for each temperature (row) and noise rate (column)."""
    inverses = unmixing(transition_at(rates[:, None, None], shape), absorbed).float() if absorbed else None
    found = []
    for some in temperatures.split(max(1, VALUES // logits.numel())):
        probs = (logits.double() / some[:, None, None]).softmax(dim=-1).float()
        by_row = _likelihoods_by_rate(probs, given, shape.float(), rates.float(), inverses).double()
        found.append((by_row.log() if weights is None else weights * by_row.log()).sum(dim=-1))
    return -torch.cat(found)


def _likelihoods_by_rate(probs: Tensor, given: Tensor, shape: Tensor, rates: Tensor, inverses: Tensor | None) -> Tensor:
    """``(p T)[given]`` for distributions (temperatures, rows, classes): (temperatures, rates, rows)."""
    if inverses is None:
        return _likelihoods(probs[:, None], given, shape, rates[:, None])
    size = max(1, VALUES // probs.numel())
    pairs = zip(rates.split(size), inverses.split(size), strict=True)
    parts = [_likelihoods(unmixed(probs[:, None], some), given, shape, at[:, None]) for at, some in pairs]
    return torch.cat(parts, dim=1)


def _likelihoods(probs: Tensor, given: Tensor, shape: Tensor, rates: Tensor) -> Tensor:
    """``(p T)[given]`` for distributions (..., rows, classes) at rates (..., 1)."""
    right = probs[..., torch.arange(len(given)), given]
    lost = right * shape.sum(dim=1)[given]
    wrong = (probs * shape.t()[given]).sum(dim=-1)
    return (right + rates * (wrong - lost)).clamp_min(1e-12)


def direction(shape: Tensor) -> float:
    """Return how concentrated the wrong labels of a class are: 0 if spread evenly, 1 if all go to one class.

    Noise without a direction flattens predictions, which the temperature undoes. Noise with a direction makes them
    prefer a wrong class, which only unmixing undoes.
    """
    others = len(shape) - 1
    if others < 2 or not shape.any():
        return 0.0
    most = float(shape.amax(dim=1).sum() / shape.sum())
    return max(0.0, (most - 1 / others) / (1 - 1 / others))


def absorbed_candidates(num_classes: int) -> tuple[float, ...]:
    """Return the candidates for the absorbed fraction."""
    return ABSORBED if num_classes <= MANY_CLASSES else ABSORBED[:1]


def fit_noise(logits: Tensor, given: Tensor, shape: Tensor) -> NoiseModel:
    """Return the noise model of held-out rows by maximum likelihood; its rate is at least the rate of the surest rows.

    Likelihood alone cannot separate an uncertain network from noisy labels. The most confident rows can: the network is
    hardly ever wrong there, so disagreement is noise. The rate is at least half a row, which could go unseen.
    Likelihood also cannot separate a network that predicts noisy labels from right labels; but a network that is more
    confident on some rows than noisy labels would allow sets an upper limit. Among equally likely rates the largest one
    is chosen.
    """
    some = some_places(len(given), MAX_ROWS)
    logits, given = logits.cpu()[some], given.cpu()[some]
    num_classes = len(shape)
    chance = (1 - 1 / num_classes) / float(shape.sum(dim=1).max().clamp_min(1.0))  # a label would carry no information
    rates = RATES[chance > RATES]
    fractions = absorbed_candidates(num_classes)
    found = torch.cat([likelihood_grid(logits, given, shape, rates, fraction) for fraction in fractions])
    profile = found.min(dim=0)
    best = profile.values.min()
    place = int((profile.values <= best + SLACK).nonzero().max())
    place = max(place, int((rates <= max(0.0, disagreement_of_surest(logits, given))).nonzero().max()))
    inside = (profile.values <= best + INTERVAL).nonzero()
    low, high = float(rates[inside.min()]), float(rates[inside.max()])
    rate = max(float(rates[place]), 0.5 / max(1, len(given)))
    penalties = ABSORBING * (1 - direction(shape)) * torch.tensor(fractions).repeat_interleave(len(TEMPERATURES))
    absorbed, temperature = divmod(int((found[:, place] + penalties).argmin()), len(TEMPERATURES))
    return NoiseModel(
        rate=rate,
        low=min(low, rate),
        high=max(high, rate),
        temperature=float(TEMPERATURES[temperature]),
        transition=transition_at(rate, shape),
        absorbed=fractions[absorbed],
    )


def likelihood_grid(logits: Tensor, given: Tensor, shape: Tensor, rates: Tensor, absorbed: float) -> Tensor:
    """Return :func:`negative_log_likelihoods` for all temperatures; infinite for those that are best at no rate.

    The best temperature changes smoothly with the rate, so a few rates show the range that all rates need.
    """
    few = torch.cat([rates[::RATE_STRIDE], rates[-1:]])
    best = negative_log_likelihoods(logits, given, shape, few, TEMPERATURES, absorbed=absorbed).argmin(dim=0)
    needed = slice(max(0, int(best.min()) - 1), int(best.max()) + 2)
    grid = torch.full((len(TEMPERATURES), len(rates)), torch.inf, dtype=torch.float64)
    grid[needed] = negative_log_likelihoods(logits, given, shape, rates, TEMPERATURES[needed], absorbed=absorbed)
    return grid


def transition_at(rate: float | Tensor, shape: Tensor) -> Tensor:
    """Return ``T = I + rate * (shape - diag(row sums of shape))``, the transition matrix; rates (n, 1, 1) give n."""
    return torch.eye(len(shape), dtype=torch.float64) + rate * (shape - shape.sum(dim=1).diag())


def with_rate(
    model: NoiseModel, shape: Tensor, rate: float, logits: Tensor, given: Tensor, weights: Tensor | None = None
) -> NoiseModel:
    """Return the noise model at another rate, with the most probable temperature for it."""
    changed = replace(model, rate=rate, transition=transition_at(rate, shape))
    return calibrated(changed, logits, given, weights, (model.absorbed,))


def calibrated(
    model: NoiseModel,
    logits: Tensor,
    given: Tensor,
    weights: Tensor | None = None,
    absorbed: Sequence[float] | None = None,
) -> NoiseModel:
    """Return the model with the most probable temperature and absorbed fraction for these predictions.

    Rate and shape of the noise stay fixed. The prior expects a log temperature around 0, which matters when there are
    few rows.

    Parameters
    ----------
    model
        The noise model.
    logits, given, weights
        Predictions, given labels and, optionally, row weights.
    absorbed
        Candidates for the absorbed fraction; all candidates by default.
    """
    some = some_places(len(given), MAX_ROWS)
    logits, given = logits.cpu()[some], given.cpu()[some]
    weights = None if weights is None else weights.cpu()[some]
    shape = model.transition.clone().fill_diagonal_(0.0)  # at rate 1
    rates = torch.ones(1, dtype=torch.float64)
    logs = TEMPERATURES.log()
    prior = 0.5 * (logs / torch.where(logs < 0, COOLER, WARMER)) ** 2
    penalty = ABSORBING * (1 - direction(shape))
    fractions = absorbed_candidates(len(shape)) if absorbed is None else absorbed
    found = torch.stack(
        [
            negative_log_likelihoods(logits, given, shape, rates, TEMPERATURES, weights, fraction)[:, 0]
            + (prior + penalty * fraction)
            for fraction in fractions
        ]
    )
    fraction, temperature = divmod(int(found.argmin()), len(TEMPERATURES))
    return replace(model, temperature=float(TEMPERATURES[temperature]), absorbed=fractions[fraction])


def posterior(
    logits: Tensor, given: Tensor, model: NoiseModel, trust: float = 1.0, rarity: Tensor | None = None
) -> Tensor:
    """Return log-probabilities of the true class, given prediction and label: ``p * T[:, given] ** trust``.

    Parameters
    ----------
    logits
        Predictions, (rows, classes).
    given
        Class indices (rows,), or distributions (rows, classes), whose likelihood is averaged over their classes.
    model
        The noise model.
    trust
        Exponent of the label's likelihood.
    rarity
        Log-weight of the given class for rows with that label; see :func:`log_rarity`.
    """
    scores = model.true_log_probs(logits) + trust * label_log_likelihoods(model, given, logits)
    if rarity is not None:
        hard = hard_labels(given)
        weights = rarity.to(scores)[hard].masked_fill(has_tie(given), 0.0)
        scores = scores.scatter_add(1, hard[:, None], weights[:, None])
    return scores.log_softmax(dim=1)


def label_log_likelihoods(model: NoiseModel, given: Tensor, like: Tensor) -> Tensor:
    """Return the log-probability of each given label under each true class, in the dtype of ``like``."""
    transition = model.transition.clamp_min(1e-6).to(like)
    return (transition.t()[given] if given.ndim == 1 else given.to(like) @ transition.t()).log()


def log_rarity(given_labels: Tensor, num_classes: int) -> Tensor:
    """Return the log-weight of each class for rows labelled with it: its rarity relative to the mean class, squared.

    A network learns that a rare class is improbable before it learns what the class looks like. Rows with its label are
    therefore judged as if the class were more frequent. Common classes have weight zero.
    """
    counts = hard_labels(given_labels)[~has_tie(given_labels)].cpu().bincount(minlength=num_classes).double()
    return RARITY * (counts.sum() / (counts > 0).sum() / counts.clamp_min(1)).log().clamp_min(0)


def remaining_trust(logits: Tensor, given: Tensor, model: NoiseModel, agreement: float) -> float:
    """Return the fraction of a given label's weight that the prediction for its training row does not yet contain.

    A network that was trained on a row repeats part of its label; using the full label would count that part twice. The
    part ``m`` is estimated on held-out rows: the weight at which their posterior agrees with their labels as often
    (``agreement``) as predictions for training rows agree with theirs. The result is ``1 - m``.
    """
    some = some_places(len(given), MAX_ROWS)
    logits, given = logits.cpu()[some], given.cpu()[some]
    predicted, labels = model.true_log_probs(logits), label_log_likelihoods(model, given, logits)
    for weight in torch.linspace(0.0, 1.0, 21).tolist():
        with_labels = torch.add(predicted, labels, alpha=weight)
        if float((with_labels.argmax(dim=1) == given).double().mean()) >= agreement:
            return 1 - float(weight)
    return 0.0


def log_likelihoods(logits: Tensor, given: Tensor, transition: Tensor | None = None) -> Tensor:
    """Return the log-probability of each given label, at the temperature that maximises their mean.

    With a ``transition``, predictions are for true classes; without one, the network predicts given labels directly.
    """
    found = []
    for temperature in TEMPERATURES.tolist():
        probs = (logits.double() / temperature).softmax(dim=1)
        predicted = probs if transition is None else probs @ transition.to(probs)
        found.append(predicted.gather(1, given[:, None])[:, 0].clamp_min(1e-12).log())
    best: Tensor = max(found, key=lambda by_row: float(by_row.mean()))
    return best


def confidence_ranks(confidence: Tensor, predicted: Tensor) -> Tensor:
    """Return the confidence rank of each row within its predicted class, from near 0 (surest) to near 1."""
    by_confidence = confidence.argsort(descending=True, stable=True)
    order = by_confidence[predicted[by_confidence].argsort(stable=True)]  # class by class, surest first
    classes, counts = predicted[order], predicted.bincount()
    place = torch.arange(len(predicted), device=predicted.device) - (counts.cumsum(0) - counts)[classes]
    rank = torch.empty(len(predicted), dtype=torch.float64, device=predicted.device)
    rank[order] = (place.double() + 0.5) / counts[classes]
    return rank


def disagreement_of_surest(logits: Tensor, given: Tensor) -> float:
    """Return the disagreement with given labels, extrapolated to the most confident predictions.

    A line is fitted to disagreement over confidence rank in the most confident half of each predicted class, and
    evaluated at rank 0. A strong network disagrees at the noise rate over the whole half; a weak one only at its top.
    """
    confidence, predicted = top_classes(logits)
    rank = confidence_ranks(confidence, predicted)
    kept = rank <= max(CONFIDENT_FRACTION, min(1.0, CONFIDENT_ROWS / max(1, len(given))))
    wrong, rank = (predicted != given)[kept].double(), rank[kept]
    centred = rank - rank.mean()
    slope = float((centred * wrong).sum() / (centred**2).sum().clamp_min(1e-9))
    return float(wrong.mean()) - max(0.0, slope) * float(rank.mean())
