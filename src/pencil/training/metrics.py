"""Scores of predictions and labels, for single-label and multi-label data."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from sklearn.metrics import average_precision_score
from torch import Tensor

from pencil.data.examples import Examples
from pencil.data.given.given_labels import hard_labels, has_tie
from pencil.data.pinned import apply_pinned
from pencil.labels.losses import cross_entropy
from pencil.labels.multilabel_losses import binary_cross_entropy
from pencil.labels.reading import read_entries, read_labels

Metrics = dict[str, Any]
SCORES = {False: "accuracy", True: "map"}
"""The score that selects the best epoch: accuracy for single-label data, mAP for multi-label data."""


def to_probs(logits: Tensor, multilabel: bool) -> Tensor:
    """Return probabilities: sigmoid for multi-label data, otherwise softmax."""
    return logits.sigmoid() if multilabel else logits.softmax(dim=1)


def evaluate(logits: Tensor, examples: Examples) -> Metrics:
    """Return loss and score of predictions; unreadable rows (NaN) are ignored."""
    seen = ~logits[:, 0].isnan()
    logits, labels = logits[seen], examples.given_labels[seen]
    if examples.multilabel:
        loss = binary_cross_entropy(logits, labels) / logits.shape[1]
        return {"loss": float(loss), "map": mean_average_precision(logits, labels)}
    return {"loss": float(cross_entropy(logits, labels)), "accuracy": accuracy(logits, labels)}


def accuracy(logits: Tensor, labels: Tensor) -> float:
    """Return the fraction of examples whose most probable class is the label."""
    return float((logits.argmax(dim=1) == hard_labels(labels)).double().mean())


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


def multilabel_scores(probs: Tensor, labels: Tensor, threshold: float = 0.5) -> Metrics:
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


def training_hits(logits: Tensor, given_labels: Tensor, multilabel: bool) -> tuple[float, float]:
    """Return how many rows (known entries of multi-label data) agree with the given label, and how many have one."""
    if multilabel:
        known = ~given_labels.isnan()
        agree = ((logits > 0) == (given_labels > 0.5)) & known
        hits, entries = torch.stack([agree.sum(), known.sum()]).tolist()  # a single device synchronisation
        return float(hits), float(entries)
    if given_labels.ndim == 2:
        decided = ~has_tie(given_labels)
        logits, given_labels = logits[decided], given_labels[decided]
    labels = hard_labels(given_labels).unsqueeze(1)  # a maximum costs a tenth of an argmax
    return float((logits.gather(1, labels) == logits.amax(dim=1, keepdim=True)).sum()), float(len(labels))


class LabelTotals:
    """Sums over chunks of rows: changed labels (or entries), their entropy, and the number of right ones if known."""

    def __init__(self) -> None:
        self.changed, self.entropy, self.counted = 0.0, 0.0, 0.0
        self.right, self.known = 0.0, 0.0

    def add(self, label_probs: Tensor, examples: Examples) -> None:
        """Add a chunk of rows."""
        clean, label_probs = examples.clean_labels, apply_pinned(label_probs, examples)
        if examples.multilabel:
            entries = read_entries(label_probs, examples.given_labels)
            entropy = (torch.special.entr(label_probs) + torch.special.entr(1 - label_probs))[entries.known]
            changed, corrected = entries.changed, entries.corrected
        else:
            reading = read_labels(label_probs, examples.given_labels)
            changed, corrected, entropy = reading.changed, reading.corrected, reading.entropy
        self.changed += float(changed.sum())
        self.entropy += float(entropy.double().sum())
        self.counted += entropy.numel()
        if clean is not None:
            known = ~clean.isnan()
            self.right += float((corrected == (clean > 0.5 if examples.multilabel else clean))[known].sum())
            self.known += float(known.sum())

    def means(self, all_reduce_sum: Callable[[Tensor], Tensor] | None = None) -> Metrics:
        """Return the means; ``all_reduce_sum`` adds up the sums of several processes."""
        sums = torch.tensor([self.changed, self.entropy, self.counted, self.right, self.known], dtype=torch.float64)
        changed, entropy, counted, right, known = (sums if all_reduce_sum is None else all_reduce_sum(sums)).tolist()
        metrics: Metrics = {"labels_changed": int(changed), "label_entropy": entropy / max(1.0, counted)}
        return metrics | {"labels_correct": right / known} if known else metrics


def correct_entries(labels: Tensor, clean_labels: Tensor) -> float:
    """Return the fraction of entries that agree with clean labels, where these are known."""
    known = ~clean_labels.isnan()
    return float((labels == (clean_labels > 0.5))[known].double().mean())


def per_class_scores(probs: Tensor, examples: Examples, threshold: float = 0.5) -> Metrics:
    """Return all scores of predictions on labelled examples, overall and per class; unreadable rows are ignored.

    ``threshold`` is for the F1 of multi-label data.
    """
    seen = ~probs[:, 0].isnan()
    probs, labels = probs[seen], examples.given_labels[seen]
    if examples.multilabel:
        scores = [None if np.isnan(value) else float(value) for value in average_precisions(probs, labels)]
        rows = (labels > 0.5).sum(dim=0).tolist()
        found = multilabel_scores(probs, labels, threshold)
        found["class_f1"] = dict(zip(examples.classes, found["class_f1"], strict=True))
    else:
        named = hard_labels(labels)
        right = probs.argmax(dim=1) == named
        rows = torch.bincount(named, minlength=examples.num_classes).tolist()
        scores = [float(right[named == k].double().mean()) if count else None for k, count in enumerate(rows)]
        found = {"accuracy": float(right.double().mean())}
    return {
        **found,
        "rows": int(seen.sum()),
        "per_class": dict(zip(examples.classes, scores, strict=True)),
        "class_rows": dict(zip(examples.classes, rows, strict=True)),
    }
