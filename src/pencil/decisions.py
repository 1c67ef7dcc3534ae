"""``reviews.jsonl``: a person's decisions about the labels of a run, one line for each.

The last line about a row counts; ``undo`` withdraws it, and the previous line counts again. An audit of multi-label
data asks about single entries: such a line is about one class of its row.
"""

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import numpy as np

from pencil.errors import RunError
from pencil.files import atomic_write, parse_json, read_regular, refuse_irregular, refuse_links

REVIEWS = "reviews.jsonl"
ENTRY_KINDS = ("absent", "present")
"""Decisions about an entry of multi-label data: the class is not in the row, or it is."""
KINDS = ("accept", "reject", "other", "none", "skip", "undo", *ENTRY_KINDS)
WITHOUT_LABEL = ("none", "skip", "undo", *ENTRY_KINDS)
"""Decisions without a label; ``none`` means that the row belongs to none of the classes."""

Label = str | tuple[str, ...]
"""A class, or the set of classes of multi-label data."""
Where = tuple[str, str]
"""Key and split, which together identify a row."""
Unit = tuple[str, ...]
"""What a decision is about: key and split of a row, followed by the class of an entry."""


@dataclass(frozen=True)
class Decision:
    """A person's decision about a row.

    Attributes
    ----------
    key, split : str
        The row, as in the label table.
    decision : str
        ``accept``, ``reject``, ``other``, ``none``, ``skip`` or ``undo``; ``present``, ``absent``, ``skip`` or
        ``undo`` for an entry.
    label : str, tuple of str or None
        The label from now on; None for ``none``, ``skip`` and ``undo``, and for an entry.
    given, corrected : str, tuple of str or None
        The labels that the person saw (in an audit they are hidden).
    time : str
        Time of the decision, in UTC.
    audit : bool
        Whether the decision is an answer of an audit, which hides the labels.
    lot : str
        The name of the lot, which was accepted as a whole after the person saw some of its rows; empty for a single
        row.
    entry : str
        The class that an audit of multi-label data asked about; empty if the decision is about the row.
    """

    key: str
    split: str
    decision: str
    label: Label | None
    given: Label | None
    corrected: Label | None
    time: str
    audit: bool = False
    lot: str = ""
    entry: str = ""

    @property
    def unit(self) -> Unit:
        """What the decision is about."""
        return (*self.where, self.entry) if self.entry else self.where

    @property
    def where(self) -> Where:
        """The key and split of the row."""
        return self.key, self.split

    def to_json(self) -> str:
        """Return the decision as a line of the file."""
        found = {name: getattr(self, name) for name in FIELDS if name not in OPTIONAL or getattr(self, name)}
        return json.dumps(found, ensure_ascii=False)


FIELDS = tuple(field.name for field in fields(Decision))
OPTIONAL = ("audit", "lot", "entry")
"""Fields that are omitted when empty."""


