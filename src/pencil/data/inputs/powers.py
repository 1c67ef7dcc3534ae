"""The power transform of Yeo and Johnson (2000), which makes skewed numbers symmetric.

SciPy has it too, but its argument checks take a hundred times as long as the computation on a small column. The values
here are bit-identical.
"""

import numpy as np

WIDEST = 5_000
"""Tables with more columns are not transformed: fitting takes a millisecond per column, and such columns are usually
homogeneous, such as genes or embeddings, and already scaled."""


def transform(values: np.ndarray, power: float) -> np.ndarray:
    """Return numbers transformed by a power; 1 leaves them as they are."""
    eps = np.finfo(np.float64).eps
    found, positive = np.zeros_like(values, dtype=np.float64), values >= 0
    above, below = np.log1p(values[positive]), np.log1p(-values[~positive])
    found[positive] = above if abs(power) < eps else np.expm1(power * above) / power
    found[~positive] = -np.expm1((2 - power) * below) / (2 - power) if abs(power - 2) > eps else -below
    return found


def most_likely(values: np.ndarray) -> float:
    """Return the power that makes these numbers most nearly normal; ValueError if one is not finite."""
    from scipy import optimize

    if not np.isfinite(values).all():
        raise ValueError("expected finite numbers")
    if (values == 0).all():
        return 1.0
    shift, count = np.sum(np.sign(values) * np.log1p(np.abs(values)), axis=0), len(values)

    def minus_log_likelihood(power: float) -> float:
        variance = np.var(transform(values, power), axis=0)
        log_variance = np.log(variance) if variance >= np.finfo(np.float64).smallest_normal else -np.inf
        found = -count / 2 * log_variance + (power - 1) * shift
        return float(np.inf if np.isinf(found) else -found)

    low, high = _bounds(values)
    return float(optimize.fminbound(minus_log_likelihood, low, high, xtol=1.48e-08))  # the tolerance of scipy's brent


def is_constant(values: np.ndarray) -> bool:
    """Return whether numbers differ by no more than rounding errors, with scikit-learn's criterion."""
    eps, count, mean, variance = np.finfo(np.float64).eps, len(values), np.mean(values), np.var(values)
    return bool(variance <= count * eps * variance + (count * mean * eps) ** 2)


def _bounds(values: np.ndarray) -> tuple[float, float]:
    """Return the powers between which numbers, and numbers up to twenty times as large, stay within the float range."""
    limits, largest = np.finfo(np.float64), np.log1p(20 * np.max(np.abs(values)))
    log_eps = np.log(limits.eps)
    low = (np.log(limits.tiny) - log_eps) / 2 / largest
    high = (np.log(limits.max) + log_eps) / 2 / largest
    if (values < 0).all():
        return 2 - high, 2 - low
    if (values < 0).any():
        return max(2 - high, low), min(2 - low, high)
    return low, high
