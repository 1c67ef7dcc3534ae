"""Inspection of every row of the data: classes, sizes, unreadable and blank images, duplicates."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from pencil.data.bad_rows import or_skip
from pencil.data.check.duplicates import (
    MIN_FEATURES,
    MOST_ROWS,
    NO_GROUPS,
    Comparable,
    Groups,
    Sketches,
    Vectors,
    group_equal,
    near_groups,
    with_different_labels,
)
from pencil.data.examples import Examples
from pencil.data.given.given_labels import UNLABELLED, hard_labels, has_tie, lacks_label
from pencil.data.inputs.base import DIGEST, MAX_PIXELS, Fault, Size, list_faults
from pencil.data.inputs.records import ColumnFinding
from pencil.data.inputs.sketch import SKETCH
from pencil.data.inputs.transform import rows_within
from pencil.data.settings import DataSettings
from pencil.errors import DataError, setting

CHUNK = 64
RARE = 10
"""A class with fewer rows counts as rare."""
BLANK, BLANK_FRACTION = 2.0, 0.01
"""Maximum pixel deviation of a blank image: in grey levels, or as a fraction of the median image's deviation."""
EXTREME_SIDE, EXTREME_ASPECT = 4.0, 3.0
"""An image is extreme if it differs from the median by more than these factors."""


@dataclass(frozen=True)
class ImageSizes:
    """Upright heights and widths: fewest and most pixels, the most common size and the fraction of images with it."""

    smallest: Size
    largest: Size
    most_common: Size
    fraction: float


@dataclass(frozen=True, eq=False)
class Prints:
    """What is kept of every row for comparisons: its digest, whether it is readable, and sketches of (some) images."""

    digests: np.ndarray
    readable: np.ndarray
    sketched: np.ndarray
    sketches: np.ndarray

    @property
    def words(self) -> np.ndarray:
        """One value per readable row, equal for equal content."""
        words: np.ndarray = self.digests[self.readable].view(f"V{DIGEST}")[:, 0]
        return words


@dataclass(frozen=True, eq=False)
class Inspection:
    """The result of an inspection of one split.

    Parameters
    ----------
    rows
        The number of rows, with the unreadable ones; all other counts are without them.
    class_counts
        Rows per class; in multi-label data, rows with the class present.
    unknown_labels, unknown_rows, rows_without_class
        In multi-label data: unknown entries, rows without known entries, and rows with known entries but no class
        present.
    image_sizes
        Sizes of encoded images; None for arrays.
    input_shape
        The shape of arrays; None for encoded images.
    unreadable
        Unreadable images.
    duplicates
        Groups of rows with equal encoded bytes (equal numbers in arrays).
    conflicts
        The groups among them whose labels differ.
    near_duplicates, near_conflicts
        Groups of nearly equal rows, one of each group of exact copies; and the groups among them whose labels differ.
    near_rows
        The number of rows searched for near-duplicates; 0 if rows cannot be compared.
    rare_classes
        Classes with at least one row, but fewer than ``RARE``.
    blank
        Positions of images whose pixels hardly differ.
    extreme_sizes
        Positions and sizes of images far from the median in size or aspect ratio.
    columns, unused
        For an encoded table: the role of each column, and why other columns are not used.
    prints
        What other splits are compared with.
    """

    rows: int
    class_counts: dict[str, int]
    unknown_labels: int
    unknown_rows: int
    rows_without_class: int
    image_sizes: ImageSizes | None
    input_shape: tuple[int, ...] | None
    unreadable: tuple[Fault, ...]
    duplicates: Groups
    conflicts: Groups
    near_duplicates: Groups
    near_conflicts: Groups
    near_rows: int
    rare_classes: dict[str, int]
    blank: np.ndarray
    extreme_sizes: tuple[tuple[int, Size], ...]
    columns: tuple[ColumnFinding, ...]
    unused: Mapping[str, str]
    prints: Prints


