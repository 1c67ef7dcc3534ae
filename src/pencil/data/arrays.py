"""Data in memory: NumPy or torch arrays, and npz files of them."""

import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pencil.data.examples import Examples, Splits, as_keys
from pencil.data.given import as_clean_labels, error_context, resolve_labels
from pencil.data.inputs import Inputs, TensorInputs, refuse_non_finite
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
    """Return examples from arrays.

    Parameters
    ----------
    x
        One row per example. uint8 arrays of 3 or 4 dimensions are images and become channels-first.
    y
        Class indices, class names, or label distributions (n, classes); with ``multilabel`` a probability for each
        (row, class), NaN where it is unknown.
    classes
        Class names in order, or their number; by default names are sorted and the number is derived.
    keys
        A stable name for each row; by default its index.
    clean_labels
        Labels known to be right, for metrics only.
    multilabel
        Whether each column of ``y`` is a class that is present or not by itself. None takes a matrix of 0 and 1 with
        two ones in one row as multi-label.

    Raises
    ------
    DataError
        If lengths differ, or an input or a label is not as expected; the message names the row.
    """
    values = as_input_tensor(x)
    count = _length(y)
    if len(values) != count:
        raise DataError(
            f"x has {len(values)} rows but y has {count}; expected one label per input; pass arrays of equal length."
        )
    key_array = as_keys(np.arange(count) if keys is None else keys)
    labels = resolve_labels(y, classes, key_array, multilabel)
    clean = as_clean_labels(clean_labels, labels.classes, labels.multilabel)
    inputs, rows = TensorInputs(values), torch.arange(count)
    return Examples(inputs, rows, labels.given, labels.classes, key_array, clean, labels.multilabel)


def from_npz(path: Path, classes: Sequence[str] | None = None, multilabel: bool | None = None) -> Splits:
    """Return the splits of an npz file.

    Parameters
    ----------
    path
        A file with the arrays ``x`` and ``y``, and optionally ``keys``, ``classes``, ``clean_labels`` and the test set
        ``x_test``, ``y_test``.
    classes, multilabel
        As in :func:`from_arrays`; ``classes`` takes precedence over those of the file.
    """
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
    with error_context("the test set"):
        test = from_arrays(arrays["x_test"], arrays["y_test"], classes=train.classes, multilabel=train.multilabel)
    return Splits(train, test=test)


def read_arrays(path: Path) -> tuple[np.ndarray, list[str]]:
    """Return unlabelled inputs and their keys: ``x`` (and ``keys``) of an npz file, or an npy file."""
    arrays = _read_npz(path)
    if "x" not in arrays:
        raise DataError(
            f"{path} holds the arrays {', '.join(arrays) or 'none'}; expected x, the inputs; "
            "save it with numpy.savez(path, x=inputs)."
        )
    keys = arrays.get("keys", np.arange(len(arrays["x"])))
    if len(keys) != len(arrays["x"]):
        raise DataError(
            f"{path} holds {len(arrays['x'])} inputs but {len(keys)} keys; expected one key per input; "
            "save both with the same length."
        )
    return arrays["x"], [str(key) for key in keys]


def _read_npz(path: Path) -> dict[str, np.ndarray]:
    """Return arrays by name; pickled objects, which could run code, are never loaded."""
    try:
        with path.open("rb") as stream:
            loaded = np.load(stream, allow_pickle=False)
            return {"x": loaded} if isinstance(loaded, np.ndarray) else {name: loaded[name] for name in loaded.files}
    except (OSError, ValueError, EOFError, MemoryError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(
            f"cannot read {path}: {error or type(error).__name__}; expected a file of numpy.savez or numpy.save; "
            "save the arrays again."
        ) from error


def as_inputs(x: Any) -> Inputs:
    """Return inputs as they are, and arrays as inputs in memory."""
    return x if isinstance(x, Inputs) else TensorInputs(as_input_tensor(x))


def as_input_tensor(x: Any) -> Tensor:
    """Return a tensor of inputs: floats as fp32 (fp64 tensors stay), uint8 images channels-first."""
    values = x.detach().cpu() if isinstance(x, Tensor) else _numeric(np.asarray(x))
    if values.ndim == 0 or len(values) == 0:
        raise DataError("the dataset is empty; expected at least one example; check how x was made.")
    if values.ndim == 1:
        raise DataError(f"x has shape {tuple(values.shape)}; expected one row per example; reshape it to (n, 1).")
    if values.ndim == 4 or (values.dtype == torch.uint8 and values.ndim == 3):
        values = channels_first(values)
    if values.dtype == torch.uint8 and values.ndim >= 3:
        return values
    return refuse_non_finite(values if values.is_floating_point() else values.float())


def channels_first(images: Tensor) -> Tensor:
    """Return (n, h, w) and (n, h, w, channels) images as (n, channels, h, w)."""
    if images.ndim == 3:
        return images.unsqueeze(1)
    if images.shape[-1] in (1, 3, 4) and images.shape[1] not in (1, 3, 4):
        return images.permute(0, 3, 1, 2).contiguous()
    return images


def _length(y: Any) -> int:
    try:
        return len(y)
    except TypeError:
        remedy = "; call its toarray()" if hasattr(y, "toarray") else ""  # a sparse matrix has no length
        raise DataError(f"y is {y!r}; expected one label per row of x{remedy}.") from None


def _numeric(values: np.ndarray) -> Tensor:
    if values.dtype.kind not in "buif":
        raise DataError(f"x is of type {values.dtype}; expected numbers; convert it to a numeric array.")
    if values.dtype == np.uint16 and values.ndim >= 3:
        values = (values >> 8).astype(np.uint8)  # 16-bit images by their upper byte, as image files are read
    elif values.dtype.kind == "u" and values.dtype != np.uint8:
        values = values.astype(np.float32)
    if values.dtype == np.float64 or values.dtype == np.float16:
        values = values.astype(np.float32)
    contiguous = np.ascontiguousarray(values)
    return torch.from_numpy(contiguous if contiguous.flags.writeable else contiguous.copy())
