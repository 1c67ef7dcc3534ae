"""Arrow arrays as NumPy sees them and back, without the calls with which Arrow imports pandas.

These are ``to_numpy``, ``pa.array`` and ``pa.scalar``; `pencil labels` and the review page would wait for the import.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def strings(values: Sequence[str]) -> pa.StringArray:
    """Return an Arrow array of strings."""
    encoded = [value.encode() for value in values]
    offsets = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    return pa.StringArray.from_buffers(len(values), pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded)))


def scalar(value: str) -> pa.StringScalar:
    """Return an Arrow string."""
    return strings([value])[0]


def positions(rows: Any) -> pa.Int64Array:
    """Return row numbers as Arrow takes them."""
    whole = np.ascontiguousarray(rows, dtype=np.int64)
    return pa.Array.from_buffers(pa.int64(), len(whole), [None, pa.py_buffer(whole)])


def one_chunk(column: Any) -> Any:
    """Return a column as one array, in which a row is found at once."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    if pa.types.is_dictionary(column.type):
        column = column.unify_dictionaries()
    if column.num_chunks == 1:
        return column.chunk(0)
    return column.combine_chunks() if column.num_chunks else pa.array([], column.type)


def numbers(column: Any) -> np.ndarray:
    """Return a column without nulls as numpy sees it."""
    array = one_chunk(column)
    return np.from_dlpack(array.cast(pa.uint8()) if pa.types.is_boolean(array.type) else array)


def indices(array: Any) -> np.ndarray:
    """Return the indices of a dictionary, -1 where a row has none."""
    if not array.null_count:
        return numbers(array)
    values = pa.Array.from_buffers(array.type, len(array), [None, array.buffers()[1]], offset=array.offset)
    return np.where(numbers(array.is_valid()) > 0, numbers(values), -1)


def matrix(column: pa.ChunkedArray, width: int) -> np.ndarray:
    """Return a column of lists of one length as a matrix."""
    return numbers(pc.list_flatten(column)).reshape(len(column), width)


def list_names(chosen: np.ndarray, names: Sequence[str]) -> pa.ListArray:
    """Return a list of names per row, given a mask (rows, names)."""
    offsets = np.concatenate([[0], chosen.sum(axis=1).cumsum()]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), strings(names).take(positions(chosen.nonzero()[1])))
