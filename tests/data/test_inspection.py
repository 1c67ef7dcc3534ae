import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import paint, truncate

from pencil.data import from_arrays
from pencil.data.check.inspection import as_tree, inspect, label_of, refusals
from pencil.data.examples import Examples
from pencil.data.inputs.base import TensorInputs
from pencil.data.inputs.images import ImageFiles, ImageInputs
from pencil.data.keys import as_keys
from pencil.data.read import load
from pencil.data.settings import DataSettings
from pencil.data.sources.torch_dataset import from_dataset


def groups(found):
    return [group.tolist() for group in found]


def brute_force(values, labels):
    """All pairs compared, which is slow and cannot be wrong."""
    seen, found = set(), []
    for i in range(len(values)):
        same = [j for j in range(len(values)) if np.array_equal(values[i], values[j])]
        if len(same) > 1 and i not in seen:
            found.append(same)
            seen |= set(same)
    return found, [same for same in found if len({labels[j] for j in same}) > 1]


@pytest.mark.parametrize("seed", range(3))
def test_duplicates_of_arrays_against_all_pairs(seed):
    rng = np.random.default_rng(seed)
    x, y = rng.integers(0, 3, (60, 3)).astype(np.float32), np.arange(60) % 2
    found = inspect(from_arrays(x, y))
    duplicates, conflicts = brute_force(x, y)
    assert groups(found.duplicates) == duplicates and groups(found.conflicts) == conflicts
    assert len(conflicts) > 0 and found.input_shape == (3,) and found.image_sizes is None
    assert found.rows == 60 and found.class_counts == {"0": 30, "1": 30}


def test_no_duplicates_are_no_groups():
    found = inspect(from_arrays(np.arange(8.0)[:, None], np.arange(8) % 2))
    assert len(found.duplicates) == len(found.conflicts) == 0 and list(found.duplicates) == []


def test_only_the_chosen_rows_are_looked_at():
    examples = from_arrays(np.array([[1.0], [2.0], [1.0], [3.0]]), [0, 0, 1, 1], keys=list("abcd"))
    assert len(inspect(examples.subset(torch.tensor([1, 2, 3]))).duplicates) == 0
    found = inspect(examples.subset(torch.tensor([2, 1, 0])))
    assert groups(found.conflicts) == [[0, 2]]
    tree = as_tree(found, examples.subset(torch.tensor([2, 1, 0])))
    assert tree["conflicting_duplicates"] == [[{"key": "c", "label": "1"}, {"key": "a", "label": "0"}]]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_folder(pets, workers):
    paint(pets / "cat/large.png", 55, (20, 30))
    paint(pets / "cat/small.png", 56, (4, 4))
    shutil.copy(pets / "cat/1.png", pets / "dog/copy.png")
    shutil.copy(pets / "dog/2.png", pets / "dog/twin.png")
    truncate(pets / "dog/5.png"), shutil.copy(pets / "dog/5.png", pets / "dog/6.png")
    (pets / "cat/text.jpg").write_text("no image")
    examples = load(DataSettings(source=str(pets))).train
    found = inspect(examples, workers)
    assert (
        found.class_counts == {"cat": 12, "dog": 10} and found.rows == 25 and found.unknown_labels == 0
    )  # 3 unreadable
    sizes = found.image_sizes
    assert (sizes.smallest, sizes.largest, sizes.most_common) == ((4, 4), (20, 30), (8, 8))
    assert sizes.fraction == pytest.approx(20 / 22)  # of those that can be read
    assert [fault.name for fault in found.unreadable] == ["cat/text.jpg", "dog/5.png", "dog/6.png"]
    assert "truncated" in found.unreadable[1].reason and "not an image" in found.unreadable[0].reason
    assert all(examples.keys[fault.row] == fault.name for fault in found.unreadable)
    named = [examples.keys[group].tolist() for group in found.duplicates]
    assert named == [["cat/1.png", "dog/copy.png"], ["dog/2.png", "dog/twin.png"]]
    assert [examples.keys[group].tolist() for group in found.conflicts] == named[:1]


def test_soft_and_several_labels_that_disagree():
    inputs = TensorInputs(torch.ones(4, 2))
    labels = torch.tensor([[1, torch.nan], [1, torch.nan], [1, 0], [0, 1]])
    several = Examples(inputs, torch.arange(4), labels, ("a", "b"), as_keys(range(4)), multilabel=True)
    found = inspect(several)
    assert found.class_counts == {"a": 3, "b": 1} and found.unknown_labels == 2
    assert groups(found.conflicts) == [[0, 1, 2, 3]] and label_of(several, 3) == ["b"]
    assert len(inspect(several.subset(torch.tensor([0, 1]))).conflicts) == 0  # unknown is no disagreement with unknown
    soft = replace(several, given_labels=torch.tensor([[0.25, 0.75]] * 4), multilabel=False)
    assert inspect(soft).class_counts == {"a": 0, "b": 4} and len(inspect(soft).conflicts) == 0
    assert label_of(soft, 0) == {"a": 0.25, "b": 0.75}


def test_unreadable_rows_are_in_no_count_of_several_labels(tmp_path):
    paint(tmp_path / "a.png"), truncate(paint(tmp_path / "b.png", 1)), truncate(paint(tmp_path / "c.png", 2))
    files = ImageInputs(ImageFiles(tmp_path, as_keys(["a.png", "b.png", "c.png"])))
    labels = torch.tensor([[1, 1], [torch.nan, torch.nan], [0, 0]])
    found = inspect(Examples(files, torch.arange(3), labels, ("x", "y"), files.encoded.names, multilabel=True))
    assert (found.rows, len(found.unreadable), found.class_counts) == (3, 2, {"x": 1, "y": 1})
    assert (found.unknown_labels, found.unknown_rows, found.rows_without_class) == (0, 0, 0)


def test_a_dataset_read_item_by_item():
    found = inspect(from_dataset([(torch.full((2,), float(i % 3)), i % 2) for i in range(4)]))
    assert groups(found.duplicates) == [[0, 3]] and found.input_shape == (2,)


def test_what_training_would_stop_at(tmp_path):
    paint(tmp_path / "a.png"), paint(tmp_path / "b.png", size=(8, 9)), truncate(paint(tmp_path / "c.png"))
    files = ImageInputs(ImageFiles(tmp_path, as_keys(["a.png", "b.png", "c.png"])))
    found = inspect(Examples(files, torch.arange(3), torch.tensor([0, 1, 0]), ("x", "y"), files.encoded.names))
    assert refusals(found, "test", DataSettings(bad_rows="skip")) == []
    nothing = replace(found, rows=1)
    assert "1 of 1 test images cannot be read" in str(refusals(nothing, "test", DataSettings(bad_rows="skip"))[0])
    unreadable, sizes = refusals(found, "test", DataSettings(resize="none"))
    assert "1 of 3 test images cannot be read: 'c.png' (row 2): " in str(unreadable)
    assert "from 8 x 8 to 8 x 9 pixels; expected one size; set one with settings" in str(sizes)
