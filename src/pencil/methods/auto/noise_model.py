"""How noisy labels are, estimated from what a network says about rows that it was not trained on.

The model: the true class of a row is drawn from ``p = softmax(z / t)``, where ``z`` are the network's logits and ``t``
a temperature that makes it as sure as it may be; its given label is the true class with probability ``1 - e``, and
another one with probability ``e``, chosen after the true class by the rows of a matrix ``R`` that is zero on its
diagonal. So ``P(given | x) = (1 - e) * p[given] + e * (p R)[given]``, and the transition matrix is
``T = (1 - e) I + e R``. The shape R comes from training rows, the rate e and the temperature from held-out ones.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

TEMPERATURES = torch.logspace(-1.0, 0.8, 19, dtype=torch.float64)
RATES = torch.linspace(0.0, 0.98, 99, dtype=torch.float64)
STRENGTHS = torch.logspace(-1.0, 4.0, 26, dtype=torch.float64)
"""How many rows of evidence "anywhere" may weigh in the shape of the noise."""
SLACK = 0.5
"""So many nats below the best likelihood the largest rate is taken: labels that may be noisy are treated as such."""
INTERVAL = 1.92
"""Half of the 95 % point of a chi-square with one degree of freedom: how far the likelihood falls at its ends."""
SUREST, FEWEST = 0.5, 150
"""The share of the rows, or their number if that is more, from which follows how noisy the very surest are."""
SURE = 2.0
"""Standard errors that a difference has to exceed to count."""
MOST_ROWS = 10_000
"""More held-out rows than this say nothing new."""


@dataclass(frozen=True)
class NoiseModel:
    """A noise rate with a 95 % interval, the temperature that goes with it, and the transition matrix."""

    rate: float
    low: float
    high: float
    temperature: float
    transition: Tensor


def confusion_shape(predicted: Tensor, given: Tensor, num_classes: int) -> Tensor:
    """R: where labels of each predicted class go when they differ from it, drawn towards "anywhere" where few do.

    How far is for the counts themselves to say: labels that go to one other class each leave no doubt even where they
    are few, labels that go everywhere look like that by chance until they are many.
    """
    counts = torch.zeros(num_classes, num_classes, dtype=torch.float64)
    counts.index_put_((predicted.cpu(), given.cpu()), torch.ones(len(given), dtype=torch.float64), accumulate=True)
    counts.fill_diagonal_(0.0)
    anywhere = (1 - torch.eye(num_classes, dtype=torch.float64)) / max(1, num_classes - 1)
    evidence = torch.stack([dirichlet_evidence(counts, anywhere, strength) for strength in STRENGTHS])
    strength = STRENGTHS[evidence.argmax()]
    return (counts + strength * anywhere) / (counts.sum(dim=1, keepdim=True) + strength)


def dirichlet_evidence(counts: Tensor, mean: Tensor, strength: Tensor) -> Tensor:
    """Log-probability of drawing these counts, each row from shares of its own: a Dirichlet around ``mean``."""
    prior = strength * mean
    possible = prior > 0
    gained = torch.lgamma((counts + prior)[possible]) - torch.lgamma(prior[possible])
    return gained.sum() + (torch.lgamma(strength) - torch.lgamma(counts.sum(dim=1) + strength)).sum()


def negative_log_likelihood(logits: Tensor, given: Tensor, shape: Tensor, rates: Tensor, temperature: float) -> Tensor:
    """``-sum log P(given | x)`` of held-out rows, for each of these noise rates."""
    probs = (logits.double() / temperature).softmax(dim=1)
    right = probs.gather(1, given[:, None])
    wrong = (probs @ shape).gather(1, given[:, None])
    return -((1 - rates) * right + rates * wrong + 1e-12).log().sum(dim=0)


def fit_noise(logits: Tensor, given: Tensor, shape: Tensor) -> NoiseModel:
    """The noise model of held-out rows by maximum likelihood, its rate no lower than the surest rows show.

    Where a network is as unsure as the labels are noisy, likelihood alone cannot tell the two apart. The rows that it
    is surest of can: there it is hardly ever wrong, so what disagrees is noise. No rate is taken for less than half a
    row, since so much could be there unseen.
    """
    logits, given = logits[:MOST_ROWS].cpu(), given[:MOST_ROWS].cpu()
    num_classes = len(shape)
    chance = 1 - 1 / num_classes  # from there on a label says nothing
    rates = RATES[chance > RATES]
    found = torch.stack([negative_log_likelihood(logits, given, shape, rates, float(t)) for t in TEMPERATURES])
    profile = found.min(dim=0)
    best = profile.values.min()
    place = int((profile.values <= best + SLACK).nonzero().max())
    place = max(place, int((rates <= max(0.0, _disagreement_where_surest(logits, given))).nonzero().max()))
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


def fit_temperature(logits: Tensor, given: Tensor, model: NoiseModel) -> float:
    """The temperature alone, with the noise as it was found before."""
    logits, given = logits[:MOST_ROWS].cpu(), given[:MOST_ROWS].cpu()
    shape = model.transition - (1 - model.rate) * torch.eye(len(model.transition), dtype=torch.float64)
    rates, shape = torch.tensor([model.rate], dtype=torch.float64), shape / model.rate
    found = [float(negative_log_likelihood(logits, given, shape, rates, float(t))) for t in TEMPERATURES]
    return float(TEMPERATURES[found.index(min(found))])


def posterior(logits: Tensor, given: Tensor, model: NoiseModel, temperature: float, trust: float = 1.0) -> Tensor:
    """Log-probabilities of the true class, given what the network says and the label: ``p * T[:, given] ** trust``."""
    log_transition = model.transition.clamp_min(1e-6).log().to(logits)
    said = (logits / temperature).log_softmax(dim=1)
    return (said + trust * log_transition.t()[given]).log_softmax(dim=1)


def remaining_trust(logits: Tensor, given: Tensor, model: NoiseModel, temperature: float, agreement: float) -> float:
    """How much of a given label's weight a network's answer for a training row does not hold yet.

    What a network has learned of a row's label, its answer repeats; to count the label in full once more would count
    it twice. A share ``m`` of the label's evidence added to held-out answers makes them agree with held-out labels as
    often as the answers for training rows agree with theirs: then ``1 - m`` of it is still to be added.
    """
    logits, given = logits[:MOST_ROWS].cpu(), given[:MOST_ROWS].cpu()
    for share in torch.linspace(0.0, 1.0, 21).tolist():
        with_labels = posterior(logits, given, model, temperature, trust=share)
        if float((with_labels.argmax(dim=1) == given).double().mean()) >= agreement:
            return 1 - float(share)
    return 0.0


def explained(logits: Tensor, given: Tensor, transition: Tensor | None = None) -> Tensor:
    """Log-probability of each label, at the temperature that explains all of them best.

    Without a ``transition`` it is the network itself that has to foresee how labels are mixed up.
    """
    found = []
    for temperature in TEMPERATURES.tolist():
        probs = (logits.double() / temperature).softmax(dim=1)
        seen = probs if transition is None else probs @ transition.to(probs)
        found.append(seen.gather(1, given[:, None])[:, 0].clamp_min(1e-12).log())
    best: Tensor = max(found, key=lambda by_row: float(by_row.mean()))
    return best


def is_chance(right: Tensor, given: Tensor) -> bool:
    """Whether labels are predicted as well as by naming the most frequent class, give or take.

    Very few rows could prove nothing: five points more are enough for them.
    """
    chance = float(given.bincount().max() / len(given))
    error = (chance * (1 - chance) / len(given)) ** 0.5
    return bool(right.double().mean() <= chance + min(SURE * error, 0.05))


def _disagreement_where_surest(logits: Tensor, given: Tensor) -> float:
    """How often a network would disagree with the labels of rows that it could not be surer of.

    Of each class that it predicts the surest half is taken, and a line through disagreement over rank followed to the
    very surest. A strong network is at the noise rate over all of the half; a weak one is on its way there.
    """
    top = logits.double().softmax(dim=1).max(dim=1)
    rank = torch.zeros(len(given), dtype=torch.float64)
    for predicted in top.indices.unique():
        of_class = (top.indices == predicted).nonzero()[:, 0]
        surest_first = of_class[top.values[of_class].argsort(descending=True, stable=True)]
        rank[surest_first] = (torch.arange(len(of_class), dtype=torch.float64) + 0.5) / len(of_class)
    kept = rank <= max(SUREST, min(1.0, FEWEST / max(1, len(given))))
    wrong, rank = (top.indices != given)[kept].double(), rank[kept]
    apart = rank - rank.mean()
    slope = float((apart * wrong).sum() / (apart**2).sum().clamp_min(1e-9))
    return float(wrong.mean()) - max(0.0, slope) * float(rank.mean())
