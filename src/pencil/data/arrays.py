"""Data that is already in memory: NumPy or torch arrays, and npz files of them."""

import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pencil.data.examples import Examples, Splits, as_keys
from pencil.data.given import (
    SEVERAL,
    GivenLabels,
    about,
    as_array,
    as_clean_indicators,
    as_given_labels,
    as_indicators,
    hard_labels,
    looks_multilabel,
)
from pencil.data.inputs import TensorInputs, refuse_non_finite
from pencil.errors import DataError


def from_arrays(
    x: Any,
    y: Any,
    *,
    classes: Sequence[str] | int | None = None,
    keys: Sequence[str] | np.ndarray | None = None,
    clean_labels: Any = None,
    multilabel: bool | None = None,
) -> Examples:
    """Examples from arrays. uint8 arrays of 3 or 4 dimensions are images and become channels-first.

    ``y`` holds class indices, distributions, or names, which are sorted into classes unless ``classes`` gives an order.
    With ``multilabel`` it holds a probability for each (row, class), NaN where nothing is known; left out, a matrix of
    0 and 1 with two ones in one row is taken for such a one.
    """
    values = as_input_tensor(x)
    count = _length(y)
    if len(values) != count:
        raise DataError(f"x has {len(values)} rows but y has {count}; expected as many labels as inputs.")
    key_array = as_keys(np.arange(count) if keys is None else keys)
    labels = resolve_labels(y, classes, key_array, multilabel)
    clean = as_clean_labels(clean_labels, labels)
    inputs, rows = TensorInputs(values), torch.arange(count)
    return Examples(inputs, rows, labels.given, labels.classes, key_array, clean, labels.multilabel)


def from_npz(path: Path, classes: Sequence[str] | None = None, multilabel: bool | None = None) -> Splits:
    """``x`` and ``y``, with optional ``keys``, ``classes``, ``clean_labels`` and a ``x_test``, ``y_test`` pair."""
    arrays = _read_npz(path)
    missing = [name for name in ("x", "y") if name not in arrays]
    if missing:
        raise DataError(
            f"{path} holds the arrays {', '.join(arrays) or 'none'}; expected {' and '.join(missing)} too; "
            "save it with numpy.savez(path, x=inputs, y=labels)."
        )
    if classes is None and "classes" in arrays:
        classes = arrays["classes"].astype(str).tolist()
    optional = {"keys": arrays.get("keys"), "clean_labels": arrays.get("clean_labels")}
    train = from_arrays(arrays["x"], arrays["y"], classes=classes, multilabel=multilabel, **optional)
    if "x_test" not in arrays or "y_test" not in arrays:
        return Splits(train)
    with about("the test set"):
        test = from_arrays(arrays["x_test"], arrays["y_test"], classes=train.classes, multilabel=train.multilabel)
    return Splits(train, test=test)


def read_arrays(path: Path) -> tuple[np.ndarray, list[str]]:
    """Unlabelled inputs and their keys: ``x`` (and ``keys``) of an npz file, or an npy file."""
    arrays = _read_npz(path)
    if "x" not in arrays:
        raise DataError(f"{path} holds the arrays {', '.join(arrays) or 'none'}; expected x, the inputs.")
    keys = arrays.get("keys", np.arange(len(arrays["x"])))
    if len(keys) != len(arrays["x"]):
        raise DataError(f"{path} holds {len(arrays['x'])} inputs but {len(keys)} keys; expected as many of each.")
    return arrays["x"], [str(key) for key in keys]


