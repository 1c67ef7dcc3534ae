"""The label table of a run as a type: ``labels.parquet``, one row per labelled example. Needs no torch.

`pencil labels` and the review page wait for this module, so it reads only the columns that are asked for, and avoids
the calls with which Arrow imports pandas: ``to_numpy``, ``pa.array``, and Python values in ``pyarrow.compute``.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pencil.decisions import Decision, Label, Where
from pencil.errors import RunError
from pencil.files import atomic_write, refuse_irregular
from pencil.runs.label_columns import CLASSES, check_columns

ALWAYS = ("key", "split", "given")
"""The columns that every label table has: the name of a row, and the type of its labels."""
GIVEN_PROBS, PROBS = "given_probabilities", "distribution"


@dataclass(frozen=True)
class CodedLabels:
    """A column of labels as integer codes; ``names[code]`` is the label, and -1 is none."""

    codes: np.ndarray
    names: Sequence[Label]

    def __getitem__(self, row: int) -> Label | None:
        code = int(self.codes[row])
        return None if code < 0 else self.names[code]


class LabelTable:
    """The labels of a run: what was given, what it was corrected to, and how confident the correction is.

    In single-label data ``given`` and ``corrected`` are class names, and ``changed`` is a bool; ``given`` is null where
    annotators disagree, or there is no label. In multi-label data they are lists of class names, and ``changed`` counts
    the entries of the row that changed.

    Parameters
    ----------
    table : pyarrow.Table
        The columns of ``labels.parquet`` (at least key, split and given), with the class names as JSON under
        ``classes`` in the metadata of its schema.

    Attributes
    ----------
    table : pyarrow.Table
        The same table, for whatever this type does not offer.
    classes : tuple of str
        The class names, in the order of the probabilities.
    multilabel : bool
        Whether an example may have several classes.
    """

    def __init__(self, table: pa.Table):
        missing = [name for name in ALWAYS if name not in table.column_names]
        if missing or CLASSES not in (table.schema.metadata or {}):
            seen = f"no column {missing[0]!r}" if missing else "no class names in its metadata"
            raise RunError(f"the table has {seen}; expected the columns of labels.parquet; read the file of a run.")
        self.table = table
        self.classes: tuple[str, ...] = tuple(json.loads(table.schema.metadata[CLASSES]))
        self.multilabel = bool(pa.types.is_list(table.schema.field("given").type))

    # As a table

    @classmethod
    def read(cls, path: Path | str, columns: Iterable[str] | None = None) -> Self:
        """Read a label table from a Parquet file.

        Parameters
        ----------
        path : Path or str
            The file.
        columns : iterable of str, optional
            The columns to read besides key, split and given; all by default.

        Raises
        ------
        RunError
            If the file is not a label table: columns, types, empty cells and class names are checked.
        """
        columns = None if columns is None else tuple(columns)
        try:
            refuse_irregular(Path(path))
            with pq.ParquetFile(path) as file:  # pq.read_table would import far more
                names = file.schema_arrow.names
                wanted = names if columns is None else [name for name in names if name in {*ALWAYS, *columns}]
                table = file.read(columns=wanted)
            check_columns(table, columns)
        except FileNotFoundError:
            raise
        except (OSError, ValueError, KeyError, pa.ArrowException) as error:
            seen = (getattr(error, "strerror", None) or str(error) or type(error).__name__).strip().splitlines()[0]
            raise RunError(f"{path} is no label table: {seen.rstrip('.')}; read the file of a run.") from error
        return cls(table)

    def write(self, path: Path) -> None:
        """Write the table to a Parquet file; a reader sees the previous file or the complete new one."""
        with atomic_write(path) as temporary:
            pq.write_table(self.table, temporary, compression="zstd")

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return int(self.table.num_rows)

    def __len__(self) -> int:
        return self.num_rows

    def __repr__(self) -> str:
        kind = "multi-label" if self.multilabel else "single-label"
        return f"LabelTable({self.num_rows:,} rows, {len(self.classes)} classes, {kind})"

    @property
    def column_names(self) -> list[str]:
        """The names of the columns."""
        return list(self.table.column_names)

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema."""
        return self.table.schema

    def __getitem__(self, column: str) -> pa.ChunkedArray:
        """Return a column as Arrow holds it."""
        return self.table[column]

    def filter(self, mask: Any) -> Self:
        """Return the rows where ``mask`` (an array or an Arrow expression) is true."""
        return type(self)(self.table.filter(mask))

    def take(self, rows: Any) -> Self:
        """Return the rows at these positions."""
        return type(self)(self.table.take(_positions(rows)))

    def slice(self, offset: int = 0, length: int | None = None) -> Self:
        """Return ``length`` rows from ``offset`` on, without a copy."""
        return type(self)(self.table.slice(offset, length))

    def sort_by(self, sorting: Any) -> Self:
        """Return the rows in another order, as :meth:`pyarrow.Table.sort_by` takes it."""
        return type(self)(self.table.sort_by(sorting))

    def to_pylist(self) -> list[dict[str, Any]]:
        """Return one dict per row."""
        rows: list[dict[str, Any]] = self.table.to_pylist()
        return rows

    def to_pandas(self) -> Any:
        """Return a pandas DataFrame."""
        return self.table.to_pandas()

    def equals(self, other: "LabelTable") -> bool:
        """Return whether all values are the same."""
        return bool(self.table.equals(other.table))

    # Parts

    @cached_property
    def train(self) -> Self:
        """The training rows."""
        return self._of(pc.equal(self.splits, scalar("train")))

    @cached_property
    def held_out(self) -> Self:
        """The held-out rows: they have a label, and the network was not trained on them."""
        return self._of(pc.equal(self.splits, scalar("validation")))

    @cached_property
    def unlabelled(self) -> Self:
        """The rows that came without a label: ``given`` is null, and ``corrected`` what the network predicts."""
        return self._of(pc.equal(self.splits, scalar("unlabelled")))

    @property
    def is_unlabelled(self) -> np.ndarray:
        """Which rows came without a label, as a mask."""
        return _numbers(pc.equal(self.splits, scalar("unlabelled"))) > 0

    def _of(self, mask: Any) -> Self:
        return type(self)(self.table.filter(mask).combine_chunks())

    def by_issue(self) -> Self:
        """Return all rows, the one whose given label is most probably wrong first."""
        return self.take(np.argsort(-self.issue_score, kind="stable"))

    def to_fix(self, min_confidence: float = 0.0) -> Self:
        """Return the rows whose label changed, the most probable issue first.

        Parameters
        ----------
        min_confidence : float
            Leave out rows that are less confident than this.
        """
        chosen = self.confident(min_confidence)
        return chosen.take(np.flatnonzero(chosen.changed)).by_issue()

    def confident(self, min_confidence: float) -> Self:
        """Return the rows that are at least this confident."""
        if min_confidence <= 0:
            return self
        return self.take(np.flatnonzero(self.confidence.astype(np.float64) >= min_confidence))

    # Columns as arrays

    @cached_property
    def keys(self) -> Any:
        """The keys of the rows, as one Arrow array."""
        return _one_chunk(self.table["key"])

    @cached_property
    def splits(self) -> Any:
        """The split of each row, ``train``, ``validation`` or ``unlabelled``, as one Arrow array of strings."""
        column = _one_chunk(self.table["split"])
        return column.cast(pa.string()) if pa.types.is_dictionary(column.type) else column

    @cached_property
    def confidence(self) -> np.ndarray:
        """The probability of the corrected class; for multi-label data of the least confident known entry."""
        return _numbers(self.table["confidence"])

    @cached_property
    def issue_score(self) -> np.ndarray:
        """The probability that the given label is wrong; for multi-label data that at least one known entry is."""
        return _numbers(self.table["issue_score"])

    @cached_property
    def given_probability(self) -> np.ndarray:
        """The probability of the given class of single-label data; NaN where none is given."""
        return _numbers(self.table["given_probability"])

    @cached_property
    def pinned(self) -> np.ndarray:
        """Whether a label was pinned, as a mask; none was where there is no such column."""
        if "pinned" not in self.column_names:
            return np.zeros(len(self), dtype=bool)
        return _numbers(self.table["pinned"]) > 0

    @cached_property
    def changed(self) -> np.ndarray:
        """Whether the corrected label of a row differs from the given one, as a mask."""
        return self.changed_counts > 0

    @cached_property
    def changed_counts(self) -> np.ndarray:
        """How many labels of each row changed: 0 or 1, or a number of entries of multi-label data."""
        return _numbers(self.table["changed"].cast(pa.int32()))

    @property
    def probs(self) -> np.ndarray:
        """The label distributions, (rows, classes)."""
        return _matrix(self.table[PROBS], len(self.classes))

    @property
    def given_probs(self) -> np.ndarray:
        """The given probabilities of multi-label data, (rows, classes), NaN where unknown.

        Raises
        ------
        RunError
            If the labels are single-label.
        """
        if not self.multilabel:
            raise RunError("single-label data has no given probabilities; expected multi-label data.")
        return _matrix(self.table[GIVEN_PROBS], len(self.classes))

    @property
    def given_labels(self) -> CodedLabels:
        """The given labels as codes: positions of classes (-1 for none), or one for each set of classes that occurs."""
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
        columns = [_one_chunk(self.table[name]) for name in ("given", "corrected")]
        given, corrected = _code_sets(columns) if self.multilabel else _code_classes(columns, self.classes)
        return given, corrected

    # Rows by name, and a person's decisions about them

    def find_rows(self, wanted: Iterable[Where]) -> dict[Where, int]:
        """Return the row of each (key, split) that the table has; no Python object is made for other rows."""
        wanted = set(wanted)
        if not wanted or not self.num_rows:
            return {}
        names = strings(sorted({key for key, _ in wanted}))
        hits = np.flatnonzero(_numbers(pc.is_in(self.keys, names)))
        places = (((self.keys[row].as_py(), self.splits[row].as_py()), row) for row in hits.tolist())
        return {where: row for where, row in places if where in wanted}

    def merge_decisions(self, decisions: Iterable[Decision]) -> "LabelTable":
        """Return the table with a person's labels as ``corrected``, confidence 1, and a column ``reviewed``.

        Everything that follows from the label follows it: ``changed``, ``given_probability``, ``margin``, ``entropy``
        and ``distribution``. An unknown class stays unknown unless the person put it into the set.

        Parameters
        ----------
        decisions : iterable of Decision
            What `pencil.decisions.read_reviews` returns; decisions without a label (skip) change nothing.

        Raises
        ------
        RunError
            If a decision is about a row or a class that the table does not have.
        """
        from pencil.runs.merging import merge_decisions

        return merge_decisions(self, decisions)


