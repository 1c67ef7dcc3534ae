"""A table, CSV or Parquet: images as paths or bytes, or columns to encode; labels in one of several forms."""

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pencil.data.bad_rows import BadRows
from pencil.data.columns import (
    LABEL_COLUMNS,
    NOT_INPUTS,
    PATH_COLUMNS,
    Columns,
    as_names,
    find_column,
    refuse_unknown,
    taken_names,
    usual_column,
)
from pencil.data.given.from_columns import Form, LabelCells
from pencil.data.inputs.base import Inputs
from pencil.data.inputs.images import ImageBytes, ImageFiles, ImageInputs
from pencil.data.inputs.records import read_records
from pencil.data.roles import find_roles
from pencil.data.rows import SPLIT_NAMES, Rows, arrow_errors
from pencil.data.settings import DataSettings
from pencil.data.sources import delimited
from pencil.data.sources.image_columns import bytes_field, has_images, image_column, without_role
from pencil.data.sources.key_column import (
    column_keys,
    is_missing_cell,
    keys_or_numbers,
    read_keys,
    refuse_repeated_cells,
)
from pencil.data.sources.table_files import first_number, key_decided, read_rows, with_label_values
from pencil.data.uses import describe
from pencil.errors import DataError, setting
from pencil.terminal import counted

SUFFIXES = (*delimited.SUFFIXES, ".parquet")
ODD_PATH = r"\.\.|^([/~]|[A-Za-z]:)"
"""Paths that may lead out of their folder."""
LABEL_KEYS = ("label", "annotator", "probabilities", "indicators")
"""Keys of columns that a table of inputs with separate labels does not have."""


def read(path: Path, settings: DataSettings, *, new: bool = False) -> Rows:
    """Return the rows of a CSV, TSV or Parquet file; relative image paths start at its folder, or at ``data.root``.

    Parameters
    ----------
    path
        The table.
    settings
        The role of each column, and how the file is read.
    new
        Whether these are new inputs for a trained network: labels are not read.

    Raises
    ------
    DataError
        If the table cannot be read, or a column is missing.
    """
    table, numbers, columns = read_rows(path, settings, labelled=not new)
    if path.suffix.lower() in delimited.SUFFIXES and not new:
        table = with_label_values(path, table, columns, settings.classes)
    root = path.parent if settings.root is None else settings.root
    chosen = settings.model_copy(update={"columns": columns, "root": root})
    return rows_of_table(table, chosen, BadRows(str(path), numbers), new=new)


def rows_of_table(
    table: pa.Table,
    settings: DataSettings,
    bad: BadRows,
    *,
    inputs: Inputs | None = None,
    keys: np.ndarray | None = None,
    splits: np.ndarray | None = None,
    labelled: bool = True,
    new: bool = False,
) -> Rows:
    """Return the rows of a table in memory.

    Parameters
    ----------
    table
        The columns.
    settings
        Their roles; relative image paths start at ``root``, by default the working directory.
    bad
        Where rows without anything to learn from are added. It names the table, and numbers its rows; without another
        key, a row's number is its key.
    inputs, keys, splits
        Where they do not come from columns; ``keys`` and ``splits`` count if no column is set for them.
    labelled
        Whether the labels are in the columns; otherwise a column with a common label name is treated like any other.
    new
        Whether these are new inputs for a trained network, which need no other columns than the listed ones.
    """
    columns, where, labelled = settings.columns, bad.where, labelled and not new
    if not labelled:
        columns = columns.model_copy(update=dict.fromkeys(NOT_INPUTS if new else LABEL_KEYS))
    with arrow_errors(where):
        if keys is None or columns.numbering is not None:
            columns = key_decided(table, columns, labelled=labelled)
        refuse_unknown(where, table, columns)
        labels = label_cells(where, table, columns, settings) if labelled else None
        if labels is not None and columns.annotator is not None:
            table, labels, bad.numbers = one_row_each(table, columns, labels, bad)
        own_keys: np.ndarray | None
        if inputs is None:
            inputs, own_keys = _inputs(table, columns, settings.root, bad, labelled=labelled, closed=new)
            if new and inputs.records is not None and settings.bad_rows == "error":
                bad.refuse(total=table.num_rows)
            add_without_text(inputs, bad)
        else:
            own_keys = read_keys(table, columns, bad)
        if columns.split is not None and labels is not None:
            splits = _split_names(table[columns.split], bad)
    uses = describe(table, columns, inputs, labelled=labelled, has_keys=keys is not None)
    keys = own_keys if keys is None or columns.key is not None else keys
    assert keys is not None  # inputs that do not come from columns have keys
    return Rows(inputs, labels, keys, splits, bad, uses)


