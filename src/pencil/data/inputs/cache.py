"""Decoded images cached for all epochs: in memory if they are few, or in a file that later runs reuse."""

import os
import stat
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pencil.data.inputs.base import Inputs, Size
from pencil.errors import DataError, reason_of, setting
from pencil.files import atomic_write, read_json, write_json

IN_MEMORY = 512 * 2**20
"""Up to this many bytes of pixels, decoding once and keeping the result in memory is always cheapest."""
CHUNK = 64
MOST_INDEX, MOST_NUMBER = 1000, 22
"""Maximum bytes of an index without the numbers of unreadable rows, and of each of these numbers."""


def fits_memory(rows: int, size: Size) -> bool:
    """Return whether this many RGB images of this size are few enough to be kept in memory."""
    return rows * 3 * size[0] * size[1] <= IN_MEMORY


def cache_in_memory(inputs: Inputs, rows: Tensor, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Decode these rows into one tensor of ``shape``; return it and a mask of the readable rows."""
    values = torch.empty(shape, dtype=torch.uint8)
    return values, _fill(values, inputs, rows)


def cache_in_file(
    inputs: Inputs, rows: Tensor, shape: tuple[int, ...], folder: Path, signature: str
) -> tuple[Tensor, Tensor]:
    """Map the cache file of these rows into memory; decode them into it first if no whole file has this signature."""
    pixels, index = folder / f"{signature}.pixels", folder / f"{signature}.json"
    readable = _readable_rows(pixels, index, shape)
    if readable is None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            readable = _make(pixels, index, shape, inputs, rows)
        except OSError as error:
            reason = reason_of(error.__cause__ or error)  # atomic_write wraps it
            raise DataError(
                f"cannot write the cache of {np.prod(shape) / 2**30:.1f} GiB in {folder}: {reason}; expected a "
                f"folder with enough space; free some space, or choose another one with "
                f"{setting('data.cache', 'FOLDER')}, or disable the cache with {setting('data.cache', 'none')}."
            ) from error
    return torch.from_file(str(pixels), size=int(np.prod(shape)), dtype=torch.uint8).view(shape), readable


def _readable_rows(pixels: Path, index: Path, shape: tuple[int, ...]) -> Tensor | None:
    """Return a mask of the readable rows in a cache; None if it does not exist or is damaged."""
    try:
        sizes = [one.lstat().st_size if stat.S_ISREG(one.lstat().st_mode) else -1 for one in (pixels, index)]
        if sizes[0] != np.prod(shape) or not 0 <= sizes[1] <= MOST_INDEX + MOST_NUMBER * shape[0]:
            return None
        tree = read_json(index)
    except (OSError, ValueError):
        return None
    unreadable = tree.get("unreadable") if isinstance(tree, dict) and tree.get("shape") == list(shape) else None
    if not isinstance(unreadable, list) or not all(type(row) is int and 0 <= row < shape[0] for row in unreadable):
        return None
    readable = torch.ones(shape[0], dtype=torch.bool)
    readable[torch.tensor(unreadable, dtype=torch.int64)] = False
    return readable


def _fill(values: Tensor, inputs: Inputs, rows: Tensor) -> Tensor:
    """Decode every row into its place; return a mask of the readable rows."""
    readable = torch.ones(len(rows), dtype=torch.bool)
    places = torch.arange(len(rows)).split(CHUNK)
    for place, loaded in zip(places, inputs.batches([rows[place] for place in places]), strict=True):
        if loaded.kept is not None:
            readable[place] = loaded.kept
            place = place[loaded.kept]
        if len(place):
            values[place] = loaded.values
    return readable


def _make(pixels: Path, index: Path, shape: tuple[int, ...], inputs: Inputs, rows: Tensor) -> Tensor:
    """Decode into the cache file and return a mask of the readable rows.

    The index is written last, so a cache with an index is complete.
    """
    size = int(np.prod(shape))
    with atomic_write(pixels) as temporary:
        with temporary.open("wb") as made:
            if hasattr(os, "posix_fallocate"):  # detect a full disk now, not at row 90,000
                os.posix_fallocate(made.fileno(), 0, size)
            made.truncate(size)
        values = torch.from_file(str(temporary), shared=True, size=size, dtype=torch.uint8)
        readable = _fill(values.view(shape), inputs, rows)
    write_json(index, {"shape": shape, "unreadable": (~readable).nonzero()[:, 0].tolist()}, indent=None)
    return readable
