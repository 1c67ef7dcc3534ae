"""Reviewed labels take the place of given ones: which rows, which labels, and what is refused."""

import json
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch

from pencil import DataError, RunError
from pencil.data import Splits, from_arrays
from pencil.data.pinned import apply_pinned
from pencil.data.prepare import prepare
from pencil.data.settings import DataSettings, RateNoise
from pencil.errors import DataWarning

NAMES = ["cat", "dog", "fish"]
NOISE = RateNoise(kind="symmetric", rate=0.6)


def write(path, labels, split="train"):
    """``reviews.jsonl`` with these labels by key; None is a row that was skipped."""
    lines = [
        {"key": key, "split": split, "decision": "skip" if label is None else "other", "label": label}
        for key, label in labels.items()
    ]
    with path.open("a") as file:
        file.writelines(json.dumps(line | {"given": "cat", "corrected": "dog"}) + "\n" for line in lines)
    return path


@pytest.fixture
def path(tmp_path):
    return tmp_path / "reviews.jsonl"


@pytest.fixture
def examples():
    return keyed(200)


def keyed(rows, name="row"):
    x = np.random.default_rng(0).normal(size=(rows, 3))
    return from_arrays(x, np.arange(rows) % 3, classes=NAMES, keys=[f"{name} {i}" for i in range(rows)])


def prepared(examples, path, **settings):
    return prepare(DataSettings(pinned=path, **settings), Splits(examples), seed=0)


def by_key(part):
    return dict(zip(part.keys.tolist(), part.given_labels.tolist(), strict=True))


def test_pinned_rows_have_the_reviewed_label_and_all_else_is_as_without(examples, path):
    """After noise and split, so that no other row notices."""
    free = prepare(DataSettings(noise=NOISE), Splits(examples), seed=0).splits
    said = {f"row {i}": NAMES[(i + 1) % 3] for i in range(0, 200, 3)}
    write(path, said | {"row 1": None})
    found = prepared(examples, path, noise=NOISE).splits
    seen = 0
    for before, after in ((free.train, found.train), (free.validation, found.validation)):
        assert before.keys.tolist() == after.keys.tolist()
        assert before.clean_labels.equal(after.clean_labels)
        marked = after.keys[after.pinned.numpy()].tolist()
        assert set(marked) == set(said) & set(before.keys.tolist()) and marked
        assert by_key(after) == by_key(before) | {key: NAMES.index(said[key]) for key in marked}
        seen += len(marked)
    assert seen == len(said)
    assert examples.given_labels.equal(torch.arange(200) % 3)  # inputs are never changed
    assert free.train.pinned is None


def test_marks_follow_their_rows(examples, path):
    write(path, {"row 3": "fish", "row 4": "cat"})
    train = prepared(examples, path, validation=0.0).splits.train
    part = train.subset(torch.tensor([9, 4, 3]))
    assert part.pinned.tolist() == [False, True, True] and part.given_labels.tolist() == [0, 0, 2]
    with pytest.raises(DataError, match="200 inputs but 2 marks of pinned rows"):
        replace(train, pinned=torch.zeros(2, dtype=torch.bool))


def test_the_newest_decision_counts_whatever_split_the_row_was_in(examples, path):
    write(path, {"row 3": "fish"}, split="train")
    write(path, {"row 3": "dog"}, split="validation")
    assert by_key(prepared(examples, path, validation=0.0).splits.train)["row 3"] == 1


def test_a_validation_set_of_its_own_is_pinned_by_its_own_reviews(path):
    """Its keys may be the same, as those of arrays are."""
    write(path, {"row 1": "fish"}, split="train")
    write(path, {"row 2": "cat", "row 1": "dog"}, split="validation")
    splits = Splits(keyed(30), keyed(12))
    found = prepare(DataSettings(pinned=path), splits, seed=0).splits
    assert found.train.pinned.nonzero()[:, 0].tolist() == [1] and found.train.given_labels[1] == 2
    assert found.validation.pinned.nonzero()[:, 0].tolist() == [1, 2]
    assert found.validation.given_labels[:3].tolist() == [0, 1, 0]


