"""Inspection of every row of the data: classes, sizes, images that cannot be read, exact duplicates."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from pencil.data.examples import Examples
from pencil.data.given import hard_labels
from pencil.data.inputs import DIGEST, MAX_PIXELS, Fault, Size
from pencil.data.settings import DataSettings
from pencil.errors import DataError

CHUNK = 64


@dataclass(frozen=True)
class ImageSizes:
    """Upright heights and widths: the fewest and the most pixels, the most common size and the fraction that has it."""

    smallest: Size
    largest: Size
    most_common: Size
    fraction: float


@dataclass(frozen=True, eq=False)
class Groups:
    """Groups of positions, one after the other in one array; ``starts`` are the beginnings of the groups."""

    positions: np.ndarray
    starts: np.ndarray

    def __len__(self) -> int:
        return len(self.starts)

    def __iter__(self) -> Iterator[np.ndarray]:
        for start, stop in zip(self.starts, np.append(self.starts, len(self.positions))[1:], strict=True):
            yield self.positions[start:stop]


@dataclass(frozen=True, eq=False)
class Inspection:
    """The result of an inspection of one split.

    Parameters
    ----------
    rows
        The number of rows.
    class_counts
        Rows per class; in multi-label data rows that have the class.
    unknown_labels, unknown_rows, rows_without_class
        In multi-label data: unknown entries, rows with no known entry, and rows with known entries but no class
        present.
    image_sizes
        Sizes of encoded images; None for arrays.
    input_shape
        The shape of arrays; None for encoded images.
    unreadable
        Images that cannot be read.
    duplicates
        Groups of rows with the same encoded bytes (or numbers, in arrays).
    conflicts
        Those of them whose labels differ.
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


def inspect(examples: Examples, workers: int = 0, max_pixels: int = MAX_PIXELS) -> Inspection:
    """Read every row once; only a digest and a size of each stay in memory.

    Parameters
    ----------
    examples
        The rows to inspect.
    workers
        Worker processes that decode images; 0 decodes in this process.
    max_pixels
        An image of more pixels counts as unreadable.
    """
    digests = np.zeros((len(examples), DIGEST), dtype=np.uint8)
    sizes = np.zeros((len(examples), 2), dtype=np.int64)
    shape: tuple[int, ...] | None = None
    faults: list[Fault] = []
    places = torch.arange(len(examples)).split(CHUNK)
    chunks = [examples.rows[place] for place in places]
    inspected = examples.inputs.inspect(chunks, workers=workers, max_pixels=max_pixels)
    for place, chunk in zip(places, inspected, strict=True):
        for position, row in zip(place.tolist(), chunk, strict=True):
            digests[position] = np.frombuffer(row.digest, dtype=np.uint8)
            sizes[position] = (0, 0) if row.size is None else row.size
            shape = row.shape or shape
            if row.fault is not None:
                faults.append(row.fault)
    readable = np.flatnonzero(~np.isin(examples.rows.numpy(), [fault.row for fault in faults]))
    duplicates = _find_duplicates(digests, readable)
    return Inspection(
        rows=len(examples),
        class_counts=count_classes(examples),
        **_count_unknown(examples),
        image_sizes=_summary(sizes[readable]) if shape is None and len(readable) else None,
        input_shape=shape,
        unreadable=tuple(faults),
        duplicates=duplicates,
        conflicts=_find_conflicts(duplicates, examples.given_labels.numpy()),
    )


def refusals(inspection: Inspection, split: str, settings: DataSettings) -> list[DataError]:
    """Return the errors that training would stop with when it reads these rows."""
    found, sizes = [], inspection.image_sizes
    if len(inspection.unreadable) == inspection.rows or (inspection.unreadable and settings.unreadable == "error"):
        first = inspection.unreadable[0]
        found.append(
            f"{len(inspection.unreadable):,} of {inspection.rows:,} {split} images cannot be read, the first of them "
            f"{first.name!r} (row {first.row}): {first.reason}; expected images; fix or remove them, or skip such "
            "images with data.unreadable=skip."
        )
    if sizes is not None and settings.resize == "none" and sizes.fraction < 1:
        found.append(
            f"{split} images have from {_pixels(sizes.smallest)} to {_pixels(sizes.largest)} pixels; "
            "expected one size; set data.resize."
        )
    return [DataError(message) for message in found]