def label_cells(where: str, table: pa.Table, columns: Columns, settings: DataSettings) -> LabelCells:
    """Return the labels of a table in the form that ``columns`` sets, and the labels known to be right."""
    metadata, classes = table.schema.metadata or {}, settings.classes
    if classes is None and b"class_names" in metadata:
        classes = tuple(metadata[b"class_names"].decode(errors="replace").split(","))
    form: Form
    if columns.probabilities is not None:
        form, names, classes = "probabilities", columns.probabilities, columns.probabilities
    elif columns.indicators is not None:
        form, names, classes = "indicators", columns.indicators, columns.indicators
    else:
        label = columns.label or find_column(where, table, LABEL_COLUMNS, "label", "data.columns.label")
        form, names = "label" if isinstance(label, str) else "votes", as_names(label)
    clean = None if columns.clean is None else [table[name] for name in as_names(columns.clean)]
    return LabelCells([table[name] for name in names], form, classes, settings.multilabel, clean, names)


def one_row_each(
    table: pa.Table, columns: Columns, labels: LabelCells, bad: BadRows
) -> tuple[pa.Table, LabelCells, np.ndarray | None]:
    """Return a table of one line per vote as one line per row (the first), the votes, and the line numbers."""
    name = columns.key or columns.path or usual_column(table, PATH_COLUMNS)
    if name is None or labels.form != "label" or columns.annotator is None:
        raise DataError(
            f"{bad.where} has one line per vote (data.columns.annotator), but no key, or several label columns; "
            "expected one label column, and one key column that identifies the row; name them with "
            f"{setting('data.columns.key', 'NAME')} and {setting('data.columns.label', 'NAME')}."
        )
    keys, people = (table[one].combine_chunks().dictionary_encode() for one in (name, columns.annotator))
    anonymous = pc.and_(people.is_null(), labels.given[0].is_valid())
    for one, empty in ((name, keys.is_null()), (columns.annotator, anonymous)):
        count = pc.sum(empty).as_py()
        if count:
            raise DataError(
                f"column {one!r} of {bad.where} is empty in {counted(count, 'line')}; expected the row and the "
                "annotator of every vote; fill the cells or remove the lines."
            )
    answered = keys.indices.to_numpy(), people.indices.fill_null(-1).to_numpy()
    first = np.unique(answered[0], return_index=True)[1]
    clean = None if labels.clean is None else [column.take(first) for column in labels.clean]
    names = tuple(str(one) for one in people.dictionary.to_pylist())
    cells = replace(labels, form="answers", clean=clean, annotators=names, answered=answered)
    return table.take(first), cells, None if bad.numbers is None else bad.numbers[first]


def add_without_text(inputs: Inputs, bad: BadRows) -> None:
    """Add rows without anything to learn from: all inputs are texts, and theirs are empty."""
    records = inputs.records
    if records is not None and set(records.roles.used.values()) == {"text"}:
        names = records.roles.of("text")
        where = f"column {names[0]!r}" if len(names) == 1 else f"the columns {', '.join(map(repr, names))}"
        bad.add_where(records.lacks_text(), lambda _: f"there is no text in {where}")


def row_keys(path: Path, table: pa.Table, columns: Columns, root: Path, numbers: np.ndarray) -> np.ndarray:
    """Return the keys of consecutive rows at these positions of a table, equal to the keys in the whole table."""
    bad = BadRows(str(path), numbers + first_number(path, columns))
    if columns.key is not None or columns.encoded:
        return keys_or_numbers(table, columns, bad)
    return _inputs(table, columns, root, bad)[1]


