"""The label table as a type: its parts, its arrays, its rows by name; without torch and without pandas."""

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch
from review_runs import suspecting

from pencil.data import Splits, from_arrays
from pencil.errors import RunError
from pencil.runs.label_table import LabelTable
from pencil.runs.results import build_label_table


def single(rows=12, held_out=3):
    """Three classes; every fourth label changes, with a confidence that falls from row to row."""
    given = np.arange(rows) % 3
    corrected = np.where(np.arange(rows) % 4 == 0, (given + 1) % 3, given)
    probs = np.full((rows, 3), 0.05, np.float32)
    probs[np.arange(rows), corrected] = 0.9 - 0.02 * np.arange(rows)
    examples = from_arrays(
        np.zeros((rows, 2)), given, classes=("cat", "dog", "owl"), keys=[f"k{i}" for i in range(rows)]
    )
    cut = torch.arange(rows - held_out), torch.arange(rows - held_out, rows)
    splits = Splits(examples.subset(cut[0]), examples.subset(cut[1]))
    parts = (torch.from_numpy(probs)[rows] for rows in cut)
    return build_label_table(splits, *parts), given, corrected, probs


def multi():
    """Row 0 changes in two entries, row 1 in none; row 2 has an unknown entry."""
    given = np.array([[1, 0, 0], [0, 1, 1], [1, np.nan, 0]], np.float32)
    probs = np.array([[0.1, 0.9, 0.2], [0.1, 0.8, 0.9], [0.7, 0.6, 0.3]], np.float32)
    examples = from_arrays(np.zeros((3, 2)), given, classes=("sea", "sky", "sun"), keys=list("abc"), multilabel=True)
    return build_label_table(Splits(examples), torch.from_numpy(probs), None), given, probs


def test_single_label_arrays():
    labels, given, corrected, probs = single()
    assert labels.classes == ("cat", "dog", "owl") and not labels.multilabel and len(labels) == labels.num_rows == 12
    assert labels.given_codes.tolist() == given.tolist() and labels.corrected_codes.tolist() == corrected.tolist()
    assert labels.changed.dtype == bool and labels.changed.tolist() == (given != corrected).tolist()
    np.testing.assert_array_equal(labels.probs, probs)
    np.testing.assert_array_equal(labels.confidence, probs.max(axis=1))
    assert labels.given_labels[1] == "dog" and labels.keys.to_pylist()[:2] == ["k0", "k1"]
    with pytest.raises(RunError, match="single-label data has no given probabilities"):
        _ = labels.given_probs
    assert "12 rows, 3 classes, single-label" in repr(labels)


def test_multi_label_arrays():
    labels, given, probs = multi()
    assert labels.multilabel and labels.changed_counts.tolist() == [2, 0, 0] and labels.changed.tolist() == [1, 0, 0]
    np.testing.assert_array_equal(labels.given_probs, given)
    np.testing.assert_array_equal(labels.probs, probs)
    assert [labels.given_labels[row] for row in range(3)] == [("sea",), ("sky", "sun"), ("sea",)]
    assert [labels.corrected_labels[row] for row in range(3)] == [("sky",), ("sky", "sun"), ("sea",)]
    assert labels.given_codes[0] == labels.corrected_codes[2] != labels.corrected_codes[0]


@pytest.mark.parametrize("make", [single, multi])
def test_parts_of_a_table(make):
    labels = make()[0]
    for part, rows in (
        (labels.slice(1, 2), [1, 2]),
        (labels.take([2, 0]), [2, 0]),
        (labels.take(np.array([1])), [1]),
        (labels.filter(np.arange(len(labels)) < 2), [0, 1]),
        (labels.slice(len(labels)), []),
    ):
        assert part.keys.to_pylist() == [labels.keys[row].as_py() for row in rows]
        np.testing.assert_array_equal(part.probs, labels.probs[rows].reshape(-1, 3))
        assert part.changed.tolist() == labels.changed[rows].tolist()
        assert [part.given_labels[i] for i in range(len(rows))] == [labels.given_labels[row] for row in rows]
    assert labels.slice(0, 1).to_pylist() == labels.table.slice(0, 1).to_pylist()
    assert labels["key"].to_pylist() == labels.table["key"].to_pylist() == labels.to_pandas()["key"].tolist()
    assert labels.column_names == labels.table.column_names and labels.schema == labels.table.schema
    assert labels.sort_by([("key", "descending")]).keys.to_pylist() == sorted(labels.keys.to_pylist(), reverse=True)
    assert make is multi or labels.equals(labels.take(np.arange(len(labels))))


def test_training_and_held_out_rows():
    labels = single()[0]
    assert labels.train.keys.to_pylist() == [f"k{i}" for i in range(9)] and labels.train is labels.train
    assert labels.held_out.keys.to_pylist() == ["k9", "k10", "k11"]
    assert len(multi()[0].held_out) == 0


