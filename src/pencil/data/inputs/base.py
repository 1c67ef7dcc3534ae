"""Inputs: the interface of every kind of inputs, and inputs stored as one tensor.

A new kind of inputs is one class that derives from :class:`Inputs`. It implements ``__len__`` and ``batches`` and
overrides its further capabilities; the defaults mean "not supported". No other module checks the class of its inputs.
"""

import hashlib
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from torch.multiprocessing import get_start_method
from torch.utils.data import DataLoader

from pencil.data.bad_rows import OnBadRows, first_few
from pencil.data.given.given_labels import name_rows
from pencil.data.inputs.augment import Draws, View
from pencil.data.inputs.sketch import Look, look_at_arrays
from pencil.data.inputs.transform import (
    IDENTITY,
    Normalization,
    Transform,
    measure_normalization,
    refuse_crop,
    rows_within,
)
from pencil.errors import DataError

if TYPE_CHECKING:
    from pencil.data.inputs.records import RecordInputs

Size = tuple[int, int]
"""Height and width in pixels."""
MAX_PIXELS = 50_000_000
DIGEST = 16
"""Bytes of the digest used to find duplicates."""


class Loaded(NamedTuple):
    """The inputs of a chunk of rows; ``kept`` marks the readable rows, None if all are readable."""

    values: Tensor
    kept: Tensor | None = None


class Fault(NamedTuple):
    """An unreadable input: its row in the data, its name and the reason."""

    row: int
    name: str
    reason: str


def list_faults(faults: Sequence[Fault]) -> str:
    """Return the first unreadable inputs with the reasons, and the number of further ones."""
    reasons = reasons_once(faults)
    return first_few(
        [f"{fault.name!r} (row {fault.row}): {reason}" for fault, reason in zip(faults, reasons, strict=True)]
    )


def reasons_once(faults: Sequence[Fault]) -> list[str]:
    """Return the reason of each fault, or "the same" if it is the reason of the fault before it."""
    before = ("", *(fault.reason for fault in faults[:-1]))
    return [
        "the same" if fault.reason == reason else fault.reason for fault, reason in zip(faults, before, strict=False)
    ]


class InspectedRow(NamedTuple):
    """The result of inspecting one row.

    ``size`` is the size of an encoded image before any resizing, ``shape`` the shape of an array; an unreadable input
    has neither. ``look`` is the sketch of an image.
    """

    digest: bytes
    size: Size | None = None
    shape: tuple[int, ...] | None = None
    look: Look | None = None
    fault: Fault | None = None


@dataclass(frozen=True)
class ReadOptions:
    """How inputs are read; each kind of inputs uses the options that apply to it.

    Parameters
    ----------
    size
        Height and width to which encoded images are resized; None keeps the size of each image.
    crop
        Side of the square crop after resizing; None for none.
    exact
        Whether an image of another size than ``size`` is an error instead of being resized.
    unreadable
        Whether an unreadable image is an error or is skipped with a warning.
    max_pixels
        Images with more pixels count as unreadable.
    workers
        Worker processes that decode and augment ahead of the training step; 0 does this in this process.
    """

    size: Size | None = None
    crop: int | None = None
    exact: bool = False
    unreadable: OnBadRows = "error"
    max_pixels: int = MAX_PIXELS
    workers: int = 0


