"""Scores of predictions: accuracy for single-label data; mAP and F1 for multi-label data."""

from typing import Any

import numpy as np
import torch
from sklearn.metrics import average_precision_score
from torch import Tensor

from pencil.data.given.given_labels import hard_labels

Scores = dict[str, Any]


def average_precisions(scores: Tensor, labels: Tensor) -> np.ndarray:
    """Return the average precision per class, over rows where it is known; NaN without positives or negatives."""
    known, present = (~labels.isnan()).numpy(), (labels > 0.5).numpy()
    found = np.full(labels.shape[1], np.nan)
    for k in range(labels.shape[1]):
        rows = known[:, k]
        if 0 < present[rows, k].sum() < rows.sum():
            found[k] = average_precision_score(present[rows, k], scores[:, k].numpy()[rows])
    return found


def mean_average_precision(scores: Tensor, labels: Tensor) -> float:
    """Return the mean over classes that can be measured (0 if there are none); soft labels are present above 0.5."""
    found = average_precisions(scores, labels)
    return 0.0 if np.isnan(found).all() else float(np.nanmean(found))


def multilabel_scores(probs: Tensor, labels: Tensor, threshold: float = 0.5) -> Scores:
    """Return mAP, and macro and micro F1 at a threshold, over known entries."""
    known, present = ~labels.isnan(), labels > 0.5
    predicted = probs > threshold
    hits = (predicted & present & known).sum(dim=0).double()
    errors = ((predicted != present) & known).sum(dim=0).double()
    with_any = (2 * hits + errors) > 0
    f1 = 2 * hits / (2 * hits + errors)
    measurable = bool((present & known).any())
    return {
        "map": mean_average_precision(probs, labels),
        "map_micro": float(average_precision_score(present[known].numpy(), probs[known].numpy()))
        if measurable
        else 0.0,
        "threshold": threshold,
        "f1": float(f1[with_any].mean()) if with_any.any() else 0.0,
        "f1_micro": float(2 * hits.sum() / (2 * hits.sum() + errors.sum()).clamp(min=1)),
        "class_f1": [value if seen else None for value, seen in zip(f1.tolist(), with_any.tolist(), strict=True)],
    }


def scores_by_class(probs: Tensor, labels: Tensor) -> Scores:
    """Return the accuracy, and the accuracy and the number of rows of each class; None for a class without rows."""
    named = hard_labels(labels)
    right = probs.argmax(dim=1) == named
    rows = torch.bincount(named, minlength=probs.shape[1]).tolist()
    scores = [float(right[named == k].double().mean()) if count else None for k, count in enumerate(rows)]
    found = {"accuracy": float(right.double().mean()), "rows": len(named)}
    return {**found, "per_class": scores, "class_rows": rows}


def entry_scores_by_class(probs: Tensor, labels: Tensor, threshold: float) -> Scores:
    """Return :func:`multilabel_scores`, and the average precision and the number of rows of each class."""
    scores = [None if np.isnan(value) else float(value) for value in average_precisions(probs, labels)]
    rows = (labels > 0.5).sum(dim=0).tolist()
    found = {**multilabel_scores(probs, labels, threshold), "rows": len(labels)}
    return {**found, "per_class": scores, "class_rows": rows}
