"""``pencil labels``: the corrected labels of a run, for people and programs. Most formats need no torch."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pencil.cli.options import RunPath
from pencil.cli.output import binary_output, echo
from pencil.errors import RunError

if TYPE_CHECKING:
    from pencil.runs.directory import RunReader
    from pencil.runs.label_table import LabelTable

TEXT = ("csv", "jsonl", "parquet")
TOOLS = ("labelstudio", "fiftyone", "cvat", "coco", "argilla")
FORMATS = (*TEXT, "cleanlab", "huggingface", "imagefolder", *TOOLS)
ORDERS = ("issues", "data")
FOLDERS = ("huggingface", "imagefolder", *TOOLS)
BY_ISSUE = (*TEXT, *TOOLS)
"""Formats whose rows people go through: the most probable issue comes first."""


def labels(
    run: RunPath,
    format: Annotated[str, typer.Option("--format", help=f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]}.")] = "csv",
    out: Annotated[Path | None, typer.Option("--out", help="A new file or folder to write instead of stdout.")] = None,
    only_changed: Annotated[bool, typer.Option("--only-changed", help="Only rows whose label was changed.")] = False,
    min_confidence: Annotated[float, typer.Option("--min-confidence", help="Only rows at least this confident.")] = 0.0,
    entries: Annotated[
        bool, typer.Option("--entries", help="Multi-label data: a line for each class of each row.")
    ] = False,
    with_columns: Annotated[
        bool, typer.Option("--with-columns", help="With every column of the table that was trained on.")
    ] = False,
    reviewed: Annotated[
        bool, typer.Option("--reviewed", help="With the decisions of `pencil review` merged in.")
    ] = False,
    order: Annotated[
        str | None,
        typer.Option(
            "--order",
            help="issues (most probable first; the default), or data (the default of --with-columns).",
        ),
    ] = None,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Write files even if the verdict of the run is not reliable.")
    ] = False,
    copy: Annotated[bool, typer.Option("--copy", help="imagefolder: copy the images instead of linking them.")] = False,
) -> None:
    """Export labels, those that are most probably wrong first.

    Each row has an issue score, the probability that its given label is wrong. The formats cleanlab, huggingface and
    imagefolder keep the order of the data.

    With --entries the lines have the columns key, split, class, given (a probability, empty where unknown), corrected
    (0 or 1), confidence and changed, and the other options choose among those lines.

    With --with-columns you get your table back: its columns and rows in their order, and in CSV with its delimiter;
    the labels are further columns, empty for rows that are not from the run. --only-changed and --min-confidence
    choose among the rows of the run.

    In CSV a text that a spreadsheet program would take for a formula has a quote (') before it.

    cleanlab is a .csv or .npz file with cleanlab's columns, huggingface a folder for datasets.load_from_disk,
    imagefolder a folder for each class with links to its images.

    labelstudio, fiftyone, cvat, coco and argilla are folders for these tools, with the corrected label as prediction;
    `pencil review RUN --import FILE` reads the answers.
    """
    from pencil.export.labels import select_entries, select_labels
    from pencil.runs.directory import RunReader

    order = order or ("data" if with_columns else "issues")
    if order not in ORDERS:
        raise RunError(f"--order is {order!r}; expected {' or '.join(ORDERS)}.")
    if not 0 <= min_confidence <= 1:
        raise RunError(f"--min-confidence is {min_confidence:g}; expected a probability from 0 to 1, such as 0.9.")
    _refuse(format, out, entries=entries, with_columns=with_columns, copy=copy)
    reader = RunReader(run)
    table = reader.labels
    if not anyway:
        _warn_of_verdict(reader, refuse=out is not None)
    if reviewed:
        from pencil.decisions import REVIEWS, read_reviews

        table = table.merge_decisions(read_reviews(run / REVIEWS))
    by_issue = order == "issues" and format in BY_ISSUE
    chosen: Any
    if entries:
        chosen = select_entries(table, only_changed=only_changed, min_confidence=min_confidence)
    else:
        chosen = select_labels(table, only_changed=only_changed, min_confidence=min_confidence, by_issue=by_issue)
    if with_columns:
        all_rows = not only_changed and min_confidence <= 0
        _write_joined(reader, chosen, format, out, keep_order=by_issue, all_rows=all_rows)
    elif out is None:
        _write(chosen, format)
    elif format == "imagefolder":
        _sort(reader, chosen, out, copy)
    elif format in TOOLS:
        _save_for(format, reader, chosen, out)
    else:
        echo(f"{_save(chosen, format, out):,} labels written to {out}", err=True)


def _refuse(format: str, out: Path | None, *, entries: bool, with_columns: bool, copy: bool) -> None:
    """Refuse options that exclude each other."""
    if format not in FORMATS:
        raise RunError(f"--format is {format!r}; expected {', '.join(FORMATS)}.")
    if out is None and format in FOLDERS:
        raise RunError(f"--format {format} makes a folder; name a new one with --out.")
    if out is None and format == "parquet":
        raise RunError("Parquet cannot go to a terminal; name a file with --out.")
    for option, is_set in (("--entries", entries), ("--with-columns", with_columns)):
        if is_set and format not in TEXT:
            raise RunError(f"{option} is for the formats {', '.join(TEXT)}; leave it out, or choose one of them.")
    if entries and with_columns:
        raise RunError("--with-columns is for rows, --entries for lines of single classes; leave one of them out.")
    if copy and format != "imagefolder":
        raise RunError("--copy is for --format imagefolder; leave it out.")


def _warn_of_verdict(reader: "RunReader", *, refuse: bool) -> None:
    """Corrected labels that may be worse than the given ones are written to files only on request."""
    level, reasons = reader.verdict or ("reliable", [])
    if level == "reliable":
        return
    seen = f"the verdict of this run is {level!r}: {'; '.join(reasons)}"
    run = shlex.quote(str(reader.path))
    audit = "" if reader.labels.multilabel else f", or measure them with `pencil audit {run}`"
    remedy = f"look at its labels with `pencil review {run}`{audit}"
    if refuse:
        raise RunError(f"{seen}; expected a reliable run for an export; {remedy}, or add --anyway.")
    echo(f"warning: {seen}; {remedy}.", err=True)


def _write_joined(
    reader: "RunReader", chosen: "LabelTable", format: str, out: Path | None, *, keep_order: bool, all_rows: bool
) -> None:
    """Write labels with the columns of their table, and say how many of its rows have none."""
    from pencil.export import save_labels, write_labels
    from pencil.export.table_columns import table_dialect, with_columns

    settings = reader.recipe().data
    joined = with_columns(chosen, settings, keep_order=keep_order, all_rows=all_rows)
    dialect = table_dialect(settings)
    delimiter = "," if dialect is None else dialect.delimiter
    if out is None:
        rows = write_labels(joined, format, binary_output(), delimiter)
    else:
        rows = save_labels(joined, format, out, delimiter)
        echo(f"{rows:,} {'rows' if rows > len(chosen) else 'labels'} written to {out}", err=True)
    if rows > len(chosen):
        echo(
            f"{rows - len(chosen):,} of the {rows:,} rows are not from the run (of the test split, left out as bad, or "
            "not chosen by data.rows); their cells of labels are empty",
            err=True,
        )


def _write(chosen: Any, format: str) -> None:
    from pencil.export import cleanlab_issues, write_labels

    if format == "cleanlab":
        chosen, format = cleanlab_issues(chosen), "csv"
    write_labels(chosen, format, binary_output())


def _save(chosen: Any, format: str, out: Path) -> int:
    from pencil.export import save_cleanlab, save_hugging_face, save_labels

    if format == "cleanlab":
        return save_cleanlab(chosen, out)
    return save_hugging_face(chosen, out) if format == "huggingface" else save_labels(chosen, format, out)


def _sort(reader: "RunReader", chosen: "LabelTable", out: Path, copy: bool) -> None:
    from pencil.export.image_folder import sort_images

    done = sort_images(chosen, reader.recipe().data, out, copy=copy)
    for name, folder in done.renamed.items():
        echo(f"class {name!r} is in the folder {folder!r}", err=True)
    if done.without_class:
        echo(f"{done.without_class:,} images without a class are left out", err=True)
    echo(f"{done.files:,} {'copies' if copy else 'links'} written to {out}", err=True)


def _save_for(tool: str, reader: "RunReader", chosen: "LabelTable", out: Path) -> None:
    from pencil.export.tools import save_for

    left_to_do = save_for(tool, reader, chosen, out)
    echo(f"{len(chosen):,} labels written to {out}" + (f"; {left_to_do}" if left_to_do else ""), err=True)