@runtime_checkable
class Inputs(Protocol):
    """The inputs of a dataset, read in batches of chosen rows.

    Raw values are the values before our transform (crop, flip, normalise). Unknown or unsupported values are None.
    """

    def __len__(self) -> int: ...

    def batches(self, chunks: Sequence[Tensor], view: View | None = None) -> Iterator[Loaded]:
        """Yield the transformed inputs of each chunk of rows in order; without a view nothing is random."""
        ...

    @property
    def complete(self) -> bool:
        """Whether rows are never skipped: an unreadable row is an error."""
        return True

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The shape of one input as a network sees it, if it is known without reading one."""
        return None

    @property
    def dtype(self) -> torch.dtype | None:
        """The dtype of the raw values, if it is known without reading one."""
        return None

    @property
    def channels(self) -> int | None:
        """Channels of images or features of vectors to normalise; None if the values must not be scaled."""
        return None

    @property
    def resizable(self) -> bool:
        """Whether these are encoded images, which ``data.resize`` resizes to one size."""
        return False

    @property
    def in_memory(self) -> Tensor | None:
        """The raw values of all rows, if they are in memory."""
        return None

    @property
    def records(self) -> "RecordInputs | None":
        """The table columns that an encoder turns into vectors, for such rows."""
        return None

    def raw(self, rows: Tensor) -> Loaded:
        """Read the raw values of these rows in this process, without unreadable rows."""
        return next(iter(self.in_process().batches([rows])))

    def in_process(self) -> Self:
        """Return the same inputs, read without worker processes."""
        return self

    def with_options(self, options: ReadOptions) -> "Inputs":
        """Return the same inputs with these read options; raise :class:`DataError` if they do not fit."""
        return self

    def normalized(self, normalization: Normalization | None) -> "Inputs":
        """Return the same inputs with this normalisation, unless the values must not be scaled."""
        return self

    def measure(self, rows: Tensor, seed: int) -> Normalization | None:
        """Measure the normalisation on these rows (or on a sample drawn by the seed)."""
        return None

    def cached(self, rows: Tensor, folder: Path | None = None) -> "TensorInputs | None":
        """Decode these rows once, in memory or into a file in ``folder``; None if there is nothing to decode."""
        return None

    def probe_sizes(self, max_pixels: int = MAX_PIXELS) -> list[Size]:
        """Return the sizes of a sample of the encoded images."""
        return []

    def file_of(self, row: int) -> Path | None:
        """Return the file of this row, if each row has one."""
        return None

    def fault_of(self, row: int) -> str | None:
        """Return why this row could not be read when requested; None if it was not requested, or was readable."""
        return None

    def fingerprint(self, rows: Tensor, *, content: bool = False) -> str | None:
        """Return a digest that changes with the inputs of these rows or their order; None if it is not available.

        Arrays count by content. Files count by name, size and modification time, or with ``content`` by their bytes.
        """
        return None

    def digests(self, rows: Tensor) -> list[bytes] | None:
        """Return a digest of the content of each of these rows; None if it is not available without decoding."""
        return None

    def picture(self, row: int, side: int | None = None) -> np.ndarray | None:
        """Return an input as uint8 pixels, (height, width) or (height, width, 3); None if it is not an image.

        A large image may be decoded at a fraction of its size, at least ``side`` pixels. An unreadable input raises
        :class:`DataError`.
        """
        values = self.raw(torch.tensor([row])).values
        if not len(values):
            raise DataError(f"input at row {row} cannot be read; expected numbers; fix or remove the row.")
        return as_picture(values[0])

    def inspect(
        self, chunks: Sequence[Tensor], *, workers: int = 0, max_pixels: int = MAX_PIXELS
    ) -> Iterator[list[InspectedRow]]:
        """Yield the inspection of the rows of each chunk."""
        for chunk in chunks:
            yield inspect_values(chunk, self.raw(chunk))


def inspect_values(rows: Tensor, loaded: Loaded) -> list[InspectedRow]:
    """Inspect the raw values of these rows."""
    found_looks = look_at_arrays(loaded.values)
    looks: Sequence[Look | None] = [None] * len(loaded.values) if found_looks is None else found_looks
    values = iter(zip(loaded.values.numpy(), looks, strict=True))
    kept = [True] * len(rows) if loaded.kept is None else loaded.kept.tolist()
    found = []
    for row, readable in zip(rows.tolist(), kept, strict=True):
        if readable:
            value, look = next(values)
            found.append(InspectedRow(content_digest(value.tobytes()), shape=value.shape, look=look))
        else:
            found.append(InspectedRow(bytes(DIGEST), fault=Fault(row, str(row), "it could not be decoded")))
    return found


def content_digest(content: bytes) -> bytes:
    """Return a digest that is equal for equal content."""
    return hashlib.blake2b(content, digest_size=DIGEST).digest()


def as_picture(values: Tensor) -> np.ndarray | None:
    """Return (channels, height, width) values as uint8 RGB or grey pixels; None for any other shape.

    Floats, which may have any range, are scaled from the darkest to the brightest pixel.
    """
    if values.ndim != 3:
        return None
    pixels = values[: 3 if len(values) >= 3 else 1].detach().cpu()
    if pixels.dtype != torch.uint8:
        pixels = pixels.double().nan_to_num()
        low, high = pixels.min(), pixels.max()
        pixels = ((pixels - low) / (high - low).clamp(min=1e-12) * 255).round().to(torch.uint8)
    array = pixels.permute(1, 2, 0).numpy()
    return np.ascontiguousarray(array[..., 0] if array.shape[2] == 1 else array)


@dataclass(frozen=True)
class TensorInputs(Inputs):
    """Inputs stored as one tensor, in memory or mapped from a file; uint8 images stay uint8 until they are batched.

    Parameters
    ----------
    values
        One row per input.
    transform
        Augment, crop and normalise.
    prepared
        Whether floats come from a user's own dataset and are not normalised unless the recipe asks for it.
    readable
        Mask of the rows with a decoded image; None if all rows have one.
    workers
        Worker processes for augmentation of single images; 0 augments in this process.
    """

    values: Tensor
    transform: Transform = IDENTITY
    prepared: bool = False
    readable: Tensor | None = None
    workers: int = 0

    def __len__(self) -> int:
        return len(self.values)

    @property
    def complete(self) -> bool:
        return self.readable is None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.transform.shape(self.values.shape[1:])

    @property
    def dtype(self) -> torch.dtype:
        return self.values.dtype

    @property
    def channels(self) -> int:
        return self.values.shape[1]

    @property
    def in_memory(self) -> Tensor:
        return self.values

    def fingerprint(self, rows: Tensor, *, content: bool = False) -> str | None:
        digest = hashlib.sha256(f"{self.values.dtype} {tuple(self.values.shape[1:])}".encode())
        for chunk in rows.split(min(1024, rows_within(self.values.shape[1:], self.values.element_size()))):
            digest.update(self.values[chunk].contiguous().numpy().data)
        return digest.hexdigest()

    def digests(self, rows: Tensor) -> list[bytes]:
        return [content_digest(self.values[row].contiguous().numpy().tobytes()) for row in rows.tolist()]

    def batches(self, chunks: Sequence[Tensor], view: View | None = None) -> Iterator[Loaded]:
        draws = self.transform.draws(len(self), self.values.shape[1:], self.values.dtype, view)
        if draws is not None and draws.steps is not None and self.workers and get_start_method() == "fork":
            yield from self._augmented_ahead(chunks, draws)  # forked workers share the values; spawned ones copy
            return
        for chunk in chunks:
            kept = None if self.readable is None else self.readable[chunk]
            rows = chunk if kept is None else chunk[kept]
            yield Loaded(self.transform.apply(self.values[rows], rows, draws), kept)

    def _augmented_ahead(self, chunks: Sequence[Tensor], draws: Draws) -> Iterator[Loaded]:
        """Yield images that worker processes augmented one by one."""
        kept = [None if self.readable is None else self.readable[chunk] for chunk in chunks]
        rows = [chunk if keep is None else chunk[keep] for chunk, keep in zip(chunks, kept, strict=True)]
        made = read_ahead(
            _AugmentedRows(self.values, draws), [some for some in rows if len(some)], torch.stack, self.workers
        )
        for some, keep in zip(rows, kept, strict=True):
            values = next(made) if len(some) else torch.empty(0, *self.shape, dtype=self.values.dtype)
            yield Loaded(self.transform.normalize(values), keep)

    def in_process(self) -> Self:
        return replace(self, workers=0)

    def raw(self, rows: Tensor) -> Loaded:
        kept = None if self.readable is None else self.readable[rows]
        return Loaded(self.values[rows if kept is None else rows[kept]], kept)

    def with_options(self, options: ReadOptions) -> "TensorInputs":
        refuse_crop(options.crop, self.values.shape[1:])
        return replace(self, transform=replace(self.transform, crop=options.crop), workers=options.workers)

    def normalized(self, normalization: Normalization | None) -> "TensorInputs":
        return replace(self, transform=replace(self.transform, normalization=normalization))

    def measure(self, rows: Tensor, seed: int) -> Normalization | None:
        if self.values.dtype == torch.uint8 or (self.values.ndim in (2, 4) and not self.prepared):
            return measure_normalization(self.values, rows if self.readable is None else rows[self.readable[rows]])
        return None


@dataclass(frozen=True, eq=False)
class _AugmentedRows:
    """One augmented image per row, before normalisation."""

    values: Tensor
    draws: Draws

    def __getitem__(self, row: int) -> Tensor:
        return self.draws.apply(self.values[row : row + 1], torch.tensor([row]))[0]


def refuse_non_finite(values: Tensor) -> Tensor:
    """Return the same values; raise :class:`DataError` if any of them is NaN or infinite."""
    if values.is_floating_point():
        size = rows_within(values.shape[1:], values.element_size())
        bad: list[int] = []
        for number, chunk in enumerate(values.split(size)):  # nothing of a chunk is kept: it would fragment the heap
            finite = chunk.isfinite()
            if not finite.all():
                rows = (~finite.flatten(1).all(dim=1)).nonzero()[:, 0] + number * size
                bad += rows.tolist()
        if bad:
            raise DataError(
                f"input at {name_rows(bad)} holds NaN or infinity; expected numbers; fix or remove such rows."
            )
    return values


def read_ahead(
    items: Any, chunks: Sequence[Tensor], collate: Callable[[list[Any]], Any], workers: int
) -> Iterator[Any]:
    """Yield the collated items of each chunk of rows, while worker processes prefetch the next chunks.

    ``items`` and ``collate``, which makes a batch of a list of items, are pickled for the workers.
    """
    loader: DataLoader[Any] = DataLoader(
        items,
        batch_sampler=_Chunks(chunks),
        num_workers=min(workers, len(chunks)),
        collate_fn=collate,
        pin_memory=torch.cuda.is_available(),
        generator=torch.Generator(),  # without one, the loader would draw from the global generator
        worker_init_fn=_ignore_interrupts,
    )
    try:
        yield from loader
    except DataError as error:  # a worker's error includes a traceback; its last line is the message
        raise DataError(
            str(error).strip().splitlines()[-1].removeprefix(f"{DataError.__module__}.{DataError.__qualname__}: ")
        ) from error


def _ignore_interrupts(_worker: int) -> None:
    """Ctrl-C reaches every process of a terminal, but the training process needs its workers while it saves."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@dataclass(frozen=True)
class _Chunks:
    """Chunks of rows as lists, one at a time, so that the order of an epoch stays a single array."""

    chunks: Sequence[Tensor]

    def __len__(self) -> int:
        return len(self.chunks)

    def __iter__(self) -> Iterator[list[int]]:
        return (chunk.tolist() for chunk in self.chunks)
