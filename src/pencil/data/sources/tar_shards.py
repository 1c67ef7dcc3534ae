"""WebDataset shards: tar files whose members ``NAME.jpg`` and ``NAME.cls`` (or ``NAME.json``) form one sample.

The headers are read once, into an index of image positions; an image is read from its position on demand.
"""

import json
import tarfile
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from sys import intern
from typing import Any, Self

import numpy as np
import pyarrow as pa
from numpy.dtypes import StringDType

from pencil.data.columns import LABEL_COLUMNS, Columns
from pencil.data.inputs.images import SUFFIXES as IMAGE_SUFFIXES
from pencil.data.keys import as_keys
from pencil.data.sources.regular_files import read_slice, version_of
from pencil.data.sources.shard_files import ShardImages, ShardIndex, refuse_changed
from pencil.errors import DataError
from pencil.files import refuse_irregular

SUFFIXES = (".tar",)
CLASS, FIELDS = ".cls", ".json"
LONGEST = 2**20
"""Label files, and headers with a long name, are refused above this many bytes."""
LONGEST_NAME = 4096
"""Members whose name has more characters are refused, as by file systems."""
EXTENDED = (
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
)
"""Headers whose content tarfile reads into memory."""
HEADER_FAULTS = (ArithmeticError, LookupError, MemoryError, RecursionError, TypeError, ValueError)
"""Errors that tarfile raises for some invalid headers."""


@dataclass(frozen=True)
class TarImages(ShardImages):
    """Images in tar files, each read from its position on demand; a row without an image has size -1."""

    shard: np.ndarray
    offset: np.ndarray
    size: np.ndarray

    def read(self, row: int) -> bytes:
        if self.size[row] < 0:
            raise ValueError("there is no image beside its label")
        path, version = self.shards[self.shard[row]]
        refuse_changed(path, version)
        return read_slice(path, int(self.offset[row]), int(self.size[row]))

    def version(self, row: int) -> bytes:
        """Return a value that changes with the shard, and with the image's position in it."""
        return b"%s %d %d" % (self.shards[self.shard[row]][1], self.offset[row], self.size[row])


@dataclass
class Sample:
    """The members of one sample: the position of its image, and its labels."""

    name: str
    offset: int = 0
    size: int = -1
    fields: dict[str, Any] = field(default_factory=dict)
    fault: str | None = None
    is_known: bool = False

    def add(self, tar: tarfile.TarFile, member: tarfile.TarInfo, suffix: str, wanted: frozenset[str]) -> None:
        """Add a member; members that are neither images nor labels are ignored."""
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
            if isinstance(found, dict):
                found = {name: value for name, value in found.items() if name in wanted}
                json.dumps(found, ensure_ascii=False).encode()  # raises for text that UTF-8 cannot represent
        except (ValueError, RecursionError) as error:
            self.fault = f"{member.name!r} cannot be read as {'text' if suffix == CLASS else 'JSON'}: {error}"
            return
        if not isinstance(found, dict):
            self.fault = (
                f"{member.name!r} contains a {type(found).__name__}; expected an object with a field for the label"
            )
            return
        self.fields = found | self.fields


def read_samples(path: Path, wanted: frozenset[str]) -> Iterator[Sample]:
    """Yield the samples of a tar file; consecutive members with the same name up to the first dot form a sample.

    Of ``NAME.json``, the ``wanted`` fields are kept. Samples before a damage have been yielded, except the one that
    may be affected.
    """
    end = path.stat().st_size
    with _opened(path) as tar:
        sample, name = Sample(""), ""
        for member in _members(tar):
            stem, suffix = _taken_apart(member.name)
            if not suffix:
                continue
            if stem != name:
                if sample.is_known:
                    yield sample
                sample, name = Sample(member.name), stem
            if member.offset_data + member.size > end:
                raise tarfile.ReadError(f"{member.name!r} is truncated")
            sample.add(tar, member, suffix, wanted)
        _refuse_incomplete(path, tar.offset)
        if sample.is_known:
            yield sample


class _Header(tarfile.TarInfo):
    """A header of an untrusted tar file: no size can make tarfile seek backwards or exhaust the memory."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        header = super().frombuf(buf, encoding, errors)
        if header.size < 0 or (header.type in EXTENDED and header.size > LONGEST):
            raise _impossible(header)
        return header


def _impossible(header: tarfile.TarInfo) -> tarfile.ReadError:
    return tarfile.ReadError(f"{header.name[:80]!r} has an impossible size ({header.size:,} bytes)")


@contextmanager
def _header_faults() -> Iterator[None]:
    """Convert tarfile's exceptions for invalid headers into its own error class."""
    try:
        yield
    except HEADER_FAULTS as error:
        raise tarfile.ReadError(f"a header cannot be read: {type(error).__name__}: {error}") from error


