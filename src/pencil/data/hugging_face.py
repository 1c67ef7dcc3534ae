"""Hugging Face ``datasets`` (an optional extra): by name or folder from a recipe, or an object passed to pencil.fit."""

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from pencil.data.examples import Examples, Splits, as_keys
from pencil.data.images import ImageBytes, ImageFiles, ImageInputs
from pencil.data.inputs import Inputs, TensorInputs
from pencil.data.table import IMAGE_COLUMNS, LABEL_COLUMNS, Columns
from pencil.data.table_labels import column_labels, hard_column
from pencil.errors import DataError

PREFIX = "hf/"
SPLITS = {"train": "train", "validation": "validation", "valid": "validation", "val": "validation", "test": "test"}


def is_hugging_face(dataset: Any) -> bool:
    """Whether this is a ``datasets.Dataset``, found out without importing the library."""
    return any(kind.__module__.startswith("datasets.") and kind.__name__ == "Dataset" for kind in type(dataset).__mro__)


def load_hugging_face(
    source: str, columns: Columns, classes: Sequence[str] | None, options: Mapping[str, Any]
) -> Splits:
    """``hf/NAME`` from the hub, or ``hf/FOLDER`` as ``save_to_disk`` wrote it; options go to ``load_dataset``."""
    if importlib.util.find_spec("datasets") is None:
        raise DataError(f"{source!r} needs the datasets library; install it with pip install 'pencil-labels[hf]'.")
    import datasets

    name = source.removeprefix(PREFIX)
    try:
        folder = Path(name).expanduser()
        is_saved = folder.is_dir() and not options
        loaded = datasets.load_from_disk(str(folder)) if is_saved else datasets.load_dataset(name, **options)
    except (OSError, ValueError, RuntimeError, TypeError) as error:
        raise DataError(f"datasets cannot load {name!r}: {str(error).splitlines()[0]}") from error
    if not isinstance(loaded, Mapping):
        return Splits(from_hugging_face(loaded, columns, classes))
    parts = {SPLITS[split]: part for split, part in loaded.items() if split in SPLITS}
    if "train" not in parts:
        raise DataError(f"{name!r} has the splits {', '.join(loaded)}; expected one named train.")
    train = from_hugging_face(parts.pop("train"), columns, classes)
    return Splits(train, **{split: from_hugging_face(part, columns, train.classes) for split, part in parts.items()})


def from_hugging_face(dataset: Any, columns: Columns | None = None, classes: Sequence[str] | None = None) -> Examples:
    """Examples of a ``datasets.Dataset``; images stay encoded until they are needed, class names are the feature's."""
    chosen = columns or Columns()
    label = _column(dataset, chosen.label, LABEL_COLUMNS, "label")
    image = _column(dataset, chosen.image, (*IMAGE_COLUMNS, "pixel_values", "features", "x"), "input")
    names = getattr(dataset.features[label], "names", None)
    table = dataset.flatten_indices().data.table if dataset._indices is not None else dataset.data.table
    labels = column_labels([table[label]], classes if classes is not None else names, "label", "the dataset")
    keys = as_keys(table[chosen.key].to_numpy() if chosen.key else np.arange(table.num_rows))
    clean = None if chosen.clean is None else hard_column(table[chosen.clean], labels.classes, "the dataset")
    return Examples(
        _inputs(table[image], keys, image),
        torch.arange(table.num_rows),
        labels.given,
        labels.classes,
        keys,
        clean,
        multilabel=labels.multilabel,
    )


def _inputs(column: Any, keys: np.ndarray, name: str) -> Inputs:
    """Encoded images, files of them, or rows of numbers."""
    if pa.types.is_struct(column.type):
        content = pc.struct_field(column, "bytes")
        if content.null_count == 0:
            return ImageInputs(ImageBytes(content.cast(pa.large_binary()).combine_chunks(), keys))
        return ImageInputs(ImageFiles(Path(), as_keys(pc.struct_field(column, "path").to_numpy())))
    if pa.types.is_list(column.type) or pa.types.is_fixed_size_list(column.type):
        return TensorInputs(torch.tensor(column.to_pylist(), dtype=torch.float32))
    raise DataError(f"column {name!r} is of type {column.type}; expected images, or lists of numbers.")


def _column(dataset: Any, wanted: Any, usual: Sequence[str], what: str) -> str:
    if isinstance(wanted, str) and wanted not in dataset.column_names:
        raise DataError(f"the dataset has no column {wanted!r}; it has {', '.join(dataset.column_names)}.")
    found = wanted if isinstance(wanted, str) else next((c for c in usual if c in dataset.column_names), None)
    if found is None:
        raise DataError(
            f"the dataset has no {what} column under a usual name ({', '.join(usual)}); "
            f"it has {', '.join(dataset.column_names)}; name it in data.columns."
        )
    return found
