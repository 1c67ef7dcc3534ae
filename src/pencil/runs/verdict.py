"""The facts behind a run's verdict, and how well its issue scores find wrong labels where clean ones are known."""

import torch
from sklearn.metrics import average_precision_score, roc_auc_score
from torch import Tensor

from pencil.data.examples import Splits
from pencil.data.given import hard_labels
from pencil.labels.verdict import Facts, Verdict, decide
from pencil.runs.summary import Detection
from pencil.training import Outcome

FIRST = 200
"""The precision of the list is taken of this many rows: about what a person reviews at a time."""
FEW_ROWS = 2
"""A class of fewer rows than this cannot lose half of them."""


def verdict_of(splits: Splits, outcome: Outcome) -> Verdict | None:
    """Return the verdict about the corrected labels of a run; None for multi-label data, which has no dynamics."""
    facts = collect_facts(splits, outcome)
    return None if facts is None else decide(facts)


def collect_facts(splits: Splits, outcome: Outcome) -> Facts | None:
    """Return what a verdict is based on."""
    judgement, held_out, records = outcome.judgement, splits.validation, outcome.records
    if judgement is None:
        return None
    scores = [record["validation_accuracy"] for record in records if "validation_accuracy" in record]
    given, corrected = hard_labels(splits.train.given_labels), outcome.label_probs.argmax(dim=1)
    names = splits.train.classes
    return Facts(
        knows=judgement.knows,
        held_out_rows=0 if held_out is None else len(held_out),
        epochs=len(records),
        accuracy=scores[-1] if scores else None,
        best_accuracy=max(scores) if scores else None,
        low=judgement.noise.low,
        high=judgement.noise.high,
        ceiling=judgement.ceiling,
        expected_before=_expected_right(judgement.probs, given),
        expected_after=_expected_right(judgement.probs, corrected),
        changed=float((given != corrected).double().mean()),
        mismatch=judgement.mismatch,
        halved_classes=tuple(names[k] for k in _halved(given, corrected, len(names))),
        kept_classes=tuple(names[k] for k in judgement.lost_classes),
    )


def detection_of(splits: Splits, outcome: Outcome) -> Detection | None:
    """Return how well the issue scores find wrong labels, over training and held-out rows with clean labels."""
    judgement = outcome.judgement
    if judgement is None:
        return None
    pairs = [(splits.train, judgement.issue_scores), (splits.validation, judgement.held_out_issue_scores)]
    known = [(part, scores) for part, scores in pairs if part is not None and scores is not None]
    found = [(part.given_labels, part.clean_labels) for part, _ in known]
    wrong = torch.cat([hard_labels(given).ne(clean) for given, clean in found if clean is not None] or [torch.empty(0)])
    scores = torch.cat([scores for _, scores in known])
    if len(wrong) < len(scores):
        return None  # clean labels are not known
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


def _expected_right(probs: Tensor, labels: Tensor) -> float:
    return float(probs.gather(1, labels[:, None].to(probs.device)).double().mean())


def _halved(given: Tensor, corrected: Tensor, num_classes: int) -> list[int]:
    before, after = (labels.bincount(minlength=num_classes) for labels in (given, corrected))
    return ((before >= FEW_ROWS) & (2 * after < before)).nonzero()[:, 0].tolist()
