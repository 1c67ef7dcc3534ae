"""Tables in memory: pandas and polars data frames, Arrow tables, and other objects that export Arrow data.

pandas is never imported here: if a user passes a pandas object, pandas is already loaded.
"""

import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from pencil.data.bad_rows import BadRows
from pencil.data.columns import refuse_repeated_columns
from pencil.data.given.from_columns import LabelCells
from pencil.data.given.given_labels import error_context, is_nan, shorten
from pencil.data.inputs.base import Inputs, TensorInputs
from pencil.data.keys import as_keys, refuse_repeated_keys
from pencil.data.roles import is_string
from pencil.data.rows import Rows
from pencil.data.settings import DataSettings
from pencil.data.sources.arrays import as_dense, as_input_tensor, is_sparse
from pencil.data.sources.table import rows_of_table
from pencil.errors import DataError, settings_fixed

WHERE = "the table"
INDEX_REMEDY = "call reset_index(drop=True) to count the rows"


def is_frame(data: Any) -> bool:
    """Return whether this is a table with named columns; a single column, such as a Series, is not."""
    if isinstance(data, (pa.Table, pa.RecordBatch)):
        return True
    if isinstance(data, (pa.ChunkedArray, pa.Array)) or hasattr(type(data), "dtype"):
        return False
    return hasattr(data, "__arrow_c_stream__") or hasattr(data, "__dataframe__")


def as_table(frame: Any) -> pa.Table:
    """Return an Arrow table of a data frame, with string and bytes types that every version of Arrow supports."""
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


def frame_rows(frame: Any, settings: DataSettings, labels: LabelCells | None = None) -> Rows:
    """Return the rows of a table in memory, as of a table file.

    Parameters
    ----------
    frame
        A pandas or polars data frame, an Arrow table, or any object with ``__arrow_c_stream__``. A pandas index that
        does more than count the rows provides the keys, unless ``settings`` names a key column.
    settings
        The role of each column; relative image paths start at ``root``, by default the working directory.
    labels
        Separate labels: every column of the table may then be learned from. A frame of several columns names the
        classes.
    """
    table, y = as_table(frame), None if labels is None else labels.given
    keys = pair_keys(frame, y) if settings.columns.key is None else index_keys(frame)
    rows = rows_of_table(table, settings, BadRows(WHERE), keys=keys, labelled=labels is None)
    return rows if labels is None else replace(rows, labels=as_values(labels))


def as_values(labels: LabelCells) -> LabelCells:
    """Return labels as values that NumPy can represent; columns of several name the classes, unless they are set."""
    by_annotator = as_votes(labels.given)
    if by_annotator is not None:
        classes = tuple(map(str, range(labels.classes))) if isinstance(labels.classes, int) else labels.classes
        clean = None if labels.clean is None else [pa.array(as_label_values(labels.clean)[0])]
        people, columns = tuple(by_annotator), list(by_annotator.values())
        return replace(labels, given=columns, form="votes", classes=classes, clean=clean, annotators=people)
    (given, names), clean = as_label_values(labels.given), as_label_values(labels.clean)[0]
    return replace(labels, given=given, classes=names if labels.classes is None else labels.classes, clean=clean)


def as_votes(y: Any) -> dict[str, pa.Array] | None:
    """Return the labels of each annotator, null where there is none; None if ``y`` is not votes.

    Votes are a dict of one sequence per annotator, a masked matrix with one column per annotator, or a data frame of
    text. (Columns of numbers in a data frame have one probability per class.)
    """
    if isinstance(y, np.ma.MaskedArray) and y.ndim == 2:
        return {str(place): pa.array(column.data, mask=np.ma.getmaskarray(column)) for place, column in enumerate(y.T)}
    if isinstance(y, Mapping):
        found = {str(name): pa.array(_one_label_each(column)) for name, column in y.items()}
        if len({len(column) for column in found.values()}) != 1:
            sizes = ", ".join(f"{name}: {len(column)}" for name, column in found.items())
            raise DataError(
                f"the annotators in y have different numbers of labels ({sizes}); expected one per row; pass None "
                "where there is no vote."
            )
        return found
    if not is_frame(y):
        return None
    table = as_table(y)
    plain = [one.value_type if pa.types.is_dictionary(one) else one for one in table.schema.types]
    text = any(map(is_string, plain)) and all(is_string(one) or pa.types.is_null(one) for one in plain)
    return dict(zip(table.column_names, table.columns, strict=True)) if text and table.num_columns > 1 else None


def _one_label_each(column: Any) -> list[Any]:
    values = column.tolist() if hasattr(column, "tolist") else list(column)
    return [None if is_nan(label) else label for label in values]


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


def as_new_inputs(x: Any, settings: DataSettings) -> Inputs:
    """Return new inputs for a network: a table, if it was trained on one, otherwise an array; keys are not needed."""
    columns = settings.columns
    if not is_frame(x) or not (columns.encoded or columns.path or columns.image):
        return TensorInputs(as_input_tensor(x))
    needed = settings.model_copy(update={"columns": columns.model_copy(update={"key": None})})
    with settings_fixed():
        return rows_of_table(as_table(x), needed, BadRows(WHERE), new=True).inputs
