"""Keys: a stable, unique name for each row, which matches labels, reviews and splits to rows."""

import os
from typing import Any

import numpy as np
from numpy.dtypes import StringDType

from pencil.data.given.given_labels import as_array_with_nan, is_nan
from pencil.errors import DataError

CHUNK = 65536
"""Number of keys that are Python strings at once."""
REMEDY = "expected a name or number for each row; fill it in, or omit the keys to count the rows"


def as_keys(values: Any) -> np.ndarray:
    """Return names or numbers as one array of strings, without a Python object per row: worker processes share it.

    A missing key (empty, None, NaN) is an error; uniqueness is not checked.
    """
    try:
        array = as_array_with_nan(values)
    except ValueError as error:
        raise DataError(f"the keys are lists of different lengths; {REMEDY}.") from error
    if array.ndim != 1:
        raise DataError(f"the keys have shape {array.shape}; expected one key for each row, shape (n,); reshape them.")
    if array.dtype.kind == "f":
        _refuse_missing(np.isnan(array))
    try:
        keys = _as_strings(array)
    except DataError:  # it is a ValueError too, and has its own message
        raise
    except (UnicodeError, ValueError, TypeError, SystemError) as error:  # text that cannot be encoded
        raise DataError(
            f"a key is not valid text ({str(error).splitlines()[0]}); expected text that UTF-8 can encode; rename it."
        ) from error
    _refuse_missing(keys == "")
    return keys


def _as_strings(array: np.ndarray) -> np.ndarray:
    kind = array.dtype.kind
    if kind == "O":
        return np.array([_as_text(row, key) for row, key in enumerate(array)], dtype=StringDType())
    if kind == "S":
        return np.char.decode(array, "utf-8").astype(StringDType())
    if kind in "biu":
        return array.astype(str).astype(StringDType())
    if kind not in "fUT":
        raise DataError(f"the keys are of type {array.dtype}; {REMEDY}.")
    return array.astype(StringDType())


def _as_text(row: int, key: Any) -> str:
    if isinstance(key, bytes):
        return key.decode("utf-8")
    if isinstance(key, (str, int, float, np.number, os.PathLike)) and key == key:
        return str(key)
    seen = "missing" if key is None or is_nan(key) else f"a {type(key).__name__}"
    raise DataError(f"the key of row {row} is {seen}; {REMEDY}.")


def _refuse_missing(missing: np.ndarray) -> None:
    if missing.any():
        raise DataError(f"the key of row {int(missing.argmax())} is missing; {REMEDY}.")


def refuse_repeated_keys(keys: np.ndarray) -> None:
    """Raise if two rows have the same key, because a decision about one of them would apply to both.

    Rows are first compared by a 64-bit hash, so that not all keys are Python strings at the same time.
    """
    hashes = np.empty(len(keys), dtype=np.int64)
    for start in range(0, len(keys), CHUNK):
        part = keys[start : start + CHUNK].tolist()
        hashes[start : start + CHUNK] = np.fromiter(map(hash, part), dtype=np.int64, count=len(part))
    ordered = np.sort(hashes)
    repeated = ordered[1:][ordered[1:] == ordered[:-1]]
    if not len(repeated):
        return
    first: dict[str, int] = {}
    for row in np.flatnonzero(np.isin(hashes, repeated)).tolist():
        key = str(keys[row])
        if key in first:
            raise DataError(
                f"rows {first[key]} and {row} have the same key {key!r}; expected unique keys, which match labels and "
                "reviews to rows; rename one of them, or omit the keys to count the rows."
            )
        first[key] = row
