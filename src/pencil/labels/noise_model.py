"""A model of the label noise, estimated from a network's predictions for rows that it was not trained on.

The true class of a row is drawn from ``p = softmax(z / t)``, where ``z`` are the network's logits and ``t`` a
temperature that calibrates them. The given label is the true class with probability ``1 - e``; with probability ``e``
it is another class, drawn from the true class's row of a matrix ``R`` with a zero diagonal. So
``P(given | x) = (1 - e) * p[given] + e * (p R)[given]``, and the transition matrix is ``T = (1 - e) I + e R``. The
shape R is estimated from training rows, the rate e and the temperature from held-out rows.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pencil.data.given import hard_labels, has_tie

TEMPERATURES = torch.logspace(-1.0, 0.8, 19, dtype=torch.float64)
RATES = torch.linspace(0.0, 0.98, 99, dtype=torch.float64)
STRENGTHS = torch.logspace(-1.0, 4.0, 26, dtype=torch.float64)
"""Candidate weights, in rows, of the uniform prior on the shape of the noise."""
SLACK = 0.5
"""The largest rate within this many nats of the best likelihood is taken: in doubt, labels count as noisy."""
INTERVAL = 1.92
"""Drop of the log-likelihood at the interval ends: half of the 95 % point of a chi-square with one degree."""
CONFIDENT_FRACTION, CONFIDENT_ROWS = 0.5, 150
"""Rows from which the noise of the surest is extrapolated: this fraction, or this many if that is more."""
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
    log_marginals = torch.stack([dirichlet_log_marginal(counts, uniform, strength) for strength in STRENGTHS])
    strength = STRENGTHS[log_marginals.argmax()]
    return (counts + strength * uniform) / (counts.sum(dim=1, keepdim=True) + strength)


def dirichlet_log_marginal(counts: Tensor, mean: Tensor, strength: Tensor) -> Tensor:
    """Return the log-probability of the counts, each row drawn from its own Dirichlet sample around ``mean``."""
    prior = strength * mean
    possible = prior > 0
    gained = torch.lgamma((counts + prior)[possible]) - torch.lgamma(prior[possible])
    return gained.sum() + (torch.lgamma(strength) - torch.lgamma(counts.sum(dim=1) + strength)).sum()


def negative_log_likelihood(logits: Tensor, given: Tensor, shape: Tensor, rates: Tensor, temperature: float) -> Tensor:
    """``-sum log P(given | x)`` of held-out rows, for each of the noise rates."""
    probs = (logits.double() / temperature).softmax(dim=1)
    right = probs.gather(1, given[:, None])
    wrong = (probs @ shape).gather(1, given[:, None])
    return -((1 - rates) * right + rates * wrong + 1e-12).log().sum(dim=0)


def fit_noise(logits: Tensor, given: Tensor, shape: Tensor) -> NoiseModel:
    """Return the noise model of held-out rows by maximum likelihood; its rate is at least that of the surest rows.

    Likelihood alone cannot separate an unsure network from noisy labels. The rows that the network is surest of can:
    it is hardly ever wrong there, so disagreement is noise. The rate is at least half a row, which could stay unseen.
    """
    logits, given = logits[:MAX_ROWS].cpu(), given[:MAX_ROWS].cpu()
    num_classes = len(shape)
    chance = 1 - 1 / num_classes  # at this rate a label carries no information
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
        transition=(1 - rate) * torch.eye(num_classes, dtype=torch.float64) + rate * shape,
    )


def with_rate(model: NoiseModel, shape: Tensor, rate: float, logits: Tensor, given: Tensor) -> NoiseModel:
    """Return the noise model at another rate, with the temperature of maximum likelihood for it."""
    transition = (1 - rate) * torch.eye(len(shape), dtype=torch.float64) + rate * shape
    changed = replace(model, rate=rate, transition=transition)
    return replace(changed, temperature=fit_temperature(logits, given, changed))


def fit_temperature(logits: Tensor, given: Tensor, model: NoiseModel) -> float:
    """Return the temperature of maximum likelihood, with the rate and shape of the noise fixed."""
    found = _losses_of_temperatures(logits, given, model)
    return float(TEMPERATURES[found.index(min(found))])


def cautious_temperature(logits: Tensor, given: Tensor, model: NoiseModel) -> float:
    """Return the highest temperature within ``SLACK`` nats of maximum likelihood: few rows do not make it sure."""
    found = torch.tensor(_losses_of_temperatures(logits, given, model))
    return float(TEMPERATURES[int((found <= found.min() + SLACK).nonzero().max())])


def _losses_of_temperatures(logits: Tensor, given: Tensor, model: NoiseModel) -> list[float]:
    """Return the negative log-likelihood of the given labels for each of ``TEMPERATURES``."""
    logits, given = logits[:MAX_ROWS].cpu(), given[:MAX_ROWS].cpu()
    shape = model.transition - (1 - model.rate) * torch.eye(len(model.transition), dtype=torch.float64)
    rates, shape = torch.tensor([model.rate], dtype=torch.float64), shape / model.rate
    return [float(negative_log_likelihood(logits, given, shape, rates, float(t))) for t in TEMPERATURES]


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


def _disagreement_of_surest(logits: Tensor, given: Tensor) -> float:
    """Return the disagreement with given labels, extrapolated to the most confident predictions.

    For the most confident half of each predicted class a line is fitted to disagreement over confidence rank, and read
    off at rank 0. A strong network disagrees at the noise rate over the whole half; a weak one only at its top.
    """
    top = logits.double().softmax(dim=1).max(dim=1)
    rank = torch.zeros(len(given), dtype=torch.float64)
    for predicted in top.indices.unique():
        of_class = (top.indices == predicted).nonzero()[:, 0]
        by_confidence = of_class[top.values[of_class].argsort(descending=True, stable=True)]
        rank[by_confidence] = (torch.arange(len(of_class), dtype=torch.float64) + 0.5) / len(of_class)
    kept = rank <= max(CONFIDENT_FRACTION, min(1.0, CONFIDENT_ROWS / max(1, len(given))))
    wrong, rank = (top.indices != given)[kept].double(), rank[kept]
    centred = rank - rank.mean()
    slope = float((centred * wrong).sum() / (centred**2).sum().clamp_min(1e-9))
    return float(wrong.mean()) - max(0.0, slope) * float(rank.mean())
