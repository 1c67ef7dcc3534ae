"""Judging labels: from the training dynamics of all rows to the probability that each given label is wrong.

Held-out rows were never trained on, so the noise model is fitted to them. Training rows and held-out rows are drawn
from the same data: whatever the posterior says of held-out rows on average it must say of training rows too. This fixes
how much of its label the dynamics of a training row still repeat, and the scale of the issue scores
(:mod:`pencil.labels.matching`).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pencil.data.given.given_labels import hard_labels, has_tie
from pencil.labels.dynamics import Evidence
from pencil.labels.entry_noise import EntryNoise
from pencil.labels.matching import match_held_out, match_quantiles, relative_ranks, summarize_posterior
from pencil.labels.noise_model import (
    NORMAL_95,
    NoiseModel,
    calibrated,
    fit_noise,
    is_chance,
    log_rarity,
    posterior,
    shape_by_top,
    top_classes,
    with_rate,
)
from pencil.labels.rows import row_blocks
from pencil.seeding import some_places

MATCH_ROWS = 2000
"""More training rows than this change nothing."""
TRAIN_WEIGHT = 100.0
"""Training rows count as this many held-out rows where the temperature is fitted."""
ENOUGH_TO_MATCH = 5
"""With fewer held-out rows their averages say nothing: training rows are judged by themselves."""
ABOVE_CHANCE = 0.1
"""Agreement of the mean predictions this far above chance is knowledge: with few noisy rows none is significant."""
NEARLY_ALL, MOST = 0.9, 0.5
"""Fractions of the visits in which another class led, between which the doubtful labels are."""


@dataclass(frozen=True)
class Judgement:
    """What training has found out about the given labels.

    Attributes
    ----------
    posterior
        Returns the posterior of the true class of training rows, (rows, classes), given their numbers. All at once take
        many times the memory of the labels.
    held_out_probs
        The same of the held-out rows.
    issue_scores, held_out_issue_scores
        Probability that the given label of each row is wrong; the order is that of the dynamics.
    noise
        The noise model that both are based on.
    ceiling
        Noise rate that cannot be excluded: the network disagrees with this fraction of held-out labels (95 % limit).
    knows
        Whether held-out labels are predicted better than chance. If not, labels are left as given.
    mismatch
        The least distance between averages over training rows and over held-out rows that any temperature and trust
        reach, from 0 to 1.
    gap
        How far the noise rate that training shows is above what held-out rows allow; see :func:`estimate_noise`.
    lost_classes
        Classes whose rows were left as given, because the corrected labels would not have contained them any more.
    entry_noise
        Of multi-label data: the noise model of entries, of which ``noise`` is a summary.
    """

    posterior: Callable[[Tensor], Tensor]
    held_out_probs: Tensor | None
    issue_scores: Tensor
    held_out_issue_scores: Tensor | None
    noise: NoiseModel
    ceiling: float
    knows: bool
    mismatch: float
    lost_classes: tuple[int, ...] = ()
    gap: float = 0.0
    entry_noise: EntryNoise | None = None

    @property
    def probs(self) -> Tensor:
        """The posterior of all training rows: for few."""
        return self.posterior(torch.arange(len(self.issue_scores)))


TIE_BREAK = 0.002
"""Weight of a row's rank in its issue score: values of sure reference rows are equal, and rows keep their order."""
LEAST = 0.1
"""Of these ranks; above 0, which rows have whose label is known to be right."""


@dataclass(frozen=True)
class Survey:
    """What a judgement needs of all training rows at once: five numbers of each, and whole rows only of a sample.

    Attributes
    ----------
    confidence, predicted
        Probability of the most probable class by the mean log-probabilities, and that class.
    log_given, disagreement, visits
        As in :class:`Evidence`.
    sample
        Mean log-probabilities of the rows that :func:`sample_rows` names.
    """

    confidence: Tensor
    predicted: Tensor
    log_given: Tensor
    disagreement: Tensor
    visits: Tensor
    sample: Tensor


def sample_rows(visits: Tensor, given: Tensor) -> Tensor:
    """Return at most ``MATCH_ROWS`` of the rows that were met and have a given label, drawn at random."""
    met = _usable(visits, given).nonzero()[:, 0]
    return met[some_places(len(met), MATCH_ROWS)]


