"""Outliers: rows that are unlike the rows of every class, by the distances between feature vectors.

The usual score, the mean distance to the nearest rows, misses outliers that resemble each other, such as blank scans:
their nearest rows are outliers too. Here an ordinary row has to be near a part of a class. The distance of a row to a
class is the distance within which a tenth of the rows of that class lie, and the nearest class counts. Outliers with
arbitrary labels are spread over the classes, so they seldom make up a tenth of one. A first pass, with a quarter of
each class, removes the farthest rows from the reference. A row is also unlike every class if the labels of its
neighbours do not agree: no class is more frequent among them than expected by chance.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.special import bdtrc
from torch import Tensor

from pencil.labels.matching import relative_ranks

QUARTER, TENTH = 0.25, 0.1
"""Fractions of a class in the first and the second pass. On 8 tuning draws of CIFAR-10 features with 5 % digits, noise
or smooth colours, the lowest AUROC is 0.95; it is 0.91 with the first pass alone, and 0.00 with the 10 nearest rows."""
LEAST = 5
"""Minimum number of rows of a class that a row has to be near, if the class has that many."""
TRIMMED = 0.2
"""Fraction of the reference that the first pass removes; at most half of a class, as a rare class may be far away."""
NEIGHBOURS, CHANCE = 50, 0.01
"""Number of neighbours whose labels are counted, and the probability that a class is too frequent by chance."""
FARTHER = 2.0
"""Standard deviations added to the log distance of rows whose neighbours' labels do not agree. On the tuning draws, 1.5
flags 65 % of the digits and none of the smooth colours; 2 flags all of both, and 4 % of the other rows (1 % without
outliers)."""
ROWS = 1024
"""Number of rows compared with the reference at a time."""
FLAGGED = 0.95
"""Score from which a row counts as an outlier."""
QUARTILE = 0.6745
"""Upper quartile of the standard normal distribution."""
TIE_BREAK = 0.002
"""Weight of a row's rank in its score: it keeps the order of rows whose scores are equal."""


