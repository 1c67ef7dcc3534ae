"""The results of an audit written into a finished run: ``summary.json``, ``labels.parquet`` and its digest."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pencil.errors import RunError
from pencil.files import digest, move, read_json, refuse_links, remove, write_json, write_text
from pencil.runs.directory import RunReader
from pencil.runs.label_files import ROW
from pencil.runs.label_table import LabelTable
from pencil.runs.layout import LABELS, MANIFEST, SUMMARY, listed_files
from pencil.runs.summary import AuditSummary

COLUMN = "audited_confidence"
BEFORE = "{} before the audit"
"""Under this name the manifest has the digest of the label table, or the part of it, that an audit replaces."""


def write_audit(run: Path, audit: AuditSummary, confidence: np.ndarray | None) -> None:
    """Write what an audit found; the caller holds the lock of the run.

    The manifest is written before the label table and has the digests of both tables: a process that is killed between
    the two leaves a run whose audit can be repeated.

    Parameters
    ----------
    run : Path
        The directory of a finished run.
    audit : AuditSummary
        The results.
    confidence : ndarray or None
        The column ``audited_confidence``, one number for each row; None for no such column.

    Raises
    ------
    RunError
        If the label table is not what the run wrote.
    """
    reader = RunReader(run)
    summary = reader.summary.model_copy(update={"audit": audit})
    if confidence is not None or COLUMN in reader.label_names():
        _replace_labels(run, confidence)
    write_text(run / SUMMARY, summary.to_json())


def _replace_labels(run: Path, confidence: np.ndarray | None) -> None:
    """Write the label table again with the column, file by file where it is in parts; else without the column."""
    names = [name for name in listed_files(run) if name == LABELS or name.startswith(f"{LABELS}/")]
    for name in names:
        refuse_links((run / name).parent, run)  # before the manifest is written
    try:
        manifest = read_json(run / MANIFEST)
        seen = {name: digest(run / name) for name in names}
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise RunError(f"the run in {run} is damaged: {MANIFEST}: {reason}; restore it from a copy.") from error
    for name in names:
        known = isinstance(manifest, dict) and seen[name] in (manifest.get(name), manifest.get(BEFORE.format(name)))
        if not known:
            raise RunError(
                f"{run / name} is not what was written: its SHA-256 differs from {MANIFEST}; restore the file from a "
                "copy, then repeat the audit with --results."
            )
    waiting = {name: run / f".{Path(name).name}.audited" for name in names}
    try:
        for name, path in waiting.items():
            LabelTable(_with_column(run / name, confidence)).write(path)
        before = {BEFORE.format(name): seen[name] for name in names}
        write_json(run / MANIFEST, {**manifest, **before, **{name: digest(path) for name, path in waiting.items()}})
        for name, path in waiting.items():
            move(path, run / name)
    finally:
        for path in waiting.values():
            remove(path)


def _with_column(file: Path, confidence: np.ndarray | None) -> pa.Table:
    """Return the rows of a label file with their values of the column, or without it."""
    with pq.ParquetFile(file) as stored:
        table = stored.read()
    if COLUMN in table.column_names:
        table = table.drop_columns([COLUMN])
    if confidence is None:
        return table
    rows = table[ROW].to_numpy() if ROW in table.column_names else slice(None)
    return table.append_column(COLUMN, pa.array(confidence.astype(np.float32)[rows]))
