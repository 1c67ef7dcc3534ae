"""Decoded images kept for all epochs: in memory where they are few, or in a file that later runs find again."""

import hashlib
import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pencil.data.examples import Examples
from pencil.data.images import DECODE_FAULTS, ImageFiles, ImageInputs, Size
from pencil.data.inputs import TensorInputs
from pencil.errors import DataError

IN_MEMORY = 512 * 2**20
"""Up to so many bytes of pixels, decoding once and keeping the result costs less than anything else."""
CHUNK = 64


def fits_memory(examples: Examples, size: Size) -> bool:
    return len(examples) * 3 * size[0] * size[1] <= IN_MEMORY


def keep(examples: Examples, inputs: ImageInputs, size: Size, folder: Path | None = None) -> Examples:
    """The same examples with their pixels decoded, in a file under ``folder`` or in memory.

    Rows that cannot be read stop it or are remembered as such, as ``inputs.unreadable`` says.
    """
    shape = (len(examples), 3, *size)
    if folder is None:
        values = torch.empty(shape, dtype=torch.uint8)
        readable = _fill(values, examples, inputs)
    else:
        values, readable = _from_file(folder.expanduser(), shape, examples, inputs)
    if not readable.any():
        raise DataError(f"none of the {len(examples)} images can be read; see `pencil check`.")
    kept = TensorInputs(values, inputs.finish, readable=None if readable.all() else readable)
    return replace(examples, inputs=kept, rows=torch.arange(len(examples)))


def _fill(values: Tensor, examples: Examples, inputs: ImageInputs) -> Tensor:
    """Decode every row into its place; says which rows could be read."""
    readable = torch.ones(len(examples), dtype=torch.bool)
    places = torch.arange(len(examples)).split(CHUNK)
    for place, (images, faults) in zip(places, inputs.raw([examples.rows[place] for place in places]), strict=True):
        inputs.tell(faults)
        bad = torch.tensor([row for row, _ in faults], dtype=torch.int64)
        good = place[~torch.isin(examples.rows[place], bad)]
        readable[place] = False
        readable[good] = True
        if len(good):
            values[good] = images
    return readable


def _from_file(folder: Path, shape: tuple[int, ...], examples: Examples, inputs: ImageInputs) -> tuple[Tensor, Tensor]:
    """The cache file of these images, made now if it is not there or if an image has changed since."""
    name = _signature(shape, examples, inputs)
    pixels, index = folder / f"{name}.pixels", folder / f"{name}.json"
    if not (index.is_file() and pixels.is_file()):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _make(pixels, index, shape, examples, inputs)
        except OSError as error:
            raise DataError(
                f"cannot write the cache of {np.prod(shape) / 2**30:.1f} GiB in {folder}: {error.strerror}; "
                "make room, or set data.cache to another folder or to none."
            ) from error
    readable = torch.ones(len(examples), dtype=torch.bool)
    readable[json.loads(index.read_text())["unreadable"]] = False
    return torch.from_file(str(pixels), size=int(np.prod(shape)), dtype=torch.uint8).view(shape), readable


def _make(pixels: Path, index: Path, shape: tuple[int, ...], examples: Examples, inputs: ImageInputs) -> None:
    """Decode into a file beside the cache and rename it; the index comes last, so what has one is whole."""
    temporary, size = pixels.with_name(f".{pixels.stem}.{os.getpid()}"), int(np.prod(shape))
    try:
        with temporary.open("wb") as made:
            if hasattr(os, "posix_fallocate"):  # a full disk is found now, not at row 90,000
                os.posix_fallocate(made.fileno(), 0, size)
            made.truncate(size)
        values = torch.from_file(str(temporary), shared=True, size=size, dtype=torch.uint8)
        readable = _fill(values.view(shape), examples, inputs)
        temporary.replace(pixels)
        temporary.write_text(json.dumps({"shape": shape, "unreadable": (~readable).nonzero()[:, 0].tolist()}))
        temporary.replace(index)
    finally:
        temporary.unlink(missing_ok=True)


def _signature(shape: tuple[int, ...], examples: Examples, inputs: ImageInputs) -> str:
    """Changes whenever an image, the choice of rows, or how they are decoded does."""
    digest = hashlib.sha256(json.dumps([shape, inputs.max_pixels, inputs.unreadable, inputs.exact]).encode())
    for row in examples.rows.tolist():
        digest.update(f"\0{inputs.encoded.names[row]}\0".encode())
        if isinstance(inputs.encoded, ImageFiles):
            path = inputs.encoded.path(row)
            seen = path.stat() if path.is_file() else None
            digest.update(b"missing" if seen is None else f"{seen.st_size} {seen.st_mtime_ns}".encode())
        else:
            digest.update(_content_digest(inputs, row))
    return digest.hexdigest()[:24]


def _content_digest(inputs: ImageInputs, row: int) -> bytes:
    try:
        return hashlib.blake2b(inputs.encoded.read(row)).digest()
    except DECODE_FAULTS:
        return b"missing"
