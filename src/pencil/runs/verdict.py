"""The facts behind a run's verdict, and how well its issue scores detect wrong labels if clean labels are known."""

from dataclasses import dataclass

import torch
from sklearn.metrics import average_precision_score, roc_auc_score
from torch import Tensor

from pencil.data.examples import Examples, Splits
from pencil.data.given.given_labels import hard_labels, has_tie
from pencil.labels.reading import read_entries, read_labels
from pencil.labels.verdict import Facts, Verdict, decide
from pencil.runs.summary import Detection
from pencil.runs.totals import RowTotals, count_rows
from pencil.training import Outcome
from pencil.training.metrics import SCORES

NETWORK_HIGH = "network_noise_rate_high"
"""The finding of a method that provides :attr:`pencil.labels.verdict.Facts.network_high`."""
FIRST = 200
"""Number of rows for the precision of the list: about as many as a person reviews in one session."""
FEW_ROWS = 2
"""Smaller classes are not checked for losing half of their rows."""


def verdict_of(splits: Splits, outcome: Outcome, totals: RowTotals | None = None) -> Verdict:
    """Return the verdict about the corrected labels of a run; ``totals`` are the totals of single-label data."""
    return decide(collect_facts(splits, outcome, totals))


def collect_facts(splits: Splits, outcome: Outcome, totals: RowTotals | None = None) -> Facts:
    """Return the facts for a verdict; the labels of multi-label data are its known entries."""
    judgement, held_out, records, train = outcome.judgement, outcome.validation_dynamics, outcome.records, splits.train
    name = f"validation_{SCORES[train.multilabel]}"
    scores = [record[name] for record in records if name in record]
    if train.multilabel:
        totals = None
        labels = _of_entries(train, outcome.label_probs, judgement.probs)
    else:
        totals = totals or count_rows(train, outcome.train_rows())
        labels = _of_rows(totals)
    halved = (labels.rows_before >= FEW_ROWS) & (2 * labels.rows_after < labels.rows_before)
    return Facts(
        knows=judgement.knows,
        held_out_rows=0 if held_out is None else int((held_out.visits > 0).sum()),  # without unreadable rows
        epochs=len(records),
        score=scores[-1] if scores else None,
        best_score=max(scores) if scores else None,
        score_name="mAP on" if train.multilabel else "agreement with",
        rate=judgement.noise.rate,
        low=judgement.noise.low,
        high=judgement.noise.high,
        ceiling=judgement.ceiling,
        expected_before=labels.expected_before,
        expected_after=labels.expected_after,
        changed=_changed_fraction(splits, outcome, totals),
        mismatch=judgement.mismatch,
        gap=judgement.gap,
        network_high=None if train.multilabel else outcome.findings.get(NETWORK_HIGH),
        halved_classes=tuple(train.classes[k] for k in halved.nonzero()[:, 0].tolist()),
        kept_classes=tuple(train.classes[k] for k in judgement.lost_classes),
    )


@dataclass(frozen=True)
class _Labels:
    """Given and corrected labels: how many are right by the posterior, and rows per class."""

    expected_before: float
    expected_after: float
    rows_before: Tensor
    rows_after: Tensor


def _of_rows(totals: RowTotals) -> _Labels:
    """Count rows with a given label; undecided rows have none."""
    before, after = (totals.fraction(name) for name in ("expected_before", "expected_after"))
    return _Labels(before, after, totals.before, totals.after)


def _of_entries(train: Examples, label_probs: Tensor, posterior: Tensor) -> _Labels:
    entries = read_entries(label_probs, train.given_labels)
    known, pair = entries.known, (entries.given, entries.corrected)
    before, after = (_mean(torch.where(labels, posterior, 1 - posterior)[known]) for labels in pair)
    counts = ((labels & known).sum(dim=0) for labels in pair)
    return _Labels(before, after, *counts)


def _changed_fraction(splits: Splits, outcome: Outcome, totals: RowTotals | None) -> float:
    """The fraction of training and held-out labels that changed; ``totals`` are the totals of single-label data."""
    train, held_out, held_probs = splits.train, splits.validation, outcome.validation_probs
    if totals is None:
        parts = [read_entries(outcome.label_probs, train.given_labels)]
        parts += [] if held_out is None or held_probs is None else [read_entries(held_probs, held_out.given_labels)]
        return _mean(torch.cat([entries.changed[entries.known] for entries in parts]))
    changed, decided = totals["changed"], totals["decided"]
    if held_out is not None and held_probs is not None:
        reading = read_labels(held_probs, held_out.given_labels)
        changed, decided = changed + int(reading.changed.sum()), decided + int((~reading.undecided).sum())
    return changed / decided if decided else 0.0


def _mean(values: Tensor) -> float:
    """The mean; 0 for an empty tensor."""
    return float(values.double().mean()) if len(values) else 0.0


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
    if clean is None:
        return None
    if examples.multilabel:
        return (((given > 0.5) != (clean > 0.5)) & ~given.isnan() & ~clean.isnan()).any(dim=1)
    return hard_labels(given).ne(clean) & ~has_tie(given)
