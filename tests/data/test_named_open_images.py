import numpy as np
import pytest

from pencil import DataError
from pencil.data.datasets.open_images import choose_classes, open_images

HEADER = "ImageID,Source,LabelName,Confidence"


def write(path, *lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines))


@pytest.fixture(params=[("", "oidv6-"), ("annotations", "")], ids=["V6", "V4"])
def folder(tmp_path, request):
    """Cats and dogs in every split; birds in training only; trees cannot be trained; one image is not on disk."""
    place, prefix = tmp_path / request.param[0], request.param[1]
    header = ["LabelName,DisplayName"] if prefix else []
    names = ["/m/cat,Cat", '/m/dog,"Dog, hot"', "/m/bird,Bird", "/m/tree,Tree"]
    write(place / f"{prefix}class-descriptions.csv", *header, *names)
    write(place / f"{prefix}classes-trainable.txt", "/m/cat", "/m/dog", "/m/bird")
    for split, images in (("train", "abcdef"), ("validation", "uv"), ("test", "yz")):
        for image in images:
            write(tmp_path / split / f"{image}.jpg")
    human = ["a,verification,/m/cat,1", "b,verification,/m/cat,0", "f,verification,/m/tree,1"]
    machine = [
        "a,machine,/m/dog,0.3", "b,machine,/m/cat,0.9", "b,machine,/m/dog,0.8", "c,machine,/m/cat,0.7",
        "d,machine,/m/bird,0.5", "gone,machine,/m/bird,0.9", "e,machine,/m/cat,0.4",
    ]  # fmt: skip
    write(place / f"{prefix}train-annotations-human-imagelabels.csv", HEADER, *human)
    write(place / "train-annotations-machine-imagelabels.csv", HEADER, *machine)
    for split, (one, two) in (("validation", "uv"), ("test", "yz")):
        rows = [f"{one},verification,/m/cat,1", f"{one},verification,/m/dog,0", f"{two},verification,/m/dog,1"]
        write(place / f"{split}-annotations-human-imagelabels.csv", HEADER, *rows)
    return tmp_path


def test_labels_are_a_persons_else_the_machines(folder):
    splits = open_images(folder, classes=2, train_images=1, validation_images=1, test_images=1)
    assert splits.train.classes == ("Cat", "Dog, hot") and splits.train.multilabel
    splits = open_images(folder, classes=2, train_images=9, validation_images=9, test_images=9)
    train, test = splits.train, splits.test
    assert train.keys.tolist() == ["a", "b", "c"]  # e is below 0.5
    assert np.allclose(train.given_labels, [[1, 0.3], [0, 0.8], [0.7, 0]])
    assert test.keys.tolist() == ["y", "z"] and splits.validation.keys.tolist() == ["u", "v"]
    assert np.array_equal(test.given_labels, [[1, 0], [np.nan, 1]], equal_nan=True)
    assert train.inputs.file_of(2) == folder / "train" / "c.jpg"


def test_each_class_brings_a_limited_number_of_images(folder):
    wanted = {"classes": 2, "train_images": 1, "validation_images": 1, "test_images": 1}
    drawn = [open_images(folder, **wanted, seed=seed).train for seed in range(8)]
    assert {tuple(train.keys.tolist()) for train in drawn} == {("a", "b"), ("b", "c")}
    assert open_images(folder, **wanted, seed=3).train.fingerprint() == drawn[3].fingerprint()


def test_a_split_can_be_left_out_and_classes_that_come_nearest_fill_up(folder):
    splits = open_images(folder, classes=3, train_images=2, validation_images=0, test_images=0)
    assert splits.sizes() == {"train": 4} and splits.train.classes == ("Cat", "Dog, hot", "Bird")
    assert splits.train.given_labels[splits.train.keys.tolist().index("d")].tolist() == [0, 0, 0.5]


def test_classes_are_drawn_among_the_full_ones_or_ranked():
    counts = np.array([[9, 5, 5, 0, 4], [3, 5, 0, 9, 5]])
    wanted = np.array([5, 3])
    assert {tuple(choose_classes(counts, wanted, 1, seed).tolist()) for seed in range(9)} == {(0,), (1,)}
    assert choose_classes(counts, wanted, 3, 0).tolist() == [0, 1, 4]
    assert choose_classes(counts, wanted, 4, 0).tolist() == [0, 1, 2, 4]
    with pytest.raises(DataError, match=r"4 classes .* expected 5; .* data\.options\.classes=4"):
        choose_classes(counts, wanted, 5, 0)


def test_classes_that_share_a_name_are_told_apart(folder):
    path = next(folder.rglob("*class-descriptions.csv"))
    path.write_text(path.read_text().replace("Bird", "Cat"))
    splits = open_images(folder, classes=3, validation_images=0, test_images=0)
    assert splits.train.classes == ("Cat (/m/cat)", "Dog, hot", "Cat (/m/bird)")


def test_without_a_list_of_trainable_classes_all_count(folder):
    next(folder.rglob("*classes-trainable.txt")).unlink()
    assert "Tree" in open_images(folder, classes=4, validation_images=0, test_images=0).train.classes


def test_what_is_missing_or_wrong_is_named(folder):
    with pytest.raises(DataError, match=r"data\.options\.train_images is 0; expected an integer of at least 1"):
        open_images(folder, train_images=0)
    machine = next(folder.rglob("train-annotations-machine-imagelabels.csv"))
    good = machine.read_text()
    machine.write_text(good.replace("0.7", "1.7"))
    with pytest.raises(DataError, match=r"the confidence in line 5 of .*machine.* is 1\.7.*; expected 0 to 1"):
        open_images(folder, classes=2)
    machine.write_text(good.replace("Confidence", "Certainty"))
    with pytest.raises(DataError, match=r"cannot read .*machine.*Confidence"):
        open_images(folder, classes=2)
    machine.unlink()
    with pytest.raises(
        DataError, match=r"needs \*train-annotations-machine-imagelabels.csv; it is not in .*annotations"
    ):
        open_images(folder, classes=2)
    machine.write_text(good)
    for image in ("y", "z"):
        (folder / "test" / f"{image}.jpg").unlink()
    with pytest.raises(DataError, match=r"test contains no images; expected files ID\.jpg"):
        open_images(folder, classes=2)
    write(folder / "test" / "other.jpg")
    with pytest.raises(DataError, match=r"no image in .*test is positive .* data\.options\.test_images=0"):
        open_images(folder, classes=2)
