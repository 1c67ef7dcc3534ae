"""The cells of a row for display: texts first, then the numbers that are most unusual for the given class."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from typing import Any, NamedTuple

import numpy as np

from pencil.data.examples import Examples
from pencil.data.given.given_labels import hard_labels
from pencil.data.inputs.records import SECONDS_PER_DAY, RecordInputs

LONGEST = 4000
"""Maximum number of displayed characters of a cell."""
EXACT = 2.0**53
"""Integers below this are exact, and displayed in full."""
VECTOR = 4
"""Maximum number of displayed entries of a vector."""


class Cell(NamedTuple):
    """A column of a row, and its value as text; empty if missing."""

    column: str
    value: str


@dataclass(frozen=True, eq=False)
class Spread:
    """Median and interquartile range of every column of numbers: a row for each class, and one for all rows."""

    names: tuple[str, ...]
    medians: np.ndarray
    ranges: np.ndarray


def measure_spread(examples: Examples, records: RecordInputs) -> Spread:
    """Measure typical values of these rows; a class with fewer than four rows uses all rows."""
    names = records.roles.of("number")
    values = records.take(examples.rows).matrix(names)
    labels = None if examples.multilabel else hard_labels(examples.given_labels).numpy()
    medians, ranges = np.zeros((2, examples.num_classes + 1, len(names)))
    for code in range(examples.num_classes + 1):
        members = values if labels is None or code == examples.num_classes else values[labels == code]
        members = members if len(members) >= 4 else values
        for place, column in enumerate(members.T):
            known = column[~np.isnan(column)]
            if len(known):
                low, medians[code, place], high = np.quantile(known, (0.25, 0.5, 0.75))
                ranges[code, place] = high - low
    return Spread(names, medians, ranges)


def row_cells(records: RecordInputs, row: int, spread: Spread | None = None, code: int = -1) -> list[Cell]:
    """Return the cells of a row.

    Given typical values, texts come first, then the numbers that are most unusual for the class ``code`` (-1: for
    all rows); otherwise the cells keep the order of the table.
    """
    values = dict(records.describe(row))
    names = list(records.roles.used)
    if spread is not None:
        far = _deviations(values, spread, code)
        numbers = sorted(spread.names, key=lambda name: -far[name])  # stable: ties keep their order
        rest = [name for name in names if records.roles.used[name] in ("category", "vector")]
        names = [*records.roles.of("text"), *numbers, *rest]
    return [Cell(name, (in_days if name in records.dates else in_words)(values[name])) for name in names]


def _deviations(values: dict[str, Any], spread: Spread, code: int) -> dict[str, float]:
    """Return how many interquartile ranges each number is from the median; missing ones come last."""
    found = {}
    for place, name in enumerate(spread.names):
        distance = 0.0 if values[name] is None else abs(values[name] - spread.medians[code, place])
        found[name] = -1.0 if values[name] is None else distance / max(spread.ranges[code, place], 1e-12)
    return found


def in_days(days: float | None) -> str:
    """Return days since 1970 as a date, with the time if it is not midnight."""
    if days is None:
        return ""
    try:
        moment = datetime(1970, 1, 1) + timedelta(seconds=round(days * SECONDS_PER_DAY))
    except OverflowError:  # before the year 1, or after 9999
        return in_words(days)
    return str(moment.date() if moment.time() == time() else moment)


def in_words(value: Any) -> str:
    """Return a value for display: numbers with few digits, the start of a long text or vector."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.0f}" if value.is_integer() and abs(value) < EXACT else f"{value:.6g}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        shown = ", ".join(f"{number:.3g}" for number in value[:VECTOR])
        return shown if len(value) <= VECTOR else f"{shown}, ... ({len(value)} numbers)"
    return str(value)[:LONGEST]
