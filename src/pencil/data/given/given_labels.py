"""Given labels: the labels that came with the data, checked row by row before anything is trained on them."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pencil.data.bad_rows import SHOWN
from pencil.data.given.votes import Votes
from pencil.errors import DataError, can_set

Keys = Sequence[str] | np.ndarray | None
UNLABELLED = -1
"""In place of a class index: the row has no label. In a matrix of distributions the whole row is NaN."""
LARGEST_INDEX = 2**53
"""Up to here every type of number is exact."""


@dataclass(frozen=True)
class GivenLabels:
    """Checked labels, the names of their classes, whether they are multi-label, and the votes that they come from."""

    given: Tensor
    classes: tuple[str, ...]
    multilabel: bool = False
    votes: Votes | None = None


@contextmanager
def error_context(part: str) -> Iterator[None]:
    """Prefix every :class:`DataError` with the part of the data that it concerns."""
    try:
        yield
    except DataError as error:
        raise DataError(f"{part}: {error}") from error


def as_given_labels(
    labels: Any, num_classes: int | None = None, *, keys: Keys = None, hint: str = ""
) -> tuple[Tensor, int]:
    """Check single-label labels and return them as a tensor, with the number of classes.

    Parameters
    ----------
    labels
        Class indices ``(n,)`` or label distributions ``(n, classes)``, each row of which sums to 1.
    num_classes
        The number of classes; None derives it.
    keys
        Names of the rows in messages.
    hint
        Appended to the message about a matrix whose rows are not distributions.

    Returns
    -------
    tuple
        int64 indices of shape ``(n,)`` or fp32 distributions of shape ``(n, classes)``, and the number of classes.

    Raises
    ------
    DataError
        If a label is not as expected; the message names the first such row.
    """
    values = as_array(labels)
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim not in (1, 2):
        raise DataError(
            f"labels have shape {values.shape}; expected class indices (n,) or distributions (n, classes); "
            "reshape them."
        )
    if len(values) == 0:
        raise DataError("the dataset is empty; expected at least one labelled example; check how the labels were made.")
    _refuse_missing(values, keys, hint if values.ndim == 2 else "")
    if values.ndim == 2:
        return _distributions(values, num_classes, keys, hint)
    return _class_indices(values, num_classes, keys)


def lacks_label(given_labels: Tensor, multilabel: bool) -> Tensor:
    """Return which rows of single-label data have no label; multi-label data has unknown entries instead."""
    if multilabel:
        return torch.zeros(len(given_labels), dtype=torch.bool)
    return given_labels == UNLABELLED if given_labels.ndim == 1 else given_labels.isnan().all(dim=1)


def is_multilabel(values: np.ndarray) -> bool:
    """Return whether a matrix can only be multi-label: 0, 1 or unknown, and two ones in at least one row."""
    if values.ndim != 2 or values.shape[1] < 2 or values.dtype.kind not in "buif":
        return False
    ones = values == 1
    return bool((ones | (values == 0) | np.isnan(values)).all() and (ones.sum(axis=1) > 1).any())


def as_indicators(labels: Any, num_classes: int | None = None, *, keys: Keys = None) -> Tensor:
    """Check multi-label labels: one probability for each (row, class), NaN where unknown; fp32 (n, classes)."""
    values = as_array(labels)
    if values.ndim == 2 and values.dtype == object:
        values = _with_none_as_nan(values)
    if values.ndim != 2 or values.shape[1] == 0 or values.dtype.kind not in "buif":
        remedy = "leave multilabel out for single-label data" if can_set() else "pass multi-label data, as in training"
        raise DataError(
            f"labels are {values.dtype} of shape {values.shape}; expected multi-label data: (n, classes) numbers "
            f"from 0 to 1, a column for each class; {remedy}."
        )
    if len(values) == 0:
        raise DataError("the dataset is empty; expected at least one labelled example; check how the labels were made.")
    _refuse_other_width(values.shape[1], num_classes)
    with np.errstate(over="ignore"):  # infinity is refused next
        values = values.astype(np.float32)
    _refuse_rows(
        ((values >= 0) & (values <= 1)) | np.isnan(values), values, keys, "multi-label",
        "expected values from 0 to 1, or NaN where the label is unknown; fix the row",
    )  # fmt: skip
    return torch.from_numpy(values)


def as_clean_indicators(labels: Any, num_classes: int | None = None) -> Tensor:
    """Check multi-label labels that are known to be right: 0 or 1 for each class, NaN where unknown."""
    clean = as_indicators(labels, num_classes)
    values = clean.numpy()
    _refuse_rows(
        (values == 0) | (values == 1) | np.isnan(values), values, None, "multi-label",
        "expected 0 or 1, or NaN where the label is unknown; fix the row",
    )  # fmt: skip
    return clean


def hard_labels(given_labels: Tensor) -> Tensor:
    """Return the class index of each given label: itself, or the most probable class of a distribution."""
    return given_labels if given_labels.ndim == 1 else given_labels.argmax(dim=1)


def has_tie(given_labels: Tensor) -> Tensor:
    """Return which rows have no given label: unlabelled, or a distribution whose largest probability classes share."""
    if given_labels.ndim == 1:
        return given_labels == UNLABELLED
    return most_probable(given_labels).sum(dim=1) > 1


def most_probable(distributions: Tensor) -> Tensor:
    """Return which classes of each row have the largest probability, as a mask: more than one where they tie."""
    return torch.isclose(distributions, distributions.amax(dim=1, keepdim=True), rtol=0, atol=1e-6)


def as_distribution(given_labels: Tensor, num_classes: int) -> Tensor:
    """Return given labels as probabilities (n, classes); an unknown multi-label entry is one half."""
    if given_labels.ndim == 1:
        return torch.nn.functional.one_hot(given_labels, num_classes).float()
    return given_labels.nan_to_num(0.5)


def as_class_names(names: Iterable[Any]) -> tuple[str, ...]:
    """Return class names as strings; raise if one is empty or occurs twice, as a name must stand for one class."""
    classes: dict[str, int] = {}
    for number, name in enumerate(map(str, names)):
        if not name.strip():
            raise DataError(f"the name of class {number} is empty; expected a name for each class; fill it in.")
        first = classes.setdefault(name, number)
        if first != number:
            raise DataError(
                f"classes {first} and {number} have the same name {name!r}; expected distinct names; "
                "merge or rename one of them."
            )
    return tuple(classes)


def refuse_alike_classes(classes: Sequence[str]) -> None:
    """Raise if class names differ only by case or blanks: one class to people, one folder on many file systems."""
    as_class_names(classes)
    spellings: dict[str, list[str]] = {}
    for name in classes:
        spellings.setdefault(name.strip().casefold(), []).append(name)
    alike = [names for names in spellings.values() if len(names) > 1]
    if alike:
        shown = "; ".join(" and ".join(map(repr, names)) for names in alike[:5])
        more = f"; and {len(alike) - 5:,} more" if len(alike) > 5 else ""
        raise DataError(
            f"classes differ only by case or blanks: {shown}{more}; expected distinct names; merge or rename them."
        )


def refuse_empty_classes(given_labels: Tensor, classes: Sequence[str]) -> None:
    """Raise if a class has no example: it cannot be learned, and usually a label file or class list is wrong."""
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
        listed = shorten(list(map(repr, names)))
        raise DataError(
            f"{len(names)} of {len(classes)} classes {what}: {listed}; expected at least one each; {remedy}."
        )


def shorten(names: Sequence[str], count: int = 5) -> str:
    """Return the first names of a list for a message, with an ellipsis where there are more."""
    return ", ".join(names[:count]) + (", ..." if len(names) > count else "")


def as_array(labels: Any) -> np.ndarray:
    """Return labels of any kind as an array."""
    if isinstance(labels, Tensor):
        return _tensor_to_array(labels.detach())
    try:
        if isinstance(labels, (list, tuple)) and any(label is None for label in labels):
            return np.asarray(labels, dtype=object)
        return as_array_with_nan(labels)
    except ValueError as error:
        raise DataError(
            "the labels are lists of different lengths; expected one label for each row, or a matrix with a column for "
            "each class; sklearn.preprocessing.MultiLabelBinarizer makes one of lists of names."
        ) from error


def as_array_with_nan(values: Any) -> np.ndarray:
    """Return an array in which NaN is still NaN: beside names in a list NumPy makes the text ``nan`` of it."""
    array = np.asarray(values)
    if array.dtype.kind not in "SU" or not isinstance(values, (list, tuple)):
        return array
    objects = np.asarray(values, dtype=object)
    return objects if any(map(is_nan, objects.flat)) else array


def is_nan(value: Any) -> bool:
    """Return whether a value is a number that is none."""
    return isinstance(value, (float, np.floating)) and bool(value != value)


def _tensor_to_array(labels: Tensor) -> np.ndarray:
    if labels.layout != torch.strided or labels.is_quantized:
        raise DataError(
            f"the labels are a tensor of layout {labels.layout}; expected a dense tensor; call its to_dense()."
        )
    halves = labels.is_floating_point() and labels.dtype not in (torch.float32, torch.float64)  # numpy has no bfloat16
    return np.asarray((labels.float() if halves else labels).cpu())


def _with_none_as_nan(values: np.ndarray) -> np.ndarray:
    try:
        return values.astype(np.float32)
    except (TypeError, ValueError):
        return values


def name_rows(rows: Sequence[int], keys: Keys = None) -> str:
    """Return the first of some rows by number, and by key where that is another, and how many more there are."""
    named = [
        f"row {row}" if keys is None or str(keys[row]) == str(row) else f"row {row} ({str(keys[row])!r})"
        for row in rows[:SHOWN]
    ]
    if len(rows) < 2:
        return named[0]
    return f"{named[0]} (and {len(rows) - 1:,} more: {', '.join(named[1:])}{', ...' if len(rows) > SHOWN else ''})"


def _refuse_missing(values: np.ndarray, keys: Keys, hint: str) -> None:
    empty = [row for row, label in enumerate(values) if label is None] if values.dtype == object else []
    if empty:
        raise DataError(
            f"label at {name_rows(empty, keys)} is missing (None); expected a class; label the row or leave it out."
        )
    if values.dtype.kind not in "buif":
        raise DataError(
            f"labels are of type {values.dtype}; expected class indices or distributions; "
            "map names to indices first (PencilClassifier and the command line do it for you)."
        )
    finite = np.isfinite(values).reshape(len(values), -1)
    _refuse_rows(finite, values, keys, "label", f"expected a class; label the row or leave it out{hint}")


def _class_indices(values: np.ndarray, num_classes: int | None, keys: Keys) -> tuple[Tensor, int]:
    exact = (np.abs(values.astype(np.float64)) <= LARGEST_INDEX) & (values == np.floor(values))
    if not exact.all():
        rows = np.flatnonzero(~exact).tolist()
        raise DataError(
            f"label {values[rows[0]]} at {name_rows(rows, keys)} is not a whole number up to {LARGEST_INDEX:,}; "
            "expected a class index; fix the label."
        )
    indices = torch.from_numpy(values.astype(np.int64))
    count = int(indices.max()) + 1 if num_classes is None else num_classes
    if num_classes is None and count > 1000 + 10 * len(indices):
        row = int(indices.argmax())
        raise DataError(
            f"label {count - 1} at {name_rows([row], keys)} is far above the {len(indices)} rows there are; "
            "expected class indices from 0; pass classes=... if it is one."
        )
    bad = (indices < 0) | (indices >= count)
    if bad.any():
        rows = bad.nonzero()[:, 0].tolist()
        row, label = rows[0], int(indices[rows[0]])
        remedy = f"pass classes={label + 1} or fix the label" if label >= 0 else "fix the label"
        raise DataError(
            f"label {label} at {name_rows(rows, keys)} does not fit {count} classes (0..{count - 1}); {remedy}."
        )
    _refuse_single_class(count)
    return indices, count


def _distributions(values: np.ndarray, num_classes: int | None, keys: Keys, hint: str) -> tuple[Tensor, int]:
    count = values.shape[1]
    _refuse_other_width(count, num_classes)
    _refuse_single_class(count)
    _refuse_rows(
        is_distribution(values)[:, None],
        values,
        keys,
        "label distribution",
        f"expected values from 0 to 1 that sum to 1; fix the row{hint}",
    )
    return torch.from_numpy(values.astype(np.float32)), count


def is_distribution(values: np.ndarray) -> np.ndarray:
    """Return which rows of a matrix have values from 0 that sum to 1."""
    good: np.ndarray = (values >= 0).all(axis=1) & (np.abs(values.astype(np.float64).sum(axis=1) - 1) < 1e-3)
    return good


def _refuse_other_width(count: int, num_classes: int | None) -> None:
    if num_classes is not None and num_classes != count:
        raise DataError(
            f"the labels have {count} columns but there are {num_classes} classes; expected a column for each class; "
            "name as many classes, or fix the matrix."
        )


def _refuse_rows(good: np.ndarray, values: np.ndarray, keys: Keys, what: str, expected: str) -> None:
    """Raise :class:`DataError` about the first row with an entry that is not good."""
    if not good.all():
        rows = np.flatnonzero(~good.all(axis=1)).tolist()
        row = rows[0]
        seen = np.array2string(values[row], precision=3, threshold=6)
        raise DataError(f"{what} at {name_rows(rows, keys)} is {seen}; {expected}.")


def _refuse_single_class(count: int) -> None:
    if count < 2:
        raise DataError(f"the labels have {count} class; expected at least two classes; add examples of another class.")
