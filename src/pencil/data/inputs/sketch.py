"""A sketch of every image: a thumbnail of a few hundred bytes, used to find near-duplicates and blank images.

It has 16 x 16 brightness values and 4 x 4 values of each colour difference, like the components of a JPEG. A copy that
was re-encoded, resized or slightly brightened has nearly the same sketch, up to contrast and offset.
"""

from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional

from pencil.data.inputs.transform import rows_within

SIDE = 32
"""Images are first resized to this side."""
BRIGHTNESS, COLOUR = 16, 4
BRIGHTNESS_VALUES = BRIGHTNESS**2
SKETCH = BRIGHTNESS_VALUES + 2 * COLOUR**2
"""Bytes of a sketch."""
SMALLEST = 8
"""Arrays with fewer pixels on a side are too small to be compared by sketches."""


class Look(NamedTuple):
    """The sketch of an image, and the largest standard deviation of its pixels in any channel."""

    sketch: np.ndarray
    deviation: float


def look_at(image: Image.Image) -> Look:
    """Return the look of a decoded RGB image; the standard deviation is in steps of 1/255."""
    counts = np.asarray(image.histogram(), dtype=np.float64).reshape(3, 256)
    levels, pixels = np.arange(256), counts[0].sum()
    variance = counts @ levels**2 / pixels - (counts @ levels / pixels) ** 2
    small = image.resize((SIDE, SIDE), Image.Resampling.BILINEAR, reducing_gap=2.0)
    sketch = sketches_of(np.asarray(small, dtype=np.float32)[None])[0]
    return Look(sketch, float(np.sqrt(variance.max().clip(min=0))))


def look_at_arrays(values: Tensor) -> list[Look] | None:
    """Return the looks of images (n, channels, height, width); None for other inputs, and for very small images.

    Only the first three channels count. Bytes are compared as they are. Floats, which may have any range, are scaled
    from the darkest to the brightest pixel; their deviation is in their own unit.
    """
    if values.ndim != 4 or min(values.shape[2:]) < SMALLEST:
        return None
    return [look for part in values.split(rows_within(values.shape[1:], 8)) for look in _look_at_block(part)]


def _look_at_block(values: Tensor) -> list[Look]:
    found = [_channel(values[:, number]) for number in range(3 if values.shape[1] >= 3 else 1)]
    small, deviations = torch.cat([part for part, _ in found], dim=1), torch.stack([part for _, part in found]).amax(0)
    if values.dtype != torch.uint8:
        low, high = (bound.view(-1, 1, 1, 1) for bound in small.flatten(1).aminmax(dim=1))
        small = (small - low) / (high - low).clamp(min=1e-12) * 255
    sketches = sketches_of(small.expand(-1, 3, -1, -1).permute(0, 2, 3, 1).numpy())
    return [Look(sketch, deviation) for sketch, deviation in zip(sketches, deviations.tolist(), strict=True)]


def _channel(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return one channel (n, 1, SIDE, SIDE) and its deviations (n,); one at a time, because images may be large."""
    pixels = values.unsqueeze(1).to(torch.float32, copy=True).nan_to_num_()
    small = functional.interpolate(pixels, size=(SIDE, SIDE), mode="bilinear", antialias=True, align_corners=False)
    return small, pixels.flatten(1).std(dim=1, correction=0)


def sketches_of(images: np.ndarray) -> np.ndarray:
    """Return the sketches (n, SKETCH) of RGB images (n, SIDE, SIDE, 3) with float values from 0 to 255."""
    brightness = images @ np.array([0.299, 0.587, 0.114], dtype=np.float32)
    blue, red = 0.564 * (images[..., 2] - brightness), 0.713 * (images[..., 0] - brightness)
    parts = _means(brightness, BRIGHTNESS), _means(blue, COLOUR) + 128, _means(red, COLOUR) + 128
    return np.concatenate(parts, axis=1).round().clip(0, 255).astype(np.uint8)


def _means(values: np.ndarray, side: int) -> np.ndarray:
    """Return the means over a grid of ``side`` x ``side`` cells."""
    cell = SIDE // side
    means: np.ndarray = values.reshape(len(values), side, cell, side, cell).mean(axis=(2, 4))
    return means.reshape(len(values), -1)
