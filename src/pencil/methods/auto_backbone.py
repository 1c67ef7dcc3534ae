"""The backbone phase of :class:`pencil.methods.Auto`: its pace and its losses."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from pencil.data.given.given_labels import hard_labels, has_tie
from pencil.labels.losses import cross_entropy, log_probs
from pencil.labels.noise_model import (
    CONFIDENT_FRACTION,
    MANY_CLASSES,
    NoiseModel,
    direction,
    disagreement_of_surest,
    noise_shape,
)
from pencil.labels.protocol import HeldOut
from pencil.methods.base import Terms
from pencil.methods.elr import clamped_probs, early_learning_loss, moved_targets

ELR_BETA = 0.7
"""ELR's beta: the weight of earlier predictions in the running mean."""


class Pacing(NamedTuple):
    """How ``auto`` paces a run.

    With fewer epochs than ``min_visits``, labels are judged by the predictions of the last network instead of all
    epochs. The learning rate falls after the fraction ``hold`` of the budget. From the fraction ``correct_from`` on,
    the backbone phase ends as soon as labels are worth correcting. The memory of averaged weights is one epoch, or the
    fraction ``ema_memory`` of the budget if that is less. ``dropout`` says whether a perceptron trains with dropout,
    ``early_learning`` whether the backbone phase has ELR's regulariser.
    """

    min_visits: int
    hold: float
    ema_memory: float
    dropout: bool
    correct_from: float
    early_learning: bool


SINGLE_LABEL = Pacing(min_visits=0, hold=0.0, ema_memory=1.0, dropout=True, correct_from=1.0, early_learning=True)
MULTI_LABEL = Pacing(
    min_visits=5,  # with fewer, visits from before the network has seen all rows weigh too much
    hold=0.75,  # small and rare objects are learned late, at a high rate
    ema_memory=1 / 40,  # a tenth of the decay period of the rate: an average lags behind
    dropout=False,  # with dropout a perceptron learned less in short budgets
    correct_from=0.6,
    # The first predictions reflect what is true of most rows: ELR's regulariser would keep a class that the network has
    # not learned yet absent.
    early_learning=False,
)


def class_frequency(given_labels: Tensor, num_classes: int) -> Tensor:
    """Return the frequency of each class among the given labels, with one row more of each."""
    counts = hard_labels(given_labels)[~has_tie(given_labels)].bincount(minlength=num_classes).double()
    return (counts + 1) / (counts + 1).sum()


def relative_targets(targets: Tensor, frequency: Tensor) -> Tensor:
    """Return ELR's targets divided by the square root of the class frequencies, rescaled to their previous sum.

    The regulariser then holds on less to a prediction that only follows the frequencies. Divided by the frequencies
    themselves, such a prediction would be uniform, but a class of 5 % would pull all other rows to itself: of six runs
    on two classes with 6 % of the labels wrong, three ended no better than chance.
    """
    relative = targets / frequency.sqrt().to(targets)
    return relative * (targets.sum(dim=1, keepdim=True) / relative.sum(dim=1, keepdim=True))


def early_learning_terms(
    classification: Tensor, logits: Tensor, stored_probs: Tensor, epochs: int, frequency: Tensor, weight: float
) -> Terms:
    """Return the loss on the given labels plus ELR's regulariser; ``carry`` is the new targets.

    Until labels are corrected, the label store holds ELR's targets, scaled to sum to one. The targets start at zero and
    every epoch visits every row, so after k epochs their sum is ``1 - beta ** k``. The regulariser gets them relative
    to the class frequencies: a network that has learned only the frequencies, as all networks do at first if classes
    are rare, has not learned anything worth keeping.
    """
    probs = clamped_probs(logits)
    targets = moved_targets(stored_probs * (1 - ELR_BETA**epochs), probs, ELR_BETA)
    regularizer = early_learning_loss(probs, relative_targets(targets, frequency))
    parts = {"classification": classification.detach(), "early_learning": regularizer.detach()}
    return Terms(classification + weight * regularizer, parts, carry=targets)


def noise_share(held_out: HeldOut) -> float:
    """Return the fraction of the disagreement with held-out labels that is noise, not the network's own mistakes.

    ELR's regulariser makes predictions confident. A network with more mistakes than the labels would become confident
    in its own mistakes, and right labels would look wrong.
    """
    logits, given = held_out[0], hard_labels(held_out[1])
    wrong = float((logits.argmax(dim=1) != given).double().mean())
    return min(1.0, max(0.0, disagreement_of_surest(logits, given)) / wrong) if wrong else 0.0


def spread_noise(held_out: HeldOut) -> float:
    """Return the estimated fraction of labels that are drawn at random from all classes.

    It is the disagreement with the surest predictions minus a standard error, less the noise that prefers some classes
    to others (:func:`pencil.labels.noise_model.direction`). A weak network's mistakes count as noise too. With two
    classes noise has no direction, and with very many it cannot be estimated: the fraction is then 0. It is also 0 if
    labels seem to say nothing, because then the network is wrong.
    """
    logits, given = held_out[0], hard_labels(held_out[1])
    classes = logits.shape[1]
    if not 2 < classes <= MANY_CLASSES:
        return 0.0
    wrong = max(0.0, disagreement_of_surest(logits, given))
    wrong -= math.sqrt(wrong * (1 - wrong) / max(1.0, CONFIDENT_FRACTION * len(given)))
    rate = wrong * classes / (classes - 1)  # a label that is drawn at random may be right
    return rate * (1 - direction(noise_shape(logits, given))) if 0 < rate < 1 else 0.0


def spread_noise_model(rate: float, num_classes: int) -> NoiseModel | None:
    """Return the noise that :func:`spread_noise_loss` assumes; None if there is none.

    A network that trains with this loss becomes sure of the true classes. Without the noise its predictions would say
    less and less about held-out labels, as if it memorised.
    """
    if not rate:
        return None
    transition = (1 - rate) * torch.eye(num_classes, dtype=torch.float64) + rate / num_classes
    return NoiseModel(rate, rate, rate, temperature=1.0, transition=transition)


def spread_noise_loss(logits: Tensor, given_labels: Tensor, rate: float) -> Tensor:
    """``CE(y_hat, (1 - rate) * f + rate / c)``: the fraction ``rate``, above 0, of labels is drawn at random.

    The forward loss (Patrini et al. 2017) of symmetric noise. A label that the network considers impossible has hardly
    any gradient, so the network learns it late.
    """
    log_f = log_probs(logits)
    log_random = log_f.new_full((), math.log(rate / logits.shape[1]))
    return cross_entropy(torch.logaddexp(log_f + math.log1p(-rate), log_random), given_labels)


def z_score(gain: Tensor) -> float:
    """Return the mean gain in standard errors; infinite if all rows gain the same."""
    mean, error = float(gain.double().mean()), float(gain.double().std(correction=0) / len(gain) ** 0.5)
    return mean / error if error else mean * math.inf if mean else 0.0
