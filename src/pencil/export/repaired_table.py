"""A copy of a run's training table in which only the labels are corrected."""

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pencil.arrow_arrays import numbers
from pencil.data.columns import LABEL_COLUMNS, usual_name
from pencil.data.given.from_columns import SEPARATORS
from pencil.data.settings import DataSettings
from pencil.errors import DataError, RunError
from pencil.export.rewritten_text import rewrite_cells
from pencil.export.trained_table import TrainedTable, refusals
from pencil.files import atomic_write
from pencil.formulas import escape_formula, unescape_formula
from pencil.runs.label_table import LabelTable

REMEDY = "choose another --format"
Cell = Hashable
"""A cell of a label column: text, a number, a bool, a tuple of classes, or None."""
EMPTY: Cell = object()
"""The new cell of a row that a person removed."""


@dataclass(frozen=True)
class Repaired:
    """Number of rows, of corrected labels, of rows without a label, and of labels of removed rows."""

    rows: int
    corrected: int
    without_label: int
    emptied: int


def save_repaired(labels: LabelTable, settings: DataSettings, out: Path, removed: LabelTable | None = None) -> Repaired:
    """Write the training table of a run to a new file, with changed labels replaced.

    CSV and TSV keep every other byte: encoding, byte order mark, delimiter, quotes, line ends, decimal sign, order.
    Parquet keeps schema, metadata, row groups and compression. Classes keep the spelling of the table. A row
    without a label stays unlabelled unless a person has decided about it. The label cells of ``removed`` rows, which a
    person found to belong to no class, become empty.
    """
    kept = len(labels)
    labels = labels if removed is None else LabelTable(pa.concat_tables([labels.table, removed.table]))
    table = TrainedTable.open(settings, REMEDY)
    if out.suffix.lower() != table.path.suffix.lower():
        raise RunError(
            f"--out is {out}, but the table of this run is {table.path}; expected the same suffix; name a file that "
            f"ends in {table.path.suffix}, or choose another --format."
        )
    columns = _label_columns(labels, table, np.arange(len(labels)) >= kept)
    changes = _read_cells(labels, table, columns)
    with atomic_write(out, new=True) as temporary, temporary.open("wb") as target:
        (_write_parquet if table.dialect is None else _write_text)(table, columns, changes, target)
    return Repaired(len(changes.places), changes.corrected, columns[0].left_empty, changes.emptied)


@dataclass
class _LabelColumn:
    """A label column: the given and corrected labels, and the spelling of labels in the table.

    ``given`` and ``corrected`` are codes into ``names``, -1 for none. ``decided`` marks rows that a person has decided,
    ``removed`` those that a person found to belong to no class.
    """

    name: str
    given: np.ndarray
    corrected: np.ndarray
    names: Sequence[Any]
    decided: np.ndarray
    removed: np.ndarray
    seen: Counter[tuple[Cell, int]] = field(default_factory=Counter)
    left_empty: int = 0

    @property
    def several(self) -> bool:
        """Whether a label is a set of classes, which may be empty."""
        return bool(self.names) and isinstance(self.names[0], tuple)

    def add(self, cells: Sequence[Cell], places: np.ndarray) -> None:
        """Count the spellings of given labels."""
        codes = np.append(self.given, -1)[places].tolist()
        pairs = zip(cells, codes, strict=True)
        self.seen.update((cell, code) for cell, code in pairs if code >= 0 and (cell is not None or self.several))

    def settle(self) -> None:
        """Find the most frequent spelling of each label, and the label of each spelling."""
        self._code_of: dict[Cell, int] = {}
        self._cell_of: dict[int, Cell] = {}
        exact = {name: code for code, name in enumerate(self.names)}
        for (cell, code), _ in self.seen.most_common():
            self._code_of.setdefault(cell, exact.get(cell, code))  # a pinned label may differ from its cell
            if self._code_of[cell] == code:
                self._cell_of.setdefault(code, cell)

    def change(self, cell: Cell, place: int) -> Cell:
        """Return the new cell of a row whose label is at this position; None if unchanged."""
        if place >= 0 and self.removed[place]:
            return None if cell is None else EMPTY
        code = int(self.corrected[place]) if place >= 0 else -1
        if code < 0 or self._code_of.get(cell) == code:
            return None
        if self.given[place] < 0 and not self.decided[place]:
            self.left_empty += 1
            return None
        return self.spell(code)

    def spell(self, code: int) -> Cell:
        """Return a label in the table's spelling; unseen labels are spelled like the others."""
        if code in self._cell_of:
            return self._cell_of[code]
        if self.several:
            return self._join(self.names[code])
        others = self._cell_of.items()
        named = all(str(cell) == self.names[other] for other, cell in others)
        numbered = not named and all(str(cell) == str(other) for other, cell in others)
        label = str(code) if numbered else str(self.names[code])
        kind: Any = type(next(iter(self._cell_of.values()), ""))
        if kind is bool:
            return label in ("1", "true")
        return escape_formula(label) if kind is str else cast(Cell, kind(label))

    def _join(self, names: tuple[str, ...]) -> Cell:
        """Return a set of classes as a list, or as text with the separator of the other cells."""
        cells = [cell for cell in self._code_of if isinstance(cell, str)]
        if not cells:
            return names
        separator = next((one for one in SEPARATORS if any(one in cell for cell in cells)), SEPARATORS[0])
        spaced = any(f"{separator} " in cell for cell in cells)
        return (f"{separator} " if spaced else separator).join(map(escape_formula, names))


