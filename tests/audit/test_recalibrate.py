"""Recalibration: the fit against sklearn, and that it is used only if it helps on other rows."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from pencil.audit.recalibrate import Platt, fit_platt, recalibrate


def rows_of(count, seed=0, slope=1.0, shift=0.0):
    rng = np.random.default_rng(seed)
    confidence = rng.uniform(0.5, 0.999, count)
    right = rng.random(count) < Platt(slope, shift)(confidence)
    return confidence, right.astype(float), rng.uniform(0.5, 2, count)


def test_the_fit_is_weighted_logistic_regression():
    confidence, right, weights = rows_of(20_000, slope=0.5, shift=-0.3)
    found = fit_platt(confidence, right, weights)
    logit = np.log(confidence / (1 - confidence))[:, None]
    expected = LogisticRegression(C=1e6, tol=1e-8).fit(logit, right, sample_weight=weights)
    assert found.slope == pytest.approx(float(expected.coef_[0, 0]), abs=2e-3)
    assert found.shift == pytest.approx(float(expected.intercept_[0]), abs=2e-3)


def test_few_rows_stay_near_the_confidence_as_it_is():
    found = fit_platt(np.array([0.9, 0.9]), np.ones(2), np.ones(2))
    assert 0.9 <= found(np.array([0.9]))[0] < 0.97
    assert fit_platt(np.full(50, 0.9), np.ones(50), np.ones(50))(np.array([0.9]))[0] < 1


def test_it_never_reverses_the_order():
    confidence, right, weights = rows_of(2000, slope=-2.0)
    assert fit_platt(confidence, right, weights).slope == 0


def test_it_helps_where_confidences_are_too_high():
    found = recalibrate(*rows_of(200, slope=0.3, shift=-0.5))
    assert found.helps and found.loss_after < found.loss_before


def test_calibrated_confidences_mostly_stand():
    helped = [recalibrate(*rows_of(100, seed)).helps for seed in range(60)]
    assert np.mean(helped) < 0.25


def test_too_few_rows_are_not_fitted():
    assert recalibrate(*rows_of(24)) is None
