"""A table, CSV or Parquet: images as paths or bytes, or columns to encode; labels in one of several forms."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from pencil.data.bad_rows import BadRows, OnBadRows
from pencil.data.columns import (
    LABEL_COLUMNS,
    NOT_INPUTS,
    PATH_COLUMNS,
    Columns,
    find_column,
    refuse_unknown,
    taken_names,
)
from pencil.data.examples import Examples, Splits
from pencil.data.given.from_columns import clean_columns, column_labels
from pencil.data.given.given_labels import GivenLabels
from pencil.data.inputs.base import Inputs
from pencil.data.inputs.images import ImageBytes, ImageFiles, ImageInputs
from pencil.data.inputs.records import read_records
from pencil.data.keys import as_keys
from pencil.data.roles import find_roles
from pencil.data.sources import delimited
from pencil.data.sources.image_columns import bytes_field, has_images, image_column, without_role
from pencil.data.sources.key_column import column_keys, is_missing_cell, read_keys, refuse_repeated_cells
from pencil.data.sources.table_files import first_number, key_decided, read_rows, with_label_values
from pencil.data.uses import describe
from pencil.errors import DataError, setting

SUFFIXES = (*delimited.SUFFIXES, ".parquet")
ODD_PATH = r"\.\.|^([/~]|[A-Za-z]:)"
"""Paths that may lead out of their folder."""
SPLIT_NAMES = {
    "train": "train", "training": "train", "val": "validation", "valid": "validation", "validation": "validation",
    "dev": "validation", "test": "test", "testing": "test",
}  # fmt: skip


@dataclass(frozen=True)
class Known:
    """What is known about the rows of a table before its columns are read.

    Parameters
    ----------
    inputs
        Where the inputs are read from.
    keys, splits
        The key and the split of each row, if no column is set for them.
    bad
        The bad rows found so far.
    numbers
        The number of each row, which is its key if it has no other; by default its position in the table.
    """

    inputs: Inputs | None = None
    keys: np.ndarray | None = None
    splits: np.ndarray | None = None
    bad: BadRows | None = None
    numbers: np.ndarray | None = None


NOTHING = Known()


def from_table(
    path: Path,
    columns: Columns | None = None,
    classes: Sequence[str] | None = None,
    root: Path | None = None,
    multilabel: bool | None = None,
    delimiter: str | None = None,
    bad_rows: OnBadRows = "error",
) -> Splits:
    """Return the splits of a CSV, TSV or Parquet file.

    Parameters
    ----------
    path
        The table.
    columns
        The role of each column; by default found by common names.
    classes
        Class names in order; by default from the table's metadata, or all values that occur.
    root
        The folder of relative image paths; by default the folder of the table.
    multilabel
        Whether lists of numbers, or texts such as ``sea;sky``, are multi-label; None decides from their values.
    delimiter
        The delimiter of a text file; None detects it.
    bad_rows
        Whether an unusable row is an "error" or is skipped ("skip").

    Raises
    ------
    DataError
        If the table cannot be read, a column is missing, or a row is not as expected.
    """
    chosen = columns or Columns()
    try:
        table, numbers, chosen = read_rows(path, chosen, delimiter, bad_rows)
        if path.suffix.lower() in delimited.SUFFIXES:
            table = with_label_values(path, table, chosen, classes)
        known = Known(numbers=numbers)
        return read_splits(path, table, chosen, classes, _folder(path, root), multilabel, bad_rows, known)
    except pa.ArrowException as error:  # a cast that a damaged or wrongly encoded column does not allow
        raise DataError(
            f"cannot read {path}: {str(error).splitlines()[0]}; expected text in UTF-8; convert the table."
        ) from error
    finally:
        pa.default_memory_pool().release_unused()  # the table is gone, but Arrow would keep the memory


def _folder(path: Path, root: Path | None) -> Path:
    """Return the folder of relative image paths."""
    return path.parent if root is None else root.expanduser()


def read_splits(
    where: Path | str,
    table: pa.Table,
    columns: Columns,
    classes: Sequence[str] | None,
    root: Path,
    multilabel: bool | None,
    bad_rows: OnBadRows,
    known: Known = NOTHING,
) -> Splits:
    """Return the splits of a table in memory, like :func:`from_table`; ``where`` is its name in messages."""
    bad = known.bad or BadRows(str(where), known.numbers)
    if known.keys is None or columns.numbering is not None:
        columns = key_decided(table, columns)
    refuse_unknown(where, table, columns)
    labels = read_labels(where, table, columns, classes, multilabel, bad)
    own_keys: np.ndarray | None
    if known.inputs is None:
        inputs, own_keys = _inputs(where, table, columns, root, known.numbers, bad=bad)
        add_without_text(inputs, bad)
    else:
        inputs, own_keys = known.inputs, read_keys(where, table, columns)
    keys = own_keys if known.keys is None or columns.key is not None else known.keys
    assert keys is not None  # known inputs have keys
    clean, rows = read_clean(where, table, columns, labels), torch.arange(table.num_rows)
    every = Examples(
        inputs,
        rows,
        labels.given,
        labels.classes,
        keys,
        clean,
        labels.multilabel,
        table=describe(table, columns, inputs, has_keys=known.keys is not None),
    )
    splits = known.splits if columns.split is None else _split_names(table[columns.split], bad)
    kept = bad.settle(bad_rows, keys)
    if kept is not None:
        every, splits = every.subset(torch.from_numpy(kept)), None if splits is None else splits[kept]
    return Splits(every) if splits is None else _split(where, every, splits)


def read_unlabelled(
    path: Path, columns: Columns, root: Path | None = None, delimiter: str | None = None
) -> tuple[Inputs, np.ndarray]:
    """Return the images of a table, or its columns listed for encoding, and keys; labels are not read.

    A row without an image is kept.
    """
    table, numbers, columns = read_rows(path, columns, delimiter, "error", labelled=False)
    return unlabelled_inputs(path, table, columns, _folder(path, root), numbers)


def unlabelled_inputs(
    where: Path | str, table: pa.Table, columns: Columns, root: Path, numbers: np.ndarray | None = None
) -> tuple[Inputs, np.ndarray]:
    """Return the inputs of a table in memory, like :func:`read_unlabelled`."""
    needed = columns.model_copy(update=dict.fromkeys(NOT_INPUTS))
    needed = key_decided(table, needed, labelled=False)
    refuse_unknown(where, table, needed)
    if columns.encoded:
        return read_columns(where, table, needed, numbers, closed=True, labelled=False)
    return _inputs(where, table, needed, root, numbers, bad=BadRows(str(where), numbers))


def table_inputs(
    where: Path | str, table: pa.Table, columns: Columns, root: Path, bad: BadRows
) -> tuple[Inputs, np.ndarray]:
    """Return the inputs of an unlabelled table, and their keys; rows without an image or text are bad."""
    inputs, keys = _inputs(where, table, columns, root, bad=bad, labelled=False)
    add_without_text(inputs, bad)
    return inputs, keys


def add_without_text(inputs: Inputs, bad: BadRows) -> None:
    """Add rows without anything to learn from: all inputs are texts, and theirs are empty."""
    records = inputs.records
    if records is not None and set(records.roles.used.values()) == {"text"}:
        names = records.roles.of("text")
        where = f"column {names[0]!r}" if len(names) == 1 else f"the columns {', '.join(map(repr, names))}"
        bad.add_where(records.lacks_text(), lambda _: f"there is no text in {where}")


def read_labels(
    where: Path | str,
    table: pa.Table,
    columns: Columns,
    classes: Sequence[str] | None,
    multilabel: bool | None = None,
    bad: BadRows | None = None,
) -> GivenLabels:
    """Return the labels of a table in the form set by ``columns``; ``where`` is the table's name in messages.

    Rows with an unusable label are added to ``bad``; without ``bad`` they are refused.
    """
    found = BadRows(str(where)) if bad is None else bad
    labels = _read_labels(where, table, columns, classes, multilabel, found)
    if bad is None:
        found.refuse(total=table.num_rows, remedy="")
    return labels


def _read_labels(
    where: Path | str,
    table: pa.Table,
    columns: Columns,
    classes: Sequence[str] | None,
    multilabel: bool | None,
    bad: BadRows,
) -> GivenLabels:
    metadata = table.schema.metadata or {}
    if classes is None and b"class_names" in metadata:
        classes = metadata[b"class_names"].decode(errors="replace").split(",")
    if columns.probabilities is not None:
        chosen = [table[name] for name in columns.probabilities]
        return column_labels(chosen, columns.probabilities, "probabilities", bad)
    if columns.indicators is not None:
        return column_labels([table[name] for name in columns.indicators], columns.indicators, "indicators", bad)
    label = columns.label or find_column(where, table, LABEL_COLUMNS, "label", "data.columns.label")
    if isinstance(label, str):
        return column_labels([table[label]], classes, "label", bad, multilabel)
    return column_labels([table[name] for name in label], classes, "votes", bad)


def read_clean(where: Path | str, table: pa.Table, columns: Columns, labels: GivenLabels) -> Tensor | None:
    """Return labels known to be right, if columns are set for them."""
    if columns.clean is None:
        return None
    names = (columns.clean,) if isinstance(columns.clean, str) else columns.clean
    return clean_columns([table[name] for name in names], labels, str(where))


def row_keys(path: Path, table: pa.Table, columns: Columns, root: Path, numbers: np.ndarray) -> np.ndarray:
    """Return the keys of a part of a table, equal to the keys in the whole table.

    Parameters
    ----------
    path
        Name of the table in messages.
    table
        Some consecutive rows of the table.
    columns
        The role of each column.
    root
        The folder of relative image paths.
    numbers
        The positions of these rows in the whole table.
    """
    keys, numbers = read_keys(path, table, columns), numbers + first_number(path, columns)
    if keys is None and columns.encoded:
        return as_keys(numbers)
    return _inputs(path, table, columns, root, numbers, bad=BadRows(str(path)))[1] if keys is None else keys


def read_columns(
    where: Path | str,
    table: pa.Table,
    columns: Columns,
    numbers: np.ndarray | None = None,
    *,
    closed: bool = False,
    labelled: bool = True,
) -> tuple[Inputs, np.ndarray]:
    """Return the columns of a table to encode, and the keys: the key column, or ``numbers`` (by default positions).

    ``closed`` takes only the listed columns, as for a network that was trained on them. Without ``labelled``, a column
    with a common label name is treated like any other.
    """
    keys = _keys_or_numbers(where, table, columns, numbers)
    taken = taken_names(columns, table.column_names, labelled=labelled)
    roles = find_roles(where, table, columns.roles, taken, closed=closed)
    return read_records(where, table, roles, numbers), keys


def _keys_or_numbers(where: Path | str, table: pa.Table, columns: Columns, numbers: np.ndarray | None) -> np.ndarray:
    keys = read_keys(where, table, columns, numbers)
    if keys is not None:
        return keys
    return as_keys(np.arange(table.num_rows) if numbers is None else numbers)


def _inputs(
    path: Path | str,
    table: pa.Table,
    columns: Columns,
    root: Path,
    numbers: np.ndarray | None = None,
    *,
    bad: BadRows,
    labelled: bool = True,
) -> tuple[Inputs, np.ndarray]:
    """Return images from a column of bytes if there is one, otherwise from files, and their keys; or other columns.

    Without a key column, paths or row numbers are the keys. Rows without a path, or with a path that leads out of the
    root, are added to ``bad``; the value returned for them is not an image.
    """
    if not has_images(table, columns):
        return read_columns(path, table, columns, numbers, labelled=labelled)
    image = image_column(table, columns)
    if image is not None:
        column, field = table[image], bytes_field(path, table, image)
        column = column if field is None else pc.struct_field(column, field)
        keys = _keys_or_numbers(path, table, columns, numbers)
        return ImageInputs(ImageBytes(column.cast(pa.large_binary()).combine_chunks(), keys)), keys
    own_keys, free = read_keys(path, table, columns, numbers), without_role(table, columns)
    name = columns.path or find_column(path, free, PATH_COLUMNS, "path", "data.columns.path", "data.columns.image")
    column = table[name].cast(pa.string())
    bad.add_where(is_missing_cell(table[name]), lambda _: f"there is no path in column {name!r}")
    paths = _inside(root, pc.fill_null(column, ""), bad)
    if own_keys is None:
        name_key = setting("data.columns.key", "NAME")
        remedy = f"expected one row per image; remove the others, or set a key column with {name_key}."
        refuse_repeated_cells(paths.filter(pc.not_equal(paths, "")), f"{path} has the path", "in the table", remedy)
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


def _split(where: Path | str, every: Examples, names: np.ndarray) -> Splits:
    parts = {name: torch.from_numpy(np.flatnonzero(names == name)) for name in ("train", "validation", "test")}
    if not len(parts["train"]):
        raise DataError(f"{where} has no row of the split train; expected at least one; fix the split column.")
    return Splits(**{name: every.subset(rows) for name, rows in parts.items() if len(rows)})
