import numpy as np
import pytest
import torch
from readers import from_npz, read_arrays

from pencil import DataError
from pencil.data import from_arrays
from pencil.data.examples import check_trainable, hold_out, split_into_batches
from pencil.data.inputs.base import TensorInputs
from pencil.data.inputs.transform import Transform, measure_normalization


def test_names_become_sorted_classes_or_keep_a_given_order():
    assert from_arrays(np.zeros((3, 2)), ["dog", "cat", "dog"]).classes == ("cat", "dog")
    ordered = from_arrays(np.zeros((3, 2)), ["dog", "cat", "dog"], classes=["dog", "cat"])
    assert ordered.given_labels.tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((5, 8, 9), (5, 1, 8, 9)),
        ((5, 8, 9, 3), (5, 3, 8, 9)),
        ((5, 3, 8, 9), (5, 3, 8, 9)),
        ((5, 3, 8, 3), (5, 3, 8, 3)),
    ],
)
def test_uint8_images_become_channels_first(shape, expected):
    examples = from_arrays(np.zeros(shape, np.uint8), [0, 1, 0, 1, 0])
    assert tuple(examples.inputs.values.shape) == expected


def test_float_arrays_keep_their_shape():
    assert tuple(from_arrays(np.zeros((4, 6, 7)), [0, 1, 0, 1]).inputs.values.shape) == (4, 6, 7)


@pytest.mark.parametrize(
    ("x", "y", "options", "message"),
    [
        (np.zeros((3, 2)), [0, 1], {}, r"x has 3 rows but y has 2"),
        (np.zeros((0, 2)), [], {}, r"empty"),
        (np.zeros(3), [0, 1, 0], {}, r"pass x\[None\] if x is one example, or x\[:, None\]"),
        (np.array([["a"]]), [0], {}, r"expected numbers"),
        (np.array([[1.0], [np.nan], [2.0]]), [0, 1, 0], {}, r"input at row 1 holds NaN or infinity"),
        (np.zeros((2, 2)), ["cat", "cow"], {"classes": ["cat", "dog"]}, r"'cow' at row 1 is not one of the 2 classes"),
        (np.zeros((2, 2)), ["", None], {}, r"none of the 2 rows has a label"),
        (np.zeros((4, 2)), [0, -1, 1, -1], {}, r"label -1 at row 1 \(and 1 more: row 3\) may be a class or mean that"),
        (np.zeros((2, 2)), 3, {}, r"expected one label per row"),
        (np.zeros((2, 2)), [0, 12], {"classes": 12, "keys": ["a.jpg", "b.jpg"]}, r"row 1 \('b.jpg'\) does not fit 12"),
        (np.zeros((2, 2)), [0, 1], {"clean_labels": [0]}, r"2 inputs but 1 clean labels"),
    ],
)
def test_bad_arrays_are_named(x, y, options, message):
    with pytest.raises(DataError, match=message):
        from_arrays(x, y, **options)


def test_a_class_without_an_example_is_refused():
    with pytest.raises(DataError, match=r"1 of 3 classes have no example: 'fish'"):
        check_trainable(from_arrays(np.zeros((2, 2)), [0, 1], classes=["cat", "dog", "fish"]))


def test_npz_round_trip(tmp_path):
    path = tmp_path / "data.npz"
    np.savez(path, x=np.eye(4), y=["b", "a", "b", "a"], keys=["p", "q", "r", "s"], x_test=np.eye(4)[:1], y_test=["a"])
    splits = from_npz(path)
    train, test = splits.train, splits.test
    assert train.classes == ("a", "b") and train.keys.tolist() == ["p", "q", "r", "s"]
    assert test.given_labels.tolist() == [0]
    inputs, keys = read_arrays(path)
    assert inputs.shape == (4, 4) and keys == ["p", "q", "r", "s"]
    np.save(tmp_path / "x.npy", np.eye(3))
    assert read_arrays(tmp_path / "x.npy")[1] == ["0", "1", "2"]


def test_bad_files_are_named_and_pickles_never_run(tmp_path):
    np.savez(tmp_path / "part.npz", x=np.eye(2))
    with pytest.raises(DataError, match="contains the arrays x; expected y too"):
        from_npz(tmp_path / "part.npz")
    (tmp_path / "junk.npz").write_bytes(b"PK\x03\x04 not really a zip")
    with pytest.raises(DataError, match="cannot read"):
        from_npz(tmp_path / "junk.npz")

    class Bomb:
        def __reduce__(self):
            return (print, ("executed",))

    np.save(tmp_path / "bomb.npy", np.array([Bomb()], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match="has Python objects, which could run code"):
        read_arrays(tmp_path / "bomb.npy")


def test_subsets_share_inputs():
    examples = from_arrays(np.arange(12.0).reshape(6, 2), [0, 1] * 3)
    some = examples.subset(torch.tensor([4, 1]))
    assert some.inputs is examples.inputs
    (batch,) = some.batches(8)
    assert batch.inputs.tolist() == [[8.0, 9.0], [2.0, 3.0]] and batch.rows.tolist() == [0, 1]


def test_hold_out_is_a_seeded_share_and_never_takes_a_whole_class():
    labels = [0] * 50 + [1] * 49 + [2]
    examples = from_arrays(np.zeros((100, 2)), labels)
    for seed in range(20):
        train, held = hold_out(examples, 0.1, seed)
        assert len(held) == 10 and len(train) == 90
        assert sorted([*train.rows.tolist(), *held.rows.tolist()]) == list(range(100))
        assert 2 in train.given_labels
    assert torch.equal(hold_out(examples, 0.1, 3)[1].rows, hold_out(examples, 0.1, 3)[1].rows)
    assert hold_out(examples, 0.0, 0)[1] is None
    assert hold_out(from_arrays(np.zeros((10, 2)), np.arange(10)), 0.1, 0)[1] is None  # nothing to spare


def test_a_single_leftover_row_joins_the_batch_before_it():
    assert [len(chunk) for chunk in split_into_batches(torch.arange(9), 4)] == [4, 5]
    assert [len(chunk) for chunk in split_into_batches(torch.arange(10), 4)] == [4, 4, 2]
    assert [len(chunk) for chunk in split_into_batches(torch.arange(1), 4)] == [1]


def test_normalisation_is_measured_on_the_rows_named():
    values = torch.randint(0, 256, (50, 3, 4, 5), dtype=torch.uint8)
    rows = torch.arange(0, 50, 2)
    inputs = TensorInputs(values, Transform(measure_normalization(values, rows)))
    ((batch, _),) = inputs.batches([rows])
    torch.testing.assert_close(batch.mean(dim=(0, 2, 3)), torch.zeros(3), rtol=0, atol=1e-5)
    torch.testing.assert_close(batch.std(dim=(0, 2, 3), unbiased=False), torch.ones(3), rtol=0, atol=1e-4)
    constant = measure_normalization(torch.ones(4, 2), torch.arange(4))
    assert constant.std == (1.0, 1.0)  # nothing to divide by, nothing to blow up


def test_fingerprint_follows_keys_and_labels():
    x = np.zeros((2, 2))
    first = from_arrays(x, [0, 1]).fingerprint()
    assert first == from_arrays(x, [0, 1]).fingerprint()
    assert first != from_arrays(x, [1, 0]).fingerprint()
    assert first != from_arrays(x, [0, 1], keys=["a", "b"]).fingerprint()
