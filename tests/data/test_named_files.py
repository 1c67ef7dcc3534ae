"""Datasets whose files are fetched by hand: CUB-200-2011, Clothing1M and COCO."""

import json

import numpy as np
import pytest
from PIL import Image

from pencil import DataError
from pencil.data.datasets import DATASETS
from pencil.data.datasets.clothing1m import CLASSES, balanced, clothing1m
from pencil.data.datasets.coco import coco
from pencil.data.datasets.cub import cub200


def write(path, *lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines))


@pytest.mark.parametrize(
    ("name", "archive"),
    [
        ("cub200", "CUB_200_2011.tgz"),
        ("clothing1m", "key and label lists"),
        ("coco", "annotations_trainval2014.zip"),
        ("open_images", "class-descriptions.csv"),
    ],
)
def test_missing_data_says_what_to_fetch_and_how_to_name_it(name, archive, tmp_path):
    for root in (None, tmp_path, tmp_path / "nothing"):
        with pytest.raises(DataError, match=f"download .*{archive}.*settings=.*data.root.*FOLDER") as caught:
            DATASETS[name](root)
        assert root is None or str(tmp_path) in str(caught.value)


@pytest.fixture
def cub(tmp_path):
    folder = tmp_path / "CUB_200_2011"
    write(folder / "classes.txt", "1 001.Black_footed_Albatross", "2 002.Laysan_Albatross")
    names = [f"{'001.Black_footed_Albatross' if i < 4 else '002.Laysan_Albatross'}/bird_{i}.jpg" for i in range(1, 7)]
    write(folder / "images.txt", *(f"{i} {name}" for i, name in enumerate(names, 1)))
    write(folder / "image_class_labels.txt", *(f"{i} {1 if i < 4 else 2}" for i in range(6, 0, -1)))
    write(folder / "train_test_split.txt", *(f"{i} {i % 2}" for i in range(1, 7)))
    for i, name in enumerate(names):
        (folder / "images" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (i, 0, 0)).save(folder / "images" / name, "PNG")
    return tmp_path


def test_cub200_as_published(cub):
    splits = cub200(cub)
    train, test = splits.train, splits.test
    assert train.classes == ("001.Black_footed_Albatross", "002.Laysan_Albatross")
    assert train.keys.tolist() == [
        "001.Black_footed_Albatross/bird_1.jpg", "001.Black_footed_Albatross/bird_3.jpg",
        "002.Laysan_Albatross/bird_5.jpg",
    ]  # fmt: skip
    assert train.given_labels.tolist() == [0, 0, 1] and test.given_labels.tolist() == [0, 1, 1]
    assert next(test.batches(3)).inputs[:, 0, 0, 0].tolist() == [1, 3, 5]
    assert cub200(cub / "CUB_200_2011").train.fingerprint() == train.fingerprint()


def test_cub200_names_the_line_that_is_wrong(cub):
    folder = cub / "CUB_200_2011"
    for file, line, message in (
        ("image_class_labels.txt", "7 1", "image 7 in line 7 of .*image_class_labels.txt is not in images.txt"),
        ("images.txt", "7 a/b.jpg", "image 7 in line 7 of images.txt is not in .*image_class_labels.txt"),
        ("image_class_labels.txt", "6 3", "label 3 in line 7 of .* is not a class; expected 1 to 2"),
        ("train_test_split.txt", "6 x", "cannot read .*train_test_split.txt: .*'x'"),
        ("train_test_split.txt", "6", "cannot read .*train_test_split.txt: .*#7: Expected 2 columns, got 1"),
        ("classes.txt", "4 four", "does not number its classes from 1"),
    ):
        before = (folder / file).read_text()
        (folder / file).write_text(f"{before}{line}\n")
        with pytest.raises(DataError, match=message):
            cub200(cub)
        (folder / file).write_text(before)
    (folder / "classes.txt").unlink()
    with pytest.raises(DataError, match=r"lacks classes\.txt; download CUB_200_2011\.tgz"):
        cub200(cub)


@pytest.fixture(params=["", "annotations"])
def clothing(tmp_path, request):
    """Ten noisy images of class 0, then from 3 to 5 of every other; commas in names, as the real ones have."""
    folder = tmp_path / request.param
    labels = [0] * 10 + [c for c in range(1, 14) for _ in range(3 + c % 3)]
    noisy = [f"images/{i % 10}/{i:02d}/{i},{label}.jpg" for i, label in enumerate(labels)]
    clean = [f"images/0/00/clean{i}.jpg" for i in range(6)]
    write(folder / "noisy_train_key_list.txt", *noisy)
    write(folder / "noisy_label_kv.txt", *(f"{key} {label}" for key, label in zip(noisy, labels, strict=True)))
    write(folder / "clean_val_key_list.txt", *clean[:4])
    write(folder / "clean_test_key_list.txt", *clean[4:])
    write(folder / "clean_label_kv.txt", *(f"{key} {i}" for i, key in enumerate(clean)), f"{noisy[0]} 5")
    return tmp_path


