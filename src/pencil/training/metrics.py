"""Scores of predictions and labels, for single-label and multi-label data."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pencil.data.examples import Examples
from pencil.data.pinned import apply_pinned
from pencil.labels.forms import label_form

Metrics = dict[str, Any]


def evaluate(logits: Tensor, examples: Examples) -> Metrics:
    """Return loss and score of predictions; unreadable rows (NaN) are ignored."""
    seen = ~logits[:, 0].isnan()
    logits, labels = logits[seen], examples.given_labels[seen]
    form = label_form(examples.multilabel)
    return {"loss": float(form.given_loss(logits, labels)), form.score: form.score_of(logits, labels)}


class LabelTotals:
    """Sums over chunks of rows: changed labels (or entries), their entropy, and the number of right ones if known."""

    def __init__(self) -> None:
        self.changed, self.entropy, self.counted = 0.0, 0.0, 0.0
        self.right, self.known = 0.0, 0.0

    def add(self, label_probs: Tensor, examples: Examples) -> None:
        """Add a chunk of rows."""
        clean, label_probs = examples.clean_labels, apply_pinned(label_probs, examples)
        reading = label_form(examples.multilabel).read(label_probs, examples.given_labels)
        entropy = reading.entropy
        self.changed += float(reading.changed.sum())
        self.entropy += float(entropy.double().sum())
        self.counted += entropy.numel()
        if clean is not None:
            known = ~clean.isnan()
            self.right += float(reading.agrees(clean)[known].sum())
            self.known += float(known.sum())

    def means(self, all_reduce_sum: Callable[[Tensor], Tensor] | None = None) -> Metrics:
        """Return the means; ``all_reduce_sum`` adds up the sums of several processes."""
        sums = torch.tensor([self.changed, self.entropy, self.counted, self.right, self.known], dtype=torch.float64)
        changed, entropy, counted, right, known = (sums if all_reduce_sum is None else all_reduce_sum(sums)).tolist()
        metrics: Metrics = {"labels_changed": int(changed), "label_entropy": entropy / max(1.0, counted)}
        return metrics | {"labels_correct": right / known} if known else metrics


def per_class_scores(probs: Tensor, examples: Examples, threshold: float = 0.5) -> Metrics:
    """Return all scores of predictions on labelled examples, overall and per class; unreadable rows are ignored.

    ``threshold`` is for the F1 of multi-label data.
    """
    seen = ~probs[:, 0].isnan()
    probs, labels = probs[seen], examples.given_labels[seen]
    found = label_form(examples.multilabel).scores_by_class(probs, labels, threshold)
    for name in ("class_f1", "per_class", "class_rows"):
        if name in found:
            found[name] = dict(zip(examples.classes, found[name], strict=True))
    return found
