"""Writes the results of an audit to a finished run: ``summary.json``, ``labels.parquet`` and its digest."""

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
"""Name under which the manifest keeps the digest of the label table, or part of it, that an audit replaces."""


def write_audit(run: Path, audit: AuditSummary, confidence: np.ndarray | None) -> None:
    """Write the results of an audit; the caller holds the lock of the run.

    The manifest is written before the label table and has the digests of the old and the new table. If the process is
    killed in between, the audit can be repeated.

    Parameters
    ----------
    run : Path
        The directory of a finished run.
    audit : AuditSummary
        The results.
    confidence : ndarray or None
        The column ``audited_confidence``, one number per row; None to remove the column.

    Raises
    ------
    RunError
        If the label table was modified after the run wrote it.
    """
    reader = RunReader(run)
    summary = reader.summary.model_copy(update={"audit": audit})
    if confidence is not None or COLUMN in reader.label_names():
        _replace_labels(run, confidence)
    write_text(run / SUMMARY, summary.to_json())


def _replace_labels(run: Path, confidence: np.ndarray | None) -> None:
    """Rewrite the label table with the column, or without it if None, one part at a time."""
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
                f"{run / name} was modified: its SHA-256 differs from {MANIFEST}; restore the file from a copy, then "
                f"run `pencil audit {run} --results`."
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
    """Return the rows of a label file with the column added or removed."""
    with pq.ParquetFile(file) as stored:
        table = stored.read()
    if COLUMN in table.column_names:
        table = table.drop_columns([COLUMN])
    if confidence is None:
        return table
    rows = table[ROW].to_numpy() if ROW in table.column_names else slice(None)
    return table.append_column(COLUMN, pa.array(confidence.astype(np.float32)[rows]))
