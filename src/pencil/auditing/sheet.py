"""An audit as a spreadsheet: a CSV file without labels, whose last column is filled with answers."""

import csv
import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from pencil.auditing.blind import Blind
from pencil.auditing.sample import AuditSample
from pencil.decisions import Where
from pencil.errors import RunError
from pencil.files import atomic_write, read_regular
from pencil.formulas import escape_formula

COLUMNS = ("key", "split", "classes", "label")
WORDS = {"cannot tell": "skip", "none of the classes": "none"}
"""Answers that are not a class; a class of the same name takes precedence."""
TELLING = 0.1
"""Keys reveal labels if they contain the label of their own row this much more often than the label of another row."""


def write_sheet(blind: Blind, path: Path) -> int:
    """Write the rows of a sample as a new CSV file with an empty column ``label``, and return the number of rows.

    Raises
    ------
    RunError
        If the keys reveal the given labels, like paths in a folder per class, or the file exists.
    """
    sample = blind.sample
    refuse_telling_keys(sample)
    names, text = sample.labels.classes, io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(COLUMNS)
    for at, (key, split) in enumerate(sample.all_where()):
        offered = "; ".join(names[code] for code in blind.offered(at))
        lines.writerow([escape_formula(key), split, escape_formula(offered), ""])
    with atomic_write(path, new=True) as temporary:
        temporary.write_text(text.getvalue(), encoding="utf-8", newline="\n")  # a key may contain line breaks
    return len(blind)


def refuse_telling_keys(sample: AuditSample) -> None:
    """Raise :class:`RunError` if the keys of a run contain the given labels."""
    rng = np.random.default_rng(0)
    rows = sample.population[rng.permutation(len(sample.population))[:1000]].tolist()
    rows = [row for row in rows if sample.labels.given_codes[row] >= 0]
    if not rows:
        return
    keys = [sample.labels.keys[row].as_py() for row in rows]
    given = [str(sample.labels.given_labels[row]) for row in rows]
    own = np.mean([name in key for key, name in zip(keys, given, strict=True)])
    other = np.mean([name in key for key, name in zip(keys, rng.permutation(given).tolist(), strict=True)])
    if own > other + TELLING:
        place = next(place for place, key in enumerate(keys) if given[place] in key)
        raise RunError(
            f"the keys of this run contain the given labels ({keys[place]!r}), so a sheet would not be blind; expected "
            f"keys without them; answer on the page instead: `pencil audit {sample.run}`."
        )


def read_sheet(path: Path, sample: AuditSample) -> Iterator[tuple[int, str | None, str]]:
    """Yield the answers of a CSV file with the columns key and label: place in the sample, class and kind.

    Empty cells are ignored. A column ``split`` is needed only if two rows have the same key.

    Raises
    ------
    RunError
        If the file is not such a table, or a line names a row or a class that is not in the sample.
    """
    places = _places(sample)
    for number, (key, split, label) in _lines(path):
        if not label:
            continue
        wanted = (key, split) if split else key
        at = places.get(wanted)
        if at is None:
            raise RunError(
                f"line {number} of {path} names {key!r}, which does not identify one row of the sample; expected the "
                "keys that "
                f"`pencil audit {sample.run} --sheet` wrote; fix or remove the line."
            )
        if label in sample.labels.classes:
            yield at, label, ""
        elif label.lower() in WORDS:
            yield at, None, WORDS[label.lower()]
        else:
            raise RunError(
                f"line {number} of {path} says {label!r}; expected a class of the run, "
                f"{' or '.join(map(repr, WORDS))}; fix the cell."
            )


def import_sheet(blind: Blind, path: Path) -> int:
    """Save the answers of a sheet that are new or changed, and return their number."""
    new = list(read_sheet(path, blind.sample))
    standing, saved = blind.history.audited(), 0
    for at, label, kind in new:
        before = standing.get(blind.sample.where(at))
        if before is None or before.label != label or (label is None and before.decision != kind):
            blind.save(at, label, kind)
            saved += 1
    return saved


def _places(sample: AuditSample) -> dict[Where | str, int]:
    """Return the position of each row by key and split, and by key alone if it is unique."""
    found: dict[Where | str, int] = {}
    double = set()
    for at, (key, split) in enumerate(sample.all_where()):
        for name in {key, escape_formula(key)}:
            if name in found:
                double.add(name)
            found[name] = found[name, split] = at
    return {name: at for name, at in found.items() if name not in double}


def _lines(path: Path) -> Iterator[tuple[int, tuple[str, str, str]]]:
    try:
        text = read_regular(path).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise RunError(f"cannot read {path}: {reason}; expected a CSV file with the columns key and label.") from error
    first = text.partition("\n")[0]
    separator = max(",;\t", key=first.count)  # some spreadsheet programs write semicolons
    lines = csv.DictReader(io.StringIO(text), delimiter=separator)
    names = [name.strip() for name in lines.fieldnames or ()]
    if not {"key", "label"} <= set(names):
        raise RunError(f"{path} has the columns {', '.join(names) or 'none'}; expected key and label.")
    lines.fieldnames = names
    try:
        for number, line in enumerate(lines, 2):
            yield number, ((line["key"] or ""), (line.get("split") or ""), (line["label"] or "").strip())
    except csv.Error as error:
        raise RunError(f"{path} is not a CSV file: {error}; save it as CSV.") from error
