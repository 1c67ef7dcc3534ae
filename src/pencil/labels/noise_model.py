"""A model of the label noise, estimated from a network's predictions for rows that it was not trained on.

The true class of a row is drawn from ``p = softmax(z / t)``, where ``z`` are the network's logits and ``t`` a
temperature that calibrates them. The given label is another class with probability ``e * r[k]`` where the true class
is k (some classes are mistaken more often), drawn from row k of a matrix ``R`` with a zero diagonal. So with the shape
``S = diag(r) R`` the transition matrix is ``T = I + e (S - diag(r))``, and ``P(given | x) = (p T)[given]``. The shape
is estimated from training rows, the rate e and the temperature from held-out rows.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pencil.data.given import hard_labels, has_tie

TEMPERATURES = torch.logspace(-1.0, 0.8, 19, dtype=torch.float64)
RATES = torch.linspace(0.0, 0.98, 99, dtype=torch.float64)
COOLER, WARMER = 1.0, 0.2
"""Standard deviations of the prior on the logarithm of a temperature, below and above 0.

Networks that train on corrected labels, and means over all epochs, are rather too unsure than too sure."""
STRENGTHS = torch.logspace(-1.0, 4.0, 26, dtype=torch.float64)
"""Candidate weights, in rows, of the uniform prior on the shape of the noise."""
SLACK = 0.5
"""The largest rate within this many nats of the best likelihood is taken: in doubt, labels count as noisy."""
INTERVAL = 1.92
"""Drop of the log-likelihood at the interval ends: half of the 95 % point of a chi-square with one degree."""
CONFIDENT_FRACTION, CONFIDENT_ROWS = 0.5, 150
"""Rows from which the noise of the surest is extrapolated: this fraction, or this many if that is more."""
SUREST = 0.5
"""Fraction of the rows of each predicted class from which the class's own noise is counted."""
SIGNIFICANT = 2.0
"""Standard errors that a difference has to exceed to count."""
RARITY = 2.0
"""Exponent of the rarity of a class: with 1, corrections still lost right labels of classes a tenth as frequent."""
MAX_ROWS = 10_000
"""More held-out rows than this change nothing."""


@dataclass(frozen=True)
class NoiseModel:
    """A noise rate with its 95 % interval, the temperature that calibrates the network, and the transition matrix.

    The interval is that of the model: noise that the inputs explain passes for truth, so the rate may be far higher.
    """

    rate: float
    low: float
    high: float
    temperature: float
    transition: Tensor


def confusion_shape(predicted: Tensor, given: Tensor, num_classes: int) -> Tensor:
    """Return R: which labels the rows of each predicted class have where they differ from it.

    Counts are smoothed towards uniform by a Dirichlet prior, whose weight maximises their marginal likelihood
    (empirical Bayes): labels that all go to one class need few rows to show it, labels that go everywhere need many.
    """
    counts = torch.zeros(num_classes, num_classes, dtype=torch.float64)
    counts.index_put_((predicted.cpu(), given.cpu()), torch.ones(len(given), dtype=torch.float64), accumulate=True)
    counts.fill_diagonal_(0.0)
    uniform = (1 - torch.eye(num_classes, dtype=torch.float64)) / max(1, num_classes - 1)
    strength = best_strength(counts, uniform)
    return (counts + strength * uniform) / (counts.sum(dim=1, keepdim=True) + strength)


def noise_shape(logits: Tensor, given: Tensor) -> Tensor:
    """Return the shape of the noise by the predictions for many rows: R, each row times its class's relative rate."""
    shape = confusion_shape(logits.argmax(dim=1), given, logits.shape[1])
    return relative_rates(logits, given)[:, None] * shape


def relative_rates(logits: Tensor, given: Tensor) -> Tensor:
    """Return how much noisier than the mean row the rows of each class are; 1 where nothing shows a difference.

    Counted are the rows of each predicted class of which the network is surest: there disagreement is noise. Fractions
    are shrunk towards their mean by a Beta prior, whose weight maximises the marginal likelihood of the counts.
    """
    num_classes = logits.shape[1]
    top = logits.double().softmax(dim=1).max(dim=1)
    kept = confidence_ranks(top.values, top.indices) <= SUREST
    predicted, wrong = top.indices[kept].cpu(), (top.indices != given)[kept].cpu()
    counts = torch.stack(
        [predicted[~wrong].bincount(minlength=num_classes), predicted[wrong].bincount(minlength=num_classes)], dim=1
    ).double()
    mean = (counts.sum(dim=0) + 0.5) / (counts.sum() + 1)
    strength = best_strength(counts, mean.expand_as(counts))
    rates = (counts[:, 1] + strength * mean[1]) / (counts.sum(dim=1) + strength)
    rows = top.indices.bincount(minlength=num_classes).cpu().double()
    return rates * rows.sum() / (rates * rows).sum()