def test_distributions_become_sure(path):
    given = np.tile([0.2, 0.5, 0.3], (20, 1))
    examples = from_arrays(np.eye(20), given, classes=NAMES)
    train = prepared(examples, write(path, {"4": "fish"}), validation=0.0).splits.train
    assert train.given_labels[4].tolist() == [0, 0, 1]
    assert train.given_labels[5].tolist() == pytest.approx([0.2, 0.5, 0.3])


def test_of_several_classes_the_set_is_pinned_and_the_unknown_stays_unknown(path):
    given = np.tile([1, 0, np.nan], (20, 1)).astype(np.float32)
    given[0], given[1] = [0, 1, 1], [1, 1, 0]
    examples = from_arrays(np.eye(20), given, classes=NAMES, multilabel=True)
    write(path, {"4": ["dog"], "5": ["dog", "fish"], "6": [], "7": "dog"})
    train = prepared(examples, path, validation=0.0).splits.train
    nan = np.nan
    np.testing.assert_array_equal(train.given_labels[4:9], [[0, 1, nan], [0, 1, 1], [0, 0, nan], [0, 1, nan], given[8]])
    said = torch.full((20, 3), 0.3)
    held = apply_pinned(said, train)
    np.testing.assert_allclose(held[4:9], [[0, 1, 0.3], [0, 1, 1], [0, 0, 0.3], [0, 1, 0.3], [0.3] * 3], rtol=1e-6)
    assert said.eq(0.3).all()


def test_rows_that_have_gone_are_left_out_with_a_word(examples, path):
    write(path, {"row 3": "fish", "gone": "nothing we know", "gone too": "cat"})
    with pytest.warns(DataWarning, match=r"2 of the 3 labels in .* for rows that are not in the data, such as 'gone'"):
        splits = prepared(examples, path).splits
    assert splits.train.pinned.sum() + splits.validation.pinned.sum() == 1


def test_reviews_of_other_data_are_refused(examples, path):
    write(path, {"0": "fish", "1": "cat"})
    with pytest.raises(
        DataError, match=r"none of the 2 labels in .* its keys look like '0', keys of the data like 'row"
    ):
        prepared(examples, path)


@pytest.mark.parametrize(
    ("label", "words"),
    [
        ("bird", "the review of 'row 3' names 'bird', which is not one of the 3 classes .'cat', 'dog', 'fish'."),
        (["cat", "dog"], "the review of 'row 3' names 2 classes; expected one"),
        ([], "the review of 'row 3' names 0 classes; expected one"),
    ],
)
def test_labels_that_the_data_does_not_know_are_refused(examples, path, label, words):
    with pytest.raises(RunError, match=words):
        prepared(examples, write(path, {"row 3": label}))


def test_a_file_that_is_not_there_or_says_nothing(examples, path):
    with pytest.raises(RunError, match=r"reviews.jsonl does not exist; expected decisions that `pencil review RUN`"):
        prepared(examples, path)
    with pytest.warns(DataWarning, match="pins no labels"):
        splits = prepared(examples, write(path, {"row 3": None})).splits
    assert not splits.train.pinned.any()


def test_a_class_that_loses_its_last_row_is_named(path):
    examples = from_arrays(np.eye(6), [0, 1, 1, 0, 1, 2], classes=NAMES)
    with pytest.raises(DataError, match="1 of 3 classes have no example: 'fish'"):
        prepared(examples, write(path, {"5": "cat"}))


def test_the_digest_is_that_of_the_labels_that_stand(examples, path):
    def digest():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            return prepared(examples, path).pinned_digest

    write(path, {"row 3": "fish", "row 4": "cat"})
    first = digest()
    write(path, {"row 9": None, "row 4": "cat"})
    assert digest() == first
    write(path, {"row 4": "dog"})
    assert digest() != first
    assert prepare(DataSettings(), Splits(examples), seed=0).pinned_digest is None


def test_the_path_is_kept_whole():
    assert DataSettings(pinned="reviews.jsonl").pinned.is_absolute()
