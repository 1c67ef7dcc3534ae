"""Labels as a table, one row per example, and as a few numbers: what a run has to say about its data."""

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from pencil.data.examples import Examples, Splits
from pencil.labels.reading import read_entries, read_labels, reliability
from pencil.training.metrics import correct_entries


def label_table(splits: Splits, label_probs: Tensor, validation_probs: Tensor | None) -> pa.Table:
    """Every labelled row. Held-out ones were never trained on, so the network's word stands for them."""
    table = _label_columns(splits.train, label_probs, "train")
    if splits.validation is not None and validation_probs is not None:
        table = pa.concat_tables([table, _label_columns(splits.validation, validation_probs, "validation")])
        if not torch.isin(splits.train.rows, splits.validation.rows).any():  # held out of the same data: as it stood
            in_order = torch.cat([splits.train.rows, splits.validation.rows]).argsort(stable=True)
            table = table.take(pa.array(in_order.numpy()))
    return table.replace_schema_metadata({"classes": json.dumps(splits.train.classes)}).combine_chunks()


def row_table(loaded: Splits, splits: Splits) -> pa.Table:
    """The keys of the rows as they came, and what became of each: train, validation or unused."""
    keys = pa.array(loaded.train.keys.tolist(), pa.string())
    is_train = pc.is_in(keys, pa.array(splits.train.keys.tolist(), pa.string()))
    split = pc.if_else(is_train, "train", "unused")
    if splits.validation is not None and loaded.validation is None:  # held out of the same rows
        is_held = pc.is_in(keys, pa.array(splits.validation.keys.tolist(), pa.string()))
        split = pc.if_else(is_held, "validation", split)
    return pa.table({"key": keys, "split": split.dictionary_encode()})


def summarize_labels(train: Examples, label_probs: Tensor) -> dict[str, Any]:
    """How many labels changed, and how many are right before and after where that is known."""
    clean = train.clean_labels
    found: dict[str, Any] = {"rows": len(train)}
    if train.pinned is not None:
        found["pinned"] = int(train.pinned.sum())
    if train.multilabel:
        entries = read_entries(label_probs, train.given_labels)
        found["entries"] = int(entries.known.sum())
        found["changed"] = int(entries.changed.sum())
        if clean is not None:
            found["correct_before"] = correct_entries(entries.given, clean)
            found["correct_after"] = correct_entries(entries.corrected, clean)
            found |= _repairs(entries.given, entries.corrected, clean > 0.5, entries.changed & ~clean.isnan())
        return found
    reading = read_labels(label_probs, train.given_labels)
    found["changed"] = int(reading.changed.sum())
    if clean is not None:
        found["correct_before"] = float((reading.given == clean).double().mean())
        found["correct_after"] = float((reading.corrected == clean).double().mean())
        found |= _repairs(reading.given, reading.corrected, clean, reading.changed)
        found["calibration"] = reliability(reading.confidence, reading.corrected == clean)
    return found


def _repairs(given: Tensor, corrected: Tensor, clean: Tensor, changed: Tensor) -> dict[str, int]:
    """Of what was changed: how much was wrong and is now right, and how much was right and is now wrong."""
    return {
        "repaired": int((changed & (corrected == clean)).sum()),
        "broken": int((changed & (given == clean)).sum()),
    }


def _label_columns(examples: Examples, label_probs: Tensor, split: str) -> pa.Table:
    if examples.multilabel:
        return _entry_columns(examples, label_probs, split)
    reading = read_labels(label_probs, examples.given_labels)
    names = pa.array(examples.classes)

    def named(labels: Tensor) -> pa.DictionaryArray:
        return pa.DictionaryArray.from_arrays(pa.array(labels.numpy().astype(np.int32)), names)

    return pa.table(
        {
            **_identity(examples, split),
            "given": named(reading.given),
            "corrected": named(reading.corrected),
            "confidence": reading.confidence.float().numpy(),
            "given_probability": reading.given_probability.float().numpy(),
            "margin": reading.margin.float().numpy(),
            "entropy": reading.entropy.float().numpy(),
            "changed": reading.changed.numpy(),
            "distribution": _matrix(label_probs),
            **_pinned(examples),
        }
    )


def _entry_columns(examples: Examples, label_probs: Tensor, split: str) -> pa.Table:
    """Several classes at once: the classes present as given and as corrected, and the probability of every one."""
    entries = read_entries(label_probs, examples.given_labels)
    unsure = entries.confidence.where(entries.known, torch.inf)
    return pa.table(
        {
            **_identity(examples, split),
            "given": _present(entries.given, examples.classes),
            "corrected": _present(entries.corrected & entries.known, examples.classes),
            "confidence": unsure.amin(dim=1).nan_to_num(posinf=0.5).float().numpy(),
            "changed": entries.changed.sum(dim=1).int().numpy(),
            "given_probabilities": _matrix(examples.given_labels),
            "distribution": _matrix(label_probs),
            **_pinned(examples),
        }
    )


def _identity(examples: Examples, split: str) -> dict[str, Any]:
    return {
        "key": pa.array(examples.keys.tolist(), pa.string()),
        "split": pa.array([split] * len(examples)).dictionary_encode(),
    }


def _pinned(examples: Examples) -> dict[str, Any]:
    """A column more where some labels are reviewed ones."""
    return {} if examples.pinned is None else {"pinned": examples.pinned.numpy()}


def _present(entries: Tensor, classes: tuple[str, ...]) -> pa.ListArray:
    offsets = np.concatenate([[0], entries.sum(dim=1).cumsum(dim=0).numpy()]).astype(np.int32)
    return pa.ListArray.from_arrays(offsets, pa.array(classes).take(pa.array(entries.nonzero()[:, 1].numpy())))


def _matrix(values: Tensor) -> pa.FixedSizeListArray:
    return pa.FixedSizeListArray.from_arrays(pa.array(values.float().contiguous().view(-1).numpy()), values.shape[1])
