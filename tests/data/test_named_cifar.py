import io
import pickle
import struct

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torchvision.datasets
from PIL import Image

from pencil import DataError
from pencil.data.datasets import DATASETS
from pencil.data.datasets.cifar import cifar10, cifar100

NAMES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def pixels(rows, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (rows, 3072), dtype=np.uint8)


def python2_pickle(data, labels):
    """Byte for byte the kind of pickle that the official archives hold; Python 3 cannot write it."""
    text = lambda word: b"U" + bytes([len(word)]) + word  # noqa: E731
    number = lambda value: b"J" + struct.pack("<i", value)  # noqa: E731
    dtype = b"cnumpy\ndtype\n(" + text(b"u1") + b"K\x00K\x01tR(K\x03" + text(b"|") + b"NNN"
    dtype += number(-1) + number(-1) + b"K\x00tb"
    shape = number(len(data)) + number(3072) + b"\x86"
    raw = b"T" + struct.pack("<i", data.nbytes) + data.tobytes()
    array = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85" + text(b"b") + b"tR"
    array += b"(K\x01" + shape + dtype + b"\x89" + raw + b"tb"
    listed = b"](" + b"".join(number(label) for label in labels) + b"e"
    return b"\x80\x02}(" + text(b"data") + array + text(b"labels") + listed + b"u."


@pytest.fixture
def cifar10_folder(tmp_path):
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": NAMES, "num_vis": 3072}, protocol=2))
    for i in range(1, 6):
        (folder / f"data_batch_{i}").write_bytes(python2_pickle(pixels(4, i), [0, 1, 2, i]))
    (folder / "test_batch").write_bytes(pickle.dumps({"data": pixels(3), "labels": [9, 8, 7]}, protocol=2))
    return tmp_path


def test_cifar10_from_the_official_pickles(cifar10_folder):
    splits = cifar10(cifar10_folder)
    train, test = splits.train, splits.test
    assert train.classes == tuple(NAMES) and splits.sizes() == {"train": 20, "test": 3}
    assert train.inputs.values.shape == (20, 3, 32, 32)
    assert np.array_equal(train.inputs.values[4:8].numpy().reshape(4, 3072), pixels(4, 2))
    assert train.given_labels[:8].tolist() == [0, 1, 2, 1, 0, 1, 2, 2]
    assert train.keys[5] == "train-00005" and test.keys[2] == "test-00002" and test.given_labels.tolist() == [9, 8, 7]
    inner = cifar10(cifar10_folder / "cifar-10-batches-py")
    assert inner.train.fingerprint() == train.fingerprint()


def test_cifar100_has_fine_labels(tmp_path):
    names = [f"class {i}" for i in range(100)]
    (tmp_path / "meta").write_bytes(pickle.dumps({"fine_label_names": names, "coarse_label_names": ["c"] * 20}))
    for split, rows in (("train", 5), ("test", 2)):
        content = {"data": pixels(rows), "fine_labels": list(range(rows)), "coarse_labels": [0] * rows}
        (tmp_path / split).write_bytes(pickle.dumps(content, protocol=4))
    splits = DATASETS["cifar100"](tmp_path)
    assert splits.train.classes == tuple(names) and splits.train.given_labels.tolist() == [0, 1, 2, 3, 4]
    (tmp_path / "meta").write_bytes(pickle.dumps({"fine_label_names": names[:7]}))
    with pytest.raises(DataError, match="has 7 class names; expected 100"):
        cifar100(tmp_path)


class Malicious:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def test_a_pickle_that_would_run_code_is_refused(cifar10_folder):
    harm = cifar10_folder / "harm"
    batch = cifar10_folder / "cifar-10-batches-py" / "data_batch_3"
    batch.write_bytes(pickle.dumps({"data": Malicious(harm), "labels": [0]}))
    with pytest.raises(DataError, match=r"data_batch_3 refers to (io|_io)\.open, which could run code"):
        cifar10(cifar10_folder)
    assert not harm.exists()
    codec = b"c_codecs\nencode\n(U\x01aU\x03hextR."
    for content in (codec, pickle.dumps(np.array([object()]))[:-40], b"", b"<html>", pickle.dumps([1])):
        batch.write_bytes(content)
        with pytest.raises(DataError, match="data_batch_3"):
            cifar10(cifar10_folder)


def test_what_is_wrong_in_a_batch_is_named(cifar10_folder):
    folder = cifar10_folder / "cifar-10-batches-py"
    (folder / "test_batch").write_bytes(pickle.dumps({"data": pixels(3), "labels": [9, 8]}, protocol=2))
    with pytest.raises(DataError, match=r"test_batch has images of type uint8 and shape \(3, 3072\) with 2 labels"):
        cifar10(cifar10_folder)
    (folder / "test_batch").write_bytes(pickle.dumps({"data": pixels(3), "labels": [9, 8, 10]}, protocol=2))
    with pytest.raises(DataError, match=r"label 10 at row 2 \('test-00002'\) is not one of the 10 classes"):
        cifar10(cifar10_folder)
    (folder / "data_batch_4").unlink()
    with pytest.raises(DataError, match=r"lacks data_batch_4; download cifar-10-python\.tar\.gz.*data\.root.: .FOLDER"):
        cifar10(cifar10_folder)


def write_parquet(path, rows, names):
    def png(image):
        stream = io.BytesIO()
        Image.fromarray(image).save(stream, "PNG")
        return stream.getvalue()

    images = np.random.default_rng(1).integers(0, 256, (rows, 32, 32, 3), dtype=np.uint8)
    table = pa.table({"image": [png(image) for image in images], "label": pa.array(range(rows), pa.int32())})
    pq.write_table(table.replace_schema_metadata({"class_names": ",".join(names)} if names else None), path)
    return images


def test_cifar10_from_parquet(tmp_path):
    images = write_parquet(tmp_path / "train.parquet", 6, NAMES)
    write_parquet(tmp_path / "test.parquet", 2, None)
    splits = cifar10(tmp_path)
    assert splits.train.classes == splits.test.classes == tuple(NAMES)
    assert np.array_equal(splits.train.inputs.values.permute(0, 2, 3, 1).numpy(), images)
    assert splits.train.keys[5] == "train-00005" and splits.test.keys[1] == "test-00001"
    assert splits.train.given_labels.tolist() == [0, 1, 2, 3, 4, 5]
    with pytest.raises(DataError, match="has 10 classes; expected the 100 of CIFAR-100"):
        cifar100(tmp_path)


def test_a_failed_download_says_what_to_fetch(tmp_path, monkeypatch):
    def unreachable(*args, **options):
        raise RuntimeError("no route to host")

    monkeypatch.setattr(torchvision.datasets, "CIFAR10", unreachable)
    with pytest.raises(DataError, match=r"not in .*no route to host\); download cifar-10-python\.tar\.gz.*data\.root"):
        cifar10(tmp_path)


def test_a_download_is_read(tmp_path, cifar10_folder, monkeypatch):
    def fetch(target, download):
        (cifar10_folder / "cifar-10-batches-py").rename(f"{target}/cifar-10-batches-py")

    (tmp_path / "new").mkdir()
    monkeypatch.setattr(torchvision.datasets, "CIFAR10", fetch)
    assert len(cifar10(tmp_path / "new").train) == 20
