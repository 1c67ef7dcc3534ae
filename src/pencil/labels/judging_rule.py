"""The rule that judges given labels: fitted to held-out rows, it turns a row's dynamics into posterior and issue score.

The noise model is fitted to held-out rows, because the network never trained on them. Training rows and held-out rows
come from the same data, so averages of the posterior must agree between both. This determines how much of its label the
dynamics of a training row still repeat, and the scale of the issue scores (:mod:`pencil.labels.matching`).
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pencil.data.given.given_labels import hard_labels, has_tie
from pencil.labels.chance import is_chance, learned_classes, wilson_upper
from pencil.labels.dynamics import Evidence
from pencil.labels.matching import match_held_out, match_quantiles, relative_ranks, summarize_posterior
from pencil.labels.noise_model import (
    NoiseModel,
    fit_noise,
    log_rarity,
    posterior,
    shape_by_top,
    top_classes,
    with_rate,
)
from pencil.labels.rows import row_blocks
from pencil.labels.suspects import suspect_fraction
from pencil.seeding import some_places

MATCH_ROWS = 2000
"""Training rows are subsampled to this number; more do not change the result."""
TRAIN_WEIGHT = 100.0
"""Weight of the training rows, in held-out rows, when the temperature is fitted."""
ENOUGH_TO_MATCH = 5
"""With fewer held-out rows their averages are too uncertain, and training rows serve as their own reference."""
ABOVE_CHANCE = 0.1
"""Agreement this far above chance counts as knowledge, because with few noisy rows nothing is significant."""
NEARLY_ALL, MOST = 0.9, 0.5
"""Labels are doubtful if another class led in a fraction of visits between these two."""
CONSISTENT = 0.5
"""Labels lose consistently if more than this fraction of those that lost in most visits lost in nearly all. On 28
tuning columns, human labels with 41 % wrong are then 75 % right instead of 63 %, instance-dependent noise of 41 % on
Fashion-MNIST 85 % instead of 76 %, and no column loses; without the condition clean Fashion-MNIST loses a point. Such
labels also show noise that a few held-out rows cannot: digits with 2 % wrong labels are 99.7 and 99.3 % right instead
of 98.4 and 97.8 % (seeds 11, 13). The fraction is 0.9 there, and at most 0.2 with clean labels."""
NEGLIGIBLE = 0.025
"""A lower noise rate counts as zero unless the likelihood excludes zero. Three of seven clean tuning runs then keep
labels that they changed before (up to 0.4 %), and no run with wrong labels loses."""
TIE_BREAK = 0.002
"""Weight of a row's rank in its issue score: it keeps the order of rows whose reference values are equal."""
LEAST = 0.1
"""Lower limit of these ranks, above 0; 0 is reserved for rows whose label is known to be right."""


@dataclass(frozen=True)
class Survey:
    """What a judgement needs from all training rows at once: five numbers per row, and whole rows of a sample only.

    Attributes
    ----------
    confidence, predicted
        Probability of the most probable class according to the mean log-probabilities, and that class.
    log_given, disagreement, visits
        As in :class:`Evidence`.
    sample
        Mean log-probabilities of the rows that :func:`sample_rows` chose.
    """

    confidence: Tensor
    predicted: Tensor
    log_given: Tensor
    disagreement: Tensor
    visits: Tensor
    sample: Tensor


def sample_rows(visits: Tensor, given: Tensor) -> Tensor:
    """Return at most ``MATCH_ROWS`` of the visited rows with a given label, drawn at random."""
    met = usable_rows(visits, given).nonzero()[:, 0]
    return met[some_places(len(met), MATCH_ROWS)]


def survey(train: Evidence, given: Tensor) -> Survey:
    """Return the survey of rows whose dynamics are all on this process."""
    sample = train.log_probs[sample_rows(train.visits, given)]
    return Survey(*top_classes(train.log_probs), train.log_given, train.disagreement, train.visits, sample)