def survey(train: Evidence, given: Tensor) -> Survey:
    """Return the survey of rows whose dynamics are all here."""
    sample = train.log_probs[sample_rows(train.visits, given)]
    return Survey(*top_classes(train.log_probs), train.log_given, train.disagreement, train.visits, sample)


@dataclass(frozen=True)
class Rule:
    """What rows are judged by: posterior and issue score of a row follow from it and the row's own dynamics.

    Attributes
    ----------
    noise, ceiling, knows, mismatch, gap, lost
        As in :class:`Judgement`.
    matched, trust
        Noise model and weight of the given label for training rows.
    rarity
        Weight of each class by how rare it is, as a logarithm.
    wrong
        Probability that the label of each reference row is wrong, in any order.
    """

    noise: NoiseModel
    ceiling: float
    knows: bool
    mismatch: float
    gap: float
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
        """Return the probability that each given label is wrong; rows are ranked, so all of a split belong together."""
        if not self.knows:
            return _ordered(rows, given, self._unknown_rate)
        return _issue_scores(rows, given, self.noise.rate, self.wrong, self.rarity)

    def keep_classes(self, kept: Tensor, given: Tensor) -> "Rule":
        """Return the rule that leaves rows as given whose class no posterior of a training row would have any more.

        Such a class was not learned. ``kept`` counts the most probable classes of the posteriors of all training rows.
        """
        named = hard_labels(given)[~has_tie(given)].bincount(minlength=len(kept))
        return replace(self, lost=tuple(((named > 0) & (kept == 0)).nonzero()[:, 0].tolist()))

    def judge_held_out(self, rows: Evidence, given: Tensor) -> tuple[Tensor, Tensor]:
        """Return posteriors, in fp32 as labels are, and issue scores of the held-out rows."""
        probs = torch.empty(rows.log_probs.shape)
        for block in row_blocks(*probs.shape):
            probs[block] = self.posterior(rows.subset(block), given[block], held_out=True).float()
        return probs, self.issue_scores(rows, given)

    @property
    def _unknown_rate(self) -> float:
        """Where nothing is known, labels are as sure as the middle between no noise and the ceiling."""
        return min(self.ceiling / 2, 0.49)


def judge(train: Evidence, given: Tensor, held_out: Evidence | None, held_out_given: Tensor | None) -> Judgement:
    """Return the judgement of all rows.

    Parameters
    ----------
    train, given
        Dynamics and given labels of the training rows: class indices or distributions.
    held_out, held_out_given
        Those of the held-out rows, if there are any; their dynamics are from evaluations.
    """
    return judge_rows(train.subset, survey(train, given), given, held_out, held_out_given)


def judge_rows(
    dynamics: Callable[[Tensor], Evidence],
    rows: Survey,
    given: Tensor,
    held_out: Evidence | None,
    held_out_given: Tensor | None,
    places: slice = slice(None),
    add_up: Callable[[Tensor], Tensor] = lambda counts: counts,
) -> Judgement:
    """Return the judgement of rows whose dynamics are computed when they are needed: few are whole at a time.

    Parameters
    ----------
    dynamics
        Returns the dynamics of the training rows that this process has, given their places among them.
    rows, given
        Survey and given labels of all training rows.
    held_out, held_out_given
        As in :func:`judge`.
    places, add_up
        Which training rows this process has, and the sum of counts over all processes. The posterior of the judgement
        is of these rows.
    """
    mine, num_classes = given[places], rows.sample.shape[1]
    if can_match(held_out, held_out_given):
        assert held_out is not None and held_out_given is not None
        rule = fit_rule(rows, given, held_out, held_out_given)
    else:
        rule = fit_rule(rows, given, dynamics(torch.arange(len(mine))), given, match=False)
    if rule.knows:
        kept = torch.zeros(num_classes, dtype=torch.int64)
        for block in row_blocks(len(mine), num_classes):
            top = rule.posterior(dynamics(block), mine[block]).argmax(dim=1)
            kept += top.bincount(minlength=num_classes)
        rule = rule.keep_classes(add_up(kept), given)
    held: tuple[Tensor | None, Tensor | None] = (None, None)
    if held_out is not None and held_out_given is not None:
        held = rule.judge_held_out(held_out, held_out_given)
    return Judgement(
        posterior=lambda chosen: rule.posterior(dynamics(chosen), mine[chosen]),
        held_out_probs=held[0],
        issue_scores=rule.issue_scores(rows, given),
        held_out_issue_scores=held[1],
        noise=rule.noise,
        ceiling=rule.ceiling,
        knows=rule.knows,
        mismatch=rule.mismatch,
        lost_classes=rule.lost,
        gap=rule.gap,
    )


