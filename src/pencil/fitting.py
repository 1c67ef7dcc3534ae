"""``pencil.fit``: data and network as Python objects."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pencil import recipe
from pencil.data.examples import Examples, Splits
from pencil.data.given.from_columns import LabelCells
from pencil.data.given.given_labels import error_context
from pencil.data.given.resolving import as_clean_labels
from pencil.data.read import read_like, read_source
from pencil.data.rows import Rows, to_splits
from pencil.data.settings import FROM_PYTHON, DataSettings
from pencil.data.sources.arrays import array_rows
from pencil.data.sources.frames import as_label_values, as_values, frame_rows, is_frame, pair_keys
from pencil.data.sources.hugging_face_datasets import hugging_face_rows, is_hugging_face
from pencil.data.sources.torch_dataset import dataset_rows
from pencil.data.unlabelled import set_apart
from pencil.errors import DataError, RecipeError
from pencil.job import run_recipe
from pencil.methods import Method
from pencil.models.probe import as_network
from pencil.runs.run import Run
from pencil.user_file import Trust


def fit(
    model: nn.Module | str,
    data: Any,
    *,
    label: str | Sequence[str] | None = None,
    out: Path | str | None = None,
    method: Method | str = recipe.DEFAULT_METHOD,
    test: Any = None,
    classes: Sequence[str] | int | None = None,
    clean_labels: Any = None,
    sample_weight: Any = None,
    multilabel: bool | None = None,
    epochs: int | None = None,
    seed: int = 0,
    settings: Mapping[str, Any] | None = None,
    progress: bool | None = None,
    resume: bool = False,
    engine: str = "local",
) -> Run:
    """Train on labels that may be wrong; return a network robust to the errors, and corrected labels.

    Parameters
    ----------
    model
        Any ``nn.Module`` that returns one logit per class (it is copied, never changed), or a backbone by name.
    data
        A source as on the command line (a folder, a file, a dataset by name), a table (a pandas or polars data frame,
        an Arrow table), a map-style dataset of ``(x, y)``, a pair of arrays, or a pair of a table and labels. ``y``
        holds classes, or for multi-label data a probability for each class (NaN: unknown). The index of a pandas object
        provides the keys.
    label
        The column of a table that holds the labels, or one column per annotator; by default detected by its name.
    out
        Run directory; by default nothing is written.
    method
        A method by name (``"auto"`` chooses its own settings, ``"pencil"`` is the paper's), or an instance.
    test
        Test data, in any of the forms of ``data``.
    classes
        Names of the classes in order, or their number.
    clean_labels
        Labels known to be right, used for metrics only; for a table, also the name of their column.
    sample_weight
        One weight per row, which multiplies its loss; weights are scaled to a mean of 1. Noise estimates and label
        correction ignore the weights.
    multilabel
        Whether an example may have several classes; by default True if ``y`` contains only 0 and 1 and a row has two
        ones.
    epochs
        Total number of epochs.
    seed
        Seed of the split, the weights and the order.
    settings
        Further recipe keys, for example ``{"training.batch_size": 64, "method.lr": 0.05}``.
    progress
        Show progress on stderr; by default only on a terminal.
    resume
        Resume the run in ``out`` if there is one.
    engine
        Where the features of a frozen backbone are computed: "local", or "ray" for the machines of a Ray cluster.

    Returns
    -------
    Run
        The network, the label table, metrics and summary.
    """
    own_model = None if isinstance(model, str) else as_network(model)
    tree: recipe.Tree = {"name": "fit", "data": {"source": FROM_PYTHON}}
    if _is_source(data):
        tree = recipe.of_source(os.fspath(data))
        if _is_source(test):
            tree["data"]["test"] = recipe.of_source(os.fspath(test))["data"]["source"]
    tree["seed"], tree["data"]["multilabel"] = seed, multilabel
    tree["data"]["columns"] = _named_columns(data, label, clean_labels)
    tree["method"] = {"name": method if isinstance(method, str) else recipe.CUSTOM}
    if epochs is not None:
        tree["training"] = {"epochs": epochs}
    tree["model"] = {"name": model if isinstance(model, str) else recipe.CUSTOM}
    for key, value in (settings or {}).items():
        section = key.split(".")[0]
        if section in ("model", "method") and tree[section]["name"] == recipe.CUSTOM:
            raise RecipeError(f"settings has {key!r}, but {section} is an object; set it on the object.")
        tree = recipe.assign(tree, key.split("."), value)
    chosen = recipe.parse(tree, "the call to pencil.fit", trust=Trust.of(tree))  # the caller named the files
    splits = as_splits(data, chosen.data, classes or chosen.data.classes, clean_labels)
    if classes is not None:  # declared, as with data.classes
        declared = chosen.data.model_copy(update={"classes": splits.train.classes})
        chosen = chosen.model_copy(update={"data": declared})
    if test is not None:
        with error_context("the test set"):
            splits = replace(splits, test=_as_test(test, chosen.data, splits.train))
    if sample_weight is not None:
        splits = replace(splits, train=replace(splits.train, weights=as_weights(sample_weight, len(splits.train))))
    own_method = None if isinstance(method, str) else method
    splits = set_apart(splits)
    return run_recipe(
        chosen, out, data=splits, model=own_model, method=own_method, resume=resume, progress=progress, engine=engine
    )


def as_weights(sample_weight: Any, count: int) -> Tensor:
    """Return row weights, scaled to a mean of 1.

    Raises
    ------
    DataError
        If the number of weights differs from the number of rows, a weight is negative or not finite, or all are 0.
    """
    values = np.asarray(sample_weight)
    if values.shape != (count,) or values.dtype.kind not in "buif":
        raise DataError(
            f"sample_weight is {values.dtype} of shape {values.shape}; expected one number per row; pass an array of "
            f"length {count}."
        )
    weights = values.astype(np.float64)
    bad = ~(np.isfinite(weights) & (weights >= 0))
    if bad.any() or not weights.any():
        row = int(bad.argmax())
        raise DataError(
            f"sample_weight at row {row} is {weights[row]}; expected non-negative numbers, not all 0; fix the weights."
        )
    return torch.from_numpy((weights / weights.mean()).astype(np.float32))


def _named_columns(data: Any, label: Any, clean_labels: Any) -> recipe.Tree:
    """Return the part of a recipe that names the label columns."""
    columns: recipe.Tree = {}
    if label is not None:
        if not _has_columns(data):
            raise DataError(
                f"label is {label!r}, but the data is a {type(data).__name__}; expected a table with named columns, "
                "such as a data frame; remove label, or pass a table."
            )
        several = isinstance(label, Sequence) and not isinstance(label, str)
        columns["label"] = [str(name) for name in label] if several else str(label)
    if isinstance(clean_labels, str) and _has_columns(data):
        columns["clean"] = clean_labels
    return columns


def _is_source(data: Any) -> bool:
    return isinstance(data, (str, os.PathLike))


def _has_columns(data: Any) -> bool:
    return _is_source(data) or is_hugging_face(data) or is_frame(data)


def _as_test(test: Any, settings: DataSettings, train: Examples) -> Examples:
    """Return test data whose columns have the same roles as in the training data."""
    columns = settings.columns if train.table is None else train.table.with_key(settings.columns)
    if train.inputs.records is not None:
        columns = columns.model_copy(update=train.inputs.records.roles.by_key())
    like = settings.model_copy(update={"multilabel": train.multilabel, "columns": columns})
    if _is_source(test):
        return read_like(os.fspath(test), like, train.classes, train.multilabel).train
    return as_splits(test, like, train.classes).train


def as_splits(
    data: Any, settings: DataSettings, classes: Sequence[str] | int | None = None, clean_labels: Any = None
) -> Splits:
    """Return the splits of data in any form that :func:`fit` accepts; most forms have a single split."""
    if isinstance(data, Splits):
        return data
    if isinstance(data, Examples):
        return Splits(data)
    if not _has_columns(data):
        labels = LabelCells(None, classes=classes, multilabel=settings.multilabel, clean=clean_labels)
        return to_splits(_object_rows(data, settings, labels), settings.bad_rows)
    if isinstance(classes, int):
        raise DataError(
            f"classes is {classes}; expected the class names, because the data is a table or a source; pass the "
            "names in order."
        )
    if _is_source(data):
        splits = read_source(os.fspath(data), settings, classes)
    else:
        read = hugging_face_rows if is_hugging_face(data) else frame_rows
        chosen = settings.model_copy(update={"classes": None if classes is None else tuple(classes)})
        splits = to_splits(read(data, chosen), settings.bad_rows)
    if clean_labels is None or isinstance(clean_labels, str):
        return splits
    train = splits.train
    return replace(splits, train=replace(train, clean_labels=_known(as_label_values(clean_labels)[0], train)))


def _known(labels: Any, examples: Examples) -> Tensor | None:
    known = as_clean_labels(labels, examples.classes, examples.multilabel)
    if known is not None and len(known) != len(examples):
        raise DataError(
            f"clean_labels has {len(known)} labels for {len(examples)} training rows; expected one per row; pass the "
            "name of their column instead."
        )
    return known


def _object_rows(data: Any, settings: DataSettings, labels: LabelCells) -> Rows:
    """Return the rows of a pair of inputs and labels, or of a map-style dataset; their labels are added."""
    if not isinstance(data, tuple) or (len(data) != 2 and all(isinstance(item, (tuple, Mapping)) for item in data)):
        return dataset_rows(data, labels, settings.workers or 0)
    if len(data) != 2:
        raise DataError(f"data is a tuple of {len(data)}; expected (x, y); pass inputs and labels, others by name.")
    x, labels = data[0], replace(labels, given=data[1])
    if is_frame(x):
        return frame_rows(x, settings, labels)
    return array_rows(x, as_values(labels), pair_keys(x, labels.given))
