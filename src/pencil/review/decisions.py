"""A person's decisions: ``reviews.jsonl``, one line each, appended and flushed to disk as they are made.

The last line about a row counts; ``undo`` takes it back, so that the one before it counts again.
"""

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pencil.errors import RunError

REVIEWS = "reviews.jsonl"
KINDS = ("accept", "reject", "other", "skip", "undo")

Label = str | tuple[str, ...]
"""A class, or the set of classes where an example may be of several at once."""
Where = tuple[str, str]
"""Key and split: together they name a row."""


@dataclass(frozen=True)
class Decision:
    """What a person said about a row. ``label`` is what holds from now on; None for ``skip`` and ``undo``."""

    key: str
    split: str
    decision: str
    label: Label | None
    given: Label | None
    corrected: Label | None
    time: str

    @property
    def where(self) -> Where:
        return self.key, self.split

    def to_json(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False)


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def read_reviews(path: Path | str) -> list[Decision]:
    """The decisions that stand, in the order they were made: one for each row, none that was taken back."""
    history = History()
    for decision in read_lines(Path(path)):
        history.add(decision)
    return history.standing()


class History:
    """All decisions of a file, row by row: the last of each counts."""

    def __init__(self) -> None:
        self._of_row: dict[Where, list[tuple[int, Decision]]] = {}
        self._count = 0

    def add(self, decision: Decision) -> None:
        made = self._of_row.setdefault(decision.where, [])
        if decision.decision != "undo":
            self._count += 1
            made.append((self._count, decision))
        elif made:
            made.pop()
        if not made:
            del self._of_row[decision.where]

    def get(self, where: Where) -> Decision | None:
        return self._of_row[where][-1][1] if where in self._of_row else None

    def last(self) -> Decision | None:
        """The newest decision that was not taken back."""
        return max((made[-1] for made in self._of_row.values()), key=lambda numbered: numbered[0], default=(0, None))[1]

    def standing(self) -> list[Decision]:
        latest = sorted((made[-1] for made in self._of_row.values()), key=lambda numbered: numbered[0])
        return [decision for _, decision in latest]


def read_lines(path: Path) -> Iterator[Decision]:
    """Every line of the file; a last line that was cut off in the middle is no decision yet."""
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return
    except OSError as error:
        raise RunError(f"cannot read {path}: {error.strerror}.") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield _parse(line)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            if number == len(lines):  # its newline is missing: the machine stopped while it was written
                return
            raise RunError(
                f"line {number} of {path} is no decision ({error}); expected a JSON object with key, decision, label, "
                "given and corrected; mend or remove the line."
            ) from error


def _parse(line: bytes) -> Decision:
    found = json.loads(line)
    if not isinstance(found, dict):
        raise ValueError(f"it is a {type(found).__name__}")
    kind, label = found["decision"], _label(found.get("label"))
    if kind not in KINDS:
        raise ValueError(f"decision is {kind!r}; expected {', '.join(KINDS)}")
    if (label is None) != (kind in ("skip", "undo")):
        raise ValueError(f"label is {label!r} for {kind}")
    given, corrected = (_label(found.get(name, "")) for name in ("given", "corrected"))
    return Decision(
        str(found["key"]), str(found.get("split", "")), kind, label, given, corrected, str(found.get("time", ""))
    )


def _label(value: Any) -> Label | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(name, str) for name in value):
        return tuple(value)
    raise ValueError(f"{value!r} is no label")


class Journal:
    """``with Journal(path) as journal:`` appends lines, each on disk before ``append`` returns."""

    def __init__(self, path: Path):
        self.path = path
        self._descriptor = -1

    def __enter__(self) -> Self:
        try:
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o644)
            self._mend()
        except OSError as error:
            self.__exit__()
            raise RunError(f"cannot write {self.path}: {error.strerror}; mend the access to it.") from error
        return self

    def __exit__(self, *_: object) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def append(self, decision: Decision) -> None:
        line = f"{decision.to_json()}\n".encode()
        end = os.lseek(self._descriptor, 0, os.SEEK_END)
        try:
            written = 0
            while written < len(line):
                written += os.write(self._descriptor, line[written:])
            os.fsync(self._descriptor)
        except OSError as error:
            os.ftruncate(self._descriptor, end)  # half a line must not spoil the next one
            raise RunError(f"the decision is not saved: {self.path}: {error.strerror}.") from error

    def _mend(self) -> None:
        """A last line without its newline gets one if it is whole, and goes if the machine stopped in the middle."""
        content = self.path.read_bytes()
        tail = content.rpartition(b"\n")[2]
        if not tail:
            return
        try:
            _parse(tail)
        except (ValueError, KeyError, TypeError, RecursionError):
            os.ftruncate(self._descriptor, len(content) - len(tail))
        else:
            os.lseek(self._descriptor, 0, os.SEEK_END)
            os.write(self._descriptor, b"\n")
        os.fsync(self._descriptor)


def pinned_labels(path: Path | str) -> dict[str, Label]:
    """The label that a person chose for each key; rows that were skipped are not in it.

    Where a training row and a validation row have the same key, the training row's counts.
    """
    if not Path(path).is_file():
        raise RunError(f"{path} does not exist; expected decisions that `pencil review RUN` wrote.")
    chosen = [decision for decision in read_reviews(path) if decision.label is not None]
    chosen.sort(key=lambda decision: decision.split == "train")
    return {decision.key: decision.label for decision in chosen if decision.label is not None}


