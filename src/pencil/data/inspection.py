"""What is in the data, found by looking at every row: classes, sizes, images that cannot be read, exact duplicates."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pencil.data.examples import Examples
from pencil.data.given import hard_labels
from pencil.data.images import (
    DECODE_FAULTS,
    Encoded,
    ImageInputs,
    Size,
    decode,
    describe_fault,
    open_image,
    upright_size,
)
from pencil.data.inputs import Inputs, TensorInputs, read_ahead
from pencil.data.settings import DataSettings
from pencil.errors import DataError

DIGEST = 16
CHUNK = 64


class Fault(NamedTuple):
    """An image that cannot be read: its row in the data, its name and the reason."""

    row: int
    name: str
    reason: str


@dataclass(frozen=True)
class ImageSizes:
    """Upright heights and widths: the fewest and the most pixels, and the size that most images have."""

    smallest: Size
    largest: Size
    most_common: Size
    share: float


@dataclass(frozen=True, eq=False)
class Groups:
    """Groups of positions, one after the other in one array; ``starts`` says where each begins."""

    positions: np.ndarray
    starts: np.ndarray

    def __len__(self) -> int:
        return len(self.starts)

    def __iter__(self) -> Iterator[np.ndarray]:
        for start, stop in zip(self.starts, np.append(self.starts, len(self.positions))[1:], strict=True):
            yield self.positions[start:stop]


@dataclass(frozen=True, eq=False)
class Findings:
    """``class_counts`` are rows per class, or rows with the class where there may be several.

    Then ``unknown_labels`` counts entries, ``unknown_rows`` rows of nothing else, and ``rows_without_class`` those of
    which something is known, but no class that is there. ``duplicates`` are rows whose encoded bytes (or numbers, in
    arrays) are the same; in ``conflicts`` their labels are not.
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


def inspect(examples: Examples, workers: int = 0) -> Findings:
    """Look at every row once. Of each only a digest and a size stay in memory."""
    digests = np.zeros((len(examples), DIGEST), dtype=np.uint8)
    sizes = np.zeros((len(examples), 2), dtype=np.int64)
    shape: tuple[int, ...] | None = None
    faults: list[Fault] = []
    if isinstance(examples.inputs, ImageInputs):
        faults = _look_at_images(examples, examples.inputs, workers, digests, sizes)
    else:
        shape = _look_at_arrays(examples, digests)
    readable = np.flatnonzero(~np.isin(examples.rows.numpy(), [fault.row for fault in faults]))
    duplicates = _alike(digests, readable)
    return Findings(
        rows=len(examples),
        class_counts=count_classes(examples),
        **_count_unknown(examples),
        image_sizes=_summary(sizes[readable]) if shape is None and len(readable) else None,
        input_shape=shape,
        unreadable=tuple(faults),
        duplicates=duplicates,
        conflicts=_at_odds(duplicates, examples.given_labels.numpy()),
    )


def refusals(findings: Findings, split: str, settings: DataSettings) -> list[DataError]:
    """What training would stop at once it came to it."""
    found, sizes = [], findings.image_sizes
    if len(findings.unreadable) == findings.rows or (findings.unreadable and settings.unreadable == "error"):
        first = findings.unreadable[0]
        found.append(
            f"{len(findings.unreadable):,} of {findings.rows:,} {split} images cannot be read, the first of them "
            f"{first.name!r} (row {first.row}): {first.reason}; mend or remove them, or leave such images out with "
            "data.unreadable=skip."
        )
    if sizes is not None and settings.resize == "none" and sizes.share < 1:
        found.append(
            f"{split} images have from {_pixels(sizes.smallest)} to {_pixels(sizes.largest)} pixels; "
            "expected one size; set data.resize."
        )
    return [DataError(message) for message in found]


def _pixels(size: Size) -> str:
    return f"{size[0]} x {size[1]}"


def count_classes(examples: Examples) -> dict[str, int]:
    """Rows for which each class is the given label, or one of them where there may be several."""
    if examples.multilabel:
        counts = (examples.given_labels > 0.5).sum(dim=0)
    else:
        counts = torch.bincount(hard_labels(examples.given_labels), minlength=examples.num_classes)
    return dict(zip(examples.classes, counts.tolist(), strict=True))


def _count_unknown(examples: Examples) -> dict[str, int]:
    """Of labels of several classes at once: what is unknown, and which rows have no class."""
    if not examples.multilabel:
        return {"unknown_labels": 0, "unknown_rows": 0, "rows_without_class": 0}
    unknown, present = examples.given_labels.isnan(), examples.given_labels > 0.5
    empty = unknown.all(dim=1)
    without = ~present.any(dim=1) & ~empty
    counts = {"unknown_labels": unknown, "unknown_rows": empty, "rows_without_class": without}
    return {name: int(found.sum()) for name, found in counts.items()}


def label_of(examples: Examples, position: int) -> str | list[str] | dict[str, float]:
    """A given label in words: a class, the classes present, or the shares of those that have any."""
    label = examples.given_labels[position]
    if label.ndim == 0:
        return examples.classes[int(label)]
    shares = {name: value for name, value in zip(examples.classes, label.tolist(), strict=True) if value > 0}
    return list(shares) if examples.multilabel and set(shares.values()) <= {1.0} else shares