def _read_npz(path: Path) -> dict[str, np.ndarray]:
    """Arrays by name; pickled objects, which could run code, are never loaded."""
    try:
        with path.open("rb") as stream:
            loaded = np.load(stream, allow_pickle=False)
            return {"x": loaded} if isinstance(loaded, np.ndarray) else {name: loaded[name] for name in loaded.files}
    except (OSError, ValueError, EOFError, MemoryError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(
            f"cannot read {path}: {error or type(error).__name__}; expected what numpy.savez or numpy.save writes."
        ) from error


def as_input_tensor(x: Any) -> Tensor:
    """A tensor of inputs: floats as fp32 (fp64 tensors stay), uint8 images channels-first."""
    values = x.detach().cpu() if isinstance(x, Tensor) else _numeric(np.asarray(x))
    if values.ndim == 0 or len(values) == 0:
        raise DataError("the dataset is empty; expected at least one example.")
    if values.ndim == 1:
        raise DataError(f"x has shape {tuple(values.shape)}; expected one row per example; reshape it to (n, 1).")
    if values.ndim == 4 or (values.dtype == torch.uint8 and values.ndim == 3):
        values = channels_first(values)
    if values.dtype == torch.uint8 and values.ndim >= 3:
        return values
    return refuse_non_finite(values if values.is_floating_point() else values.float())


def channels_first(images: Tensor) -> Tensor:
    """(n, h, w) and (n, h, w, channels) images as (n, channels, h, w)."""
    if images.ndim == 3:
        return images.unsqueeze(1)
    if images.shape[-1] in (1, 3, 4) and images.shape[1] not in (1, 3, 4):
        return images.permute(0, 3, 1, 2).contiguous()
    return images


def name_to_index(y: Any, classes: tuple[str, ...] | None) -> Any:
    """Names become ``(indices, classes)``; anything numeric is returned as it is."""
    values = y if isinstance(y, Tensor) else as_array(y)
    if isinstance(values, Tensor) or values.dtype.kind in "buif":
        return y
    values = values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values
    if values.ndim != 1:
        raise DataError(
            f"the labels are {values.dtype} of shape {values.shape}; expected one name for each row, or a matrix of "
            f"numbers with a column for each class{SEVERAL}, unknown (None) included."
        )
    if any(label is None or label != label for label in values):
        row = next(i for i, label in enumerate(values) if label is None or label != label)
        raise DataError(f"label at row {row} is missing ({values[row]}); label the row or leave it out.")
    names = tuple(sorted({str(label) for label in values})) if classes is None else classes
    index = {name: i for i, name in enumerate(names)}
    for row, label in enumerate(values):
        if str(label) not in index:
            raise DataError(f"label {str(label)!r} at row {row} is not one of the {len(names)} classes.")
    return np.array([index[str(label)] for label in values], dtype=np.int64), names


def resolve_labels(
    y: Any, classes: Sequence[str] | int | None, keys: np.ndarray | None = None, multilabel: bool | None = None
) -> GivenLabels:
    """Checked labels and the names of their classes; ``classes`` gives names in order, a number of them, or neither."""
    names = None if classes is None or isinstance(classes, int) else tuple(map(str, classes))
    count = len(names) if names is not None else classes if isinstance(classes, int) else None
    values = as_array(y)
    if multilabel or (multilabel is None and looks_multilabel(values)):
        given = as_indicators(values, count, keys=keys)
        return GivenLabels(given, names or tuple(map(str, range(given.shape[1]))), multilabel=True)
    labels = name_to_index(values, names)
    if isinstance(labels, tuple):
        labels, names = labels
        count = len(names) if count is None else count
    given, count = as_given_labels(labels, count, keys=keys, hint=SEVERAL if multilabel is None else "")
    return GivenLabels(given, names or tuple(map(str, range(count))))


def as_clean_labels(labels: Any, given: GivenLabels | Examples) -> Tensor | None:
    """Labels that are known to be right, of the same classes and the same kind as the given ones."""
    if labels is None:
        return None
    with about("clean_labels"):
        if given.multilabel:
            return as_clean_indicators(labels, len(given.classes))
        named = name_to_index(labels, given.classes)
        indices = named[0] if isinstance(named, tuple) else named
        return hard_labels(as_given_labels(indices, len(given.classes))[0])


def _length(y: Any) -> int:
    try:
        return len(y)
    except TypeError:
        remedy = "; call its toarray()" if hasattr(y, "toarray") else ""  # a sparse matrix has no length
        raise DataError(f"y is {y!r}; expected one label per row of x{remedy}.") from None


def _numeric(values: np.ndarray) -> Tensor:
    if values.dtype.kind not in "buif":
        raise DataError(f"x is of type {values.dtype}; expected numbers.")
    if values.dtype == np.uint16 and values.ndim >= 3:
        values = (values >> 8).astype(np.uint8)  # 16-bit images by their upper byte, as image files are read
    elif values.dtype.kind == "u" and values.dtype != np.uint8:
        values = values.astype(np.float32)
    if values.dtype == np.float64 or values.dtype == np.float16:
        values = values.astype(np.float32)
    contiguous = np.ascontiguousarray(values)
    return torch.from_numpy(contiguous if contiguous.flags.writeable else contiguous.copy())
