"""Finished runs for tests of the audit, and auditors that know the truth."""

import json

import numpy as np
import torch
from review_runs import write_run

from pencil.audit.sample import open_sample
from pencil.audit.session import Blind
from pencil.data import from_arrays
from pencil.data.examples import Splits
from pencil.files import digest
from pencil.runs.layout import LABELS, LISTED
from pencil.runs.results import build_label_table
from pencil.runs.summary import DataSummary, LabelSummary, Summary

ANIMALS = ("cat", "dog", "bird")


def make_run(path, classes=ANIMALS, rows=400, overconfident=False, keys=None, seed=0):
    """A run with a label table, a summary and a manifest; returns the true class of each row.

    A fifth of the given labels is wrong; most of those are corrected, a few right ones are changed.
    """
    rng, c = np.random.default_rng(seed), len(classes)
    truth = rng.integers(0, c, rows)
    given = np.where(rng.random(rows) < 0.2, (truth + rng.integers(1, c, rows)) % c, truth)
    sure = rng.uniform(0.55, 0.99, rows)
    right = rng.random(rows) < sure
    believed = np.where(right, truth, np.where(given == truth, (truth + 1) % c, given))
    shown = sure**0.2 if overconfident else sure
    probs = np.repeat(((1 - shown) / (c - 1))[:, None], c, axis=1)
    probs[np.arange(rows), believed] = shown
    x = rng.integers(0, 256, (rows, 8, 8)).astype(np.uint8)
    data = path.parent / f"{path.name}.npz"
    np.savez(data, x=x, y=given, classes=list(classes))
    examples = from_arrays(x, given, classes=classes, keys=keys)
    write_run(path, build_label_table(Splits(examples), torch.from_numpy(probs), None), data)
    summary = Summary(
        method="auto", seed=0, seconds=1.0, epochs=1, best_epoch=1,
        labels=LabelSummary(rows=rows, changed=int((believed != given).sum())),
        data=DataSummary(rows={"train": rows}, classes=classes, multilabel=False, input_shape=(1, 8, 8),
                         input_type="uint8"),
    )  # fmt: skip
    (path / "summary.json").write_text(summary.to_json())
    for name in LISTED:
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).touch()
    (path / "manifest.json").write_text(json.dumps({name: digest(path / name) for name in LISTED}))
    assert (path / LABELS).stat().st_size
    return truth


def answer_all(run, truth, rows=None, upto=None):
    """An auditor without mistakes; returns the sample."""
    sample = open_sample(run, rows)
    with Blind(run, sample) as blind:
        for at in range(len(blind) if upto is None else upto):
            blind.answer(at, "class", int(truth[sample.rows[at]]))
    return sample
