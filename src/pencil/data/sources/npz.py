"""Untrusted files of numpy.savez and numpy.save: every size is checked before memory is allocated.

A compressed member of a few megabytes can expand to terabytes of zeros, and a header can claim any shape. Members that
are not requested are never read, and pickled objects, which could run code, are never loaded.
"""

import math
import os
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy

from pencil.errors import DataError, explained
from pencil.memory import as_size, memory_limit

SUSPECT = 2**28
"""Members up to this many bytes may have any compression ratio."""
RATIO = 200
"""Maximum compression ratio of larger members."""
COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""Compression types that numpy writes."""
LONGEST_HEADER = 10_000
FAULTS = (
    OSError, ValueError, EOFError, MemoryError, RuntimeError, TypeError, SyntaxError, LookupError, AttributeError,
    OverflowError, zipfile.BadZipFile, zlib.error, tokenize.TokenError,
)  # fmt: skip
"""Errors that zipfile and numpy raise for damaged files."""


class ArrayFile:
    """The arrays of an open file, by name; each is read on demand. An npy file has one array, ``x``."""

    def __init__(self, path: Path, stream: IO[bytes]):
        self.path, self._stream = path, stream
        self._size = os.fstat(stream.fileno()).st_size
        self._members: dict[str, zipfile.ZipInfo] | None = None
        if stream.read(len(npy.MAGIC_PREFIX)) != npy.MAGIC_PREFIX:
            stream.seek(0)
            self._archive = zipfile.ZipFile(stream)
            self._members = self._list_members()
        self._left = memory_limit()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the arrays."""
        return ("x",) if self._members is None else tuple(self._members)

    def __contains__(self, name: str) -> bool:
        return name in self.names

    def optional(self, name: str) -> np.ndarray | None:
        """Return an array, or None if there is no array of this name."""
        return self.read(name) if name in self else None

    def read(self, name: str) -> np.ndarray:
        """Return an array; raise if it is damaged or larger than it should be."""
        with _damage_named(self.path):
            if self._members is None:
                self._stream.seek(0)
                return self._read(name, self._stream, self._size)
            member = self._members[name]
            self._refuse_member(name, member)
            with self._archive.open(member) as stream:
                return self._read(name, stream, member.file_size)

    def _list_members(self) -> dict[str, zipfile.ZipInfo]:
        found: dict[str, zipfile.ZipInfo] = {}
        for member in self._archive.infolist():
            name = member.filename.removesuffix(".npy")
            if name in found:
                raise DataError(
                    f"{self.path} contains the array {name!r} more than once; expected it once; save the arrays again."
                )
            found[name] = member
        return found

    def _refuse_member(self, name: str, member: zipfile.ZipInfo) -> None:
        """Raise if a member is larger than memory, or implausibly large for its compressed size."""
        stored, size = min(member.compress_size, self._size), member.file_size
        if member.compress_type not in COMPRESSIONS or member.flag_bits & 1:
            raise DataError(
                f"array {name!r} in {self.path} is encrypted or uses a compression that numpy does not; expected a "
                "file of numpy.savez; save the arrays again."
            )
        if size > SUSPECT and size > RATIO * stored:
            raise DataError(
                f"array {name!r} in {self.path} takes {as_size(stored)} in the file and would take {as_size(size)} in "
                f"memory; expected at most {RATIO} times its size in the file; if the array is genuine, save it "
                "with numpy.savez, uncompressed."
            )

    def _read(self, name: str, stream: IO[bytes], available: int) -> np.ndarray:
        """Return an array of a stream with ``available`` bytes; its size is checked before it is read."""
        shape, dtype = _read_header(stream)
        if dtype.hasobject:
            kind = "float" if name in ("x", "x_test") else "str"
            raise DataError(
                f"array {name!r} in {self.path} has Python objects, which could run code; expected numbers or text; "
                f"save it again with numpy.savez(path, {name}={name}.astype({kind}), ...)."
            )
        if dtype.itemsize == 0 or dtype.subdtype is not None or dtype.fields is not None or min(shape, default=1) < 0:
            raise DataError(
                f"array {name!r} in {self.path} has shape {shape} and type {dtype}; expected numbers or text; "
                "convert it and save it again."
            )
        size, available = math.prod(shape) * dtype.itemsize, available - stream.tell()
        if size > available:
            raise DataError(
                f"array {name!r} in {self.path} has shape {shape}, which takes {as_size(size)}, but the file has only "
                f"{as_size(available)} of it; expected a complete file; save the arrays again."
            )
        if size > self._left:
            raise DataError(
                f"array {name!r} in {self.path} takes {as_size(size)}, but only {as_size(self._left)} are free; "
                "expected arrays that fit into memory; use fewer rows or smaller types."
            )
        self._left -= size
        stream.seek(0)
        values: np.ndarray = npy.read_array(stream, allow_pickle=False, max_header_size=LONGEST_HEADER)
        return values


@contextmanager
def open_arrays(path: Path) -> Iterator[ArrayFile]:
    """Open a file of numpy.savez or numpy.save; any damage raises a DataError of one line."""
    if path.exists() and not path.is_file():
        raise DataError(f"{path} is not a regular file; expected a file of numpy.savez or numpy.save; choose another.")
    with _damage_named(path):
        stream = path.open("rb")
    with stream:
        with _damage_named(path):
            arrays = ArrayFile(path, stream)
        yield arrays


def _damage_named(path: Path) -> AbstractContextManager[None]:
    """Convert errors of zipfile and numpy for a damaged file into a DataError."""
    advice = "expected a file of numpy.savez or numpy.save; save the arrays again"
    return explained(DataError, f"cannot read {path}", advice, *FAULTS)


def _read_header(stream: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    version = npy.read_magic(stream)
    if version == (1, 0):
        shape, _, dtype = npy.read_array_header_1_0(stream, max_header_size=LONGEST_HEADER)
    elif version == (2, 0):
        shape, _, dtype = npy.read_array_header_2_0(stream, max_header_size=LONGEST_HEADER)
    else:
        raise ValueError(f"an array has the npy format {version[0]}.{version[1]}, which only records need")
    return shape, dtype
