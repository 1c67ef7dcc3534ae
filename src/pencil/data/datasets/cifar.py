"""CIFAR-10 and CIFAR-100: the official Python pickles, read without trusting them, or Parquet files of images."""

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from pencil.data.datasets.official_files import Release, download_folder, find_folder, need_files
from pencil.data.datasets.official_files import download as fetch
from pencil.data.examples import Examples, Splits
from pencil.data.inputs.base import ReadOptions
from pencil.data.keys import as_keys
from pencil.data.rows import to_splits
from pencil.data.settings import DataSettings
from pencil.data.sources import table
from pencil.data.sources.arrays import from_arrays
from pencil.errors import DataError, explained

SIDE = 32
DAMAGED = (
    OSError, pickle.UnpicklingError, ArithmeticError, AttributeError, EOFError, LookupError, MemoryError, RuntimeError,
    TypeError, ValueError,
)  # fmt: skip
"""Exceptions that a damaged pickle may raise."""


class _Pickles(NamedTuple):
    """The files and fields of one of the two datasets."""

    release: Release
    torchvision: str
    folder: str
    train: tuple[str, ...]
    test: str
    meta: str
    labels: str
    names: str
    classes: int


CIFAR10 = _Pickles(
    Release("CIFAR-10", "cifar-10-python.tar.gz"), "CIFAR10", "cifar-10-batches-py",
    tuple(f"data_batch_{i}" for i in range(1, 6)), "test_batch", "batches.meta", "labels", "label_names", 10,
)  # fmt: skip
CIFAR100 = _Pickles(
    Release("CIFAR-100", "cifar-100-python.tar.gz"), "CIFAR100", "cifar-100-python",
    ("train",), "test", "meta", "fine_labels", "fine_label_names", 100,
)  # fmt: skip


def cifar10(root: Path | None = None, *, download: bool = True) -> Splits:
    """Load CIFAR-10 from ``root``, as published or as train.parquet and test.parquet, or download it (torchvision)."""
    return _load(CIFAR10, root, download)


def cifar100(root: Path | None = None, *, download: bool = True) -> Splits:
    """Load CIFAR-100 with its fine labels, from the same places as CIFAR-10."""
    return _load(CIFAR100, root, download)


def _load(layout: _Pickles, root: Path | None, allowed: bool) -> Splits:
    folder = download_folder(root)
    places = ("", layout.folder)
    files = (*layout.train, layout.test, layout.meta)
    if find_folder(folder, files, places) is None:
        if (folder / "train.parquet").is_file():
            return _from_parquet(layout, folder)
        fetch(
            layout.torchvision,
            folder,
            f"{layout.release.name} ({layout.folder}, or train.parquet and test.parquet) is not in {folder}",
            layout.release.remedy,
            allowed=allowed,
        )
    return _from_pickles(layout, need_files(layout.release, folder, files, places))


def _from_pickles(layout: _Pickles, folder: Path) -> Splits:
    names = _field(read_pickle(folder / layout.meta), layout.names, list, folder / layout.meta)
    if len(names) != layout.classes:
        raise DataError(
            f"{folder / layout.meta} has {len(names)} class names; expected {layout.classes}; download it again."
        )
    parts = []
    for split, files in (("train", layout.train), ("test", (layout.test,))):
        batches = [_batch(folder / file, layout.labels) for file in files]
        images = np.concatenate([images for images, _ in batches]).reshape(-1, 3, SIDE, SIDE)
        labels = np.concatenate([labels for _, labels in batches])
        parts.append(from_arrays(images, labels, classes=names, keys=_keys(split, len(labels))))
    return Splits(parts[0], test=parts[1])


def _batch(path: Path, labels: str) -> tuple[np.ndarray, np.ndarray]:
    content = read_pickle(path)
    images, given = _field(content, "data", np.ndarray, path), np.asarray(_field(content, labels, list, path))
    if images.dtype != np.uint8 or images.ndim != 2 or images.shape[1] != 3 * SIDE * SIDE or len(images) != len(given):
        raise DataError(
            f"{path} has images of type {images.dtype} and shape {images.shape} with {len(given)} labels; "
            f"expected uint8 of shape (n, {3 * SIDE * SIDE}) and n labels; download it again."
        )
    return images, given


def _from_parquet(layout: _Pickles, folder: Path) -> Splits:
    train = _decoded(folder / "train.parquet", "train")
    if train.num_classes != layout.classes:
        raise DataError(
            f"{folder / 'train.parquet'} has {train.num_classes} classes; expected the {layout.classes} of "
            f"{layout.release.name}; list them, separated by commas, as class_names in the schema's metadata."
        )
    return Splits(train, test=_decoded(folder / "test.parquet", "test", train.classes))


def _decoded(path: Path, split: str, classes: tuple[str, ...] | None = None) -> Examples:
    """Decode all images of a table into one tensor: they are small, and decoding them in every epoch takes longer."""
    part = to_splits(table.read(path, DataSettings(classes=classes))).train
    cached = part.inputs.with_options(ReadOptions(size=(SIDE, SIDE), exact=True)).cached(part.rows)
    assert cached is not None  # a table contains encoded images
    return replace(part, inputs=cached, rows=torch.arange(len(part)), keys=_keys(split, len(part)))


def _keys(split: str, count: int) -> np.ndarray:
    return as_keys([f"{split}-{i:05d}" for i in range(count)])


def _field(content: Any, name: str, kind: type, path: Path) -> Any:
    value = content.get(name) if isinstance(content, dict) else None
    if not isinstance(value, kind):
        raise DataError(f"{path} has no {name} ({kind.__name__}); expected a CIFAR file; download it again.")
    return value


def read_pickle(path: Path) -> Any:
    """Read a pickle of plain values and arrays; anything else, which could run code, is refused."""
    advice = "expected a complete pickle; download it again"
    with explained(DataError, f"cannot read {path}", advice, *DAMAGED), path.open("rb") as stream:
        return _ArraysOnly(stream, path).load()


class _ArraysOnly(pickle.Unpickler):
    def __init__(self, stream: Any, path: Path) -> None:
        super().__init__(stream, encoding="latin1")  # Python 2 wrote the official files
        self.path = path

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise DataError(
                f"{self.path} refers to {module}.{name}, which could run code; expected plain values and arrays; "
                "the file was not read; download it again."
            )
        return _ALLOWED[module, name]


def _dtype(name: str, align: Any = False, copy: Any = False) -> "np.dtype[Any]":
    """Return the dtype of bytes; flags, which old files store as numbers that NumPy no longer accepts, are ignored."""
    if name not in ("u1", "|u1"):
        raise ValueError(f"an array in it is of type {name!r}; expected 'u1'")
    return np.dtype(np.uint8, copy=True)


def _encode(text: str, encoding: str) -> bytes:
    """Return bytes in the form that Python 3 writes into old pickles: always as Latin-1."""
    if encoding != "latin1":
        raise ValueError(f"bytes are encoded as {encoding!r}; expected 'latin1'")
    return text.encode("latin1")


def _reconstruct(kind: type, shape: tuple[int, ...], code: Any) -> np.ndarray:
    """Return the empty array that a pickled array starts from."""
    if kind is not np.ndarray or shape != (0,):
        raise ValueError("an array in it does not start empty")
    return np.ndarray(shape, np.int8)


_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): _dtype,
    ("_codecs", "encode"): _encode,
}
