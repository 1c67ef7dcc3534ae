"""``pencil labels``: the corrected labels of a run, for people and programs."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from pencil.cli.options import RunPath


def labels(
    run: RunPath,
    format: Annotated[str, typer.Option("--format", help="csv, jsonl or parquet.")] = "csv",
    out: Annotated[Path | None, typer.Option("--out", help="Write here instead of to stdout.")] = None,
    only_changed: Annotated[bool, typer.Option("--only-changed", help="Only rows whose label was changed.")] = False,
    min_confidence: Annotated[float, typer.Option("--min-confidence", help="Only rows at least this sure.")] = 0.0,
    entries: Annotated[
        bool, typer.Option("--entries", help="Several classes at once: a line for each class of each row.")
    ] = False,
) -> None:
    """Export labels, the most confident changes first where only changes are asked for.

    With --entries the lines have the columns key, split, class, given (a probability, empty where unknown), corrected
    (0 or 1), confidence and changed, and the other options choose among those lines.
    """
    from pencil.errors import RunError
    from pencil.export import LABEL_FORMATS, choose_entries, choose_labels, save_labels, write_labels
    from pencil.runs import read_label_table

    if format not in LABEL_FORMATS:
        raise RunError(f"--format is {format!r}; expected {', '.join(LABEL_FORMATS)}.")
    if out is None and format == "parquet":
        raise RunError("Parquet cannot go to a terminal; name a file with --out.")
    choose = choose_entries if entries else choose_labels
    chosen = choose(read_label_table(run), only_changed=only_changed, min_confidence=min_confidence)
    if out is None:
        write_labels(chosen, format, sys.stdout.buffer)
    else:
        typer.echo(f"{save_labels(chosen, format, out):,} labels written to {out}", err=True)
