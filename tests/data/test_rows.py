"""Rows, the value that every source returns, and the splits that are made of them."""

import numpy as np
import pytest
import torch

from pencil import DataError
from pencil.data.bad_rows import BadRows
from pencil.data.given.from_columns import LabelCells
from pencil.data.inputs.base import TensorInputs
from pencil.data.keys import as_keys
from pencil.data.rows import Rows, to_splits
from pencil.errors import DataWarning

X = torch.arange(8.0).view(4, 2)


def rows(y=("b", "a", "b", "a"), keys=("p", "q", "r", "s"), **parts):
    labels = LabelCells(np.array(y), **{name: parts.pop(name) for name in ("classes", "clean") if name in parts})
    return Rows(TensorInputs(X), labels, as_keys(keys), **parts)


def test_rows_of_a_source_become_splits():
    splits = to_splits(rows(splits=np.array(["train", "test", "train", "validation"]), clean=["a", "a", "b", "b"]))
    assert splits.sizes() == {"train": 2, "validation": 1, "test": 1}
    assert splits.train.classes == ("a", "b") and splits.train.given_labels.tolist() == [1, 1]
    assert splits.train.clean_labels.tolist() == [0, 1] and splits.test.keys.tolist() == ["q"]


def test_bad_rows_are_refused_or_skipped():
    bad = BadRows("the shop", np.array([2, 3, 4, 5]))
    bad.add(1, "it is torn")
    with pytest.raises(DataError, match=r"the shop has 1 bad row of 4: row 3 \('q'\): it is torn; fix this row"):
        to_splits(rows(bad=bad))
    with pytest.warns(DataWarning, match="it is torn; it is skipped"):
        splits = to_splits(rows(bad=bad, splits=np.array(["train", "test", "train", "test"])), "skip")
    assert splits.train.keys.tolist() == ["p", "r"] and splits.test.keys.tolist() == ["s"]
    assert splits.test.rows.tolist() == [3]


def test_rows_apart_have_the_classes_of_the_training_rows():
    splits = to_splits(rows(others={"test": rows(("b", "b", "b", "b"))}))
    assert splits.test.given_labels.tolist() == [1] * 4 and splits.test.classes == ("a", "b")
    with pytest.raises(DataError, match=r"^the test set: label 'c' at row 3 \('s'\) is not one of the 2 classes"):
        to_splits(rows(others={"test": rows(("a", "b", "a", "c"))}))


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: rows(keys=("p", "q")), "there are 4 inputs but 2 keys; expected one per input"),
        (lambda: rows(("a", "b")), "x has 4 rows but y has 2; expected one label per row"),
        (lambda: to_splits(rows(keys=("p", "q", "p", "s"))), "rows 0 and 2 have the same key 'p'"),
        (lambda: to_splits(rows(splits=np.array(["test"] * 4))), "the data has no training rows"),
    ],
)
def test_rows_that_do_not_fit_together_are_refused(made, message):
    with pytest.raises(DataError, match=message):
        made()
