"""Results as tables on stdout."""

import os
import shutil
import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from pencil.runs.run import Run


def table(*columns: str, title: str | None = None) -> Table:
    made = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for number, column in enumerate(columns):
        made.add_column(column, justify="left" if number == 0 else "right")
    return made


def show(*parts: Any) -> None:
    console = Console(highlight=False, soft_wrap=True, markup=False)
    for part in parts:
        console.print(part)


def percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def show_summary(runs: Sequence[Run], title: str | None = None) -> None:
    """One line per run: test accuracies (or mAP), labels, time; then where it is and how to go on."""
    score = "mAP" if runs[0].multilabel else "test"
    columns = (f"{score} best", f"{score} last", "labels changed", "right before", "right after", "s")
    shown = table("method", *columns, title=title)
    for run in runs:
        summary = run.summary
        test, labels = summary.get("test_accuracy", summary.get("test_map", {})), summary["labels"]
        shown.add_row(
            summary["method"],
            percent(test.get("best")),
            percent(test.get("last")),
            f"{labels['changed']:,} of {labels.get('entries', labels['rows']):,}",
            percent(labels.get("correct_before")),
            percent(labels.get("correct_after")),
            f"{summary['seconds']:.0f}",
        )
    show(shown)
    path, pencil, entries = runs[-1].path, command(), " --entries" if runs[-1].multilabel else ""
    if path is not None:
        show(
            f"\nrun directory    {path}",
            f"labels to fix    {pencil} labels {path} --only-changed{entries} | head",
            f"new inputs       {pencil} predict {path} DATA",
        )


def command() -> str:
    """How this user calls pencil: by name where the shell finds it, else by the path that was used."""
    return "pencil" if shutil.which("pencil") else os.path.relpath(sys.argv[0])
