"""Simulated data, networks and auditors, of which the truth is known.

Run as a program it prints the coverage of every column: `python tests/audit/simulated.py`.
"""

import json
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from pencil.auditing.design import build_strata, draw_sample
from pencil.auditing.estimate import audited_fraction
from pencil.auditing.results import Answers, measure
from pencil.auditing.sample import plan_sample
from pencil.runs.label_table import LabelTable


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
    ("70 % changed", "given"),  # most given labels are wrong; near 0 and 1 the score test is cautious
    ("300 rows", "corrected"),  # a third is looked at
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


@dataclass(frozen=True)
class Posterior:
    """The true fraction of wrong labels, how well the network ranks them, and by how much it errs.

    The network's log-odds that a label is wrong are ``bias + scale * true log-odds``.
    """

    noise: float
    spread: float = 2.0
    bias: float = 0.0
    scale: float = 1.0
    runner_up: float = 0.85
    rows: int = 3000
    sample: int = 100


DECIDED = {
    "right posterior, noise 20 %": Posterior(0.2),
    "timid, noise 40 %": Posterior(0.4, bias=-5.0),
    "timid, noise 20 %": Posterior(0.2, bias=-4.0),
    "timid, noise 5 %": Posterior(0.05, bias=-3.0),
    "bold, noise 20 %": Posterior(0.2, bias=2.0),
    "overconfident, noise 20 %": Posterior(0.2, scale=2.5),
    "underconfident, noise 40 %": Posterior(0.4, scale=0.4),
    "no ranking, noise 40 %": Posterior(0.4, spread=0.05, bias=-4.0),
    "poor runner-up, noise 40 %": Posterior(0.4, bias=-4.0, runner_up=0.4),
    "timid, noise 40 %, 50 looked at": Posterior(0.4, bias=-5.0, sample=50),
}
"""Networks whose labels are decided by the same answers that measure them."""


def network_labels(case, rng, classes=4):
    """The label table of a network, and the true class of each row."""
    rows = np.arange(case.rows)
    centre = np.log(case.noise / (1 - case.noise)) * np.sqrt(1 + case.spread**2 / 3)  # keeps the mean near the noise
    odds = centre + case.spread * rng.normal(size=case.rows)
    given = rng.integers(0, classes, case.rows)
    wrong = rng.random(case.rows) < 1 / (1 + np.exp(-odds))
    runner_up = (given + rng.integers(1, classes, case.rows)) % classes
    other = (given + rng.integers(1, classes, case.rows)) % classes
    truth = np.where(wrong, np.where(rng.random(case.rows) < case.runner_up, runner_up, other), given)
    doubt = 1 / (1 + np.exp(-(case.bias + case.scale * odds)))
    probs = np.repeat((0.15 * doubt / (classes - 2))[:, None], classes, axis=1)
    probs[rows, runner_up], probs[rows, given] = 0.85 * doubt, 1 - doubt
    corrected = probs.argmax(axis=1)
    names = [f"class {number}" for number in range(classes)]
    columns = {
        "key": pa.array([str(row) for row in rows]),
        "split": pa.array(["train"] * case.rows),
        **{name: pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int32)), pa.array(names))
           for name, codes in (("given", given), ("corrected", corrected))},
        "confidence": probs.max(axis=1).astype(np.float32),
        "given_probability": (1 - doubt).astype(np.float32),
        "changed": corrected != given,
        "issue_score": doubt.astype(np.float32),
        "distribution": pa.FixedSizeListArray.from_arrays(pa.array(probs.astype(np.float32).ravel()), classes),
    }  # fmt: skip
    return LabelTable(pa.table(columns).replace_schema_metadata({"classes": json.dumps(names)})), truth


def one_decided_audit(case, seed):
    """As `one_audit`, of labels that the answers decide."""
    labels, truth = network_labels(case, np.random.default_rng(seed))
    sample = plan_sample(None, labels, rows=case.sample, seed=seed)
    audit, decided = measure(Answers(sample, truth[sample.rows]))
    right = decided.corrected == truth
    found = {
        "corrected": (audit.corrected_right, right.mean()),
        "given": (audit.given_wrong, (labels.given_codes != truth).mean()),
    }
    if audit.changes_right is not None:
        found["changes"] = audit.changes_right, right[decided.changed].mean()
    return found


def simulate(column, audits):
    """The fraction of audits whose interval covers the truth, for each quantity."""
    one = one_decided_audit if isinstance(column, Posterior) else one_audit
    runs = [one(column, seed) for seed in range(audits)]
    covered = {}
    for name in ("corrected", "given", "changes"):
        pairs = [run[name] for run in runs if name in run]
        if pairs:
            covered[name] = float(np.mean([one.low - 1e-9 <= true <= one.high + 1e-9 for one, true in pairs]))
    return covered


if __name__ == "__main__":
    for title, case in (COLUMNS | DECIDED).items():
        print(title, {name: round(100 * value, 1) for name, value in simulate(case, 500).items()}, flush=True)  # noqa: T201