def as_tree(findings: Findings, examples: Examples) -> dict[str, Any]:
    """Findings in plain values, rows by their keys."""
    return {
        "rows": findings.rows,
        "class_counts": findings.class_counts,
        "unknown_labels": findings.unknown_labels,
        "unknown_rows": findings.unknown_rows,
        "rows_without_class": findings.rows_without_class,
        "image_sizes": None if findings.image_sizes is None else vars(findings.image_sizes),
        "input_shape": findings.input_shape,
        "unreadable": [fault._asdict() for fault in findings.unreadable],
        "duplicates": [examples.keys[group].tolist() for group in findings.duplicates],
        "conflicting_duplicates": [
            [{"key": str(examples.keys[i]), "label": label_of(examples, i)} for i in group]
            for group in findings.conflicts
        ],
    }


def _look_at_images(
    examples: Examples, inputs: ImageInputs, workers: int, digests: np.ndarray, sizes: np.ndarray
) -> list[Fault]:
    """Fill in digests and sizes; decode every image, as only that finds a truncated one."""
    faults: list[Fault] = []
    items = _Looked(inputs.encoded, inputs.max_pixels)
    places = torch.arange(len(examples)).split(CHUNK)
    looked = read_ahead(items, [examples.rows[place] for place in places], list, workers)
    for place, chunk in zip(places, looked, strict=True):
        for position, (row, digest, size, reason) in zip(place.tolist(), chunk, strict=True):
            digests[position], sizes[position] = np.frombuffer(digest, dtype=np.uint8), size
            if reason is not None:
                faults.append(Fault(row, str(inputs.encoded.names[row]), reason))
    return faults


@dataclass(frozen=True)
class _Looked:
    """Digest and upright size of one image, and what is wrong with it."""

    encoded: Encoded
    max_pixels: int

    def __len__(self) -> int:
        return len(self.encoded)

    def __getitem__(self, row: int) -> tuple[int, bytes, Size, str | None]:
        try:
            content = self.encoded.read(row)
            size = upright_size(open_image(content, self.max_pixels))
            decode(content, (1, 1), self.max_pixels)  # to the last byte, but a JPEG at an eighth of its size
        except DECODE_FAULTS as error:
            return row, bytes(DIGEST), (0, 0), describe_fault(error)
        return row, _digest(content), size, None


def _look_at_arrays(examples: Examples, digests: np.ndarray) -> tuple[int, ...]:
    shape: tuple[int, ...] = ()
    places = torch.arange(len(examples)).split(CHUNK)
    for place, values in zip(places, _values(examples.inputs, [examples.rows[p] for p in places]), strict=True):
        shape = tuple(values.shape[1:])
        for position, value in zip(place.tolist(), values.numpy(), strict=True):
            digests[position] = np.frombuffer(_digest(value.tobytes()), dtype=np.uint8)
    return shape


def _values(inputs: Inputs, chunks: list[Tensor]) -> Iterator[Tensor]:
    if isinstance(inputs, TensorInputs):
        yield from (inputs.values[chunk] for chunk in chunks)
    else:
        yield from (loaded.values for loaded in inputs.batches(chunks))


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=DIGEST).digest()


def _summary(sizes: np.ndarray) -> ImageSizes:
    codes, counts = np.unique(sizes[:, 0] << 32 | sizes[:, 1], return_counts=True)
    distinct = np.stack([codes >> 32, codes & 0xFFFFFFFF], axis=1)
    pixels = distinct.prod(axis=1)

    def at(index: np.intp) -> Size:
        return int(distinct[index, 0]), int(distinct[index, 1])

    common = counts.argmax()
    return ImageSizes(at(pixels.argmin()), at(pixels.argmax()), at(common), float(counts[common] / len(sizes)))


def _alike(digests: np.ndarray, positions: np.ndarray) -> Groups:
    """Groups of two or more of these positions that have the same digest, in the order of their first members."""
    words = digests[positions].view(f"V{DIGEST}")[:, 0]
    _, first, inverse, counts = np.unique(words, return_index=True, return_inverse=True, return_counts=True)
    group, repeated = first[inverse], counts[inverse] > 1
    order = np.argsort(group[repeated], kind="stable")
    return Groups(positions[repeated][order], np.unique(group[repeated][order], return_index=True)[1])


def _at_odds(groups: Groups, labels: np.ndarray) -> Groups:
    """The groups whose members do not all carry the same label; what is unknown is no disagreement."""
    if not len(groups):
        return groups
    lengths = np.diff(groups.starts, append=len(groups.positions))
    seen = labels[groups.positions].reshape(len(groups.positions), -1)
    lowest, highest = (pick.reduceat(seen, groups.starts, axis=0) for pick in (np.fmin, np.fmax))  # of what is known
    chosen = (lowest < highest).any(axis=1)
    kept = lengths[chosen]
    return Groups(groups.positions[np.repeat(chosen, lengths)], np.cumsum(kept) - kept)