def now() -> str:
    """Return the current time in UTC as ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def read_reviews(path: Path | str) -> list[Decision]:
    """Return the decisions that count, in order: the last decision about each row or entry, without withdrawn ones."""
    return History.read(Path(path)).standing()


class History:
    """All decisions of a file, by row or entry; the last decision about each counts."""

    def __init__(self) -> None:
        self._made: dict[Unit, list[tuple[int, Decision]]] = {}
        self._count = 0

    @classmethod
    def read(cls, path: Path) -> "History":
        """Return the decisions in a file; none if it does not exist."""
        found = cls()
        for decision in read_lines(path):
            found.add(decision)
        return found

    def add(self, decision: Decision) -> None:
        """Add a decision; an undo removes the last one about its row or entry."""
        made = self._made.setdefault(decision.unit, [])
        if decision.decision != "undo":
            self._count += 1
            made.append((self._count, decision))
        elif made:
            made.pop()
        if not made:
            del self._made[decision.unit]

    def get(self, unit: Unit) -> Decision | None:
        """Return the decision that counts for a row or an entry, or None."""
        return self._made[unit][-1][1] if unit in self._made else None

    def last(self) -> Decision | None:
        """Return the newest decision about a row that was not withdrawn."""
        newest = (made[-1] for made in self._made.values() if not made[-1][1].entry)
        return max(newest, key=lambda numbered: numbered[0], default=(0, None))[1]

    def of_lot(self, lot: str) -> list[Decision]:
        """Return the decisions of a lot that still count, i.e. whose rows were not decided again later."""
        return [made[-1][1] for made in self._made.values() if made[-1][1].lot == lot]

    def audited(self) -> dict[Unit, Decision]:
        """Return the last audit answer about each row or entry, even if a later review decided otherwise."""
        answers = ((unit, [one for _, one in made if one.audit]) for unit, made in self._made.items())
        return {unit: found[-1] for unit, found in answers if found}

    def standing(self) -> list[Decision]:
        """Return the decisions that count, in the order they were made.

        A decision about a row replaces earlier answers about its entries.
        """
        latest = {unit: made[-1] for unit, made in self._made.items()}
        of_rows = {unit: number for unit, (number, decision) in latest.items() if not decision.entry}
        standing = [one for one in latest.values() if not of_rows.get(one[1].where, 0) > one[0]]
        return [decision for _, decision in sorted(standing, key=lambda numbered: numbered[0])]


def read_lines(path: Path) -> Iterator[Decision]:
    """Yield the decision in every line of the file, except a truncated last line."""
    try:
        lines = read_regular(path).split(b"\n")
    except FileNotFoundError:
        return
    except OSError as error:
        raise RunError(f"cannot read {path}: {error.strerror}; check its permissions.") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield parse_line(line)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            if number == len(lines):  # no newline: writing was interrupted
                return
            raise RunError(
                f"line {number} of {path} is not a decision ({_words(error)}); expected a JSON object with key, "
                "decision, label, given and corrected; fix or remove the line."
            ) from error


def _words(error: Exception) -> str:
    return f"it has no {error}" if isinstance(error, KeyError) else " ".join(str(error).split())[:200]


def parse_line(line: bytes) -> Decision:
    """Return the decision in a line of the file."""
    found = parse_json(line)
    if not isinstance(found, dict):
        raise ValueError(f"it is a {type(found).__name__}")
    for name in ("key", "split", "time", "lot", "entry"):
        if not isinstance(found.get(name, ""), str):
            raise ValueError(f"{name} is {str(found[name])[:40]!r}; expected text")
    key, kind, label = found["key"], found["decision"], _label(found.get("label"))
    if kind not in KINDS:
        raise ValueError(f"decision is {str(kind)[:40]!r}; expected {', '.join(KINDS)}")
    if (label is None) != (kind in WITHOUT_LABEL):
        raise ValueError(f"label is {label!r} for {kind}")
    entry = found.get("entry", "")
    if (kind in ENTRY_KINDS and not entry) or (entry and kind not in (*ENTRY_KINDS, "skip", "undo")):
        raise ValueError(f"entry is {entry!r} for {kind}")
    audit = found.get("audit", False)
    if not isinstance(audit, bool):
        raise ValueError(f"audit is {str(audit)[:40]!r}; expected true or false")
    given, corrected = (_label(found.get(name, "")) for name in ("given", "corrected"))
    split, time, lot = (found.get(name, "") for name in ("split", "time", "lot"))
    return Decision(key, split, kind, label, given, corrected, time, audit, lot, entry)


def _label(value: Any) -> Label | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(name, str) for name in value):
        return tuple(value)
    raise ValueError(f"{str(value)[:40]!r} is not a label")


def chosen_labels(path: Path | str) -> list[Decision]:
    """Return the decisions that count and name a label, in the order they were made."""
    if not Path(path).is_file():
        raise RunError(f"{path} does not exist; expected decisions that `pencil review RUN` wrote: RUN/{REVIEWS}.")
    return [decision for decision in read_reviews(path) if decision.label is not None]


def pinned_labels(path: Path | str) -> dict[str, Label]:
    """Return the label that a person chose for each key, without rows that were skipped.

    If a training row and a held-out row have the same key, the training row's label counts.
    """
    chosen = sorted(chosen_labels(path), key=lambda decision: decision.split == "train")
    return {decision.key: decision.label for decision in chosen if decision.label is not None}


def presence(labels: Iterable[tuple[str, Label]], classes: Sequence[str], *, multilabel: bool) -> np.ndarray:
    """Return which classes each label names, as a bool matrix (rows, classes); the keys are for error messages."""
    code = {name: number for number, name in enumerate(classes)}
    labels = list(labels)
    present = np.zeros((len(labels), len(classes)), dtype=bool)
    for row, (key, label) in enumerate(labels):
        names = [label] if isinstance(label, str) else label
        for name in names:
            if name not in code:
                known = ", ".join(map(repr, classes[:5])) + (", ..." if len(classes) > 5 else "")
                raise RunError(
                    f"the review of {key!r} names {name!r}, which is not one of the {len(classes)} classes ({known}); "
                    "expected a review of the same classes; fix or remove its line."
                )
            present[row, code[name]] = True
        if not multilabel and present[row].sum() != 1:
            raise RunError(
                f"the review of {key!r} names {len(names)} classes; expected one, because the data is single-label; "
                "fix or remove its line."
            )
    return present


class Journal:
    """Appends decisions to a file and flushes each to disk before ``append`` returns; use as a context manager."""

    def __init__(self, path: Path):
        self.path = path
        self._descriptor = -1

    def __enter__(self) -> Self:
        refuse_links(self.path)
        try:
            if os.path.lexists(self.path):
                refuse_irregular(self.path)
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o644)
            self._repair()
        except OSError as error:
            self.__exit__()
            raise RunError(f"cannot write {self.path}: {error.strerror}; check its permissions.") from error
        return self

    def __exit__(self, *_: object) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def append(self, *decisions: Decision) -> None:
        """Append one line per decision and flush them to disk; after an error the file is unchanged."""
        lines = "".join(f"{decision.to_json()}\n" for decision in decisions).encode()
        end = os.lseek(self._descriptor, 0, os.SEEK_END)
        try:
            written = 0
            while written < len(lines):
                written += os.write(self._descriptor, lines[written:])
            os.fsync(self._descriptor)
        except OSError as error:
            os.ftruncate(self._descriptor, end)  # a partial line must not corrupt the next one
            raise RunError(
                f"the decision is not saved: {self.path}: {error.strerror}; free space or check the permissions, "
                "then decide "
                "again."
            ) from error

    def append_all(self, decisions: Iterable[Decision]) -> None:
        """Append many lines atomically: after a power cut or an error the file contains all of them or none.

        A new file is written and replaces the old one, because part of a lot must not count.
        """
        added = "".join(f"{decision.to_json()}\n" for decision in decisions).encode()
        self.__exit__()  # Windows cannot replace an open file
        try:
            with atomic_write(self.path) as temporary:
                temporary.write_bytes(self.path.read_bytes() + added)
        finally:
            self.__enter__()

    def _repair(self) -> None:
        """Complete a last line that has no newline, or remove it if it is truncated."""
        content = self.path.read_bytes()
        tail = content.rpartition(b"\n")[2]
        if not tail:
            return
        try:
            parse_line(tail)
        except (ValueError, KeyError, TypeError, RecursionError):
            os.ftruncate(self._descriptor, len(content) - len(tail))
        else:
            os.lseek(self._descriptor, 0, os.SEEK_END)
            os.write(self._descriptor, b"\n")
        os.fsync(self._descriptor)