def _pixels(size: Size) -> str:
    return f"{size[0]} x {size[1]}"


def count_classes(examples: Examples) -> dict[str, int]:
    """Count the rows that have each class as given label; a multi-label row counts for all of its classes."""
    if examples.multilabel:
        counts = (examples.given_labels > 0.5).sum(dim=0)
    else:
        counts = torch.bincount(hard_labels(examples.given_labels), minlength=examples.num_classes)
    return dict(zip(examples.classes, counts.tolist(), strict=True))


def _count_unknown(examples: Examples) -> dict[str, int]:
    """Count what is unknown in multi-label labels, and the rows without a class."""
    if not examples.multilabel:
        return {"unknown_labels": 0, "unknown_rows": 0, "rows_without_class": 0}
    unknown, present = examples.given_labels.isnan(), examples.given_labels > 0.5
    empty = unknown.all(dim=1)
    without = ~present.any(dim=1) & ~empty
    counts = {"unknown_labels": unknown, "unknown_rows": empty, "rows_without_class": without}
    return {name: int(found.sum()) for name, found in counts.items()}


def label_of(examples: Examples, position: int) -> str | list[str] | dict[str, float]:
    """Return a given label in words: a class, the classes present, or the probabilities above 0."""
    label = examples.given_labels[position]
    if label.ndim == 0:
        return examples.classes[int(label)]
    probs = {name: value for name, value in zip(examples.classes, label.tolist(), strict=True) if value > 0}
    return list(probs) if examples.multilabel and set(probs.values()) <= {1.0} else probs


def as_tree(inspection: Inspection, examples: Examples) -> dict[str, Any]:
    """Return an inspection as plain values, with rows by their keys."""
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
        "conflicting_duplicates": [
            [{"key": str(examples.keys[i]), "label": label_of(examples, i)} for i in group]
            for group in inspection.conflicts
        ],
    }


def _summary(sizes: np.ndarray) -> ImageSizes:
    codes, counts = np.unique(sizes[:, 0] << 32 | sizes[:, 1], return_counts=True)
    distinct = np.stack([codes >> 32, codes & 0xFFFFFFFF], axis=1)
    pixels = distinct.prod(axis=1)

    def at(index: np.intp) -> Size:
        return int(distinct[index, 0]), int(distinct[index, 1])

    common = counts.argmax()
    return ImageSizes(at(pixels.argmin()), at(pixels.argmax()), at(common), float(counts[common] / len(sizes)))


def _find_duplicates(digests: np.ndarray, positions: np.ndarray) -> Groups:
    """Return groups of two or more of these positions with equal digests, in the order of their first members."""
    words = digests[positions].view(f"V{DIGEST}")[:, 0]
    _, first, inverse, counts = np.unique(words, return_index=True, return_inverse=True, return_counts=True)
    group, repeated = first[inverse], counts[inverse] > 1
    order = np.argsort(group[repeated], kind="stable")
    return Groups(positions[repeated][order], np.unique(group[repeated][order], return_index=True)[1])


def _find_conflicts(groups: Groups, labels: np.ndarray) -> Groups:
    """Return the groups whose labels differ; an unknown label differs from none."""
    if not len(groups):
        return groups
    lengths = np.diff(groups.starts, append=len(groups.positions))
    seen = labels[groups.positions].reshape(len(groups.positions), -1)
    lowest, highest = (pick.reduceat(seen, groups.starts, axis=0) for pick in (np.fmin, np.fmax))  # of what is known
    chosen = (lowest < highest).any(axis=1)
    kept = lengths[chosen]
    return Groups(groups.positions[np.repeat(chosen, lengths)], np.cumsum(kept) - kept)