@contextmanager
def _opened(path: Path) -> Iterator[tarfile.TarFile]:
    refuse_irregular(path)  # opening a pipe would wait for ever
    with _header_faults():
        tar = tarfile.open(path, "r:", tarinfo=_Header)  # noqa: SIM115 - it reads the first header, and is closed below
    with tar:
        yield tar


def _members(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Yield the regular files of a tar file."""
    last = -1
    with _header_faults():
        while (member := tar.next()) is not None:
            tar.members = []  # type: ignore[attr-defined]  # it would keep all members seen so far
            if member.size < 0 or member.offset_data <= last:  # as extended headers may cause
                raise _impossible(member)
            last = member.offset_data
            if member.isreg() and not member.issparse():
                yield member


def _taken_apart(name: str) -> tuple[str, str]:
    """Return the name of the sample, and the suffix: everything after the first dot of the file name.

    The suffix is empty if the file does not belong to a sample: ``README``, or ``._0.png`` of macOS.
    """
    folder, slash, file = name.rpartition("/")
    stem, dot, suffix = file.partition(".")
    return f"{folder}{slash}{stem}", f"{dot}{suffix.lower()}" if stem else ""


def _refuse_incomplete(path: Path, end: int) -> None:
    """Raise if the end-of-archive block of zeros is missing, which tarfile would not report."""
    with path.open("rb") as file:
        file.seek(end)
        block = file.read(tarfile.BLOCKSIZE)
    if block != bytes(tarfile.BLOCKSIZE):
        raise tarfile.ReadError(f"the members end at byte {end:,} without the end-of-archive mark")


class TarIndex(ShardIndex):
    """Builds the index of several tar files, with the fields of ``NAME.json`` that contain labels, keys and splits."""

    expected, one_row = "an uncompressed tar file", "a sample with an image"
    faults = (OSError, tarfile.TarError)

    def __init__(self, folder: Path, columns: Columns, where: str):
        super().__init__(folder, columns, where)
        if columns.encoded:
            raise DataError(
                f"data.columns lists columns to encode, but {where} contains images in tar files; expected only fields "
                "for labels, keys and splits; remove the others."
            )
        self.wanted = frozenset({*columns.beside_inputs, *LABEL_COLUMNS})
        self.names: list[str] = []
        self.places = array("q"), array("q"), array("q")
        self.fields: dict[str, list[Any]] = {}

    def add(self, shard: str) -> None:
        """Add the samples of a shard; raises like :func:`read_samples`, after adding the samples before the damage."""
        path, number = self.folder / shard, len(self.versions)
        self.versions[shard] = version_of(path)  # first, so that a change during reading is noticed later
        self.rows.append(0)
        for sample in read_samples(path, self.wanted):
            row = len(self.names)
            name, fault = _usable_name(sample.name, row)
            self.rows[-1] += 1
            self.names.append(f"{shard}/{name}")
            for numbers, value in zip(self.places, (number, sample.offset, sample.size), strict=True):
                numbers.append(value)
            for field_name, value in sample.fields.items():
                values = self.fields.setdefault(field_name, [])
                values += [None] * (row - len(values)) + [value]
            fault = fault or sample.fault or ("there is no image beside its label" if sample.size < 0 else None)
            if fault is not None:
                self.bad.add(row, fault)

    def keys(self) -> np.ndarray:
        return as_keys(np.array(self.names, dtype=StringDType()))

    def images(self, names: np.ndarray | None) -> TarImages:
        assert names is not None
        return TarImages(self.files, names, *(np.array(place, dtype=np.int64) for place in self.places))

    def table(self) -> pa.Table:
        """Return the labels and other fields, one row per sample; without fields there are no columns."""
        return pa.table({name: self._column(name, values) for name, values in self.fields.items()})

    def _column(self, name: str, values: Sequence[Any]) -> pa.Array:
        """Return the values of a field: JSON values, or text if they are mixed.

        A list or an object among values of another type is a bad row.
        """
        every = [*values, *[None] * (len(self) - len(values))]
        try:
            return pa.array(every)
        except (pa.ArrowException, OverflowError):
            for row, value in enumerate(every):
                if isinstance(value, (list, dict)):
                    kind = "a list" if isinstance(value, list) else "an object"
                    self.bad.add(row, f"the field {name!r} is {kind} (expected values of one type in all samples)")
                    every[row] = None
            return pa.array([None if value is None else str(value) for value in every], pa.string())


def _usable_name(name: str, row: int) -> tuple[str, str | None]:
    """Return the name of a sample as part of its key, and a fault if there is one."""
    if len(name) > LONGEST_NAME:
        fault = f"the name of its member has {len(name):,} characters (expected at most {LONGEST_NAME:,})"
        name = f"{name[:80]}... (sample {row})"
    else:
        fault = None
    try:
        name.encode()
    except UnicodeEncodeError:
        name = name.encode(errors="backslashreplace").decode()
        fault = fault or "the name of its member is not UTF-8 (rename it)"
    return name, fault
