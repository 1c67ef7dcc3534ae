"""Pinned labels: labels that a person has reviewed; they replace the given labels and never move."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pencil.data.examples import Examples, Splits
from pencil.data.given.given_labels import as_distribution
from pencil.data.keys import as_keys
from pencil.decisions import Decision, Label, chosen_labels, presence
from pencil.errors import DataError, DataWarning, setting, warn
from pencil.terminal import agreed


def pin(splits: Splits, path: Path, *, drawn: bool) -> tuple[Splits, str]:
    """Pin the labels of ``reviews.jsonl`` in training and validation rows; return also a digest of the labels.

    If validation rows were ``drawn`` from the training data, another seed draws other rows, so a key alone
    identifies a row, and its newest decision counts; in a separate validation set the same key may be another row.
    """
    decisions = chosen_labels(path)
    if not decisions:
        warn(f"{path} pins no labels: no decision in it has a label; review rows with `pencil review`", DataWarning)
    train = [decision for decision in decisions if drawn or decision.split != "validation"]
    validation = decisions if drawn else [decision for decision in decisions if decision.split == "validation"]
    parts = [(splits.train, _by_key(train))]
    if splits.validation is not None:
        parts.append((splits.validation, _by_key(validation)))
    pinned = [_pinned(examples, labels) for examples, labels in parts]
    found = {key for part in pinned for key in part.subset(_places(part)).keys.tolist()}
    _refuse_unknown_keys(path, [decision.key for decision in decisions if decision.key not in found], decisions, splits)
    return replace(splits, train=pinned[0], validation=pinned[1] if len(pinned) > 1 else None), _digest(decisions)


def apply_pinned(label_probs: Tensor, examples: Examples) -> Tensor:
    """Return label probabilities (n, classes) in which pinned rows of the n examples have the reviewed labels.

    A multi-label entry without a decision keeps its probability.
    """
    if examples.pinned is None:
        return label_probs
    given, probs = examples.given_labels[examples.pinned], label_probs.clone()
    pinned = as_distribution(given, examples.num_classes).to(probs)
    probs[examples.pinned] = (
        torch.where(given.isnan(), probs[examples.pinned], pinned) if examples.multilabel else pinned
    )
    return probs


def _by_key(decisions: Sequence[Decision]) -> dict[str, Label]:
    return {decision.key: decision.label for decision in decisions if decision.label is not None}


def _pinned(examples: Examples, labels: Mapping[str, Label]) -> Examples:
    rows = np.flatnonzero(np.isin(examples.keys, as_keys(list(labels)))) if labels else np.zeros(0, dtype=np.int64)
    keys = examples.keys[rows].tolist()
    present = torch.from_numpy(
        presence(((key, labels[key]) for key in keys), examples.classes, multilabel=examples.multilabel)
    )
    given, places = examples.given_labels.clone(), torch.from_numpy(rows)
    if given.ndim == 1:
        given[places] = present.int().argmax(dim=1)
    else:
        unknown = given[places].isnan() & ~present  # the person was not asked about it
        given[places] = present.to(given).masked_fill(unknown, torch.nan)
    pinned = torch.zeros(len(examples), dtype=torch.bool)
    pinned[places] = True
    return replace(examples, given_labels=given, pinned=pinned)


def _places(examples: Examples) -> Tensor:
    assert examples.pinned is not None
    return examples.pinned.nonzero()[:, 0]


def _refuse_unknown_keys(path: Path, unknown: list[str], decisions: Sequence[Decision], splits: Splits) -> None:
    """Warn about reviews of rows that no longer exist; raise if there are no others: they belong to other data."""
    if not unknown:
        return
    if len(unknown) < len(decisions):
        rows = agreed(len(unknown), "is for a row that is", "are for rows that are")
        warn(
            f"{len(unknown):,} of the {len(decisions):,} labels in {path} {rows} not in the data, such as "
            f"{unknown[0]!r}; {agreed(len(unknown), 'it is', 'they are')} ignored",
            DataWarning,
        )
        return
    raise DataError(
        f"none of the {len(decisions):,} labels in {path} is for a row of the data: its keys look like {unknown[0]!r}, "
        f"keys of the data like {str(splits.train.keys[0])!r}; expected reviews of a run on the same data; "
        f"pass them with {setting('data.pinned', 'FILE')}."
    )


def _digest(decisions: Sequence[Decision]) -> str:
    """Return a digest that depends only on the rows' labels, not on decisions that were replaced later."""
    labels = sorted([decision.key, decision.split, decision.label] for decision in decisions)
    return hashlib.sha256(json.dumps(labels).encode()).hexdigest()
