"""Recalibrated confidences: Platt scaling on audited rows, used only if it helps on unseen rows."""

from dataclasses import dataclass

import numpy as np

FOLDS = 5
FEWEST = 25
"""Minimum number of answers for recalibration."""
EDGE = 1e-4
"""Confidences are clipped to this distance from 0 and 1."""
PRIOR = 1.0
"""Prior weight of the unchanged confidence, in rows."""


@dataclass(frozen=True)
class Platt:
    """Platt scaling: ``sigmoid(slope * logit(confidence) + shift)``."""

    slope: float
    shift: float

    def __call__(self, confidence: np.ndarray) -> np.ndarray:
        """Return recalibrated confidences."""
        scaled: np.ndarray = 1 / (1 + np.exp(-(self.slope * _logit(confidence) + self.shift)))
        return scaled


@dataclass(frozen=True)
class Recalibration:
    """A fit, and the cross-validated log loss of the original and the recalibrated confidence.

    ``helps`` is whether the loss falls by more than its standard error.
    """

    scaling: Platt
    loss_before: float
    loss_after: float
    helps: bool


def fit_platt(confidence: np.ndarray, right: np.ndarray, weights: np.ndarray) -> Platt:
    """Return the scaling that minimises the weighted log loss, weakly regularised to slope 1 and shift 0.

    Parameters
    ----------
    confidence, right : ndarray
        The confidence of each audited row, and 1 if its label is right, else 0.
    weights : ndarray
        The number of rows that each audited row represents; only the proportions matter.
    """
    inputs = np.stack([_logit(confidence), np.ones(len(confidence))], axis=1)
    weights = weights / weights.mean()
    prior = np.array([1.0, 0.0])
    found = prior
    for _ in range(50):  # Newton's method on a convex function of two variables
        probs = 1 / (1 + np.exp(-np.clip(inputs @ found, -30, 30)))
        gradient = inputs.T @ (weights * (probs - right)) + PRIOR * (found - prior)
        curvature = (inputs.T * (weights * probs * (1 - probs))) @ inputs + PRIOR * np.eye(2)
        step = np.linalg.solve(curvature, gradient)
        found = found - step / max(1.0, float(np.abs(step).max()))
        if np.abs(step).max() < 1e-9:
            break
    return Platt(float(max(found[0], 0.0)), float(found[1]))


def recalibrate(confidence: np.ndarray, right: np.ndarray, weights: np.ndarray) -> Recalibration | None:
    """Return a scaling of the confidence and whether it helps on unseen rows; None for too few rows.

    Parameters
    ----------
    confidence, right, weights : ndarray
        As for :func:`fit_platt`, in random order.
    """
    if len(right) < FEWEST:
        return None
    fold = np.arange(len(right)) % FOLDS
    scaled = np.empty(len(right))
    for number in range(FOLDS):
        kept = fold != number
        scaled[~kept] = fit_platt(confidence[kept], right[kept], weights[kept])(confidence[~kept])
    before, after = _log_losses(confidence, right), _log_losses(scaled, right)
    weights = weights / weights.sum()
    gained = before - after
    mean = float((weights * gained).sum())
    error = float(np.sqrt((weights**2 * (gained - mean) ** 2).sum()))
    losses = float((weights * before).sum()), float((weights * after).sum())
    return Recalibration(fit_platt(confidence, right, weights), *losses, helps=mean > error)


def _logit(confidence: np.ndarray) -> np.ndarray:
    inside = np.clip(np.asarray(confidence, dtype=np.float64), EDGE, 1 - EDGE)
    logit: np.ndarray = np.log(inside) - np.log1p(-inside)
    return logit


def _log_losses(confidence: np.ndarray, right: np.ndarray) -> np.ndarray:
    inside = np.clip(np.asarray(confidence, dtype=np.float64), EDGE, 1 - EDGE)
    losses: np.ndarray = -np.where(right > 0.5, np.log(inside), np.log1p(-inside))
    return losses
