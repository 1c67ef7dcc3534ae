import random

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, Subset, TensorDataset
from torchvision.datasets import ImageFolder
from torchvision.transforms import ToTensor

from pencil import DataError
from pencil.data import from_dataset
from pencil.data.inputs.augment import View
from pencil.data.inputs.base import TensorInputs
from pencil.data.sources.torch_dataset import DatasetInputs


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


@pytest.fixture
def pets(tmp_path):
    for name, shade in (("cat", 40), ("dog", 200)):
        (tmp_path / name).mkdir()
        for number in range(3):
            Image.new("RGB", (8, 8), (shade + number, 0, 0)).save(tmp_path / name / f"{number}.png")
    return tmp_path


PETS = [f"{name}/{number}.png" for name in ("cat", "dog") for number in range(3)]


def test_image_folder_has_paths_as_keys(pets):
    plain = from_dataset(ImageFolder(pets))
    assert (plain.keys.tolist(), plain.classes, plain.given_labels.tolist()) == (
        PETS,
        ("cat", "dog"),
        [0] * 3 + [1] * 3,
    )
    assert plain.inputs.file_of(4) == pets / "dog" / "1.png"  # read as a folder per class is
    changed = from_dataset(ImageFolder(str(pets), transform=ToTensor()))
    assert isinstance(changed.inputs, DatasetInputs)
    assert changed.keys.tolist() == PETS
    some = from_dataset(Subset(ImageFolder(pets), [5, 0]))
    assert (some.keys.tolist(), some.given_labels.tolist()) == ([PETS[5], PETS[0]], [1, 0])
    assert some.inputs.file_of(0) == pets / "dog" / "2.png"


def test_rows_drawn_twice_are_counted(pets):
    drawn = from_dataset(Subset(ImageFolder(pets, transform=ToTensor()), [5, 5, 0]))
    assert drawn.keys.tolist() == ["0", "1", "2"]


def test_items_of_a_subclass_are_its_own(pets):
    class Grey(ImageFolder):
        def __getitem__(self, row):
            return torch.zeros(1, 4, 4), self.samples[row][1]

    assert isinstance(from_dataset(Grey(pets)).inputs, DatasetInputs)
