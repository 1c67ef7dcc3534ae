"""The votes of several annotators, and the model of Dawid and Skene (1979) with shrunk confusion matrices."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array

SHRINKAGE = 4.0
"""Votes per true class by which an annotator's confusion matrix is shrunk towards the mean of all annotators.
On simulated crowds 4 is better than 1, 2 and 8."""
MEAN_SHRINKAGE = 100.0
"""Votes per true class by which the mean is shrunk towards equal errors in all classes, and rows by which the class
prior is shrunk towards the frequencies of the votes. Without it, if there are few rows, or if annotators are rules that
always name the same class, class prior and confusion matrices reinforce each other until one class is left."""
ITERATIONS, TOLERANCE = 300, 1e-5
TINY = 1e-10
"""Added to counts of votes, to keep logarithms finite."""
ENOUGH_ANNOTATORS = 3
"""With fewer annotators, votes alone do not show who is right, so vote fractions are used instead."""


@dataclass(frozen=True)
class Votes:
    """Who named which class for which row: one entry of three arrays for every vote.

    Parameters
    ----------
    rows, annotators, labels
        Positions in ``keys`` and ``names``, and class indices.
    keys
        The keys of all rows of the source.
    names
        The names of the annotators.
    """

    rows: np.ndarray
    annotators: np.ndarray
    labels: np.ndarray
    keys: np.ndarray
    names: tuple[str, ...]

    @property
    def show_who_is_right(self) -> bool:
        """Whether enough annotators voted to compare them with each other."""
        return len(np.unique(self.annotators)) >= ENOUGH_ANNOTATORS

    def of(self, keys: np.ndarray) -> "Votes":
        """Return the votes for the rows with these keys, in this order; the annotators stay the same."""
        order = np.argsort(keys)
        places = order[np.searchsorted(keys, self.keys, sorter=order).clip(max=len(keys) - 1)] if len(keys) else []
        rows = np.where(keys[places] == self.keys, places, -1)[self.rows] if len(keys) else np.full(len(self.rows), -1)
        kept = rows >= 0
        return Votes(rows[kept], self.annotators[kept], self.labels[kept], keys, self.names)

    def counts(self, num_classes: int) -> np.ndarray:
        """Return the number of votes of each row for each class, (rows, classes)."""
        cells = np.bincount(self.rows * num_classes + self.labels, minlength=len(self.keys) * num_classes)
        return np.asarray(cells.reshape(-1, num_classes))

    def fractions(self, num_classes: int) -> np.ndarray:
        """Return the fraction of each row's votes for each class; NaN for a row without votes."""
        counts = self.counts(num_classes).astype(np.float64)
        total = counts.sum(axis=1, keepdims=True)
        return np.asarray(np.divide(counts, total, out=np.full_like(counts, np.nan), where=total > 0))

    def soft_labels(self, num_classes: int) -> np.ndarray:
        """Return given labels (rows, classes): the posterior of Dawid and Skene's model, or vote fractions.

        Vote fractions are returned if there are fewer than three annotators. NaN for a row without votes.
        """
        fractions = self.fractions(num_classes)
        if not self.show_who_is_right or num_classes < 2:
            return fractions
        return np.where(np.isnan(fractions), np.nan, dawid_skene(self, num_classes).probs)


@dataclass(frozen=True)
class Crowd:
    """The posteriors of rows and the confusion matrices of annotators, from votes and possibly predictions.

    Attributes
    ----------
    probs
        The posterior of the true class, (rows, classes).
    confusion
        ``confusion[a, k, l]``: the probability that annotator ``a`` names class ``l`` where ``k`` is true.
    class_prior
        The mean posterior of the rows with votes.
    """

    probs: np.ndarray
    confusion: np.ndarray
    class_prior: np.ndarray


