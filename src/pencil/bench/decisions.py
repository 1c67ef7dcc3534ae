"""How good the decisions of a run are if clean labels are known: corrections, suspects and simulated audits."""

from typing import Any

import numpy as np
from sklearn.metrics import f1_score

from pencil.auditing.design import ROWS
from pencil.auditing.results import Answers, decide
from pencil.auditing.sample import plan_sample
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
    found = []
    for seed in range(draws):
        sample = plan_sample(None, labels, rows=max(ROWS, answers), seed=seed)
        found.append((decide(Answers(sample, clean[sample.rows[:answers]])).corrected == clean).mean())
    return np.array(found)
