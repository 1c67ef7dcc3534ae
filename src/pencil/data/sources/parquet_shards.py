"""A folder of Parquet files: the small columns of all files in memory, images read on demand."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pencil.data.columns import LABEL_COLUMNS, Columns, refuse_repeated_columns, refuse_unknown, usual_column
from pencil.data.given.given_labels import shorten
from pencil.data.inputs.images import cell_bytes
from pencil.data.keys import as_keys
from pencil.data.sources.image_columns import bytes_field, has_images, image_column
from pencil.data.sources.regular_files import version_of
from pencil.data.sources.shard_files import ShardImages, ShardIndex, refuse_changed
from pencil.errors import DataError, explained, reason_of

SUFFIXES = (".parquet",)
HELD = 2
"""Row groups of images that a process caches: neighbours in the data are neighbours in the file."""
ImageColumn = tuple[str, str | None]
"""A column of images, and the field with the bytes, if it is not the column itself."""


@dataclass(frozen=True)
class ParquetImages(ShardImages):
    """Images in a column of several Parquet files; the row group of an image is read on demand.

    ``starts``, ``shard`` and ``group`` are the first row of each row group, its file, and its number in the file.
    """

    column: ImageColumn
    starts: np.ndarray
    shard: np.ndarray
    group: np.ndarray

    def read(self, row: int) -> bytes:
        place = self._place(row)
        values = _row_group(*self.shards[self.shard[place]], int(self.group[place]), self.column)
        return cell_bytes(values[row - int(self.starts[place])])

    def version(self, row: int) -> bytes:
        """Return a value that changes with the shard, and with the image's position in it."""
        return b"%s %d" % (self.shards[self.shard[self._place(row)]][1], row)

    def _place(self, row: int) -> int:
        """Return the row group of a row, counted over all shards."""
        return int(np.searchsorted(self.starts, row, side="right")) - 1


@lru_cache(maxsize=HELD)
def _row_group(path: Path, version: bytes, group: int, column: ImageColumn) -> Any:
    """Return a column of a row group, read without threads, because worker processes are forked."""
    from pyarrow import parquet

    refuse_changed(path, version)
    name, field = column
    try:
        with parquet.ParquetFile(path, pre_buffer=False) as file:
            wanted = name if field is None else f"{name}.{field}"
            values = file.read_row_group(group, columns=[wanted], use_threads=False)[name]
    except pa.ArrowException as error:
        raise ValueError(f"{path.name} cannot be read: {reason_of(error)}") from error
    if field is not None:
        values = pa.chunked_array([chunk.field(field) for chunk in values.chunks])
    return values.cast(pa.large_binary()).combine_chunks()


class ParquetIndex(ShardIndex):
    """Builds the small columns of several Parquet files, and the index of their images; ignored columns may be missing.

    Images in files, whose paths are in a column, have no keys here.
    """

    expected, one_row = "a Parquet file", "a row"
    faults = (OSError, pa.ArrowException)

    def __init__(self, folder: Path, columns: Columns, where: str):
        super().__init__(folder, columns, where)
        self.image: ImageColumn | None = None
        self._names: list[str] = []
        self._tables: list[pa.Table] = []
        self._groups: list[tuple[int, int, int]] = []

    def add(self, shard: str) -> None:
        """Add the rows of a shard; an error leaves the index as it was."""
        from pyarrow import parquet

        path = self.folder / shard
        version = version_of(path)  # first, so that a change during reading is noticed later
        with parquet.ParquetFile(path) as file:
            empty = file.schema_arrow.empty_table()
            refuse_repeated_columns(path, empty.column_names)
            refuse_unknown(path, empty, self.columns.model_copy(update={"ignore": None}))
            name = image_column(empty, self.columns)
            image = None if name is None else (name, bytes_field(path, empty, name))
            small = empty.column_names if name is None else self._small(empty)
            self._refuse_others(path, image, small)
            table = file.read(columns=small).select(small)
            counts = [file.metadata.row_group(number).num_rows for number in range(file.metadata.num_row_groups)]
        self._groups += [(len(self.versions), number, count) for number, count in enumerate(counts)]
        self.image, self._names, self.versions[shard] = image, small, version
        self.rows.append(sum(counts))
        self._tables.append(table)

    def _small(self, empty: pa.Table) -> list[str]:
        """Return the columns needed besides images: the listed ones, or the default label column."""
        label = usual_column(empty, LABEL_COLUMNS)
        wanted = {*self.columns.beside_inputs, *([] if label is None else [label])}
        return [name for name in empty.column_names if name in wanted]

    def _refuse_others(self, path: Path, image: ImageColumn | None, small: Sequence[str]) -> None:
        """Raise if a shard has its images or labels in other columns than the first, because they would be ignored."""
        if not self.versions or (image == self.image and sorted(small) == sorted(self._names)):
            return
        seen, first = (_described(*one) for one in ((image, small), (self.image, self._names)))
        name = next(iter(self.versions))
        raise DataError(
            f"the files of {self.folder} have different columns: {path.name} {seen}, {name} {first}; expected the same "
            "columns in all of them; convert them."
        )

    def table(self) -> pa.Table:
        what, advice = f"the files of {self.folder} have different columns", "expected the same columns in all of them"
        with explained(DataError, what, f"{advice}; convert them", pa.ArrowException):
            return pa.concat_tables(self._tables, promote_options="permissive")

    def keys(self) -> np.ndarray | None:
        if self.image is None and has_images(self._tables[0], self.columns):
            return None
        counts = zip(self.versions, self.rows, strict=True)
        return as_keys([f"{shard}/{row}" for shard, count in counts for row in range(count)])

    def images(self, names: np.ndarray | None) -> ParquetImages | None:
        if self.image is None or names is None:
            return None
        shard, group, counts = (np.array(part, dtype=np.int64) for part in zip(*self._groups, strict=True))
        return ParquetImages(self.files, names, self.image, np.cumsum(counts) - counts, shard, group)


def _described(image: ImageColumn | None, small: Sequence[str]) -> str:
    images = "no images" if image is None else f"images in {'.'.join(filter(None, image))!r}"
    return f"has {images} and {shorten(list(map(repr, sorted(small))), 12) or 'no other column'}"