@dataclass(frozen=True)
class Rule:
    """The rule that judges rows: it turns a row's own dynamics into a posterior and an issue score.

    Attributes
    ----------
    noise, ceiling, knows, lost
        As in :class:`Judgement`.
    matched, trust
        Noise model of the training rows, and the weight of their given labels.
    rarity
        Log-weight of each class, by its rarity.
    wrong
        Probability that the label of each reference row is wrong, in any order.
    """

    noise: NoiseModel
    ceiling: float
    knows: bool
    matched: NoiseModel
    trust: float
    rarity: Tensor
    wrong: Tensor
    lost: tuple[int, ...] = ()

    def posterior(self, rows: Evidence, given: Tensor, *, held_out: bool = False) -> Tensor:
        """Return the posterior of the true class of some rows, (rows, classes)."""
        if not self.knows:
            return as_given(given, len(self.rarity), self._unknown_rate)
        noise, trust = (self.noise, 1.0) if held_out else (self.matched, self.trust)
        probs = _posterior(rows, given, noise, trust, self.rarity)
        return _give_back(probs, given, self.lost, self.noise.rate)

    def issue_scores(self, rows: Evidence | Survey, given: Tensor) -> Tensor:
        """Return the probability that each given label is wrong; rows are ranked: pass all rows of a split together."""
        if not self.knows:
            return _ordered(rows, given, self._unknown_rate)
        return _issue_scores(rows, given, self.noise.rate, self.wrong, self.rarity)

    def keep_classes(self, kept: Tensor, given: Tensor) -> "Rule":
        """Return a rule that leaves rows as given if their class is the most probable class of no training row.

        Such a class was not learned. ``kept`` counts the most probable classes of all training rows.
        """
        named = hard_labels(given)[~has_tie(given)].bincount(minlength=len(kept))
        return replace(self, lost=tuple(((named > 0) & (kept == 0)).nonzero()[:, 0].tolist()))

    def judge_held_out(self, rows: Evidence, given: Tensor) -> tuple[Tensor, Tensor]:
        """Return posteriors (in fp32, like labels) and issue scores of the held-out rows."""
        probs = torch.empty(rows.log_probs.shape)
        for block in row_blocks(*probs.shape):
            probs[block] = self.posterior(rows.subset(block), given[block], held_out=True).float()
        return probs, self.issue_scores(rows, given)

    @property
    def _unknown_rate(self) -> float:
        """If nothing was learned, label confidence corresponds to a noise rate halfway between 0 and the ceiling."""
        return min(self.ceiling / 2, 0.49)


def lost_fraction(disagreement: Tensor, limit: float = MOST) -> float:
    """Return the fraction of labels that lost in more than this fraction of their visits."""
    return float((disagreement > limit).double().mean())


def can_match(held_out: Evidence | None, given: Tensor | None) -> bool:
    """Return whether enough held-out rows have a label to serve as reference; otherwise training rows do."""
    return (
        held_out is not None and given is not None and int(usable_rows(held_out.visits, given).sum()) >= ENOUGH_TO_MATCH
    )


def usable_rows(visits: Tensor, given: Tensor) -> Tensor:
    """Mask of the rows that were visited and have a given label."""
    return (visits > 0) & ~has_tie(given)


