"""A table file, CSV or Parquet, read into memory; the types of text columns depend on their use."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from pencil.data.columns import Columns, as_names, label_names, refuse_repeated_columns, taken_names
from pencil.data.given.text_labels import label_values, same_numbers
from pencil.data.settings import DataSettings
from pencil.data.sources import delimited
from pencil.data.sources.image_columns import has_images, image_column
from pencil.data.sources.key_column import settle_key
from pencil.errors import DataError, DataWarning, explained, setting, warn


class TableRows(NamedTuple):
    """Rows of a table, the human-readable number of each, and the role of each column, with the key decided."""

    table: pa.Table
    numbers: np.ndarray
    columns: Columns


def first_number(path: Path, columns: Columns) -> int:
    """Return the number of the first row; in a text file, its line number below the header."""
    is_text = path.suffix.lower() in delimited.SUFFIXES
    return delimited.FIRST_LINE if is_text and columns.numbering != "places" else 0


def read_rows(path: Path, settings: DataSettings, *, labelled: bool = True) -> TableRows:
    """Read a table into memory, with the metadata of its schema, the number of each row and the key decided.

    Keys, labels, categories and texts of a text file are read exactly as written. If it is not ``labelled``, a
    column with a common label name is treated like any other, and a malformed line is an error.
    """
    from pyarrow import parquet

    if path.exists() and not path.is_file():
        raise DataError(f"{path} is not a regular file; expected a CSV or Parquet table; choose another.")
    columns = settings.columns
    advice = "expected a CSV or Parquet table; check the file"
    with explained(DataError, f"cannot read {path}", advice, OSError, UnicodeError, pa.ArrowException):
        if path.suffix.lower() == ".parquet":
            dialect, table = None, parquet.read_table(path)
            numbers = np.arange(table.num_rows)
        else:
            dialect = delimited.find_dialect(path, settings.delimiter)
            texts = _read_as_text(path, dialect, columns, labelled)
            bad_rows = settings.bad_rows if labelled else "error"
            table, numbers = delimited.read_delimited(path, dialect, texts, bad_rows, as_names(columns.numbers))
        if table.num_rows == 0:
            raise DataError(f"{path} has no rows; expected at least one; check the file.")
        refuse_repeated_columns(path, table.column_names)
        columns = key_decided(table, columns, labelled=labelled)
        table = table if dialect is None else _with_key_as_text(path, dialect, table, columns)
    return TableRows(table, numbers + first_number(path, columns), columns)


def key_decided(table: pa.Table, columns: Columns, *, labelled: bool = True) -> Columns:
    """Return the columns with the key decided by :func:`~pencil.data.sources.key_column.settle_key`.

    Image files have their paths as keys, so no column is searched.
    """
    named = [name for names in columns.roles.values() for name in names]
    taken = {*taken_names(columns, table.column_names, labelled=labelled), *named, *as_names(columns.image)}
    in_files = has_images(table, columns) and image_column(table, columns) is None
    return settle_key(table, columns, set(table.column_names) if in_files else taken)


def _with_key_as_text(path: Path, dialect: delimited.Dialect, table: pa.Table, columns: Columns) -> pa.Table:
    """Return the table with a detected key column as written: ``0017`` stays ``0017``."""
    if columns.key is None or columns.key not in table.column_names or not pa.types.is_integer(table[columns.key].type):
        return table
    place = table.column_names.index(columns.key)
    return table.set_column(place, columns.key, delimited.read_as_text(path, dialect, columns.key))


def _read_as_text(path: Path, dialect: delimited.Dialect, columns: Columns, labelled: bool) -> tuple[str, ...]:
    """Return the columns of a text file in which ``01`` differs from ``1``, whatever else they contain."""
    labels = label_names(columns, delimited.read_names(path, dialect)) if labelled else ()
    inputs = (columns.key, columns.path, columns.categories, columns.text)
    return (*labels, *(name for value in inputs for name in as_names(value)))


def with_label_values(path: Path, table: pa.Table, columns: Columns, classes: Sequence[str] | None) -> pa.Table:
    """Return a table of a text or tar file with labels that are text as integers, where they are written so."""
    known = [name for name in label_names(columns, table.column_names) if name in table.column_names]
    names = [name for name in known if pa.types.is_string(table[name].type)]
    for name, values in zip(names, label_values([table[name] for name in names], classes), strict=True):
        same = same_numbers(values) if classes is None else None
        if same is not None:
            warn(
                f"labels {same[0]!r} and {same[1]!r} in column {name!r} of {path} are the same number but two "
                f"classes; write them in the same way if they are one class, or list all classes with "
                f"{setting('data.classes', ['NAME', 'NAME'])}",
                DataWarning,
            )
        table = table.set_column(table.column_names.index(name), name, values)
    return table