def inspect(examples: Examples, workers: int = 0, max_pixels: int = MAX_PIXELS) -> Inspection:
    """Read every row once; only a digest, a size and a sketch of each row stay in memory."""
    rows = _read_rows(examples, workers, max_pixels)
    prints, sizes = rows.prints, rows.sizes[rows.prints.readable]
    labels = examples.given_labels.numpy()
    readable = examples.subset(torch.from_numpy(prints.readable))
    counts = count_classes(readable)
    duplicates = group_equal(prints.words, prints.readable)
    near, near_rows = find_near_duplicates([examples], [prints])
    encoded, records = rows.shape is None and len(sizes) > 0, examples.inputs.records
    return Inspection(
        rows=len(examples),
        class_counts=counts,
        **_count_unknown(readable),
        image_sizes=_summary(sizes) if encoded else None,
        input_shape=rows.shape,
        unreadable=rows.faults,
        duplicates=duplicates,
        conflicts=with_different_labels(duplicates, labels),
        near_duplicates=near,
        near_conflicts=with_different_labels(near, labels),
        near_rows=near_rows,
        rare_classes={name: count for name, count in counts.items() if 0 < count < RARE},
        blank=_find_blank(rows.deviations, examples.inputs.dtype == torch.uint8),
        extreme_sizes=_find_extreme(sizes, prints.readable) if encoded else (),
        columns=() if records is None else records.findings(examples.rows),
        unused={} if records is None else records.roles.unused,
        prints=prints,
    )


class _Rows(NamedTuple):
    """What was read of every row; missing deviations are NaN."""

    prints: Prints
    sizes: np.ndarray
    deviations: np.ndarray
    shape: tuple[int, ...] | None
    faults: tuple[Fault, ...]


def _read_rows(examples: Examples, workers: int, max_pixels: int) -> _Rows:
    """Read every row once, in chunks."""
    count, inputs = len(examples), examples.inputs
    digests, sizes = np.zeros((count, DIGEST), dtype=np.uint8), np.zeros((count, 2), dtype=np.int64)
    deviations = np.full(count, np.nan)
    sketched = np.unique(np.linspace(0, count - 1, min(count, MOST_ROWS)).astype(np.int64))
    place_of = np.full(count, -1)
    place_of[sketched] = np.arange(len(sketched))
    sketches, has_sketch = np.zeros((len(sketched), SKETCH), dtype=np.uint8), np.zeros(len(sketched), dtype=bool)
    shape: tuple[int, ...] | None = None
    faults: list[Fault] = []
    known = inputs.in_memory.shape[1:] if inputs.in_memory is not None else inputs.shape or ()
    places = torch.arange(count).split(min(CHUNK, rows_within(known, 8)))
    inspected = inputs.inspect([examples.rows[place] for place in places], workers=workers, max_pixels=max_pixels)
    for place, chunk in zip(places, inspected, strict=True):
        for position, row in zip(place.tolist(), chunk, strict=True):
            digests[position] = np.frombuffer(row.digest, dtype=np.uint8)
            sizes[position] = (0, 0) if row.size is None else row.size
            shape = row.shape or shape
            if row.fault is not None:
                faults.append(row.fault)
            if row.look is not None:
                deviations[position] = row.look.deviation
                if place_of[position] >= 0:
                    sketches[place_of[position]], has_sketch[place_of[position]] = row.look.sketch, True
    readable = np.flatnonzero(~np.isin(examples.rows.numpy(), [fault.row for fault in faults]))
    prints = Prints(digests, readable, sketched[has_sketch], sketches if has_sketch.all() else sketches[has_sketch])
    return _Rows(prints, sizes, deviations, shape, tuple(faults))


def find_conflicts(parts: Sequence[Examples]) -> list[torch.Tensor] | None:
    """Return a mask of the rows of each part with a duplicate or near-duplicate that has another label.

    None if the inputs are not in memory, or if there are too many rows to compare all of them.
    """
    if any(part.inputs.in_memory is None for part in parts) or sum(map(len, parts)) > MOST_ROWS:
        return None
    prints = [_read_rows(part, 0, MAX_PIXELS).prints for part in parts]
    sizes = [len(part) for part in parts]
    starts = np.cumsum([0, *sizes])[:-1]
    readable = np.concatenate([one.readable + start for one, start in zip(prints, starts, strict=True)])
    same = group_equal(np.concatenate([one.words for one in prints]), readable)
    labels = np.concatenate([_labels(part) for part in parts])
    found = torch.zeros(sum(sizes), dtype=torch.bool)
    for groups in (same, find_near_duplicates(parts, prints)[0]):
        found[torch.from_numpy(with_different_labels(groups, labels).positions)] = True
    return list(found.split(sizes))


