"""Hugging Face ``datasets`` (an optional extra): by name or folder in a recipe, or an object passed to pencil.fit."""

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from pencil.data.bad_rows import BadRows
from pencil.data.columns import (
    IMAGE_COLUMNS,
    LABEL_COLUMNS,
    Columns,
    find_column,
    label_names,
    refuse_unknown,
    usual_column,
)
from pencil.data.given.given_labels import UNLABELLED, error_context
from pencil.data.given.resolving import as_named
from pencil.data.inputs.base import Inputs, TensorInputs, refuse_non_finite
from pencil.data.inputs.images import ImageBytes, ImageFiles, ImageInputs
from pencil.data.keys import as_keys
from pencil.data.roles import is_list
from pencil.data.rows import SPLIT_NAMES, Rows
from pencil.data.settings import DataSettings
from pencil.data.sources.key_column import keys_or_numbers
from pencil.data.sources.table import label_cells, read_columns
from pencil.errors import DataError, explained, setting

PREFIX = "hf/"
WHERE = "the dataset"
INPUT_COLUMNS = (*IMAGE_COLUMNS, "pixel_values", "features", "x")


def is_hugging_face(dataset: Any) -> bool:
    """Return whether this is a ``datasets.Dataset``, without importing the library."""
    return any(kind.__module__.startswith("datasets.") and kind.__name__ == "Dataset" for kind in type(dataset).__mro__)


def refuse_remote(source: str, options: Mapping[str, Any]) -> None:
    """Raise DataError for a dataset that is not a saved folder on this machine."""
    if options or not Path(source.removeprefix(PREFIX)).expanduser().is_dir():
        raise DataError(
            f"{source!r} is not a saved folder on this machine, and downloads are disabled; save it to a folder "
            "with save_to_disk, or add --trust if the command supports it."
        )


def read(source: str, settings: DataSettings) -> Rows:
    """Return the rows of a dataset of the ``datasets`` library.

    Parameters
    ----------
    source
        ``hf/NAME`` from the hub, or ``hf/FOLDER`` written by ``save_to_disk``.
    settings
        The role of each column; ``classes``, by default the names of the label's feature; ``options``, which are passed
        to ``load_dataset``.
    """
    options = settings.options
    if "trust_remote_code" in options:
        raise DataError(
            "data.options has trust_remote_code, which runs code of the dataset; expected a dataset without code; "
            "remove it, or load the dataset yourself and pass it to pencil.fit."
        )
    if importlib.util.find_spec("datasets") is None:
        raise DataError(f"{source!r} needs the datasets library; install it with pip install 'pencil-labels[hf]'.")
    import datasets

    name = source.removeprefix(PREFIX)
    advice = "expected a dataset on the hub or a saved folder; check the name"
    with explained(DataError, f"datasets cannot load {name!r}", advice, OSError, ValueError, RuntimeError, TypeError):
        folder = Path(name).expanduser()
        is_saved = folder.is_dir() and not options
        loaded = datasets.load_from_disk(str(folder)) if is_saved else datasets.load_dataset(name, **options)
    if not isinstance(loaded, Mapping):
        return hugging_face_rows(loaded, settings)
    parts = {SPLIT_NAMES[split]: part for split, part in loaded.items() if split in SPLIT_NAMES}
    if "train" not in parts:
        raise DataError(
            f"{name!r} has the splits {', '.join(loaded)}; expected a split named train; "
            f"choose a split with {setting('data.options.split', 'NAME')}."
        )
    rows, others = hugging_face_rows(parts.pop("train"), settings), {}
    assert rows.labels is not None
    like = settings.model_copy(update={"classes": rows.labels.classes})
    for split, part in parts.items():
        with error_context(f"the {split} set"):
            others[split] = hugging_face_rows(part, like)
    return replace(rows, others=others)


