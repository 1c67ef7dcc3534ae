"""A folder of Parquet files: the small columns of all of them in memory, images read when they are needed."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pencil.data.columns import IMAGE_COLUMNS, LABEL_COLUMNS, Columns, refuse_unknown, usual_column
from pencil.data.regular_files import version_of
from pencil.data.table import is_bytes

SUFFIXES = (".parquet",)
HELD = 2
"""Row groups of images that a process holds: neighbours in the data are neighbours in the file."""


@dataclass(frozen=True)
class ParquetImages:
    """Images in a column of several Parquet files; the row group of an image is read when it is asked for.

    Parameters
    ----------
    folder, shards
        The files, by their paths relative to a folder.
    versions
        Size and time of change of each shard when it was opened.
    names
        Names the images in messages.
    column
        The column of the bytes, ``image.bytes`` where it is within another.
    starts
        The first row of each row group.
    shard, group
        The file of each row group, and its number in it.
    """

    folder: Path
    shards: tuple[str, ...]
    versions: tuple[bytes, ...]
    names: np.ndarray
    column: str
    starts: np.ndarray
    shard: np.ndarray
    group: np.ndarray

    def __len__(self) -> int:
        return len(self.names)

    def read(self, row: int) -> bytes:
        """Return the bytes of an image, as :class:`~pencil.data.images.Encoded` asks."""
        place = int(np.searchsorted(self.starts, row, side="right")) - 1
        shard = int(self.shard[place])
        path, version = self.folder / self.shards[shard], self.versions[shard]
        values = _row_group(path, version, int(self.group[place]), self.column)
        content = values[row - int(self.starts[place])].as_py()
        if content is None:
            raise ValueError("there are no bytes")
        return bytes(content)

    def file_of(self, row: int) -> None:
        return None

    def version(self, row: int) -> bytes:
        """Return what changes with the shard, and with the place of the image in it."""
        place = int(np.searchsorted(self.starts, row, side="right")) - 1
        return b"%s %d" % (self.versions[self.shard[place]], row)


@lru_cache(maxsize=HELD)
def _row_group(path: Path, version: bytes, group: int, column: str) -> Any:
    """Return a column of a row group, read without threads: worker processes are forked from one that may have some."""
    from pyarrow import parquet

    if version_of(path) != version:
        raise ValueError(f"{path.name} has changed since it was opened")
    try:
        with parquet.ParquetFile(path, pre_buffer=False) as file:
            table = file.read_row_group(group, columns=[column], use_threads=False)
    except pa.ArrowException as error:
        raise ValueError(f"{path.name} cannot be read: {str(error).splitlines()[0]}") from error
    values = table.column(0)
    for name in column.split(".")[1:]:
        values = pa.chunked_array([chunk.field(name) for chunk in values.chunks])
    return values.cast(pa.large_binary()).combine_chunks()


class ParquetIndex:
    """The small columns of several shards and where their images are, as it is built.

    Parameters
    ----------
    folder
        Of the shards.
    columns
        Which column is what.
    """

    def __init__(self, folder: Path, columns: Columns):
        self.folder, self.columns = folder, columns
        self.shards: list[str] = []
        self.rows: list[int] = []
        self.image: str | None = None
        self._tables: list[pa.Table] = []
        self._groups: list[tuple[int, int, int]] = []

    def __len__(self) -> int:
        return sum(self.rows)

    def add(self, shard: str) -> None:
        """Add the rows of a shard; an error of Arrow or of the system leaves the index as it was."""
        from pyarrow import parquet

        path = self.folder / shard
        with parquet.ParquetFile(path) as file:
            empty = file.schema_arrow.empty_table()
            refuse_unknown(path, empty, self.columns)
            image = self.columns.image or (None if self.columns.path else usual_column(empty, IMAGE_COLUMNS, is_bytes))
            small = empty.column_names if image is None else self._small(empty)
            table = file.read(columns=small)
            counts = [file.metadata.row_group(number).num_rows for number in range(file.metadata.num_row_groups)]
        if image is not None:
            self.image = f"{image}.bytes" if pa.types.is_struct(empty.schema.field(image).type) else image
        self._groups += [(len(self.shards), number, count) for number, count in enumerate(counts)]
        self.shards.append(shard)
        self.rows.append(sum(counts))
        self._tables.append(table)

    def _small(self, empty: pa.Table) -> list[str]:
        """Return the columns beside images that are needed: those that are named, or the usual one of labels."""
        label = usual_column(empty, LABEL_COLUMNS)
        wanted = {*self.columns.beside_inputs, *([] if label is None else [label])}
        return [name for name in empty.column_names if name in wanted]

    def table(self) -> pa.Table:
        """Return the columns that are in memory, of all shards."""
        return pa.concat_tables(self._tables, promote_options="permissive")

    def names(self) -> Sequence[str]:
        """Return shard and row number of each row."""
        counts = zip(self.shards, self.rows, strict=True)
        return [f"{shard}/{row}" for shard, count in counts for row in range(count)]

    def images(self, names: np.ndarray) -> ParquetImages:
        """Return the images of all shards."""
        assert self.image is not None
        shard, group, counts = (np.array(part, dtype=np.int64) for part in zip(*self._groups, strict=True))
        starts = np.cumsum(counts) - counts
        versions = tuple(version_of(self.folder / one) for one in self.shards)
        return ParquetImages(self.folder, tuple(self.shards), versions, names, self.image, starts, shard, group)