def fit_rule(
    rows: Survey,
    given: Tensor,
    reference: Evidence,
    reference_given: Tensor,
    confident: float = 0.0,
    *,
    match: bool = True,
) -> Rule:
    """Return the rule that judges rows.

    Parameters
    ----------
    rows, given
        Survey and given labels of all training rows.
    reference, reference_given
        Dynamics and given labels of the held-out rows, or of the training rows if too few rows are held out.
    confident
        The fraction of training labels that confident counts call wrong (:func:`confident_rate`).
    match
        Whether the reference rows are held-out rows; averages over training rows are then matched to them.
    """
    usable, met = usable_rows(reference.visits, reference_given), usable_rows(rows.visits, given)
    num_classes = reference.log_probs.shape[1]
    if not (usable.any() and met.any()):
        return _rule_without_labels(num_classes)
    reference = reference if usable.all() else reference.subset(usable)
    reference_given = reference_given if usable.all() else reference_given[usable]
    logits, labels = reference.log_probs, hard_labels(reference_given)
    sample = hard_labels(given)[sample_rows(rows.visits, given)]
    shape = shape_by_top(rows.confidence[met], rows.predicted[met], hard_labels(given)[met], num_classes)
    predicted = logits.argmax(dim=1)
    knows, ceiling = not is_chance(logits, labels, ABOVE_CHANCE), upper_limit(predicted != labels)
    noise = estimate_noise(rows.disagreement[met], rows.sample, sample, logits, labels, shape, confident)
    named = [hard_labels(one)[~has_tie(one)] for one in (given, reference_given)]
    rarity = _rarity(torch.cat(named), logits, labels)
    if not knows:  # a noise rate of 0 is still possible
        return Rule(replace(noise, low=0.0), ceiling, False, noise, 1.0, rarity, torch.zeros(1).double())
    matched, trust = noise, 1.0
    if match:
        matched, trust = match_held_out(rows.sample, sample, logits, labels, noise)
    wrong = 1 - summarize_posterior(logits, reference_given, noise, 1.0, rarity)[2]
    return Rule(noise, ceiling, knows, matched, trust, rarity, wrong)


def _rarity(given: Tensor, logits: Tensor, labels: Tensor) -> Tensor:
    """Return the log-weight of each class by its rarity: half of :func:`log_rarity` for a class that was learned.

    Such a class is judged as if it were as frequent as the mean class. A class that was not learned needs more
    protection: the network still takes it for improbable everywhere.
    """
    rarity = log_rarity(given, logits.shape[1])
    if not rarity.any():
        return rarity
    named = torch.nn.functional.one_hot(labels, logits.shape[1]).float()
    return torch.where(learned_classes(logits.log_softmax(dim=1).cpu(), named), 0.5, 1.0) * rarity


def _rule_without_labels(num_classes: int) -> Rule:
    """The rule for data without any given label: nothing is known, and every noise rate is possible."""
    noise = NoiseModel(0.0, 0.0, 1.0, 1.0, torch.eye(num_classes, dtype=torch.float64))
    return Rule(noise, 1.0, False, noise, 1.0, torch.zeros(num_classes).double(), torch.zeros(1).double())


def estimate_noise(
    disagreement: Tensor,
    sample: Tensor,
    sample_given: Tensor,
    held_out_logits: Tensor,
    held_out_given: Tensor,
    shape: Tensor,
    confident: float = 0.0,
) -> NoiseModel:
    """Return the noise model of held-out rows at the noise rate that the training dynamics show.

    Maximum likelihood treats noise that the inputs explain as truth. A network that is kept from memorising shows more:
    labels that lost in nearly all visits are wrong, and few of the labels that won in most visits are wrong. The rate
    is the midpoint of these two fractions, limited by what the likelihood supports, because a weak network disagrees
    with right labels too. Such a network loses now and then; wrong labels lose again and again. If most of the labels
    that lost in most visits lost in nearly all, the rate is at least the fraction of suspects
    (:func:`suspect_fraction`), whatever the likelihood supports. If the likelihood does not exclude a rate of 0, the
    rate moves halfway to the fraction of labels that lost in nearly all visits, and below ``NEGLIGIBLE`` only what
    consistent losses show remains of it, because corrections of clean labels can only do harm.

    The interval covers both fractions, the interval of the likelihood and, as its upper end, the disagreement with
    held-out labels: nothing in noisy labels excludes that the network is right wherever it disagrees. The rate itself
    never exceeds that disagreement (its 95 % upper limit, because a few held-out rows may all be right).

    The temperature is fitted to held-out rows and training rows together. Training rows count as at most
    ``TRAIN_WEIGHT`` rows: the network has learned from their labels, but a few held-out rows do not determine the
    temperature.
    """
    fitted = fit_noise(held_out_logits, held_out_given, shape)
    least, most = (lost_fraction(disagreement, limit) for limit in (NEARLY_ALL, MOST))
    rate = min(max((least + most) / 2, fitted.low), fitted.rate)
    consistent = suspect_fraction(confident, most) if least > CONSISTENT * most else 0.0
    rate = max(rate, consistent)
    if fitted.low <= 0:
        rate = min(rate, (least + rate) / 2)
        rate = consistent if rate < NEGLIGIBLE else rate
    disagreed = held_out_logits.argmax(dim=1) != held_out_given
    rate, highest = min(rate, upper_limit(disagreed)), float(disagreed.double().mean())
    logits = torch.cat([held_out_logits, sample])
    weight = min(1.0, TRAIN_WEIGHT / len(sample_given))
    weights = torch.full((len(logits),), weight, dtype=torch.float64)
    weights[: len(held_out_given)] = 1.0
    rate, labels = max(rate, 0.5 / len(held_out_given)), torch.cat([held_out_given, sample_given])
    model = with_rate(fitted, shape, rate, logits, labels, weights)
    high = max(fitted.high, most, highest, model.rate)
    return replace(model, low=min(fitted.low, least, model.rate), high=high)


