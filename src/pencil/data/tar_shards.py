"""WebDataset shards: tar files whose members ``NAME.jpg`` and ``NAME.cls`` (or ``NAME.json``) make one sample.

The headers are read once, to an index of where each image is; an image is read when it is needed, from its place.
"""

import json
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from sys import intern
from typing import Any

import numpy as np
import pyarrow as pa

from pencil.data.bad_rows import BadRows
from pencil.data.columns import LABEL_COLUMNS, Columns
from pencil.data.images import SUFFIXES as IMAGE_SUFFIXES
from pencil.data.keys import as_keys
from pencil.data.regular_files import read_slice, version_of

SUFFIXES = (".tar",)
CLASS, FIELDS = ".cls", ".json"
LONGEST = 2**20
"""A label file of more bytes is refused."""
KEPT = 1024
"""tarfile keeps every member that it has seen; after so many they are forgotten."""


@dataclass(frozen=True)
class TarImages:
    """Images in tar files, each read from its place when it is asked for.

    Parameters
    ----------
    folder, shards
        The files, by their paths relative to a folder.
    versions
        Size and time of change of each shard when it was indexed.
    names
        Shard and member of each image.
    shard, offset, size
        Where the bytes of each image are; a row without an image has the size -1.
    """

    folder: Path
    shards: tuple[str, ...]
    versions: tuple[bytes, ...]
    names: np.ndarray
    shard: np.ndarray
    offset: np.ndarray
    size: np.ndarray

    def __len__(self) -> int:
        return len(self.names)

    def read(self, row: int) -> bytes:
        """Return the bytes of an image, as :class:`~pencil.data.images.Encoded` asks."""
        if self.size[row] < 0:
            raise ValueError("there is no image beside its label")
        return read_slice(self.folder / self.shards[self.shard[row]], int(self.offset[row]), int(self.size[row]))

    def file_of(self, row: int) -> None:
        return None

    def version(self, row: int) -> bytes:
        """Return what changes with the shard, and with the place of the image in it."""
        return b"%s %d %d" % (self.versions[self.shard[row]], self.offset[row], self.size[row])


@dataclass
class Sample:
    """The members of one sample: where its image is, and what its labels say."""

    name: str
    offset: int = 0
    size: int = -1
    fields: dict[str, Any] = field(default_factory=dict)
    fault: str | None = None
    is_known: bool = False

    def add(self, tar: tarfile.TarFile, member: tarfile.TarInfo, suffix: str, wanted: frozenset[str]) -> None:
        """Add a member; those that are neither an image nor a label are passed over."""
        if suffix in IMAGE_SUFFIXES:
            if self.size >= 0:
                self.fault = self.fault or f"there is a second image, {member.name!r}"
                return
            self.name, self.offset, self.size, self.is_known = member.name, member.offset_data, member.size, True
        elif suffix in (CLASS, FIELDS):
            self.is_known = True
            self._add_label(tar, member, suffix, wanted)

    def _add_label(self, tar: tarfile.TarFile, member: tarfile.TarInfo, suffix: str, wanted: frozenset[str]) -> None:
        if member.size > LONGEST:
            self.fault = f"{member.name!r} has {member.size:,} bytes; expected a label"
            return
        content = tar.extractfile(member)
        assert content is not None  # it is a regular file
        try:
            text = content.read().decode()
            if suffix == CLASS:
                self.fields["label"] = intern(text.strip()) or None
                return
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            self.fault = f"{member.name!r} cannot be read as {'text' if suffix == CLASS else 'JSON'}: {error}"
            return
        if not isinstance(found, dict):
            self.fault = (
                f"{member.name!r} holds a {type(found).__name__}; expected an object with a field for the label"
            )
            return
        self.fields = {name: value for name, value in found.items() if name in wanted} | self.fields


