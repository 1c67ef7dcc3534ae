"""Encoded images, in files or in a column of bytes, decoded while training runs.

An image becomes upright 8-bit RGB of a common size, with transparency over white. This part is the same in every
epoch, so it can be cached (``cache.py``). Crops, flips and normalisation follow on whole batches (``transform.py``);
augmentation of single images runs where the image was decoded.
"""

import hashlib
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from pencil.data.bad_rows import OnBadRows, or_skip
from pencil.data.inputs.augment import Draws, View
from pencil.data.inputs.base import (
    DIGEST,
    MAX_PIXELS,
    Fault,
    Inputs,
    InspectedRow,
    Loaded,
    ReadOptions,
    Size,
    TensorInputs,
    content_digest,
    list_faults,
    read_ahead,
)
from pencil.data.inputs.cache import cache_in_file, cache_in_memory
from pencil.data.inputs.decoding import DECODE_FAULTS, decode, decode_image, describe_fault, open_image, upright_size
from pencil.data.inputs.sketch import SIDE, look_at
from pencil.data.inputs.transform import IDENTITY, Moments, Normalization, Transform, refuse_crop, rows_within
from pencil.data.sources.regular_files import read_within, version_of
from pencil.errors import DataError, DataWarning, setting, warn
from pencil.seeding import generator

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
PROBES = 64
"""Number of images opened to determine their sizes."""
LOOK, CHUNK = 30.0, 64
"""Once an image cannot be read, the search for others takes this many seconds, in blocks of this many images."""
MEASURED = 2048
"""Number of images that determine the mean and standard deviation of each channel to three digits."""


class Encoded(ABC):
    """Where the bytes of images are stored; ``names`` are the names of the images in messages."""

    names: np.ndarray

    def __len__(self) -> int:
        return len(self.names)

    @abstractmethod
    def read(self, row: int) -> bytes:
        """Return the bytes of an image; raise one of ``DECODE_FAULTS`` if there are none."""

    def file_of(self, row: int) -> Path | None:
        """Return the file of an image, if each image has one."""
        return None

    @abstractmethod
    def version(self, row: int) -> bytes:
        """Return a value that changes whenever the image does."""


@dataclass(frozen=True)
class ImageFiles(Encoded):
    """Images in files under ``root``, by relative path: one array of strings, which processes share without copies.

    If ``within`` is not empty, only files below one of these folders are read, following links.
    """

    root: Path
    names: np.ndarray
    within: tuple[Path, ...] = ()

    def read(self, row: int) -> bytes:
        if not self.names[row]:
            raise ValueError("there is no path")
        return read_within(self.file_of(row), self.within)

    def file_of(self, row: int) -> Path:
        return self.root / str(self.names[row])

    def version(self, row: int) -> bytes:
        return version_of(self.file_of(row))


def cell_bytes(cell: Any) -> bytes:
    """Return the bytes in a cell of an Arrow column; raise ValueError if it is empty."""
    content = cell.as_py()
    if content is None:
        raise ValueError("there are no bytes")
    return bytes(content)


@dataclass(frozen=True)
class ImageBytes(Encoded):
    """Images in a binary column of an Arrow table."""

    column: Any
    names: np.ndarray

    def read(self, row: int) -> bytes:
        return cell_bytes(self.column[row])

    def version(self, row: int) -> bytes:
        try:
            return hashlib.blake2b(self.read(row)).digest()
        except DECODE_FAULTS:
            return b"missing"


