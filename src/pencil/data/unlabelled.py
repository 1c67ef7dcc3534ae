"""Rows without a label: never used in training or evaluation; the trained network labels them at the end."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from pencil.data.examples import Examples, Splits
from pencil.data.given.given_labels import UNLABELLED, lacks_label
from pencil.data.keys import as_keys
from pencil.decisions import chosen_labels, presence
from pencil.errors import DataError, DataWarning, warn
from pencil.terminal import agreed


def set_apart(splits: Splits) -> Splits:
    """Return the splits with the unlabelled rows separated.

    Unlabelled training rows become ``unlabelled``. Unlabelled validation and test rows are ignored, and counted in
    a warning, because nothing can be measured on them.
    """
    validation, test = _labelled(splits.validation, "validation"), _labelled(splits.test, "test")
    splits = replace(splits, validation=validation, test=test)
    missing = lacks_label(splits.train.given_labels, splits.train.multilabel)
    if not missing.any():
        return splits
    if missing.all():
        raise DataError(
            f"none of the {len(missing):,} training rows has a label; expected labels for some rows; label them."
        )
    rows = splits.train.subset(missing.nonzero()[:, 0])
    unlabelled = replace(rows, given_labels=torch.full((len(rows),), UNLABELLED), clean_labels=None)
    return replace(splits, train=splits.train.subset((~missing).nonzero()[:, 0]), unlabelled=unlabelled)


def _labelled(examples: Examples | None, split: str) -> Examples | None:
    if examples is None:
        return None
    missing = lacks_label(examples.given_labels, examples.multilabel)
    if not missing.any():
        return examples
    count = int(missing.sum())
    have, are = agreed(count, "has", "have"), agreed(count, "is", "are")
    warn(f"{count:,} of {len(examples):,} {split} rows {have} no label and {are} ignored", DataWarning)
    return None if missing.all() else examples.subset((~missing).nonzero()[:, 0])


def with_reviewed(splits: Splits, path: Path) -> Splits:
    """Return the splits with unlabelled rows that were labelled in `pencil review` moved to training."""
    rows = splits.unlabelled
    if rows is None:
        return splits
    labels = {decision.key: decision.label for decision in chosen_labels(path) if decision.label is not None}
    reviewed = np.isin(rows.keys, as_keys(list(labels))) if labels else np.zeros(len(rows), dtype=bool)
    if not reviewed.any():
        return splits
    train, moved = splits.train, rows.subset(torch.from_numpy(np.flatnonzero(reviewed)))
    present = torch.from_numpy(
        presence(((key, labels[key]) for key in moved.keys.tolist()), train.classes, multilabel=False)
    )
    chosen = present.int().argmax(dim=1)
    given = chosen if train.given_labels.ndim == 1 else present.to(train.given_labels)
    order = torch.cat([train.rows, moved.rows]).argsort(stable=True)
    joined = replace(
        train,
        rows=torch.cat([train.rows, moved.rows]),
        given_labels=torch.cat([train.given_labels, given]),
        keys=np.concatenate([train.keys, moved.keys]),
        clean_labels=None if train.clean_labels is None else torch.cat([train.clean_labels, chosen]),
        weights=None if train.weights is None or moved.weights is None else torch.cat([train.weights, moved.weights]),
    ).subset(order)
    left = rows.subset(torch.from_numpy(np.flatnonzero(~reviewed))) if not reviewed.all() else None
    return replace(splits, train=joined, unlabelled=left)