def _labels(examples: Examples) -> np.ndarray:
    """Return the class of each row, or the probabilities of multi-label data, NaN where unknown."""
    given = examples.given_labels.double()
    if not examples.multilabel:
        given = hard_labels(given).double().masked_fill(has_tie(examples.given_labels), torch.nan)
    labels: np.ndarray = given.numpy()
    return labels


def find_near_duplicates(parts: Sequence[Examples], prints: Sequence[Prints]) -> tuple[Groups, int]:
    """Return groups of near-duplicates, and the number of rows that were searched.

    Images are compared by their sketches, vectors of at least ``MIN_FEATURES`` features in memory by their cosine.
    Positions count through the concatenated parts.
    """
    starts = np.cumsum([0, *map(len, parts)])[:-1]
    vectors = [
        (part.inputs.in_memory, part.rows)
        for part in parts
        if part.inputs.in_memory is not None and part.inputs.in_memory.ndim == 2
    ]
    widths = [values.shape[1] for values, _ in vectors]
    items: Comparable
    if all(len(one.sketched) for one in prints):
        positions = np.concatenate([one.sketched + start for one, start in zip(prints, starts, strict=True)])
        items = Sketches(np.concatenate([one.sketches for one in prints]))
    elif len(vectors) == len(parts) and min(widths) == max(widths) >= MIN_FEATURES:
        positions, items = np.arange(sum(map(len, parts))), Vectors(vectors)
    else:
        return NO_GROUPS, 0
    readable = np.concatenate([one.readable + start for one, start in zip(prints, starts, strict=True)])
    distinct = readable[np.unique(np.concatenate([one.words for one in prints]), return_index=True)[1]]
    candidates = np.flatnonzero(np.isin(positions, distinct))
    if len(candidates) > MOST_ROWS:
        candidates = candidates[np.linspace(0, len(candidates) - 1, MOST_ROWS).astype(np.int64)]
    near = near_groups(items, candidates)
    return Groups(positions[near.positions], near.starts), len(candidates)


def _find_blank(deviations: np.ndarray, in_bytes: bool) -> np.ndarray:
    """Return positions of images whose pixels hardly differ: in grey levels; floats, relative to the median image."""
    known = deviations[~np.isnan(deviations)]
    if not len(known):
        return np.empty(0, dtype=np.int64)
    limit = BLANK if in_bytes else BLANK_FRACTION * float(np.median(known))
    return np.flatnonzero(deviations <= limit)


def _find_extreme(sizes: np.ndarray, positions: np.ndarray) -> tuple[tuple[int, Size], ...]:
    """Return images whose sides or aspect ratio are many times the median, or a small fraction of it."""
    sides, shapes = np.log(sizes.prod(axis=1)) / 2, np.log(sizes[:, 1] / sizes[:, 0])
    far = np.abs(sides - np.median(sides)) > np.log(EXTREME_SIDE)
    far |= np.abs(shapes - np.median(shapes)) > np.log(EXTREME_ASPECT)
    return tuple((int(positions[i]), (int(sizes[i, 0]), int(sizes[i, 1]))) for i in np.flatnonzero(far))


def refusals(inspection: Inspection, split: str, settings: DataSettings) -> list[DataError]:
    """Return the errors with which training would stop when it reads these rows."""
    found, sizes = [], inspection.image_sizes
    if len(inspection.unreadable) == inspection.rows or (inspection.unreadable and settings.bad_rows == "error"):
        found.append(
            f"{len(inspection.unreadable):,} of {inspection.rows:,} {split} images cannot be read: "
            f"{list_faults(inspection.unreadable)}; expected images; fix or remove them{or_skip()}."
        )
    if sizes is not None and settings.resize == "none" and sizes.fraction < 1:
        found.append(
            f"{split} images range from {_pixels(sizes.smallest)} to {_pixels(sizes.largest)} pixels; "
            f"expected one size; set one with {setting('data.resize', 224)}."
        )
    return [DataError(message) for message in found]