def test_labels_to_fix_are_the_changed_ones_with_the_most_confident_first():
    labels = single()[0]
    assert labels.to_fix().keys.to_pylist() == ["k0", "k4", "k8"]
    assert labels.take(np.arange(12)[::-1]).to_fix(0.75).keys.to_pylist() == ["k0", "k4"]
    for least in (0.0, 0.3, float(np.float32(0.9)), 0.82, 2.0):  # the same rows as Arrow chooses
        chosen = labels.table.filter(pc.greater_equal(labels["confidence"], least)) if least else labels.table
        expected = chosen.filter(chosen["changed"]).sort_by([("confidence", "descending")])
        assert labels.to_fix(least).table.equals(expected) and labels.confident(least).table.equals(chosen)


def test_suspects_include_the_labels_to_fix():
    labels = single()[0]
    more = suspecting(labels, [1, 11])
    assert more.suspects().keys.to_pylist() == ["k0", "k4", "k8", "k11", "k1"]
    assert more.to_fix().keys.to_pylist() == ["k0", "k4", "k8"]
    before = LabelTable(labels.table.drop_columns("suspect"))
    assert before.suspects().keys.to_pylist() == ["k0", "k4", "k8"]
    assert multi()[0].suspects().keys.to_pylist() == ["a"]


def test_ties_and_nan_stay_in_order():
    labels = single()[0]
    at = labels.column_names.index("issue_score")
    values = pa.array([0.5, np.nan, 0.5] * 4, pa.float32())
    changed = pa.array([True] * 12)
    table = labels.table.set_column(at, "issue_score", values)
    table = table.set_column(table.column_names.index("changed"), "changed", changed)
    expected = table.sort_by([("issue_score", "descending")])["key"].to_pylist()
    assert LabelTable(table).to_fix().keys.to_pylist() == expected


def test_rows_by_key_and_split():
    labels = single()[0]
    wanted = [("k3", "train"), ("k10", "validation"), ("k3", "validation"), ("nobody", "train")]
    assert labels.find_rows(wanted) == {("k3", "train"): 3, ("k10", "validation"): 10}
    assert labels.find_rows([]) == {} == labels.slice(0, 0).find_rows(wanted)


@pytest.mark.parametrize("make", [single, multi])
def test_a_file_is_read_as_it_was_written(tmp_path, make):
    labels = make()[0]
    labels.write(tmp_path / "labels.parquet")
    again = LabelTable.read(tmp_path / "labels.parquet")
    assert again.column_names == labels.column_names and again.schema.metadata == labels.schema.metadata
    assert str(again.to_pylist()) == str(labels.to_pylist())  # as text: NaN is NaN
    few = LabelTable.read(tmp_path / "labels.parquet", ["confidence"])
    assert few.column_names == ["key", "split", "given", "confidence"] and few.multilabel == labels.multilabel
    assert few.classes == labels.classes


def test_a_table_in_many_chunks_is_the_same(tmp_path):
    for labels in (single()[0], multi()[0]):
        pq.write_table(labels.table, tmp_path / "l.parquet", row_group_size=2)
        pieces = LabelTable(pa.concat_tables([labels.table.slice(i, 1) for i in range(len(labels))]))
        for other in (LabelTable.read(tmp_path / "l.parquet"), pieces):
            assert other.corrected_codes.tolist() == labels.corrected_codes.tolist()
            np.testing.assert_array_equal(other.probs, labels.probs)


def test_other_tables_are_refused():
    table = single()[0].table
    with pytest.raises(RunError, match="no column 'given'; expected the columns"):
        LabelTable(table.drop_columns("given"))
    with pytest.raises(RunError, match="no class names in its metadata"):
        LabelTable(table.replace_schema_metadata(None))
    other = table.replace_schema_metadata({"classes": '["cat", "dog"]'})
    with pytest.raises(RunError, match="names the class 'owl'; expected one of the 2 classes"):
        _ = LabelTable(other).given_codes


SCRIPT = """
import sys
from pencil.runs.directory import RunReader, RunWriter
from pencil.runs.label_table import LabelTable
labels = LabelTable.read(sys.argv[1])
labels.train, labels.held_out, labels.to_fix(0.5), labels.probs, labels.given_codes, labels.corrected_codes
labels.find_rows([("k3", "train")]), labels.slice(0, 2).to_pylist()
print([name for name in ("torch", "pandas") if name in sys.modules])
"""


@pytest.mark.parametrize("make", [single, multi])
def test_neither_torch_nor_pandas_is_imported(tmp_path, make):
    make()[0].write(tmp_path / "l.parquet")
    done = subprocess.run([sys.executable, "-c", SCRIPT, tmp_path / "l.parquet"], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
