"""The label table of a run as a type: ``labels.parquet``, one row per labelled example. Does not import torch.

`pencil labels` and the review page must start quickly, so this module reads only the requested columns and avoids Arrow
calls that import pandas (`pencil.arrow_arrays`). Columns and rows of a large table are read from its file lazily.
"""

import errno
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pencil.arrow_arrays import indices, matrix, numbers, one_chunk, positions, scalar, strings
from pencil.decisions import Decision, Label, Where
from pencil.errors import RunError
from pencil.files import atomic_write
from pencil.runs.label_columns import ALWAYS, CLASSES, ENTRY_SCORES, GIVEN_PROBS, PROBS, SUSPECTS, TOP, WIDE
from pencil.runs.label_files import LabelFile, StoredRows, damage_named
from pencil.runs.wording import wording

KINDS = ("suspect", "outlier", "conflict")
"""What is to be fixed about a row."""
ROW_GROUP, VALUES = 2**20, 2**22
"""Rows (Arrow's default) and maximum probabilities per row group; writing a group doubles its memory."""


@dataclass(frozen=True)
class CodedLabels:
    """A column of labels as integer codes; ``names[code]`` is the label, and -1 means no label."""

    codes: np.ndarray
    names: Sequence[Label]

    def __repr__(self) -> str:
        return f"CodedLabels({len(self.codes):,} rows, {len(self.names):,} labels)"

    def __getitem__(self, row: int) -> Label | None:
        code = int(self.codes[row])
        return None if code < 0 else self.names[code]


