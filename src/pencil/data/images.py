"""Encoded images, in files or in a column of bytes: decoded to one form, whatever they come as, while training runs.

An image becomes 8-bit RGB, upright, on white where it is transparent, and of one size. That part is the same in every
epoch, so it can be cached (``cache.py``); crops, flips and normalisation follow on whole batches (``inputs.py``).
"""

import io
import struct
import warnings
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import torch
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from pencil.data.inputs import PLAIN, Finish, Loaded, View, read_ahead
from pencil.errors import DataError

Size = tuple[int, int]
Unreadable = Literal["error", "skip"]

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF", "PPM")  # none that would start another program
MAX_PIXELS = 50_000_000
PROBES = 64
"""How many images are looked at to find out their size."""

DECODE_FAULTS = (OSError, ValueError, SyntaxError, EOFError, struct.error, zlib.error, Image.DecompressionBombError)
"""What Pillow raises on bytes that are not an image, or only the beginning of one."""


class Encoded(Protocol):
    """Where the bytes of images are. ``names`` say which image is meant in a message."""

    @property
    def names(self) -> np.ndarray: ...

    def __len__(self) -> int: ...

    def read(self, row: int) -> bytes: ...


@dataclass(frozen=True)
class ImageFiles:
    """Images in files under ``root``, by relative path; one array of strings, which processes share without copies."""

    root: Path
    names: np.ndarray

    def __len__(self) -> int:
        return len(self.names)

    def path(self, row: int) -> Path:
        return self.root / str(self.names[row])

    def read(self, row: int) -> bytes:
        return self.path(row).read_bytes()


@dataclass(frozen=True)
class ImageBytes:
    """Images in a binary column of an Arrow table."""

    column: Any
    names: np.ndarray

    def __len__(self) -> int:
        return len(self.column)

    def read(self, row: int) -> bytes:
        content = self.column[row].as_py()
        if content is None:
            raise ValueError("there are no bytes")
        return bytes(content)


