"""Tables in memory: pandas and polars data frames, Arrow tables, and other objects that export Arrow data.

pandas is never imported here: if a user passes a pandas object, pandas is already loaded.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from pencil.data.bad_rows import BadRows
from pencil.data.columns import Columns, refuse_repeated_columns, refuse_unknown
from pencil.data.examples import Examples, Splits
from pencil.data.given.given_labels import error_context, shorten
from pencil.data.given.resolving import as_clean_labels, resolve_labels
from pencil.data.inputs.base import Inputs, TensorInputs
from pencil.data.keys import as_keys, refuse_repeated_keys
from pencil.data.settings import DataSettings
from pencil.data.sources.arrays import as_dense, as_input_tensor, is_sparse
from pencil.data.sources.key_column import read_keys
from pencil.data.sources.table import Known, read_splits, table_inputs, unlabelled_inputs
from pencil.data.sources.table_files import key_decided
from pencil.data.uses import describe
from pencil.errors import DataError

WHERE = "the table"
LABEL_KEYS = ("label", "probabilities", "indicators")
"""Keys of columns that a table of inputs does not have."""
INDEX_REMEDY = "call reset_index(drop=True) to count the rows"


def is_frame(data: Any) -> bool:
    """Return whether this is a table with named columns; a single column, such as a Series, is not."""
    if isinstance(data, (pa.Table, pa.RecordBatch)):
        return True
    if isinstance(data, (pa.ChunkedArray, pa.Array)) or hasattr(type(data), "dtype"):
        return False
    return hasattr(data, "__arrow_c_stream__") or hasattr(data, "__dataframe__")


def as_table(frame: Any) -> pa.Table:
    """Return an Arrow table of a data frame, with string and bytes types that every version of Arrow supports.

    Raises
    ------
    DataError
        If a column has values of several types, two columns share a name, or there are no rows.
    """
    if _is_pandas(frame, "DataFrame"):
        refuse_repeated_columns(WHERE, list(map(str, frame.columns)))
    try:
        if _is_pandas(frame, "DataFrame"):
            table = pa.Table.from_pandas(frame, preserve_index=False)
        elif hasattr(frame, "__arrow_c_stream__") or isinstance(frame, (pa.Table, pa.RecordBatch)):
            table = pa.table(frame)
        else:
            from pyarrow import interchange

            table = pa.table(interchange.from_dataframe(frame))
        table = table.cast(pa.schema([field.with_type(_plain(field.type)) for field in table.schema]))
    except (pa.ArrowException, TypeError, ValueError) as error:
        seen = "; ".join(str(part).strip() for part in error.args) or type(error).__name__
        raise DataError(
            f"{WHERE}, a {type(frame).__name__}, is not Arrow data ({seen.splitlines()[0]}); expected values of one "
            "type in each column; convert or drop the column."
        ) from error
    refuse_repeated_columns(WHERE, table.column_names)
    if table.num_rows == 0:
        raise DataError(f"{WHERE} has no rows; expected at least one; check how it was created.")
    return table


def needs_encoding(table: pa.Table) -> bool:
    """Return whether a table contains more than numbers: missing cells, text, categories, dates or vectors."""
    return any(column.null_count or not _is_number(column.type) for column in table.columns)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def _plain(kind: pa.DataType) -> pa.DataType:
    """Return the type without views, which polars uses for strings."""
    if pa.types.is_string_view(kind):
        return pa.large_string()
    if pa.types.is_binary_view(kind):
        return pa.large_binary()
    if pa.types.is_dictionary(kind):
        return pa.dictionary(pa.int32(), _plain(kind.value_type))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.large_list(_plain(kind.value_type))
    return kind


def _is_pandas(data: Any, kind: str) -> bool:
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(data, getattr(pandas, kind))


def is_pandas(data: Any) -> bool:
    """Return whether this is a pandas DataFrame or Series, which have an index."""
    return _is_pandas(data, "DataFrame") or _is_pandas(data, "Series")


def index_keys(data: Any) -> np.ndarray | None:
    """Return the index of a pandas object as keys; None if it only counts the rows, and for other objects.

    The levels of a MultiIndex are joined by ``/``.
    """
    if not is_pandas(data):
        return None
    index = data.index
    if _is_pandas(index, "RangeIndex") and index.start == 0 and index.step == 1:
        return None
    with error_context(f"the index of the {type(data).__name__}"):
        if _is_pandas(index, "MultiIndex"):
            return as_keys(np.array(["/".join(map(str, entry)) for entry in index], dtype=object))
        named = index.dtype.kind in "OSTUiufb"
        return as_keys(index.to_numpy() if named else np.where(index.isna(), None, index.astype(str).to_numpy()))


def pair_keys(x: Any, y: Any) -> np.ndarray | None:
    """Return the keys of inputs and labels: the index of either; raise if both have an index and they differ."""
    refuse_misaligned(x, y)
    of_x = index_keys(x)
    keys = index_keys(y) if of_x is None else of_x
    if keys is not None:
        _refuse_repeated(keys)
    return keys


def refuse_misaligned(x: Any, y: Any, names: tuple[str, str] = ("x", "y")) -> None:
    """Raise if two pandas objects have different indices; ``names`` are their names in the message."""
    of_x, of_y = index_keys(x), index_keys(y)
    if of_x is None or of_y is None or len(of_x) != len(of_y) or (of_x == of_y).all():
        return
    row, (one, other) = int((of_x != of_y).argmax()), names
    raise DataError(
        f"row {row} has the index {str(of_x[row])!r} in {one} and {str(of_y[row])!r} in {other}; expected the same "
        f"index, so that labels match rows; pass {other}.loc[{one}.index], or {other}.to_numpy() if the order "
        "is right."
    )


def _refuse_repeated(keys: np.ndarray) -> None:
    try:
        refuse_repeated_keys(keys)
    except DataError as error:
        seen = str(error).split(";")[0]
        raise DataError(
            f"{seen} in the index; expected unique keys, which match labels and reviews to rows; {INDEX_REMEDY}."
        ) from error


def from_frame(frame: Any, settings: DataSettings, classes: Sequence[str] | None = None) -> Splits:
    """Return the splits of a table in memory, as for a table file.

    Parameters
    ----------
    frame
        A pandas or polars data frame, an Arrow table, or any object with ``__arrow_c_stream__``. A pandas index that
        does more than count the rows provides the keys, unless ``settings`` names a key column.
    settings
        The role of each column; relative image paths start at ``root``, by default the working directory.
    classes
        Class names in order; by default all values that occur.

    Raises
    ------
    DataError
        If a column is missing, or a row is not as expected.
    """
    table, keys = as_table(frame), index_keys(frame)
    if keys is not None and settings.columns.key is None:
        _refuse_repeated(keys)
    root = Path() if settings.root is None else settings.root.expanduser()
    known = Known(keys=keys)
    return read_splits(WHERE, table, settings.columns, classes, root, settings.multilabel, settings.bad_rows, known)


def from_frame_and_labels(
    frame: Any,
    y: Any,
    settings: DataSettings,
    classes: Sequence[str] | int | None = None,
    clean_labels: Any = None,
) -> Examples:
    """Return the examples of a table of inputs, all of whose columns may be learned from, with separate labels.

    Parameters
    ----------
    frame
        As in :func:`from_frame`.
    y
        Labels as in :func:`pencil.data.from_arrays`; a frame of several columns names the classes.
    settings
        The role of each column.
    classes
        Class names in order, or their number.
    clean_labels
        Labels known to be right.
    """
    table, columns = as_table(frame), settings.columns.model_copy(update=dict.fromkeys(LABEL_KEYS))
    keys = pair_keys(frame, y) if columns.key is None else None
    if keys is None:
        columns = key_decided(table, columns, labelled=False)
    refuse_unknown(WHERE, table, columns)
    keys = read_keys(WHERE, table, columns) if keys is None else keys
    values, names = as_label_values(y)
    if len(values) != table.num_rows:
        raise DataError(
            f"x has {table.num_rows} rows but y has {len(values)}; expected one label per row; pass equal lengths."
        )
    labels = resolve_labels(values, names if classes is None else classes, keys, settings.multilabel)
    root = Path() if settings.root is None else settings.root.expanduser()
    bad = BadRows(WHERE)
    inputs, found = table_inputs(WHERE, table, columns, root, bad)
    clean = as_clean_labels(clean_labels, labels.classes, labels.multilabel)
    uses = describe(table, columns, inputs, labelled=False, has_keys=keys is not None)
    rows, keys = torch.arange(table.num_rows), found if keys is None else keys
    examples = Examples(inputs, rows, labels.given, labels.classes, keys, clean, labels.multilabel, table=uses)
    kept = bad.settle(settings.bad_rows, keys)
    return examples if kept is None else examples.subset(torch.from_numpy(kept))


def as_label_values(y: Any) -> tuple[Any, tuple[str, ...] | None]:
    """Return labels as values that NumPy can represent, None if missing; and classes, if columns name them."""
    if is_frame(y):
        table = as_table(y)
        if table.num_columns == 1:
            return as_label_values(table.column(0))
        return as_matrix(table, "y", "one column of labels, or a number for each class in a column of its own")
    if _is_pandas(y, "Series") and y.hasnans:
        return y.astype(object).where(y.notna(), None).to_numpy(), None
    if is_sparse(y):
        return as_dense(y, "y"), None
    if isinstance(y, (pa.ChunkedArray, pa.Array)):
        return np.array(y.to_pylist(), dtype=object if y.null_count else None), None
    return y, None


def as_matrix(table: pa.Table, name: str, expected: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return columns of numbers as a matrix, NaN for missing cells, and their names.

    ``name`` and ``expected`` are for the message if a column contains something else.
    """
    try:
        matrix = np.column_stack([column.cast(pa.float64()).to_numpy() for column in table.columns])
    except pa.ArrowException as error:
        raise DataError(
            f"{name} has the columns {shorten(table.column_names, 8)} and not all are numbers; expected {expected}; "
            "pass these columns."
        ) from error
    return matrix, tuple(table.column_names)


def frame_inputs(frame: Any, columns: Columns, root: Path | None = None) -> Inputs:
    """Return new inputs: the images of a table, or its columns listed for encoding; keys are not needed."""
    needed = columns.model_copy(update={"key": None})
    return unlabelled_inputs(WHERE, as_table(frame), needed, Path() if root is None else root.expanduser())[0]


def as_new_inputs(x: Any, settings: DataSettings) -> Inputs:
    """Return new inputs for a network: a table, if it was trained on one, otherwise an array."""
    columns = settings.columns
    if is_frame(x) and (columns.encoded or columns.path or columns.image):
        return frame_inputs(x, columns, settings.root)
    return TensorInputs(as_input_tensor(x))
