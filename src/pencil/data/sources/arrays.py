"""Data in memory: NumPy or torch arrays, and npz files of them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pencil.data.examples import Examples, Splits
from pencil.data.given.given_labels import as_class_names, error_context
from pencil.data.given.resolving import as_clean_labels, resolve_labels
from pencil.data.inputs.base import Inputs, TensorInputs, refuse_non_finite
from pencil.data.inputs.transform import rows_within
from pencil.data.keys import as_keys, refuse_repeated_keys
from pencil.data.sources.npz import as_size, list_names, memory_limit, open_arrays
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
        One row per example. uint8 arrays of 3 or 4 dimensions are images and become channels-first. SciPy sparse
        matrices become dense.
    y
        Class indices, class names, or label distributions (n, classes); with ``multilabel`` a probability for each
        (row, class), NaN where it is unknown.
    classes
        Class names in order, or their number; by default names are sorted and the number is derived.
    keys
        A stable name for each row; by default its index.
    clean_labels
        Labels known to be right, only for metrics.
    multilabel
        Whether each column of ``y`` is a class that is present or absent independently. None treats a matrix of 0 and 1
        with two ones in a row as multi-label.

    Raises
    ------
    DataError
        If lengths differ, or an input or a label is not as expected; the message names the row.
    """
    values = as_input_tensor(x)
    y = as_dense(y, "y") if is_sparse(y) else y
    count = _length(y)
    if len(values) != count:
        raise DataError(
            f"x has {len(values)} rows but y has {count}; expected one label per input; pass arrays of equal length."
        )
    key_array = as_keys(np.arange(count) if keys is None else keys)
    if len(key_array) != count:
        raise DataError(
            f"there are {count} inputs but {len(key_array)} keys; expected one per input; pass arrays of equal length."
        )
    if keys is not None:
        refuse_repeated_keys(key_array)
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
        As in :func:`from_arrays`; ``classes`` takes precedence over the file's classes.
    """
    with open_arrays(path) as arrays:
        missing = [name for name in ("x", "y") if name not in arrays]
        if missing:
            raise DataError(
                f"{path} contains the arrays {list_names(arrays.names)}; expected {' and '.join(missing)} too; "
                "save it with numpy.savez(path, x=inputs, y=labels)."
            )
        if classes is None and "classes" in arrays:
            classes = _class_names(arrays.read("classes"))
        optional = {name: arrays.optional(name) for name in ("keys", "clean_labels")}
        train = from_arrays(arrays.read("x"), arrays.read("y"), classes=classes, multilabel=multilabel, **optional)
        if "x_test" not in arrays or "y_test" not in arrays:
            return Splits(train)
        with error_context("the test set"):
            test = from_arrays(
                arrays.read("x_test"), arrays.read("y_test"), classes=train.classes, multilabel=train.multilabel
            )
        return Splits(train, test=test)


def _class_names(values: np.ndarray) -> tuple[str, ...]:
    if values.ndim != 1 or values.dtype.kind not in "SUTiu":
        raise DataError(
            f"the array classes is {values.dtype} of shape {values.shape}; expected a list of names, shape (classes,); "
            "save it as numpy.array(names)."
        )
    with error_context("the array classes"):
        return as_class_names(as_keys(values).tolist())


def read_arrays(path: Path) -> tuple[np.ndarray, list[str]]:
    """Return unlabelled inputs and their keys: ``x`` (and ``keys``) of an npz file, or an npy file."""
    with open_arrays(path) as arrays:
        if "x" not in arrays:
            raise DataError(
                f"{path} contains the arrays {list_names(arrays.names)}; expected x, the inputs; "
                "save it with numpy.savez(path, x=inputs)."
            )
        values, given = arrays.read("x"), arrays.optional("keys")
        _refuse_empty(values)
        keys = as_keys(np.arange(len(values)) if given is None else given)
        if len(keys) != len(values):
            raise DataError(
                f"{path} contains {len(values)} inputs but {len(keys)} keys; expected one key per input; "
                "save both with the same length."
            )
        refuse_repeated_keys(keys)
        return values, keys.tolist()


def as_inputs(x: Any) -> Inputs:
    """Return inputs unchanged, and arrays as inputs in memory."""
    return x if isinstance(x, Inputs) else TensorInputs(as_input_tensor(x))


def as_input_tensor(x: Any) -> Tensor:
    """Return a tensor of inputs: floats as fp32 (fp64 tensors stay), uint8 images channels-first."""
    values = _plain_tensor(x.detach()) if isinstance(x, Tensor) else _numeric(as_array_of_inputs(x))
    _refuse_empty(values)
    if values.ndim == 1:
        raise DataError(f"x has shape {tuple(values.shape)}; expected one row per example; reshape it to (n, 1).")
    if values.ndim == 4 or (values.dtype == torch.uint8 and values.ndim == 3):
        values = channels_first(values)
    if values.dtype == torch.uint8 and values.ndim >= 3:
        return values
    return refuse_non_finite(values if values.is_floating_point() else values.float())


def as_array_of_inputs(x: Any) -> np.ndarray:
    """Return inputs as an array; raise if they are not an array, or have masked entries."""
    if is_sparse(x):
        return as_dense(x)
    if isinstance(x, np.ma.MaskedArray) and np.ma.is_masked(x):
        raise DataError("x is a masked array; expected a number in every cell; fill the masked cells with x.filled().")
    try:
        return np.asarray(x)
    except (ValueError, TypeError) as error:
        raise DataError(
            f"x is not an array ({str(error).splitlines()[0]}); expected rows of equal length; pad or cut the rows."
        ) from error


def is_sparse(values: Any) -> bool:
    """Return whether this is a SciPy sparse matrix or array."""
    return hasattr(values, "toarray") and hasattr(values, "nnz")


def as_dense(matrix: Any, name: str = "x") -> np.ndarray:
    """Return a sparse matrix as a dense fp32 array; raise if it would take more than half of the memory.

    Parameters
    ----------
    matrix
        A matrix of numbers, in any SciPy format.
    name
        Its name in messages.
    """
    native(np.empty(0, matrix.dtype))
    size, limit = 4 * int(np.prod(matrix.shape, dtype=object)), memory_limit() // 2
    if size > limit:
        raise DataError(
            f"{name} is a sparse matrix of shape {matrix.shape}, which takes {as_size(size)} when dense; expected "
            f"at most {as_size(limit)}, half of the memory; reduce its columns, for example with "
            "sklearn.decomposition.TruncatedSVD(256), or its rows."
        )
    with np.errstate(over="ignore"):  # infinity is refused later, with its row number
        dense: np.ndarray = matrix.astype(np.float32).toarray()
    return dense


def _refuse_empty(values: np.ndarray | Tensor) -> None:
    if values.ndim == 0 or len(values) == 0:
        raise DataError("the dataset is empty; expected at least one example; check how x was created.")
    if 0 in values.shape:
        raise DataError(
            f"x has shape {tuple(values.shape)}, so its rows are empty; expected at least one number in each row; "
            "check how x was created."
        )


def _plain_tensor(values: Tensor) -> Tensor:
    """Return a dense tensor of real numbers on the CPU; floats below fp32 become fp32."""
    if values.layout != torch.strided or values.is_quantized:
        raise DataError(f"x is a tensor of layout {values.layout}; expected a dense tensor; pass x.to_dense().")
    if values.is_complex():
        raise DataError(f"x is of type {values.dtype}; expected real numbers; {REMEDIES['c']}.")
    if values.is_floating_point() and values.dtype not in (torch.float32, torch.float64):
        values = values.float()
    return values.cpu()


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
        raise DataError(f"y is {y!r}; expected one label per row of x.") from None


REMEDIES = {
    "c": "pass the real and the imaginary part as separate columns",
    "M": "convert dates to numbers, such as days since the first date",
    "m": "convert durations to numbers, such as seconds",
    "O": "convert the non-numeric columns, then use x.astype(float)",
}


def native(values: np.ndarray) -> np.ndarray:
    """Return the same numbers in this machine's byte order, the only one that torch supports.

    Raises
    ------
    DataError
        If they are not real numbers.
    """
    kind = values.dtype.kind
    if kind not in "buif":
        remedy = REMEDIES.get(kind, "convert it to a numeric array")
        raise DataError(f"x is of type {values.dtype}; expected numbers; {remedy}.")
    if not values.dtype.isnative:
        values = values.astype(values.dtype.newbyteorder("="))
    return values


def _numeric(values: np.ndarray) -> Tensor:
    _refuse_empty(values)
    values = native(values)
    if values.dtype == np.uint16 and values.ndim >= 3:
        values = (values >> 8).astype(np.uint8)  # the upper byte of 16-bit images, as for image files
    elif values.dtype.kind == "u" and values.dtype != np.uint8:
        values = values.astype(np.float32)
    if values.dtype.kind == "f" and values.dtype != np.float32:
        values = _single(values)
    contiguous = np.ascontiguousarray(values)
    return torch.from_numpy(contiguous if contiguous.flags.writeable else contiguous.copy())


def _single(values: np.ndarray) -> np.ndarray:
    """Return floats as fp32; raise if a number does not fit."""
    with np.errstate(over="ignore"):
        narrow = values.astype(np.float32)
    size = rows_within(values.shape[1:], values.itemsize)
    for start in range(0, len(values), size):  # in blocks, because a mask of all numbers would be large
        infinite = np.isinf(narrow[start : start + size])
        if not infinite.any():
            continue
        rows = (infinite & np.isfinite(values[start : start + size])).reshape(len(infinite), -1)
        if rows.any():
            row = start + int(rows.any(axis=1).argmax())
            seen = values[row].reshape(-1)[rows[row - start]][0]
            raise DataError(
                f"input at row {row} is {seen!s}; expected numbers up to {np.finfo(np.float32).max:.1e}, the range of "
                "32-bit floats; scale the inputs, or fix or remove the row."
            )
    return narrow
