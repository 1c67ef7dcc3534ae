"""Multi-label data, in every form in which data can come, and all that can be wrong with them."""

import warnings
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from conftest import paint
from readers import from_npz, from_table
from torch.utils.data import Subset, TensorDataset

from pencil import DataError, LabelStore
from pencil.data import Splits, from_arrays, from_dataset
from pencil.data.check.inspection import as_tree, inspect, label_of
from pencil.data.columns import Columns
from pencil.data.examples import check_trainable
from pencil.data.prepare import prepare
from pencil.data.read import load, read_like
from pencil.data.settings import DataSettings

NAN = float("nan")
X = np.arange(8, dtype=np.float32).reshape(4, 2)
TWO = [[1, 1, 0], [0, 1, 0], [0, 0, 1], [0, 0, 0]]
ONE_HOT = [[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 0, 0]]
SOFT = [[1, 0.1, 0], [0, 1, NAN], [0.3, 0.3, 1], [0, 0, 0]]


@pytest.mark.parametrize("dtype", [np.int64, np.uint8, bool, np.float64])
def test_two_ones_in_a_row_are_several_classes(dtype):
    examples = from_arrays(X, np.array(TWO, dtype=dtype))
    assert examples.multilabel and examples.given_labels.dtype == torch.float32
    assert examples.given_labels.tolist() == TWO and examples.classes == ("0", "1", "2")
    assert from_arrays(X, torch.tensor(np.array(TWO, dtype=dtype)), classes=["a", "b", "c"]).classes == ("a", "b", "c")


def test_what_could_be_a_distribution_is_one_unless_told_otherwise():
    for labels in (ONE_HOT, [[0.5, 0.5, 0]] * 4):
        assert not from_arrays(X, labels).multilabel
        assert not from_arrays(X, labels, multilabel=False).multilabel
        assert from_arrays(X, labels, multilabel=True).multilabel
    assert from_arrays(X, [[NAN, 1, 1], [0, 0, 0], [0, 0, 1], [NAN, NAN, NAN]]).multilabel  # 0, 1 or unknown
    soft = from_arrays(X, SOFT, multilabel=True).given_labels
    assert torch.allclose(soft, torch.tensor(SOFT), equal_nan=True)
    unknown = from_arrays(X, [[1, None, 0]] * 4, multilabel=True).given_labels
    assert unknown[0].isnan().tolist() == [False, True, False]


HINT = "with multilabel=True every column is a class"


@pytest.mark.parametrize(
    ("labels", "options", "message"),
    [
        (SOFT, {}, r"label at row 1 is \[ *0\. +1\. +nan\]; expected a class; .*" + HINT),
        (
            [[1, 0.1, 0]] * 4,
            {},
            r"distribution at row 0 \(and 3 more: row 1, row 2, row 3\) is .*that sum to 1; fix the row; " + HINT,
        ),
        ([[1, 0, 0]] * 3 + [[0, 0, 0]], {}, r"distribution at row 3 is \[0 0 0\]; .*" + HINT),
        (
            [[1, 2, 0]] * 4,
            {"multilabel": True},
            r"multi-label at row 0 \(and 3 more: row 1, row 2, row 3\) is \[1\. 2\. 0\.\]; expected values from 0 to 1",
        ),
        ([[1, 0, 0]] * 3 + [[0, -0.5, 0]], {"multilabel": True, "keys": list("abcd")}, r"at row 3 \('d'\) is .*-0\.5"),
        (
            [0, 1, 2, 1],
            {"multilabel": True},
            r"are int64 of shape \(4,\); expected .*\(n, classes\) numbers.*leave multi",
        ),
        (list("abca"), {"multilabel": True}, r"are <U1 of shape \(4,\)"),
        ([["a", "b"]] * 4, {"multilabel": True}, r"are <U1 of shape \(4, 2\); expected .*\(n, classes\) numbers"),
        ([["a", "b"]] * 4, {}, r"the labels are <U1 of shape \(4, 2\); expected one name for each row, or a matrix of"),
        ([[1, None]] * 4, {}, r"the labels are object of shape \(4, 2\).*multilabel=True"),
        ([["a", "b"], ["a"], [], ["b"]], {}, r"lists of different lengths; .*MultiLabelBinarizer makes one"),
        (TWO, {"classes": 4}, r"the labels have 3 columns but there are 4 classes; expected a column for each class"),
        (TWO, {"classes": ["a", "b"]}, r"the labels have 3 columns but there are 2 classes"),
        (ONE_HOT, {"classes": ["a", "b"]}, r"the labels have 3 columns but there are 2 classes"),
        (TWO, {"clean_labels": [0, 1, 2, 0]}, r"clean_labels: labels are int64 of shape \(4,\)"),
        (TWO, {"clean_labels": [[0, 1]] * 4}, r"clean_labels: the labels have 2 columns but there are 3 classes"),
        (TWO, {"clean_labels": SOFT}, r"clean_labels: multi-label at row 0 .* is .*; expected 0 or 1, or NaN"),
        (TWO, {"clean_labels": TWO[:3]}, r"4 inputs but 3 clean labels"),
        ([0, 1, 0, 1], {"clean_labels": TWO}, r"clean_labels: the labels have 3 columns but there are 2 classes"),
        (
            ONE_HOT,
            {"clean_labels": TWO},
            r"clean_labels: label distribution at row 0 \(and 1 more: row 3\) is \[1 1 0\]",
        ),
    ],
)
def test_bad_matrices_are_named(labels, options, message):
    with pytest.raises(DataError, match=message):
        from_arrays(X, labels, **options)


