"""Image sizes: the common size of all images, the crop, and whether decoded images are cached."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from pencil.data.examples import Examples
from pencil.data.inputs.base import Inputs, ReadOptions, Size
from pencil.data.inputs.cache import fits_memory
from pencil.data.inputs.transform import refuse_crop
from pencil.data.settings import DataSettings
from pencil.errors import DataError, setting

LARGEST = 224
"""Images of mixed sizes are resized to at most this size unless a recipe sets another."""


def apply_geometry(settings: DataSettings, examples: Examples, size: Size | None) -> Examples:
    """Return the same examples with images of this size, cropped as set, and decoded once if that saves time."""
    inputs = examples.inputs
    if inputs.resizable and size is None:
        size = _only_size(inputs, settings)
    inputs = inputs.with_options(read_options(settings, size))
    if inputs is examples.inputs:  # no option applies to them
        return examples
    if settings.cache == "none" or size is None or (settings.cache == "auto" and not fits_memory(len(examples), size)):
        return replace(examples, inputs=inputs)
    cached = inputs.cached(examples.rows, None if settings.cache in ("auto", "memory") else Path(settings.cache))
    if cached is None:
        return replace(examples, inputs=inputs)
    return replace(examples, inputs=cached, rows=torch.arange(len(examples)))


def read_options(settings: DataSettings, size: Size | None) -> ReadOptions:
    """Return the options of these settings for inputs of this size."""
    return ReadOptions(
        size=size,
        crop=settings.crop,
        exact=settings.resize == "none",
        unreadable=settings.bad_rows,
        max_pixels=settings.max_pixels,
        workers=default_workers() if settings.workers is None else settings.workers,
    )


def image_size(settings: DataSettings, inputs: Inputs) -> Size | None:
    """Return the height and width to which encoded images are resized; None for other inputs.

    It is ``data.resize`` if that is a size, otherwise it is derived from a sample of the images.
    """
    if not inputs.resizable:
        if settings.resize not in ("auto", "none"):
            raise DataError(
                f"data.resize is {settings.resize} but the inputs are arrays; expected encoded images; "
                "resize the arrays beforehand, or remove data.resize."
            )
        return None
    if isinstance(settings.resize, int):
        size = (settings.resize, settings.resize)
    elif isinstance(settings.resize, tuple):
        size = settings.resize
    else:
        size = _only_size(inputs, settings) if settings.resize == "none" else _suitable_size(inputs, settings)
    refuse_crop(settings.crop, (3, *size))
    return size


def decodes_once(settings: DataSettings, examples: Examples) -> bool:
    """Return whether training decodes every image only once."""
    shape = examples.inputs.shape
    if settings.cache != "auto" or shape is None or len(shape) != 3:
        return settings.cache != "none"
    return fits_memory(len(examples), (shape[1], shape[2]))


def input_shape(settings: DataSettings, examples: Examples) -> tuple[int, ...]:
    """Return the shape of one input as a network will see it, before anything is prepared."""
    options = read_options(settings, image_size(settings, examples.inputs))
    return replace(examples, inputs=examples.inputs.with_options(options)).input_shape


def default_workers() -> int:
    """Return the number of cores minus one for training, at most four."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(4, cores - 1)


def _suitable_size(inputs: Inputs, settings: DataSettings) -> Size:
    sizes = inputs.probe_sizes(settings.max_pixels)
    if not sizes:
        return LARGEST, LARGEST  # nothing could be read; reading the data will give the reason
    if len(set(sizes)) == 1 and max(sizes[0]) <= LARGEST:
        return sizes[0]
    side = min(LARGEST, int(np.median([min(size) for size in sizes])))
    return side, side


def _only_size(inputs: Inputs, settings: DataSettings) -> Size:
    sizes = sorted(set(inputs.probe_sizes(settings.max_pixels)))
    if len(sizes) > 1:
        (height, width), (other_height, other_width) = sizes[0], sizes[-1]
        raise DataError(
            f"images range from {height} x {width} to {other_height} x {other_width} pixels; "
            f"expected one size; set one with {setting('data.resize', 224)}."
        )
    return sizes[0] if sizes else (LARGEST, LARGEST)
