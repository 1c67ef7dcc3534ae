"""Any map-style torch dataset of (x, y) pairs or dicts, wrapped so that every row is known by its index."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Subset, TensorDataset

from pencil.data.arrays import as_clean_labels, as_input_tensor, resolve_labels
from pencil.data.examples import Examples, as_keys
from pencil.data.given import as_array
from pencil.data.inputs import DatasetInputs, Inputs, TensorInputs, take_label
from pencil.errors import DataError

LABEL_ATTRIBUTES = ("targets", "labels")


def from_dataset(
    dataset: Any,
    *,
    classes: Sequence[str] | int | None = None,
    clean_labels: Any = None,
    workers: int = 0,
    multilabel: bool | None = None,
) -> Examples:
    """Examples of a dataset. Labels are read without loading inputs where the dataset keeps them apart.

    ``y`` may be a vector over the classes: as in :func:`pencil.data.from_arrays`, ``multilabel`` says of which kind.
    """
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise DataError(
            f"the dataset is a {type(dataset).__name__}; expected a map-style dataset with a length and items, "
            "or a pair of arrays (x, y)."
        )
    if len(dataset) == 0:
        raise DataError("the dataset is empty; expected at least one example.")
    known = _class_names(dataset)
    if known is not None and classes in (None, len(known)):
        classes = known
    labels = resolve_labels(read_labels(dataset), classes, multilabel=multilabel)
    inputs = _in_memory(dataset) or DatasetInputs(dataset, workers)
    rows = torch.arange(len(labels.given))
    clean, keys = as_clean_labels(clean_labels, labels), as_keys(rows.numpy())
    return Examples(inputs, rows, labels.given, labels.classes, keys, clean, labels.multilabel)


def read_labels(dataset: Any) -> Any:
    """The labels of all rows: from the dataset's own list if it agrees with its items, else by reading every item."""
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
        return None  # what is stored is not what an item says
    for name in LABEL_ATTRIBUTES:
        stored = getattr(dataset, name, None)
        if isinstance(stored, (Tensor, np.ndarray, list)):
            return stored
    return None


def _same(label: Any, stored: Any) -> bool:
    one, other = np.asarray(label), np.asarray(stored)
    return np.array_equal(one, other, equal_nan=one.dtype.kind == other.dtype.kind == "f")  # NaN: unknown in both


def _class_names(dataset: Any) -> tuple[str, ...] | None:
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    names = getattr(dataset, "classes", None)
    return tuple(map(str, names)) if isinstance(names, (list, tuple)) else None


def _in_memory(dataset: Any) -> Inputs | None:
    """The inputs of a TensorDataset, or of a subset of one, need no item-by-item reading."""
    if isinstance(dataset, Subset):
        inner = _in_memory(dataset.dataset)
        if isinstance(inner, TensorInputs):
            return replace(inner, values=inner.values[torch.as_tensor(list(dataset.indices))])
        return None
    if not isinstance(dataset, TensorDataset):
        return None
    return TensorInputs(as_input_tensor(dataset.tensors[0]), prepared=True)
