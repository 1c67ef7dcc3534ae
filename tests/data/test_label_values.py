"""Labels of arrays: classes are the values that occur, and rows may have no label."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from readers import from_frame, from_npz

from pencil import DataError
from pencil.data import Splits, from_arrays
from pencil.data.read import load
from pencil.data.settings import DataSettings
from pencil.data.sources.torch_dataset import from_dataset
from pencil.data.unlabelled import set_apart
from pencil.errors import DataWarning


def given(y, **options):
    return from_arrays(np.zeros((len(y), 2)), y, **options)


def test_classes_are_the_values_that_occur():
    examples = given([3, 1, 2, 3, 1, 2])
    assert examples.classes == ("1", "2", "3") and examples.given_labels.tolist() == [2, 0, 1, 2, 0, 1]
    assert given([0.0, 10.0, 2.0, 10.0]).classes == ("0", "2", "10")
    assert given([-1, 1, 1, -1]).classes == ("-1", "1")
    assert given([0, 2147483647, 0]).classes == ("0", "2147483647")
    assert given([2, 0, 1]).classes == ("0", "1", "2") and given([2, 0, 1]).given_labels.tolist() == [2, 0, 1]


def test_integers_are_indices_unless_a_class_is_an_integer():
    assert given([2, 0, 1], classes=["a", "b", "c"]).given_labels.tolist() == [2, 0, 1]
    assert given([2, 0, 1], classes=["00", "01", "02"]).given_labels.tolist() == [2, 0, 1]
    assert given([3, 1, 1], classes=["1", "2", "3"]).given_labels.tolist() == [2, 0, 0]
    assert given([2, 0, 0], classes=4).classes == ("0", "1", "2", "3")
    assert given([3, 1, 2], clean_labels=[1, 1, 3]).clean_labels.tolist() == [0, 0, 2]
    with pytest.raises(
        DataError, match=r"label 4 at row 1 is not one of the 3 classes \('1', '2', '3'\); fix the label"
    ):
        given([3, 4, 1], classes=["1", "2", "3"])


@pytest.mark.parametrize("nan", [float("nan"), np.float32("nan"), np.float64("nan")])
def test_nan_in_a_list_of_names_is_no_label(nan):
    """As ``frame["label"].tolist()`` has it."""
    for y in (["cat", nan, "dog", "cat"], ("cat", nan, "dog", "cat"), [["cat"], [nan], ["dog"], ["cat"]]):
        assert given(y).classes == ("cat", "dog") and given(y).given_labels.tolist() == [0, -1, 1, 0]
    assert given([b"cat", nan, b"dog", 1.5]).classes == ("1.5", "cat", "dog")
    with pytest.raises(DataError, match="clean_labels: label at row 1 is missing"):
        given(["cat", "dog", "dog"], clean_labels=["cat", nan, "dog"])
    assert given(["nan", "cat"]).classes == ("cat", "nan")  # a name like others


def test_minus_one_beside_other_numbers_is_asked_about():
    with pytest.raises(DataError, match=r"label -1 at row 2 may be a class or mean that there is none; .*NaN or None"):
        given([0, 1, -1, 1])
    assert given([0, 1, -1, 1], classes=["-1", "0", "1"]).given_labels.tolist() == [1, 2, 0, 2]


def test_minus_one_in_a_table_is_asked_about_too(tmp_path):
    message = r"label -1 at row 2 of .* may be a class or mean that there is none; .*an empty cell.*with classes="
    images, file = [b"x"] * 4, tmp_path / "t.parquet"
    for labels in ([0, 1, -1, 2], [0.0, None, -1.0, 2.0], [[0], [1, 2], [-1], [2]]):
        pq.write_table(pa.table({"image": images, "label": labels}), file)
        with pytest.raises(DataError, match=message):
            load(DataSettings(source=str(file)))
        with pytest.raises(DataError, match=message):
            from_frame(pq.read_table(file), DataSettings())
    (tmp_path / "t.csv").write_text("x,label,other\n1.5,0,1\n2.5,1,-1\n3.5,-1,-1\n4.5,2,0\n")
    with pytest.raises(DataError, match=message.replace("row 2", "row 4")):  # its line
        load(DataSettings(source=str(tmp_path / "t.csv")))
    with pytest.raises(DataError, match=r"label -1 at row 3 \(and 1 more: row 4\)"):
        load(DataSettings(source=str(tmp_path / "t.csv"), columns={"label": ("label", "other")}))
    named = load(DataSettings(source=str(tmp_path / "t.csv"), classes=("-1", "0", "1", "2"))).train
    assert named.given_labels.tolist() == [1, 2, 0, 3]
    pq.write_table(pa.table({"image": images, "label": [1, -1, 1, -1]}), file)
    assert load(DataSettings(source=str(file))).train.classes == ("-1", "1")


def test_minus_one_among_indices_is_no_label(tmp_path):
    for classes in (["a", "b"], 2):
        assert given([0, 1, -1, 1], classes=classes).given_labels.tolist() == [0, 1, -1, 1]
    pq.write_table(pa.table({"image": [b"x"] * 3, "label": [1, -1, 0]}), tmp_path / "t.parquet")
    splits = load(DataSettings(source=str(tmp_path / "t.parquet"), classes=("a", "b")))
    assert splits.train.given_labels.tolist() == [1, 0] and splits.unlabelled.keys.tolist() == ["1"]
    with pytest.raises(DataError, match=r"row 1: label -2 is not one of the 2 classes"):
        pq.write_table(pa.table({"image": [b"x"] * 3, "label": [1, -2, 0]}), tmp_path / "t.parquet")
        load(DataSettings(source=str(tmp_path / "t.parquet"), classes=("a", "b")))


def test_the_test_set_of_an_npz_file_has_the_values_of_training(tmp_path):
    np.savez(tmp_path / "d.npz", x=np.eye(6), y=[1, 2, 3, 1, 2, 3], x_test=np.eye(6)[:2], y_test=[2, 1])
    splits = from_npz(tmp_path / "d.npz")
    assert splits.train.classes == ("1", "2", "3") and splits.test.given_labels.tolist() == [1, 0]


@pytest.mark.parametrize(("name", "kind"), [("y", "str"), ("classes", "str"), ("x", "float")])
def test_python_objects_in_a_file_are_refused_with_what_to_do(tmp_path, name, kind):
    arrays = {"x": np.eye(2), "y": np.array([0, 1]), "classes": np.array(["a", "b"])}
    np.savez(tmp_path / "d.npz", **(arrays | {name: np.array(["cat", "dog"], dtype=object)}))
    remedy = rf"array '{name}' .*; save it again with numpy.savez\(path, {name}={name}.astype\({kind}\)"
    with pytest.raises(DataError, match=remedy):
        from_npz(tmp_path / "d.npz")


def test_all_bad_rows_of_arrays_are_counted():
    x = np.zeros((9, 2))
    x[[1, 2, 3, 5, 6, 8]] = np.nan
    with pytest.raises(DataError, match=r"input at row 1 \(and 5 more: row 2, row 3, row 5, row 6, ...\) holds NaN"):
        from_arrays(x, np.arange(9) % 2)
    with pytest.raises(
        DataError, match=r"label 7 at row 1 \('b'\) \(and 1 more: row 3 \('d'\)\) does not fit 2 classes"
    ):
        given([0, 7, 1, 9], classes=2, keys=list("abcd"))


@pytest.mark.parametrize(
    ("y", "classes"),
    [
        (["a", None, "b", "b"], ("a", "b")),
        (["a", "", "b", "b"], ("a", "b")),
        (np.array(["a", np.nan, "b", "b"], dtype=object), ("a", "b")),
        (np.array([b"a", b" ", b"b", b"b"]), ("a", "b")),
        ([0, None, 1, 1], ("0", "1")),
        ([2.0, np.nan, 10.0, 10.0], ("2", "10")),
        (torch.tensor([0.0, torch.nan, 1.0, 1.0]), ("0", "1")),
    ],
)
def test_rows_without_a_label_are_set_apart(y, classes):
    splits = set_apart(Splits(given(y, clean_labels=[0, 0, 1, 1] if classes == ("0", "1") else None)))
    assert splits.train.classes == classes and splits.train.given_labels.tolist() == [0, 1, 1]
    assert splits.unlabelled.keys.tolist() == ["1"] and splits.unlabelled.given_labels.tolist() == [-1]
    assert splits.sizes() == {"train": 3, "unlabelled": 1} and splits.unlabelled.clean_labels is None


def test_distributions_without_numbers_are_set_apart():
    splits = set_apart(Splits(given([[0.5, 0.5], [np.nan, np.nan], [1, 0]], multilabel=False)))
    assert splits.train.given_labels.tolist() == [[0.5, 0.5], [1, 0]] and splits.unlabelled.given_labels.tolist() == [
        -1
    ]
    with pytest.raises(DataError, match="expected a class"):
        given([[0.5, np.nan], [1, 0]], multilabel=False)


def test_a_dataset_may_have_items_without_a_label():
    examples = from_dataset([(torch.zeros(2), "a"), (torch.ones(2), None), (torch.ones(2), "b")])
    assert set_apart(Splits(examples)).unlabelled.keys.tolist() == ["1"]


def test_rows_without_a_label_are_left_out_of_test_sets(tmp_path):
    np.savez(tmp_path / "d.npz", x=np.eye(4), y=["a", "b", "a", "b"], x_test=np.eye(4), y_test=["a", "", "b", ""])
    with pytest.warns(DataWarning, match="2 of 4 test rows have no label and are ignored"):
        splits = load(DataSettings(source=str(tmp_path / "d.npz")))
    assert splits.sizes() == {"train": 4, "test": 2} and splits.test.given_labels.tolist() == [0, 1]


def test_data_without_any_label_is_refused():
    with pytest.raises(DataError, match=r"none of the 2 rows has a label"):
        given([None, None])
    with pytest.raises(DataError, match=r"none of the 2 rows has a label"):
        given([np.nan, np.nan])
