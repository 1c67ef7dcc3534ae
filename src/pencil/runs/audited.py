"""The labels that an audit decided, beside the labels of training: ``audited.parquet``, its digest and the summary."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pencil.files import atomic_write, digest, remove, write_json, write_text
from pencil.runs.directory import RunReader
from pencil.runs.entry_columns import with_entries
from pencil.runs.label_columns import PROBS, TOP
from pencil.runs.label_table import LabelTable
from pencil.runs.layout import AUDITED, MANIFEST, SUMMARY
from pencil.runs.manifest import read_manifest
from pencil.runs.summary import AuditSummary

VALUES = 2**23
"""Approximate maximum probabilities in memory at a time."""

Decide = Callable[[LabelTable], tuple[np.ndarray, np.ndarray, np.ndarray]]
"""Returns the rows of a part of the label table that are decided again, their distributions and issue scores (of
entries, for multi-label data)."""


def write_audit(run: Path, audit: AuditSummary | None, decide: Decide | None, suspect_from: float = 1.0) -> None:
    """Write the results of an audit, or remove earlier ones (None); the caller holds the lock of the run.

    ``labels.parquet`` stays as training wrote it. ``decide`` decides the rows of a part of the label table again;
    None leaves the labels of training in use. The decided labels are put in place before the summary describes
    them. If the process is killed in between, the audit can be repeated. ``suspect_from`` is the issue score of
    suspects.
    """
    reader = RunReader(run, as_trained=True)
    summary = reader.summary.model_copy(update={"audit": audit})
    digests = {name: value for name, value in read_manifest(run).items() if name != AUDITED}
    if decide is None:
        remove(run / AUDITED)
    else:
        with atomic_write(run / AUDITED) as temporary:
            _write_parts(reader.labels, temporary, decide, suspect_from)
        digests[AUDITED] = digest(run / AUDITED)
    write_json(run / MANIFEST, digests)
    write_text(run / SUMMARY, summary.to_json())


def decided_table(labels: LabelTable, decide: Decide, suspect_from: float) -> LabelTable:
    """Return the label table as `write_audit` writes it."""
    return LabelTable(pa.concat_tables(decided_part(part, decide, suspect_from) for part in parts_of(labels)))


def _write_parts(labels: LabelTable, target: Path, decide: Decide, suspect_from: float) -> None:
    parts = (decided_part(part, decide, suspect_from) for part in parts_of(labels))
    first = next(parts)
    with pq.ParquetWriter(target, first.schema, compression="zstd") as writer:
        writer.write_table(first)
        for part in parts:
            writer.write_table(part)


def parts_of(labels: LabelTable) -> Iterator[LabelTable]:
    """Yield the table in parts that fit into memory."""
    size = max(1, VALUES // len(labels.classes))
    for start in range(0, len(labels), size):
        yield labels.slice(start, size)


def decided_part(part: LabelTable, decide: Decide, suspect_from: float) -> pa.Table:
    """Return a part of the label table with decided labels, and every column that depends on them."""
    rows, decided, scores = decide(part)
    if part.multilabel:
        return with_entries(part, rows, decided, scores, scores >= suspect_from)
    table, given = part.table, part.given_codes
    probs = part.probs.astype(np.float64)
    probs[rows] = decided
    two = np.sort(np.partition(probs, -2, axis=1)[:, -2:], axis=1) if probs.shape[1] > 1 else probs.repeat(2, 1)
    corrected = part.corrected_codes.copy()
    corrected[rows] = decided.argmax(axis=1)
    changed = (corrected != given) & (given >= 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        entropy = -np.where(probs > 0, probs * np.log(probs), 0.0).sum(axis=1)
    columns = {
        "corrected": pa.DictionaryArray.from_arrays(pa.array(corrected), pa.array(part.classes, pa.string())),
        "confidence": _replaced(part.confidence, rows, two[rows, 1]),
        "given_probability": _replaced(part.given_probability, rows, probs[rows, given[rows]]),
        "margin": _replaced(table["margin"].to_numpy(), rows, two[rows, 1] - two[rows, 0]),
        "entropy": _replaced(table["entropy"].to_numpy(), rows, entropy[rows]),
        "changed": changed,
        "issue_score": _replaced(part.issue_score, rows, scores),
        "suspect": _replaced(part.suspect, rows, changed[rows] | (scores >= suspect_from)),
        **_probability_columns(table, probs),
    }
    for name, values in columns.items():
        if name not in table.column_names:
            table = table.append_column(name, pa.array(values))
            continue
        field = table.schema.field(name)
        column = values if isinstance(values, pa.Array) else pa.array(values)
        table = table.set_column(table.column_names.index(name), field, column.cast(field.type))
    return table


def _replaced(values: np.ndarray, rows: np.ndarray, new: np.ndarray) -> np.ndarray:
    copy = np.array(values)
    copy[rows] = new
    return copy


def _probability_columns(table: pa.Table, probs: np.ndarray) -> dict[str, pa.Array]:
    """Return the distributions in the form that the table has: of all classes, or of the most probable ones."""
    if PROBS in table.column_names:
        return {PROBS: _lists(probs.astype(np.float32), table.schema.field(PROBS).type)}
    width = table.schema.field(TOP[0]).type.list_size
    order = np.argsort(-probs, axis=1, kind="stable")[:, :width]
    values = order, np.take_along_axis(probs, order, axis=1)
    return {name: _lists(one, table.schema.field(name).type) for name, one in zip(TOP, values, strict=True)}


def _lists(values: np.ndarray, form: pa.FixedSizeListType) -> pa.FixedSizeListArray:
    return pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()).cast(form.value_type), type=form)