def read_samples(path: Path, wanted: frozenset[str]) -> Iterator[Sample]:
    """Yield the samples of a tar file; consecutive members with one name up to the first dot are a sample.

    Parameters
    ----------
    path
        A tar file that is not compressed.
    wanted
        The fields of ``NAME.json`` that are kept.

    Raises
    ------
    OSError, tarfile.TarError
        If the file is damaged; the samples before that have been yielded.
    """
    damage: Exception | None = None
    with tarfile.open(path, "r:") as tar:
        sample, name = Sample(""), ""
        members = _members(tar, path.stat().st_size)
        while True:
            try:
                member = next(members, None)
            except (OSError, tarfile.TarError) as error:
                member, damage = None, error
            stem, suffix = ("", "") if member is None else _taken_apart(member.name)
            if member is None or stem != name:
                if sample.is_known:
                    yield sample
                if member is None:
                    break
                sample, name = Sample(member.name), stem
            sample.add(tar, member, suffix, wanted)
        if damage is not None:
            raise damage
        _refuse_incomplete(path, tar.offset)


def _members(tar: tarfile.TarFile, end: int) -> Iterator[tarfile.TarInfo]:
    """Yield the regular files of a tar file that has so many bytes."""
    for member in tar:
        if len(tar.members) > KEPT:  # type: ignore[attr-defined]
            tar.members = []  # type: ignore[attr-defined]
        if member.offset_data + member.size > end:
            raise tarfile.ReadError(f"{member.name!r} is cut off")
        if member.isreg() and not member.issparse():
            yield member


def _taken_apart(name: str) -> tuple[str, str]:
    """Return the name of the sample, and the suffix: what follows the first dot of the file name."""
    folder, slash, file = name.rpartition("/")
    stem, dot, suffix = file.partition(".")
    return f"{folder}{slash}{stem}", f"{dot}{suffix.lower()}"


def _refuse_incomplete(path: Path, end: int) -> None:
    """Raise if the members do not end in the block of zeros that every tar file ends in: tarfile would not tell."""
    with path.open("rb") as file:
        file.seek(end)
        block = file.read(tarfile.BLOCKSIZE)
    if block != bytes(tarfile.BLOCKSIZE):
        raise tarfile.ReadError(f"the members end at byte {end:,} without the mark of the end")


def wanted_fields(columns: Columns) -> frozenset[str]:
    """Return the fields of ``NAME.json`` that labels, keys and splits are read from."""
    return frozenset({*columns.beside_inputs, *LABEL_COLUMNS})


class TarIndex:
    """The index of several shards, as it is built."""

    def __init__(self, folder: Path, wanted: frozenset[str], where: str):
        self.folder, self.wanted = folder, wanted
        self.shards: list[str] = []
        self.samples: list[tuple[str, int, int, int]] = []
        self.fields: dict[str, dict[int, Any]] = {}
        self.bad = BadRows(where)

    def __len__(self) -> int:
        return len(self.samples)

    def add(self, shard: str) -> None:
        """Add the samples of a shard; raises as :func:`read_samples` does, when those before the damage are added."""
        self.shards.append(shard)
        for sample in read_samples(self.folder / shard, self.wanted):
            row = len(self.samples)
            self.samples.append((f"{shard}/{sample.name}", len(self.shards) - 1, sample.offset, sample.size))
            for name, value in sample.fields.items():
                self.fields.setdefault(name, {})[row] = value
            fault = sample.fault or ("there is no image beside its label" if sample.size < 0 else None)
            if fault is not None:
                self.bad.add(row, fault)

    def images(self) -> TarImages:
        """Return the images of all shards."""
        names, *places = zip(*self.samples, strict=True) if self.samples else ((), (), (), ())
        versions = tuple(version_of(self.folder / shard) for shard in self.shards)
        shard, offset, size = (np.array(place, dtype=np.int64) for place in places)
        return TarImages(self.folder, tuple(self.shards), versions, as_keys(list(names)), shard, offset, size)

    def table(self) -> pa.Table:
        """Return the labels and other fields, a row for each sample; without fields there are no columns."""
        return pa.table({name: _as_column(values, len(self)) for name, values in self.fields.items()})


def _as_column(values: Mapping[int, Any], count: int) -> pa.Array:
    """Return values by row as a column: of whole numbers, of what JSON has, or of text where they are mixed."""
    every = [values.get(row) for row in range(count)]
    texts = [value for value in every if isinstance(value, str)]
    if texts and all(text.removeprefix("-").isdecimal() and text.isascii() for text in texts):
        every = [int(value) if isinstance(value, str) else value for value in every]
    try:
        return pa.array(every)
    except (pa.ArrowException, OverflowError):
        return pa.array([None if value is None else str(value) for value in every])
