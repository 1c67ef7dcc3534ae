"""Reading labels: the corrected label of every row, its confidence, and the calibration of confidences."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pencil.data.given.given_labels import hard_labels, has_tie
from pencil.labels.rows import rows_at_a_time


@dataclass(frozen=True)
class LabelReading:
    """Given and corrected labels of single-label data, one entry per row.

    Attributes
    ----------
    given, corrected
        Class indices; ``given`` is -1 for undecided rows.
    confidence
        Probability of the corrected class.
    given_probability
        Probability of the given class; NaN for undecided rows.
    margin
        Confidence minus the second largest probability.
    entropy
        Entropy of the label distribution, in nats.
    changed
        Whether the corrected class differs from the given one; never for undecided rows.
    undecided
        Whether there is no given class: the row is unlabelled, or its given distribution has a tie.
    """

    given: Tensor
    corrected: Tensor
    confidence: Tensor
    given_probability: Tensor
    margin: Tensor
    entropy: Tensor
    changed: Tensor
    undecided: Tensor

    def __repr__(self) -> str:
        return f"LabelReading({len(self.given):,} rows, {int(self.changed.sum()):,} changed)"

    @property
    def count(self) -> int:
        """The number of labels: one per row."""
        return len(self.given)

    @property
    def known(self) -> Tensor:
        """Whether each row has a given class."""
        return ~self.undecided

    def agrees(self, clean_labels: Tensor) -> Tensor:
        """Return whether each corrected class is the clean one."""
        return self.corrected == clean_labels


def read_labels(label_probs: Tensor, given_labels: Tensor) -> LabelReading:
    """Return the corrected labels of single-label data.

    Parameters
    ----------
    label_probs
        Label distributions of shape ``(rows, classes)``, for example from :meth:`pencil.LabelStore.probs`.
    given_labels
        Class indices ``(rows,)``, -1 for none, or distributions ``(rows, classes)``.
    """
    given = hard_labels(given_labels)
    undecided = has_tie(given_labels)
    best = label_probs.topk(2, dim=1)
    corrected = best.indices[:, 0]
    blocks = label_probs.split(rows_at_a_time(label_probs.shape[1]))
    return LabelReading(
        given=given.masked_fill(undecided, -1),
        corrected=corrected,
        confidence=best.values[:, 0],
        given_probability=label_probs.gather(1, given.clamp_min(0)[:, None])[:, 0].masked_fill(undecided, torch.nan),
        margin=best.values[:, 0] - best.values[:, 1],
        entropy=torch.cat([torch.special.entr(block).sum(dim=1) for block in blocks]),
        changed=(corrected != given) & ~undecided,
        undecided=undecided,
    )


BINS = 10


def bin_totals(confidence: Tensor, right: Tensor) -> Tensor:
    """Return row count, summed confidence and right rows of each bin of width 0.1, (10, 3).

    Totals of parts can be added. ``confidence`` is the probability of the corrected class of each row; ``right`` says
    whether that class is right.
    """
    numbers = (confidence.double() * BINS).long().clamp(0, BINS - 1)
    totals = torch.zeros(BINS, 3, dtype=torch.float64)
    for number in numbers.unique().tolist():
        inside = numbers == number
        totals[number] = torch.stack([inside.sum(), confidence[inside].double().sum(), right[inside].sum()])
    return totals


def calibration(totals: Tensor) -> dict[str, Any]:
    """Return the calibration of confidences from :func:`bin_totals`: rows, mean confidence and accuracy of each bin.

    ``error`` is the expected calibration error: the mean distance between the two, weighted by the number of rows.
    Empty bins are left out.
    """
    bins, error, everything = [], 0.0, float(totals[:, 0].sum())
    for rows, confidences, right in totals[totals[:, 0] > 0].tolist():
        mean_confidence, accuracy = confidences / rows, right / rows
        bins.append({"rows": int(rows), "confidence": mean_confidence, "right": accuracy})
        error += rows / everything * abs(mean_confidence - accuracy)
    return {"error": error, "bins": bins}


@dataclass(frozen=True)
class EntryReading:
    """Given and corrected labels of multi-label data, one entry per (row, class).

    Attributes
    ----------
    given, corrected
        Whether the class is present.
    known
        Whether the entry is given.
    confidence
        Probability of the corrected value, present or absent.
    changed
        Whether the corrected entry differs from the given one; never true for unknown entries.
    label_probs
        The label probabilities.
    """

    given: Tensor
    corrected: Tensor
    known: Tensor
    confidence: Tensor
    changed: Tensor
    label_probs: Tensor

    def __repr__(self) -> str:
        return f"EntryReading({len(self.given):,} rows, {int(self.changed.sum()):,} entries changed)"

    @property
    def count(self) -> int:
        """The number of labels: one per known entry."""
        return int(self.known.sum())

    @property
    def entropy(self) -> Tensor:
        """Entropy of each known entry, in nats."""
        entropy: Tensor = torch.special.entr(self.label_probs) + torch.special.entr(1 - self.label_probs)
        return entropy[self.known]

    def agrees(self, clean_labels: Tensor) -> Tensor:
        """Return whether each corrected entry is the clean one."""
        return self.corrected == (clean_labels > 0.5)


def read_entries(label_probs: Tensor, given_labels: Tensor) -> EntryReading:
    """Return the corrected labels of multi-label data: a class is present if its probability is above one half.

    Parameters
    ----------
    label_probs
        Label probabilities of shape ``(rows, classes)``.
    given_labels
        Given probabilities of the same shape, NaN for unknown entries.
    """
    known = ~given_labels.isnan()
    given, corrected = given_labels > 0.5, label_probs > 0.5
    confidence = torch.maximum(label_probs, 1 - label_probs)
    return EntryReading(given, corrected, known, confidence, (given != corrected) & known, label_probs)
