"""The decisions of a run, compared with clean labels, and grids whose files may be missing."""

import numpy as np
import pytest
import torch
from audit_runs import timid_probs
from sklearn.metrics import precision_recall_fscore_support

from pencil.bench import tables
from pencil.bench.decisions import audited, compare_with_clean, decision_quality
from pencil.bench.spec import Spec, read_spec
from pencil.data import from_arrays
from pencil.data.examples import Splits
from pencil.runs.results import build_label_table


def timid_labels(rows=600, seed=0):
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, 3, rows)
    given = np.where(rng.random(rows) < 0.4, (truth + rng.integers(1, 3, rows)) % 3, truth)
    probs = timid_probs(rng, truth, given, 3)
    examples = from_arrays(rng.normal(size=(rows, 2)), given, classes=3)
    return build_label_table(Splits(examples), torch.from_numpy(probs)), truth, given, examples


def test_lists_are_scored_against_the_wrong_labels_and_answers_repair_a_timid_run():
    labels, truth, given, _ = timid_labels()
    found = decision_quality(labels, truth)
    expected = precision_recall_fscore_support(given != truth, labels.suspect, average="binary", zero_division=0)[2]
    assert found["suspects"] == pytest.approx(expected) and found["suspected"] == labels.suspect.mean()
    before = (labels.corrected_codes == truth).mean()
    assert found["right"]["100"] > before + 0.15 and found["worst"]["100"] <= found["right"]["100"]
    assert audited(labels, truth, 100, draws=2).shape == (2,)
    assert audited(labels, truth, 20, draws=3).tolist() == [before] * 3  # too few answers decide nothing


def test_clean_labels_come_from_the_data_or_from_before_the_injected_noise():
    labels, truth, _, examples = timid_labels()
    clean = from_arrays(np.zeros((600, 2)), truth, classes=3)
    assert compare_with_clean(labels, Splits(clean), injected=True) == decision_quality(labels, truth)
    assert compare_with_clean(labels, Splits(examples), injected=False) is None
    known = from_arrays(np.zeros((600, 2)), examples.given_labels.numpy(), classes=3, clean_labels=truth)
    assert compare_with_clean(labels, Splits(known), injected=False) == decision_quality(labels, truth)
    nothing_wrong = decision_quality(labels, labels.given_codes)
    assert nothing_wrong["corrections"] is None and nothing_wrong["suspected"] == labels.suspect.mean()


def test_tables_show_decisions_rate_and_labels_before():
    spec = Spec.model_validate({"name": "one", "seeds": [1, 2], "reference": "auto", "methods": [{"name": "auto"}]})
    results = {}
    for cell in spec.cells():
        rate = {"estimate": 0.1 * cell.seed, "low": 0.0, "high": 0.4}
        summary = {
            "seconds": 1.0,
            "labels": {"correct_before": 0.8, "correct_after": 0.9},
            "findings": {"noise_rate": rate},
        }
        decisions = {
            "corrections": 0.5,
            "suspects": 0.6,
            "suspected": 0.3,
            "right": {"50": 0.91, "100": 0.92 + 0.02 * cell.seed},
        }
        results[cell.identity()] = {"status": "done", "summary": summary, "decisions": decisions}
    (entry,) = tables.collect_entries(spec, results)
    assert (entry.given.mean, entry.after_50.mean, entry.after_100.mean) == pytest.approx((80, 91, 95))
    assert (entry.corrections.mean, entry.suspects.mean, entry.suspected.mean) == pytest.approx((50, 60, 30))
    assert entry.rate == "15.0 (0.0 to 40.0)" and entry.covered.mean == 100
    text = tables.as_markdown(spec, [entry])
    assert "Labels right after 50 simulated answers, %" in text and "15.0 (0.0 to 40.0)" in text
    del results[next(iter(results))]["decisions"]  # a result of an earlier version
    assert tables.collect_entries(spec, results)[0].suspects is None


def test_datasets_and_noises_without_their_file_are_left_out(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    spec = read_spec("detection")
    assert {"faces": "faces-original.npz", "human, one annotator": "human_labels.npy"}.items() <= {
        name: str(file) for name, file in spec.left_out().items()
    }.items()
    names = {(cell.dataset, cell.noise) for cell in spec.available().cells()}
    assert ("digits", "clean") in names and not {"faces", "mammography"} & {dataset for dataset, _ in names}
    assert "as given" not in {noise for _, noise in names} and not any("human" in noise for _, noise in names)
    (tmp_path / "mammography.csv").write_text("age,given,gold\n")
    assert ("mammography", "as given") in {(cell.dataset, cell.noise) for cell in spec.available().cells()}
    for cell in spec.cells():
        cell.recipe()
