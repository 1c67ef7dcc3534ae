"""Near-duplicates, rows in more than one split, blank and extreme images, rare classes."""

import io
import shutil
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from conftest import paint
from PIL import Image

from pencil.data import from_arrays
from pencil.data.check.duplicates import NO_GROUPS, Groups, Sketches, Vectors, near_groups, with_different_labels
from pencil.data.check.inspection import as_tree, inspect
from pencil.data.check.overlap import find_overlap, overlap_tree
from pencil.data.examples import Splits
from pencil.data.inputs.sketch import look_at, look_at_arrays
from pencil.data.read import load
from pencil.data.settings import DataSettings


def picture(seed, side=64):
    """A colour image with the spectrum of a photograph."""
    rng, frequencies = np.random.default_rng(seed), np.fft.fftfreq(side)
    falling = np.hypot(*np.meshgrid(frequencies, frequencies))
    falling[0, 0] = 1 / side
    noise = rng.normal(size=(4, side, side))
    waves = np.fft.ifft2(np.fft.fft2(noise) / falling).real
    pixels = np.stack([waves[0] + 0.3 * waves[channel] for channel in (1, 2, 3)], axis=-1)
    pixels = (pixels - pixels.mean()) / pixels.std() * rng.uniform(30, 60) + rng.uniform(90, 160)
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def saved(image, **options):
    stream = io.BytesIO()
    image.save(stream, "JPEG", **options)
    return Image.open(stream).convert("RGB")


COPIES = {
    "saved again": lambda image: saved(image, quality=75),
    "smaller": lambda image: image.resize((48, 48)),
    "larger": lambda image: image.resize((128, 128), Image.Resampling.BICUBIC),
    "brighter": lambda image: image.point(lambda value: min(255, int(1.1 * value))),
    "lighter": lambda image: image.point(lambda value: min(255, value + 12)),
}
OTHERS = {
    "mirrored": lambda image: image.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
    "inverted": lambda image: image.point(lambda value: 255 - value),
    "other colours": lambda image: Image.merge("RGB", [*image.split()[1:], image.split()[0].point(lambda v: v // 2)]),
    "a part of it": lambda image: image.crop((16, 16, 64, 64)),
}


def near(images):
    sketches = np.stack([look_at(image).sketch for image in images])
    return [group.tolist() for group in near_groups(Sketches(sketches), np.arange(len(images)))]


@pytest.mark.parametrize("name", COPIES)
def test_changed_copies_are_found(name):
    images = [picture(seed) for seed in range(40)]
    found = near([*images, *(COPIES[name](image) for image in images)])
    pairs = [[number, 40 + number] for number in range(40)]
    assert all(group in pairs for group in found)
    assert len(found) >= 39


@pytest.mark.parametrize("name", OTHERS)
def test_other_images_are_no_copies(name):
    images = [picture(seed) for seed in range(40)]
    assert near([*images, *(OTHERS[name](image) for image in images)]) == []


def test_ordinary_images_are_no_copies_of_each_other():
    assert near([picture(seed, 32) for seed in range(1500)]) == []


def test_handwritten_digits_are_no_copies_of_each_other():
    digits = load(DataSettings(source="digits"))
    for part in (digits.train, digits.test):
        found = inspect(part)
        assert found.near_rows == len(part)
        assert len(found.near_duplicates) == len(found.duplicates) == len(found.blank) == 0


def test_low_contrast_is_no_likeness():
    """The same faint gradient in many images says nothing about what they show."""
    rng = np.random.default_rng(0)
    ramp = np.linspace(100, 110, 32)[None, :, None] + rng.normal(0, 1, (50, 32, 32, 3))
    assert near([Image.fromarray(image.astype(np.uint8)) for image in ramp]) == []


def test_arrays_of_bytes_and_of_floats_are_compared_alike():
    images = np.stack([np.asarray(picture(seed, 32)) for seed in range(30)])
    brighter = (images[3] * 1.08).clip(0, 255).astype(np.uint8)
    x, y = np.concatenate([images, brighter[None]]), np.arange(31) % 2
    for values in (x, x.astype(np.float32) / 255, x[..., :1]):
        found = inspect(from_arrays(values, y))
        assert [group.tolist() for group in found.near_duplicates] == [[3, 30]]
        assert [group.tolist() for group in found.near_conflicts] == [[3, 30]]


def test_a_copy_of_a_copy_is_one_group_and_exact_copies_count_once():
    image = picture(1)
    images = [image, saved(image, quality=90), picture(2), saved(image, quality=80)]
    arrays = np.stack([np.asarray(one) for one in [*images, image]])
    found = inspect(from_arrays(arrays, [0, 0, 1, 0, 1]))
    assert [group.tolist() for group in found.duplicates] == [[0, 4]]
    assert [group.tolist() for group in found.near_duplicates] == [[0, 1, 3]]
    assert len(found.near_conflicts) == 0 and len(found.conflicts) == 1


def test_vectors_are_compared_by_the_cosine_of_many_features_only():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 96)) * np.geomspace(1e-3, 1e6, 96)  # no unit is like another
    x = np.concatenate([x, x[:5] * (1 + 1e-3 * rng.normal(size=(5, 96)))]).astype(np.float32)
    y = np.arange(405) % 2
    found = inspect(from_arrays(x, y))
    assert [group.tolist() for group in found.near_duplicates] == [[k, 400 + k] for k in range(5)]
    few = inspect(from_arrays(x[:, :40], y))
    assert few.near_rows == 0 and len(few.near_duplicates) == 0


def test_search_agrees_with_all_pairs():
    rng = np.random.default_rng(3)
    centres = rng.normal(size=(60, 80))
    values = torch.from_numpy(np.repeat(centres, 3, axis=0) + 0.01 * rng.normal(size=(180, 80))).float()
    items = Vectors([(values[:100], torch.arange(100)), (values[100:], torch.arange(80))])
    units = items.units(np.arange(180))
    expected = {(i, j) for i, j in np.argwhere(units @ units.T >= items.similarity) if i < j}
    found = near_groups(items, np.arange(180))
    assert {(i, j) for group in found for i in group for j in group if i < j} == expected
    assert len(expected) == 180
    assert near_groups(items, np.arange(1)) is NO_GROUPS


def test_fifty_thousand_sketches_take_seconds():
    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 256, (50_000, 36)).astype(np.float32)
    spread = rng.normal(size=(36, 256)).astype(np.float32) / 6
    sketches = np.full((50_000, 288), 128, dtype=np.uint8)
    sketches[:, :256] = (coarse @ spread).clip(0, 255)
    sketches[49_000:] = sketches[:1000]
    sketches[49_000:, :8] ^= 1
    started = time.process_time()
    found = near_groups(Sketches(sketches), np.arange(50_000))
    assert time.process_time() - started < 60  # about 4 s; all pairs take minutes
    assert len(found) == 1000


