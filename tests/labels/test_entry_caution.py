"""The arrow-shaped curvature, errors and cautious values, against the dense matrices."""

import pytest
import torch
from torch.autograd.functional import hessian, jacobian

from pencil.labels.entry_caution import NORMAL_95, arrow_curvature, cautious_values, squared_error

SHARED, CLASSES = 4, 6


def draw(*shape, seed):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


POINT, MIX = draw(SHARED + 3 * CLASSES, seed=0), draw(5, SHARED + 3, seed=1)


def by_class(values):
    """A curved quantity of each class: of the shared values and of its own three."""
    shared, own = values[:SHARED], values[SHARED:].reshape(3, -1).T
    together = torch.cat([shared.expand(CLASSES, -1), own], dim=1)
    return (together @ MIX.T).cosh().log().sum(dim=1) * torch.arange(1.0, 1.0 + CLASSES)


def cost(values):
    return by_class(values).sum() + values.square().sum() / 2


def quantity(values):
    return by_class(values).square().mean()


def test_a_solution_is_that_of_the_dense_curvature():
    dense, curvature = hessian(cost, POINT), arrow_curvature(cost, POINT, SHARED)
    slope = draw(len(POINT), seed=2)
    expected = torch.linalg.solve(dense, slope)
    shared, own = curvature.solve(slope[:SHARED], slope[SHARED:].reshape(3, -1).T)
    torch.testing.assert_close(shared, expected[:SHARED])
    torch.testing.assert_close(own, expected[SHARED:].reshape(3, -1).T)


def test_the_error_is_that_of_the_dense_covariance():
    dense, slope = hessian(cost, POINT), jacobian(quantity, POINT)
    found = squared_error(arrow_curvature(cost, POINT, SHARED), quantity, POINT)
    assert found == pytest.approx(float(slope @ torch.linalg.inv(dense) @ slope))


def test_cautious_values_are_the_lowest_on_the_border():
    """They cost as much as the interval allows, and no other point of the ellipsoid is lower, to first order."""
    dense = hessian(cost, POINT)
    shared, own = cautious_values(arrow_curvature(cost, POINT, SHARED), by_class, POINT)
    slopes = jacobian(by_class, POINT)
    for k in range(CLASSES):
        direction = torch.linalg.solve(dense, slopes[k])
        moved = POINT - NORMAL_95 * direction / (slopes[k] @ direction).sqrt()
        torch.testing.assert_close(shared[k], moved[:SHARED])
        torch.testing.assert_close(own[k], moved[SHARED:].reshape(3, -1)[:, k])
        assert float((moved - POINT) @ dense @ (moved - POINT)) == pytest.approx(NORMAL_95**2)


def test_a_direction_in_which_the_cost_falls_says_nothing():
    def saddle(values):
        return cost(values) - 50 * values[SHARED] ** 2

    curvature = arrow_curvature(saddle, POINT, SHARED)
    assert torch.linalg.eigvalsh(curvature.own).min() > -1e-9
    assert torch.linalg.eigvalsh(curvature.shared).min() > -1e-9
    assert all(
        values.isfinite().all() and values.abs().max() < 1e3 for values in cautious_values(curvature, by_class, POINT)
    )
