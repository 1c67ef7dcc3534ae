"""Results on stdout: tables, and the summary of a run wrapped to the terminal."""

import os
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console
from rich.table import Table

from pencil.cli.output import is_terminal
from pencil.terminal import counted, percent, visible

if TYPE_CHECKING:
    from pencil.runs.summary import Summary

NAMES = 12
"""Width of the names at the start of each line."""
PIPE = 200
"""Width of a table that is written to a file or a pipe."""
WIDEST = 100
"""Maximum width of text, even on a wider terminal."""


class _VisibleTable(Table):
    """A table that makes control characters in its cells visible."""

    def add_row(self, *cells: Any, **options: Any) -> None:
        super().add_row(*(visible(cell) if isinstance(cell, str) else cell for cell in cells), **options)


def table(*columns: str, title: str | None = None, left: int = 1) -> Table:
    """Return an empty table; the first ``left`` columns are text, the others are numbers."""
    made = _VisibleTable(
        title=None if title is None else visible(title),
        title_justify="left",
        box=None,
        pad_edge=False,
        header_style="bold",
    )
    for number, column in enumerate(columns):
        overflow: Literal["fold", "ellipsis"] = "fold" if number == 0 else "ellipsis"  # names stay complete
        made.add_column(visible(column), justify="left" if number < left else "right", overflow=overflow)
    return made


class _Console(Console):
    """A console that leaves the handling of a closed pipe to the command."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def say(*parts: Any) -> None:
    """Print text and tables to stdout."""
    width = None if is_terminal() else PIPE  # rich detects the width of a terminal
    console = _Console(highlight=False, soft_wrap=True, markup=False, width=width)
    for part in parts:
        console.print(visible(part) if isinstance(part, str) else part)


def show_results(runs: "Sequence[tuple[Path | None, Summary]]", title: str | None = None) -> None:
    """Print the results of runs: a table if there are several, and the full summary of the last one."""
    path, summary = runs[-1]
    if len(runs) > 1:
        say(_comparison([one for _, one in runs], title), "")
    for name, text in result_lines(summary):
        show_line(name, text)
    if path is None:
        return
    from pencil.runs.advice import describe_doubt, next_commands

    say(f"{'run':{NAMES}}{path}", f"{'report':{NAMES}}{path / 'report.html'}", "")
    doubt = describe_doubt(summary)
    if doubt:
        show_line("next", f"{doubt}:")
    for number, (_, command) in enumerate(next_commands(summary, path, program())):
        say(f"{'' if number or doubt else 'next':{NAMES}}{command}")  # never wrapped, so that it can be copied


def _comparison(summaries: "Sequence[Summary]", title: str | None) -> Table:
    score = summaries[0].data.wording.score_name
    shown = table("method", f"test {score}", "labels changed", "right before", "right after", "s", title=title)
    for summary in summaries:
        labels = summary.labels
        shown.add_row(
            summary.method,
            percent(None if summary.test is None else summary.test.last),
            f"{labels.total_changed:,} of {labels.total:,}",
            percent(labels.correct_before),
            percent(labels.correct_after),
            f"{summary.seconds:.0f}",
        )
    return shown


def show_line(name: str, text: str) -> None:
    """Print a name and its text, wrapped to the width of the terminal and indented."""
    width = min(WIDEST, Console().width)
    parts = textwrap.wrap(visible(text), max(20, width - NAMES), break_long_words=False, break_on_hyphens=False)
    for number, part in enumerate(parts or [""]):
        say(f"{'' if number else name:{NAMES}}{part}")


def result_lines(summary: "Summary") -> Iterator[tuple[str, str]]:
    """Yield the summary of a run: verdict, noise and changes, labels to review, score, chosen settings."""
    from pencil.runs.advice import describe_lists, explain_difference, wrong_labels

    if summary.verdict is not None:
        yield "verdict", summary.verdict.level
        yield from (("", reason) for reason in summary.verdict.reasons)
    if summary.noise_rate is not None:
        yield "wrong", wrong_labels(summary)
    if summary.data.multilabel:
        yield "changed", _changed(summary)
    else:
        yield "labels", f"{describe_lists(summary)}, of {summary.labels.total:,} labels"
    why = explain_difference(summary, summary.labels.total_changed / max(1, summary.labels.total))
    if why:
        yield "", why
    if summary.data.multilabel:
        yield "look at", describe_lists(summary)
    rows = summary.data.rows.get("unlabelled", 0)
    if rows:
        yield "unlabelled", f"{counted(rows, 'row')} without a given label {'was' if rows == 1 else 'were'} labelled"
    if summary.data.unread:
        yield "unread", summary.data.unread_words
    yield from _scores(summary)
    for number, choice in enumerate(summary.findings.get("choices", ())):
        yield "" if number else "chosen", choice


def _changed(summary: "Summary") -> str:
    labels, what = summary.labels, summary.data.wording.labels
    parts = f" ({labels.changed:,} training, {labels.held_out_changed:,} held out)" if labels.held_out else ""
    fraction = percent(labels.total_changed / max(1, labels.total))
    return f"{labels.total_changed:,} of {labels.total:,} {what}{parts}: {fraction}"


def _scores(summary: "Summary") -> Iterator[tuple[str, str]]:
    words = summary.data.wording
    if summary.test is not None:
        length = f"{counted(summary.epochs, 'epoch')} in {summary.seconds:.0f} s"
        yield "network", f"{percent(summary.test.last)} test {words.score_name} after {length}"
    elif summary.validation is not None:
        score = f"{percent(summary.validation.last)} {words.agreement} held-out labels, which may be wrong"
        yield "network", f"{score}; {counted(summary.epochs, 'epoch')} in {summary.seconds:.0f} s"
    labels = summary.labels
    if labels.correct_after is not None:
        before, after = percent(labels.correct_before), percent(labels.correct_after)
        yield "right", f"{before} of the training labels before, {after} now (clean labels are known)"


def program() -> str:
    """Return the command that runs pencil: its name if it is on PATH, else the path or module that was used."""
    if shutil.which("pencil"):
        return "pencil"
    used = Path(sys.argv[0])
    if used.name == "__main__.py":
        return f"{Path(sys.executable).name} -m pencil"
    return os.path.relpath(used)