def _label_columns(labels: LabelTable, table: TrainedTable, removed: np.ndarray) -> list[_LabelColumn]:
    """Return the label columns; raise if labels are not stored in single cells."""
    settings, path = table.settings, table.path
    if settings.noise is not None:
        raise RunError(
            f"the labels of this run were corrupted by injected noise (data.noise), so they differ from {path}; "
            f"expected a run without noise; {REMEDY}."
        )
    columns = settings.columns
    table.require(columns.labels, REMEDY)
    label = columns.label or usual_name(table.schema.names, LABEL_COLUMNS)
    decided = numbers(labels["reviewed"]) > 0 if "reviewed" in labels.column_names else np.zeros(len(labels), bool)
    decided = decided | labels.pinned
    if columns.indicators is not None:
        found = [
            _LabelColumn(name, *_entry_codes(labels, place, decided), ("0", "1"), decided, removed)
            for place, name in enumerate(columns.indicators)
        ]
        return sorted(found, key=lambda column: table.schema.names.index(column.name))  # in the order of a line
    soft = columns.probabilities is not None or columns.annotator is not None
    if soft or not isinstance(label, str) or _holds_numbers(table.schema.field(label)):
        raise RunError(
            f"the labels in {path} are votes or distributions, which cannot be replaced by a corrected class; "
            "expected one class per cell; choose --format csv --with-columns, which adds columns."
        )
    given, corrected = labels.given_labels, labels.corrected_labels
    return [_LabelColumn(label, given.codes, corrected.codes, corrected.names, decided, removed)]


