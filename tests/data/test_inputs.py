"""What every kind of inputs offers, on the same pictures; and that a new kind is one small class."""

import multiprocessing
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pytest
import torch
from conftest import paint, truncate

from pencil import DataError
from pencil.data import Examples, Splits
from pencil.data.check.inspection import inspect
from pencil.data.inputs import base as inputs
from pencil.data.inputs.augment import Augmentation, View
from pencil.data.inputs.base import Inputs, Loaded, ReadOptions, TensorInputs
from pencil.data.inputs.images import ImageBytes, ImageFiles, ImageInputs
from pencil.data.inputs.transform import Normalization, Transform
from pencil.data.keys import as_keys
from pencil.data.prepare import prepare, prepare_inputs
from pencil.data.read import load
from pencil.data.settings import DataSettings
from pencil.data.sources.arrays import as_inputs
from pencil.data.sources.torch_dataset import DatasetInputs
from pencil.errors import DataWarning

N = 6
KINDS = ("tensor", "mapped", "files", "bytes", "dataset")
HALF = Normalization((0.5, 0.5, 0.5), (0.25, 0.25, 0.25))


@pytest.fixture
def pixels():
    """(n, 3, height, width) of the pictures that every kind of inputs holds."""
    return torch.stack(
        [
            torch.from_numpy(np.random.default_rng(row).integers(0, 256, (8, 10, 3), dtype=np.uint8)).permute(2, 0, 1)
            for row in range(N)
        ]
    )


@pytest.fixture
def make(tmp_path, pixels):
    """Inputs of a kind, with the same pictures."""
    names = as_keys([paint(tmp_path / f"{row}.png", row, (8, 10)).name for row in range(N)])

    def build(kind: str) -> Inputs:
        if kind == "tensor":
            return TensorInputs(pixels)
        if kind == "mapped":  # decoded into a cache file
            cached = ImageInputs(ImageFiles(tmp_path, names), size=(8, 10)).cached(torch.arange(N), tmp_path / "cache")
            assert cached is not None
            return cached
        if kind == "files":
            return ImageInputs(ImageFiles(tmp_path, names))
        if kind == "bytes":
            content = [(tmp_path / str(name)).read_bytes() for name in names]
            return ImageInputs(ImageBytes(pa.array(content, pa.large_binary()), names))
        return DatasetInputs([(picture, 0) for picture in pixels])

    return build


@pytest.fixture(params=KINDS)
def some(request, make):
    return make(request.param)


def test_every_kind_is_one(some):
    assert isinstance(some, Inputs) and as_inputs(some) is some and len(some) == N
    assert isinstance(as_inputs(np.zeros((2, 3))), TensorInputs) and not isinstance(np.zeros((2, 3)), Inputs)


def test_raw_values_are_the_pictures_and_no_kind_needs_a_worker_for_them(some, pixels, no_workers):
    rows = torch.tensor([4, 0, 5])
    values, kept = some.raw(rows)
    assert kept is None and torch.equal(values, pixels[rows])
    assert torch.equal(some.in_process().raw(rows).values, values)


def test_batches_without_a_view_are_the_same_for_all(some, pixels):
    chunks = list(torch.tensor([3, 1, 4, 0, 5]).split(2))
    for chunk, loaded in zip(chunks, some.batches(chunks), strict=True):
        assert loaded.kept is None and torch.equal(loaded.values, pixels[chunk])


def test_what_is_known_without_reading_is_true(some, pixels, no_workers):
    values = next(iter(some.batches([torch.arange(2)]))).values
    assert some.shape in (None, tuple(values.shape[1:]))
    assert some.dtype in (None, some.raw(torch.arange(2)).values.dtype)
    assert some.channels in (None, 3)
    assert some.in_memory is None or torch.equal(some.in_memory, pixels)
    assert some.complete


def test_pictures(some, pixels):
    expected = pixels[3].permute(1, 2, 0).numpy()
    assert np.array_equal(some.picture(3), expected)
    assert some.picture(3, side=4).dtype == np.uint8


def test_only_files_have_a_file(make, tmp_path):
    assert make("files").file_of(2) == tmp_path / "2.png"
    assert all(make(kind).file_of(2) is None for kind in KINDS if kind != "files")


def test_an_inspection_tells_rows_apart(some):
    found = [row for chunk in some.inspect([torch.tensor([0, 1]), torch.tensor([0])]) for row in chunk]
    assert found[0].digest == found[2].digest != found[1].digest and not any(row.fault for row in found)
    assert {row.shape for row in found} == ({None} if some.resizable else {(3, 8, 10)})
    assert {row.size for row in found} == ({(8, 10)} if some.resizable else {None})


def test_options_and_normalisation_return_new_inputs_or_the_same(some, pixels):
    ready = some.with_options(ReadOptions(size=(8, 10), crop=6)).normalized(HALF)
    values = next(iter(ready.batches([torch.arange(N)]))).values
    if some.channels is None:
        assert ready is some and torch.equal(values, pixels)
        return
    expected = (pixels[:, :, 1:7, 2:8].double() / 255 - 0.5) / 0.25
    torch.testing.assert_close(values.double(), expected, rtol=0, atol=1e-5)
    assert ready.shape == (3, 6, 6) and torch.equal(ready.raw(torch.arange(N)).values, pixels)
    assert some.transform == Transform()  # the original is as it was
    with pytest.raises(DataError, match=r"data.crop is 9 but the images have 8 x 10 pixels; expected .* at most 8"):
        some.with_options(ReadOptions(size=(8, 10), crop=9))


