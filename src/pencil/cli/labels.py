"""``pencil labels``: the corrected labels of a run, for people and programs. Most formats do not need torch."""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pencil.cli.options import AsJson, AsTrained, RunPath, read_run
from pencil.cli.output import binary_output, echo
from pencil.errors import RunError
from pencil.terminal import agreed, counted

if TYPE_CHECKING:
    from pencil.decisions import Decision
    from pencil.runs.directory import RunReader
    from pencil.runs.label_table import LabelTable

TEXT = ("csv", "jsonl", "parquet")
TOOLS = ("labelstudio", "fiftyone", "cvat")
FORMATS = (*TEXT, "table", "cleanlab", "huggingface", "imagefolder", *TOOLS)
ORDERS = ("issues", "data")
FOLDERS = ("huggingface", "imagefolder", *TOOLS)
BY_ISSUE = (*TEXT, *TOOLS)
"""Formats meant for human inspection: the most probable issues come first."""


@dataclass(frozen=True)
class _Wish:
    """The options of the command, except the selection of rows."""

    format: str
    out: Path | None
    entries: bool
    with_columns: bool
    copy: bool
    symlinks: bool
    diagnostics: Path | None
    only_changed: bool
    suspects: bool
    fix_first: bool
    without_outliers: bool

    @property
    def selections(self) -> list[str]:
        """The options that select rows and exclude each other."""
        options = {"--only-changed": self.only_changed, "--suspects": self.suspects, "--fix-first": self.fix_first}
        return [option for option, is_set in options.items() if is_set]


