"""Results as tables on stdout."""

import os
import shutil
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from pencil.terminal import visible

if TYPE_CHECKING:
    from pathlib import Path

    from pencil.runs.run import Run
    from pencil.runs.summary import Summary


class _VisibleTable(Table):
    """A table in whose cells control characters are made visible."""

    def add_row(self, *cells: Any, **options: Any) -> None:
        super().add_row(*(visible(cell) if isinstance(cell, str) else cell for cell in cells), **options)


def table(*columns: str, title: str | None = None) -> Table:
    """Return an empty table; the first column is text, the others are numbers."""
    made = _VisibleTable(
        title=None if title is None else visible(title),
        title_justify="left",
        box=None,
        pad_edge=False,
        header_style="bold",
    )
    for number, column in enumerate(columns):
        made.add_column(visible(column), justify="left" if number == 0 else "right")
    return made


def show(*parts: Any) -> None:
    """Print text and tables to stdout."""
    console = Console(highlight=False, soft_wrap=True, markup=False)
    for part in parts:
        console.print(visible(part) if isinstance(part, str) else part)


def percent(fraction: float | None) -> str:
    """Return a fraction as per cent, or a dash for None."""
    return "-" if fraction is None else f"{fraction:.1%}"


def show_summary(runs: "Sequence[Run]", title: str | None = None) -> None:
    """Print one line per run (test accuracy or mAP, labels, time), then where it is and what to do next."""
    score = "mAP" if runs[0].multilabel else "test"
    columns = (f"{score} best", f"{score} last", "labels changed", "right before", "right after", "s")
    shown = table("method", *columns, title=title)
    for run in runs:
        summary = run.summary
        test, labels = summary.test, summary.labels
        shown.add_row(
            summary.method,
            percent(None if test is None else test.best),
            percent(None if test is None else test.last),
            f"{labels.changed:,} of {labels.count:,}",
            percent(labels.correct_before),
            percent(labels.correct_after),
            f"{summary.seconds:.0f}",
        )
    show(shown)
    show(*verdict_lines(runs[-1].summary), *_unlabelled(runs[-1].summary))
    path = runs[-1].path
    if path is not None:
        show(f"\nrun directory    {path}", *_next_commands(runs[-1], path))


def verdict_lines(summary: "Summary") -> list[str]:
    """Return the verdict with its reasons, the noise rate and the choices of the method."""
    lines = []
    if summary.verdict is not None:
        first, *others = summary.verdict.reasons or ("",)
        lines += [
            f"\nverdict          {summary.verdict.level}: {first}",
            *(f"                 {one}" for one in others),
        ]
    rate = summary.findings.get("noise_rate")
    if rate is not None:
        interval = f"{rate['low']:.0%} to {rate['high']:.0%} cannot be excluded"
        lines.append(f"noise rate       about {rate['estimate']:.0%} as far as this network can see; {interval}")
    choices = summary.findings.get("choices", ())
    return lines + [f"{'' if i else 'choices':16s} {choice}" for i, choice in enumerate(choices)]


def _unlabelled(summary: "Summary") -> list[str]:
    rows = summary.data.rows.get("unlabelled", 0)
    return [f"unlabelled       {rows:,} rows came without a label and have one now"] if rows else []


def _next_commands(run: "Run", path: "Path") -> list[str]:
    pencil, entries = command(), " --entries" if run.multilabel else ""
    predict = f"new inputs       {pencil} predict {path} DATA"
    verdict = run.summary.verdict
    if verdict is not None and verdict.level != "reliable":
        audit = [] if run.multilabel else [f"measure them     {pencil} audit {path}"]
        return [f"look at labels   {pencil} review {path}", *audit, predict]
    return [f"labels to fix    {pencil} labels {path} --only-changed{entries} | head", predict]


def command() -> str:
    """Return how this user calls pencil: by name if the shell finds it, else by the path that was used."""
    return "pencil" if shutil.which("pencil") else os.path.relpath(sys.argv[0])