def test_the_measured_normalisation_is_that_of_the_pixels(some, pixels):
    found = some.measure(torch.arange(N), seed=0)
    if some.channels is None:
        assert found is None
        return
    values = pixels.double() / 255
    assert found.mean == pytest.approx(values.mean(dim=(0, 2, 3)).tolist())
    assert found.std == pytest.approx(values.std(dim=(0, 2, 3), unbiased=False).tolist())


def test_only_encoded_images_are_resized_and_cached(some, tmp_path):
    sized = some.with_options(ReadOptions(size=(8, 10)))
    cached = sized.cached(torch.tensor([2, 4]), tmp_path / "other")
    assert (cached is not None) == some.resizable == bool(some.probe_sizes())
    if cached is not None:
        assert torch.equal(cached.values, some.raw(torch.tensor([2, 4])).values) and set(some.probe_sizes()) == {
            (8, 10)
        }


def test_random_crops_are_the_same_for_arrays_and_images(make):
    view, chunks = View(3, 1, Augmentation(crop_padding=2, flip=True)), list(torch.randperm(N).split(4))
    parts = [
        [loaded.values for loaded in make(kind).with_options(ReadOptions(size=(8, 10))).batches(chunks, view)]
        for kind in ("tensor", "mapped", "files", "bytes")
    ]
    for part in parts[1:]:
        assert all(torch.equal(one, other) for one, other in zip(parts[0], part, strict=True))


@pytest.mark.parametrize("kind", ["files", "mapped"])
def test_a_row_that_cannot_be_read(make, tmp_path, kind):
    encoded = make("files")
    truncate(tmp_path / "1.png")
    skipping = encoded.with_options(ReadOptions(size=(8, 10), unreadable="skip"))
    some = skipping
    if kind == "mapped":
        with pytest.warns(DataWarning, match="the row is skipped"):
            some = skipping.cached(torch.arange(N))
    values, kept = some.raw(torch.tensor([0, 1, 2]))
    assert len(values) == 2 and kept.tolist() == [True, False, True] and not some.complete
    with pytest.raises(DataError, match=r"row 1\)? cannot be read"):
        some.picture(1)
    (rows,) = some.inspect([torch.tensor([0, 1])])
    assert rows[0].fault is None and rows[1].fault.row == 1 and rows[1].fault.reason


def test_vectors_are_no_pictures():
    assert TensorInputs(torch.zeros(2, 5)).picture(0) is None
    grey = TensorInputs(torch.tensor([[[[-1.0, 0.0], [1.0, torch.nan]]]]))
    assert grey.picture(0).tolist() == [[0, 128], [255, 128]]


@dataclass(frozen=True)
class Squares(Inputs):
    """A new kind of inputs: the least that one has to write."""

    count: int

    def __len__(self) -> int:
        return self.count

    def batches(self, chunks, view=None) -> Iterator[Loaded]:
        for chunk in chunks:
            yield Loaded(torch.stack([chunk.double(), chunk.double().square()], dim=1))


def test_a_new_kind_is_one_class():
    data = Examples(Squares(20), torch.arange(20), torch.arange(20) % 2, ("a", "b"), as_keys(range(20)))
    assert data.input_shape == (2,) and data.inputs.picture(3) is None
    assert inspect(data).input_shape == (2,) and len(inspect(data).duplicates) == 0
    prepared = prepare(DataSettings(validation=0.25), Splits(data), seed=0)
    batch = next(prepared.splits.train.batches(4))
    assert torch.equal(batch.inputs[:, 1], batch.inputs[:, 0] ** 2)
    assert prepare_inputs(data.inputs, prepared.settings) is data.inputs
    for wrong, message in (({"resize": 8}, "the inputs are arrays"), ({"normalize": "imagenet"}, "item by item")):
        with pytest.raises(DataError, match=message):
            prepare(DataSettings(**wrong), Splits(data), seed=0)


@pytest.fixture
def no_workers(monkeypatch):
    """Fails if anybody asks for a worker process."""
    real = inputs.DataLoader

    def loader(*given, num_workers=0, **options):
        assert num_workers == 0, f"{num_workers} worker processes were asked for"
        return real(*given, num_workers=num_workers, **options)

    monkeypatch.setattr(inputs, "DataLoader", loader)


@pytest.mark.parametrize("cache", ["none", "memory"])
def test_the_input_shape_of_a_folder_starts_no_worker(pets, no_workers, cache):
    settings = DataSettings(source=str(pets), workers=0, cache=cache, crop=6)
    train = prepare(settings, load(settings), seed=0).splits.train
    helped = Examples(
        train.inputs.with_options(ReadOptions(size=(8, 8), crop=6, workers=2)),
        train.rows, train.given_labels, train.classes, train.keys,
    )  # fmt: skip
    assert helped.input_shape == (3, 6, 6)
    assert helped.some_inputs(2).shape == (2, 3, 6, 6)
    assert not multiprocessing.active_children()


def test_the_input_shape_of_images_of_no_set_size_and_of_a_dataset_starts_no_worker(pets, no_workers):
    folder = load(DataSettings(source=str(pets))).train
    unsized = folder.inputs.with_options(ReadOptions(workers=2))
    items = DatasetInputs([(torch.zeros(4), 0)] * 3, workers=2)
    for some, shape in ((unsized, (3, 8, 8)), (items, (4,))):
        examples = Examples(some, torch.arange(2), torch.tensor([0, 1]), ("a", "b"), as_keys(range(2)))
        assert examples.input_shape == shape


def test_an_empty_batch_has_the_shape_of_the_others(pets, no_workers):
    folder = load(DataSettings(source=str(pets))).train
    full, empty = folder.load_batches([torch.tensor([1, 2]), torch.tensor([], dtype=torch.int64)])
    assert empty.inputs.shape == (0, *full.inputs.shape[1:])