def hugging_face_rows(dataset: Any, settings: DataSettings) -> Rows:
    """Return the rows of a ``datasets.Dataset``; images stay encoded until they are needed."""
    columns, classes, bad = settings.columns, settings.classes, BadRows(WHERE)
    table = dataset.flatten_indices().data.table if dataset._indices is not None else dataset.data.table
    refuse_unknown(WHERE, table, columns)
    classes = _class_names(dataset, table, columns) if classes is None else classes
    named = _with_names(dataset, table, columns, classes)
    labels = label_cells(WHERE, named, columns, settings.model_copy(update={"classes": classes}))
    inputs, keys = _read_inputs(table, columns, bad)
    return Rows(inputs, labels, keys, bad=bad)


def _read_inputs(table: pa.Table, columns: Columns, bad: BadRows) -> tuple[Inputs, np.ndarray]:
    """Return images, or one column of numbers with a common name, or columns to encode; and the keys."""
    image = columns.image or (None if columns.encoded else usual_column(table, INPUT_COLUMNS))
    if image is None:
        return read_columns(table, columns, bad)
    keys = keys_or_numbers(table, columns, bad)
    return _inputs(table[image], keys, image), keys


def _class_names(dataset: Any, table: pa.Table, columns: Columns) -> tuple[str, ...] | None:
    """Return the class names of the label's feature, or of the feature of its lists."""
    if columns.indicators is not None:
        return None
    label = columns.label or find_column(WHERE, table, LABEL_COLUMNS, "label", "data.columns.label")
    names = _names_of(dataset, label if isinstance(label, str) else label[0])
    return None if names is None else tuple(names)


def _names_of(dataset: Any, column: str) -> Sequence[str] | None:
    """Return the names that the feature of a column, or of its lists, has for integers."""
    feature = dataset.features[column]
    names: Sequence[str] | None = getattr(getattr(feature, "feature", feature), "names", None)
    return names


def _with_names(dataset: Any, table: pa.Table, columns: Columns, classes: Sequence[str] | None) -> pa.Table:
    """Return the table with the names of integer labels in their place: these are indices into the feature's names.

    Where the classes have other names, labels stay as they are.
    """
    for column in label_names(columns, table.column_names):
        names, values = _names_of(dataset, column), table[column].combine_chunks()
        if names is None or not set(names) <= set(map(str, classes or ())):
            continue
        flat = pc.list_flatten(values) if is_list(values.type) else values
        named = pa.array(as_named(pc.fill_null(flat, UNLABELLED).to_numpy(), names), pa.string())
        if is_list(values.type):
            lengths = pc.fill_null(pc.list_value_length(values), 0).to_numpy()
            offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
            named = pa.ListArray.from_arrays(offsets, named, mask=values.is_null())
        table = table.set_column(table.column_names.index(column), column, pa.chunked_array([named]))
    return table


def _inputs(column: Any, keys: np.ndarray, name: str) -> Inputs:
    """Return encoded images, image files, or rows of numbers."""
    if pa.types.is_struct(column.type):
        content, paths = pc.struct_field(column, "bytes"), pc.struct_field(column, "path")
        if content.null_count < len(content) or paths.null_count:  # cells without bytes are later found unreadable
            return ImageInputs(ImageBytes(content.cast(pa.large_binary()).combine_chunks(), keys))
        return ImageInputs(ImageFiles(Path(), as_keys(paths.to_numpy())))
    if is_list(column.type):
        return TensorInputs(refuse_non_finite(_numbers(column, name)))
    raise DataError(
        f"column {name!r} is of type {column.type}; expected images, or lists of numbers; "
        f"name the right column with {setting('data.columns.image', 'NAME')}."
    )


def _numbers(column: Any, name: str) -> torch.Tensor:
    advice = "expected lists of equal length without missing cells; fix the column"
    with explained(DataError, f"column {name!r} is not rows of numbers", advice, TypeError, ValueError, RuntimeError):
        values = torch.tensor(column.to_pylist(), dtype=torch.float32)
    if values.ndim < 2 or 0 in values.shape:
        raise DataError(
            f"column {name!r} has shape {tuple(values.shape)}; expected at least one number per row; fix the column."
        )
    return values
