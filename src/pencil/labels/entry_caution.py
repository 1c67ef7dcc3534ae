"""Uncertainty of the multi-label noise model: the error of its rate, and a cautious model of each class.

The Hessian of the cost has an arrowhead structure: the values of a class interact with the shared values, but not with
the values of other classes. Everything is therefore solved class by class, even for thousands of classes.

A weak network looks like noise in a class: if the class was not learned, many entries that name it seem wrong. The
cautious model of a class and a kind of entries (named or not named) lies on the border of the 95 % confidence region;
it is the point on that border with the fewest wrong entries of this kind.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.functional import jacobian, jvp, vhp

from pencil.labels.noise_model import NORMAL_95

TINY = 1e-24
SMALL = 1e-12
"""Curvatures below this fraction of the largest one count as zero."""


@dataclass(frozen=True)
class Curvature:
    """The second derivatives of a cost with ``shared`` values and three further values for each class.

    Attributes
    ----------
    shared
        Inverse of the curvature in the shared values, (shared, shared), with the class values at their optimum.
    own
        Inverse of the curvature in the values of each class, (classes, 3, 3).
    mixed
        Mixed second derivatives, (classes, shared, 3).
    """

    shared: Tensor
    own: Tensor
    mixed: Tensor

    def solve(self, by_shared: Tensor, by_own: Tensor) -> tuple[Tensor, Tensor]:
        """Return the inverse curvature times the gradient of one quantity of all classes: (shared,), (classes, 3)."""
        own = (self.own @ by_own[..., None])[..., 0]
        shared = self.shared @ (by_shared - torch.einsum("ksi,ki->s", self.mixed, own))
        return shared, own - torch.einsum("kij,ksj,s->ki", self.own, self.mixed, shared)

    def solve_by_class(self, by_shared: Tensor, by_own: Tensor) -> tuple[Tensor, Tensor]:
        """Return the same for one quantity per class, (classes, shared) and (classes, 3)."""
        own = torch.einsum("kij,kj->ki", self.own, by_own)
        shared = (by_shared - torch.einsum("ksi,ki->ks", self.mixed, own)) @ self.shared
        return shared, own - torch.einsum("kij,ksj,ks->ki", self.own, self.mixed, shared)


def arrow_curvature(cost: Callable[[Tensor], Tensor], values: Tensor, shared: int) -> Curvature:
    """Return the curvature of a cost of ``shared`` values, followed by three rows with one value for each class.

    One Hessian-vector product for each shared value and for each of the three rows is enough.
    """
    classes = (len(values) - shared) // 3
    units = torch.eye(shared + 3, dtype=values.dtype)
    directions = torch.cat([units[:, :shared], units[:, shared:].repeat_interleave(classes, dim=1)], dim=1)
    with torch.enable_grad():
        rows = torch.stack([vhp(cost, values, direction)[1] for direction in directions])
    mixed = rows[:shared, shared:].reshape(shared, 3, classes).permute(2, 0, 1)
    own = rows[shared:, shared:].reshape(3, 3, classes).permute(2, 0, 1)
    own = _positive_inverse(own)
    left = rows[:shared, :shared] - torch.einsum("ksi,kij,ktj->st", mixed, own, mixed)
    return Curvature(_positive_inverse(left), own, mixed)


def _positive_inverse(matrix: Tensor) -> Tensor:
    """Pseudo-inverse over the directions of positive curvature; other directions carry no information."""
    values, vectors = torch.linalg.eigh((matrix + matrix.mT) / 2)
    rises = values > SMALL * values.abs().amax(dim=-1, keepdim=True)
    inverse: Tensor = (vectors * torch.where(rises, 1 / values, 0.0)[..., None, :]) @ vectors.mT
    return inverse


def squared_error(curvature: Curvature, quantity: Callable[[Tensor], Tensor], values: Tensor) -> float:
    """Return the variance of a function of the values, to first order."""
    with torch.enable_grad():
        by_shared, by_own = _split(jacobian(quantity, values), len(curvature.shared))
    shared, own = curvature.solve(by_shared, by_own)
    return max(TINY, float(by_shared @ shared + (by_own * own).sum()))


def cautious_values(
    curvature: Curvature, by_class: Callable[[Tensor], Tensor], values: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the values on the border of the confidence region at which a quantity of each class is lowest.

    Parameters
    ----------
    curvature
        Curvature of the cost at ``values``.
    by_class
        Returns the quantity of each class, which depends on the shared values and on the values of the class.
    values
        The most probable values.

    Returns
    -------
    tuple
        For each class, the shared values (classes, shared) and its own values (classes, 3).
    """
    shared_count = len(curvature.shared)
    units = torch.eye(len(values), dtype=values.dtype)[:shared_count]
    with torch.enable_grad():
        own_slope = _split(jacobian(lambda at: by_class(at).sum(), values), shared_count)[1]
        shared_slope = torch.stack([jvp(by_class, values, unit)[1] for unit in units], dim=1)
    shared, own = curvature.solve_by_class(shared_slope, own_slope)
    error = ((shared * shared_slope).sum(dim=1) + (own * own_slope).sum(dim=1)).clamp_min(TINY).sqrt()[:, None]
    common, apart = _split(values, shared_count)
    return common - NORMAL_95 * shared / error, apart - NORMAL_95 * own / error


def _split(values: Tensor, shared: int) -> tuple[Tensor, Tensor]:
    """The shared values, and the values of each class, (classes, 3)."""
    return values[:shared], values[shared:].reshape(3, -1).T