class LabelTable:
    """The labels of a run: the given label, the corrected label, and its confidence.

    In single-label data ``given`` and ``corrected`` are class names, and ``changed`` is a bool; ``given`` is null if
    annotators disagree or there is no label. In multi-label data they are lists of class names, and ``changed`` is the
    number of changed entries in the row.

    Parameters
    ----------
    table : pyarrow.Table
        The columns of ``labels.parquet`` (at least key, split and given), with the class names as JSON under
        ``classes`` in the metadata of its schema.

    Attributes
    ----------
    classes : tuple of str
        The class names, in the order of the probabilities.
    multilabel : bool
        Whether an example may have several classes.
    schema : pyarrow.Schema
        The Arrow schema.
    """

    def __init__(self, table: pa.Table | StoredRows):
        self._stored = table if isinstance(table, StoredRows) else None
        self._read: dict[str, pa.ChunkedArray] = {}
        self.schema: pa.Schema = table.file.schema if isinstance(table, StoredRows) else table.schema
        missing = [name for name in ALWAYS if name not in self.schema.names]
        if missing or CLASSES not in (self.schema.metadata or {}):
            seen = f"no column {missing[0]!r}" if missing else "no class names in its metadata"
            raise RunError(f"the table has {seen}; expected the columns of labels.parquet; read the file of a run.")
        if not isinstance(table, StoredRows):
            self.table = table
        self.classes: tuple[str, ...] = tuple(json.loads(self.schema.metadata[CLASSES]))
        self.multilabel = bool(pa.types.is_list(self.schema.field("given").type))

    # As a table

    @classmethod
    def read(cls, path: Path | str, columns: Iterable[str] | None = None) -> Self:
        """Read a label table from a Parquet file, or from a folder of parts written by several ranks. Columns of a
        large table are read lazily.

        Parameters
        ----------
        path : Path or str
            The file.
        columns : iterable of str, optional
            The columns to read in addition to key, split and given; all by default.

        Raises
        ------
        RunError
            If the file is not a label table: columns, types, empty cells and class names are checked.
        """
        if not Path(path).exists():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        with damage_named(path):
            return cls.read_file(Path(path), columns)

    @classmethod
    def read_file(cls, path: Path, columns: Iterable[str] | None = None) -> Self:
        """Read a label table as `read` does, but raise the ValueError, OSError or Arrow error of a damaged file."""
        file = LabelFile(path, None if columns is None else tuple(columns))
        return cls(file.read(file.schema.names) if file.is_small() else StoredRows(file))

    @classmethod
    def open(cls, path: Path | str) -> Self:
        """Return the label table in a file or folder; every column is read lazily."""
        with damage_named(path):
            return cls(StoredRows(LabelFile(Path(path))))

    @cached_property
    def table(self) -> pa.Table:
        """The Arrow table with all columns; a large table needs a lot of memory."""
        assert self._stored is not None
        return self._stored.read(self.schema.names)

    def write(self, path: Path) -> None:
        """Write the table to a Parquet file; a reader sees the previous file or the complete new one."""
        with atomic_write(path) as temporary:
            size = min(ROW_GROUP, max(1, VALUES // len(self.classes)))
            pq.write_table(self.table, temporary, compression="zstd", row_group_size=size)

    def batches(self, rows: int, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the table, or some of its columns, in batches of at most this many rows."""
        names = self.column_names if columns is None else list(columns)
        if self._stored is not None and self._stored.is_whole_file:
            yield from self._stored.batches(names, rows)
            return
        for start in range(0, len(self), rows):
            part = self.slice(start, rows)
            table = part.table if part._stored is None else part._stored.read(names)
            yield from table.select(names).to_batches()

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return int(self.table.num_rows) if self._stored is None else len(self._stored)

    def __len__(self) -> int:
        return self.num_rows

    def __repr__(self) -> str:
        form = wording(self.multilabel).form
        return f"LabelTable({self.num_rows:,} rows, {len(self.classes)} classes, {form})"

    def _repr_html_(self) -> str:
        """Return the first rows as HTML, for a notebook."""
        from pencil.runs.notebook import table_page  # which imports this module

        return table_page(self)

    @property
    def column_names(self) -> list[str]:
        """The names of the columns."""
        return list(self.schema.names)

    def __getitem__(self, column: str) -> pa.ChunkedArray:
        """Return a column as Arrow holds it."""
        if self._stored is None:
            return self.table[column]
        if column in self._read:
            return self._read[column]
        values = self._stored.read([column])[column]
        if column not in WIDE:
            self._read[column] = values
        return values

    def filter(self, mask: Any) -> Self:
        """Return the rows where ``mask`` (an array or an Arrow expression) is true."""
        if self._stored is None or isinstance(mask, pc.Expression):
            return type(self)(self.table.filter(mask))
        chosen = mask if isinstance(mask, np.ndarray) else numbers(pc.fill_null(mask, False))
        return self.take(np.flatnonzero(chosen))

    def take(self, rows: Any) -> Self:
        """Return the rows at these positions."""
        if self._stored is not None:
            return type(self)(self._stored.take(np.asarray(rows, dtype=np.int64)))
        return type(self)(self.table.take(positions(rows)))

    def slice(self, offset: int = 0, length: int | None = None) -> Self:
        """Return ``length`` rows starting at ``offset``, without a copy."""
        if self._stored is not None:
            return type(self)(self._stored.slice(offset, length))
        return type(self)(self.table.slice(offset, length))

    def sort_by(self, sorting: Any) -> Self:
        """Return the rows sorted, with the argument of :meth:`pyarrow.Table.sort_by`."""
        return type(self)(self.table.sort_by(sorting))

    def to_pylist(self) -> list[dict[str, Any]]:
        """Return one dict per row."""
        rows: list[dict[str, Any]] = self.table.to_pylist()
        return rows

    def to_pandas(self) -> Any:
        """Return a pandas DataFrame."""
        return self.table.to_pandas()

    def equals(self, other: "LabelTable") -> bool:
        """Return whether all values are equal."""
        return bool(self.table.equals(other.table))

    # Parts

    @cached_property
    def train(self) -> Self:
        """The training rows."""
        return self._of(pc.equal(self.splits, scalar("train")))

    @cached_property
    def held_out(self) -> Self:
        """The held-out rows: labelled rows that the network was not trained on."""
        return self._of(pc.equal(self.splits, scalar("validation")))

    @cached_property
    def unlabelled(self) -> Self:
        """The rows without a given label: ``given`` is null, and ``corrected`` is the network's prediction."""
        return self._of(pc.equal(self.splits, scalar("unlabelled")))

    @property
    def is_unlabelled(self) -> np.ndarray:
        """Mask of the rows without a given label."""
        return numbers(pc.equal(self.splits, scalar("unlabelled"))) > 0

    def _of(self, mask: Any) -> Self:
        return self.filter(mask) if self._stored is not None else type(self)(self.table.filter(mask).combine_chunks())

    def by_issue(self) -> Self:
        """Return all rows, sorted by decreasing issue score."""
        return self.take(np.argsort(-self.issue_score, kind="stable"))

    def to_fix(self, min_confidence: float = 0.0) -> Self:
        """Return the rows whose label changed, the most probable issue first.

        Parameters
        ----------
        min_confidence : float
            Minimum confidence of the rows.
        """
        chosen = self.confident(min_confidence)
        return chosen.take(np.flatnonzero(chosen.changed)).by_issue()

    def suspects(self) -> Self:
        """Return the rows worth a look, the most probable issue first.

        They include the rows of :meth:`to_fix`. Runs of earlier versions have no others. The suspects of multi-label
        data are entries: the column ``suspects`` names their classes, and a row is listed if it has any.
        """
        return self.take(np.flatnonzero(self.suspect)).by_issue()

    def fix_first(self) -> Self:
        """Return the rows to look at, with a column ``kind``: suspects, then outliers, then conflicts.

        An outlier is unlike every class; a conflict is one of several duplicates with different labels, unless it is a
        suspect or an outlier too.
        """
        kind = np.where(self.suspect, 0, np.where(self.outlier, 1, np.where(self.conflict, 2, 3)))
        score = np.where(kind == 1, self.outlier_score, self.issue_score)
        order = np.lexsort((-score, kind))
        rows = order[kind[order] < len(KINDS)]
        names = pa.array([KINDS[code] for code in kind[rows]], pa.string())
        return type(self)(self.take(rows).table.append_column("kind", names))

    def confident(self, min_confidence: float) -> Self:
        """Return the rows with at least this confidence, without rows that could not be read."""
        if min_confidence <= 0:
            return self
        sure = self.confidence.astype(np.float64) >= min_confidence
        return self.take(np.flatnonzero(sure & ~self.unread))

    # Columns as arrays

    @cached_property
    def keys(self) -> Any:
        """The keys of the rows, as one Arrow array."""
        return one_chunk(self["key"])

    @cached_property
    def splits(self) -> Any:
        """The split of each row (``train``, ``validation`` or ``unlabelled``) as one Arrow array of strings."""
        column = one_chunk(self["split"])
        return column.cast(pa.string()) if pa.types.is_dictionary(column.type) else column

    @cached_property
    def confidence(self) -> np.ndarray:
        """The probability of the corrected class; for multi-label data, the lowest confidence of the known entries."""
        return numbers(self["confidence"])

    @cached_property
    def issue_score(self) -> np.ndarray:
        """The probability that the given label, or a known entry of multi-label data, is wrong."""
        return numbers(self["issue_score"])

    @cached_property
    def outlier_score(self) -> np.ndarray:
        """How unlike the rest each row is, 0 to 1. Rows of old runs have 0."""
        known = "outlier_score" in self.column_names
        return numbers(self["outlier_score"]) if known else np.zeros(len(self), dtype=np.float32)

    @cached_property
    def given_probability(self) -> np.ndarray:
        """The probability of the given class of single-label data; NaN if no class is given."""
        return numbers(self["given_probability"])

    @cached_property
    def unread(self) -> np.ndarray:
        """Mask of the labelled rows whose input could not be read, so that their label was not judged."""
        if "mean_margin" not in self.column_names:  # not recorded for entries
            return np.zeros(len(self), dtype=bool)
        unmet: np.ndarray = np.isnan(numbers(self["mean_margin"])) & ~np.isnan(self.given_probability) & ~self.pinned
        return unmet

    @cached_property
    def pinned(self) -> np.ndarray:
        """Mask of the pinned labels; all False if the column is missing."""
        return self._mask("pinned")

    @cached_property
    def changed(self) -> np.ndarray:
        """Mask of the rows whose corrected label differs from the given label."""
        return self.changed_counts > 0

    @cached_property
    def suspect(self) -> np.ndarray:
        """Mask of the rows worth a look: corrections, and further high issue scores. Old runs have corrections only.

        A row of multi-label data is worth a look if one of its entries is.
        """
        return self.suspect_counts > 0

    @cached_property
    def suspect_counts(self) -> np.ndarray:
        """Number of suspects per row: 0 or 1, or the number of entries for multi-label data."""
        if SUSPECTS in self.column_names:
            return numbers(pc.list_value_length(self[SUSPECTS]))
        return numbers(self["suspect"].cast(pa.int32())) if "suspect" in self.column_names else self.changed_counts

    @cached_property
    def outlier(self) -> np.ndarray:
        """Mask of the rows that are unlike every class, or that a person assigned to none. Old runs have none."""
        return self._mask("outlier")

    @cached_property
    def conflict(self) -> np.ndarray:
        """Mask of the rows with a duplicate that has another label. Old runs have none."""
        return self._mask("conflict")

    def _mask(self, column: str) -> np.ndarray:
        return numbers(self[column]) > 0 if column in self.column_names else np.zeros(len(self), dtype=bool)

    @cached_property
    def changed_counts(self) -> np.ndarray:
        """Number of changed labels per row: 0 or 1, or the number of entries for multi-label data."""
        return numbers(self["changed"].cast(pa.int32()))

    @property
    def probs(self) -> np.ndarray:
        """The label distributions, (rows, classes)."""
        if PROBS not in self.column_names and TOP[0] in self.column_names:
            return self._dense_probs()
        return matrix(self[PROBS], len(self.classes))

    def _dense_probs(self) -> np.ndarray:
        """The distributions of top-k labels: the other classes share the remaining probability."""
        width, size = self.schema.field(TOP[0]).type.list_size, len(self.classes)
        places, kept = (matrix(self[name], width) for name in TOP)
        rest = (1 - kept.sum(axis=1, keepdims=True)).clip(min=0) / max(1, size - width)
        dense = np.repeat(rest.astype(np.float32), size, axis=1)
        np.put_along_axis(dense, places.astype(np.int64), kept, axis=1)
        return dense

    @property
    def given_probs(self) -> np.ndarray:
        """The given probabilities of multi-label data, (rows, classes); NaN if unknown.

        Raises
        ------
        RunError
            If the labels are single-label.
        """
        if not self.multilabel:
            raise RunError("single-label data has no given probabilities; expected multi-label data.")
        return matrix(self[GIVEN_PROBS], len(self.classes))

    @property
    def entry_scores(self) -> np.ndarray:
        """The probability that each entry of multi-label data is wrong, (rows, classes); 0 if it is unknown.

        Runs of earlier versions have the probability of the value that is not given.
        """
        if ENTRY_SCORES in self.column_names:
            return matrix(self[ENTRY_SCORES], len(self.classes))
        given, probs = self.given_probs, self.probs
        return np.where(np.isnan(given), 0.0, np.where(given > 0.5, 1 - probs, probs))

    @property
    def changed_entries(self) -> np.ndarray:
        """Mask of the known entries of multi-label data whose corrected value differs from the given one."""
        given = self.given_probs
        changed: np.ndarray = ~np.isnan(given) & ((given > 0.5) != (self.probs > 0.5))
        return changed

    @property
    def suspect_entries(self) -> np.ndarray:
        """Mask of the entries of multi-label data that are worth a look, (rows, classes)."""
        return self.named_entries(SUSPECTS) if SUSPECTS in self.column_names else self.changed_entries

    def named_entries(self, column: str) -> np.ndarray:
        """Return which classes the lists of a column name, as a mask (rows, classes)."""
        lists, named = one_chunk(self[column]), np.zeros((len(self), len(self.classes)), dtype=bool)
        codes = numbers(pc.index_in(lists.flatten(), value_set=strings(self.classes)))
        named[np.repeat(np.arange(len(self)), numbers(pc.list_value_length(lists))), codes] = True
        return named

    @property
    def given_labels(self) -> CodedLabels:
        """The given labels as codes: class indices (-1 for none), or one code per distinct set of classes."""
        return self._coded[0]

    @property
    def corrected_labels(self) -> CodedLabels:
        """The corrected labels, in the same codes as `given_labels`."""
        return self._coded[1]

    @property
    def given_codes(self) -> np.ndarray:
        """The codes of `given_labels`."""
        return self.given_labels.codes

    @property
    def corrected_codes(self) -> np.ndarray:
        """The codes of `corrected_labels`."""
        return self.corrected_labels.codes

    @cached_property
    def _coded(self) -> tuple[CodedLabels, CodedLabels]:
        columns = [one_chunk(self[name]) for name in ("given", "corrected")]
        given, corrected = _code_sets(columns) if self.multilabel else _code_classes(columns, self.classes)
        return given, corrected

    # Rows by key and split, and a person's decisions about them

    def find_rows(self, wanted: Iterable[Where]) -> dict[Where, int]:
        """Return the row index of each (key, split) in the table, without creating Python objects for other rows."""
        wanted = set(wanted)
        if not wanted or not self.num_rows:
            return {}
        names = strings(sorted({key for key, _ in wanted}))
        hits = np.flatnonzero(numbers(pc.is_in(self.keys, names)))
        places = (((self.keys[row].as_py(), self.splits[row].as_py()), row) for row in hits.tolist())
        return {where: row for where, row in places if where in wanted}

    def merge_decisions(self, decisions: Iterable[Decision]) -> "LabelTable":
        """Return the table with a person's labels as ``corrected``, confidence 1, and a column ``reviewed``.

        Columns that depend on the label are updated: ``changed``, ``given_probability``, ``margin``, ``entropy`` and
        ``distribution``. An unknown class stays unknown unless the person added it to the set.

        Parameters
        ----------
        decisions : iterable of Decision
            The result of `pencil.decisions.read_reviews`; decisions without a label (skip) are ignored.

        Raises
        ------
        RunError
            If a decision is about a row or a class that the table does not have.
        """
        from pencil.runs.merging import merge_decisions

        return merge_decisions(self, decisions)


def _code_classes(columns: Sequence[Any], classes: Sequence[str]) -> list[CodedLabels]:
    """Encode single-label columns by class index."""
    code = {name: number for number, name in enumerate(classes)}
    coded = []
    for column in columns:
        column = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
        names = column.dictionary.to_pylist()
        unknown = [name for name in names if name not in code]
        if unknown:
            raise RunError(
                f"the label table names the class {unknown[0]!r}; expected one of the {len(classes)} classes in its "
                "metadata; read the file of a run."
            )
        to_class = np.array([*(code[name] for name in names), -1], dtype=np.int32)
        coded.append(CodedLabels(to_class[indices(column.indices)], classes))
    return coded


def _code_sets(columns: Sequence[Any]) -> list[CodedLabels]:
    """Encode multi-label columns by the distinct sets of classes, with the same codes for all columns."""
    member_codes, members = _encode([column.flatten() for column in columns])
    texts = []
    for column, codes in zip(columns, member_codes, strict=True):
        offsets = pc.subtract(column.offsets, column.offsets[0])
        texts.append(pc.binary_join(pa.ListArray.from_arrays(offsets, codes.cast(pa.string())), scalar(",")))
    set_codes, sets = _encode(texts)
    names = [tuple(members[int(code)] for code in text.split(",") if code) for text in sets]
    return [CodedLabels(numbers(codes), names) for codes in set_codes]


def _encode(columns: Sequence[Any]) -> tuple[list[Any], list[str]]:
    """Return text columns as indices into one list of names, and that list."""
    whole = pa.concat_arrays(columns).dictionary_encode()
    ends = np.cumsum([len(column) for column in columns]).tolist()
    parts = [whole.indices.slice(end - len(column), len(column)) for end, column in zip(ends, columns, strict=True)]
    return parts, whole.dictionary.to_pylist()
