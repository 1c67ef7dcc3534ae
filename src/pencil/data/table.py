"""A table of images: CSV or Parquet with a column of paths, or of encoded bytes, and labels in one of several forms."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from numpy.dtypes import StringDType
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from pencil.data.examples import Examples, Splits, as_keys
from pencil.data.given import GivenLabels
from pencil.data.images import ImageBytes, ImageFiles, ImageInputs
from pencil.data.inputs import Inputs
from pencil.data.label_columns import clean_columns, column_labels
from pencil.errors import DataError

SUFFIXES = (".csv", ".tsv", ".parquet")
PATH_COLUMNS = ("path", "file", "filename", "file_name", "image_path", "filepath")
IMAGE_COLUMNS = ("image", "image_bytes", "bytes", "img", "png", "jpg")
LABEL_COLUMNS = ("label", "labels", "class", "target", "category", "y", "fine_label")
SPLIT_NAMES = {
    "train": "train", "training": "train", "val": "validation", "valid": "validation", "validation": "validation",
    "dev": "validation", "test": "test", "testing": "test",
}  # fmt: skip


class Columns(BaseModel):
    """Which column is what. What is not named is looked for under its usual names.

    ``label`` names one column (classes, distributions, or lists of the classes present), or several annotators'
    columns, whose votes become shares. ``shares`` names one column per class instead, which sum to 1 in every row, and
    ``indicators`` one column per class, each 0, 1 or anything between, where several may be present at once. ``clean``
    names one column of the same form as ``label``, or one per class beside ``indicators``.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: str | None = None
    image: str | None = None
    label: str | tuple[str, ...] | None = None
    shares: tuple[str, ...] | None = None
    indicators: tuple[str, ...] | None = None
    key: str | None = None
    clean: str | tuple[str, ...] | None = None
    split: str | None = None


def from_table(
    path: Path,
    columns: Columns | None = None,
    classes: Sequence[str] | None = None,
    root: Path | None = None,
    multilabel: bool | None = None,
) -> Splits:
    """The rows of a CSV or Parquet file. Relative paths start at ``root``, or where the table is.

    ``multilabel`` says of what kind lists of numbers are.
    """
    try:
        return _from_table(path, columns or Columns(), classes, root, multilabel)
    except pa.ArrowException as error:  # a cast that a damaged or wrongly encoded column does not allow
        raise DataError(f"cannot read {path}: {str(error).splitlines()[0]}; is it UTF-8?") from error
    finally:
        pa.default_memory_pool().release_unused()  # the table is gone; Arrow would keep its room


def _from_table(
    path: Path, chosen: Columns, classes: Sequence[str] | None, root: Path | None, multilabel: bool | None
) -> Splits:
    table = read_table(path, chosen.key)
    refuse_unknown(path, table, chosen)
    labels = read_labels(path, table, chosen, classes, multilabel)
    inputs, keys = _inputs(path, table, chosen, path.parent if root is None else root.expanduser())
    clean, rows = read_clean(path, table, chosen, labels), torch.arange(table.num_rows)
    every = Examples(inputs, rows, labels.given, labels.classes, keys, clean, labels.multilabel)
    return Splits(every) if chosen.split is None else _split(path, every, table[chosen.split])


def read_images(path: Path, columns: Columns, root: Path | None = None) -> tuple[Inputs, np.ndarray]:
    """The images of a table and their keys, whatever its labels."""
    table, needed = read_table(path, columns.key), Columns(path=columns.path, image=columns.image, key=columns.key)
    refuse_unknown(path, table, needed)
    return _inputs(path, table, needed, path.parent if root is None else root.expanduser())


def read_table(path: Path, key: str | None = None) -> pa.Table:
    """A table in memory; its schema's metadata is kept. An empty cell of a CSV is missing, and keys stay as written."""
    from pyarrow import csv, parquet

    try:
        if path.suffix.lower() == ".parquet":
            table = parquet.read_table(path)
        else:
            options = csv.ParseOptions(
                delimiter="\t" if path.suffix.lower() == ".tsv" else ",", newlines_in_values=True
            )
            kinds = {} if key is None else {key: pa.string()}
            cells = csv.ConvertOptions(strings_can_be_null=True, null_values=[""], column_types=kinds)
            table = csv.read_csv(path, parse_options=options, convert_options=cells)
    except (OSError, pa.ArrowException) as error:
        raise DataError(
            f"cannot read {path}: {str(error).splitlines()[0]}; expected a CSV or Parquet table."
        ) from error
    if table.num_rows == 0:
        raise DataError(f"{path} has no rows; expected at least one.")
    repeated = [name for name in table.column_names if table.column_names.count(name) > 1]
    if repeated:
        raise DataError(f"{path} has the column {repeated[0]!r} more than once; rename one of them.")
    if table.num_columns == 1 and set(table.column_names[0]) & set(";\t"):
        raise DataError(f"{path} has one column, {table.column_names[0]!r}; expected commas (.csv) or tabs (.tsv).")
    return table


def refuse_unknown(where: Path | str, table: pa.Table, columns: Columns) -> None:
    named: Iterable[Any] = columns.model_dump().values()
    for value in named:
        for name in (value,) if isinstance(value, str) else value or ():
            if name not in table.column_names:
                raise DataError(f"{where} has no column {name!r}; it has {_list(table.column_names)}.")


