"""Augmentation of whole batches, without per-image Python.

What happens to a row is a pure function of (seed, epoch, row): an epoch's draws are made once for all rows and then
indexed, so neither the order of rows nor the batch a row falls into changes its picture.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from pencil.seeding import generator


@dataclass(frozen=True)
class Augmentation:
    """Random crops after padding ``crop_padding`` pixels on each side, and horizontal flips."""

    crop_padding: int = 0
    flip: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.crop_padding <= 127:
            raise ValueError(f"crop_padding is {self.crop_padding}; expected 0 to 127 pixels")

    def draw(self, rows: int, seed: int, epoch: int) -> "Draws":
        random = generator(seed, "augmentation", epoch)
        offsets = torch.randint(0, 2 * self.crop_padding + 1, (rows, 2), generator=random, dtype=torch.uint8)
        flips = torch.rand(rows, generator=random) < 0.5 if self.flip else None
        return Draws(self.crop_padding, offsets if self.crop_padding else None, flips)


@dataclass(frozen=True)
class Draws:
    """One epoch's random choices for every row."""

    padding: int
    offsets: Tensor | None
    flips: Tensor | None

    def apply(self, images: Tensor, rows: Tensor) -> Tensor:
        """Crop and flip ``images`` (batch, channels, height, width), which are these rows of the data."""
        if self.offsets is not None:
            images = crop(images, self.offsets[rows].long(), self.padding)
        if self.flips is not None:
            images = torch.where(self.flips[rows][:, None, None, None], images.flip(-1), images)
        return images


def crop(images: Tensor, offsets: Tensor, padding: int) -> Tensor:
    """Pad with zeros and cut each image back to its size at its own (top, left) offset."""
    height, width = images.shape[-2:]
    padded = functional.pad(images, (padding,) * 4)
    windows = padded.unfold(2, height, 1).unfold(3, width, 1)  # a view: every crop of every image, nothing copied
    return windows[torch.arange(len(images)), :, offsets[:, 0], offsets[:, 1]]