def test_a_store_of_one_class_does_not_speak_of_an_option_that_it_has_not():
    with pytest.raises(DataError, match=r"sum to 1; fix the row\.$"):
        LabelStore(np.array(TWO))


def test_a_sparse_matrix_of_labels():
    from scipy.sparse import csr_matrix

    found = from_arrays(X, csr_matrix(TWO))
    assert found.multilabel
    assert found.given_labels.tolist() == from_arrays(X, TWO).given_labels.tolist()


def test_clean_labels_are_a_matrix_too():
    clean = [[1, 1, 1], [0, 1, NAN], [0, 0, 1], [1, 0, 0]]
    examples = from_arrays(X, TWO, clean_labels=clean)
    assert torch.allclose(examples.clean_labels, torch.tensor(clean), equal_nan=True)


def test_npz_files_and_their_test_split(tmp_path):
    path = tmp_path / "d.npz"
    np.savez(path, x=X, y=TWO, classes=["a", "b", "c"], clean_labels=TWO, x_test=X[:2], y_test=ONE_HOT[:2])
    splits = from_npz(path)
    assert splits.train.multilabel and splits.train.clean_labels.shape == (4, 3)
    assert splits.test.multilabel and splits.test.given_labels.tolist() == ONE_HOT[:2]  # of the kind of training
    np.savez(path, x=X, y=ONE_HOT, x_test=X[:2], y_test=TWO[:2])
    assert load(DataSettings(source=str(path), multilabel=True)).test.multilabel
    with pytest.raises(
        DataError, match=r"^the test set: label distribution at row 0.* is \[1 1 0\]; .*; fix the row\.$"
    ):
        from_npz(path)
    np.savez(path, x=X, y=TWO, x_test=X, y_test=[[1, 0], [0, 1]] * 2)
    with pytest.raises(DataError, match=r"^the test set: the labels have 2 columns but there are 3 classes"):
        from_npz(path)


def test_a_test_source_is_of_the_kind_and_width_of_training(tmp_path, pets):
    np.savez(tmp_path / "train.npz", x=X, y=TWO)
    for name, labels in {"good": ONE_HOT, "narrow": np.array(TWO)[:, :2], "hard": [0, 1, 2, 0]}.items():
        np.savez(tmp_path / f"{name}.npz", x=X, y=labels)
    settings = DataSettings(source=str(tmp_path / "train.npz"), test=str(tmp_path / "good.npz"))
    assert load(settings).test.multilabel
    for name, message in {
        "narrow": "the labels have 2 columns",
        "hard": r"labels are int64 of shape \(4,\)",
    }.items():
        with pytest.raises(DataError, match=rf"^the test set: {message}"):
            load(settings.model_copy(update={"test": str(tmp_path / f"{name}.npz")}))
    with pytest.raises(DataError, match="are single-label; expected multi-label data: a matrix"):
        read_like(str(pets), DataSettings(), ("cat", "dog"), multilabel=True)


class Vectors(torch.utils.data.Dataset):
    classes = ("a", "b", "c")

    def __init__(self, labels, stored=False):
        self.given, self.reads = labels, 0
        if stored:
            self.targets = labels

    def __len__(self):
        return len(self.given)

    def __getitem__(self, i):
        self.reads += 1
        return torch.zeros(2), self.given[i]