def read_labels(
    where: Path | str,
    table: pa.Table,
    columns: Columns,
    classes: Sequence[str] | None,
    multilabel: bool | None = None,
) -> GivenLabels:
    """The labels of a table in whatever form the columns say; ``where`` names the table in messages."""
    metadata = table.schema.metadata or {}
    if classes is None and b"class_names" in metadata:
        classes = metadata[b"class_names"].decode().split(",")
    if columns.shares is not None:
        return column_labels([table[name] for name in columns.shares], columns.shares, "shares", str(where))
    if columns.indicators is not None:
        return column_labels([table[name] for name in columns.indicators], columns.indicators, "indicators", str(where))
    label = columns.label or find_column(where, table, LABEL_COLUMNS, "label", "data.columns.label")
    if isinstance(label, str):
        return column_labels([table[label]], classes, "label", str(where), multilabel)
    return column_labels([table[name] for name in label], classes, "votes", str(where))


def read_clean(where: Path | str, table: pa.Table, columns: Columns, labels: GivenLabels) -> Tensor | None:
    """Labels known to be right, where columns are named for them."""
    if columns.clean is None:
        return None
    names = (columns.clean,) if isinstance(columns.clean, str) else columns.clean
    return clean_columns([table[name] for name in names], labels, str(where))


def read_keys(path: Path | str, table: pa.Table, columns: Columns) -> np.ndarray | None:
    if columns.key is None:
        return None
    column = table[columns.key].cast(pa.string())
    if column.null_count:
        raise DataError(f"{path} has rows without a key in column {columns.key!r}; expected one for each.")
    _refuse_repeated(column, f"{path} has the key {{}} more than once in column {columns.key!r}; expected unique keys.")
    return column_keys(column)


def _inputs(path: Path, table: pa.Table, columns: Columns, root: Path) -> tuple[Inputs, np.ndarray]:
    """Images from bytes where there is such a column, from files otherwise; paths are keys where no column is."""
    keys = read_keys(path, table, columns)
    image = columns.image or (None if columns.path else _usual(table, IMAGE_COLUMNS, _is_bytes))
    if image is not None:
        column = table[image]
        if pa.types.is_struct(column.type):  # as the datasets library stores images
            column = pc.struct_field(column, "bytes")
        if not _is_bytes(column.type):
            raise DataError(f"column {image!r} of {path} is of type {column.type}; expected encoded images as bytes.")
        keys = as_keys(np.arange(table.num_rows)) if keys is None else keys
        return ImageInputs(ImageBytes(column.cast(pa.large_binary()).combine_chunks(), keys)), keys
    name = columns.path or find_column(path, table, PATH_COLUMNS, "path", "data.columns.path or data.columns.image")
    column = table[name]
    if column.null_count:
        row = pc.index(column.is_null(), True).as_py()
        raise DataError(f"{path} has no path in column {name!r} at row {row}; expected a file.")
    paths = _inside(root, column.cast(pa.string()), path)
    if keys is None:
        _refuse_repeated(paths, f"{path} has the path {{}} more than once; expected one row each, or a key column.")
    files = column_keys(paths)
    return ImageInputs(ImageFiles(root, files)), files if keys is None else keys


def _inside(root: Path, paths: pa.ChunkedArray, path: Path) -> Any:
    """Paths relative to the root; one that leads out of it is refused, as a table may come from anywhere."""
    odd = pc.or_(pc.match_substring(paths, ".."), pc.match_substring_regex(paths, r"^([/\\~]|[A-Za-z]:)"))
    if not pc.any(odd).as_py():
        return paths
    base = root.expanduser().resolve()
    mended = paths.to_pylist()
    for row in np.flatnonzero(odd.to_numpy()).tolist():
        absolute = Path(base, mended[row]).resolve()
        if not absolute.is_relative_to(base):
            raise DataError(
                f"path {mended[row]!r} at row {row} of {path} leads out of {base}; "
                "expected files below it; name the folder that holds them all with data.root."
            )
        mended[row] = absolute.relative_to(base).as_posix()
    return pa.chunked_array([mended])


def _split(path: Path, every: Examples, column: pa.ChunkedArray) -> Splits:
    names = [SPLIT_NAMES.get(str(value).lower()) for value in column.to_pylist()]
    if None in names:
        row = names.index(None)
        raise DataError(
            f"{path} has the split {column[row].as_py()!r} at row {row}; expected {', '.join(SPLIT_NAMES)}."
        )
    codes = np.array(names)
    parts = {name: torch.from_numpy(np.flatnonzero(codes == name)) for name in ("train", "validation", "test")}
    if not len(parts["train"]):
        raise DataError(f"{path} has no row of the split train.")
    return Splits(**{name: every.subset(rows) for name, rows in parts.items() if len(rows)})


def find_column(where: Path | str, table: pa.Table, usual: Sequence[str], what: str, setting: str) -> str:
    found = _usual(table, usual)
    if found is None:
        raise DataError(
            f"{where} has no {what} column under a usual name ({', '.join(usual)}); it has "
            f"{_list(table.column_names)}; name it with {setting}."
        )
    return found


def _usual(table: pa.Table, names: Sequence[str], fits: Any = lambda kind: True) -> str | None:
    by_name = {name.lower(): name for name in table.column_names}
    return next((by_name[name] for name in names if name in by_name and fits(table[by_name[name]].type)), None)


def _is_bytes(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return any(field.name == "bytes" for field in kind)
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def column_keys(column: Any) -> np.ndarray:
    """A column of strings as keys, a piece at a time: never all of them as Python objects."""
    keys = np.empty(len(column), dtype=StringDType())
    for start in range(0, len(column), 65536):
        keys[start : start + 65536] = column.slice(start, 65536).to_pylist()
    return keys


def _refuse_repeated(column: Any, message: str) -> None:
    if pc.count_distinct(column).as_py() == len(column):
        return
    counts = pc.value_counts(column)
    repeated = counts.filter(pc.greater(pc.struct_field(counts, "counts"), 1))
    if len(repeated):
        raise DataError(message.format(repr(repeated[0]["values"].as_py())))


def _list(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:12])) + (", ..." if len(names) > 12 else "")
