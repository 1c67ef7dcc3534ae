"""Labels under the names that cleanlab's users know: ``is_label_issue``, ``label_quality`` and the rest."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pencil.errors import RunError
from pencil.export.label_files import new_file, save_labels
from pencil.export.label_rows import matrix

FORGETTING = 0.8
"""How much each worse class counts against the better ones before it, as cleanlab has it."""


def save_cleanlab(table: pa.Table, path: Path) -> int:
    """To a new .csv file with class names, or a new .npz file with class indices and ``pred_probs``; say how many."""
    kind = path.suffix.lower()
    if kind == ".csv":
        return save_labels(cleanlab_issues(table), "csv", path)
    if kind != ".npz":
        raise RunError(f"--out is {path}; for cleanlab expected a name that ends in .csv or .npz.")
    classes = json.loads(table.schema.metadata[b"classes"])
    issues = cleanlab_issues(table)
    given, corrected = _several(table) if "given_probabilities" in table.column_names else _one(table, classes)
    with new_file(path) as stream:
        np.savez(
            stream,
            keys=np.asarray(table["key"].to_pylist(), dtype=np.str_),
            classes=np.asarray(classes, dtype=np.str_),
            is_label_issue=issues["is_label_issue"].to_numpy(),
            label_quality=issues["label_quality"].to_numpy(),
            given_label=given,
            predicted_label=corrected,
            pred_probs=matrix(table, "distribution"),
        )
    return int(table.num_rows)


def cleanlab_issues(table: pa.Table) -> pa.Table:
    """A row for each label with the columns of ``CleanLearning.get_label_issues``, in words instead of indices."""
    several = "given_probabilities" in table.column_names
    changed = pc.greater(table["changed"].cast(pa.int32()), 0)
    quality = pa.array(_quality_of_several(table), from_pandas=True) if several else table["given_probability"]
    return pa.table(
        {
            "key": table["key"],
            "is_label_issue": changed,
            "label_quality": quality,
            "given_label": table["given"],
            "predicted_label": table["corrected"],
        }
    )


def _one(table: pa.Table, classes: list[str]) -> tuple[np.ndarray, np.ndarray]:
    names = pa.array(classes, pa.string())
    given, corrected = (
        pc.index_in(table[name].cast(pa.string()), value_set=names).to_numpy().astype(np.int64)
        for name in ("given", "corrected")
    )
    return given, corrected


def _several(table: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    """A column for each class: 1 where it is present, 0 where not, -1 where that is unknown."""
    given, probs = matrix(table, "given_probabilities"), matrix(table, "distribution")
    unknown = np.isnan(given)
    return np.where(unknown, -1, given > 0.5).astype(np.int8), np.where(unknown, -1, probs > 0.5).astype(np.int8)


def _quality_of_several(table: pa.Table) -> np.ndarray:
    """cleanlab's score of several labels at once: an exponential moving average from the best class to the worst.

    What is unknown has no part in it; a row of which nothing is known has none.
    """
    given, probs = matrix(table, "given_probabilities"), matrix(table, "distribution")
    each = np.where(np.isnan(given), np.inf, np.where(given > 0.5, probs, 1 - probs))
    best_first = -np.sort(-each, axis=1)
    score = best_first[:, 0].copy()
    for following in best_first[:, 1:].T:
        mixed = FORGETTING * following + (1 - FORGETTING) * np.where(np.isinf(score), following, score)
        score = np.where(np.isinf(following), score, mixed)
    return np.where(np.isinf(score), np.nan, score).astype(np.float32)