def read_columns(
    table: pa.Table, columns: Columns, bad: BadRows, *, labelled: bool = True, closed: bool = False
) -> tuple[Inputs, np.ndarray]:
    """Return the columns of a table to encode, and the keys: the key column, or row numbers.

    ``closed`` takes only the listed columns, as for a network that was trained on them. Without ``labelled``, a column
    with a common label name is treated like any other.
    """
    keys = keys_or_numbers(table, columns, bad)
    taken = taken_names(columns, table.column_names, labelled=labelled)
    roles = find_roles(bad.where, table, columns.roles, taken, closed=closed and columns.encoded)
    return read_records(table, roles, bad), keys


def _inputs(
    table: pa.Table,
    columns: Columns,
    root: Path | None,
    bad: BadRows,
    *,
    labelled: bool = True,
    closed: bool = False,
) -> tuple[Inputs, np.ndarray]:
    """Return images from a column of bytes if there is one, otherwise from files, and their keys; or other columns.

    Without a key column, paths or row numbers are the keys. Rows without a path, or with a path that leads out of the
    root, are added to ``bad``; the value returned for them is not an image.
    """
    if (closed and columns.encoded) or not has_images(table, columns):
        return read_columns(table, columns, bad, labelled=labelled, closed=closed)
    where, image = bad.where, image_column(table, columns)
    if image is not None:
        column, field = table[image], bytes_field(where, table, image)
        column = column if field is None else pc.struct_field(column, field)
        keys = keys_or_numbers(table, columns, bad)
        return ImageInputs(ImageBytes(column.cast(pa.large_binary()).combine_chunks(), keys)), keys
    own_keys, free = read_keys(table, columns, bad), without_role(table, columns)
    name = columns.path or find_column(where, free, PATH_COLUMNS, "path", "data.columns.path", "data.columns.image")
    column = table[name].cast(pa.string())
    bad.add_where(is_missing_cell(table[name]), lambda _: f"there is no path in column {name!r}")
    root = Path() if root is None else root.expanduser()
    paths = _inside(root, pc.fill_null(column, ""), bad)
    if own_keys is None:
        name_key = setting("data.columns.key", "NAME")
        remedy = f"expected one row per image; remove the others, or set a key column with {name_key}."
        refuse_repeated_cells(paths.filter(pc.not_equal(paths, "")), f"{where} has the path", "in the table", remedy)
    files = column_keys(paths)
    return ImageInputs(ImageFiles(root, files, within=(root,))), files if own_keys is None else own_keys


def _inside(root: Path, paths: pa.ChunkedArray, bad: BadRows) -> Any:
    """Return paths relative to the root; a path that leads out of it is bad, because a table may be untrusted."""
    odd = pc.match_substring_regex(paths, rf"\\|{ODD_PATH}")
    if not pc.any(odd).as_py():
        return paths
    base, named = root.expanduser().resolve(), setting("data.root", "FOLDER")
    paths_inside = paths.to_pylist()
    for row in np.flatnonzero(odd.to_numpy()).tolist():
        paths_inside[row] = _with_slashes(base, paths_inside[row])
        if not re.search(ODD_PATH, paths_inside[row]):
            continue
        absolute = Path(base, paths_inside[row]).resolve()
        if not absolute.is_relative_to(base):
            bad.add(row, f"its path leads out of {base} (set the folder that contains all images with {named})")
            continue
        paths_inside[row] = absolute.relative_to(base).as_posix()
    return pa.chunked_array([paths_inside])


def _with_slashes(base: Path, path: str) -> str:
    """Return a Windows path with forward slashes, unless there is a file with backslashes in its name."""
    return path if "\\" not in path or os.path.lexists(base / path) else path.replace("\\", "/")


def _split_names(column: pa.ChunkedArray, bad: BadRows) -> np.ndarray:
    """Return the split of each row."""
    values = column.to_pylist()
    names = np.array([SPLIT_NAMES.get(str(value).strip().lower(), "") for value in values])
    expected = ", ".join(SPLIT_NAMES)
    bad.add_where(names == "", lambda row: f"the split is {values[row]!r} (expected {expected})")
    return names
