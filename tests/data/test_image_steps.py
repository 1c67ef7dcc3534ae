"""Augmentation of one image at a time: a pure function of (seed, epoch, row), wherever and whenever it is computed."""

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import paint, truncate

from pencil import DataError, RecipeError, recipe
from pencil.data import Splits, from_arrays
from pencil.data.inputs.augment import NAMED, PHOTOS, Augmentation, Frame, ImageSteps, View
from pencil.data.inputs.base import ReadOptions, TensorInputs
from pencil.data.inputs.images import ImageFiles, ImageInputs
from pencil.data.inputs.transform import Normalization
from pencil.data.keys import as_keys
from pencil.data.prepare import prepare
from pencil.data.settings import DataSettings
from pencil.errors import DataWarning

ROWS, SIDE = 7, (96, 104)
HALF = Normalization((0.5, 0.4, 0.3), (0.2, 0.3, 0.4))
STRONG = Augmentation(crop_padding=4, flip=True).strong()
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")


@pytest.fixture(scope="module")
def encoded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    names = as_keys([paint(folder / f"{row}.png", row, SIDE).name for row in range(ROWS)])
    return ImageInputs(ImageFiles(folder, names)).with_options(ReadOptions(size=SIDE)).normalized(HALF)


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def by_row(inputs, chunks, view):
    """The pictures of all rows in the order of the rows, whatever batches they came in."""
    values = torch.cat([loaded.values for loaded in inputs.batches(chunks, view)])
    return values[torch.cat(list(chunks)).argsort()]


@pytest.mark.parametrize("augmentation", [PHOTOS, STRONG], ids=["photos", "strong"])
def test_a_row_has_one_picture_in_an_epoch(encoded, augmentation, two_threads):
    cached, view = encoded.cached(torch.arange(ROWS)), View(5, 2, augmentation)
    expected = by_row(encoded, torch.arange(ROWS).split(3), view)
    other_order = torch.tensor([6, 2, 0, 5, 1, 3, 4]).split(2)
    for inputs in (encoded, replace(encoded, workers=2), cached, replace(cached, workers=2)):
        assert torch.equal(by_row(inputs, other_order, view), expected), inputs
    assert expected.shape == (ROWS, 3, *SIDE) and torch.get_num_threads() == 2
    for other in (View(5, 3, augmentation), View(6, 2, augmentation)):
        assert not any(map(torch.equal, by_row(cached, [torch.arange(ROWS)], other), expected))


class Threads(torch.nn.Module):
    def forward(self, image):
        return torch.full_like(image, torch.get_num_threads())


def test_images_are_changed_by_one_thread_as_in_worker_processes(two_threads):
    """The mean of a large image, as contrast needs it, differs in its last bits with the number of threads."""
    steps = ImageSteps(PHOTOS, 0, 0, Threads())
    assert (steps.apply(torch.zeros(2, 3, 4, 4, dtype=torch.uint8), torch.arange(2)) == 1).all()
    assert torch.get_num_threads() == 2


def test_two_rows_with_one_picture_are_changed_differently():
    same = TensorInputs(torch.randint(0, 256, (1, 3, 40, 40), dtype=torch.uint8).expand(2, -1, -1, -1))
    ((first, second),) = (loaded.values for loaded in same.batches([torch.arange(2)], View(0, 0, PHOTOS)))
    assert not torch.equal(first, second)


@pytest.mark.parametrize("augmentation", [PHOTOS, STRONG], ids=["photos", "strong"])
def test_global_generators_and_the_pictures_themselves_are_left_alone(augmentation):
    values = torch.randint(0, 256, (4, 3, 40, 40), dtype=torch.uint8)
    before = values.clone(), torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    list(TensorInputs(values).batches([torch.arange(4)], View(0, 0, augmentation)))
    assert torch.equal(before[0], values) and torch.equal(before[1], torch.get_rng_state())
    assert np.array_equal(before[2], np.random.get_state()[1]) and before[3] == random.getstate()