def can_match(held_out: Evidence | None, given: Tensor | None) -> bool:
    """Return whether enough held-out rows have a label to judge all rows by; else training rows judge themselves."""
    return held_out is not None and given is not None and int(_usable(held_out.visits, given).sum()) >= ENOUGH_TO_MATCH


def _usable(visits: Tensor, given: Tensor) -> Tensor:
    """Which rows were met and have a given label."""
    return (visits > 0) & ~has_tie(given)


def fit_rule(rows: Survey, given: Tensor, reference: Evidence, reference_given: Tensor, *, match: bool = True) -> Rule:
    """Return what rows are judged by.

    Parameters
    ----------
    rows, given
        Survey and given labels of all training rows.
    reference, reference_given
        Dynamics and given labels of the held-out rows, or of the training rows where too few are held out.
    match
        The reference rows are held-out rows, with which the averages over training rows are to agree.
    """
    usable, met = _usable(reference.visits, reference_given), _usable(rows.visits, given)
    num_classes = reference.log_probs.shape[1]
    if not (usable.any() and met.any()):
        return _rule_without_labels(num_classes)
    reference = reference if usable.all() else reference.subset(usable)
    reference_given = reference_given if usable.all() else reference_given[usable]
    logits, labels = reference.log_probs, hard_labels(reference_given)
    sample = hard_labels(given)[sample_rows(rows.visits, given)]
    shape = shape_by_top(rows.confidence[met], rows.predicted[met], hard_labels(given)[met], num_classes)
    predicted = logits.argmax(dim=1)
    knows, ceiling = not is_chance(predicted, labels, ABOVE_CHANCE), upper_limit(predicted != labels)
    noise, gap = estimate_noise(rows.disagreement[met], rows.sample, sample, logits, labels, shape)
    named = [hard_labels(one)[~has_tie(one)] for one in (given, reference_given)]
    rarity = log_rarity(torch.cat(named), num_classes)
    if not knows:  # a noise rate of 0 cannot be excluded, and no gap be seen
        return Rule(replace(noise, low=0.0), ceiling, False, 0.0, 0.0, noise, 1.0, rarity, torch.zeros(1).double())
    matched, trust, mismatch = noise, 1.0, 0.0
    if match:
        matched, trust, mismatch = match_held_out(rows.sample, sample, logits, labels, noise)
    wrong = 1 - summarize_posterior(logits, reference_given, noise, 1.0, rarity)[2]
    return Rule(noise, ceiling, knows, mismatch, gap, matched, trust, rarity, wrong)


def _rule_without_labels(num_classes: int) -> Rule:
    """What rows are judged by where none of them has a given label: nothing is known, and any rate possible."""
    noise = NoiseModel(0.0, 0.0, 1.0, 1.0, torch.eye(num_classes, dtype=torch.float64))
    return Rule(noise, 1.0, False, 0.0, 0.0, noise, 1.0, torch.zeros(num_classes).double(), torch.zeros(1).double())


def judge_unlabelled(logits: Tensor, noise: NoiseModel, held_out: tuple[Tensor, Tensor] | None) -> Tensor:
    """Return the probability of each class of rows without a label; NaN where there is no prediction.

    Parameters
    ----------
    logits
        Predictions for these rows.
    noise
        The noise model, used as it is where there are no held-out rows.
    held_out
        Predictions of the same network for held-out rows, and their given labels, which calibrate it.
    """
    if held_out is not None:
        decided = ~has_tie(held_out[1])
        noise = calibrated(noise, held_out[0][decided], hard_labels(held_out[1])[decided])
    return noise.true_log_probs(logits.double()).exp().float()


