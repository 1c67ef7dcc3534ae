"""Who is right when annotators disagree, from the network's prediction and all votes, and how good each annotator is.

The posterior of a row is the network's calibrated out-of-sample prediction times the likelihood of every vote.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pencil.data.given.votes import Crowd, Votes, dawid_skene
from pencil.labels.chance import wilson_upper

VOTE_WEIGHT = 0.8
"""Exponent of the likelihood of votes that are combined with a prediction: annotators tend to be wrong about the same
rows, so their votes are not independent. On LabelMe it gains 0.6 points, on film reviews and spam nothing."""
SHOWN_CONFUSIONS = 3
"""Number of confusions listed for each annotator, the most frequent first."""


@dataclass(frozen=True)
class Confusion:
    """An annotator names ``named`` for this fraction of the rows whose true class is ``true``."""

    true: str
    named: str
    rate: float


@dataclass(frozen=True)
class Annotator:
    """What is known about an annotator.

    Attributes
    ----------
    name
        The column, or the value of the annotator column.
    answers
        The number of votes.
    agreement
        The fraction of other annotators' votes on the same rows that name the same class; None without such votes.
    accuracy
        The estimated fraction of right votes: their mean probability given the network and all votes.
    at_random
        Whether the votes are significantly closer to chance than to the mean accuracy.
    confusions
        The classes that this annotator mixes up most.
    """

    name: str
    answers: int
    agreement: float | None
    accuracy: float
    at_random: bool
    confusions: tuple[Confusion, ...] = ()


@dataclass(frozen=True)
class Consensus:
    """The votes for some rows, the resulting posteriors, and whether they include a network's predictions."""

    votes: Votes
    crowd: Crowd
    with_network: bool


def consensus(
    votes: Votes, num_classes: int, predictions: np.ndarray | None = None, weights: np.ndarray | None = None
) -> Crowd:
    """Return the posterior of every row and the confusion matrices.

    Parameters
    ----------
    votes
        The votes; the rows of the other arguments are in the order of its keys.
    num_classes
        The number of classes.
    predictions
        Calibrated out-of-sample class probabilities of the rows, if a network has learned anything.
    weights
        Exponent of the likelihood of each row's votes: below 1 if its prediction already contains part of its label.
    """
    if predictions is None and not votes.show_who_is_right:
        fractions = votes.fractions(num_classes)
        known = np.where(np.isnan(fractions), 1 / num_classes, fractions)
        return Crowd(known, dawid_skene(votes, num_classes, known).confusion, known.mean(axis=0))
    if predictions is not None:
        weights = VOTE_WEIGHT * (np.ones(len(votes.keys)) if weights is None else weights)
    return dawid_skene(votes, num_classes, predictions, weights)


def describe_annotators(votes: Votes, crowd: Crowd, classes: Sequence[str]) -> tuple[Annotator, ...]:
    """Return the statistics of every annotator who voted, the least accurate first.

    Chance is how often independent draws from the annotator's votes and from the classes of the rows agree. An
    annotator answers at random if the upper 95 % limit of the accuracy is below the midpoint between chance and the
    mean accuracy of all votes.
    """
    num_classes, count = len(classes), len(votes.names)
    answers = np.bincount(votes.annotators, minlength=count)
    right = crowd.probs[votes.rows, votes.labels]
    accuracy = np.bincount(votes.annotators, right, count) / np.maximum(answers, 1)
    cells = np.bincount(votes.annotators * num_classes + votes.labels, minlength=count * num_classes)
    named = cells.reshape(count, num_classes) / np.maximum(answers, 1)[:, None]
    chance = named @ crowd.class_prior
    limit = (chance + (right.mean() if len(right) else 0.0)) / 2
    at_random = wilson_upper(accuracy, np.maximum(answers, 1)) < limit
    others = votes.counts(num_classes)
    same = others[votes.rows, votes.labels] - 1
    pairs = np.bincount(votes.annotators, others.sum(axis=1)[votes.rows] - 1, count)
    agreeing = np.bincount(votes.annotators, same, count)
    found = [
        Annotator(
            votes.names[place],
            int(answers[place]),
            float(agreeing[place] / pairs[place]) if pairs[place] else None,
            float(accuracy[place]),
            bool(at_random[place]),
            _confusions(votes, crowd, classes, place),
        )
        for place in np.flatnonzero(answers).tolist()
    ]
    return tuple(sorted(found, key=lambda one: (one.accuracy, one.name)))


def _confusions(votes: Votes, crowd: Crowd, classes: Sequence[str], place: int) -> tuple[Confusion, ...]:
    """Return the confusions of an annotator with at least one expected vote, the most votes first."""
    mine = votes.annotators == place
    expected = np.zeros((len(classes), len(classes)))
    np.add.at(expected.T, votes.labels[mine], crowd.probs[votes.rows[mine]])
    rates = expected / np.maximum(expected.sum(axis=1, keepdims=True), 1e-12)
    np.fill_diagonal(expected, 0.0)
    order = np.argsort(-expected, axis=None, kind="stable")[:SHOWN_CONFUSIONS]
    pairs = [divmod(cell, len(classes)) for cell in order.tolist() if expected.flat[cell] >= 1]
    return tuple(Confusion(classes[true], classes[said], float(rates[true, said])) for true, said in pairs)


def opinion_order(votes: Votes, crowd: Crowd) -> np.ndarray:
    """Return the rows, those that most need another opinion first: the rows with the least certain consensus.

    Among rows of equal certainty, rows with fewer votes come first.
    """
    counts = np.bincount(votes.rows, minlength=len(votes.keys))
    order: np.ndarray = np.lexsort((counts, crowd.probs.max(axis=1)))
    return order