def labels(
    run: RunPath,
    format: Annotated[str | None, typer.Option("--format", help=f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]}.")] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Write to a new file (.csv, .jsonl or .parquet) or folder instead of stdout."),
    ] = None,
    only_changed: Annotated[bool, typer.Option("--only-changed", help="Only rows whose label was changed.")] = False,
    suspects: Annotated[
        bool, typer.Option("--suspects", help="Only rows worth a look: the changed ones and further high issue scores.")
    ] = False,
    fix_first: Annotated[
        bool,
        typer.Option("--fix-first", help="Only rows to look at, with their kind: suspects, outliers, conflicts."),
    ] = False,
    without_outliers: Annotated[
        bool, typer.Option("--without-outliers", help="Leave out rows that belong to none of the classes.")
    ] = False,
    min_confidence: Annotated[
        float, typer.Option("--min-confidence", help="Only rows with at least this confidence.")
    ] = 0.0,
    entries: Annotated[bool, typer.Option("--entries", help="Multi-label data: one line per row and class.")] = False,
    with_columns: Annotated[
        bool, typer.Option("--with-columns", help="Include all columns of the training table.")
    ] = False,
    reviewed: Annotated[bool, typer.Option("--reviewed", help="Merge in the decisions of `pencil review`.")] = False,
    order: Annotated[
        str | None,
        typer.Option(
            "--order",
            help="issues (most probable first, the default) or data (the default with --with-columns).",
        ),
    ] = None,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Write files even if the run's verdict is not reliable.")
    ] = False,
    copy: Annotated[bool, typer.Option("--copy", help="imagefolder: copy files instead of hard-linking them.")] = False,
    symlinks: Annotated[
        bool, typer.Option("--symlinks", help="imagefolder: use symbolic links instead of hard links.")
    ] = False,
    diagnostics: Annotated[
        Path | None,
        typer.Option(
            "--diagnostics",
            metavar="FILE",
            help="table: also write all label columns to a new .csv, .jsonl or .parquet file.",
        ),
    ] = None,
    as_trained: AsTrained = False,
    as_json: AsJson = False,
) -> None:
    """Export labels, the most probable label errors first.

    Each row has an issue score: the probability that its given label is wrong. The formats cleanlab, huggingface and
    imagefolder keep the order of the data. --json means --format jsonl.

    table is a copy of the CSV, TSV or Parquet training file in which only the label column is corrected;
    --min-confidence selects the corrections, and --diagnostics writes the label columns to a second file.

    With --entries the columns are key, split, class, given (a probability, empty if unknown), corrected (0 or 1),
    confidence, changed, issue_score and suspect; the other options select among these lines.

    --with-columns keeps the columns and rows of your table in their order, and its delimiter for CSV. The labels are
    additional columns, empty for rows outside the run. --only-changed, --suspects, --fix-first, --without-outliers and
    --min-confidence select among the rows of the run.

    --without-outliers leaves out the rows that are unlike every class, except those that a person has labelled
    (--reviewed).

    --reviewed leaves out the rows that a person has removed; where all rows of a table are kept, their label is empty.

    In CSV, text that a spreadsheet program would run as a formula is prefixed with a quote (').

    cleanlab is a .csv or .npz file with cleanlab's columns, huggingface a folder for datasets.load_from_disk,
    imagefolder a folder of images per class, ready for training.

    labelstudio, fiftyone and cvat are folders for these tools, with the corrected label as prediction;
    `pencil review RUN --import FILE` reads the answers.

    If the run's verdict is not reliable, files are written only after a person has reviewed every label that the run
    changed (--reviewed), or with --anyway. Lists of suspects are always written: they are meant to be looked at.
    """
    import numpy as np

    from pencil.export.labels import select_entries, select_labels, split_removed

    order = order or ("data" if with_columns else "issues")
    if order not in ORDERS:
        raise RunError(f"--order is {order!r}; expected {' or '.join(ORDERS)}.")
    if not 0 <= min_confidence <= 1:
        raise RunError(f"--min-confidence is {min_confidence:g}; expected a probability from 0 to 1, such as 0.9.")
    format = _format(format, as_json, out, with_columns)
    wish = _Wish(
        format,
        out,
        entries,
        with_columns,
        copy,
        symlinks,
        diagnostics,
        only_changed,
        suspects,
        fix_first,
        without_outliers,
    )
    _refuse(wish)
    reader = read_run(run, as_trained=as_trained)
    decisions = _decisions(run) if reviewed else []
    table = reader.labels.merge_decisions(decisions) if reviewed else reader.labels
    table, removed = split_removed(table, decisions)
    by_issue = order == "issues" and format in BY_ISSUE
    table = table.take(np.flatnonzero(~table.outlier)) if without_outliers else table
    chosen = select_labels(
        table,
        only_changed=only_changed,
        suspects=suspects,
        fix_first=fix_first,
        min_confidence=min_confidence,
        by_issue=by_issue,
    )
    if not anyway:
        to_look_at = suspects and format in BY_ISSUE  # a list for people, not labels to train on
        refuse = out is not None and not to_look_at
        _mind_verdict(reader, chosen, decisions if reviewed else None, refuse=refuse, fills=format != "table")
    all_rows = not wish.selections and not without_outliers and min_confidence <= 0
    if entries:
        lines = select_entries(table, only_changed=only_changed, suspects=suspects, min_confidence=min_confidence)
        _write(lines, format) if out is None else _save(lines, format, out)
    elif with_columns:
        _write_joined(reader, chosen, wish, keep_order=by_issue, all_rows=all_rows, removed=len(removed or ()))
    elif out is None:
        _write(chosen, format)
    elif format == "table":
        _repair(reader, chosen, wish, out, removed)
    else:
        _save_labels(reader, chosen, wish, out)
    if removed is not None:
        kept = format == "table" or (with_columns and all_rows)
        done = "without a label" if kept else "left out"
        echo(
            f"{counted(len(removed), 'row')} {done}, because a person removed {agreed(len(removed), 'it', 'them')}",
            err=True,
        )


def _format(format: str | None, as_json: bool, out: Path | None, with_columns: bool) -> str:
    """Return the format: the one that was asked for, else the one that the name of the file ends in, else CSV."""
    if as_json and format not in (None, "jsonl"):
        raise RunError(f"--json means --format jsonl, but --format is {format!r}; remove one of them.")
    format = "jsonl" if as_json else format
    ending = "" if out is None else out.suffix.lower()[1:]
    if format is None and ending not in ("", "txt", *TEXT, *(["tsv"] if with_columns else [])):
        raise RunError(
            f"--out is {out}; expected a name that ends in .csv, .jsonl or .parquet; rename it, or choose a --format "
            f"({', '.join(FORMATS)})."
        )
    if format in TEXT and ending in TEXT and format != ending:
        asked = "--json" if as_json else "--format"
        raise RunError(f"--out is {out}; expected a name that ends in .{format}; remove {asked}, or change the name.")
    return format or (ending if ending in TEXT else "csv")


