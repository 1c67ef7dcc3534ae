"""An audit as a spreadsheet: a CSV file without labels, whose last column is filled with answers.

Answers are the names of `Questions`, or one of their words; a class of the same name takes precedence over a word.
"""

import csv
import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from pencil.auditing.blind import Blind
from pencil.auditing.questions import Questions
from pencil.auditing.sample import AuditSample
from pencil.errors import RunError, command
from pencil.files import atomic_write, read_regular
from pencil.formulas import escape_formula

TELLING = 0.1
"""Keys reveal labels if they contain the label of their own row this much more often than the label of another row."""


def write_sheet(blind: Blind, path: Path) -> int:
    """Write the sample as a new CSV file with an empty last column, and return the number of lines.

    Raises
    ------
    RunError
        If the keys reveal the given labels, like paths in a folder per class, or the file exists.
    """
    sample, questions = blind.sample, blind.sample.questions
    refuse_telling_keys(sample)
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(questions.columns)
    for at, unit in enumerate(sample.units.tolist()):
        key, split = questions.where(unit)
        asked = questions.asked(unit) or "; ".join(questions.names[code] for code in blind.offered(at))
        lines.writerow([escape_formula(key), split, escape_formula(asked), ""])
    with atomic_write(path, new=True) as temporary:
        temporary.write_text(text.getvalue(), encoding="utf-8", newline="\n")  # a key may contain line breaks
    return len(blind)


def refuse_telling_keys(sample: AuditSample) -> None:
    """Raise :class:`RunError` if the keys of a run contain the given labels."""
    rng, questions = np.random.default_rng(0), sample.questions
    naming = sample.population[questions.naming[sample.population]]
    units = naming[rng.permutation(len(naming))[:1000]].tolist()
    if not units:
        return
    keys, given = [questions.where(unit)[0] for unit in units], [questions.given_name(unit) for unit in units]
    own = np.mean([name in key for key, name in zip(keys, given, strict=True)])
    other = np.mean([name in key for key, name in zip(keys, rng.permutation(given).tolist(), strict=True)])
    if own > other + TELLING:
        place = next(place for place, key in enumerate(keys) if given[place] in key)
        raise RunError(
            f"the keys of this run contain the given labels ({keys[place]!r}), so a sheet would not be blind; expected "
            f"keys without them; answer on the page instead: {command('audit', sample.run)}."
        )


def read_sheet(path: Path, sample: AuditSample) -> Iterator[tuple[int, int]]:
    """Yield the answers of a CSV file: place in the sample, and code.

    Empty cells are ignored. A column ``split`` is needed only if two rows have the same key.

    Raises
    ------
    RunError
        If the file is not such a table, or a line names a row or an answer that does not exist.
    """
    questions, places = sample.questions, _places(sample)
    for number, (key, split, asked, answer) in _lines(path, questions):
        if not answer:
            continue
        wanted = (key, *([split] if split else []), *([asked] if asked else []))
        at, code = places.get(wanted), questions.parse(answer)
        if at is None:
            raise RunError(
                f"line {number} of {path} names {' / '.join(wanted)!r}, which does not identify one "
                f"{questions.nouns[0]} of the sample; expected the keys that "
                f"{command('audit', sample.run, '--sheet')} wrote; fix or remove the line."
            )
        if code is None:
            raise RunError(
                f"line {number} of {path} says {answer!r}; expected {questions.expected[0]}, "
                f"{' or '.join(map(repr, questions.words))}; fix the cell."
            )
        yield at, code


def import_sheet(blind: Blind, path: Path) -> int:
    """Save the answers of a sheet that are new or changed, and return their number."""
    new = list(read_sheet(path, blind.sample))
    questions, standing, saved = blind.sample.questions, blind.history.audited(), 0
    for at, code in new:
        before = standing.get(blind.sample.where(at))
        if before is None or questions.code(before) != code:
            blind.save(at, code)
            saved += 1
    return saved


def _places(sample: AuditSample) -> dict[tuple[str, ...], int]:
    """Return the position of each unit by its name, and by its name without the split if that is unique."""
    found: dict[tuple[str, ...], int] = {}
    double = set()
    for at, (key, split, *entry) in enumerate(sample.all_where()):
        for spelled in {(key, *entry), tuple(map(escape_formula, (key, *entry)))}:
            name, short = (spelled[0], split, *spelled[1:]), spelled
            if short in found:
                double.add(short)
            found[short] = found[name] = at
    return {name: at for name, at in found.items() if name not in double}


def _lines(path: Path, questions: Questions) -> Iterator[tuple[int, tuple[str, str, str, str]]]:
    """Yield the number of each line, and its key, split, class that is asked about (if there is one) and answer."""
    answer = questions.columns[-1]
    needed = ("key", *(["class"] if "class" in questions.columns else []), answer)
    expected = f"{', '.join(needed[:-1])} and {answer}"
    try:
        text = read_regular(path).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise RunError(f"cannot read {path}: {reason}; expected a CSV file with the columns {expected}.") from error
    if "\n" not in text:  # Excel's "CSV (Macintosh)" ends lines with CR
        text = text.replace("\r", "\n")
    first = text.partition("\n")[0]
    separator = max(",;\t", key=first.count)  # some spreadsheet programs write semicolons
    lines = csv.DictReader(io.StringIO(text), delimiter=separator)
    try:
        names = [name.strip() for name in lines.fieldnames or ()]
        if not set(needed) <= set(names):
            raise RunError(f"{path} has the columns {', '.join(names)[:200] or 'none'}; expected {expected}.")
        lines.fieldnames = names
        for number, line in enumerate(lines, 2):
            asked = (line["class"] or "") if "class" in needed else ""
            yield number, ((line["key"] or ""), (line.get("split") or ""), asked, (line[answer] or "").strip())
    except csv.Error as error:
        raise RunError(f"{path} is not a CSV file: {error}; save it as CSV.") from error
