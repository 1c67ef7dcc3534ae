from typing import ClassVar

import numpy as np
import pytest
import torch
from conftest import paint, truncate
from PIL import Image

from pencil import DataError, recipe
from pencil.data.inputs.base import Normalization
from pencil.data.prepare import prepare
from pencil.data.read import load
from pencil.data.settings import DataSettings
from pencil.errors import DataWarning
from pencil.job import assemble, run_recipe
from pencil.methods import CrossEntropy, Pencil


def read(folder, **settings):
    return load(DataSettings(source=str(folder), **settings))


def test_folders_are_classes_and_paths_are_keys(pets):
    paint(pets / "dog/deeper/x.PNG")
    paint(pets / "dog/.hidden/y.png")
    (pets / "dog/notes.txt").write_text("not an image")
    train = read(pets).train
    assert train.classes == ("cat", "dog") and torch.bincount(train.given_labels).tolist() == [10, 11]
    assert train.keys[0] == "cat/0.png" and "dog/deeper/x.PNG" in train.keys.tolist()
    for key, label in zip(train.keys.tolist(), train.given_labels.tolist(), strict=True):
        assert key.startswith(train.classes[label])


def test_splits_in_sub_folders(tmp_path):
    for split, count in (("train", 4), ("val", 2), ("test", 3)):
        for number in range(count):
            paint(tmp_path / split / "ab"[number % 2] / f"{number}.png")
    splits = read(tmp_path)
    assert splits.sizes() == {"train": 4, "validation": 2, "test": 3}
    assert splits.test.keys.tolist() == ["test/a/0.png", "test/a/2.png", "test/b/1.png"]  # no key is shared
    paint(tmp_path / "test/c/0.png")
    with pytest.raises(DataError, match=r"has the sub-folder 'c', which is not one of the 2 classes \('a', 'b'\)"):
        read(tmp_path)


def test_two_folders_of_one_split_are_refused(tmp_path):
    for name in ("train/a/0.png", "train/b/0.png", "dev/a/0.png"):
        paint(tmp_path / name)
    assert read(tmp_path).sizes() == {"train": 2, "validation": 1}
    paint(tmp_path / "val/b/0.png")
    with pytest.raises(DataError, match=r"has several folders of one split: dev, train, val; .*; merge them"):
        read(tmp_path)


def test_a_test_set_of_its_own(pets, tmp_path):
    for name in ("dog", "cat"):
        paint(tmp_path / "held" / name / "1.png", 7)
    splits = read(pets, test=str(tmp_path / "held"))
    assert len(splits.train) == 20 and splits.test.given_labels.tolist() == [0, 1]
    assert splits.test.classes == splits.train.classes


def test_classes_in_an_order_of_the_users(pets):
    train = read(pets, classes=("dog", "cat")).train
    assert train.classes == ("dog", "cat") and train.given_labels[0] == 1


def test_an_empty_folder_is_no_class_and_a_note_says_so(pets):
    (pets / "fish").mkdir()
    with pytest.warns(
        UserWarning, match=r"1 of 3 sub-folders of .*pets contains no images and is not used as a class: 'fish'"
    ):
        splits = read(pets)
    assert splits.train.classes == ("cat", "dog") and len(splits.train) == 20
    assert prepare(DataSettings(), splits, seed=0).splits.train.classes == ("cat", "dog")


def test_an_empty_class_is_refused_where_it_is_named(pets):
    (pets / "fish").mkdir()
    with (
        pytest.warns(DataWarning, match="contains no images"),
        pytest.raises(DataError, match=r"1 of 3 classes have no example: 'fish'; expected at least one each"),
    ):
        prepare(DataSettings(), load(DataSettings(source=str(pets), classes=("cat", "dog", "fish"))), seed=0)


def test_an_empty_folder_beside_the_classes_of_training(tmp_path):
    for split in ("train", "val"):
        for name in ("cat", "dog"):
            paint(tmp_path / split / name / "1.png")
        (tmp_path / split / "fish").mkdir()
    with pytest.warns(DataWarning, match="contains no images") as notes:
        splits = read(tmp_path)
    assert len(notes) == 2 and splits.sizes() == {"train": 2, "validation": 2}


