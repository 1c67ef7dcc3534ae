"""Data in memory: NumPy or torch arrays, and npz files of them."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pencil.data.examples import Examples
from pencil.data.given.from_columns import LabelCells
from pencil.data.given.given_labels import as_class_names, error_context, shorten
from pencil.data.inputs.base import Inputs, TensorInputs, refuse_non_finite
from pencil.data.inputs.transform import rows_within
from pencil.data.keys import as_keys, refuse_repeated_keys
from pencil.data.rows import Rows, to_splits
from pencil.data.settings import DataSettings
from pencil.data.sources.npz import open_arrays
from pencil.errors import DataError
from pencil.memory import as_size, memory_limit


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
    y = as_dense(y, "y") if is_sparse(y) else y
    labels = LabelCells(y, classes=classes, multilabel=multilabel, clean=clean_labels)
    return to_splits(array_rows(x, labels, keys)).train


def array_rows(x: Any, labels: LabelCells | None, keys: Sequence[str] | np.ndarray | None = None) -> Rows:
    """Return rows of arrays, as in :func:`from_arrays`; without labels, for a trained network."""
    inputs = as_inputs(x)
    return Rows(inputs, labels, as_keys(np.arange(len(inputs)) if keys is None else keys))


def read(path: Path, settings: DataSettings, *, new: bool = False) -> Rows:
    """Return the rows of an npz file.

    Parameters
    ----------
    path
        A file with the arrays ``x`` and ``y``, and optionally ``keys``, ``classes``, ``clean_labels`` and the test set
        ``x_test``, ``y_test``.
    settings
        ``classes``, which take precedence over the file's classes, and ``multilabel``.
    new
        Whether these are new inputs for a trained network: only ``x`` and ``keys`` are read, or an npy file.
    """
    with open_arrays(path) as arrays:
        wanted = ("x",) if new else ("x", "y")
        missing = [name for name in wanted if name not in arrays]
        if missing:
            raise DataError(
                f"{path} contains the arrays {shorten(arrays.names, 12) or 'none'}; expected {' and '.join(missing)} "
                f"too; save it with numpy.savez(path, {'x=inputs' if new else 'x=inputs, y=labels'})."
            )
        x, keys = arrays.read("x"), arrays.optional("keys")
        if new:
            rows = array_rows(x, None, keys)
            refuse_repeated_keys(rows.keys)
            return rows
        classes = settings.classes
        if classes is None and "classes" in arrays:
            classes = _class_names(arrays.read("classes"))
        labels = LabelCells(arrays.read("y"), "values", classes, settings.multilabel, arrays.optional("clean_labels"))
        rows = array_rows(x, labels, keys)
        if "x_test" not in arrays or "y_test" not in arrays:
            return rows
        with error_context("the test set"):
            return replace(rows, others={"test": array_rows(arrays.read("x_test"), LabelCells(arrays.read("y_test")))})


def _class_names(values: np.ndarray) -> tuple[str, ...]:
    if values.ndim != 1 or values.dtype.kind not in "SUTiu":
        raise DataError(
            f"the array classes is {values.dtype} of shape {values.shape}; expected a list of names, shape (classes,); "
            "save it as numpy.array(names)."
        )
    with error_context("the array classes"):
        return as_class_names(as_keys(values).tolist())


def as_inputs(x: Any) -> Inputs:
    """Return inputs unchanged, and arrays as inputs in memory."""
    return x if isinstance(x, Inputs) else TensorInputs(as_input_tensor(x))


def as_input_tensor(x: Any) -> Tensor:
    """Return a tensor of inputs: floats as fp32 (fp64 tensors stay), uint8 images channels-first."""
    values = _plain_tensor(x.detach()) if isinstance(x, Tensor) else _numeric(as_array_of_inputs(x))
    _refuse_empty(values)
    if values.ndim == 1:
        raise DataError(
            f"x has shape {tuple(values.shape)}; expected one row per example; pass x[None] if x is one example, or "
            "x[:, None] if each number is one."
        )
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
    """Return a sparse matrix as a dense fp32 array; raise if it would take more than half of the memory."""
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


REMEDIES = {
    "c": "pass the real and the imaginary part as separate columns",
    "M": "convert dates to numbers, such as days since the first date",
    "m": "convert durations to numbers, such as seconds",
    "O": "convert the non-numeric columns, then use x.astype(float)",
}


def native(values: np.ndarray) -> np.ndarray:
    """Return real numbers in this machine's byte order, the only one that torch supports."""
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
