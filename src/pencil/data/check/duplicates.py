"""Rows that occur more than once: exact copies by their digest, and near-duplicates by cosine similarity.

Near-duplicates are found without comparing all pairs: rows become unit vectors and are projected onto their main
directions, where distances only shrink, and a k-d tree returns the nearest rows within reach. Each of these pairs is
then compared in full, in blocks.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components
from scipy.spatial import cKDTree
from sklearn.utils.extmath import randomized_svd
from torch import Tensor

from pencil.data.inputs.sketch import BRIGHTNESS_VALUES
from pencil.data.inputs.transform import Moments, rows_within

MOST_ROWS = 200_000
"""Near-duplicates are searched among at most this many rows, sampled from all of the data."""
NEIGHBOURS = 8
"""A row is compared in full with this many of its nearest rows."""
DIMENSIONS = 24
"""Number of main directions used by the tree."""
BASIS_ROWS = 4096
"""Number of rows used to compute the main directions."""
MIN_FEATURES = 64
"""Vectors with fewer features are too often close to each other by chance."""


@dataclass(frozen=True, eq=False)
class Groups:
    """Groups of positions, concatenated in one array; ``starts`` are the first positions of the groups."""

    positions: np.ndarray
    starts: np.ndarray

    def __len__(self) -> int:
        return len(self.starts)

    def __iter__(self) -> Iterator[np.ndarray]:
        for start, stop in zip(self.starts, np.append(self.starts, len(self.positions))[1:], strict=True):
            yield self.positions[start:stop]

    def chosen(self, mask: np.ndarray) -> "Groups":
        """Return the groups selected by the mask."""
        lengths = np.diff(self.starts, append=len(self.positions))
        kept = lengths[mask]
        return Groups(self.positions[np.repeat(mask, lengths)], np.cumsum(kept) - kept)


NO_GROUPS = Groups(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))


def group_equal(values: np.ndarray, positions: np.ndarray) -> Groups:
    """Return groups of two or more positions with equal values, ordered by their first members."""
    _, first, inverse, counts = np.unique(values, return_index=True, return_inverse=True, return_counts=True)
    group, repeated = first[inverse], counts[inverse] > 1
    order = np.argsort(group[repeated], kind="stable")
    return Groups(positions[repeated][order], np.unique(group[repeated][order], return_index=True)[1])


def with_different_labels(groups: Groups, labels: np.ndarray) -> Groups:
    """Return the groups whose labels, or other values of each position, differ; an unknown label never differs."""
    if not len(groups):
        return groups
    seen = labels[groups.positions].reshape(len(groups.positions), -1)
    lowest, highest = (pick.reduceat(seen, groups.starts, axis=0) for pick in (np.fmin, np.fmax))  # of known labels
    return groups.chosen(np.any(lowest < highest, axis=1))


class Sketches:
    """Sketches of images. A pair is near if it differs, apart from contrast and offset, by at most a few grey levels.

    The cosine alone would match low-contrast images that only share a gradient, and would miss re-encoded copies of
    detailed images. The remaining difference is therefore limited as well, and the colours must agree.
    """

    similarity = 0.99
    least_contrast = 6.0
    most_difference = 6.0
    most_colour_difference = 16
    least_ratio = 0.67

    def __init__(self, sketches: np.ndarray):
        self.sketches = sketches

    def __len__(self) -> int:
        return len(self.sketches)

    def units(self, rows: np.ndarray) -> np.ndarray:
        """Return the brightness of images without contrast and offset; zeros for images with hardly any contrast."""
        centred, contrast = self._brightness(rows)
        norm = contrast * BRIGHTNESS_VALUES**0.5
        return np.where(contrast[:, None] >= self.least_contrast, centred / np.maximum(norm, 1e-6)[:, None], 0)

    def is_near(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Compare brightness, contrast and colours of each pair."""
        cosine: np.ndarray = np.einsum("nd,nd->n", self.units(first), self.units(second)).clip(max=1)
        contrasts = np.stack([self._brightness(rows)[1] for rows in (first, second)])
        low, high = contrasts.min(axis=0), contrasts.max(axis=0)
        colours = [self.sketches[rows, BRIGHTNESS_VALUES:].astype(np.int16) for rows in (first, second)]
        same_colours = np.abs(colours[0] - colours[1]).max(axis=1) <= self.most_colour_difference
        difference = np.sqrt(1 - cosine.clip(min=0) ** 2) * high
        near: np.ndarray = (cosine >= self.similarity) & (difference <= self.most_difference)
        near &= same_colours & (low >= self.least_ratio * high)
        return near

    def _brightness(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        values = self.sketches[rows, :BRIGHTNESS_VALUES].astype(np.float32)
        values -= values.mean(axis=1, keepdims=True)
        return values, np.sqrt(np.square(values).mean(axis=1))


class Vectors:
    """Rows of features, standardised by the first part; a pair is near if its cosine is nearly 1."""

    similarity = 0.999

    def __init__(self, parts: Sequence[tuple[Tensor, Tensor]]):
        self.values, self.rows = [values for values, _ in parts], [rows for _, rows in parts]
        self.starts = np.cumsum([0, *map(len, self.rows)])
        moments, block = Moments(), rows_within(self.values[0].shape[1:], 8)
        for chunk in self.rows[0].split(block):
            moments.add(self.values[0][chunk])
        self.mean, self.deviation = moments.mean.float().numpy(), moments.deviation.float().numpy()

    def __len__(self) -> int:
        return int(self.starts[-1])

    def units(self, rows: np.ndarray) -> np.ndarray:
        """Return standardised rows, scaled to length 1."""
        found: np.ndarray = np.empty((len(rows), len(self.mean)), dtype=np.float32)
        for number, (start, stop) in enumerate(zip(self.starts, self.starts[1:], strict=False)):
            here = (rows >= start) & (rows < stop)
            chosen = self.rows[number][torch.from_numpy(rows[here] - start)]
            found[here] = self.values[number][chosen].float().numpy()
        found -= self.mean
        found /= self.deviation
        found /= np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-6)
        return found

    def is_near(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Compare the cosine of each pair."""
        near: np.ndarray = np.einsum("nd,nd->n", self.units(first), self.units(second)) >= self.similarity
        return near


Comparable = Sketches | Vectors
"""Rows as unit vectors, zeros for a row without neighbours; near pairs have a cosine of at least ``similarity``."""


def near_groups(items: Comparable, candidates: np.ndarray) -> Groups:
    """Return groups of near-duplicates among these rows; a chain of near pairs connects the rows of a group.

    ``candidates`` are the positions to compare, one of each group of exact copies.
    """
    if len(candidates) < 2:
        return NO_GROUPS
    projected = _project(items, candidates)
    alike = np.abs(projected).sum(axis=1) > 0
    candidates, projected = candidates[alike], projected[alike]
    if len(candidates) < 2:
        return NO_GROUPS
    pairs = _candidate_pairs(projected, reach=(2 * (1 - items.similarity)) ** 0.5)
    pairs = pairs[:, _near(items, candidates[pairs[0]], candidates[pairs[1]])]
    graph = coo_matrix((np.ones(pairs.shape[1], dtype=np.int8), tuple(pairs)), shape=(len(candidates),) * 2)
    return group_equal(connected_components(graph, directed=False)[1], candidates)


def _candidate_pairs(projected: np.ndarray, reach: float) -> np.ndarray:
    """Return pairs (2, m) of each row with its nearest rows, and of each row with the first row equal to it.

    Equal rows are a single point of the tree, because thousands of them in one place would make it slow.
    """
    _, first, inverse = np.unique(projected, axis=0, return_index=True, return_inverse=True)
    points = projected[first]
    _, others = cKDTree(points).query(points, k=NEIGHBOURS + 1, eps=1.0, distance_upper_bound=reach, workers=-1)
    rows = np.repeat(np.arange(len(points)), others.shape[1])
    pairs = np.stack([rows, others.reshape(-1)])
    pairs = first[pairs[:, pairs[1] < len(points)]]  # the tree returns this number if there are no further rows
    equal = np.stack([first[inverse.reshape(-1)], np.arange(len(projected))])
    pairs = np.concatenate([pairs, equal], axis=1)
    return np.unique(np.sort(pairs[:, pairs[0] != pairs[1]], axis=0), axis=1)


def _project(items: Comparable, rows: np.ndarray) -> np.ndarray:
    """Return the rows in their main directions; distances there never exceed those between the unit vectors."""
    width = items.units(rows[:1]).shape[1]
    block = rows_within((width,), 4)
    some = np.unique(np.linspace(0, len(rows) - 1, min(BASIS_ROWS, block)).astype(np.int64))
    sample = items.units(rows[some])
    count = min(DIMENSIONS, *sample.shape)
    basis = randomized_svd(sample - sample.mean(axis=0), count, n_iter=2, random_state=0)[2].T
    projected: np.ndarray = np.empty((len(rows), count), dtype=sample.dtype)
    for start in range(0, len(rows), block):  # into one array, because small results between blocks fragment the heap
        projected[start : start + block] = items.units(rows[start : start + block]) @ basis
    return projected


def _near(items: Comparable, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Compare pairs in full, in blocks."""
    if not len(first):
        return np.zeros(0, dtype=bool)
    block = rows_within((items.units(first[:1]).shape[1],), 16)
    near: np.ndarray = np.empty(len(first), dtype=bool)
    for start in range(0, len(first), block):
        near[start : start + block] = items.is_near(first[start : start + block], second[start : start + block])
    return near