def test_resized_crops_are_parts_of_the_image_at_the_size_of_the_network():
    """In an image whose values are its columns, a crop spans a part of them, from left to right unless flipped."""
    columns = torch.arange(200.0).expand(300, 1, 160, 200)
    inputs = TensorInputs(columns).with_options(ReadOptions(crop=120))
    ((cropped, _),) = inputs.batches([torch.arange(300)], View(1, 0, Augmentation(resized_crop=0.25)))
    assert cropped.shape == (300, 1, 120, 120)
    spans = cropped[:, 0, 60, -1] - cropped[:, 0, 60, 0]
    assert spans.min() > 0.25 * 160 and spans.max() <= 200
    assert spans.std() > 10 and cropped[:, 0, 0, 0].std() > 10
    ((whole, _),) = inputs.batches([torch.arange(3)])
    assert torch.equal(whole, columns[:3, :, 20:140, 40:160])  # evaluation: from the centre, as it was


def test_an_erased_part_is_zero_for_the_network():
    """Hence the mean colour, of bytes within half a step of it."""
    values = torch.full((300, 3, 40, 40), 255, dtype=torch.uint8)
    inputs = TensorInputs(values).normalized(HALF)
    ((changed, _),) = inputs.batches([torch.arange(300)], View(0, 0, Augmentation(random_erasing=0.5)))
    plain = inputs.transform.normalize(values)
    erased = (changed != plain).all(dim=1)
    assert changed.permute(0, 2, 3, 1)[erased].abs().max() < 0.5 / 255 / 0.2 + 1e-6
    some = erased.flatten(1).float().mean(dim=1)
    assert 120 < int((some > 0).sum()) < 180 and some[some > 0].min() > 0.015 and some.max() < 0.34


def test_jitter_changes_brightness_contrast_and_of_colours_saturation():
    grey, colour = (torch.randint(60, 190, (20, channels, 40, 40), dtype=torch.uint8) for channels in (1, 3))
    for values in (grey, colour):
        draws = Augmentation(colour_jitter=0.4).draw(20, 0, 0, Frame((40, 40), (40, 40)))
        changed = draws.apply(values, torch.arange(20)).float()
        assert (changed.mean(dim=(1, 2, 3)) / values.float().mean(dim=(1, 2, 3))).std() > 0.1
        assert (changed.std(dim=(1, 2, 3)) / values.float().std(dim=(1, 2, 3))).std() > 0.1
    ratio = (changed.amax(1) - changed.amin(1)).mean(dim=(1, 2)) / changed.std(dim=(1, 2, 3))
    assert ratio.std() > 0.01


def test_strong_views_begin_with_the_crop_and_flip_of_weak_ones():
    values = torch.randint(1, 256, (50, 3, 64, 64), dtype=torch.uint8)
    for own in (Augmentation(crop_padding=8, flip=True), replace(PHOTOS, trivial_augment=True)):
        weak, strong = own.weak(), own.strong()
        assert weak == replace(weak, colour_jitter=0.0, trivial_augment=False, random_erasing=0.0) == strong.weak()
        assert strong == replace(weak, trivial_augment=True, random_erasing=1.0)
        ((first, _),) = TensorInputs(values).batches([torch.arange(50)], View(3, 1, weak))
        erased = replace(weak, random_erasing=1.0)
        ((second, _),) = TensorInputs(values).batches([torch.arange(50)], View(3, 1, erased))
        same = (first == second).all(dim=1)
        assert same.flatten(1).any(dim=1).all() and (second.permute(0, 2, 3, 1)[~same] == 0).all()
        ((third, _),) = TensorInputs(values).batches([torch.arange(50)], View(3, 1, strong))
        assert not any(map(torch.equal, third, first))