def _pixels(size: Size) -> str:
    return f"{size[0]} x {size[1]}"


def count_classes(examples: Examples) -> dict[str, int]:
    """Count the rows with each class as given label; a multi-label row counts for all of its classes."""
    if examples.multilabel:
        counts = (examples.given_labels > 0.5).sum(dim=0)
    else:
        known = ~lacks_label(examples.given_labels, examples.multilabel)
        counts = torch.bincount(hard_labels(examples.given_labels[known]), minlength=examples.num_classes)
    return dict(zip(examples.classes, counts.tolist(), strict=True))


def _count_unknown(examples: Examples) -> dict[str, int]:
    """Count unknown multi-label entries, and the rows without a class."""
    if not examples.multilabel:
        return {"unknown_labels": 0, "unknown_rows": 0, "rows_without_class": 0}
    unknown, present = examples.given_labels.isnan(), examples.given_labels > 0.5
    empty = unknown.all(dim=1)
    without = ~present.any(dim=1) & ~empty
    counts = {"unknown_labels": unknown, "unknown_rows": empty, "rows_without_class": without}
    return {name: int(found.sum()) for name, found in counts.items()}


def label_of(examples: Examples, position: int) -> str | list[str] | dict[str, float]:
    """Return a given label as text: a class, the classes present, or the probabilities above 0; empty for none."""
    label = examples.given_labels[position]
    if label.ndim == 0:
        return "" if label == UNLABELLED else examples.classes[int(label)]
    probs = {name: value for name, value in zip(examples.classes, label.tolist(), strict=True) if value > 0}
    return list(probs) if examples.multilabel and set(probs.values()) <= {1.0} else probs


def as_tree(inspection: Inspection, examples: Examples) -> dict[str, Any]:
    """Return an inspection as plain values, with rows given by their keys."""
    return {
        "rows": inspection.rows,
        "class_counts": inspection.class_counts,
        "unknown_labels": inspection.unknown_labels,
        "unknown_rows": inspection.unknown_rows,
        "rows_without_class": inspection.rows_without_class,
        "image_sizes": None if inspection.image_sizes is None else vars(inspection.image_sizes),
        "input_shape": inspection.input_shape,
        "unreadable": [fault._asdict() for fault in inspection.unreadable],
        "duplicates": [examples.keys[group].tolist() for group in inspection.duplicates],
        "conflicting_duplicates": [_with_labels(group, examples) for group in inspection.conflicts],
        "near_duplicates": [examples.keys[group].tolist() for group in inspection.near_duplicates],
        "conflicting_near_duplicates": [_with_labels(group, examples) for group in inspection.near_conflicts],
        "near_duplicates_rows": inspection.near_rows,
        "rare_classes": inspection.rare_classes,
        "blank": examples.keys[inspection.blank].tolist(),
        "columns": [one._asdict() for one in inspection.columns],
        "unused_columns": dict(inspection.unused if examples.table is None else examples.table.unused),
        "column_uses": {} if examples.table is None else dict(examples.table.used),
        "extreme_sizes": [{"key": str(examples.keys[i]), "size": size} for i, size in inspection.extreme_sizes],
    }


def _with_labels(group: np.ndarray, examples: Examples) -> list[dict[str, Any]]:
    return [{"key": str(examples.keys[i]), "label": label_of(examples, i)} for i in group]


def _summary(sizes: np.ndarray) -> ImageSizes:
    codes, counts = np.unique(sizes[:, 0] << 32 | sizes[:, 1], return_counts=True)
    distinct = np.stack([codes >> 32, codes & 0xFFFFFFFF], axis=1)
    pixels = distinct.prod(axis=1)

    def at(index: np.intp) -> Size:
        return int(distinct[index, 0]), int(distinct[index, 1])

    common = counts.argmax()
    return ImageSizes(at(pixels.argmin()), at(pixels.argmax()), at(common), float(counts[common] / len(sizes)))
