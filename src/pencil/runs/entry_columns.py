"""New values of the entries of multi-label data, and the columns of the label table that depend on them."""

import numpy as np
import pyarrow as pa

from pencil.arrow_arrays import list_names
from pencil.runs.label_columns import ENTRY_SCORES, PROBS, SUSPECTS
from pencil.runs.label_table import LabelTable


def with_entries(
    labels: LabelTable, rows: np.ndarray, present: np.ndarray, wrong: np.ndarray, suspect: np.ndarray
) -> pa.Table:
    """Return the label table with new values of the known entries of some rows; all other rows stay as they are.

    Parameters
    ----------
    labels : LabelTable
        Labels of multi-label data.
    rows : ndarray
        The rows that change.
    present, wrong : ndarray
        The probability that each class is present, and that each given entry is wrong, (rows, classes).
    suspect : ndarray
        Whether each entry is a suspect, besides the entries that differ from the given ones.
    """
    given, probs, scores = labels.given_probs, labels.probs.copy(), labels.entry_scores.copy()
    known, suspects = ~np.isnan(given), labels.suspect_entries
    probs[rows], scores[rows] = present, wrong
    corrected = labels.named_entries("corrected")  # a person may have named unknown entries
    corrected[rows] = np.where(known[rows], probs[rows] > 0.5, corrected[rows])
    changed = known & (corrected != (given > 0.5))
    suspects[rows] = changed[rows] | (suspect & known[rows])
    sure = np.where(known, np.maximum(probs, 1 - probs), np.inf).min(axis=1)
    confidence, issue_score = labels.confidence.copy(), labels.issue_score.copy()
    confidence[rows] = np.where(np.isfinite(sure), sure, 0.5)[rows]
    issue_score[rows] = 1 - (1 - scores[rows].astype(np.float64)).prod(axis=1)
    wide = pa.list_(pa.float32(), len(labels.classes))
    columns = {
        "corrected": list_names(corrected, labels.classes),
        "confidence": pa.array(confidence, pa.float32()),
        "changed": pa.array(changed.sum(axis=1), pa.int32()),
        "issue_score": pa.array(issue_score, pa.float32()),
        SUSPECTS: list_names(suspects, labels.classes),
        ENTRY_SCORES: pa.FixedSizeListArray.from_arrays(pa.array(scores.ravel(), pa.float32()), type=wide),
        PROBS: pa.FixedSizeListArray.from_arrays(pa.array(probs.ravel(), pa.float32()), type=wide),
    }
    table = labels.table
    for name, values in columns.items():
        if name in table.column_names:
            field = table.schema.field(name)
            table = table.set_column(table.column_names.index(name), field, values.cast(field.type))
        else:
            table = table.append_column(name, values)
    return table
