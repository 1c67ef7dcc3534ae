"""A key names one row and a class name one class, wherever the data comes from."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from readers import from_folder, from_npz, from_table, read_arrays
from torch.utils.data import TensorDataset

from pencil import DataError
from pencil.data import Examples, Splits, from_arrays
from pencil.data.columns import Columns
from pencil.data.keys import as_keys, refuse_repeated_keys
from pencil.data.prepare import prepare
from pencil.data.read import load
from pencil.data.settings import DataSettings
from pencil.data.sources.torch_dataset import from_dataset

X = np.eye(4, dtype=np.float32)
Y = ["a", "b", "a", "b"]
MISSING = [
    (["p", "", "r", "s"], r"the key of row 1 is missing"),
    (["p", None, "r", "s"], r"the key of row 1 is missing"),
    ([1.0, 2.0, np.nan, 3.0], r"the key of row 2 is missing"),
    (np.array(["p", "q", np.nan, "s"], dtype=object), r"the key of row 2 is missing"),
    (["p", "q", np.nan, "s"], r"the key of row 2 is missing"),
    ((b"p", b"q", np.float32("nan"), b"s"), r"the key of row 2 is missing"),
    ([[1], [2], [3], [4]], r"the keys have shape \(4, 1\); expected one key for each row"),
    (np.array(7), r"the keys have shape \(\)"),
    (np.arange(4) * 1j, r"the keys are of type complex128"),
    (np.array(["2020-01-01"] * 4, dtype="datetime64[D]"), r"the keys are of type datetime64"),
    ([[1], [2, 3], [4], [5]], r"lists of different lengths"),
    (np.array([{}, {}, {}, {}]), r"the key of row 0 is a dict"),
    (["p", "\udcff", "r", "s"], r"a key is not valid text"),
    ([b"p", b"\xff", b"r", b"s"], r"a key is not valid text"),
    (["p", "q", "r"], r"there are 4 inputs but 3 keys; expected one per input"),
]
REPEATED = [
    (["p", "q", "p", "s"], r"rows 0 and 2 have the same key 'p'; expected unique keys.*rename one of them"),
    ([1, 2, 3, 2], r"rows 1 and 3 have the same key '2'"),
    (np.array([1, "1", 2, 3], dtype=object), r"rows 0 and 1 have the same key '1'"),
    ([True, False, True, False], r"rows 0 and 2 have the same key 'True'"),
    (np.array([b"p", b"q", b"q", b"s"]), r"rows 1 and 2 have the same key 'q'"),
]


@pytest.mark.parametrize(("keys", "message"), [*MISSING, *REPEATED])
def test_missing_and_repeated_keys_of_arrays_are_refused(keys, message):
    with pytest.raises(DataError, match=message):
        from_arrays(X, Y, keys=keys)


@pytest.mark.parametrize("keys", [["p", "q", "p", "s"], ["p", "q", "", "s"], [1, 1, 2, 3], np.array("pqrs")])
def test_an_npz_file_is_refused_alike(tmp_path, keys):
    np.savez(tmp_path / "d.npz", x=X, y=Y, keys=keys)
    for read in (from_npz, read_arrays):
        with pytest.raises(DataError, match=r"same key|is missing|keys have shape"):
            read(tmp_path / "d.npz")


@pytest.mark.parametrize("keys", [[3, 1, 2, 0], [0.5, 1, 2, 3], ["ä", "b", "c", "d"], [b"a", b"b", b"c", b"d"]])
def test_names_and_numbers_are_keys(keys):
    assert len(set(from_arrays(X, Y, keys=keys).keys.tolist())) == 4


def test_equal_hashes_are_not_equal_keys(monkeypatch):
    monkeypatch.setattr("pencil.data.keys.hash", lambda key: 1, raising=False)
    refuse_repeated_keys(as_keys(["a", "b", "c"]))
    with pytest.raises(DataError, match="rows 1 and 2"):
        refuse_repeated_keys(as_keys(["a", "b", "b"]))


def test_examples_and_splits_made_by_hand_are_checked_before_training():
    data = from_arrays(X, Y, keys=list("pqrs"))
    twice = Examples(data.inputs, data.rows, data.given_labels, data.classes, as_keys(list("pqps")))
    with pytest.raises(DataError, match="rows 0 and 2 have the same key 'p'"):
        prepare(DataSettings(), Splits(twice), 0)
    with pytest.raises(DataError, match="the test set: rows 0 and 2 have the same key 'p'"):
        prepare(DataSettings(), Splits(data, test=twice), 0)
    with pytest.raises(DataError, match="from one source: rows 0 and 4 have the same key 'p'"):
        prepare(DataSettings(), Splits(data, validation=data), 0)
    other = from_arrays(X.copy(), Y, keys=list("pqrs"))  # another source may use the same names
    assert prepare(DataSettings(), Splits(data, validation=other, test=other), 0).splits.sizes()["test"] == 4


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (["1", "1", "2", "3"], r"has the key '1' more than once in column 'id'"),
        (["1", "", "2", "3"], r"1 bad row of 4: row 1: there is no key in column 'id'"),
        (["1", None, "2", "3"], r"1 bad row of 4: row 1: there is no key in column 'id'"),
        ([1.0, float("nan"), 2.0, 3.0], r"1 bad row of 4: row 1: there is no key in column 'id'"),
    ],
)
def test_keys_of_tables_and_hugging_face_datasets(tmp_path, ids, message):
    columns, table = Columns(key="id"), pa.table({"path": list("pqrs"), "label": Y, "id": ids})
    pq.write_table(table, tmp_path / "t.parquet")
    with pytest.raises(DataError, match=message):
        from_table(tmp_path / "t.parquet", columns)
    datasets = pytest.importorskip("datasets")
    from readers import from_hugging_face

    found = datasets.Dataset(table.append_column("x", [[[1.0, 2.0]] * 4]))
    with pytest.raises(DataError, match=message):
        from_hugging_face(found, columns)


def test_an_empty_path_of_a_table_is_missing(tmp_path):
    pq.write_table(pa.table({"path": ["p", ""], "label": ["a", "b"]}), tmp_path / "t.parquet")
    with pytest.raises(DataError, match="1 bad row of 2: row 1: there is no path in column 'path'"):
        from_table(tmp_path / "t.parquet")


SAME = r"classes 0 and 2 have the same name 'a'; expected distinct names; merge or rename one of them"


def test_repeated_class_names_are_refused_everywhere(tmp_path, pets):
    names = ["a", "b", "a"]
    np.savez(tmp_path / "d.npz", x=X, y=Y, classes=names)
    (tmp_path / "t.csv").write_text("path,label\np,a\nq,b\n")
    table = pa.table({"path": ["p", "q"], "label": ["a", "b"]}, metadata={"class_names": "a,b,a"})
    pq.write_table(table, tmp_path / "t.parquet")
    dataset = TensorDataset(torch.eye(4), torch.tensor([0, 1, 0, 2]))
    dataset.classes = names
    for make in (
        lambda: from_arrays(X, Y, classes=names),
        lambda: from_arrays(X, np.eye(4)[:, :3] + np.eye(4)[:, 3:], classes=names, multilabel=True),
        lambda: from_npz(tmp_path / "d.npz"),
        lambda: from_table(tmp_path / "t.csv", classes=names),
        lambda: from_table(tmp_path / "t.parquet"),
        lambda: from_dataset(dataset),
        lambda: from_folder(pets, classes=["a", "b", "a"]),
        lambda: load(DataSettings(source=str(tmp_path / "t.csv"), classes=("a", "b", "a"))),
    ):
        with pytest.raises(DataError, match=SAME):
            make()
    made = from_arrays(X, Y)
    by_hand = Examples(made.inputs, made.rows, made.given_labels, ("a", "a"), made.keys)
    with pytest.raises(DataError, match="classes 0 and 1 have the same name 'a'"):
        prepare(DataSettings(), Splits(by_hand), 0)


@pytest.mark.parametrize(
    ("y", "classes", "message"),
    [
        (["", None, " ", np.nan], None, r"none of the 4 rows has a label"),
        (["a", "b", "a", "b"], ["a", "b", " "], r"the name of class 2 is empty"),
        (["a", "b", "a", "b"], "ab", r"classes is 'ab'; expected a list of names, or their number"),
        ([0, 1, 0, 1], 2.5, r"classes is 2.5; expected a list of names"),
        ([0, 1, 0, 1], -1, r"classes is -1; expected at least one class"),
        ([0, 1, 0, 1], np.array("ab"), r"expected a list of names"),
        (np.array([0, 1, 0, 1]) * 1j, None, r"labels are of type complex128"),
        (np.array(["2020-01-01"] * 4, dtype="M8[D]"), None, r"labels are of type datetime64"),
        (np.array([{}, {}, {}, {}]), None, r"label at row 0 is a dict"),
        (["a", "\udcff", "a", "b"], None, r"label '.udcff' at row 1 is not valid text"),
        ([0, 1e300, 0, 1], None, r"label 1e\+300 at row 1 is not a class"),
        ([0, np.inf, 0, 1], None, r"label inf at row 1 is not a class"),
        (torch.eye(4).to_sparse(), None, r"expected a dense tensor; call its to_dense"),
        ([[0, 1e300], [1, 0], [1, 1], [0, 1]], None, r"expected values from 0 to 1"),
    ],
)
def test_odd_labels_and_classes_are_named(y, classes, message):
    with pytest.raises(DataError, match=message):
        from_arrays(X, y, classes=classes)


def test_other_types_of_labels_work():
    large = from_arrays(X, np.array([0, 2**64 - 1, 0, 1], dtype=np.uint64))
    assert large.classes == ("0", "1", "18446744073709551615") and large.given_labels.tolist() == [0, 2, 0, 1]
    assert from_arrays(X, np.array([b"cat", b"dog"] * 2)).classes == ("cat", "dog")
    assert from_arrays(X, np.array([0, 1, 0, 1], dtype=">i4"), classes=np.int64(2)).given_labels.tolist() == [
        0,
        1,
        0,
        1,
    ]
    assert from_arrays(X, np.array([0, 1, 0, 1], dtype=np.longdouble)).given_labels.tolist() == [0, 1, 0, 1]
    assert from_arrays(X, torch.tensor([0.0, 1, 0, 1], dtype=torch.bfloat16)).given_labels.tolist() == [0, 1, 0, 1]