def test_rows_that_cannot_be_read_are_left_out(tmp_path):
    names = as_keys([paint(tmp_path / f"{row}.png", row, (40, 40)).name for row in range(4)])
    truncate(tmp_path / "1.png")
    inputs = ImageInputs(ImageFiles(tmp_path, names), size=(40, 40), unreadable="skip")
    with pytest.warns(DataWarning, match="the row is skipped"):
        cached = inputs.cached(torch.arange(4))
    chunks, view = [torch.tensor([0, 1]), torch.tensor([1]), torch.tensor([2, 3])], View(0, 0, PHOTOS)
    parts = [list(some.batches(chunks, view)) for some in (inputs, cached, replace(cached, workers=2))]
    for loaded in zip(*parts, strict=True):
        assert all(torch.equal(one.values.float(), loaded[0].values.float()) for one in loaded if len(one.values))
        assert len({len(one.values) for one in loaded}) == 1
    assert [len(one.values) for one in parts[0]] == [1, 0, 2]
    with pytest.raises(DataError, match=r"of different sizes .* set one with"):
        list(replace(inputs, size=None).batches(chunks, view))


@pytest.mark.parametrize("workers", [0, 2])
def test_colours_of_other_numbers_than_bytes_are_refused(workers):
    labels, colours = np.arange(20) % 2, "expected 8-bit images"
    for x in (np.random.rand(20, 3, 40, 40), np.zeros((20, 4, 40, 40), dtype=np.uint8)):
        for augmentation in (PHOTOS, Augmentation(trivial_augment=True)):
            with pytest.raises(DataError, match=colours):
                prepare(DataSettings(augmentation=augmentation), Splits(from_arrays(x, labels)), seed=0)
        inputs = replace(from_arrays(x, labels).inputs, workers=workers)
        with pytest.raises(DataError, match=rf"^colour_jitter or trivial_augment is set .*{colours}.*augmentation.$"):
            list(inputs.batches([torch.arange(20)], View(0, 0, Augmentation().strong())))
        allowed = Augmentation(resized_crop=0.5, random_erasing=0.5)
        prepared = prepare(DataSettings(augmentation=allowed), Splits(from_arrays(x, labels)), seed=0)
        (batch,) = prepared.splits.train.batches(20, view=View(0, 0, prepared.settings.augmentation))
        assert batch.inputs.shape[1:] == x.shape[1:]


def test_augmentation_by_name_and_what_a_run_stores():
    """Not set is told from set to none; the run stores what it became."""
    data = Splits(from_arrays(np.zeros((20, 40, 40, 3), dtype=np.uint8), np.arange(20) % 2))
    for given, expected in (("auto", None), ("none", Augmentation()), ("photos", PHOTOS), ({"flip": True}, None)):
        chosen = recipe.parse({"data": {"augmentation": given}})
        expected = Augmentation(flip=True) if isinstance(given, dict) else expected
        assert chosen.data.augmentation == expected
        resolved = prepare(chosen.data, data, seed=0).settings
        assert resolved.augmentation == (expected or Augmentation())
        assert DataSettings.model_validate(resolved.model_dump(mode="json")).augmentation == resolved.augmentation
    assert recipe.parse({}).data.augmentation is None and set(NAMED) == {"none", "photos"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("foto", r"data.augmentation: value error, expected 'auto', 'none', 'photos', or a table .*; saw 'foto'"),
        ({"flipp": True}, r"data.augmentation.flipp: there is no such key; did you mean 'data.augmentation.flip'"),
        ({"resized_crop": 1.5}, r"resized_crop is 1.5; expected 0 \(none\) to 1"),
        ({"resized_crop": 0.5, "crop_padding": 4}, r"resized_crop is 0.5 and crop_padding 4; expected one of them"),
    ],
)
def test_mistakes_in_a_recipe_are_named(given, message):
    with pytest.raises(RecipeError, match=message):
        recipe.parse({"data": {"augmentation": given}})