@pytest.mark.parametrize("kind", [lambda v: v, np.array, torch.tensor])
def test_datasets_of_vectors(kind):
    examples = from_dataset(Vectors([kind(row) for row in TWO]))
    assert examples.multilabel and examples.given_labels.tolist() == TWO and examples.classes == ("a", "b", "c")
    assert not from_dataset(Vectors([kind(row) for row in ONE_HOT])).multilabel
    assert from_dataset(Vectors([kind(row) for row in ONE_HOT]), multilabel=True, clean_labels=TWO).multilabel
    with pytest.raises(DataError, match="the labels are lists of different lengths"):
        from_dataset(Vectors([kind([1, 0]), kind([1, 1, 0])]))


def test_stored_matrices_spare_reading_and_may_hold_unknown_entries():
    dataset = Vectors(torch.tensor([[NAN, 1.0, 1.0]] * 50), stored=True)
    assert from_dataset(dataset).multilabel and dataset.reads <= 3
    tensors = TensorDataset(torch.zeros(4, 2), torch.tensor(TWO))
    assert from_dataset(Subset(tensors, [2, 0])).given_labels.tolist() == [TWO[2], TWO[0]]


@pytest.fixture
def table(tmp_path):
    """Writes a Parquet table of four images with these columns."""
    for number in range(4):
        paint(tmp_path / f"{number}.png", number)

    def write(**columns):
        pq.write_table(pa.table({"path": [f"{n}.png" for n in range(4)], **columns}), tmp_path / "t.parquet")
        return tmp_path / "t.parquet"

    return write


def test_lists_of_numbers_in_a_table(table):
    for labels in (TWO, [[float(v) for v in row] for row in TWO]):
        train = from_table(table(label=labels)).train
        assert train.multilabel and train.given_labels.tolist() == TWO
    unknown = from_table(table(label=[[1, None, 1], [0, 1, 0], [0, 0, 1], [None] * 3])).train
    assert unknown.multilabel and unknown.given_labels.isnan().sum() == 4
    assert from_table(table(label=ONE_HOT), multilabel=True).train.multilabel
    assert not from_table(table(label=ONE_HOT)).train.multilabel
    with pytest.raises(DataError, match="sum to 1; fix the row; with multilabel=True"):
        from_table(table(label=[[0.9, 0.9]] * 4))
    chosen = from_table(table(label=[[0, 2], [1, 2], [2, 0], [2, 1]])).train  # lists of classes, as ever
    assert chosen.given_labels.tolist() == [[1, 0, 1], [0, 1, 1], [1, 0, 1], [0, 1, 1]]


def test_clean_columns_of_several_classes(table):
    names, clean = [["a", "b"], ["b"], ["c"], []], [["a", "b"], ["b", "c"], ["c"], []]
    expected = [[1, 1, 0], [0, 1, 1], [0, 0, 1], [0, 0, 0]]
    train = from_table(table(label=names, true=clean), Columns(clean="true")).train
    assert train.clean_labels.tolist() == expected
    columns = {name: [row[k] for row in TWO] for k, name in enumerate("abc")}
    right = {name.upper(): [row[k] for row in expected] for k, name in enumerate("abc")}
    chosen = Columns(indicators=tuple("abc"), clean=tuple("ABC"))
    assert from_table(table(**columns, **right), chosen).train.clean_labels.tolist() == expected
    for columns_clean, message in {
        ("A",): "the labels have 1 columns but there are 3 classes",
        "word": "is of type string; expected numbers",
    }.items():
        bad = table(**columns, **right, word=list("abca"))
        with pytest.raises(DataError, match=f"data.columns.clean: .*{message}"):
            from_table(bad, Columns(indicators=tuple("abc"), clean=columns_clean))
    with pytest.raises(DataError, match=r"columns.clean: there are 2 columns and .* single-label; expected one"):
        from_table(table(label=list("abab"), one=list("abab"), two=list("abab")), Columns(clean=("one", "two")))


def test_hugging_face_lists_of_numbers(tmp_path):
    datasets = pytest.importorskip("datasets")
    columns = {"x": X.tolist(), "labels": [[float(v) for v in row] for row in TWO]}
    whole = datasets.DatasetDict(
        train=datasets.Dataset.from_dict(columns),
        test=datasets.Dataset.from_dict({**columns, "labels": [[1.0, 0.0, 0.0]] * 4}),
    )
    whole.save_to_disk(str(tmp_path / "d"))
    splits = load(DataSettings(source=f"hf/{tmp_path / 'd'}"))
    assert splits.train.multilabel and splits.test.multilabel and splits.test.given_labels.sum() == 4


