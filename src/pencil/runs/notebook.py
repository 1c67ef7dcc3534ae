"""A run in a notebook: one line of text, and a small HTML page with the verdict, a few numbers and the first rows to
fix.

The page has no scripts and loads no other files. Names, keys and cells may be untrusted, so all are escaped.
"""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from pencil.data.examples import Splits
from pencil.decisions import Where
from pencil.runs.label_table import LabelTable
from pencil.runs.pictures import Shown, find_shown
from pencil.runs.summary import Score, Summary
from pencil.terminal import shorten

FIRST = 6
"""Rows to fix on the page."""
NAME, WORDS = 40, 120
"""Maximum characters of a name, and of a row's content, on the page."""
CELL = "text-align:left;padding:2px 12px 2px 0"
COLOURS = {"reliable": "#1a7f37", "doubtful": "#9a6700"}
"""Colours of the verdict; any other verdict is red."""


def run_line(kind: str, summary: Summary, path: Path | None) -> str:
    """Return a one-line description of a run."""
    place = "" if path is None else f", {shorten(str(path), NAME)!r}"
    return f"{kind}({summary.describe()}{place})"


def show_first(labels: LabelTable, splits: Splits) -> dict[Where, Shown]:
    """Return the inputs of the first rows to fix for display, without rows that cannot be read."""
    rows = _first_rows(labels)
    return find_shown(splits, zip(rows.keys.to_pylist(), rows.splits.to_pylist(), strict=True))


def _first_rows(labels: LabelTable) -> LabelTable:
    """Return the first corrections; the first suspects if there are no corrections."""
    return (labels.to_fix() if labels.changed.any() else labels.suspects()).slice(0, FIRST)


def run_page(summary: Summary, labels: LabelTable, shown: Mapping[Where, Shown]) -> str:
    """Return the page of a run."""
    level = "no verdict" if summary.verdict is None else summary.verdict.level
    reason = "" if summary.verdict is None or not summary.verdict.reasons else summary.verdict.reasons[0]
    numbers = "".join(
        f'<td style="text-align:left;padding:0 1.5em 0 0"><b style="font-size:140%">{escape(value)}</b><br>'
        f"<small>{escape(name)}</small></td>"
        for name, value in first_numbers(summary)
    )
    rows = _first_rows(labels)
    none = "" if labels.changed.any() else "<p>No label was changed.</p>"
    listed = none + (_rows(rows, shown, "suspects" if none else "labels to fix") if len(rows) else "")
    return (
        f'<div style="max-width:60em"><p style="margin:0.3em 0"><b style="color:{COLOURS.get(level, "#cf222e")}">'
        f"{escape(level)}</b> <span>{escape(shorten(reason, 2 * WORDS))}</span></p>"
        f"<table><tr>{numbers}</tr></table>{listed}</div>"
    )


def table_page(labels: LabelTable) -> str:
    """Return the page of a label table: its first rows."""
    return f"<p>{escape(repr(labels))}</p>{_rows(labels.slice(0, FIRST), {}, 'rows') if len(labels) else ''}"


def first_numbers(summary: Summary) -> list[tuple[str, str]]:
    """Return the names and values of a few numbers: wrong labels, corrections, suspects and the score."""
    labels, rate = summary.labels, summary.noise_rate
    kind = summary.data.wording.score_name
    scores = ((summary.test, f"test {kind}"), (summary.validation, f"held-out {kind} (noisy labels)"))
    score = next(((name, f"{one.last:.1%}") for one, name in scores if isinstance(one, Score)), (kind, "unknown"))
    wrong = "estimated wrong" if summary.audit is None else "wrong (audited)"
    value, interval = ("unknown", "") if rate is None else str(rate).split(" (", 1)
    lists = [(f"corrections of {labels.total:,} labels", f"{labels.total_changed:,}")]
    lists.append(("suspects, worth a look", f"{labels.to_look_at:,}"))
    return [(f"{wrong}, {interval.rstrip(')')}" if interval else wrong, value), *lists, score]


def _rows(rows: LabelTable, shown: Mapping[Where, Shown], name: str) -> str:
    cells = [
        "".join(f'<td style="{CELL}">{cell}</td>' for cell in _cells(rows, row, shown)) for row in range(len(rows))
    ]
    head = "".join(f'<th style="{CELL}">{name}</th>' for name in ("row", "", "given", "corrected", "confidence"))
    lines = "".join(f"<tr>{line}</tr>" for line in cells)
    return f"<p>The first {name}:</p><table><tr>{head}</tr>{lines}</table>"


def _cells(rows: LabelTable, row: int, shown: Mapping[Where, Shown]) -> Sequence[str]:
    where = rows.keys[row].as_py(), rows.splits[row].as_py()
    names = (_label(labels[row]) for labels in (rows.given_labels, rows.corrected_labels))
    return (_text(where[0], NAME), _content(shown.get(where)), *names, f"{rows.confidence[row]:.0%}")


def _label(label: object) -> str:
    return _text(", ".join(label) if isinstance(label, (tuple, list)) else str(label or "none"), NAME)


def _content(shown: Shown | None) -> str:
    """An input as an image, as text, or as the cells of a table."""
    if shown is None:
        return ""
    if shown.picture:
        style = "image-rendering:pixelated;" if shown.coarse else ""
        return f'<img src="{escape(shown.picture)}" alt="" style="{style}height:48px;max-width:96px;margin:0">'
    cells = "; ".join(f"{cell.column}: {cell.value}" for cell in shown.cells)
    return _text(shown.words or cells, WORDS)


def _text(text: str, most: int) -> str:
    return escape(shorten(text, most))
