"""Rows in more than one split: test rows must not be trained on."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pencil.data.check.duplicates import Groups, group_equal, with_different_labels
from pencil.data.check.inspection import Inspection, find_near_duplicates, label_of
from pencil.data.examples import Examples
from pencil.data.given.given_labels import hard_labels


@dataclass(frozen=True, eq=False)
class Overlap:
    """Groups of rows in more than one split; positions count through the concatenated splits.

    ``near_duplicates`` have one row of each group of exact copies; conflicts are the groups whose labels differ.
    """

    splits: Mapping[str, Examples]
    duplicates: Groups
    conflicts: Groups
    near_duplicates: Groups
    near_conflicts: Groups

    def member(self, position: int) -> tuple[str, Examples, int]:
        """Return the split of a position, its examples, and the position in it."""
        for name, part in self.splits.items():
            if position < len(part):
                return name, part, position
            position -= len(part)
        raise IndexError(f"position {position} is beyond the last split")


def find_overlap(splits: Mapping[str, Examples], findings: Mapping[str, Inspection]) -> Overlap | None:
    """Compare the rows of all splits; None if there is only one split."""
    if len(splits) < 2:
        return None
    parts, prints = list(splits.values()), [findings[name].prints for name in splits]
    starts = np.cumsum([0, *map(len, parts)])[:-1]
    readable = np.concatenate([one.readable + start for one, start in zip(prints, starts, strict=True)])
    split_of = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    exact = group_equal(np.concatenate([one.words for one in prints]), readable)
    groups = [with_different_labels(found, split_of) for found in (exact, find_near_duplicates(parts, prints)[0])]
    labels = _labels_of(parts)
    conflicts = [one.chosen(np.zeros(len(one), dtype=bool)) for one in groups]
    if labels is not None:
        conflicts = [with_different_labels(one, labels) for one in groups]
    return Overlap(splits, groups[0], conflicts[0], groups[1], conflicts[1])


def _labels_of(parts: list[Examples]) -> np.ndarray | None:
    """Return the labels of all splits in one form; None if they cannot be compared."""
    if len({part.classes for part in parts}) > 1 or len({part.multilabel for part in parts}) > 1:
        return None
    given = [part.given_labels for part in parts]
    if len({labels.ndim for labels in given}) > 1:
        given = [hard_labels(labels) for labels in given]
    return np.concatenate([labels.numpy() for labels in given])


def overlap_tree(overlap: Overlap) -> dict[str, Any]:
    """Return an overlap as plain values, with rows given by split and key."""

    def described(groups: Groups, with_label: bool) -> list[list[dict[str, Any]]]:
        return [[_row_tree(overlap, int(position), with_label) for position in group] for group in groups]

    return {
        "duplicates": described(overlap.duplicates, False),
        "conflicting_duplicates": described(overlap.conflicts, True),
        "near_duplicates": described(overlap.near_duplicates, False),
        "conflicting_near_duplicates": described(overlap.near_conflicts, True),
    }


def _row_tree(overlap: Overlap, position: int, with_label: bool) -> dict[str, Any]:
    name, examples, row = overlap.member(position)
    found: dict[str, Any] = {"split": name, "key": str(examples.keys[row])}
    return found | ({"label": label_of(examples, row)} if with_label else {})
