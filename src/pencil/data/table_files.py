"""The file of a table, CSV or Parquet: all of it in memory, the columns of a text file as their use demands."""

import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from pencil.data import delimited
from pencil.data.bad_rows import OnBadRows
from pencil.data.columns import Columns, as_names, label_names, refuse_repeated_columns
from pencil.data.text_labels import label_values, same_numbers
from pencil.errors import DataError


def read_table(
    path: Path,
    columns: Columns | None = None,
    delimiter: str | None = None,
    bad_rows: OnBadRows = "error",
    *,
    labelled: bool = True,
) -> pa.Table:
    """Read a table into memory, with the metadata of its schema.

    Parameters
    ----------
    path
        A CSV, TSV or Parquet file. An empty CSV cell is missing.
    columns
        Which column is what: keys, labels, categories and texts of a text file are read exactly as written.
    delimiter
        What stands between two cells of a text file; None finds it out.
    bad_rows
        Whether lines of a text file with too many or too few cells are an "error" or are left out ("skip").
    labelled
        Whether there are labels: otherwise a column with a usual name of labels is one like others.
    """
    return read_rows(path, columns or Columns(), delimiter, bad_rows, labelled=labelled).table


def read_rows(
    path: Path, columns: Columns, delimiter: str | None, bad_rows: OnBadRows, *, labelled: bool = True
) -> delimited.Numbered:
    """Read a table as :func:`read_table` does, and the number of each row in the file."""
    from pyarrow import parquet

    if path.exists() and not path.is_file():
        raise DataError(f"{path} is not a regular file; expected a CSV or Parquet table; name another.")
    try:
        if path.suffix.lower() == ".parquet":
            table = parquet.read_table(path)
            numbers = np.arange(table.num_rows)
        else:
            dialect = delimited.find_dialect(path, delimiter)
            texts = _read_as_text(path, dialect, columns, labelled)
            table, numbers = delimited.read_delimited(path, dialect, texts, bad_rows)
    except (OSError, UnicodeError, pa.ArrowException) as error:
        raise DataError(
            f"cannot read {path}: {str(error).splitlines()[0]}; expected a CSV or Parquet table; check the file."
        ) from error
    if table.num_rows == 0:
        raise DataError(f"{path} has no rows; expected at least one; check the file.")
    refuse_repeated_columns(path, table.column_names)
    return delimited.Numbered(table, numbers)


def _read_as_text(path: Path, dialect: delimited.Dialect, columns: Columns, labelled: bool) -> tuple[str, ...]:
    """Return the columns of a text file in which ``01`` is not ``1``, whatever else they hold in this file."""
    labels = label_names(columns, delimited.read_names(path, dialect)) if labelled else ()
    inputs = (columns.key, columns.path, columns.categories, columns.text)
    return (*labels, *(name for value in inputs for name in as_names(value)))


def with_label_values(path: Path, table: pa.Table, columns: Columns, classes: Sequence[str] | None) -> pa.Table:
    """Return a table of a text file with labels as integers, where they are written so; other tables as they are."""
    names = [name for name in label_names(columns, table.column_names) if name in table.column_names]
    if path.suffix.lower() not in delimited.SUFFIXES:
        return table
    for name, values in zip(names, label_values([table[name] for name in names], classes), strict=True):
        same = same_numbers(values) if classes is None else None
        if same is not None:
            warnings.warn(
                f"labels {same[0]!r} and {same[1]!r} in column {name!r} of {path} are the same number, and two "
                "classes; write them in one way if they are one, or name the classes (data.classes)",
                stacklevel=2,
            )
        table = table.set_column(table.column_names.index(name), name, values)
    return table
