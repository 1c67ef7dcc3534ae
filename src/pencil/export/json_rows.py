"""JSON files of many rows, written one row at a time, and checks of values that are read from such files."""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pencil.errors import RunError


def write_rows(path: Path, rows: Iterable[Any], before: str = "[", after: str = "]") -> None:
    """Write a list with a line for each row; ``before`` and ``after`` are the JSON around it."""
    with path.open("w", encoding="utf-8") as file:
        file.write(before)
        for number, row in enumerate(rows):
            file.write(("," if number else "") + "\n" + json.dumps(row, ensure_ascii=False, allow_nan=False))
        file.write(f"\n{after}\n")


def numbered(source: Path, what: str, rows: Iterable[Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield rows that must be objects with their position in the file, such as ``task 3``."""
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            raise RunError(f"{source}: {what} {number} is a {type(row).__name__}; expected an object.")
        yield f"{what} {number}", row


def need(source: Path, position: str, tree: Mapping[str, Any], name: str) -> str:
    """Return a text field of an object; raise if it is missing."""
    value = tree.get(name)
    if not isinstance(value, str):
        seen = f"no {name!r}" if value is None else f"{name} {str(value)[:40]!r}"
        raise RunError(
            f"{source}: {position} has {seen}; expected the text that `pencil labels` wrote; export the rows of the "
            "run again and answer those."
        )
    return value


def as_classes(source: Path, position: str, value: Any) -> tuple[str, ...]:
    """Return one class or a list of them as a tuple."""
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise RunError(
            f"{source}: {position} has the label {str(value)[:40]!r}; expected a class or a list of classes."
        )
    return tuple(names)
