"""The results of an audit written into a finished run: ``summary.json``, ``labels.parquet`` and its digest."""

from pathlib import Path

import numpy as np
import pyarrow as pa

from pencil.errors import RunError
from pencil.files import digest, read_json, write_json, write_text
from pencil.runs.directory import RunReader
from pencil.runs.label_table import LabelTable
from pencil.runs.layout import LABELS, MANIFEST, SUMMARY
from pencil.runs.summary import AuditSummary

COLUMN = "audited_confidence"
BEFORE = f"{LABELS} before the audit"
"""Under this name the manifest has the digest of the label table that an audit replaces."""


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
    table = reader.labels.table
    if confidence is not None or COLUMN in table.column_names:
        _replace_labels(run, table, confidence)
    write_text(run / SUMMARY, summary.to_json())


def _replace_labels(run: Path, table: pa.Table, confidence: np.ndarray | None) -> None:
    try:
        manifest = read_json(run / MANIFEST)
        seen = digest(run / LABELS)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise RunError(f"the run in {run} is damaged: {MANIFEST}: {reason}; restore it from a copy.") from error
    if not isinstance(manifest, dict) or seen not in (manifest.get(LABELS), manifest.get(BEFORE)):
        raise RunError(
            f"{run / LABELS} is not what was written: its SHA-256 differs from {MANIFEST}; restore the file from a "
            "copy, then repeat the audit with --results."
        )
    if COLUMN in table.column_names:
        table = table.drop_columns([COLUMN])
    if confidence is not None:
        table = table.append_column(COLUMN, pa.array(confidence.astype(np.float32)))
    waiting = run / f".{LABELS}.audited"
    try:
        LabelTable(table).write(waiting)
        write_json(run / MANIFEST, {**manifest, BEFORE: seen, LABELS: digest(waiting)})
        waiting.replace(run / LABELS)
    finally:
        waiting.unlink(missing_ok=True)
