"""Labels that a person has reviewed: they take the place of the given ones, and nothing moves them any more."""

import hashlib
import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pencil.data.examples import Examples, Splits, as_keys
from pencil.data.given import as_distribution
from pencil.decisions import Decision, Label, chosen_labels, presence
from pencil.errors import DataError


def pin(splits: Splits, path: Path, *, drawn: bool) -> tuple[Splits, str]:
    """Training and validation rows with the labels that ``reviews.jsonl`` has for them, and a digest of these labels.

    Validation rows that were ``drawn`` from the others are elsewhere with another seed, so that a key alone names a
    row, and its newest decision counts; in a validation set of its own the same key may be another row.
    """
    decisions = chosen_labels(path)
    if not decisions:
        warnings.warn(f"{path} pins nothing: no decision in it names a label", stacklevel=3)
    train = [decision for decision in decisions if drawn or decision.split != "validation"]
    validation = decisions if drawn else [decision for decision in decisions if decision.split == "validation"]
    parts = [(splits.train, _by_key(train))]
    if splits.validation is not None:
        parts.append((splits.validation, _by_key(validation)))
    pinned = [_pinned(examples, labels) for examples, labels in parts]
    found = {key for part in pinned for key in part.subset(_places(part)).keys.tolist()}
    _refuse_strangers(path, [decision.key for decision in decisions if decision.key not in found], decisions, splits)
    return replace(splits, train=pinned[0], validation=pinned[1] if len(pinned) > 1 else None), _digest(decisions)


def hold_pinned(label_probs: Tensor, examples: Examples) -> Tensor:
    """What a method or a network says about labels, but for pinned rows: there the person's word stands.

    Of several classes, one that even the person left unknown is as it was said.
    """
    if examples.pinned is None:
        return label_probs
    given, held = examples.given_labels[examples.pinned], label_probs.clone()
    sure = as_distribution(given, examples.num_classes).to(held)
    held[examples.pinned] = torch.where(given.isnan(), held[examples.pinned], sure) if examples.multilabel else sure
    return held


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
        unsaid = given[places].isnan() & ~present  # nobody was asked about it
        given[places] = present.to(given).masked_fill(unsaid, torch.nan)
    pinned = torch.zeros(len(examples), dtype=torch.bool)
    pinned[places] = True
    return replace(examples, given_labels=given, pinned=pinned)


def _places(examples: Examples) -> Tensor:
    assert examples.pinned is not None
    return examples.pinned.nonzero()[:, 0]


def _refuse_strangers(path: Path, strangers: list[str], decisions: Sequence[Decision], splits: Splits) -> None:
    """Reviews of rows that have gone are worth a word; reviews of none but strangers are those of other data."""
    if not strangers:
        return
    if len(strangers) < len(decisions):
        warnings.warn(
            f"{len(strangers):,} of the {len(decisions):,} labels in {path} are of rows that are not here, such as "
            f"{strangers[0]!r}; they are left out",
            stacklevel=4,
        )
        return
    raise DataError(
        f"none of the {len(decisions):,} labels in {path} is of a row that is here: its keys are like "
        f"{strangers[0]!r}, those of the data like {str(splits.train.keys[0])!r}; expected reviews of a run on the "
        "same data; name those."
    )


def _digest(decisions: Sequence[Decision]) -> str:
    """The same for the same labels of the same rows, however often a person has changed his mind in between."""
    labels = sorted([decision.key, decision.split, decision.label] for decision in decisions)
    return hashlib.sha256(json.dumps(labels).encode()).hexdigest()