@dataclass(frozen=True)
class ImageInputs(Inputs):
    """Encoded images that are decoded on demand, by ``workers`` processes ahead of the training step.

    Options are as in :class:`ReadOptions`. ``faults`` says why rows could not be read, for the rows requested so
    far; copies made by ``replace`` share it.
    """

    encoded: Encoded
    transform: Transform = IDENTITY
    size: Size | None = None
    unreadable: OnBadRows = "error"
    workers: int = 0
    max_pixels: int = MAX_PIXELS
    exact: bool = False
    faults: dict[int, str] = field(default_factory=dict, compare=False, repr=False)

    def __len__(self) -> int:
        return len(self.encoded)

    @property
    def complete(self) -> bool:
        return self.unreadable == "error"

    @property
    def shape(self) -> tuple[int, ...] | None:
        return None if self.size is None else self.transform.shape((3, *self.size))

    @property
    def dtype(self) -> torch.dtype:
        return torch.uint8

    @property
    def channels(self) -> int:
        return 3

    @property
    def resizable(self) -> bool:
        return True

    def batches(self, chunks: Sequence[Tensor], view: View | None = None) -> Iterator[Loaded]:
        draws, one_by_one = None, False  # single images are augmented by the process that decodes them
        if view is not None and view.augmentation is not None and view.augmentation.per_image:
            shape, one_by_one = (3, *self._one_size("augmented")), True
            draws = self.transform.draws(len(self), shape, torch.uint8, view)
        for chunk, (values, faults) in zip(chunks, self._decoded(chunks, draws if one_by_one else None), strict=True):
            self._warn(faults)
            kept = _kept(chunk, faults)
            if draws is None and len(values):
                draws = self.transform.draws(len(self), values.shape[1:], values.dtype, view)
            if not len(values):
                yield Loaded(values.float(), kept)
            elif one_by_one:
                yield Loaded(self.transform.normalize(values), kept)
            else:
                yield Loaded(self.transform.apply(values, chunk if kept is None else chunk[kept], draws), kept)

    def _one_size(self, done: str) -> Size:
        """Return the size of the images; raise if they differ, so that they cannot be ``done``."""
        if self.size is None:
            raise DataError(
                f"images of different sizes cannot be {done}; expected one size for all; set one with "
                f"{setting('data.resize', 224)}."
            )
        return self.size

    def raw(self, rows: Tensor) -> Loaded:
        images, faults = next(self.in_process()._decoded([rows]))
        return Loaded(images, _kept(rows, faults))

    def in_process(self) -> Self:
        return replace(self, workers=0)

    def with_options(self, options: ReadOptions) -> "ImageInputs":
        if options.size is not None:
            refuse_crop(options.crop, (3, *options.size))
        return replace(
            self,
            transform=replace(self.transform, crop=options.crop),
            size=options.size,
            unreadable=options.unreadable,
            workers=options.workers,
            max_pixels=options.max_pixels,
            exact=options.exact,
        )

    def normalized(self, normalization: Normalization | None) -> "ImageInputs":
        return replace(self, transform=replace(self.transform, normalization=normalization))

    def measure(self, rows: Tensor, seed: int) -> Normalization:
        some = torch.randperm(len(rows), generator=generator(seed, "measure"))[:MEASURED]
        step = 64 if self.size is None else min(64, rows_within((3, *self.size)))
        moments, reason = Moments(), None
        for images, faults in self._decoded(rows[some].split(step)):
            reason = faults[0].reason if faults and reason is None else reason
            if len(images):
                moments.add(images)
        if moments.count == 0:
            raise DataError(
                f"none of {len(some)} images can be read; the first because {reason}; expected images; "
                "run `pencil check` to list all of them."
            )
        return moments.normalization()

    def cached(self, rows: Tensor, folder: Path | None = None) -> TensorInputs:
        plain, shape = replace(self, transform=IDENTITY), (len(rows), 3, *self._one_size("cached"))
        if folder is None:
            values, readable = cache_in_memory(plain, rows, shape)
        else:
            decoding = json.dumps([shape, self.max_pixels, self.unreadable, self.exact])
            signature = self._digest(rows, decoding)[:24]  # it changes with any image and the selection of rows too
            values, readable = cache_in_file(plain, rows, shape, folder.expanduser(), signature)
        if not readable.any():
            raise DataError(
                f"none of the {len(rows)} images can be read; expected images; run `pencil check` for the reasons."
            )
        mask = None if readable.all() else readable
        return TensorInputs(values, self.transform, readable=mask, workers=self.workers)

    def probe_sizes(self, max_pixels: int = MAX_PIXELS) -> list[Size]:
        found = []
        for row in np.unique(np.linspace(0, len(self) - 1, PROBES).astype(int)):
            try:
                found.append(upright_size(open_image(self.encoded.read(int(row)), max_pixels)))
            except DECODE_FAULTS:
                continue  # training or `pencil check` reports it
        return found

    def file_of(self, row: int) -> Path | None:
        return self.encoded.file_of(row)

    def picture(self, row: int, side: int | None = None) -> np.ndarray:
        try:
            return decode(self.encoded.read(row), None, self.max_pixels, side)
        except DECODE_FAULTS as error:
            fault = Fault(row, str(self.encoded.names[row]), describe_fault(error))
            raise DataError(f"{_cannot_be_read(fault)}; expected an image; fix or remove it.") from error

    def inspect(
        self, chunks: Sequence[Tensor], *, workers: int = 0, max_pixels: int = MAX_PIXELS
    ) -> Iterator[list[InspectedRow]]:
        yield from read_ahead(_InspectedImages(self.encoded, max_pixels), chunks, list, workers)

    def _decoded(self, chunks: Sequence[Tensor], draws: Draws | None = None) -> Iterator[tuple[Tensor, list[Fault]]]:
        """Yield uint8 images (rows, 3, height, width) of each chunk, without unreadable images, and the reasons."""
        items = _DecodedImages(self.encoded, self.size, self.max_pixels, self.exact, draws)
        yield from read_ahead(items, chunks, _Stack(self.encoded.names), self.workers)

    def _warn(self, faults: list[Fault]) -> None:
        """Raise if an image cannot be read, or warn about each such image once, depending on ``unreadable``."""
        for fault in faults:
            if self.unreadable == "error":
                raise self._all_faults(faults)
            if fault.row not in self.faults:
                self.faults[fault.row] = fault.reason
                warn(f"{_cannot_be_read(fault)}; the row is skipped", DataWarning)

    def _all_faults(self, first: list[Fault]) -> DataError:
        """Return the error that counts all unreadable images; the search takes a limited time."""
        found = {fault.row: fault for fault in first}
        end, complete = time.monotonic() + LOOK, True
        for inspected in self.inspect(torch.arange(len(self)).split(CHUNK), max_pixels=self.max_pixels):
            found |= {one.fault.row: one.fault for one in inspected if one.fault is not None}
            if time.monotonic() > end:
                complete = False
                break
        listed = list_faults([found[row] for row in sorted(found)])
        return DataError(
            f"{'' if complete else 'at least '}{len(found):,} of {len(self):,} images cannot be read: {listed}; "
            f"expected images; fix or remove them{or_skip()}."
        )

    def fault_of(self, row: int) -> str | None:
        return self.faults.get(row)

    def fingerprint(self, rows: Tensor, *, content: bool = False) -> str | None:
        return self._digest(rows, content=content)

    def digests(self, rows: Tensor) -> list[bytes]:
        return [self._content(row) for row in rows.tolist()]

    def _content(self, row: int) -> bytes:
        try:
            return content_digest(self.encoded.read(row))
        except DECODE_FAULTS:  # an unreadable row is refused or skipped when it is needed
            return bytes(DIGEST)

    def _digest(self, rows: Tensor, start: str = "", *, content: bool = False) -> str:
        digest = hashlib.sha256(start.encode())
        for row in rows.tolist():
            digest.update(f"\0{self.encoded.names[row]}\0".encode())
            digest.update(self._content(row) if content else self.encoded.version(row))
        return digest.hexdigest()


