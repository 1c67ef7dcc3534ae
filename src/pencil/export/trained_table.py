"""The training table of a run, read in batches, with its rows matched to the labels of the run."""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pencil.data.settings import DataSettings
from pencil.data.sources.delimited import SUFFIXES as TEXT_SUFFIXES
from pencil.data.sources.delimited import Dialect, Numbered, find_dialect, read_names, read_pieces
from pencil.data.sources.table import SUFFIXES, row_keys
from pencil.data.sources.table_files import first_number
from pencil.errors import DataError, RunError, explained
from pencil.export.labels import has_bytes
from pencil.runs.label_table import LabelTable

BLOCK = 2**24
"""Number of bytes of a CSV file read at a time."""
ROWS, ROWS_OF_IMAGES = 65536, 2048


class Placed(NamedTuple):
    """Some rows of a table, their positions in the file, from 0, and the positions of their labels, -1 for none."""

    table: pa.Table
    numbers: np.ndarray
    places: np.ndarray


@dataclass(frozen=True)
class TrainedTable:
    """The table of a run: its file, its text dialect (None for Parquet), and its columns."""

    path: Path
    settings: DataSettings
    dialect: Dialect | None
    schema: pa.Schema

    @classmethod
    def open(cls, settings: DataSettings, remedy: str) -> Self:
        """Return the table that the data section of a recipe names; ``remedy`` completes the error message if there is
        none.

        Raises
        ------
        RunError
            If the run was not trained on a table, or the table is missing.
        """
        path = Path(settings.source).expanduser()
        if path.suffix.lower() not in SUFFIXES:
            raise RunError(f"the data of this run ({settings.source!r}) is not a table; {remedy}.")
        if not path.is_file():
            raise RunError(f"the table of this run, {path}, no longer exists; restore it, or {remedy}.")
        with refusals(path):
            if path.suffix.lower() not in TEXT_SUFFIXES:
                return cls(path, settings, None, pq.read_schema(path))
            dialect = find_dialect(path, settings.delimiter)
            names = read_names(path, dialect)
        return cls(path, settings, dialect, pa.schema([(name, pa.string()) for name in names]))

    def require(self, names: Iterable[str], remedy: str) -> None:
        """Raise if the table no longer has one of these columns."""
        missing = next((name for name in names if name not in self.schema.names), None)
        if missing is not None:
            raise DataError(
                f"{self.path} no longer has the column {missing!r}; expected the columns of the training table; "
                f"restore it, or {remedy}."
            )

    @property
    def first_number(self) -> int:
        """The number of the first row in messages and keys."""
        return first_number(self.path, self.settings.columns)

    def placed(self, labels: LabelTable, remedy: str) -> Iterator[Placed]:
        """Yield all rows with the positions of their labels; cells of a CSV file are text."""
        columns = self.settings.columns
        self.require((name for name in (columns.key, columns.path, columns.image) if name is not None), remedy)
        root = self.path.parent if self.settings.root is None else self.settings.root.expanduser()
        place_of = {key: place for place, key in enumerate(labels.keys.to_pylist())}
        with refusals(self.path):
            for piece, numbers in self._pieces():
                keys = row_keys(self.path, piece, columns, root, numbers)
                yield Placed(piece, numbers, np.array([place_of.pop(key, -1) for key in keys], dtype=np.int64))
        if place_of:
            raise DataError(
                f"{self.path} no longer contains row {next(iter(place_of))!r} and {len(place_of) - 1:,} other "
                f"labelled rows; use the training table, or {remedy}."
            )

    def _pieces(self) -> Iterator[Numbered]:
        if self.dialect is not None:
            yield from read_pieces(self.path, self.dialect, self.schema, BLOCK)
            return
        size = ROWS_OF_IMAGES if any(has_bytes(field.type) for field in self.schema) else ROWS
        first = 0
        with pq.ParquetFile(self.path, pre_buffer=False) as file:  # buffering would load the whole file
            for batch in file.iter_batches(size):
                yield Numbered(pa.Table.from_batches([batch]), np.arange(first, first + batch.num_rows))
                first += batch.num_rows


def refusals(path: Path) -> AbstractContextManager[None]:
    """Convert Arrow errors to an error that names the table."""
    return explained(DataError, f"cannot read {path}", "expected the training table", pa.ArrowException)