def test_clothing1m_is_balanced_by_noisy_labels(clothing):
    splits = clothing1m(clothing)
    train = splits.train
    assert splits.sizes() == {"train": 42, "validation": 4, "test": 2} and train.classes == CLASSES
    assert np.bincount(train.given_labels).tolist() == [3] * 14
    assert all(int(key.split(",")[1][:-4]) == label for key, label in zip(train.keys, train.given_labels, strict=True))
    assert splits.validation.given_labels.tolist() == [0, 1, 2, 3] and splits.test.given_labels.tolist() == [4, 5]
    assert splits.test.inputs.file_of(1) == clothing / "images/0/00/clean5.jpg"
    assert clothing1m(clothing).train.fingerprint() == train.fingerprint()
    assert clothing1m(clothing, seed=1).train.fingerprint() != train.fingerprint()
    assert len(clothing1m(clothing, per_class=2).train) == 28
    for everything in (None, "all"):
        assert len(clothing1m(clothing, per_class=everything).train) == 62
    with pytest.raises(DataError, match=r"data\.options\.per_class is 0; expected an integer of at least 1"):
        clothing1m(clothing, per_class=0)


def test_clothing1m_names_its_classes_as_its_file_does(clothing):
    folder = clothing / "annotations" if (clothing / "annotations").exists() else clothing
    write(folder / "category_names_eng.txt", *(f"Kind {i}" for i in range(14)))
    assert clothing1m(clothing).train.classes[13] == "Kind 13"
    write(folder / "category_names_eng.txt", "T-Shirt")
    with pytest.raises(DataError, match="has 1 class names; expected 14"):
        clothing1m(clothing)


def test_clothing1m_names_the_line_that_is_wrong(clothing):
    folder = clothing / "annotations" if (clothing / "annotations").exists() else clothing
    with (folder / "clean_test_key_list.txt").open("a") as stream:
        stream.write("images/9/99/new.jpg\n")
    with pytest.raises(
        DataError, match=r"'images/9/99/new.jpg' in line 3 of .*clean_test.* has no label in .*clean_lab"
    ):
        clothing1m(clothing)
    with (folder / "noisy_label_kv.txt").open("a") as stream:
        stream.write("images/0/00/x.jpg 14\n")
    with pytest.raises(DataError, match=r"label 14 in line 63 of .* is not a class; expected 0 to 13"):
        clothing1m(clothing)


def test_a_class_without_noisy_labels_cannot_be_balanced():
    with pytest.raises(DataError, match="class 'b' has no noisy label"):
        balanced(np.array([0, 0, 2]), 1, ("a", "b", "c"), 0)


@pytest.fixture
def coco_folder(tmp_path):
    categories = [{"id": 7, "name": "train"}, {"id": 1, "name": "person"}, {"id": 90, "name": "toothbrush"}]
    for part, pairs in (("train", [(5, 1), (5, 90), (5, 1), (9, 7)]), ("val", [(5, 7)])):
        content = {
            "info": {"year": 2014},
            "images": [{"id": i, "file_name": f"COCO_{part}2014_{i:012d}.jpg", "height": 8} for i in (9, 3, 5)],
            "annotations": [
                {"id": n, "image_id": i, "category_id": c, "segmentation": [[1.5, 2.5]], "bbox": [0, 0, 1, 1]}
                for n, (i, c) in enumerate(pairs)
            ],
            "categories": categories,
        }
        write(tmp_path / "annotations" / f"instances_{part}2014.json", json.dumps(content))
    return tmp_path


def test_coco_is_multi_label_and_drops_images_without_objects(coco_folder):
    splits = coco(coco_folder)
    train, test = splits.train, splits.test
    assert train.multilabel and train.classes == test.classes == ("person", "train", "toothbrush")
    assert train.keys.tolist() == ["COCO_train2014_000000000009.jpg", "COCO_train2014_000000000005.jpg"]
    assert train.given_labels.tolist() == [[0, 1, 0], [1, 0, 1]] and test.given_labels.tolist() == [[0, 1, 0]]
    assert test.inputs.file_of(0) == coco_folder / "val2014" / "COCO_val2014_000000000005.jpg"
    with pytest.raises(DataError, match=r"COCO 2017 needs instances_train2017\.json.*train2017\.zip"):
        coco(coco_folder, year=2017)


def test_coco_names_the_annotation_that_is_wrong(coco_folder):
    path = coco_folder / "annotations" / "instances_train2014.json"
    good = path.read_text()
    for old, new, message in (
        ('"image_id": 9', '"image_id": 8', "annotation 3 of .* has the image_id 8, which the file does not list"),
        ('"category_id": 90', '"category_id": 91', "annotation 1 of .* has the category_id 91"),
        ('"categories"', '"kinds"', "there is no 'categories'"),
        ('"person"', '"people"', "has other categories than instances_train2014.json"),
        ("}]}", "", "cannot read"),
    ):
        path.write_text(good.replace(old, new))
        with pytest.raises(DataError, match=message):
            coco(coco_folder)
