"""How good the decisions of a run are if clean labels are known: corrections, suspects and simulated audits."""

from typing import Any

import numpy as np
from sklearn.metrics import f1_score

from pencil.auditing.deciding import Scores, fit_decider
from pencil.auditing.design import ROWS, build_strata, draw_sample
from pencil.data.examples import Splits
from pencil.runs.label_table import LabelTable

ANSWERS, DRAWS = (50, 100), 20
"""Numbers of simulated answers, and number of simulated audits with each."""


def compare_with_clean(labels: LabelTable, loaded: Splits, *, injected: bool) -> dict[str, Any] | None:
    """Return the :func:`decision_quality` of a run, or None without clean labels.

    Parameters
    ----------
    labels
        The labels of the run.
    loaded
        The data as it was loaded, without injected noise.
    injected
        Whether noise was injected, so that the labels of the data itself count as clean.
    """
    rows = loaded.train
    clean = rows.clean_labels if rows.clean_labels is not None or not injected else rows.given_labels
    if clean is None or clean.ndim > 1 or loaded.validation is not None:
        return None
    labels = labels.filter(labels.given_codes >= 0)
    by_key = dict(zip(rows.keys.tolist(), clean.tolist(), strict=True))
    return decision_quality(labels, np.array([by_key[key] for key in labels.keys.to_pylist()]))


def decision_quality(labels: LabelTable, clean: np.ndarray) -> dict[str, Any]:
    """Return how good the decisions about these labels are.

    Parameters
    ----------
    labels
        The labels of a run, single-label data.
    clean
        The clean class of each row.

    Returns
    -------
    dict
        ``corrections`` and ``suspects``: the F1 with which each list finds wrong labels; None if no label is wrong.
        ``suspected``: the fraction of labels that are suspects. ``right`` and ``worst``: mean and minimum of the
        fraction of right labels after simulated audits, by number of answers.
    """
    wrong = labels.given_codes != clean
    lists = {"corrections": labels.changed, "suspects": labels.suspect}
    found: dict[str, Any] = {name: f1_score(wrong, one) if wrong.any() else None for name, one in lists.items()}
    audits = {str(answers): audited(labels, clean, answers) for answers in ANSWERS if answers <= len(labels)}
    return {
        **found,
        "suspected": float(labels.suspect.mean()),
        "right": {answers: float(right.mean()) for answers, right in audits.items()},
        "worst": {answers: float(right.min()) for answers, right in audits.items()},
    }


def audited(labels: LabelTable, clean: np.ndarray, answers: int, draws: int = DRAWS) -> np.ndarray:
    """Return the fraction of right labels after each of several simulated audits, with this many right answers."""
    probs, given, scores = labels.probs.astype(np.float64), labels.given_codes, labels.issue_score
    strata, found = build_strata(labels.changed, probs.max(axis=1)), []
    for seed in range(draws):
        rows = draw_sample(strata, (max(ROWS, answers),), seed)[:answers]
        decider = fit_decider(Scores.of(probs[rows], given[rows], scores[rows]), given[rows], clean[rows])
        decided = decider.decide(probs, given, scores)[0].argmax(axis=1) if decider.used else labels.corrected_codes
        found.append((decided == clean).mean())
    return np.array(found)
