"""``pencil report``: a run, or several side by side, as one HTML page to share."""

from pathlib import Path
from typing import Annotated

import typer

from pencil.cli.options import AsTrained, read_run
from pencil.cli.output import echo

COMPARISON = Path("comparison.html")


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="A run directory; several are compared.")],
    out: Annotated[
        Path | None, typer.Option("--out", help=f"Write here instead of to RUN/report.html ({COMPARISON} for several).")
    ] = None,
    without_data: Annotated[
        bool, typer.Option("--without-data", help="Do not load the data: show keys and labels instead of images.")
    ] = False,
    as_trained: AsTrained = False,
) -> None:
    """Write the results as one self-contained HTML file."""
    from pencil.report import write_comparison, write_report

    several = len(runs) > 1
    for run in runs:
        read_run(run, as_trained=as_trained, finished=several, named=several)  # one run may have failed
    if several:
        made = write_comparison(runs, COMPARISON if out is None else out, as_trained=as_trained)
    else:
        made = write_report(runs[0], out, with_data=not without_data, as_trained=as_trained)
    echo(made)
