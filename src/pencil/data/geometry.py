"""One size for all images: how large they are made, what is cut out of them, and whether they are kept decoded."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np

from pencil.data import cache
from pencil.data.examples import Examples
from pencil.data.images import ImageInputs, Size
from pencil.data.inputs import TensorInputs
from pencil.data.settings import DataSettings
from pencil.errors import DataError

LARGEST = 224
"""Images of mixed sizes are made no larger than this unless a recipe says so."""


def apply_geometry(settings: DataSettings, examples: Examples, size: Size | None) -> Examples:
    """The same examples with images of this size, cropped as the settings say, decoded once where that pays."""
    inputs = examples.inputs
    if isinstance(inputs, TensorInputs):
        _refuse_crop(settings, inputs.values.shape[1:])
        return replace(examples, inputs=replace(inputs, finish=replace(inputs.finish, crop=settings.crop)))
    if not isinstance(inputs, ImageInputs):
        return examples
    size = size or _only_size(inputs)
    inputs = sized(settings, inputs, size)
    if settings.cache == "none" or (settings.cache == "auto" and not cache.fits_memory(examples, size)):
        return replace(examples, inputs=inputs)
    folder = None if settings.cache in ("auto", "memory") else Path(settings.cache)
    return cache.keep(examples, inputs, size, folder)


def sized(settings: DataSettings, inputs: ImageInputs, size: Size | None) -> ImageInputs:
    """Images of this size, read and cropped as the settings say."""
    return replace(
        inputs,
        size=size,
        exact=settings.resize == "none",
        finish=replace(inputs.finish, crop=settings.crop),
        unreadable=settings.unreadable,
        max_pixels=settings.max_pixels,
        workers=default_workers() if settings.workers is None else settings.workers,
    )


def image_size(settings: DataSettings, examples: Examples) -> Size | None:
    """The size images are brought to: as set, or left as it is where all have one, or found from a look at some."""
    if not isinstance(examples.inputs, ImageInputs):
        if settings.resize not in ("auto", "none"):
            raise DataError("data.resize works on encoded images; these inputs are arrays; resize them beforehand.")
        return None
    if isinstance(settings.resize, int):
        size = (settings.resize, settings.resize)
    elif isinstance(settings.resize, tuple):
        size = settings.resize
    else:
        size = _only_size(examples.inputs) if settings.resize == "none" else _suitable_size(examples.inputs)
    _refuse_crop(settings, (3, *size))
    return size


def default_workers() -> int:
    """A process for each core but one, which trains; at most four."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(4, cores - 1)


def _suitable_size(inputs: ImageInputs) -> Size:
    sizes = inputs.probe_sizes()
    if not sizes:
        return LARGEST, LARGEST  # nothing could be read; reading for real will say so
    if len(set(sizes)) == 1 and max(sizes[0]) <= LARGEST:
        return sizes[0]
    side = min(LARGEST, int(np.median([min(size) for size in sizes])))
    return side, side


def _only_size(inputs: ImageInputs) -> Size:
    sizes = sorted(set(inputs.probe_sizes()))
    if len(sizes) > 1:
        (height, width), (other_height, other_width) = sizes[0], sizes[-1]
        raise DataError(
            f"images have from {height} x {width} to {other_height} x {other_width} pixels; "
            "expected one size; set data.resize."
        )
    return sizes[0] if sizes else (LARGEST, LARGEST)


def _refuse_crop(settings: DataSettings, shape: tuple[int, ...]) -> None:
    if settings.crop is None:
        return
    if len(shape) != 3:
        raise DataError(f"data.crop needs images; the inputs have shape {tuple(shape)}.")
    if settings.crop > min(shape[1:]):
        raise DataError(f"data.crop is {settings.crop} but images have {shape[1]} x {shape[2]} pixels; crop less.")