def _refuse(wish: _Wish) -> None:
    """Raise for options that are mutually exclusive."""
    for wrong, message in _mistakes(wish):
        if wrong:
            raise RunError(message)


def _mistakes(wish: _Wish) -> Iterator[tuple[bool, str]]:
    """Yield whether each error applies, and its message."""
    format, texts = wish.format, ", ".join(TEXT)
    yield format not in FORMATS, f"--format is {format!r}; expected {', '.join(FORMATS)}."
    if wish.out is None:
        yield format in FOLDERS, f"--format {format} writes a folder; name a new one with --out FOLDER."
        yield format == "parquet", "--format parquet cannot be written to stdout; name a file with --out FILE."
        yield (
            format == "table",
            "--format table writes a corrected copy of the training table; name it with --out FILE.",
        )
    for option, is_set in (("--entries", wish.entries), ("--with-columns", wish.with_columns)):
        yield (
            is_set and format not in TEXT,
            f"{option} only works with the formats {texts}; remove it, or choose one of them.",
        )
    both = wish.entries and wish.with_columns
    yield both, "--with-columns writes rows, --entries writes one line per class; remove one of them."
    for option, is_set in (("--copy", wish.copy), ("--symlinks", wish.symlinks)):
        yield is_set and format != "imagefolder", f"{option} only works with --format imagefolder; remove it."
    yield wish.copy and wish.symlinks, "--copy and --symlinks are mutually exclusive; remove one of them."
    selections = wish.selections
    if len(selections) > 1:
        yield True, f"{selections[-1]} includes every row of {selections[0]}; remove one of them."
    for option in (*selections, *(["--without-outliers"] if wish.without_outliers else [])):
        yield (
            format == "table",
            f"--format table always contains every row; remove {option}, or choose --format csv --with-columns.",
        )
    if wish.diagnostics is not None:
        ending = wish.diagnostics.suffix.lower()[1:]
        yield (
            format != "table",
            f"--diagnostics only works with --format table; --format {format} already contains them; remove it.",
        )
        yield ending not in TEXT, f"--diagnostics is {wish.diagnostics}; expected a .csv, .jsonl or .parquet file."


def _decisions(run: Path) -> "list[Decision]":
    from pencil.decisions import REVIEWS, read_reviews

    return read_reviews(run / REVIEWS)


def _mind_verdict(
    reader: "RunReader", chosen: "LabelTable", decisions: "list[Decision] | None", *, refuse: bool, fills: bool
) -> None:
    """Refuse to write labels of an unreliable run, or warn about them, unless a person has reviewed them.

    ``decisions`` were merged into the labels; they are None without ``--reviewed``.
    ``refuse`` says whether they go to a file that could be taken for corrected labels, ``fills`` whether rows without a
    given label get one there.
    """
    level, reasons = reader.verdict or ("reliable", [])
    if level == "reliable":
        return
    from pencil.export.labels import count_filled, count_unseen

    looked_at = [one.where for one in decisions or () if not one.entry]
    unseen, filled = count_unseen(chosen, looked_at), count_filled(chosen, looked_at)
    seen = f"the verdict of this run is {level!r}: {'; '.join(reasons)}"
    if not unseen and (decisions or refuse):
        if filled and fills:
            rows = f"{counted(filled, 'row')} without a given label {agreed(filled, 'has', 'have')} a predicted one"
            echo(f"warning: {seen}; {rows} that nobody has reviewed.", err=True)
        return
    run = shlex.quote(str(reader.path))
    are = agreed(unseen, "is", "are")
    expected = (
        f"{unseen:,} of its proposed labels {are} not reviewed; expected a reliable run, or a decision about each"
    )
    added = " and add --reviewed" if decisions is None else ""
    remedy = f"review its labels with `pencil review {run}`{added}, or measure their accuracy with `pencil audit {run}`"
    if refuse:
        raise RunError(f"{seen}; {expected}; {remedy}, or add --anyway.")
    echo(f"warning: {seen}; {remedy}.", err=True)


