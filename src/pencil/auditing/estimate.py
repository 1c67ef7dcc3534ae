"""Estimates a fraction of all rows from a stratified sample, with a 95 % interval.

The fraction is a regression estimator: the mean of each stratum, adjusted by the network's predictions for the rows
outside the sample. The slope is estimated from the answers and is zero unless it is clearly positive, so wrong
predictions cannot bias the fraction. (A slope of one would be the plain difference estimator.)

The interval inverts the score test, as Wilson's interval does for one proportion: a fraction is inside if the answers
are not surprising with the stratum rates that make them most likely among all rates with that fraction. Unlike an
interval from the estimate and its standard error, it does not shrink to nothing when no wrong label was found in a
stratum. Quantiles are those of Student's distribution, because the weighted sum of a few answers is not quite normal.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

LEVEL = 0.975
"""Each end of the interval is exceeded with 2.5 % probability."""
LEAST_GAIN = 0.25
"""Minimum fraction of the variance that remains after using the predictions."""
STEPS = 60


@dataclass(frozen=True)
class Fraction:
    """A fraction with its 95 % interval."""

    estimate: float
    low: float
    high: float

    @property
    def complement(self) -> "Fraction":
        """The complement of the fraction."""
        return Fraction(1 - self.estimate, 1 - self.high, 1 - self.low)


def audited_fraction(
    outcome: np.ndarray, predicted: np.ndarray, stratum: np.ndarray, sizes: np.ndarray, means: np.ndarray
) -> Fraction:
    """Return the fraction of all rows with a property, estimated from the rows that a person answered.

    A row answered "cannot tell" may or may not have the property: the interval covers both extremes, and the estimate
    ignores these rows.

    Parameters
    ----------
    outcome : ndarray
        1 for sampled rows with the property, 0 without it, NaN if the person could not tell.
    predicted : ndarray
        The network's probability of the property for the sampled rows.
    stratum : ndarray
        The stratum of each sampled row. Every stratum has at least one.
    sizes, means : ndarray
        The rows of each stratum, and the mean of the network's probability over all of them.

    Returns
    -------
    Fraction
        The estimate and its 95 % interval.
    """
    known = ~np.isnan(outcome)
    if known.all():
        return _fraction(outcome, predicted, stratum, sizes, means)
    counts = np.bincount(stratum[known], minlength=len(sizes))
    rates = np.bincount(stratum[known], outcome[known], len(sizes)) / np.maximum(counts, 1)
    rates = np.where(counts, rates, 0.5)
    fill = (np.where(known, outcome, value) for value in (rates[stratum], 0.0, 1.0))
    middle, least, most = (_fraction(filled, predicted, stratum, sizes, means) for filled in fill)
    return Fraction(middle.estimate, min(least.low, most.low), max(least.high, most.high))


def _fraction(
    outcome: np.ndarray, predicted: np.ndarray, stratum: np.ndarray, sizes: np.ndarray, means: np.ndarray
) -> Fraction:
    drawn = np.bincount(stratum, minlength=len(sizes))
    seen = np.bincount(stratum, outcome, len(sizes))
    slope, gain = _slope(outcome, predicted, stratum, sizes)
    moved = slope * (means - np.bincount(stratum, predicted, len(sizes)) / drawn)
    return fraction_interval(seen, drawn, sizes, moved, gain)


def _slope(outcome: np.ndarray, predicted: np.ndarray, stratum: np.ndarray, sizes: np.ndarray) -> tuple[float, float]:
    """Return the slope of outcome on prediction within strata, and the remaining fraction of the variance.

    The slope is reduced by four times its squared standard error over itself: to zero below two standard errors.
    """
    drawn = np.bincount(stratum, minlength=len(sizes))
    inner_x = predicted - (np.bincount(stratum, predicted, len(sizes)) / drawn)[stratum]
    inner_y = outcome - (np.bincount(stratum, outcome, len(sizes)) / drawn)[stratum]
    weights = (sizes / sizes.sum()) ** 2 * (1 - drawn / sizes) / drawn / np.maximum(drawn - 1, 1)
    weight = weights[stratum]
    spread, variance = float((weight * inner_x**2).sum()), float((weight * inner_y**2).sum())
    if spread <= 1e-15 or variance <= 1e-15:
        return 0.0, 1.0
    raw = float((weight * inner_x * inner_y).sum()) / spread
    error = float(((weight * inner_x * (inner_y - raw * inner_x)) ** 2).sum()) / spread**2
    slope = float(np.clip(raw - 4 * error / raw, 0, 1)) if raw > 0 else 0.0
    left = 1 - (2 * slope * raw - slope**2) * spread / variance
    return slope, float(np.clip(left, LEAST_GAIN, 1))


def fraction_interval(
    seen: np.ndarray, drawn: np.ndarray, sizes: np.ndarray, moved: np.ndarray | float = 0.0, gain: float = 1.0
) -> Fraction:
    """Return a fraction of all rows and its 95 % score interval from counts in strata.

    Parameters
    ----------
    seen, drawn, sizes : ndarray
        In each stratum: sampled rows with the property, sampled rows, all rows.
    moved : ndarray or float
        Adjustment added to the mean of each stratum.
    gain : float
        The fraction of the variance that remains after the adjustment.
    """
    weights = sizes / sizes.sum()
    means = seen / drawn + moved
    estimate = float((weights * means).sum())
    # finite population correction: effective sample size; a fully sampled stratum has no variance
    effective = drawn * np.maximum(sizes - 1, 1) / np.maximum(sizes - drawn, 1e-9)
    rates = np.clip(means, 0, 1)
    limit = gain * float(stdtrit(max(drawn.sum() - 1, 1), LEVEL)) ** 2
    high = _upper(estimate, weights, effective, rates, limit)
    low = 1 - _upper(1 - estimate, weights, effective, 1 - rates, limit)
    known, possible = float((seen / sizes * weights).sum()), 1 - float(((drawn - seen) / sizes * weights).sum())
    estimate = float(np.clip(estimate, known, possible))
    return Fraction(estimate, min(max(low, known), estimate), max(min(high, possible), estimate))


def _upper(estimate: float, weights: np.ndarray, effective: np.ndarray, rates: np.ndarray, limit: float) -> float:
    """Return the largest fraction that the score test does not reject."""

    def rejected(force: float) -> bool:
        tried = _constrained(force, weights, effective, rates)
        distance = float((weights * tried).sum()) - estimate
        return distance > 0 and distance**2 > limit * float((weights**2 * tried * (1 - tried) / effective).sum())

    unit = float((effective / weights).min())
    force = unit * float(np.exp(_first(lambda exponent: rejected(unit * float(np.exp(exponent))), -12.0, 25.0)))
    return float((weights * _constrained(force, weights, effective, rates)).sum())


def _first(holds: Callable[[float], bool], low: float, high: float) -> float:
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _constrained(force: float, weights: np.ndarray, effective: np.ndarray, rates: np.ndarray) -> np.ndarray:
    """Return the most likely stratum rates for a given weighted sum; ``force`` is the Lagrange multiplier.

    The derivative of the likelihood, ``x / r - (n - x) / (1 - r) + force * weight = 0``, is a quadratic equation in r.
    """
    pushed = force * weights / effective
    rest = 1 - pushed
    root = np.sqrt(rest**2 + 4 * pushed * rates)
    with np.errstate(divide="ignore", invalid="ignore"):  # each row uses the numerically stable form
        tried = np.where(rest > 0, 2 * rates / (rest + root), (root - rest) / (2 * pushed))
    inside: np.ndarray = np.clip(tried, 0, 1)
    return inside
