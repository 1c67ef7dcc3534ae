"""Labels with cleanlab's column names: ``is_label_issue``, ``label_quality`` and so on."""

from pathlib import Path

import numpy as np
import pyarrow as pa

from pencil.errors import RunError
from pencil.export.labels import save_labels
from pencil.files import atomic_write
from pencil.runs.label_table import LabelTable

FORGETTING = 0.8
"""The weight of each worse class against the better ones before it, as in cleanlab."""


def save_cleanlab(labels: LabelTable, path: Path) -> int:
    """Write label issues to a new file.

    Parameters
    ----------
    labels : LabelTable
        The labels to write.
    path : Path
        A new ``.csv`` file, with class names, or a new ``.npz`` file, with class indices and ``pred_probs``.

    Returns
    -------
    int
        The number of rows.
    """
    kind = path.suffix.lower()
    if kind == ".csv":
        return save_labels(cleanlab_issues(labels), "csv", path)
    if kind != ".npz":
        raise RunError(f"--out is {path}; expected a name that ends in .csv or .npz for --format cleanlab.")
    issues = cleanlab_issues(labels)
    if labels.multilabel:
        given, corrected = _indicators(labels)
    else:
        given, corrected = (codes.astype(np.int64) for codes in (labels.given_codes, labels.corrected_codes))
    with atomic_write(path, new=True) as temporary, temporary.open("wb") as stream:
        np.savez(
            stream,
            keys=np.asarray(labels.keys.to_pylist(), dtype=np.str_),
            classes=np.asarray(labels.classes, dtype=np.str_),
            is_label_issue=issues["is_label_issue"].to_numpy(),
            label_quality=issues["label_quality"].to_numpy(),
            given_label=given,
            predicted_label=corrected,
            pred_probs=labels.probs,
        )
    return labels.num_rows


def cleanlab_issues(labels: LabelTable) -> pa.Table:
    """Return one row per label with the columns of ``CleanLearning.get_label_issues``, with class names."""
    quality = pa.array(_multilabel_quality(labels), from_pandas=True) if labels.multilabel else None
    return pa.table(
        {
            "key": labels["key"],
            "is_label_issue": pa.array(labels.changed),
            "label_quality": labels["given_probability"] if quality is None else quality,
            "given_label": labels["given"],
            "predicted_label": labels["corrected"],
        }
    )


def _indicators(labels: LabelTable) -> tuple[np.ndarray, np.ndarray]:
    """Return given and corrected labels as matrices: 1 if the class is present, 0 if not, -1 if unknown."""
    given, probs = labels.given_probs, labels.probs
    unknown = np.isnan(given)
    return np.where(unknown, -1, given > 0.5).astype(np.int8), np.where(unknown, -1, probs > 0.5).astype(np.int8)


def _multilabel_quality(labels: LabelTable) -> np.ndarray:
    """Compute cleanlab's multi-label score: an exponential moving average from the best class to the worst.

    Unknown entries are ignored; a row without a known entry gets NaN.
    """
    given, probs = labels.given_probs, labels.probs
    each = np.where(np.isnan(given), np.inf, np.where(given > 0.5, probs, 1 - probs))
    best_first = -np.sort(-each, axis=1)
    score = best_first[:, 0].copy()
    for following in best_first[:, 1:].T:
        mixed = FORGETTING * following + (1 - FORGETTING) * np.where(np.isinf(score), following, score)
        score = np.where(np.isinf(following), score, mixed)
    return np.where(np.isinf(score), np.nan, score).astype(np.float32)
