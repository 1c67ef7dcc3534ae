"""Rows that cannot be used: all are counted, the first few are named, and they are refused or skipped."""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np

from pencil.errors import DataError, DataWarning, can_set, setting, warn
from pencil.terminal import agreed, counted

OnBadRows = Literal["error", "skip"]
SHOWN = 5
"""Maximum number of bad rows that are named; the others are counted."""


def or_skip(count: int = 2) -> str:
    """Return the clause that says how to skip bad rows, with its comma; empty if the settings are fixed."""
    if not can_set():
        return ""
    return f", or skip {agreed(count, 'it', 'them')} with {setting('data.bad_rows', 'skip')} when you check or train"


def first_few(texts: Sequence[str]) -> str:
    """Return the first of these texts, and the number of further ones."""
    more = len(texts) - SHOWN
    return "; ".join(texts[:SHOWN]) + (f"; and {more:,} more" if more > 0 else "")


class BadRow(NamedTuple):
    """A row that cannot be used: its number, and the reason."""

    row: int
    reason: str


class BadRows:
    """Collects the bad rows of one source, named ``where`` in messages; ``numbers`` are its row numbers there."""

    def __init__(self, where: str, numbers: np.ndarray | None = None):
        self.where, self.numbers = where, numbers
        self._reasons: dict[int, str] = {}

    def __len__(self) -> int:
        return len(self._reasons)

    def add(self, row: int, reason: str) -> None:
        """Add a row; the first of several reasons is kept."""
        self._reasons.setdefault(row, reason)

    def add_where(self, bad: np.ndarray, reason: Callable[[int], str], rows: np.ndarray | None = None) -> None:
        """Add the rows that a mask marks, with the reason for each place; ``rows`` are the rows of the places."""
        for place in np.flatnonzero(bad).tolist():
            self.add(place if rows is None else int(rows[place]), reason(place))

    def found(self) -> list[BadRow]:
        """Return the bad rows in order."""
        return [BadRow(row, self._reasons[row]) for row in sorted(self._reasons)]

    def refuse(self, keys: np.ndarray | None = None, *, total: int | None = None, remedy: str | None = None) -> None:
        """Raise if there is a bad row; the message shows keys, and skipping as the remedy unless there is another."""
        if self._reasons:
            rest = or_skip(len(self)) if remedy is None else f", or {remedy}" if remedy else ""
            raise DataError(f"{self.describe(keys, total)}; fix {agreed(len(self), 'this row', 'these rows')}{rest}.")

    def settle(self, on_bad_rows: OnBadRows, keys: np.ndarray) -> np.ndarray | None:
        """Raise, or warn of skipped rows and return the numbers of the others; None if no row is bad."""
        if not self._reasons:
            return None
        none_left = len(self._reasons) == len(keys)
        if on_bad_rows == "error" or none_left:
            self.refuse(keys, total=len(keys), remedy="" if none_left else None)
        warn(self.describe_skipped(keys, len(keys)), DataWarning)
        return np.setdiff1d(np.arange(len(keys)), np.array(sorted(self._reasons)))

    def describe(self, keys: np.ndarray | None = None, total: int | None = None) -> str:
        """Return the number of bad rows, and the first of them with their reasons."""
        of = "" if total is None else f" of {total:,}"
        named = [f"{self._name(row, keys)}: {reason}" for row, reason in self.found()]
        return f"{self.where} has {counted(len(self), 'bad row')}{of}: {first_few(named)}"

    def describe_skipped(self, keys: np.ndarray | None = None, total: int | None = None) -> str:
        """Return a warning that the bad rows are skipped."""
        return f"{self.describe(keys, total)}; {agreed(len(self), 'it is', 'they are')} skipped"

    def numbered(self, rows: Sequence[int]) -> list[int]:
        """Return the numbers of some rows in messages."""
        return [row if self.numbers is None else int(self.numbers[row]) for row in rows]

    def _name(self, row: int, keys: np.ndarray | None) -> str:
        (number,) = self.numbered([row])
        key = "" if keys is None else str(keys[row])
        return f"row {number}" if key in ("", str(number)) else f"row {number} ({key!r})"