def prepared(labels, x=None, **settings):
    examples = from_arrays(np.zeros((len(labels), 2)) if x is None else x, labels, multilabel=True)
    return prepare(DataSettings(**{"validation": 0.0, **settings}), Splits(examples), seed=0)


def test_classes_of_which_nothing_is_known_or_that_are_never_there():
    with pytest.raises(
        DataError, match=r"1 of 3 classes are unknown \(NaN, .*\) in every row: '1'; .*label some rows or"
    ):
        prepared([[1, NAN, 0], [0, NAN, 1]])
    with pytest.raises(DataError, match=r"2 of 3 classes have no example: '0', '1'; "):
        prepared([[0, NAN, 1], [0, 0, 1]])
    prepared([[0.2, 1], [0, 1]])  # one that is there perhaps is there


def test_rows_without_a_class_are_welcome_and_unknown_rows_are_warned_of_once():
    prepared([[1, 1], [0, 0], [0, 0]])
    with pytest.warns(
        UserWarning, match=r"^2 of 4 training rows have no known labels and are ignored in training; label"
    ) as seen:
        prepared([[1, 1], [NAN, NAN], [NAN, 0], [NAN, NAN]])
    assert len(seen) == 1


def test_one_column_is_a_class_by_itself_where_it_is_said_so():
    assert prepared([[1], [0], [0.5]]).splits.train.num_classes == 1
    assert from_arrays(X, [[1], [0], [1], [0]]).given_labels.tolist() == [1, 0, 1, 0]  # indices, as ever


def test_the_kind_is_filled_in_and_another_one_is_refused():
    assert prepared(TWO).settings.multilabel is True
    single = from_arrays(X, [0, 1, 0, 1])
    assert prepare(DataSettings(validation=0), Splits(single), 0).settings.multilabel is False
    with pytest.raises(DataError, match="are multi-label; expected single-label data"):
        prepared(TWO, multilabel=False)
    with pytest.raises(DataError, match="are single-label; expected multi-label"):
        prepare(DataSettings(multilabel=True), Splits(single), 0)
    several = from_arrays(X, TWO)
    with pytest.raises(DataError, match=r"^the test set: the labels are single-label"):
        prepare(DataSettings(), Splits(several, test=single), 0)
    narrow = from_arrays(X, [[1, 1]] * 4)
    with pytest.raises(DataError, match=r"^the validation set: it has 2 classes; expected the 3 classes of training"):
        prepare(DataSettings(), Splits(several, validation=narrow), 0)


def test_what_is_found_in_the_data():
    labels = [[1, 1, 0], [NAN, NAN, NAN], [0, NAN, 0], [0, 0.4, 0], [0, 0, 1]]
    found = inspect(from_arrays(np.arange(10.0).reshape(5, 2), labels, multilabel=True))
    assert (found.unknown_labels, found.unknown_rows, found.rows_without_class) == (4, 1, 2)
    assert found.class_counts == {"0": 1, "1": 1, "2": 1}
    hard = inspect(from_arrays(X, [0, 1, 0, 1]))
    assert (hard.unknown_labels, hard.unknown_rows, hard.rows_without_class) == (0, 0, 0)


def test_duplicates_disagree_about_what_is_known():
    same = np.ones((3, 2))
    agree = from_arrays(same, [[1, NAN], [1, 0], [NAN, 0]], multilabel=True)
    assert len(inspect(agree).duplicates) == 1 and len(inspect(agree).conflicts) == 0
    late = replace(agree, given_labels=torch.tensor([[1, NAN], [1, 0], [NAN, 1]]))  # the first says nothing about it
    assert len(inspect(late).conflicts) == 1
    soft = replace(agree, given_labels=torch.tensor([[1, 0.25], [1, 0.75], [1, 0.75]]))
    tree = as_tree(inspect(soft), soft)
    assert tree["conflicting_duplicates"][0][0]["label"] == {"0": 1.0, "1": 0.25}  # what they differ in is seen
    assert label_of(agree, 1) == ["0"] and tree["unknown_rows"] == tree["rows_without_class"] == 0


def test_no_warning_without_a_cause():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_trainable(prepared([[1, NAN], [NAN, 1]]).splits.train)