def _write_joined(
    reader: "RunReader", chosen: "LabelTable", wish: _Wish, *, keep_order: bool, all_rows: bool, removed: int
) -> None:
    """Write labels with the columns of their table, and report how many of its rows are not part of the run."""
    from pencil.export import save_labels, write_labels
    from pencil.export.table_columns import REMEDY, with_columns
    from pencil.export.trained_table import TrainedTable

    own = TrainedTable.open(reader.recipe().data, REMEDY)
    joined = with_columns(chosen, own, keep_order=keep_order, all_rows=all_rows)
    delimiter = "," if own.dialect is None else own.dialect.delimiter
    if wish.out is None:
        rows = write_labels(joined, wish.format, binary_output(), delimiter)
    else:
        rows = save_labels(joined, wish.format, wish.out, delimiter)
        echo(f"{counted(rows, 'row' if rows > len(chosen) else 'label')} written to {wish.out}", err=True)
    others = rows - len(chosen) - (removed if all_rows else 0)
    if others:
        are, cells = ("is", "its") if others == 1 else ("are", "their")
        echo(
            f"{others:,} of the {rows:,} rows {are} not part of the run (test split, skipped as bad, or not selected "
            f"by data.rows); {cells} label cells are empty",
            err=True,
        )


def _write(chosen: Any, format: str) -> None:
    from pencil.export import cleanlab_issues, write_labels

    if format == "cleanlab":
        chosen, format = cleanlab_issues(chosen), "csv"
    write_labels(chosen, format, binary_output())


def _save_labels(reader: "RunReader", chosen: "LabelTable", wish: _Wish, out: Path) -> None:
    if wish.format == "imagefolder":
        _sort(reader, chosen, wish, out)
    elif wish.format in TOOLS:
        _save_for(wish.format, reader, chosen, out)
    else:
        _save(chosen, wish.format, out)


def _save(chosen: Any, format: str, out: Path) -> None:
    from pencil.export import save_cleanlab, save_hugging_face, save_labels

    if format == "cleanlab":
        rows = save_cleanlab(chosen, out)
    else:
        rows = save_hugging_face(chosen, out) if format == "huggingface" else save_labels(chosen, format, out)
    echo(f"{counted(rows, 'label')} written to {out}", err=True)


def _repair(reader: "RunReader", chosen: "LabelTable", wish: _Wish, out: Path, removed: "LabelTable | None") -> None:
    from pencil.export import save_labels
    from pencil.export.repaired_table import save_repaired

    if wish.diagnostics is not None and (wish.diagnostics.exists() or wish.diagnostics == out):
        raise RunError(f"cannot write {wish.diagnostics}: it already exists; name a new file.")
    done = save_repaired(chosen, reader.recipe().data, out, removed)
    emptied = f" and {done.emptied:,} emptied" if done.emptied else ""
    echo(f"{counted(done.corrected, 'label')} corrected{emptied} in {out}; everything else is unchanged", err=True)
    if done.without_label:
        echo(f"{counted(done.without_label, 'row')} without a label left unchanged", err=True)
    if wish.diagnostics is not None:
        rows = save_labels(chosen, wish.diagnostics.suffix.lower()[1:], wish.diagnostics)
        echo(f"{counted(rows, 'label')} written to {wish.diagnostics}", err=True)


def _sort(reader: "RunReader", chosen: "LabelTable", wish: _Wish, out: Path) -> None:
    from pencil.export.image_folder import Way, sort_images

    way: Way = "copy" if wish.copy else "symbolic link" if wish.symlinks else "hard link"
    done = sort_images(chosen, reader.recipe().data, out, way=way)
    for name, folder in done.renamed.items():
        echo(f"class {name!r} is in the folder {folder!r}", err=True)
    if done.without_class:
        echo(f"{counted(done.without_class, 'image')} without a class skipped", err=True)
    kinds = {way: done.files - done.copied, **({"copy": done.copied} if done.copied else {})}
    made = ", ".join(
        counted(count, kind, "copies" if kind == "copy" else None) for kind, count in kinds.items() if count
    )
    echo(f"{counted(done.files, 'image')} written to {out}" + (f" ({made})" if made else ""), err=True)
    if done.root is not None:
        words = shlex.join([str(out), "--set", f"data.root={done.root}"])
        echo(f"the links lead out of the folder; train on it with `pencil train {words}`", err=True)


def _save_for(tool: str, reader: "RunReader", chosen: "LabelTable", out: Path) -> None:
    from pencil.export.tools import save_for

    left_to_do = save_for(tool, reader, chosen, out)
    echo(f"{counted(len(chosen), 'label')} written to {out}" + (f"; {left_to_do}" if left_to_do else ""), err=True)