def strings(values: Sequence[str]) -> pa.StringArray:
    """Return an Arrow array of strings, without the import of pandas that ``pa.array`` brings."""
    encoded = [value.encode() for value in values]
    offsets = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    return pa.StringArray.from_buffers(len(values), pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded)))


def scalar(value: str) -> pa.StringScalar:
    """Return an Arrow string, without the import of pandas that ``pa.scalar`` brings."""
    return strings([value])[0]


def _positions(rows: Any) -> pa.Int64Array:
    whole = np.ascontiguousarray(rows, dtype=np.int64)
    return pa.Array.from_buffers(pa.int64(), len(whole), [None, pa.py_buffer(whole)])


def _one_chunk(column: Any) -> Any:
    """Return a column as one array, in which a row is found at once."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    if pa.types.is_dictionary(column.type):
        column = column.unify_dictionaries()
    if column.num_chunks == 1:
        return column.chunk(0)
    return column.combine_chunks() if column.num_chunks else pa.array([], column.type)


def _numbers(column: Any) -> np.ndarray:
    """Return a column without nulls as numpy sees it."""
    array = _one_chunk(column)
    return np.from_dlpack(array.cast(pa.uint8()) if pa.types.is_boolean(array.type) else array)


def _indices(array: Any) -> np.ndarray:
    """Return the indices of a dictionary, -1 where a row has none."""
    if not array.null_count:
        return _numbers(array)
    values = pa.Array.from_buffers(array.type, len(array), [None, array.buffers()[1]], offset=array.offset)
    return np.where(_numbers(array.is_valid()) > 0, _numbers(values), -1)


def _matrix(column: pa.ChunkedArray, width: int) -> np.ndarray:
    """Return a column of lists of one length as a matrix."""
    return _numbers(pc.list_flatten(column)).reshape(len(column), width)


def _code_classes(columns: Sequence[Any], classes: Sequence[str]) -> list[CodedLabels]:
    """Code single-label columns by the position of the class."""
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
        coded.append(CodedLabels(to_class[_indices(column.indices)], classes))
    return coded


def _code_sets(columns: Sequence[Any]) -> list[CodedLabels]:
    """Code multi-label columns by the sets of classes that occur, the same for all columns."""
    member_codes, members = _encode([column.flatten() for column in columns])
    texts = []
    for column, codes in zip(columns, member_codes, strict=True):
        offsets = pc.subtract(column.offsets, column.offsets[0])
        texts.append(pc.binary_join(pa.ListArray.from_arrays(offsets, codes.cast(pa.string())), scalar(",")))
    set_codes, sets = _encode(texts)
    names = [tuple(members[int(code)] for code in text.split(",") if code) for text in sets]
    return [CodedLabels(_numbers(codes), names) for codes in set_codes]


def _encode(columns: Sequence[Any]) -> tuple[list[Any], list[str]]:
    """Return columns of text as numbers into one list of names, and that list."""
    whole = pa.concat_arrays(columns).dictionary_encode()
    ends = np.cumsum([len(column) for column in columns]).tolist()
    parts = [whole.indices.slice(end - len(column), len(column)) for end, column in zip(ends, columns, strict=True)]
    return parts, whole.dictionary.to_pylist()