def estimate_noise(
    disagreement: Tensor,
    sample: Tensor,
    sample_given: Tensor,
    held_out_logits: Tensor,
    held_out_given: Tensor,
    shape: Tensor,
) -> tuple[NoiseModel, float]:
    """Return the noise model of held-out rows at the noise rate that the training dynamics show.

    Likelihood takes noise that the inputs explain for truth. A network that is kept from memorising shows more: labels
    that lost in nearly all visits are wrong, and few are wrong of those that won in most. The rate is the middle of
    these two fractions, as far as the likelihood supports it: a weak network disagrees with right labels too. The
    interval covers both fractions and that of the likelihood.

    The temperature is that of held-out rows and training rows together. Training rows count as ``TRAIN_WEIGHT`` rows at
    most: they have learned from their labels, but few held-out rows alone leave the temperature open.

    The second result is the gap: how far the fraction of labels that lost in nearly all visits is above what the
    likelihood allows. Then inputs explain mistakes, as with human annotators, or classes overlap; none can tell which.
    """
    fitted = fit_noise(held_out_logits, held_out_given, shape)
    least, most = (float((disagreement > limit).double().mean()) for limit in (NEARLY_ALL, MOST))
    rate = min(max((least + most) / 2, fitted.low), fitted.rate)
    logits = torch.cat([held_out_logits, sample])
    weight = min(1.0, TRAIN_WEIGHT / len(sample_given))
    weights = torch.full((len(logits),), weight, dtype=torch.float64)
    weights[: len(held_out_given)] = 1.0
    rate, labels = max(rate, 0.5 / len(held_out_given)), torch.cat([held_out_given, sample_given])
    model = with_rate(fitted, shape, rate, logits, labels, weights)
    wide = replace(model, low=min(fitted.low, least, model.rate), high=max(fitted.high, most, model.rate))
    return wide, max(0.0, least - fitted.high)


def _posterior(rows: Evidence, given: Tensor, noise: NoiseModel, trust: float, rarity: Tensor) -> Tensor:
    """Posterior of every row; that of a row that was never met follows from its label alone."""
    probs = posterior(rows.log_probs.double(), given, noise, trust, rarity).exp()
    return torch.where((rows.visits > 0)[:, None], probs, as_given(given, probs.shape[1], noise.rate))


def as_given(given: Tensor, num_classes: int, rate: float) -> Tensor:
    """Return label distributions that keep the given label, with the probability that a label is right."""
    kept = max(1 - rate, 1.02 / num_classes) if num_classes > 1 else 1.0
    rest = (1 - kept) / max(1, num_classes - 1)
    if given.ndim == 2:
        return given.double() * (kept - rest) + rest
    return torch.full((len(given), num_classes), rest, dtype=torch.float64).scatter_(1, given[:, None], kept)


def _issue_scores(rows: Evidence | Survey, given: Tensor, rate: float, wrong: Tensor, rarity: Tensor) -> Tensor:
    """Rank rows by the mean log-probability of their label, then give them the values of the reference rows.

    A row whose classes tie has no given label that could be wrong: 0.
    """
    met = _usable(rows.visits, given)
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
    """Return issue scores around a rate, higher by a trace where the mean log-probability of the label is lower.

    A few held-out rows that are predicted no better than chance do not show that the order is of no use.
    """
    met = _usable(rows.visits, given)
    scores = torch.full((len(met),), rate, dtype=torch.float64)
    if met.any():
        scores[met] += TIE_BREAK * (1 - LEAST) * (relative_ranks(-rows.log_given[met].double()) - 0.5)
    return scores


def upper_limit(wrong: Tensor) -> float:
    """Return the upper end of the 95 % Wilson interval of a fraction."""
    n, p, z = len(wrong), float(wrong.double().mean()), NORMAL_95
    centre, spread = p + z * z / (2 * n), z * (p * (1 - p) / n + z * z / (4 * n * n)) ** 0.5
    return float(min(1.0, (centre + spread) / (1 + z * z / n)))