def test_very_many_equal_images_take_no_time_and_memory_of_all_pairs():
    sketches = np.repeat(look_at(picture(0)).sketch[None], 20_000, axis=0)
    sketches[:, 0] += (np.arange(20_000) % 3).astype(np.uint8)
    started = time.process_time()
    found = near_groups(Sketches(sketches), np.arange(20_000))
    assert len(found.positions) == 20_000 and time.process_time() - started < 60


def test_groups_can_be_chosen_from():
    groups = Groups(np.array([0, 1, 2, 3, 4]), np.array([0, 2]))
    assert [group.tolist() for group in groups.chosen(np.array([False, True]))] == [[2, 3, 4]]
    assert len(with_different_labels(NO_GROUPS, np.zeros(3))) == 0


# ---- blank, extreme, rare


def test_blank_images_of_files_and_arrays(tmp_path):
    for number in range(6):
        picture(number).save(paint(tmp_path / f"a/{number}.png"))
        picture(10 + number).save(paint(tmp_path / f"b/{number}.jpg"), "JPEG")
    Image.new("RGB", (64, 64), (250, 30, 30)).save(tmp_path / "a/red.png")
    Image.new("L", (64, 64), 255).save(tmp_path / "b/white.jpg")
    paint(tmp_path / "b/noise.png", size=(200, 200))  # whose thumbnail is nearly grey, but which is not blank
    examples = load(DataSettings(source=str(tmp_path))).train
    found = inspect(examples)
    assert as_tree(found, examples)["blank"] == ["a/red.png", "b/white.jpg"]
    arrays = np.random.default_rng(0).normal(size=(12, 3, 16, 16)).astype(np.float32) * 1e-3
    arrays[4] = 7.0
    assert inspect(from_arrays(arrays, np.arange(12) % 2)).blank.tolist() == [4]
    assert len(inspect(from_arrays(np.zeros((12, 3)), np.arange(12) % 2)).blank) == 0  # vectors are no images


