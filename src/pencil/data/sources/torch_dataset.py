"""Any map-style torch dataset of (x, y) pairs or dicts.

The key of a row is its index, or its path below the root of a torchvision ``ImageFolder`` (or ``DatasetFolder``).
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Subset, TensorDataset, default_collate

from pencil.data.examples import Examples
from pencil.data.given.from_columns import LabelCells
from pencil.data.given.given_labels import as_array, error_context
from pencil.data.given.resolving import as_named
from pencil.data.inputs.augment import View
from pencil.data.inputs.base import MAX_PIXELS, Inputs, InspectedRow, Loaded, TensorInputs, inspect_values, read_ahead
from pencil.data.inputs.images import ImageFiles, ImageInputs
from pencil.data.keys import as_keys
from pencil.data.rows import Rows, to_splits
from pencil.data.sources.arrays import as_input_tensor, native
from pencil.errors import DataError
from pencil.seeding import seeded

LABEL_ATTRIBUTES = ("targets", "labels")
INPUT_KEYS = ("image", "pixel_values", "inputs", "input", "features", "x")
LABEL_KEYS = ("label", "labels", "target", "y")


def from_dataset(
    dataset: Any,
    *,
    classes: Sequence[str] | int | None = None,
    clean_labels: Any = None,
    workers: int = 0,
    multilabel: bool | None = None,
) -> Examples:
    """Return the examples of a dataset.

    Labels are read without loading inputs if the dataset stores them separately (``targets`` or ``labels``). The files
    of an ``ImageFolder`` without a transform are read like a folder per class.

    Parameters
    ----------
    dataset
        A map-style dataset with a length, whose items are pairs ``(x, y)`` or dicts. ``y`` may be a vector over the
        classes.
    classes
        Class names in order, or their number; by default the classes of the dataset, or derived from the labels.
    clean_labels
        Labels known to be right, only for metrics.
    workers
        Worker processes that prefetch items; 0 reads in this process.
    multilabel
        Whether a vector ``y`` is multi-label, as in :func:`pencil.data.from_arrays`; None decides from its values.

    Raises
    ------
    DataError
        If the dataset is empty or not map-style, or if a label or item is not as expected.
    """
    labels = LabelCells(None, classes=classes, multilabel=multilabel, clean=clean_labels)
    return to_splits(dataset_rows(dataset, labels, workers)).train


def dataset_rows(dataset: Any, labels: LabelCells, workers: int = 0) -> Rows:
    """Return the rows of a dataset, as in :func:`from_dataset`; its own labels are added to ``labels``."""
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise DataError(
            f"the dataset is a {type(dataset).__name__}; expected a map-style dataset with a length and items; "
            "wrap it in one, or pass a pair of arrays (x, y), a data frame, or the path of a folder or table."
        )
    if len(dataset) == 0:
        raise DataError("the dataset is empty; expected at least one example; check how it was built.")
    known, classes = _class_names(dataset), labels.classes
    if known is not None and classes in (None, len(known)):
        classes = known
    given, paths = _named(dataset, read_labels(dataset), classes), _paths(dataset)
    inputs = _in_memory(dataset) or (paths and _image_files(dataset, paths)) or DatasetInputs(dataset, workers)
    keys = as_keys(paths or np.arange(len(dataset)))
    return Rows(inputs, replace(labels, given=given, classes=classes), keys)


@dataclass(frozen=True)
class DatasetInputs(Inputs):
    """The inputs of any map-style dataset of pairs ``(x, y)`` or dicts, read item by item.

    Its values are not transformed further. Random transforms in the dataset are seeded by (seed, epoch, row).
    """

    dataset: Any
    workers: int = 0

    def __len__(self) -> int:
        return len(self.dataset)

    def batches(self, chunks: Sequence[Tensor], view: View | None = None) -> Iterator[Loaded]:
        items = _SeededItems(self.dataset, (view.seed, view.epoch) if view else (0, -1))
        for values in read_ahead(items, chunks, _collate, self.workers):
            yield Loaded(values)

    def in_process(self) -> Self:
        return replace(self, workers=0)

    def inspect(
        self, chunks: Sequence[Tensor], *, workers: int = 0, max_pixels: int = MAX_PIXELS
    ) -> Iterator[list[InspectedRow]]:
        for chunk, loaded in zip(chunks, self.batches(chunks), strict=True):
            yield inspect_values(chunk, loaded)


@dataclass(frozen=True)
class _SeededItems:
    """Inputs of a dataset with their rows; each item is read under its own seed."""

    dataset: Any
    stream: tuple[int, int]

    def __getitem__(self, row: int) -> tuple[int, Tensor]:
        with seeded(self.stream[0], "item", self.stream[1], row, gpu=False):
            value = take_input(self.dataset[row])
        return row, _as_tensor(row, value)


def _as_tensor(row: int, value: Any) -> Tensor:
    if isinstance(value, np.ndarray):
        with error_context(f"row {row}"):
            value = native(value)
        value = value.astype(np.float64) if value.dtype.itemsize > 8 else value  # torch has no long double
        value = np.ascontiguousarray(value) if min(value.strides, default=0) < 0 else value
        value = torch.from_numpy(value if value.flags.writeable else value.copy())
    if isinstance(value, Tensor) and (value.is_complex() or value.numel() == 0):
        raise DataError(
            f"input at row {row} is {value.dtype} of shape {tuple(value.shape)}; expected at least one real number; "
            "convert it in the dataset's transform."
        )
    if not isinstance(value, Tensor):
        raise DataError(
            f"input at row {row} is a {type(value).__name__}; expected a tensor; "
            "give the dataset a transform such as torchvision.transforms.ToTensor()."
        )
    return value


def _collate(items: list[tuple[int, Tensor]]) -> Tensor:
    for row, value in items:
        if value.shape != items[0][1].shape:
            raise DataError(
                f"input at row {row} has shape {tuple(value.shape)}, at row {items[0][0]} {tuple(items[0][1].shape)}; "
                "expected one shape; resize in the dataset's transform."
            )
        if value.is_floating_point() and not value.isfinite().all():
            raise DataError(f"input at row {row} holds NaN or infinity; expected numbers; fix or remove the row.")
    batch: Tensor = default_collate([value for _, value in items])
    return batch


def take_input(item: Any) -> Any:
    """Return the input of a dataset's item: the first of a pair, or the input field of a dict."""
    return _take(item, 0, INPUT_KEYS, "input")