def dawid_skene(
    votes: Votes,
    num_classes: int,
    prior: np.ndarray | None = None,
    weights: np.ndarray | None = None,
    *,
    shrinkage: float = SHRINKAGE,
    mean_shrinkage: float = MEAN_SHRINKAGE,
) -> Crowd:
    """Fit a confusion matrix to every annotator and a posterior to every row, by expectation maximisation.

    The posterior of a row is its prior times the likelihood of all its votes. An annotator who always names the same
    class gets the mean matrix of all annotators, because such votes do not determine a matrix.

    Parameters
    ----------
    votes
        The votes.
    num_classes
        The number of classes.
    prior
        Class probabilities of each row before its votes, such as calibrated out-of-sample predictions, (rows,
        classes). By default all rows have the same prior, which is estimated as in the paper.
    weights
        Exponent of the likelihood of each row's votes; 1 by default.
    shrinkage, mean_shrinkage
        As :data:`SHRINKAGE` and :data:`MEAN_SHRINKAGE`; 0 is the paper's model.
    """
    annotators = len(votes.names)
    cells = votes.annotators * num_classes + votes.labels
    said = csr_array((np.ones(len(cells)), (cells, votes.rows)), shape=(annotators * num_classes, len(votes.keys)))
    used = np.bincount(cells, minlength=annotators * num_classes).reshape(annotators, num_classes) > 0
    constant = used.sum(axis=1) == 1 if shrinkage else np.zeros(annotators, dtype=bool)
    counts = votes.counts(num_classes)
    known = counts.sum(axis=1) > 0
    named = _as_rows(counts.sum(axis=0) + TINY)
    start = counts + (0.0 if prior is None else prior)
    total = start.sum(axis=1, keepdims=True)
    probs = np.divide(start, total, out=np.full(start.shape, 1 / num_classes), where=total > 0)
    for _ in range(ITERATIONS):
        joint = (said @ probs).reshape(annotators, num_classes, num_classes).transpose(0, 2, 1)
        confusion = _shrunk(joint, constant, shrinkage, mean_shrinkage)
        class_prior = _as_rows(probs[known].sum(axis=0) + mean_shrinkage * named + TINY)
        by_cell = np.log(confusion).transpose(0, 2, 1).reshape(-1, num_classes)
        scores = said.T @ by_cell
        scores = scores if weights is None else weights[:, None] * scores
        scores = scores + np.log(np.maximum(class_prior if prior is None else prior, 1e-12))
        new = np.exp(scores - scores.max(axis=1, keepdims=True))
        new /= new.sum(axis=1, keepdims=True)
        change, probs = np.abs(new - probs).max(initial=0.0), new
        if change < TOLERANCE:
            break
    return Crowd(probs, confusion, class_prior)


def _shrunk(joint: np.ndarray, constant: np.ndarray, shrinkage: float, mean_shrinkage: float) -> np.ndarray:
    """Return the confusion matrices of all annotators from their expected votes (annotator, true, named)."""
    num_classes = joint.shape[1]
    pooled = joint.sum(axis=0)
    right = np.trace(pooled) / max(pooled.sum(), TINY)
    equal = np.full((num_classes, num_classes), (1 - right) / max(1, num_classes - 1))
    np.fill_diagonal(equal, right)
    mean = _as_rows(pooled + mean_shrinkage * equal + TINY)
    return np.where(constant[:, None, None], mean, _as_rows(joint + shrinkage * mean + TINY))


def _as_rows(values: np.ndarray) -> np.ndarray:
    scaled: np.ndarray = values / values.sum(axis=-1, keepdims=True)
    return scaled


def votes_of_columns(codes: Sequence[np.ndarray], names: Sequence[str], keys: np.ndarray) -> Votes:
    """Return the votes in one array of class indices per annotator; a negative index is not a vote."""
    rows = [np.flatnonzero(one >= 0) for one in codes]
    return Votes(
        np.concatenate(rows),
        np.repeat(np.arange(len(codes)), [len(one) for one in rows]),
        np.concatenate([one[chosen] for one, chosen in zip(codes, rows, strict=True)]),
        keys,
        tuple(names),
    )
