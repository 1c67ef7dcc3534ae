"""Outliers and conflicts of a run: found in training, not relabelled, listed, reviewed and left out of exports."""

import json

import numpy as np
import pytest
import torch
from commands import pencil as command
from review_runs import one_class_run, with_inputs
from torch import nn

import pencil
from pencil.data.check.inspection import find_conflicts
from pencil.data.sources.arrays import from_arrays
from pencil.decisions import read_reviews
from pencil.models.probe import last_features
from pencil.review.queue import TO_LOOK_AT, Filter, Queue
from pencil.review.session import Review
from pencil.runs.directory import RunReader
from pencil.runs.label_table import LabelTable
from pencil.training.compute import cpu_runs_bf16
from pencil.training.outliers import find_outliers


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Blobs with 10 % wrong labels, 15 rows of no class that resemble each other, and a copied row."""
    rng = np.random.default_rng(0)
    clean = np.arange(600) % 3
    x = 4 * np.eye(3, 12)[clean] + rng.normal(size=(600, 12))
    given = np.where(rng.random(600) < 0.1, (clean + 1) % 3, clean)
    x[:15] = np.full(12, -9) + 0.1 * rng.normal(size=(15, 12))
    x[20], given[[19, 20]] = x[19], [0, 1]
    out = tmp_path_factory.mktemp("outliers") / "run"
    return pencil.fit("mlp", (x, given), out=out, epochs=8), out


def test_outliers_are_flagged_and_not_relabelled(trained):
    labels = trained[0].labels
    row = np.array([int(key) for key in labels.keys.to_pylist()])
    assert labels.outlier[row < 15].all() and labels.outlier[row >= 15].mean() < 0.02
    assert labels.outlier_score[row < 15].min() > labels.outlier_score[row >= 15].max()
    assert not (labels.outlier & labels.changed).any() and not (labels.outlier & labels.suspect).any()
    assert (labels.given_codes == labels.corrected_codes)[labels.outlier].all()
    assert labels.changed.sum() > 30  # other labels are corrected


def test_duplicates_with_different_labels_are_conflicts(trained):
    labels = trained[0].labels
    assert {labels.keys[row].as_py() for row in np.flatnonzero(labels.conflict)} == {"19", "20"}


def test_one_list_of_what_to_fix(trained):
    run, out = trained
    labels = run.labels
    first = labels.fix_first()
    kinds = first["kind"].to_pylist()
    order = [("suspect", "outlier", "conflict").index(kind) for kind in kinds]
    assert order == sorted(order) and {"suspect", "outlier"} <= set(kinds)
    assert len(first) == int((labels.suspect | labels.outlier | labels.conflict).sum())
    scores = first.outlier_score[[kind == "outlier" for kind in kinds]]
    assert (np.diff(scores) <= 0).all()
    assert run.summary.labels.outliers == labels.outlier.sum() and run.summary.labels.conflicts == 2
    assert RunReader(out).summary.labels.outliers == run.summary.labels.outliers
    report = (out / "report.html").read_text()
    assert "Outliers" in report and "rows are unlike every class" in report and "Conflicts" in report


def test_exports_leave_outliers_out_on_request(trained, tmp_path):
    run, out = trained
    lines = command("labels", out, "--fix-first", "--anyway", cwd=tmp_path).stdout.splitlines()
    assert lines[0].split(",")[-1] == "kind" and len(lines) == 1 + len(run.labels.fix_first())
    lines = command("labels", out, "--without-outliers", "--anyway", "--json", cwd=tmp_path).stdout.splitlines()
    assert len(lines) == len(run.labels) - run.labels.outlier.sum()
    assert not any(json.loads(line)["outlier"] for line in lines)
    words = ("--format", "table", "--without-outliers", "--out", "t.csv")
    assert "always contains every row" in command("labels", out, *words, cwd=tmp_path, code=2).stderr


def review_run(path):
    run = one_class_run(path)
    with_inputs(LabelTable.read(run / "labels.parquet"), outliers=(4, 2), conflicts=(1, 7)).write(
        run / "labels.parquet"
    )
    return run


def test_the_review_lists_suspects_outliers_and_conflicts(tmp_path):
    queue = Queue(review_run(tmp_path / "run"))
    assert queue.rows(Filter(TO_LOOK_AT)).tolist() == [9, 6, 3, 0, 4, 2, 1, 7]
    assert queue.rows(Filter("outliers")).tolist() == [4, 2]
    assert sorted(queue.rows(Filter("conflicts")).tolist()) == [1, 7]
    assert queue.lists == "4 suspects, all of them corrections, 2 outliers, 2 conflicts"


def test_a_removed_row_belongs_to_none_of_the_classes(tmp_path):
    run = review_run(tmp_path / "run")
    with Review(run) as review:
        review.decide(0, "none", [])  # a row that was not flagged
        review.decide(4, "other", [2])  # a flagged row that has a class
    decisions = read_reviews(run / "reviews.jsonl")
    assert [(one.key, one.decision, one.label) for one in decisions] == [("0", "none", None), ("4", "other", "bird")]
    merged = RunReader(run).labels.merge_decisions(decisions)
    assert np.flatnonzero(merged.outlier).tolist() == [0, 2]
    assert merged["reviewed"].to_pylist()[4] and merged["corrected"].to_pylist()[4] == "bird"


def test_runs_of_earlier_versions_have_no_outliers(tmp_path):
    run = one_class_run(tmp_path / "run")
    labels = RunReader(run).labels
    assert not labels.outlier.any() and not labels.conflict.any() and not labels.outlier_score.any()
    assert set(labels.fix_first()["kind"].to_pylist()) == {"suspect"}
    assert labels.merge_decisions([]).column_names == [*labels.column_names, "reviewed"]


def test_features_of_a_network_are_the_inputs_of_its_last_layer():
    network = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3))
    x = torch.randn(4, 5)
    torch.testing.assert_close(last_features(network)(x), network[:2](x))
    maps = nn.Sequential(nn.Conv2d(1, 6, 3), nn.Conv2d(6, 3, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    images = torch.randn(2, 1, 8, 8)
    torch.testing.assert_close(last_features(maps)(images), maps[0](images).mean(dim=(2, 3)))
    assert not network[2]._forward_pre_hooks
    unused = nn.ModuleDict({"a": nn.Linear(5, 3), "b": nn.Linear(3, 3)})
    unused.forward = lambda values: unused["a"](values)
    torch.testing.assert_close(last_features(unused)(x), unused["a"](x))


def test_conflicts_of_vectors_and_images():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 80)).astype(np.float32)
    x[5] = x[4] * 1.0001
    x[7] = x[6]
    y = np.arange(40) % 2
    y[[6, 7]] = 1
    train, held_out = from_arrays(x, y), from_arrays(x[:1], 1 - y[:1], classes=("0", "1"))
    masks = find_conflicts([train, held_out])
    assert masks[0].nonzero()[:, 0].tolist() == [0, 4, 5] and masks[1].tolist() == [True]


def test_features_are_computed_with_the_settings_of_training(monkeypatch):
    if not cpu_runs_bf16():
        pytest.skip("this processor has no bf16")
    seen = []

    def spy(splits, model, features, compute, world):
        seen.append((compute.autocast, compute.memory_format))
        return find_outliers(splits, model, features, compute, world)

    monkeypatch.setattr("pencil.job.run.find_outliers", spy)
    x = np.random.default_rng(0).normal(size=(40, 3, 12, 12)).astype(np.float32)
    settings = {"training.precision": "bf16", "training.channels_last": True}
    pencil.fit("small_cnn", (x, np.arange(40) % 2), epochs=1, settings=settings)
    assert seen == [(torch.bfloat16, torch.channels_last)]
