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
) -> None:
    """Export labels, the most confident changes first where only changes are asked for."""
    from pencil.errors import RunError
    from pencil.export import LABEL_FORMATS, choose_labels, save_labels, write_labels
    from pencil.runs import read_label_table

    if format not in LABEL_FORMATS:
        raise RunError(f"--format is {format!r}; expected {', '.join(LABEL_FORMATS)}.")
    if out is None and format == "parquet":
        raise RunError("Parquet cannot go to a terminal; name a file with --out.")
    chosen = choose_labels(read_label_table(run), only_changed=only_changed, min_confidence=min_confidence)
    if out is None:
        write_labels(chosen, format, sys.stdout.buffer)
    else:
        save_labels(chosen, format, out)
        typer.echo(f"{chosen.num_rows:,} labels written to {out}", err=True)