def test_classes_that_differ_only_by_case_are_refused_when_it_comes_to_training(tmp_path):
    for name in ("cat", "Cat", "dog", "dog ", "fish"):
        paint(tmp_path / name / "1.png")
    with pytest.raises(DataError, match="differ only by case or blanks: 'Cat' and 'cat'; 'dog' and 'dog '; expected"):
        prepare(DataSettings(), read(tmp_path), seed=0)


def test_a_link_in_a_circle_counts_no_image_twice(pets):
    (pets / "cat/again").symlink_to(pets / "cat", target_is_directory=True)
    assert len(read(pets).train) == 20


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["1.png"], "has no sub-folders; expected one per class"),
        (["cat/a.heic", "dog/b.heic"], r"contain no images; expected files that end in .jpg, "),
    ],
)
def test_folders_that_make_no_sense_are_refused(tmp_path, names, message):
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(DataError, match=message):
        read(tmp_path)


def test_one_class_cannot_be_told_apart(tmp_path):
    paint(tmp_path / "cat/1.png"), paint(tmp_path / "cat/2.png", 1)
    with pytest.raises(DataError, match=r"the only class is 'cat'; expected at least two"):
        prepare(DataSettings(), read(tmp_path), seed=0)


def test_a_folder_where_nothing_can_be_read(tmp_path):
    for name in ("cat", "dog"):
        truncate(paint(tmp_path / name / "1.png"))
    with pytest.raises(DataError, match=r"none of 2 images can be read; the first because .*truncated"):
        prepare(DataSettings(cache="none", bad_rows="skip"), read(tmp_path), seed=0)


class Watch(CrossEntropy):
    """Cross-entropy that remembers its batches."""

    seen: ClassVar[list] = []

    def loss(self, logits, batch):
        self.seen.append(batch)
        return super().loss(logits, batch)


def colours(folder):
    """A folder whose pictures are of one grey each, so that an input tells which file it came from."""
    shades = {}
    for number in range(12):
        key = f"{'ab'[number % 2]}/{number:02}.png"
        (folder / key).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (20 * number,) * 3).save(folder / key)
        shades[key] = 20 * number
    return shades


@pytest.mark.parametrize("cache", ["none", "memory"])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_truncated_file_is_left_out_and_every_other_row_stays_in_line(tmp_path, cache, workers):
    shades = colours(tmp_path / "data")
    broken = "b/05.png"
    truncate(tmp_path / "data" / broken)
    tree = {
        "data": {
            "source": str(tmp_path / "data"), "bad_rows": "skip", "cache": cache, "workers": workers,
            "normalize": {"mean": [0, 0, 0], "std": [1, 1, 1]}, "validation": 0.2,
        },
        "model": {"name": "mlp"},
        "training": {"batch_size": 3, "epochs": 2},
    }  # fmt: skip
    chosen = recipe.parse(tree)
    Watch.seen.clear()
    with pytest.warns(DataWarning, match=rf"image '{broken}' \(row 8\) cannot be read"):
        run = run_recipe(chosen, tmp_path / "run", method=Watch(epochs=2))
        splits = assemble(chosen, load(chosen.data), method=Watch()).prepared.splits
    train = splits.train
    for batch in Watch.seen:
        keys = train.keys[batch.rows.numpy()].tolist()
        assert broken not in keys and len(keys) == len(batch.inputs)
        for key, image, label in zip(keys, batch.inputs, batch.given_labels, strict=True):
            assert image.unique().tolist() == pytest.approx([shades[key] / 255])
            assert train.classes[label] == key[0]
    met = [key for batch in Watch.seen for key in train.keys[batch.rows.numpy()].tolist()]
    held = splits.validation.keys.tolist()
    assert sorted(met) == sorted(2 * [key for key in shades if key != broken and key not in held])  # each once an epoch
    table = run.labels
    expected = sorted(key for key in shades if key != broken)
    assert table["key"].to_pylist() == expected
    assert table["given"].to_pylist() == [key[0] for key in expected]


