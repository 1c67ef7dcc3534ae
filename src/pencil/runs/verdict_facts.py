"""The facts behind a run's verdict, and how well its issue scores detect wrong labels if clean labels are known."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from sklearn.metrics import average_precision_score, roc_auc_score
from torch import Tensor

from pencil.data.examples import Examples, Splits
from pencil.data.pinned import apply_pinned
from pencil.labels.forms import label_form
from pencil.labels.gain import gain_at, gain_curve
from pencil.labels.outliers import FLAGGED
from pencil.labels.reading import read_entries
from pencil.labels.verdict import DO_NOT_USE, Facts, Gain, Verdict, decide
from pencil.runs.summary import Detection
from pencil.runs.totals import RowTotals, row_totals
from pencil.training import Outcome
from pencil.training.record import TrainRows

FIRST = 200
"""Number of rows for the precision of the list: about as many as a person reviews in one session."""
FEW_ROWS = 2
"""Smaller classes are not checked for losing half of their rows."""


def settle(splits: Splits, outcome: Outcome, totals: RowTotals | None) -> tuple[Outcome, Verdict, Facts]:
    """Return the outcome with the labels that a user should have, the verdict about them, and its facts.

    Corrections that should not be used are not used: labels are then as given, and issue scores remain as a
    ranking. ``totals`` are over all ranks, for single-label data.
    """
    facts = collect_facts(splits, outcome, totals)
    verdict = decide(facts)
    return (keep_given_labels(splits, outcome) if verdict.level == DO_NOT_USE else outcome), verdict, facts


def keep_given_labels(splits: Splits, outcome: Outcome, *, only_outliers: bool = False) -> Outcome:
    """Return the outcome with every label as given, or only the labels of outliers, which are not relabelled."""
    form, rate = label_form(splits.train.multilabel), min(outcome.judgement.noise.rate, 0.49)
    flagged = {name: scores >= FLAGGED for name, scores in outcome.outlier_scores.items()}

    def given(part: Examples, probs: Tensor, split: str, places: Tensor) -> Tensor:
        kept = apply_pinned(form.keep_given(part.given_labels, probs, rate), part)
        return torch.where(flagged[split][places, None], kept, probs) if only_outliers else kept

    def shard() -> Iterator[TrainRows]:
        for rows in outcome.train_rows():
            probs = given(splits.train.subset(rows.places), rows.label_probs, "train", rows.places)
            yield replace(rows, label_probs=probs)

    if only_outliers and not any(bool(mask.any()) for mask in flagged.values()):
        return outcome
    held_out, probs = splits.validation, outcome.validation_probs
    if held_out is not None and probs is not None:
        outcome = replace(outcome, validation_probs=given(held_out, probs, "validation", torch.arange(len(held_out))))
    if outcome.shard is not None:
        return replace(outcome, shard=shard)
    train = splits.train
    return replace(outcome, label_probs=given(train, outcome.label_probs, "train", torch.arange(len(train))))


def collect_facts(splits: Splits, outcome: Outcome, totals: RowTotals | None = None) -> Facts:
    """Return the facts for a verdict; the labels of multi-label data are its known entries."""
    judgement, held_out, train = outcome.judgement, outcome.validation_dynamics, splits.train
    last, name = outcome.records[-1], f"validation_{label_form(train.multilabel).score}"
    if train.multilabel:
        totals = None
        labels = _of_entries(train, outcome.label_probs, judgement.probs)
    else:
        totals = totals or row_totals(train, outcome.train_rows())
        labels = _Labels(totals.curve, totals["decided"], totals.before, totals.after)
    halved = (labels.rows_before >= FEW_ROWS) & (2 * labels.rows_after < labels.rows_before)
    noise = judgement.noise
    low = max(noise.low, min(judgement.confident, noise.rate) / 2)
    # entries are judged by a cautious noise model, so their posterior is already the lower end
    rates = noise.rate, None if train.multilabel else low, noise.high
    return Facts(
        knows=judgement.knows,
        held_out_rows=0 if held_out is None else int((held_out.visits > 0).sum()),  # without unreadable rows
        epochs=len(outcome.records),
        agreement=None if train.multilabel else last.get(name),
        train_agreement=None if train.multilabel else last.get("train_accuracy"),
        changed=_changed_fraction(splits, outcome, totals),
        gain=Gain(*(gain_at(labels.curve, labels.count, rate) for rate in rates)),
        halved_classes=tuple(train.classes[k] for k in halved.nonzero()[:, 0].tolist()),
        kept_classes=tuple(train.classes[k] for k in judgement.lost_classes),
    )


@dataclass(frozen=True)
class _Labels:
    """Given and corrected labels: the gain, the number of labels, and rows per class."""

    curve: Tensor
    count: float
    rows_before: Tensor
    rows_after: Tensor


def _of_entries(train: Examples, label_probs: Tensor, posterior: Tensor) -> _Labels:
    entries = read_entries(label_probs, train.given_labels)
    known, pair = entries.known, (entries.given, entries.corrected)
    before, after = (torch.where(labels, posterior, 1 - posterior)[known] for labels in pair)
    counts = ((labels & known).sum(dim=0) for labels in pair)
    return _Labels(gain_curve(1 - before, after, entries.changed[known]), float(known.sum()), *counts)


def _changed_fraction(splits: Splits, outcome: Outcome, totals: RowTotals | None) -> float:
    """The fraction of training and held-out labels that changed; ``totals`` are the totals of single-label data."""
    parts: list[tuple[Examples | None, Tensor | None]] = [(splits.validation, outcome.validation_probs)]
    changed, decided = (0.0, 0.0) if totals is None else (totals["changed"], totals["decided"])
    if totals is None:
        parts.append((splits.train, outcome.label_probs))
    for examples, probs in parts:
        if examples is not None and probs is not None:
            reading = label_form(examples.multilabel).read(probs, examples.given_labels)
            changed, decided = changed + int(reading.changed.sum()), decided + int(reading.known.sum())
    return changed / decided if decided else 0.0


def detection_of(splits: Splits, outcome: Outcome) -> Detection | None:
    """Return how well the issue scores detect wrong labels of training and held-out rows with clean labels."""
    judgement = outcome.judgement
    pairs = [(splits.train, judgement.issue_scores), (splits.validation, judgement.held_out_issue_scores)]
    known = [(part, scores) for part, scores in pairs if part is not None and scores is not None]
    found = [_wrong(part) for part, _ in known]
    if any(one is None for one in found):
        return None  # no clean labels
    wrong, scores = torch.cat([one for one in found if one is not None]), torch.cat([scores for _, scores in known])
    errors = int(wrong.sum())
    if not 0 < errors < len(wrong):
        return None
    ranked = wrong[scores.argsort(descending=True, stable=True)].double()
    return Detection(
        errors=errors,
        auroc=float(roc_auc_score(wrong.numpy(), scores.numpy())),
        average_precision=float(average_precision_score(wrong.numpy(), scores.numpy())),
        precision_of_200=float(ranked[:FIRST].mean()),
        precision_of_errors=float(ranked[:errors].mean()),
    )


def _wrong(examples: Examples) -> Tensor | None:
    """Mask of rows with a wrong given label or a wrong known entry; None if clean labels are unknown."""
    given, clean = examples.given_labels, examples.clean_labels
    return None if clean is None else label_form(examples.multilabel).wrong(given, clean)
