import gzip

import numpy as np
import pytest

from pencil import DataError
from pencil.data.datasets import small as named


def write_idx(path, array, zipped):
    content = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.astype(np.uint8).tobytes()
    if zipped:
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(content))
    else:
        path.write_bytes(content)


@pytest.fixture(params=[True, False], ids=["gz", "plain"])
def fashion_folder(tmp_path, request):
    rng = np.random.default_rng(0)
    for part, rows in (("train", 30), ("t10k", 10)):
        write_idx(tmp_path / f"{part}-images-idx3-ubyte", rng.integers(0, 256, (rows, 28, 28)), request.param)
        write_idx(tmp_path / f"{part}-labels-idx1-ubyte", np.arange(rows) % 10, request.param)
    return tmp_path


def test_fashion_mnist_from_a_folder(fashion_folder):
    splits = named.fashion_mnist(fashion_folder)
    train, test = splits.train, splits.test
    assert len(train) == 30 and len(test) == 10 and train.classes[9] == "Ankle boot"
    assert tuple(train.inputs.values.shape) == (30, 1, 28, 28)
    assert train.keys[3] == "train-00003" and train.given_labels[3] == 3


def test_fashion_mnist_of_debian_is_found_beside_a_root_with_other_datasets(fashion_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(named, "DEBIAN_FASHION_MNIST", fashion_folder)
    other = tmp_path / "other"
    other.mkdir()
    assert len(named.fashion_mnist(other, download=False).train) == 30


def test_a_failed_download_says_what_to_fetch_and_where_to_put_it(tmp_path, monkeypatch):
    import torchvision.datasets

    def unreachable(*args, **options):
        raise RuntimeError("no route to host")

    monkeypatch.setattr(torchvision.datasets, "FashionMNIST", unreachable)
    monkeypatch.setattr(named, "DEBIAN_FASHION_MNIST", tmp_path / "none")
    with pytest.raises(DataError, match=r"download failed \(no route to host\); put its four idx files into a folder"):
        named.fashion_mnist(tmp_path)


def test_damaged_idx_files_are_named(fashion_folder):
    path = fashion_folder / "train-images-idx3-ubyte"
    path.write_bytes(bytes([0, 0, 8, 3]) + np.array([30, 28, 28], ">u4").tobytes() + b"short")
    with pytest.raises(DataError, match="has 5 values; expected 30 x 28 x 28; download"):
        named.fashion_mnist(fashion_folder)
    path.write_bytes(b"<html>")
    with pytest.raises(DataError, match="not an idx file"):
        named.fashion_mnist(fashion_folder)


def test_digits_are_split_once_and_for_all():
    splits = named.digits()
    train, test = splits.train, splits.test
    assert len(train) == 1347 and len(test) == 450 and train.num_classes == 10
    assert not set(train.keys) & set(test.keys)
    assert train.inputs.values.max() == 255


@pytest.mark.skipif(not named.DEBIAN_FASHION_MNIST.exists(), reason="Debian's dataset-fashion-mnist is not installed")
def test_debians_fashion_mnist():
    splits = named.fashion_mnist()
    train, test = splits.train, splits.test
    assert len(train) == 60_000 and len(test) == 10_000
    assert np.bincount(train.given_labels).tolist() == [6000] * 10


def test_numbers_are_pairs_of_digits_that_train_and_test_do_not_share():
    splits = named.numbers(images=300, test_images=100)
    train = splits.train
    assert train.inputs.values.shape == (300, 1, 8, 16) and train.num_classes == 100 and train.classes[7] == "07"
    assert train.given_labels.bincount().tolist() == [3] * 100
    digits = named.digits().train
    halves = {
        picture.numpy().tobytes(): int(label)
        for picture, label in zip(digits.inputs.values[digits.rows], digits.given_labels, strict=True)
    }
    for image, label in zip(train.inputs.values[:20], train.given_labels[:20].tolist(), strict=True):
        left, right = (half.contiguous().numpy().tobytes() for half in image.split(8, dim=2))
        assert 10 * halves[left] + halves[right] == label
    with pytest.raises(DataError, match="images is 99; expected at least 100"):
        named.numbers(images=99)