@pytest.mark.parametrize("cache", ["none", "memory"])
def test_corrected_labels_are_those_of_their_keys_when_a_row_is_left_out(tmp_path, cache):
    """Two classes that a network tells apart at a glance; one wrong label, behind the broken row, is found."""
    for number in range(24):
        wrong = number == 20
        path = tmp_path / "data" / ("dark" if (number < 12) != wrong else "light") / f"{number:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (10 + number if number < 12 else 200 + number,) * 3).save(path)
    truncate(tmp_path / "data/dark/03.png")
    tree = {
        "data": {"source": str(tmp_path / "data"), "bad_rows": "skip", "cache": cache, "validation": 0},
        "model": {"name": "mlp"},
        "training": {"batch_size": 8},
    }
    chosen = recipe.parse(tree)
    method = Pencil(backbone_epochs=4, correction_epochs=12, finetune_epochs=0, step=8.0)
    with pytest.warns(DataWarning, match="dark/03.png"):
        run = run_recipe(chosen, method=method)
    changed = {row["key"]: row["corrected"] for row in run.labels.to_pylist() if row["changed"]}
    assert changed == {"dark/20.png": "light"}
    assert "dark/03.png" not in run.labels["key"].to_pylist() and len(run.labels) == 23


def test_the_policy_error_stops_training(pets):
    truncate(pets / "dog/3.png")
    for cache in ("none", "memory"):
        chosen = recipe.parse({"data": {"source": str(pets), "cache": cache}, "training": {"epochs": 3}})
        with pytest.raises(DataError, match=r"1 of 20 images cannot be read: 'dog/3.png' \(row 13\): .*truncated"):
            run_recipe(chosen)


@pytest.mark.parametrize("cache", ["none", "memory"])
def test_sizes(tmp_path, cache):
    for number in range(12):
        paint(tmp_path / "same" / "ab"[number % 2] / f"{number}.png", number, (10, 14))
        paint(tmp_path / "mixed" / "ab"[number % 2] / f"{number}.png", number, (9 + number, 30))

    def shape(folder, **settings):
        prepared = prepare(DataSettings(cache=cache, **settings), read(tmp_path / folder), seed=0)
        return prepared.splits.train.input_shape, prepared.settings.resize

    assert shape("same") == ((3, 10, 14), (10, 14))
    assert shape("same", resize="none") == ((3, 10, 14), (10, 14))
    assert shape("mixed") == ((3, 14, 14), (14, 14))  # the median of the shorter sides
    assert shape("mixed", resize=8) == ((3, 8, 8), (8, 8))
    assert shape("mixed", resize=(8, 12), crop=6) == ((3, 6, 6), (8, 12))
    with pytest.raises(DataError, match=r"from 9 x 30 to 20 x 30 pixels; expected one size; set one with settings"):
        shape("mixed", resize="none")
    with pytest.raises(DataError, match=r"data.crop is 11 but the images have 10 x 14 pixels; .*smaller crop"):
        shape("same", crop=11)


@pytest.mark.parametrize("cache", ["none", "memory"])
def test_an_odd_size_that_no_probe_met_is_refused_where_nothing_is_to_be_resized(pets, cache, monkeypatch):
    monkeypatch.setattr("pencil.data.inputs.images.PROBES", 2)
    paint(pets / "cat/5.png", size=(8, 9))
    with pytest.raises(DataError, match=r"image 'cat/5.png' has 8 x 9 pixels; expected 8 x 8 like the others"):
        prepare(DataSettings(cache=cache, resize="none", normalize="auto"), read(pets), seed=0)


def test_arrays_do_not_test_a_network_for_images(pets, tmp_path):
    np.savez(tmp_path / "held.npz", x=np.zeros((2, 8, 8, 3), np.uint8), y=["cat", "dog"])
    with pytest.raises(DataError, match="training inputs are encoded images and test inputs arrays"):
        prepare(DataSettings(), read(pets, test=str(tmp_path / "held.npz")), seed=0)


@pytest.mark.parametrize("cache", ["none", "memory"])
def test_without_normalisation_pixels_are_from_0_to_1(pets, cache):
    train = prepare(DataSettings(normalize="none", cache=cache), read(pets), seed=0).splits.train
    first = next(train.batches(4)).inputs
    expected = np.asarray(Image.open(pets / str(train.keys[0]))).transpose(2, 0, 1) / 255
    assert first.dtype == torch.float32 and np.allclose(first[0].numpy(), expected, atol=1e-6)


def test_a_saved_normalisation_is_used_as_it_stands(pets):
    chosen = Normalization((0.1, 0.2, 0.3), (1.0, 2.0, 3.0))
    assert prepare(DataSettings(normalize=chosen), read(pets), seed=0).settings.normalize == chosen