@dataclass(frozen=True)
class Reference:
    """The rows that others are compared with.

    Attributes
    ----------
    vectors
        Their features, (rows, width).
    members
        The rows of each class, without the farthest ones.
    codes
        The class of each row, -1 for none; None if rows may have several classes, or if no row has a class.
    chance
        For each class, the largest number of neighbours that chance explains.
    neighbours
        The number of neighbours whose labels are counted.
    """

    vectors: Tensor
    members: tuple[Tensor, ...]
    codes: Tensor | None
    chance: Tensor
    neighbours: int

    @classmethod
    def of(cls, vectors: Tensor, labels: Tensor) -> "Reference":
        """Return a reference without its farthest rows.

        Parameters
        ----------
        vectors
            Feature vectors, (rows, width).
        labels
            Class indices (rows,), -1 for none, or which classes each row has (rows, classes).
        """
        members = members_of(labels)
        distances = class_distances(vectors, vectors, members, QUARTER, torch.arange(len(vectors)))
        limit = distances.quantile(1 - TRIMMED)
        kept = tuple(rows[distances[rows] <= torch.maximum(limit, distances[rows].median())] for rows in members)
        codes = labels if labels.ndim == 1 and bool((labels >= 0).any()) else None
        counts = torch.zeros(1) if codes is None else codes[codes >= 0].bincount()
        neighbours = min(NEIGHBOURS, max(LEAST, len(vectors) // (4 * len(counts))), len(vectors) - 1)
        rates = (counts / counts.sum().clamp_min(1)).double().numpy()
        tails = bdtrc(np.arange(neighbours + 1.0)[:, None], neighbours, rates)  # more than 0, 1, ... neighbours
        return cls(vectors, kept, codes, torch.from_numpy((tails > CHANCE / len(counts)).sum(axis=0)), neighbours)

    def compare(self, vectors: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
        """Return the distance of each row to the nearest class, and whether its neighbours' labels do not agree.

        ``own`` is the position of each row in the reference, -1 if it is not part of it.
        """
        found = torch.empty(len(vectors), dtype=self.vectors.dtype)
        disagree = torch.zeros(len(vectors), dtype=torch.bool)
        for part in torch.arange(len(vectors)).split(ROWS):
            distances = _distances(vectors[part], self.vectors, own[part])
            found[part] = _to_classes(distances, self.members, TENTH)
            if self.codes is not None:
                nearest = self.codes[distances.topk(self.neighbours, largest=False).indices]
                counts = torch.zeros(len(part), len(self.chance) + 1, dtype=nearest.dtype)
                counts.scatter_add_(1, nearest + 1, torch.ones_like(nearest))
                disagree[part] = (counts[:, 1:] <= self.chance).all(dim=1)
        return found, disagree


def members_of(labels: Tensor) -> list[Tensor]:
    """Return the positions of the rows of each class with at least two rows; without such a class, of all rows."""
    classes = labels.unbind(1) if labels.ndim == 2 else [labels == code for code in labels.unique() if code >= 0]
    found = [mask.nonzero()[:, 0] for mask in classes]
    return [rows for rows in found if len(rows) > 1] or [torch.arange(len(labels))]


def class_distances(
    vectors: Tensor, reference: Tensor, members: Sequence[Tensor], fraction: float, own: Tensor
) -> Tensor:
    """Return for each row the distance within which a fraction of a class lies, for the nearest class.

    Parameters
    ----------
    vectors, reference
        Feature vectors, (rows, width) and (reference rows, width).
    members
        The reference rows of each class.
    fraction
        The fraction of a class that has to lie within the distance.
    own
        The position of each row in the reference, -1 if it is not part of it: a row is not its own neighbour.
    """
    found = torch.empty(len(vectors), dtype=reference.dtype)
    for part in torch.arange(len(vectors)).split(ROWS):
        found[part] = _to_classes(_distances(vectors[part], reference, own[part]), members, fraction)
    return found


def _to_classes(distances: Tensor, members: Sequence[Tensor], fraction: float) -> Tensor:
    return torch.stack([_nearest(distances[:, columns], fraction) for columns in members], dim=1).amin(dim=1)


def _distances(vectors: Tensor, reference: Tensor, own: Tensor) -> Tensor:
    distances = torch.cdist(vectors, reference)
    inside = own >= 0
    distances[inside.nonzero()[:, 0], own[inside]] = torch.inf
    return distances


def _nearest(distances: Tensor, fraction: float) -> Tensor:
    size = distances.shape[1]
    return distances.kthvalue(max(1, min(max(LEAST, round(fraction * size)), size - 1)), dim=1).values


def outlier_scores(distances: Tensor, disagree: Tensor) -> Tensor:
    """Return how unlike the rest each row is, 0 to 1; 0 for rows without a distance, which could not be read.

    One minus the score is the expected fraction of ordinary rows among the rows with at least this score. The
    logarithm of the distance of ordinary rows is assumed to be normal, with a deviation from the wider of the two
    middle quarters; the probability of its tail is divided by the fraction of rows found there (the false discovery
    rate, Benjamini and Hochberg 1995).

    Parameters
    ----------
    distances
        The distance of each row to the nearest class; NaN if unknown.
    disagree
        Whether the labels of each row's neighbours do not agree; these rows count as farther.
    """
    known = distances.isfinite()
    scores = torch.zeros(len(distances), dtype=torch.float64)
    if int(known.sum()) < 2:
        return scores
    logs = distances[known].double().clamp_min(torch.finfo(torch.float32).tiny).log()
    logs = logs + FARTHER * _middle(logs)[1] * disagree[known]
    median, deviation = _middle(logs)
    order = logs.argsort(stable=True)
    tail = 0.5 * torch.erfc((logs[order] - median) / deviation / 2**0.5)
    beyond = torch.arange(len(logs), 0, -1) / len(logs)
    plain = torch.empty_like(logs)
    plain[order] = 1 - (tail / beyond).cummin(dim=0).values.clamp(0, 1)
    scores[known] = torch.lerp(plain, relative_ranks(logs), TIE_BREAK)
    return scores


def _middle(logs: Tensor) -> tuple[Tensor, Tensor]:
    """Return the median and the deviation of ordinary rows."""
    ordered = logs.sort().values
    low, median, high = (ordered[round(part * (len(ordered) - 1))] for part in (0.25, 0.5, 0.75))
    return median, torch.maximum(median - low, high - median).clamp_min(1e-6) / QUARTILE
