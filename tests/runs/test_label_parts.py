"""The label table of a run on several ranks: written in parts, read as one, the same as that of a single process."""

import os
import shutil
import warnings

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from commands import pencil as command
from ranks import free_port, in_ranks
from torch import nn

import pencil
from pencil.auditing.deciding import Decider
from pencil.auditing.questions import questions_of
from pencil.decisions import Decision
from pencil.errors import RunError
from pencil.runs import label_files
from pencil.runs.audited import write_audit
from pencil.runs.directory import RunReader
from pencil.runs.label_files import GROUP_ROWS, LabelFile, part_name, write_label_part
from pencil.runs.label_table import LabelTable
from pencil.runs.manifest import verify
from pencil.runs.summary import AuditSummary, Interval

CLASSES, RANKS = 12, 2
KINDS = {"dense": {}, "top-k": {"training.label_top_k": 4}, "unlabelled": {}}


def blobs(unlabelled, rows=300):
    rng = np.random.default_rng(0)
    labels = np.arange(rows) % CLASSES
    points = rng.normal(size=(rows, CLASSES)) + 4 * np.eye(CLASSES)[labels]
    given = np.where(rng.random(rows) < 0.2, (labels + 1) % CLASSES, labels)
    names = np.array([f"class {label}" for label in given], dtype=object)
    names[5::50] = None if unlabelled else names[5::50]
    return points.astype(np.float32), names