def test_extreme_sizes(tmp_path):
    for number in range(8):
        paint(tmp_path / f"a/{number}.png", number, (40, 60))
        paint(tmp_path / f"b/{number}.png", 10 + number, (60, 40))
    paint(tmp_path / "a/huge.png", 30, (300, 250)), paint(tmp_path / "a/dot.png", 31, (8, 8))
    paint(tmp_path / "b/wide.png", 32, (20, 130)), paint(tmp_path / "b/larger.png", 33, (90, 90))
    examples = load(DataSettings(source=str(tmp_path))).train
    found = as_tree(inspect(examples), examples)["extreme_sizes"]
    assert found == [
        {"key": "a/dot.png", "size": (8, 8)},
        {"key": "a/huge.png", "size": (300, 250)},
        {"key": "b/wide.png", "size": (20, 130)},
    ]


def test_rare_classes_have_fewer_than_ten_rows():
    y = np.repeat([0, 1, 2], [10, 9, 1])
    assert inspect(from_arrays(np.arange(20.0)[:, None], y)).rare_classes == {"1": 9, "2": 1}
    several = np.zeros((20, 2))
    several[:12, 0], several[10:15, 1] = 1, 1
    examples = from_arrays(np.arange(20.0)[:, None], several, multilabel=True)
    assert inspect(examples).rare_classes == {"1": 5}


# ---- more than one split


def overlap_of(splits: Splits):
    parts = {name: part for name, part in vars(splits).items() if part is not None}
    return find_overlap(parts, {name: inspect(part) for name, part in parts.items()})


def test_files_in_two_splits(tmp_path):
    for split, start in (("train", 0), ("val", 100), ("test", 200)):
        for number in range(12):
            picture(start + number).save(paint(tmp_path / f"{split}/{'ab'[number % 2]}/{number}.png"))
    shutil.copy(tmp_path / "train/a/0.png", tmp_path / "test/a/leak.png")
    shutil.copy(tmp_path / "train/a/2.png", tmp_path / "val/b/leak.png")
    shutil.copy(tmp_path / "test/b/1.png", tmp_path / "test/b/twin.png")  # within one split
    saved(picture(3), quality=80).save(tmp_path / "test/a/saved.png")
    found = overlap_tree(overlap_of(load(DataSettings(source=str(tmp_path)))))
    assert found["duplicates"] == [
        [{"split": "train", "key": "train/a/0.png"}, {"split": "test", "key": "test/a/leak.png"}],
        [{"split": "train", "key": "train/a/2.png"}, {"split": "validation", "key": "val/b/leak.png"}],
    ]
    assert found["conflicting_duplicates"] == [
        [
            {"split": "train", "key": "train/a/2.png", "label": "a"},
            {"split": "validation", "key": "val/b/leak.png", "label": "b"},
        ]
    ]
    near_rows = [{"split": "train", "key": "train/b/3.png"}, {"split": "test", "key": "test/a/saved.png"}]
    assert found["near_duplicates"] == [near_rows]
    assert [row["label"] for row in found["conflicting_near_duplicates"][0]] == ["b", "a"]


def test_a_table_with_a_column_of_splits(tmp_path):
    contents = []
    for number in range(12):
        stream = io.BytesIO()
        picture(number % 11, 32).save(stream, "PNG")  # the last is the first again
        contents.append(stream.getvalue())
    split = ["train"] * 8 + ["test"] * 4
    table = {"image": contents, "label": ["x", "y"] * 6, "split": split, "id": [f"r{n}" for n in range(12)]}
    pq.write_table(pa.table(table), tmp_path / "t.parquet")
    settings = DataSettings(source=str(tmp_path / "t.parquet"), columns={"split": "split", "key": "id"})
    found = overlap_tree(overlap_of(load(settings)))
    assert [[row["key"] for row in group] for group in found["conflicting_duplicates"]] == [["r0", "r11"]]


def test_arrays_in_two_splits():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 3)).astype(np.float32)
    train, test = from_arrays(x[:30], np.arange(30) % 2), from_arrays(x[28:], np.arange(12) % 2)
    found = overlap_of(Splits(train, test=test))
    assert [group.tolist() for group in found.duplicates] == [[28, 30], [29, 31]] and len(found.conflicts) == 0
    assert overlap_of(Splits(train)) is None
    soft = np.eye(2, dtype=np.float32)[np.arange(12) % 2][:, ::-1]
    found = overlap_of(Splits(train, test=from_arrays(x[28:], soft)))  # labels of two forms
    assert len(found.conflicts) == 2


def test_small_arrays_have_no_sketch():
    assert look_at_arrays(torch.zeros(2, 1, 4, 4)) is None and look_at_arrays(torch.zeros(2, 5)) is None