def _posterior(rows: Evidence, given: Tensor, noise: NoiseModel, trust: float, rarity: Tensor) -> Tensor:
    """Posterior of every row; for a row without visits it depends on its label alone."""
    probs = posterior(rows.log_probs.double(), given, noise, trust, rarity).exp()
    return torch.where((rows.visits > 0)[:, None], probs, as_given(given, probs.shape[1], noise.rate))


def as_given(given: Tensor, num_classes: int, rate: float) -> Tensor:
    """Return label distributions that keep the given label, given the probability that a label is right."""
    kept = max(1 - rate, 1.02 / num_classes) if num_classes > 1 else 1.0
    rest = (1 - kept) / max(1, num_classes - 1)
    if given.ndim == 2:
        return given.double() * (kept - rest) + rest
    return torch.full((len(given), num_classes), rest, dtype=torch.float64).scatter_(1, given[:, None], kept)


def _issue_scores(rows: Evidence | Survey, given: Tensor, rate: float, wrong: Tensor, rarity: Tensor) -> Tensor:
    """Rank rows by the mean log-probability of their label, then assign the values of the reference rows.

    A row with tied classes has no given label that could be wrong: 0.
    """
    met = usable_rows(rows.visits, given)
    scores = torch.full((len(met),), rate, dtype=torch.float64)
    if met.any():
        boosted = rows.log_given[met].double() + rarity[hard_labels(given)[met]]
        evenly = LEAST + (1 - LEAST) * relative_ranks(-boosted)
        scores[met] = torch.lerp(match_quantiles(-boosted, wrong), evenly, TIE_BREAK)
    return scores.clamp(0, 1).masked_fill(has_tie(given), 0.0)


def _give_back(probs: Tensor, given: Tensor, classes: tuple[int, ...], rate: float) -> Tensor:
    if not classes:
        return probs
    rows = torch.isin(hard_labels(given), torch.tensor(classes)) & ~has_tie(given)
    return torch.where(rows[:, None], as_given(given, probs.shape[1], min(rate, 0.49)), probs)


def _ordered(rows: Evidence | Survey, given: Tensor, rate: float) -> Tensor:
    """Return issue scores around a rate, slightly higher where the mean log-probability of the label is lower.

    A few held-out rows that are predicted no better than chance do not prove that the ranking is useless.
    """
    met = usable_rows(rows.visits, given)
    scores = torch.full((len(met),), rate, dtype=torch.float64)
    if met.any():
        scores[met] += TIE_BREAK * (1 - LEAST) * (relative_ranks(-rows.log_given[met].double()) - 0.5)
    return scores


def upper_limit(wrong: Tensor) -> float:
    """Return the upper end of the 95 % Wilson interval of a fraction."""
    return min(1.0, wilson_upper(float(wrong.double().mean()), len(wrong)))