def take_label(item: Any) -> Any:
    """Return the label of a dataset's item: the second of a pair, or the label field of a dict."""
    return _take(item, 1, LABEL_KEYS, "label")


def _take(item: Any, position: int, keys: tuple[str, ...], what: str) -> Any:
    if isinstance(item, Mapping):
        for key in keys:
            if key in item:
                return item[key]
        raise DataError(
            f"dataset items are dicts with the fields {', '.join(map(repr, item))}; "
            f"expected the {what} under one of {', '.join(map(repr, keys))}; rename the field."
        )
    if isinstance(item, Sequence) and not isinstance(item, str) and len(item) >= 2:
        return item[position]
    raise DataError(
        f"a dataset item is a {type(item).__name__}; expected a pair (x, y) or a dict; pass arrays as "
        "(x, y), or change what __getitem__ returns."
    )


def read_labels(dataset: Any) -> Any:
    """Return the labels of all rows.

    They come from the dataset's own list if it agrees with its items, otherwise from reading every item.
    """
    stored = _stored_labels(dataset)
    if stored is not None and len(stored) == len(dataset):
        probes = {0, len(dataset) // 2, len(dataset) - 1}
        if all(_same(take_label(dataset[i]), stored[i]) for i in probes):
            return stored
    labels = [take_label(dataset[i]) for i in range(len(dataset))]
    return as_array([as_array(label) if isinstance(label, Tensor) else label for label in labels])


def _stored_labels(dataset: Any) -> Any:
    if isinstance(dataset, Subset):
        inner = _stored_labels(dataset.dataset)
        if inner is None:
            return None
        return [inner[i] for i in dataset.indices] if isinstance(inner, list) else inner[list(dataset.indices)]
    if isinstance(dataset, TensorDataset):
        return dataset.tensors[1] if len(dataset.tensors) > 1 else None
    if getattr(dataset, "target_transform", None) is not None:
        return None  # the stored labels differ from the items' labels
    for name in LABEL_ATTRIBUTES:
        stored = getattr(dataset, name, None)
        if isinstance(stored, (Tensor, np.ndarray, list)):
            return stored
    return None


def _same(label: Any, stored: Any) -> bool:
    one, other = np.asarray(label), np.asarray(stored)
    return np.array_equal(one, other, equal_nan=one.dtype.kind == other.dtype.kind == "f")  # NaN: unknown in both


def _class_names(dataset: Any) -> tuple[str, ...] | None:
    names = getattr(_whole(dataset), "classes", None)
    return tuple(map(str, names)) if isinstance(names, (list, tuple)) else None


def _named(dataset: Any, labels: Any, classes: Sequence[str] | int | None) -> Any:
    """Return integer labels as names where the dataset says that they are indices (``class_to_idx`` of torchvision).

    Where the classes have other names, labels stay as they are.
    """
    names, values = _class_names(dataset), as_array(labels)
    if (
        names is None
        or not hasattr(_whole(dataset), "class_to_idx")
        or values.ndim != 1
        or values.dtype.kind not in "iu"
    ):
        return labels
    declared = set(map(str, classes)) if isinstance(classes, Iterable) else set()
    return as_named(values, names) if declared >= set(names) else labels


def _whole(dataset: Any) -> Any:
    """Return the dataset that a subset was taken from."""
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    return dataset


def _paths(dataset: Any) -> list[str] | None:
    """Return the path of each row below the root of a folder of files; None for other datasets.

    Also None if rows were drawn more than once, because paths are then not unique.
    """
    if isinstance(dataset, Subset):
        inner = _paths(dataset.dataset)
        chosen = inner and [inner[row] for row in dataset.indices]
        return chosen if chosen and len(set(chosen)) == len(chosen) else None
    samples, root = getattr(dataset, "samples", None), getattr(dataset, "root", None)
    if not isinstance(samples, list) or not isinstance(root, (str, os.PathLike)) or len(samples) != len(dataset):
        return None
    if not all(isinstance(item, tuple) and isinstance(item[0], str) for item in samples):
        return None
    return [Path(os.path.relpath(path, root)).as_posix() for path, *_ in samples]


def _image_files(dataset: Any, paths: list[str]) -> ImageInputs | None:
    """Return the files of a folder dataset with unchanged images; None if it transforms or loads them itself.

    The files are then decoded, resized and cached like a folder per class.
    """
    from torchvision.datasets.folder import DatasetFolder, default_loader

    dataset = _whole(dataset)
    if not isinstance(dataset, DatasetFolder) or type(dataset).__getitem__ is not DatasetFolder.__getitem__:
        return None
    if dataset.transform is not None or dataset.loader is not default_loader:
        return None
    root = Path(dataset.root)
    return ImageInputs(ImageFiles(root, as_keys(paths), within=(root,)))


def _in_memory(dataset: Any) -> TensorInputs | None:
    """Return the inputs of a TensorDataset, or of a subset of one, without reading item by item."""
    if isinstance(dataset, Subset):
        inner = _in_memory(dataset.dataset)
        if inner is None:
            return None
        return replace(inner, values=inner.values[torch.as_tensor(list(dataset.indices))])
    if not isinstance(dataset, TensorDataset):
        return None
    return TensorInputs(as_input_tensor(dataset.tensors[0]), prepared=True)
