"""Finished runs for tests of the audit, and auditors that know the truth."""

import json

import numpy as np
import pyarrow as pa
import torch
from review_runs import write_run

from pencil.auditing.blind import Blind
from pencil.auditing.sample import open_sample
from pencil.data import from_arrays
from pencil.data.examples import Splits
from pencil.files import digest
from pencil.runs.label_table import LabelTable
from pencil.runs.layout import LABELS, LISTED
from pencil.runs.results import build_label_table, summarize_labels
from pencil.runs.summary import DataSummary, Summary

ANIMALS = ("cat", "dog", "bird")


def timid_probs(rng, truth, given, c):
    """The posterior of a network that finds wrong labels a little less probable, and believes nearly all of them."""
    rows = np.arange(len(truth))
    doubt = 1 / (1 + np.exp(6.5 - 2.5 * (given != truth) - 0.7 * rng.normal(size=len(truth))))
    runner_up = np.where(given != truth, truth, (given + 1) % c)
    probs = np.repeat((0.2 * doubt / (c - 2))[:, None], c, axis=1)
    probs[rows, runner_up], probs[rows, given] = 0.8 * doubt, 1 - doubt
    return probs


def make_timid_run(path, rows=400, seed=0, **options):
    """A run that keeps all labels, although 40 % are wrong; returns the true class of each row."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, 3, rows)
    given = np.where(rng.random(rows) < 0.4, (truth + rng.integers(1, 3, rows)) % 3, truth)
    _write(path, rng, given, timid_probs(rng, truth, given, 3), ANIMALS, **options)
    return truth


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
    _write(path, rng, given, probs, classes, keys=keys)
    return truth


def make_entry_run(path, classes=("sea", "sky", "sun"), rows=300, bias=-3.0, seed=0, **options):
    """A run of multi-label data; returns which classes each row has.

    One in eight entries is wrong. The network ranks them well, but believes too
    many of them (``bias``). Every seventh entry of the first class is unknown.
    """
    rng = np.random.default_rng(seed)
    truth = rng.random((rows, len(classes))) < 0.35
    named = truth ^ (rng.random(truth.shape) < 0.125)
    odds = bias + 4.0 * (named != truth) + 0.8 * rng.normal(size=truth.shape)
    wrong = 1 / (1 + np.exp(-odds))
    given = named.astype(np.float32)
    given[::7, 0] = np.nan
    _write(path, rng, given, np.where(named, 1 - wrong, wrong), classes, **options)
    return truth


def _write(path, rng, given, probs, classes, keys=None, **masks):
    """Write a run; ``masks`` are further columns of the label table, such as ``pinned``."""
    rows, multilabel = len(given), given.ndim == 2
    x = rng.integers(0, 256, (rows, 8, 8)).astype(np.uint8)
    data = path.parent / f"{path.name}.npz"
    np.savez(data, x=x, y=given, classes=list(classes))
    examples = from_arrays(x, given, classes=classes, keys=keys, multilabel=multilabel)
    labels = build_label_table(Splits(examples), torch.from_numpy(probs), None)
    for name, mask in masks.items():
        labels = LabelTable(labels.table.append_column(name, pa.array(mask)))
    write_run(path, labels, data)
    summary = Summary(
        method="auto", seed=0, seconds=1.0, epochs=1, best_epoch=1,
        labels=summarize_labels(examples, torch.from_numpy(probs)),
        data=DataSummary(rows={"train": rows}, classes=classes, multilabel=multilabel, input_shape=(1, 8, 8),
                         input_type="uint8"),
    )  # fmt: skip
    (path / "summary.json").write_text(summary.to_json())
    for name in LISTED:
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).touch()
    (path / "manifest.json").write_text(json.dumps({name: digest(path / name) for name in LISTED}))
    assert (path / LABELS).stat().st_size


def answer_all(run, truth, rows=None, upto=None):
    """An auditor without mistakes; returns the sample."""
    sample = open_sample(run, rows)
    with Blind(run, sample) as blind:
        for at in range(len(blind) if upto is None else upto):
            blind.answer(at, "class", int(truth[sample.rows[at]]))
    return sample
