"""Augmentation of whole batches, without per-image Python.

The augmentation of a row is a pure function of (seed, epoch, row): the draws of an epoch are made once for all rows and
then indexed, so neither the order of the rows nor the batch of a row changes its picture.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from pencil.seeding import generator


@dataclass(frozen=True)
class Augmentation:
    """Random crops and horizontal flips.

    Parameters
    ----------
    crop_padding
        Pixels of zero padding on each side before the random crop, 0 to 127.
    flip
        Whether to flip images horizontally: half of them, drawn anew in every epoch, or with "alternate" each image in
        every second epoch, half of them in the first.
    """

    crop_padding: int = 0
    flip: bool | Literal["alternate"] = False

    def __post_init__(self) -> None:
        if not 0 <= self.crop_padding <= 127:
            raise ValueError(f"crop_padding is {self.crop_padding}; expected 0 to 127 pixels")

    def draw(self, rows: int, seed: int, epoch: int, frame: "Frame") -> "Draws":
        """Draw the choices of one epoch for images of size ``frame.whole`` that are cropped to ``frame.cropped``."""
        random = generator(seed, "augmentation", epoch)
        spans = [
            whole + 2 * self.crop_padding - cropped + 1
            for whole, cropped in zip(frame.whole, frame.cropped, strict=True)
        ]
        kind = torch.uint8 if max(spans) <= 256 else torch.int16
        if spans[0] == spans[1]:
            offsets = torch.randint(0, spans[0], (rows, 2), generator=random, dtype=kind)
        else:
            columns = [torch.randint(0, span, (rows,), generator=random, dtype=kind) for span in spans]
            offsets = torch.stack(columns, dim=1)
        flips = self._flips(rows, seed, epoch, random)
        return Draws(self.crop_padding, frame.cropped, offsets if max(spans) > 1 else None, flips)

    def _flips(self, rows: int, seed: int, epoch: int, random: torch.Generator) -> Tensor | None:
        """Return which images an epoch flips; ``random`` is the generator of that epoch."""
        if self.flip == "alternate":
            first = torch.rand(rows, generator=generator(seed, "augmentation", "flip")) < 0.5
            return first ^ (epoch % 2 == 1)
        return torch.rand(rows, generator=random) < 0.5 if self.flip else None


class Frame(NamedTuple):
    """Height and width of images as they are stored, and as a network sees them."""

    whole: tuple[int, int]
    cropped: tuple[int, int]


@dataclass(frozen=True)
class View:
    """The randomness of one pass over the data; evaluation has no view.

    Parameters
    ----------
    seed, epoch
        Together with the row they determine every random choice.
    augmentation
        Crops and flips; None for none.
    """

    seed: int
    epoch: int
    augmentation: Augmentation | None = None


@dataclass(frozen=True)
class Draws:
    """The random choices of one epoch for every row."""

    padding: int
    size: tuple[int, int]
    offsets: Tensor | None
    flips: Tensor | None

    def apply(self, images: Tensor, rows: Tensor) -> Tensor:
        """Crop and flip ``images`` (batch, channels, height, width); ``rows`` are their rows in the data."""
        if self.offsets is not None:
            images = crop(images, self.offsets[rows].long(), self.padding, self.size)
        if self.flips is not None:
            images = torch.where(self.flips[rows][:, None, None, None], images.flip(-1), images)
        return images


def crop(images: Tensor, offsets: Tensor, padding: int, size: tuple[int, int]) -> Tensor:
    """Pad with zeros and crop each image to ``size`` at its own (top, left) offset."""
    padded = functional.pad(images, (padding,) * 4) if padding else images
    windows = padded.unfold(2, size[0], 1).unfold(3, size[1], 1)  # a view: every crop of every image, nothing copied
    return windows[torch.arange(len(images)), :, offsets[:, 0], offsets[:, 1]]


def centre_crop(images: Tensor, size: tuple[int, int]) -> Tensor:
    """Return the centre of each image, as a view of the tensor."""
    top, left = ((whole - cropped) // 2 for whole, cropped in zip(images.shape[-2:], size, strict=True))
    return images[..., top : top + size[0], left : left + size[1]]