def best_strength(counts: Tensor, mean: Tensor) -> Tensor:
    """Return the weight of the prior around ``mean`` that makes the counts most probable."""
    return STRENGTHS[torch.stack([dirichlet_log_marginal(counts, mean, one) for one in STRENGTHS]).argmax()]


def dirichlet_log_marginal(counts: Tensor, mean: Tensor, strength: Tensor) -> Tensor:
    """Return the log-probability of the counts, each row drawn from its own Dirichlet sample around ``mean``."""
    prior = strength * mean
    possible = prior > 0
    gained = torch.lgamma((counts + prior)[possible]) - torch.lgamma(prior[possible])
    return gained.sum() + (torch.lgamma(strength) - torch.lgamma(counts.sum(dim=1) + strength)).sum()


def negative_log_likelihood(
    logits: Tensor, given: Tensor, shape: Tensor, rates: Tensor, temperature: float, weights: Tensor | None = None
) -> Tensor:
    """``-sum log P(given | x)`` of rows, which may be weighted, for each of the noise rates."""
    probs = (logits.double() / temperature).softmax(dim=1)
    right = probs.gather(1, given[:, None])
    lost = right * shape.sum(dim=1)[given][:, None]
    wrong = (probs @ shape).gather(1, given[:, None])
    by_row = (right + rates * (wrong - lost)).clamp_min(1e-12).log()
    return -(by_row if weights is None else weights[:, None] * by_row).sum(dim=0)


def fit_noise(logits: Tensor, given: Tensor, shape: Tensor) -> NoiseModel:
    """Return the noise model of held-out rows by maximum likelihood; its rate is at least that of the surest rows.

    Likelihood alone cannot separate an unsure network from noisy labels. The rows that the network is surest of can:
    it is hardly ever wrong there, so disagreement is noise. The rate is at least half a row, which could stay unseen.
    """
    logits, given = logits[:MAX_ROWS].cpu(), given[:MAX_ROWS].cpu()
    num_classes = len(shape)
    chance = (1 - 1 / num_classes) / float(shape.sum(dim=1).max().clamp_min(1.0))  # a label would carry no information
    rates = RATES[chance > RATES]
    found = torch.stack([negative_log_likelihood(logits, given, shape, rates, float(t)) for t in TEMPERATURES])
    profile = found.min(dim=0)
    best = profile.values.min()
    place = int((profile.values <= best + SLACK).nonzero().max())
    place = max(place, int((rates <= max(0.0, _disagreement_of_surest(logits, given))).nonzero().max()))
    inside = (profile.values <= best + INTERVAL).nonzero()
    low, high = float(rates[inside.min()]), float(rates[inside.max()])
    rate = max(float(rates[place]), 0.5 / max(1, len(given)))
    return NoiseModel(
        rate=rate,
        low=min(low, rate),
        high=max(high, rate),
        temperature=float(TEMPERATURES[profile.indices[place]]),
        transition=transition_at(rate, shape),
    )


def transition_at(rate: float, shape: Tensor) -> Tensor:
    """Return the transition matrix ``T = I + rate * (shape - diag(row sums of shape))``."""
    return torch.eye(len(shape), dtype=torch.float64) + rate * (shape - shape.sum(dim=1).diag())


def with_rate(
    model: NoiseModel, shape: Tensor, rate: float, logits: Tensor, given: Tensor, weights: Tensor | None = None
) -> NoiseModel:
    """Return the noise model at another rate, with the most probable temperature for it."""
    changed = replace(model, rate=rate, transition=transition_at(rate, shape))
    return replace(changed, temperature=fit_temperature(logits, given, changed, weights))


def fit_temperature(logits: Tensor, given: Tensor, model: NoiseModel, weights: Tensor | None = None) -> float:
    """Return the most probable temperature, with the rate and shape of the noise fixed.

    Likelihood times a prior: the logarithm is expected around 0, which decides where rows are few.
    """
    logits, given = logits[:MAX_ROWS].cpu(), given[:MAX_ROWS].cpu()
    weights = None if weights is None else weights[:MAX_ROWS].cpu()
    shape = model.transition.clone().fill_diagonal_(0.0)  # at rate 1
    rates = torch.ones(1, dtype=torch.float64)
    logs = TEMPERATURES.log()
    prior = 0.5 * (logs / torch.where(logs < 0, COOLER, WARMER)) ** 2
    found = [negative_log_likelihood(logits, given, shape, rates, float(t), weights)[0] for t in TEMPERATURES]
    return float(TEMPERATURES[(torch.stack(found) + prior).argmin()])


