"""Reading labels: the corrected class of every row, how sure it is, and how far that can be trusted."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pencil.data.given import hard_labels


@dataclass(frozen=True)
class LabelReading:
    """What a set of label distributions says, row by row, beside the labels that were given."""

    given: Tensor
    corrected: Tensor
    confidence: Tensor
    given_probability: Tensor
    margin: Tensor
    entropy: Tensor
    changed: Tensor


def read_labels(label_probs: Tensor, given_labels: Tensor) -> LabelReading:
    """Corrected label, its probability, the given label's, the lead over the runner-up and the entropy in nats."""
    given = hard_labels(given_labels)
    best = label_probs.topk(2, dim=1)
    corrected = best.indices[:, 0]
    return LabelReading(
        given=given,
        corrected=corrected,
        confidence=best.values[:, 0],
        given_probability=label_probs.gather(1, given[:, None])[:, 0],
        margin=best.values[:, 0] - best.values[:, 1],
        entropy=torch.special.entr(label_probs).sum(dim=1),
        changed=corrected != given,
    )


BINS = 10


def reliability(confidence: Tensor, right: Tensor) -> dict[str, Any]:
    """How far confidences can be trusted: in each tenth that is not empty, how sure labels are and how many are right.

    ``error`` is the expected calibration error, the mean distance between the two, weighted by the rows.
    """
    places = (confidence.double() * BINS).long().clamp(0, BINS - 1)
    bins, error = [], 0.0
    for place in places.unique().tolist():
        inside = places == place
        sure, share = float(confidence[inside].double().mean()), float(right[inside].double().mean())
        bins.append({"rows": int(inside.sum()), "confidence": sure, "right": share})
        error += float(inside.double().mean()) * abs(sure - share)
    return {"error": error, "bins": bins}


@dataclass(frozen=True)
class EntryReading:
    """What the labels say entry by entry, beside what was given; unknown entries are never counted as changed."""

    given: Tensor
    corrected: Tensor
    known: Tensor
    confidence: Tensor
    changed: Tensor


def read_entries(label_probs: Tensor, given_labels: Tensor) -> EntryReading:
    """Present above one half; confidence is the probability of what is said, present or absent."""
    known = ~given_labels.isnan()
    given, corrected = given_labels > 0.5, label_probs > 0.5
    return EntryReading(
        given, corrected, known, torch.maximum(label_probs, 1 - label_probs), (given != corrected) & known
    )