def _kept(rows: Tensor, faults: list[Fault]) -> Tensor | None:
    return None if not faults else ~torch.isin(rows, torch.tensor([fault.row for fault in faults]))


def _cannot_be_read(fault: Fault) -> str:
    return f"image {fault.name!r} (row {fault.row}) cannot be read: {fault.reason}"


@dataclass(frozen=True)
class _DecodedImages:
    """One image per row, augmented if there are draws, or the reason for the failure."""

    encoded: Encoded
    size: Size | None
    max_pixels: int
    exact: bool = False
    draws: Draws | None = None

    def __getitem__(self, row: int) -> tuple[int, np.ndarray | str]:
        try:
            image = decode(self.encoded.read(row), None if self.exact else self.size, self.max_pixels)
        except DECODE_FAULTS as error:
            return row, describe_fault(error)
        if self.size is not None and image.shape[:2] != self.size:
            raise DataError(
                f"image {str(self.encoded.names[row])!r} has {_pixels(image)}; expected {self.size[0]} x "
                f"{self.size[1]} like the others; set one with {setting('data.resize', 224)}."
            )
        if self.draws is not None:
            pixels = torch.from_numpy(image).permute(2, 0, 1)[None]
            image = self.draws.apply(pixels, torch.tensor([row]))[0].permute(1, 2, 0).numpy()
        return row, image


@dataclass(frozen=True)
class _InspectedImages:
    """Digest, upright size and sketch of one image per row, or the reason why it cannot be read."""

    encoded: Encoded
    max_pixels: int

    def __getitem__(self, row: int) -> InspectedRow:
        try:
            content = self.encoded.read(row)
            size = upright_size(open_image(content, self.max_pixels))
            look = look_at(decode_image(content, self.max_pixels, SIDE))  # all bytes; a JPEG at an eighth of its size
        except DECODE_FAULTS as error:
            return InspectedRow(bytes(DIGEST), fault=Fault(row, str(self.encoded.names[row]), describe_fault(error)))
        return InspectedRow(content_digest(content), size=size, look=look)


@dataclass(frozen=True)
class _Stack:
    """Collates decoded images; a class, so that it can be sent to worker processes."""

    names: np.ndarray

    def __call__(self, items: list[tuple[int, np.ndarray | str]]) -> tuple[Tensor, list[Fault]]:
        faults = [Fault(row, str(self.names[row]), image) for row, image in items if isinstance(image, str)]
        images = [(row, image) for row, image in items if not isinstance(image, str)]
        for row, image in images:
            if image.shape != images[0][1].shape:
                raise DataError(
                    f"image {str(self.names[row])!r} has {_pixels(image)}, {str(self.names[images[0][0]])!r} "
                    f"{_pixels(images[0][1])}; expected one size; set one with {setting('data.resize', 224)}."
                )
        if not images:
            return torch.empty(0, 3, 1, 1, dtype=torch.uint8), faults
        stacked = torch.empty(len(images), 3, *images[0][1].shape[:2], dtype=torch.uint8)
        for place, (_, image) in zip(stacked, images, strict=True):
            place.copy_(torch.from_numpy(image).permute(2, 0, 1))
        return stacked, faults


def _pixels(image: np.ndarray) -> str:
    return f"{image.shape[0]} x {image.shape[1]} pixels"
