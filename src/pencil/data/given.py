"""Given labels: what came with the data, checked row by row before anything is trained on it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pencil.errors import DataError

Keys = Sequence[str] | np.ndarray | None


def as_given_labels(labels: Any, num_classes: int | None = None, *, keys: Keys = None) -> tuple[Tensor, int]:
    """Check labels and return them as a tensor with the number of classes.

    Class indices become int64 of shape ``(n,)``, distributions (each row sums to 1) fp32 of shape ``(n, classes)``.
    The number of classes is derived where it is not given. Raises :class:`DataError` naming the first bad row.
    """
    values = _as_array(labels)
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim not in (1, 2):
        raise DataError(f"labels have shape {values.shape}; expected (n,) class indices or (n, classes) distributions.")
    if len(values) == 0:
        raise DataError("the dataset is empty; expected at least one labelled example.")
    _refuse_missing(values, keys)
    if values.ndim == 2:
        return _distributions(values, num_classes, keys)
    return _class_indices(values, num_classes, keys)


def as_indicators(labels: Any, *, keys: Keys = None) -> Tensor:
    """Multi-label: one probability for each (row, class), NaN where nothing is known; fp32 of shape (n, classes)."""
    values = _as_array(labels)
    if values.ndim != 2 or values.dtype.kind not in "buif":
        raise DataError(
            f"multi-labels are {values.dtype} of shape {values.shape}; expected (n, classes) numbers from 0 to 1."
        )
    if len(values) == 0:
        raise DataError("the dataset is empty; expected at least one labelled example.")
    values = values.astype(np.float32)
    good = (((values >= 0) & (values <= 1)) | np.isnan(values)).all(axis=1)
    if not good.all():
        row = int(np.argmin(good))
        raise DataError(
            f"multi-label at {_where(row, keys)} is {np.array2string(values[row], precision=3, threshold=6)}; "
            "expected values from 0 to 1, or NaN where nothing is known."
        )
    return torch.from_numpy(values)


def hard_labels(given_labels: Tensor) -> Tensor:
    """The class that each given label names: itself, or the most probable one of a distribution."""
    return given_labels if given_labels.ndim == 1 else given_labels.argmax(dim=1)


def as_distribution(given_labels: Tensor, num_classes: int) -> Tensor:
    """Given labels as probabilities (n, classes); what is unknown of a multi-label is one half."""
    if given_labels.ndim == 1:
        return torch.nn.functional.one_hot(given_labels, num_classes).float()
    return given_labels.nan_to_num(0.5)


def refuse_alike_classes(classes: Sequence[str]) -> None:
    """To people they are one class, and on half of all file systems one folder."""
    seen: dict[str, str] = {}
    for name in classes:
        other = seen.setdefault(name.strip().casefold(), name)
        if other != name:
            raise DataError(
                f"the classes {other!r} and {name!r} differ only by case or blanks; merge or rename one of them."
            )


def refuse_empty_classes(given_labels: Tensor, classes: Sequence[str]) -> None:
    """A class without an example cannot be learned, and usually means that a label file or class list is wrong."""
    if given_labels.ndim == 1:
        mass = torch.bincount(given_labels, minlength=len(classes)).double()
    else:
        mass = given_labels.double().nansum(dim=0)
    empty = [classes[k] for k in range(len(classes)) if mass[k] == 0]
    if empty:
        named = ", ".join(repr(name) for name in empty[:5]) + (", ..." if len(empty) > 5 else "")
        raise DataError(
            f"{len(empty)} of {len(classes)} classes have no example: {named}; "
            "expected at least one each; remove them from the classes or add examples."
        )


def _as_array(labels: Any) -> np.ndarray:
    if isinstance(labels, Tensor):
        return np.asarray(labels.detach().cpu())
    if isinstance(labels, (list, tuple)) and any(label is None for label in labels):
        row = next(i for i, label in enumerate(labels) if label is None)
        raise DataError(f"label at row {row} is missing (None); expected a class; label the row or leave it out.")
    return np.asarray(labels)


def _where(row: int, keys: Keys) -> str:
    return f"row {row}" if keys is None or str(keys[row]) == str(row) else f"row {row} ({str(keys[row])!r})"


def _refuse_missing(values: np.ndarray, keys: Keys) -> None:
    if values.dtype.kind not in "buif":
        raise DataError(
            f"labels are of type {values.dtype}; expected class indices or distributions; "
            "map names to indices first (PencilClassifier and the command line do it for you)."
        )
    finite = np.isfinite(values) if values.ndim == 1 else np.isfinite(values).all(axis=1)
    if not finite.all():
        row = int(np.argmin(finite))
        raise DataError(
            f"label at {_where(row, keys)} is {values[row]}; expected a class; label the row or leave it out."
        )


def _class_indices(values: np.ndarray, num_classes: int | None, keys: Keys) -> tuple[Tensor, int]:
    whole = values == np.floor(values) if values.dtype.kind == "f" else np.ones(len(values), dtype=bool)
    if not whole.all():
        row = int(np.argmin(whole))
        raise DataError(f"label {values[row]} at {_where(row, keys)} is not a whole number; expected a class index.")
    indices = torch.from_numpy(values.astype(np.int64))
    count = int(indices.max()) + 1 if num_classes is None else num_classes
    if num_classes is None and count > 1000 + 10 * len(indices):
        row = int(indices.argmax())
        raise DataError(
            f"label {count - 1} at {_where(row, keys)} is far above the {len(indices)} rows there are; "
            "expected class indices from 0; pass classes=... if it is one."
        )
    bad = (indices < 0) | (indices >= count)
    if bad.any():
        row = int(bad.to(torch.uint8).argmax())
        label = int(indices[row])
        remedy = f"pass classes={label + 1} or fix the label" if label >= 0 else "fix the label"
        raise DataError(
            f"label {label} at {_where(row, keys)} does not fit {count} classes (0..{count - 1}); {remedy}."
        )
    _refuse_single_class(count)
    return indices, count


def _distributions(values: np.ndarray, num_classes: int | None, keys: Keys) -> tuple[Tensor, int]:
    count = values.shape[1]
    if num_classes is not None and num_classes != count:
        raise DataError(f"label distributions have {count} columns but there are {num_classes} classes.")
    _refuse_single_class(count)
    good = (values >= 0).all(axis=1) & (np.abs(values.astype(np.float64).sum(axis=1) - 1) < 1e-3)
    if not good.all():
        row = int(np.argmin(good))
        raise DataError(
            f"label distribution at {_where(row, keys)} is {np.array2string(values[row], precision=3, threshold=6)}; "
            "expected values from 0 to 1 that sum to 1."
        )
    return torch.from_numpy(values.astype(np.float32)), count


def _refuse_single_class(count: int) -> None:
    if count < 2:
        raise DataError(f"the labels name {count} class; expected at least two classes to tell apart.")
