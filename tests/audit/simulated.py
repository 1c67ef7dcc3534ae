"""Simulated data, networks and auditors, of which the truth is known.

Run as a program it prints the coverage of every column: `python tests/audit/simulated.py`.
"""

from dataclasses import dataclass, replace

import numpy as np

from pencil.audit.design import build_strata, draw_sample
from pencil.audit.estimate import audited_fraction


@dataclass(frozen=True)
class Column:
    """Rows, the fraction (or number) of changed labels, error rates of kept and changed ones, and the confidence."""

    changed: float
    kept_wrong: float
    changed_wrong: float
    rows: int = 5000
    spread: float = 3.0
    confidence: str = "calibrated"
    sample: int = 100


COLUMNS = {
    "noise 2 %": Column(0.018, 0.004, 0.10),
    "noise 10 %": Column(0.09, 0.02, 0.08),
    "noise 40 %": Column(0.38, 0.06, 0.10),
    "noise 2 %, overconfident": Column(0.018, 0.004, 0.10, confidence="over"),
    "noise 10 %, overconfident": Column(0.09, 0.03, 0.15, confidence="over"),
    "noise 40 %, overconfident": Column(0.38, 0.10, 0.20, confidence="over"),
    "noise 10 %, underconfident": Column(0.09, 0.02, 0.08, confidence="under"),
    "noise 40 %, underconfident": Column(0.38, 0.06, 0.10, confidence="under"),
    "noise 10 %, random confidence": Column(0.09, 0.02, 0.08, confidence="random"),
    "noise 10 %, reversed confidence": Column(0.09, 0.02, 0.08, confidence="reversed"),
    "noise 10 %, one confidence": Column(0.09, 0.03, 0.08, confidence="one"),
    "noise 10 %, sharp confidence": Column(0.09, 0.02, 0.08, spread=0.3),
    "8 changes": Column(8, 0.05, 0.10),
    "no change": Column(0, 0.05, 0.10),
    "70 % changed": Column(0.70, 0.10, 0.10),
    "most changes wrong": Column(0.20, 0.05, 0.70, confidence="over"),
    "1000 rows": Column(0.20, 0.05, 0.15, rows=1000),
    "300 rows": Column(0.20, 0.05, 0.15, rows=300),
    "300 rows, overconfident": Column(0.10, 0.03, 0.10, rows=300, confidence="over"),
    "150 rows": Column(0.20, 0.05, 0.15, rows=150),
    "nothing wrong": Column(0.09, 0.0, 0.0),
    "300 looked at": replace(Column(0.09, 0.02, 0.08), sample=300),
}
WIDE = {
    ("noise 10 %, sharp confidence", "corrected"),  # errors are where the network expects them, and nearly all are seen
    ("noise 10 %, sharp confidence", "given"),
    ("8 changes", "changes"),  # all are looked at: the interval is a point
    ("300 rows", "changes"),  # nearly all are looked at, and what is left is a matter of single rows
    ("300 rows, overconfident", "changes"),
    ("150 rows", "corrected"),
    ("150 rows", "given"),
    ("150 rows", "changes"),
    ("nothing wrong", "corrected"),  # the interval always begins at nothing
    ("nothing wrong", "given"),
    ("nothing wrong", "changes"),
}
"""Where intervals cover more often than 97 times in 100, and why."""


def population(column, rng):
    """Changed or not, confidence, given probability, and whether corrected and given label are wrong, of each row."""
    changed = rng.random(column.rows) < column.changed
    if column.changed >= 1:
        changed = rng.permutation(column.rows) < column.changed
    rate = np.where(changed, column.changed_wrong, column.kept_wrong)
    risk = np.where(rate > 0, rng.beta(np.maximum(rate, 1e-9) * column.spread, (1 - rate) * column.spread), 0.0)
    wrong = rng.random(column.rows) < risk
    given_wrong = np.where(changed, ~(wrong & (rng.random(column.rows) < 0.7)), wrong)
    logit = np.log(np.clip(1 - risk, 1e-6, 1)) - np.log(np.clip(risk, 1e-6, 1))
    scaled = {"over": 2.5 * logit + 1, "under": 0.4 * logit, "reversed": -logit}
    confidence = 1 / (1 + np.exp(-scaled.get(column.confidence, logit)))
    if column.confidence == "random":
        confidence = rng.uniform(0.3, 1, column.rows)
    if column.confidence == "one":
        confidence = np.full(column.rows, 0.999)
    confidence = confidence.clip(0.1, 1)
    return changed, confidence, np.where(changed, 0.7 * (1 - confidence), confidence), wrong, given_wrong


def one_audit(column, seed):
    """Draw the population, look at a sample, and return the interval and the truth of each quantity."""
    changed, confidence, given_probability, wrong, given_wrong = population(column, np.random.default_rng(seed))
    strata = build_strata(changed, confidence)
    sample = draw_sample(strata, (column.sample,), seed)
    found = {}
    for name, truth, predicted, chosen in (
        ("corrected", wrong, 1 - confidence, np.ones(len(strata.sizes), dtype=bool)),
        ("given", given_wrong, 1 - given_probability, np.ones(len(strata.sizes), dtype=bool)),
        ("changes", wrong, 1 - confidence, strata.changed),
    ):
        if not chosen.any():
            continue
        inside = sample[chosen[strata.of_row[sample]]]
        number = np.cumsum(chosen) - 1
        interval = audited_fraction(
            truth[inside].astype(float), predicted[inside], number[strata.of_row[inside]], strata.sizes[chosen],
            strata.means(predicted)[chosen],
        )  # fmt: skip
        found[name] = interval, truth[chosen[strata.of_row]].mean()
    return found


def simulate(column, audits):
    """The fraction of audits whose interval covers the truth, for each quantity."""
    runs = [one_audit(column, seed) for seed in range(audits)]
    names = runs[0].keys()
    return {
        name: float(np.mean([run[name][0].low - 1e-9 <= run[name][1] <= run[name][0].high + 1e-9 for run in runs]))
        for name in names
    }


if __name__ == "__main__":
    for title, case in COLUMNS.items():
        print(title, {name: round(100 * value, 1) for name, value in simulate(case, 500).items()}, flush=True)  # noqa: T201