def merge_reviews(label_table: pa.Table, reviews: Iterable[Decision]) -> pa.Table:
    """The same table with the person's label as ``corrected``, surely, and a column ``reviewed``.

    Everything that follows from the label follows it: ``changed``, ``given_probability``, ``margin``, ``entropy`` and
    ``distribution``. A class that was unknown stays unknown unless the person put it into the set.
    """
    chosen = {review.where: review.label for review in reviews if review.label is not None}
    rows = find_rows(label_table["key"].combine_chunks(), label_table["split"].combine_chunks(), chosen)
    for key, split in chosen.keys() - rows.keys():
        raise RunError(f"a review is about {key!r} ({split}), which the label table does not have; is it of this run?")
    classes: list[str] = json.loads(label_table.schema.metadata[b"classes"])
    reviewed = np.zeros(label_table.num_rows, dtype=bool)
    reviewed[list(rows.values())] = True
    by_row = {row: chosen[where] for where, row in rows.items()}
    picked = np.array(sorted(by_row), dtype=np.int64)
    present = _presence([by_row[int(row)] for row in picked], classes)
    multilabel = "given_probabilities" in label_table.column_names
    merge = _merged_sets if multilabel else _merged_classes
    merged = merge(label_table, picked, present, classes)
    merged["confidence"] = _changed_at(label_table["confidence"], picked, 1.0)
    for name, values in merged.items():
        at = label_table.column_names.index(name)
        label_table = label_table.set_column(at, label_table.schema.field(name), values)
    return label_table.append_column("reviewed", pa.array(reviewed))


def find_rows(keys: Any, splits: Any, wanted: Iterable[Where]) -> dict[Where, int]:
    """The row of each (key, split); no Python object is made for the others."""
    wanted = set(wanted)
    if not wanted or not len(keys):
        return {}
    names = _strings(sorted({key for key, _ in wanted}))
    hits = np.flatnonzero(np.from_dlpack(pc.is_in(keys, names).cast(pa.uint8())))
    places = (((keys[row].as_py(), splits[row].as_py()), row) for row in hits.tolist())
    return {where: row for where, row in places if where in wanted}


def _strings(values: list[str]) -> pa.StringArray:
    """As Arrow holds them; ``pa.array`` would import all of pandas first, and the page is waiting."""
    encoded = [value.encode() for value in values]
    offsets = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    return pa.StringArray.from_buffers(len(values), pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded)))


def _presence(labels: list[Any], classes: list[str]) -> np.ndarray:
    """(labels, classes): which classes each label names."""
    code = {name: number for number, name in enumerate(classes)}
    present = np.zeros((len(labels), len(classes)), dtype=bool)
    for row, label in enumerate(labels):
        for name in [label] if isinstance(label, str) else label:
            if name not in code:
                raise RunError(
                    f"a review says {name!r}, which is none of the {len(classes)} classes of the label table."
                )
            present[row, code[name]] = True
    return present


def _merged_classes(table: pa.Table, picked: np.ndarray, present: np.ndarray, classes: list[str]) -> dict[str, Any]:
    if (present.sum(axis=1) != 1).any():
        raise RunError("a review names several classes; in this label table each row is of one.")
    names = pa.array(classes, pa.string())
    chosen = present.argmax(axis=1)
    codes = pc.index_in(table["corrected"].cast(pa.string()), names).to_numpy().astype(np.int32)
    codes[picked] = chosen
    given = pc.index_in(table["given"].cast(pa.string()).take(pa.array(picked)), names).to_numpy()
    same = given == chosen
    return {
        "corrected": pa.DictionaryArray.from_arrays(pa.array(codes), names).cast(table.schema.field("corrected").type),
        "given_probability": _changed_at(table["given_probability"], picked, same),
        "margin": _changed_at(table["margin"], picked, 1.0),
        "entropy": _changed_at(table["entropy"], picked, 0.0),
        "changed": _changed_at(table["changed"], picked, ~same),
        "distribution": _changed_matrix(table["distribution"], picked, present),
    }


def _merged_sets(table: pa.Table, picked: np.ndarray, present: np.ndarray, classes: list[str]) -> dict[str, Any]:
    corrected = table["corrected"].combine_chunks()
    names = np.array(classes, dtype=object)
    lists = pa.array([names[row].tolist() for row in present], corrected.type)
    order = np.arange(table.num_rows)
    order[picked] = table.num_rows + np.arange(len(picked))
    at = pa.array(picked)
    given = _matrix(table["given_probabilities"].take(at), len(classes))
    said = _matrix(table["distribution"].take(at), len(classes))
    known = ~np.isnan(given)
    return {
        "corrected": pa.concat_arrays([corrected, lists]).take(pa.array(order)),
        "changed": _changed_at(table["changed"], picked, (known & (present != (given > 0.5))).sum(axis=1)),
        "distribution": _changed_matrix(table["distribution"], picked, np.where(known | present, present, said)),
    }


def _changed_at(column: pa.ChunkedArray, picked: np.ndarray, values: Any) -> pa.Array:
    copy = column.to_numpy().copy()
    copy[picked] = values
    return pa.array(copy, column.type)


def _matrix(column: pa.ChunkedArray, width: int) -> np.ndarray:
    numbers: np.ndarray = pc.list_flatten(column).to_numpy().reshape(-1, width)
    return numbers


def _changed_matrix(column: pa.ChunkedArray, picked: np.ndarray, values: np.ndarray) -> pa.FixedSizeListArray:
    copy = _matrix(column, column.type.list_size).copy()
    copy[picked] = values
    return pa.FixedSizeListArray.from_arrays(pa.array(copy.ravel()), type=column.type)