def fit(out, kind):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(CLASSES, 16), nn.ReLU(), nn.Linear(16, CLASSES))
    settings = {"training.label_layout": "sharded", "training.device": "cpu", **KINDS[kind]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = pencil.fit(
            network, blobs(kind == "unlabelled"), out=out / kind, method="pencil", epochs=3, progress=False,
            settings=settings,
        )  # fmt: skip
    return len(run.labels), float(run.labels.confidence.sum())


def fit_all(out, ports):
    found = []
    for kind, port in zip(KINDS, ports, strict=True):
        os.environ["MASTER_PORT"] = str(port)  # a process group of its own for each run
        found.append(fit(out, kind))
    return found


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The same runs by one process, and by two that have the labels in shards."""
    folder = tmp_path_factory.mktemp("parts")
    ports = [free_port() for _ in KINDS]
    alone = [fit(folder / "one", kind) for kind in KINDS]
    for found in in_ranks(RANKS, fit_all, folder / "more", ports):  # every rank has the whole table, if it asks for it
        assert found == [(rows, pytest.approx(confidence, abs=0.05)) for rows, confidence in alone]
    return folder


@pytest.fixture(params=KINDS)
def pair(request, runs):
    return RunReader(runs / "one" / request.param), RunReader(runs / "more" / request.param)


def test_parts_read_as_the_table_of_one_process(pair):
    one, more = pair
    assert (one.path / "labels.parquet").is_file()
    assert sorted(path.name for path in (more.path / "labels.parquet").iterdir()) == [
        part_name(rank, RANKS) for rank in range(RANKS)
    ]
    expected, found = one.labels, more.labels
    assert found.keys.equals(expected.keys) and found.splits.equals(expected.splits)
    for name in ("given", "corrected", "changed"):
        assert found[name].to_pylist() == expected[name].to_pylist(), name
    for name in ("confidence", "given_probability", "margin", "issue_score", "mean_margin", "disagreement"):
        np.testing.assert_allclose(found[name].to_numpy(), expected[name].to_numpy(), atol=1e-4, err_msg=name)
    np.testing.assert_allclose(found.probs, expected.probs, atol=1e-4)  # top-k labels are the same dense ones
    before, after = one.summary, more.summary
    assert before.labels.changed == after.labels.changed and before.verdict == after.verdict
    assert all(status.ok for status in verify(more.path)) and len(verify(more.path)) == len(verify(one.path)) + 1


def test_a_part_that_is_changed_missing_or_too_many_is_named(pair, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(pair[1].path, run)
    part = run / "labels.parquet" / part_name(1, RANKS)
    content = part.read_bytes()
    part.write_bytes(content[:-1] + b"?")
    assert [status.path for status in verify(run) if not status.ok] == [part]
    part.unlink()
    assert [status.reason for status in verify(run) if not status.ok] == ["it is missing"]
    with pytest.raises(
        RunError, match=r"is damaged: labels\.parquet: it contains the parts .*; expected one part per rank"
    ):
        _ = RunReader(run).labels
    part.write_bytes(content)
    other = run / "labels.parquet" / "other.parquet"
    other.write_bytes(content)
    assert [status.path for status in verify(run) if not status.ok] == [other]


def test_labels_of_parts_are_exported_and_reported(pair, tmp_path):
    texts = []
    for reader in pair:
        shown = command("labels", reader.path, "--anyway", "--order", "data", cwd=tmp_path).stdout
        texts.append([line.split(",")[:4] for line in shown.splitlines()])
    assert texts[0] == texts[1] and "top_classes" not in shown.splitlines()[0]
    command("report", pair[1].path, "--out", "page.html", cwd=tmp_path)


def test_a_large_table_stays_in_its_file(pair, monkeypatch):
    whole = pair[1].labels
    monkeypatch.setattr(label_files, "SMALL", 0)
    asked = []
    read = LabelFile.read
    monkeypatch.setattr(
        LabelFile, "read", lambda self, names, rows=None: asked.append(names) or read(self, names, rows)
    )
    lazy = RunReader(pair[1].path).labels
    assert not asked and len(lazy) == len(whole) and lazy.column_names == whole.column_names
    first = lazy.train.by_issue().slice(0, 5)
    assert first.keys.to_pylist() == whole.train.by_issue().slice(0, 5).keys.to_pylist()
    assert sorted({name for names in asked for name in names}) == ["issue_score", "key", "split"]
    np.testing.assert_array_equal(first.probs, whole.train.by_issue().slice(0, 5).probs)
    pieces = pa.Table.from_batches(lazy.batches(7))
    assert repr(pieces.to_pylist()) == repr(whole.to_pylist())  # NaN equals nothing but its name
    some = lazy.take(np.array([9, 2, 9]))
    assert some["key"].to_pylist() == [whole["key"][row].as_py() for row in (9, 2, 9)]
    assert lazy.filter(lazy.changed).table.equals(whole.filter(pa.array(whole.changed)).table)
    assert lazy.take(np.empty(0)).table.num_rows == 0


def test_a_review_decides_labels_of_parts(pair):
    labels = pair[1].labels
    rows = [np.flatnonzero(labels.corrected_codes == 3)[0], np.flatnonzero(labels.corrected_codes == 4)[0]]
    names = [(labels.keys[row].as_py(), labels.splits[row].as_py()) for row in rows]
    decisions = [Decision(*name, "other", "class 3", None, None, "2026-01-01T00:00:00Z") for name in names]
    merged = labels.merge_decisions(decisions)
    one_hot = np.eye(CLASSES)[labels.classes.index("class 3")]
    np.testing.assert_array_equal(merged.probs[rows], [one_hot, one_hot])
    np.testing.assert_array_equal(np.delete(merged.probs, rows, 0), np.delete(labels.probs, rows, 0))


def test_rows_in_no_part_or_in_two_are_refused(runs, tmp_path):
    folder = runs / "more" / "dense" / "labels.parquet"
    table = pq.read_table(folder / part_name(0, RANKS))
    for rank in range(2):
        write_label_part(tmp_path, rank, 2, [table])
    with pytest.raises(RunError, match="rows are missing or duplicated"):
        LabelTable.read(tmp_path)
    pq.write_table(table.drop_columns(["row"]), tmp_path / part_name(1, 2))
    with pytest.raises(RunError, match="expected a column 'row'"):
        LabelTable.read(tmp_path)


def test_a_part_is_written_in_row_groups(runs, tmp_path):
    table = pq.read_table(runs / "more" / "dense" / "labels.parquet" / part_name(0, RANKS))
    pieces = [table] * (2 * GROUP_ROWS // len(table) + 3)
    assert set(write_label_part(tmp_path, 0, 1, iter(pieces))) == {part_name(0, 1)}
    written = pq.ParquetFile(tmp_path / part_name(0, 1)).metadata
    assert written.num_rows == len(pieces) * len(table) and written.num_row_groups == 3


def test_an_audit_decides_labels_of_parts_and_leaves_the_parts(pair, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(pair[1].path, run)
    before = RunReader(run).labels
    parts = {path: path.read_bytes() for path in (run / "labels.parquet").iterdir()}
    half = Interval(estimate=0.5, low=0.4, high=0.6)
    audit = AuditSummary(population=300, rows=100, cannot_tell=0, no_class=0, given_wrong=half, corrected_right=half)
    decider = Decider(shift=3.0, weight=1.0)
    write_audit(run, audit, lambda part: questions_of(part).redecide((decider,), part), suspect_from=0.9)
    assert {path: path.read_bytes() for path in (run / "labels.parquet").iterdir()} == parts
    after = RunReader(run).labels
    assert after.keys.equals(before.keys) and after.column_names == before.column_names
    rows = np.flatnonzero(before.given_codes >= 0)
    expected, scores = decider.decide(before.probs[rows], before.given_codes[rows], before.issue_score[rows])
    np.testing.assert_array_equal(after.corrected_codes[rows], expected.argmax(axis=1))
    np.testing.assert_allclose(after.issue_score[rows], scores, atol=1e-6)
    top = np.sort(expected, axis=1)[:, -4:]  # a table of top-k labels keeps the four most probable classes
    np.testing.assert_allclose(np.sort(after.probs[rows], axis=1)[:, -4:], top, atol=1e-6)
    assert after.changed.sum() > before.changed.sum() and (after.suspect >= after.changed).all()
    assert all(status.ok for status in verify(run)) and len(verify(run)) == len(verify(pair[1].path)) + 1
    write_audit(run, audit, None)
    assert not RunReader(run).is_audited and all(status.ok for status in verify(run))
