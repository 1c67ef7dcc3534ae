"""Given labels: what came with the data, checked row by row before anything is trained on it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pencil.errors import DataError

Keys = Sequence[str] | np.ndarray | None
SEVERAL = (
    "; multilabel=True (data.multilabel in a recipe) takes every column for a class that is there or not by itself"
)


@dataclass(frozen=True)
class GivenLabels:
    """Checked labels, the names of their classes, and whether a row may be of several of them."""

    given: Tensor
    classes: tuple[str, ...]
    multilabel: bool = False


@contextmanager
def about(part: str) -> Iterator[None]:
    """What is wrong with the labels of a part of the data is said of that part."""
    try:
        yield
    except DataError as error:
        raise DataError(f"{part}: {error}") from error


def as_given_labels(
    labels: Any, num_classes: int | None = None, *, keys: Keys = None, hint: str = ""
) -> tuple[Tensor, int]:
    """Check labels and return them as a tensor with the number of classes.

    Class indices become int64 of shape ``(n,)``, distributions (each row sums to 1) fp32 of shape ``(n, classes)``.
    The number of classes is derived where it is not given. Raises :class:`DataError` naming the first bad row; ``hint``
    is what to do about a matrix whose rows are no distributions.
    """
    values = as_array(labels)
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim not in (1, 2):
        raise DataError(f"labels have shape {values.shape}; expected (n,) class indices or (n, classes) distributions.")
    if len(values) == 0:
        raise DataError("the dataset is empty; expected at least one labelled example.")
    _refuse_missing(values, keys, hint if values.ndim == 2 else "")
    if values.ndim == 2:
        return _distributions(values, num_classes, keys, hint)
    return _class_indices(values, num_classes, keys)


def looks_multilabel(values: np.ndarray) -> bool:
    """Whether a matrix can only be of several classes at once: 0, 1 or unknown, and somewhere two ones in one row."""
    if values.ndim != 2 or values.shape[1] < 2 or values.dtype.kind not in "buif":
        return False
    ones = values == 1
    return bool((ones | (values == 0) | np.isnan(values)).all() and (ones.sum(axis=1) > 1).any())


def as_indicators(labels: Any, num_classes: int | None = None, *, keys: Keys = None) -> Tensor:
    """Multi-label: one probability for each (row, class), NaN where nothing is known; fp32 of shape (n, classes)."""
    values = as_array(labels)
    if values.ndim == 2 and values.dtype == object:
        values = _with_none_as_nan(values)
    if values.ndim != 2 or values.shape[1] == 0 or values.dtype.kind not in "buif":
        raise DataError(
            f"multi-labels are {values.dtype} of shape {values.shape}; expected (n, classes) numbers from 0 to 1, a "
            "column for each class; leave multilabel out where every row has one class."
        )
    if len(values) == 0:
        raise DataError("the dataset is empty; expected at least one labelled example.")
    _refuse_other_width(values.shape[1], num_classes)
    values = values.astype(np.float32)
    _refuse_rows(
        ((values >= 0) & (values <= 1)) | np.isnan(values), values, keys, "multi-label",
        "expected values from 0 to 1, or NaN where nothing is known; mend the row",
    )  # fmt: skip
    return torch.from_numpy(values)


def as_clean_indicators(labels: Any, num_classes: int) -> Tensor:
    """What is known to be right about several classes at once: 0 or 1 for each, NaN where nobody knows."""
    clean = as_indicators(labels, num_classes)
    values = clean.numpy()
    _refuse_rows(
        (values == 0) | (values == 1) | np.isnan(values), values, None, "multi-label",
        "expected 0 or 1, or NaN where nothing is known: a clean label is sure of itself",
    )  # fmt: skip
    return clean


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
        what = "are unknown (NaN, or empty in a table) in every row"
        _refuse_classes(given_labels.isnan().all(dim=0), classes, what, "label some rows or leave such classes out")
        mass = given_labels.nan_to_num(0.0).sum(dim=0, dtype=torch.float64)
    _refuse_classes(mass == 0, classes, "have no example", "remove them from the classes or add examples")


def _refuse_classes(bad: Tensor, classes: Sequence[str], what: str, remedy: str) -> None:
    names = [classes[k] for k in bad.nonzero()[:, 0].tolist()]
    if names:
        named = ", ".join(map(repr, names[:5])) + (", ..." if len(names) > 5 else "")
        raise DataError(
            f"{len(names)} of {len(classes)} classes {what}: {named}; expected at least one each; {remedy}."
        )


def as_array(labels: Any) -> np.ndarray:
    """Labels of any kind as an array."""
    if isinstance(labels, Tensor):
        return np.asarray(labels.detach().cpu())
    if isinstance(labels, (list, tuple)) and any(label is None for label in labels):
        row = next(i for i, label in enumerate(labels) if label is None)
        raise DataError(f"label at row {row} is missing (None); expected a class; label the row or leave it out.")
    try:
        return np.asarray(labels)
    except ValueError as error:
        raise DataError(
            "the labels are lists of different lengths; expected one label for each row, or a matrix with a column for "
            "each class; sklearn.preprocessing.MultiLabelBinarizer makes one of lists of names."
        ) from error


def _with_none_as_nan(values: np.ndarray) -> np.ndarray:
    try:
        return values.astype(np.float32)
    except (TypeError, ValueError):
        return values


def _where(row: int, keys: Keys) -> str:
    return f"row {row}" if keys is None or str(keys[row]) == str(row) else f"row {row} ({str(keys[row])!r})"


def _refuse_missing(values: np.ndarray, keys: Keys, hint: str) -> None:
    if values.dtype.kind not in "buif":
        raise DataError(
            f"labels are of type {values.dtype}; expected class indices or distributions; "
            "map names to indices first (PencilClassifier and the command line do it for you)."
        )
    finite = np.isfinite(values) if values.ndim == 1 else np.isfinite(values).all(axis=1)
    if not finite.all():
        row = int(np.argmin(finite))
        raise DataError(
            f"label at {_where(row, keys)} is {values[row]}; expected a class; label the row or leave it out{hint}."
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


def _distributions(values: np.ndarray, num_classes: int | None, keys: Keys, hint: str) -> tuple[Tensor, int]:
    count = values.shape[1]
    _refuse_other_width(count, num_classes)
    _refuse_single_class(count)
    good = (values >= 0).all(axis=1) & (np.abs(values.astype(np.float64).sum(axis=1) - 1) < 1e-3)
    _refuse_rows(good[:, None], values, keys, "label distribution", f"expected values from 0 to 1 that sum to 1{hint}")
    return torch.from_numpy(values.astype(np.float32)), count


def _refuse_other_width(count: int, num_classes: int | None) -> None:
    if num_classes is not None and num_classes != count:
        raise DataError(
            f"the labels have {count} columns but there are {num_classes} classes; expected a column for each class; "
            "name as many classes, or mend the matrix."
        )


def _refuse_rows(good: np.ndarray, values: np.ndarray, keys: Keys, what: str, expected: str) -> None:
    """Name the first row with an entry that is not good."""
    if not good.all():
        row = int(np.argmin(good.all(axis=1)))
        seen = np.array2string(values[row], precision=3, threshold=6)
        raise DataError(f"{what} at {_where(row, keys)} is {seen}; {expected}.")


def _refuse_single_class(count: int) -> None:
    if count < 2:
        raise DataError(f"the labels name {count} class; expected at least two classes to tell apart.")