def posterior(
    logits: Tensor, given: Tensor, model: NoiseModel, trust: float = 1.0, rarity: Tensor | None = None
) -> Tensor:
    """Return log-probabilities of the true class, given prediction and label: ``p * T[:, given] ** trust``.

    Parameters
    ----------
    logits
        Predictions, (rows, classes).
    given
        Class indices (rows,), or distributions (rows, classes), whose likelihood is the mean over their classes.
    model
        The noise model.
    trust
        Exponent of the label's likelihood.
    rarity
        Log-weight of the given class for rows that are labelled with it; see :func:`log_rarity`.
    """
    transition = model.transition.clamp_min(1e-6).to(logits)
    log_p = (logits / model.temperature).log_softmax(dim=1)
    likelihood = transition.t()[given] if given.ndim == 1 else given.to(logits) @ transition.t()
    scores = log_p + trust * likelihood.log()
    if rarity is not None:
        hard = hard_labels(given)
        weights = rarity.to(scores)[hard].masked_fill(has_tie(given), 0.0)
        scores = scores.scatter_add(1, hard[:, None], weights[:, None])
    return scores.log_softmax(dim=1)


def log_rarity(given: Tensor, num_classes: int) -> Tensor:
    """Return the log-weight of each class for rows with its name: how much rarer it is than the mean class, squared.

    A network learns that a rare class is improbable before it learns what the class looks like. Rows with its name are
    therefore judged as if the class were more frequent. Common classes have zero.
    """
    counts = hard_labels(given).cpu().bincount(minlength=num_classes).double()
    return RARITY * (counts.sum() / (counts > 0).sum() / counts.clamp_min(1)).log().clamp_min(0)


def remaining_trust(logits: Tensor, given: Tensor, model: NoiseModel, agreement: float) -> float:
    """Return the fraction of a given label's weight that the prediction for its training row does not contain yet.

    A network that was trained on a row repeats a part of its label; counting the label in full would count that part
    twice. The part ``m`` is found on held-out rows: the weight at which their posterior agrees with their labels as
    often (``agreement``) as predictions for training rows agree with theirs. ``1 - m`` is returned.
    """
    logits, given = logits[:MAX_ROWS].cpu(), given[:MAX_ROWS].cpu()
    for weight in torch.linspace(0.0, 1.0, 21).tolist():
        with_labels = posterior(logits, given, model, trust=weight)
        if float((with_labels.argmax(dim=1) == given).double().mean()) >= agreement:
            return 1 - float(weight)
    return 0.0


def log_likelihoods(logits: Tensor, given: Tensor, transition: Tensor | None = None) -> Tensor:
    """Return the log-probability of each given label, at the temperature that maximises their mean.

    With a ``transition`` the predictions are of true classes; without one the network predicts given labels itself.
    """
    found = []
    for temperature in TEMPERATURES.tolist():
        probs = (logits.double() / temperature).softmax(dim=1)
        predicted = probs if transition is None else probs @ transition.to(probs)
        found.append(predicted.gather(1, given[:, None])[:, 0].clamp_min(1e-12).log())
    best: Tensor = max(found, key=lambda by_row: float(by_row.mean()))
    return best


def is_chance(right: Tensor, given: Tensor) -> bool:
    """Return whether accuracy is not significantly above that of always predicting the most frequent class.

    With very few rows nothing would be significant: five points above chance are enough there.
    """
    chance = float(given.bincount().max() / len(given))
    error = (chance * (1 - chance) / len(given)) ** 0.5
    return bool(right.double().mean() <= chance + min(SIGNIFICANT * error, 0.05))


def confidence_ranks(confidence: Tensor, predicted: Tensor) -> Tensor:
    """Return the rank of each row among those of its predicted class, from near 0 for the surest to near 1."""
    rank = torch.zeros(len(predicted), dtype=torch.float64, device=predicted.device)
    for one in predicted.unique():
        of_class = (predicted == one).nonzero()[:, 0]
        by_confidence = of_class[confidence[of_class].argsort(descending=True, stable=True)]
        rank[by_confidence] = (torch.arange(len(of_class), dtype=torch.float64, device=rank.device) + 0.5) / len(
            of_class
        )
    return rank


def _disagreement_of_surest(logits: Tensor, given: Tensor) -> float:
    """Return the disagreement with given labels, extrapolated to the most confident predictions.

    For the most confident half of each predicted class a line is fitted to disagreement over confidence rank, and read
    off at rank 0. A strong network disagrees at the noise rate over the whole half; a weak one only at its top.
    """
    top = logits.double().softmax(dim=1).max(dim=1)
    rank = confidence_ranks(top.values, top.indices)
    kept = rank <= max(CONFIDENT_FRACTION, min(1.0, CONFIDENT_ROWS / max(1, len(given))))
    wrong, rank = (top.indices != given)[kept].double(), rank[kept]
    centred = rank - rank.mean()
    slope = float((centred * wrong).sum() / (centred**2).sum().clamp_min(1e-9))
    return float(wrong.mean()) - max(0.0, slope) * float(rank.mean())