def open_image(content: bytes, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """The image in these bytes, its header read and its pixels counted, nothing decoded yet."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of damaged tags, and of many pixels: the limit that counts is ours
        try:
            image = Image.open(io.BytesIO(content), formats=FORMATS)
        except Image.DecompressionBombError as error:
            raise ValueError(
                f"it would have more pixels than Pillow opens at all; expected at most {max_pixels:,} (data.max_pixels)"
            ) from error
    if image.width * image.height > max_pixels:
        raise ValueError(
            f"it would have {image.width} x {image.height} pixels; expected at most {max_pixels:,} (data.max_pixels)"
        )
    return image


def upright_size(image: Image.Image) -> Size:
    """Height and width once the image is turned as its EXIF block says."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # damaged EXIF blocks are no reason to stop
        on_its_side = image.getexif().get(ExifTags.Base.Orientation, 1) in (5, 6, 7, 8)
    return (image.width, image.height) if on_its_side else (image.height, image.width)


def decode(content: bytes, size: Size | None = None, max_pixels: int = MAX_PIXELS) -> np.ndarray:
    """8-bit RGB of shape (height, width, 3), resized to ``size`` (height, width) where one is given."""
    image = open_image(content, max_pixels)
    if size is not None:
        image.draft("RGB", (max(size), max(size)))  # a JPEG is decoded at a half, quarter or eighth where that suffices
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # damaged EXIF blocks are no reason to stop
        image = to_rgb(ImageOps.exif_transpose(image))
    if size is not None and (image.height, image.width) != size:
        image = image.resize((size[1], size[0]), Image.Resampling.BILINEAR)
    return np.array(image)


def to_rgb(image: Image.Image) -> Image.Image:
    """Any mode as RGB: 16-bit values by their upper byte, transparency over white."""
    if image.mode == "RGB":
        return image
    if image.mode.startswith("I"):
        values = np.asarray(image).astype(np.int64)
        return Image.fromarray((values.clip(0, 65535) // 256).astype(np.uint8)).convert("RGB")
    if image.mode == "F":
        raise ValueError("its pixels are floating point numbers, whose range is unknown; save it with 8 or 16 bits")
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        layer = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer).convert("RGB")
    return image.convert("RGB")


@dataclass(frozen=True)
class ImageInputs:
    """Images that are decoded as they are needed, by ``workers`` processes ahead of the training step."""

    encoded: Encoded
    finish: Finish = PLAIN
    size: Size | None = None
    unreadable: Unreadable = "error"
    workers: int = 0
    max_pixels: int = MAX_PIXELS
    exact: bool = False
    """An image of another size is refused, not resized."""
    told: set[int] = field(default_factory=set, compare=False, repr=False)
    """Rows the user was warned of already; copies made by ``replace`` share it."""

    def __len__(self) -> int:
        return len(self.encoded)

    @property
    def complete(self) -> bool:
        return self.unreadable == "error"

    def batches(self, chunks: Sequence[Tensor], view: View | None = None) -> Iterator[Loaded]:
        draws = None
        for chunk, (values, faults) in zip(chunks, self.raw(chunks), strict=True):
            if draws is None and len(values):
                draws = self.finish.draws(len(self), values.shape[1:], view)
            self.tell(faults)
            kept = None if not faults else ~torch.isin(chunk, torch.tensor([row for row, _ in faults]))
            rows = chunk if kept is None else chunk[kept]
            yield Loaded(self.finish.apply(values, rows, draws) if len(values) else values.float(), kept)

    def raw(self, chunks: Sequence[Tensor]) -> Iterator[tuple[Tensor, list[tuple[int, str]]]]:
        """uint8 images (rows, 3, height, width) of each chunk, without those that cannot be read, and the reasons."""
        items = _Decoded(self.encoded, self.size, self.max_pixels, self.exact)
        yield from read_ahead(items, chunks, _Stack(self.encoded.names), self.workers)

    def tell(self, faults: list[tuple[int, str]]) -> None:
        """Stop at the first image that cannot be read, or warn and go on, as the user wished."""
        for row, reason in faults:
            seen = f"image {str(self.encoded.names[row])!r} (row {row}) cannot be read: {reason}"
            if self.unreadable == "error":
                raise DataError(f"{seen}; mend or remove it, or leave such images out with data.unreadable=skip.")
            if row not in self.told:
                self.told.add(row)
                warnings.warn(f"{seen}; the row is left out", stacklevel=3)

    def probe_sizes(self) -> list[Size]:
        """Height and width of a few images from all over the data; those that cannot be read are passed over."""
        found = []
        for row in np.unique(np.linspace(0, len(self) - 1, PROBES).astype(int)):
            try:
                found.append(upright_size(open_image(self.encoded.read(int(row)), self.max_pixels)))
            except DECODE_FAULTS:
                continue  # training or `pencil check` will name it
        return found


@dataclass(frozen=True)
class _Decoded:
    """One image per row, or the reason why there is none."""

    encoded: Encoded
    size: Size | None
    max_pixels: int
    exact: bool = False

    def __len__(self) -> int:
        return len(self.encoded)

    def __getitem__(self, row: int) -> tuple[int, np.ndarray | str]:
        try:
            image = decode(self.encoded.read(row), None if self.exact else self.size, self.max_pixels)
        except DECODE_FAULTS as error:
            return row, describe_fault(error)
        if self.size is not None and image.shape[:2] != self.size:
            raise DataError(
                f"image {str(self.encoded.names[row])!r} has {_pixels(image)}; expected {self.size[0]} x "
                f"{self.size[1]} as the others; set data.resize."
            )
        return row, image


def describe_fault(error: Exception) -> str:
    """A decoder's complaint as one phrase, without the address of a buffer in it."""
    if isinstance(error, UnidentifiedImageError):
        return "it is not an image that Pillow knows"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return (str(error) or type(error).__name__).splitlines()[0]


@dataclass(frozen=True)
class _Stack:
    """Collates decoded images; a class, so that it can be sent to worker processes."""

    names: np.ndarray

    def __call__(self, items: list[tuple[int, np.ndarray | str]]) -> tuple[Tensor, list[tuple[int, str]]]:
        faults = [(row, image) for row, image in items if isinstance(image, str)]
        images = [(row, image) for row, image in items if not isinstance(image, str)]
        for row, image in images:
            if image.shape != images[0][1].shape:
                raise DataError(
                    f"image {str(self.names[row])!r} has {_pixels(image)}, {str(self.names[images[0][0]])!r} "
                    f"{_pixels(images[0][1])}; expected one size; set data.resize."
                )
        if not images:
            return torch.empty(0, 3, 1, 1, dtype=torch.uint8), faults
        stacked = torch.empty(len(images), 3, *images[0][1].shape[:2], dtype=torch.uint8)
        for place, (_, image) in zip(stacked, images, strict=True):
            place.copy_(torch.from_numpy(image).permute(2, 0, 1))
        return stacked, faults


def _pixels(image: np.ndarray) -> str:
    return f"{image.shape[0]} x {image.shape[1]} pixels"
