"""What leaves a run: labels row by row or entry by entry, in every format."""

import csv
import io
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from pencil import RunError, export
from pencil.data import Splits, from_arrays
from pencil.export import choose_entries, choose_labels, save_labels, save_maps, write_labels
from pencil.label_table import label_table

CLASSES = ("sea", "sky, blue", 'the "sun"')


def several(rows=25):
    """Given labels, some soft and some unknown, and probabilities for them, with the last rows held out."""
    rng = np.random.default_rng(0)
    given = rng.choice([0, 1, 0.25, np.nan], (rows, 3), p=[0.5, 0.3, 0.1, 0.1]).astype(np.float32)
    probs = rng.random((rows, 3)).astype(np.float32)
    keys = [f"row,{i}" if i % 5 == 0 else f"row {i}" for i in range(rows)]
    examples = from_arrays(np.zeros((rows, 2)), given, classes=CLASSES, keys=keys, multilabel=True)
    cut = torch.arange(rows - 4), torch.arange(rows - 4, rows)
    splits = Splits(examples.subset(cut[0]), examples.subset(cut[1]))
    return label_table(splits, torch.from_numpy(probs)[cut[0]], torch.from_numpy(probs)[cut[1]]), keys, given, probs


def by_hand(keys, given, probs):
    """All entries in a double loop, as a person would write them down."""
    lines = []
    for i, key in enumerate(keys):
        for k, name in enumerate(CLASSES):
            line = {"key": key, "split": "train" if i < len(keys) - 4 else "validation", "class": name}
            g, p = float(given[i, k]), float(probs[i, k])
            if np.isnan(g):
                line |= {"given": None, "corrected": None, "confidence": None, "changed": False}
            else:
                said = int(p > 0.5)
                line |= {"given": g, "corrected": said, "confidence": max(p, 1 - p), "changed": said != int(g > 0.5)}
            lines.append(line)
    return lines


def about_equal(lines, expected):
    assert len(lines) == len(expected)
    for line, wanted in zip(lines, expected, strict=True):
        assert line == {**wanted, "confidence": line["confidence"]}
        assert line["confidence"] == (None if wanted["confidence"] is None else pytest.approx(wanted["confidence"]))


@pytest.mark.parametrize("chunk", [1, 7, 2**18])
def test_entries_against_a_double_loop(chunk, monkeypatch):
    monkeypatch.setattr(export, "LINES", chunk)
    table, keys, given, probs = several()
    expected = by_hand(keys, given, probs)
    about_equal(choose_entries(table).read_all().to_pylist(), expected)
    assert any(line["given"] is None for line in expected) and any(line["changed"] for line in expected)


@pytest.mark.parametrize("chunk", [7, 2**18])
def test_changed_entries_come_with_the_surest_of_all_first(chunk, monkeypatch):
    monkeypatch.setattr(export, "LINES", chunk)
    table, keys, given, probs = several()
    changed = [line for line in by_hand(keys, given, probs) if line["changed"] and line["confidence"] >= 0.6]
    lines = choose_entries(table, only_changed=True, min_confidence=0.6).read_all().to_pylist()
    about_equal(lines, sorted(changed, key=lambda line: -line["confidence"]))
    assert 0 < len(lines) < sum(line["changed"] for line in by_hand(keys, given, probs))
    sure = choose_entries(table, min_confidence=0.6).read_all()
    assert sure["given"].null_count == 0 and min(sure["confidence"].to_pylist()) >= 0.6
    assert choose_entries(table, only_changed=True, min_confidence=1.0).read_all().num_rows == 0


def test_every_format_says_the_same(tmp_path):
    table, keys, given, probs = several()
    expected = by_hand(keys, given, probs)
    for kind in ("csv", "jsonl", "parquet"):
        assert save_labels(choose_entries(table), kind, tmp_path / f"e.{kind}") == len(expected)
    about_equal(pq.read_table(tmp_path / "e.parquet").to_pylist(), expected)
    about_equal([json.loads(line) for line in (tmp_path / "e.jsonl").read_text().splitlines()], expected)
    with (tmp_path / "e.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert list(rows[0]) == ["key", "split", "class", "given", "corrected", "confidence", "changed"]
    for row, wanted in zip(rows, expected, strict=True):
        assert (row["key"], row["class"], row["changed"]) == (wanted["key"], wanted["class"], str(wanted["changed"]))
        if wanted["given"] is None:
            assert row["given"] == row["corrected"] == row["confidence"] == ""
        else:
            assert float(row["given"]) == wanted["given"] and int(row["corrected"]) == wanted["corrected"]
            assert float(row["confidence"]) == pytest.approx(wanted["confidence"], abs=1e-6)


def test_rows_of_several_classes_as_csv():
    table, keys, given, _ = several()
    text = io.BytesIO()
    assert write_labels(choose_labels(table), "csv", text) == len(keys)
    rows = list(csv.DictReader(io.StringIO(text.getvalue().decode())))
    assert [row["key"] for row in rows] == keys
    for row, label in zip(rows, given, strict=True):
        assert row["given"] == ";".join(name for name, value in zip(CLASSES, label, strict=True) if value > 0.5)


def test_cells_are_quoted_only_where_they_must_be():
    for names, expected in ((["a", "b"], b"n\na\nb\n"), (["a", "b,c"], b'n\n"a"\n"b,c"\n')):
        text = io.BytesIO()
        write_labels(pa.table({"n": names}), "csv", text)
        assert text.getvalue() == expected


def test_entries_of_one_class_each_are_refused():
    single = from_arrays(np.zeros((4, 2)), [0, 1, 0, 1])
    table = label_table(Splits(single), torch.eye(2)[[0, 1, 0, 1]], None)
    with pytest.raises(RunError, match="each example is of one class; --entries is for several at once; leave it out"):
        choose_entries(table)


def test_maps_go_to_a_new_file(tmp_path):
    maps = torch.arange(24.0).view(2, 3, 2, 2)
    save_maps(tmp_path / "m.npz", ["a", "long name"], CLASSES, maps)
    with np.load(tmp_path / "m.npz") as saved:
        assert saved["keys"].tolist() == ["a", "long name"] and tuple(saved["classes"].tolist()) == CLASSES
        assert np.array_equal(saved["maps"], maps)
    with pytest.raises(RunError, match="it already exists"):
        save_maps(tmp_path / "m.npz", ["a", "b"], CLASSES, maps)
