import random

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, Subset, TensorDataset

from pencil import DataError
from pencil.data import from_dataset
from pencil.data.augment import View
from pencil.data.inputs import TensorInputs
from pencil.data.torch_dataset import DatasetInputs


class Pairs(Dataset):
    """Counts how often an item is read; its stored labels can be made to lie."""

    def __init__(self, labels, stored=None, as_dict=False, value=lambda i: torch.full((2,), float(i))):
        self.given, self.as_dict, self.value, self.reads = labels, as_dict, value, 0
        if stored is not None:
            self.targets = stored

    def __len__(self):
        return len(self.given)

    def __getitem__(self, i):
        self.reads += 1
        if self.as_dict:
            return {"image": self.value(i), "label": self.given[i]}
        return self.value(i), self.given[i]


def all_inputs(examples, view=None):
    return torch.cat([batch.inputs for batch in examples.batches(2, view=view)])


def test_pairs_dicts_and_subsets_give_the_same_examples():
    labels = [0, 1, 2, 1, 0]
    expected = torch.arange(5.0)[:, None].expand(5, 2)
    for dataset in (Pairs(labels), Pairs(labels, as_dict=True), Subset(Pairs([9, *labels]), range(1, 6))):
        examples = from_dataset(dataset, classes=3)
        assert examples.given_labels.tolist() == labels
        offset = 1.0 if isinstance(dataset, Subset) else 0.0
        assert torch.equal(all_inputs(examples), expected + offset)


def test_stored_labels_spare_reading_every_item_unless_they_lie():
    honest = Pairs([0, 1] * 50, stored=[0, 1] * 50)
    from_dataset(honest)
    assert honest.reads <= 3
    lying = Pairs([0, 1] * 50, stored=[1, 0] * 50)
    assert from_dataset(lying).given_labels.tolist() == [0, 1] * 50


def test_tensor_datasets_stay_in_memory():
    dataset = TensorDataset(torch.randn(6, 3), torch.tensor([0, 1, 0, 1, 0, 1]))
    assert isinstance(from_dataset(dataset).inputs, TensorInputs)
    part = from_dataset(Subset(dataset, [4, 1]))
    assert isinstance(part.inputs, TensorInputs) and torch.equal(part.inputs.values, dataset.tensors[0][[4, 1]])


def test_random_transforms_are_a_function_of_seed_epoch_and_row_and_leave_global_state_alone():
    def noisy(i):
        return torch.tensor([torch.rand(()).item(), np.random.rand(), random.random()])

    examples = from_dataset(Pairs([0, 1, 0, 1], value=noisy))
    before = (torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate())
    first = all_inputs(examples, View(3, 0))
    assert torch.equal(first, all_inputs(examples, View(3, 0)))
    assert not torch.equal(first, all_inputs(examples, View(3, 1)))
    assert torch.equal(before[0], torch.get_rng_state()) and before[2] == random.getstate()
    assert np.array_equal(before[1], np.random.get_state()[1])
    reordered = next(examples.batches(4, order=torch.tensor([2, 0, 3, 1]), view=View(3, 0))).inputs
    assert torch.equal(reordered, first[[2, 0, 3, 1]])


def test_a_bad_item_in_a_worker_is_named_in_one_line():
    items = from_dataset([(torch.zeros(2), 0), (torch.full((2,), torch.nan), 1)], workers=1)
    with pytest.raises(DataError, match=r"^input at row 1 holds NaN or infinity[^\n]*$"):
        all_inputs(items)


def test_a_target_transform_is_not_bypassed():
    dataset = Pairs([0, 1, 1, 1], stored=[0, 2, 1, 1])
    dataset.target_transform = lambda label: min(label, 1)
    assert from_dataset(dataset).given_labels.tolist() == [0, 1, 1, 1]


def test_workers_give_the_same_bits():
    dataset = Pairs([0, 1] * 4, value=lambda i: torch.rand(2))
    alone = DatasetInputs(dataset).batches([torch.arange(8)], View(1, 0))
    helped = DatasetInputs(dataset, workers=2).batches([torch.arange(8)], View(1, 0))
    assert torch.equal(next(iter(alone)).values, next(iter(helped)).values)


class Named(Pairs):
    classes = ("cat", "dog")


def test_class_names_travel():
    assert from_dataset(Subset(Named([0, 1, 1]), [0, 2])).classes == ("cat", "dog")
    assert from_dataset(Pairs(["b", "a"])).classes == ("a", "b")
    assert from_dataset(Named([0, 1]), classes=2).classes == ("cat", "dog")


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (iter([1]), r"map-style dataset"),
        (Pairs([]), r"empty"),
        ([3, 4], r"a dataset item is a int"),
        (
            [{"picture": 1, "label": 0}, {"picture": 1, "label": 1}],
            r"fields 'picture', 'label'; expected the input under",
        ),
        ([{"image": 1, "klass": 0}], r"expected the label under one of"),
        ([("not a tensor", 0), ("x", 1)], r"input at row 0 is a str; expected a tensor; give the dataset a transform"),
        ([(torch.zeros(2), 0), (torch.zeros(3), 1)], r"row 1 has shape \(3,\), at row 0 \(2,\)"),
        ([(torch.zeros(2), 0), (torch.full((2,), torch.nan), 1)], r"input at row 1 holds NaN"),
        ([(torch.zeros(2), 0), (torch.zeros(2), 7)], r"label 7 at row 1 does not fit 2 classes"),
    ],
)
def test_bad_datasets_are_named(dataset, message):
    with pytest.raises(DataError, match=message):
        all_inputs(from_dataset(dataset, classes=2))