def _entry_codes(labels: LabelTable, place: int, decided: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return whether a class is given and corrected as present: 1, 0, or -1 if unknown."""
    given, probs = labels.given_probs[:, place], labels.probs[:, place]
    unknown = np.isnan(given)
    added = decided & (probs == 1)  # by a person
    return np.where(unknown, -1, given > 0.5), np.where(unknown & ~added, -1, probs > 0.5)


def _holds_numbers(column: pa.Field) -> bool:
    """Return whether a column contains lists of numbers: distributions, or one number per class."""
    kind = column.type
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    return is_list and not (pa.types.is_string(kind.value_type) or pa.types.is_large_string(kind.value_type))


class _Changes:
    """The new cells of each row of the file, and the number of corrected and of emptied rows.

    ``places`` holds the label position of each row, -1 for none, and ``digests`` the digests of its cells: the file is
    read once to learn the spelling of labels, and again to write it.
    """

    def __init__(self, table: TrainedTable, columns: Sequence[_LabelColumn], places: np.ndarray, digests: np.ndarray):
        self.table, self.columns, self.places, self.digests = table, columns, places, digests
        self.corrected = self.emptied = 0

    def __call__(self, row: int, cells: tuple[Cell, ...]) -> list[Cell]:
        place = int(self.places[row]) if row < len(self.places) else -1
        if place < 0:
            return [None] * len(cells)
        if hash(cells) != self.digests[row]:
            number = row + self.table.first_number
            raise DataError(
                f"row {number} of {self.table.path} now has the label {str(cells)[:40]}; expected the label that was "
                "read before; run the command again when no other program writes to the table."
            )
        found = [column.change(cell, place) for column, cell in zip(self.columns, cells, strict=True)]
        emptied = EMPTY in found
        self.emptied += emptied
        self.corrected += not emptied and any(cell is not None for cell in found)
        return found


def _read_cells(labels: LabelTable, table: TrainedTable, columns: Sequence[_LabelColumn]) -> _Changes:
    """Read all label cells, match labels to rows, and learn the spelling of labels."""
    places, digests = (np.empty(0, dtype=np.int64) for _ in range(2))
    for piece, rows, found in table.placed(labels, REMEDY):
        if not len(rows):
            continue
        missing = int(rows[-1]) + 1 - len(places)
        places, digests = np.append(places, np.full(missing, -1)), np.append(digests, np.zeros(missing, dtype=np.int64))
        cells = [_cells(piece[column.name]) for column in columns]
        for column, values in zip(columns, cells, strict=True):
            column.add(values, found)
        places[rows], digests[rows] = found, [hash(row) for row in zip(*cells, strict=True)]
    for column in columns:
        column.settle()
    return _Changes(table, columns, places, digests)


def _cells(column: Any) -> list[Cell]:
    """Return the cells of a column; NaN becomes None."""
    values = (tuple(value) if isinstance(value, list) else value for value in column.to_pylist())
    return [value if value == value else None for value in values]


def _write_text(table: TrainedTable, columns: Sequence[_LabelColumn], changes: _Changes, target: BinaryIO) -> None:
    assert table.dialect is not None
    names = table.schema.names

    def change(row: int, cells: Sequence[str]) -> list[str | None]:
        found = changes(row, tuple(unescape_formula(cell) or None for cell in cells))
        return [None if cell is None else "" if cell is EMPTY else str(cell) for cell in found]

    rewrite_cells(table.path, table.dialect, [names.index(one.name) for one in columns], len(names), change, target)


def _write_parquet(table: TrainedTable, columns: Sequence[_LabelColumn], changes: _Changes, target: BinaryIO) -> None:
    first = 0
    with (
        refusals(table.path),
        pq.ParquetFile(table.path) as file,
        pq.ParquetWriter(target, file.schema_arrow, **_written_as(file)) as writer,
    ):
        for group in range(file.num_row_groups):
            part = file.read_row_group(group)
            cells = [_cells(part[column.name]) for column in columns]
            found = [changes(first + row, values) for row, values in enumerate(zip(*cells, strict=True))]
            if not found:
                continue
            for column, values in zip(columns, zip(*found, strict=True), strict=True):
                place = part.schema.get_field_index(column.name)
                part = part.set_column(place, part.schema.field(place), _replaced(part[place], values))
            writer.write_table(part, row_group_size=part.num_rows)
            first += part.num_rows


def _written_as(file: pq.ParquetFile) -> dict[str, Any]:
    """Return the options to write a file like this one."""
    metadata = file.metadata
    stored = b"ARROW:schema" in (metadata.metadata or {})
    options: dict[str, Any] = {"store_schema": stored}
    if metadata.format_version in ("1.0", "2.4", "2.6"):
        options["version"] = metadata.format_version
    if metadata.num_row_groups:
        chunks = [metadata.row_group(0).column(place) for place in range(metadata.num_columns)]
        codecs = {chunk.path_in_schema: chunk.compression.replace("UNCOMPRESSED", "NONE") for chunk in chunks}
        options["compression"] = codecs
        options["use_compliant_nested_type"] = not any(".list.item" in path for path in codecs)  # the name of Arrow
    return options


def _replaced(column: pa.ChunkedArray, values: Sequence[Cell]) -> pa.ChunkedArray:
    """Return a column with these values where they are not None, in the same type; EMPTY becomes null."""
    rows = np.array([row for row, value in enumerate(values) if value is not None], dtype=np.int64)
    if not len(rows):
        return column
    new = [None if values[row] is EMPTY else values[row] for row in rows.tolist()]
    kind = column.type
    if pa.types.is_dictionary(kind):
        whole = column.unify_dictionaries().combine_chunks()
        known = whole.dictionary.to_pylist()
        known += [value for value in dict.fromkeys(new) if value is not None and value not in known]
        codes = whole.indices.to_pylist()
        for row, value in zip(rows.tolist(), new, strict=True):
            codes[row] = None if value is None else known.index(value)
        made = pa.DictionaryArray.from_arrays(
            pa.array(codes, kind.index_type), pa.array(known, kind.value_type), ordered=kind.ordered
        )
        return pa.chunked_array([made], kind)
    order = np.arange(len(column))
    order[rows] = len(column) + np.arange(len(rows))
    return pa.chunked_array([*column.chunks, pa.array(new, kind)], kind).take(pa.array(order))
