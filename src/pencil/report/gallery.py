"""The rows to review, with their inputs if available: the most confident changes, and other labels to look at."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from pencil.data.examples import Splits
from pencil.data.read import load
from pencil.data.settings import FROM_PYTHON
from pencil.report.counts import CONFIDENT, pieces
from pencil.runs.directory import RunData
from pencil.runs.label_table import LabelTable
from pencil.runs.pictures import Shown, find_shown

CASES, PER_CLASS = 24, 4
_Entry = tuple[float, int, int, float, float]
"""An entry of multi-label data: its issue score (negative), row and class, confidence, and the given probability."""


@dataclass(frozen=True)
class Case:
    """One row (or one class of it): given and corrected label, confidence, and the input if it is known.

    ``given`` is None if there is no label or annotators disagree. ``rival`` is the most probable other class, or for
    multi-label data the class of this entry.
    """

    key: str
    split: str
    given: str | None
    corrected: str
    confidence: float
    rival: str = ""
    rival_probability: float = 0.0
    issue_score: float = 0.0
    shown: Shown | None = None


@dataclass(frozen=True)
class Gallery:
    """The cases to show: changes, other labels to look at, outliers, and duplicates with different labels.

    ``why_bare`` says why inputs are missing, ``doubt`` why they may not match the run.
    """

    sure: list[Case]
    others: list[Case]
    outliers: list[Case]
    conflicts: list[Case]
    why_bare: str = ""
    doubt: str = ""


def build_gallery(run: RunData, splits: Splits | None = None, *, with_data: bool = True) -> Gallery:
    """Choose the cases, then find their inputs.

    Parameters
    ----------
    run : RunData
        The run.
    splits : Splits, optional
        The data, if already loaded; otherwise it is loaded from the recipe's source.
    with_data : bool
        Whether data may be loaded.
    """
    sure, others = (_entry_cases if run.multilabel else _row_cases)(run.labels)
    labels = run.labels
    gallery = Gallery(sure, others, _inputs(labels, labels.outlier), _inputs(labels, labels.conflict))
    cases = [*sure, *others, *gallery.outliers, *gallery.conflicts]
    if not cases:
        return gallery
    if splits is None and not with_data:
        return replace(gallery, why_bare="The data was not loaded for this report, as requested.")
    if splits is None and run.recipe.data.source == FROM_PYTHON:
        return replace(
            gallery, why_bare="The data was passed as Python objects, so it could not be loaded for this report."
        )
    doubt = ""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # training has already warned about the data
        try:
            if splits is None:
                splits = load(run.recipe.data, local=True)
                expected = run.environment.get("data_fingerprint", {}).get("train")
                if expected is not None and splits.train.fingerprint() != expected:
                    doubt = "The data has changed since this run: rows or labels differ."
            found = find_shown(splits, [(case.key, case.split) for case in cases])
        except Exception as error:  # noqa: BLE001 - the data may be broken or gone; the report is written without it
            reason = (str(error) or type(error).__name__).strip().splitlines()[0]
            return replace(gallery, why_bare=f"The data could not be loaded: {reason}")
    why = "" if found else "No row of this run was found in the data of its recipe."

    def with_input(chosen: list[Case]) -> list[Case]:
        return [replace(case, shown=found.get((case.key, case.split))) for case in chosen]

    shown = with_input(sure), with_input(others), with_input(gallery.outliers), with_input(gallery.conflicts)
    return Gallery(*shown, why, doubt)


def _row_cases(labels: LabelTable) -> tuple[list[Case], list[Case]]:
    """Return the most confident changes of single-label data, spread over class pairs, and other suspects."""
    confidence = labels.confidence
    changed = np.flatnonzero(labels.changed & np.isfinite(confidence))
    sure = changed[vary(labels.given_codes[changed], labels.corrected_codes[changed], confidence[changed])]
    others = _first(-labels.issue_score, labels.suspect & ~labels.changed)
    return _row_list(labels.take(sure)), _row_list(labels.take(others))


def vary(given: np.ndarray, corrected: np.ndarray, confidence: np.ndarray, most: int = CASES) -> np.ndarray:
    """Return the positions of changes to show: confident ones first, alternating between pairs of classes.

    The next change is from the pair shown least so far; ties are broken by the classes shown least, then by the most
    frequent pair, then by confidence.
    """
    _, pair, times = np.unique(np.stack([given, corrected]), axis=1, return_inverse=True, return_counts=True)
    pair = pair.reshape(-1)
    unsure = confidence < CONFIDENT
    shown, used = np.zeros(len(times), dtype=np.int64), np.zeros(len(pair), dtype=bool)
    seen = np.zeros(1 + max(given.max(initial=0), corrected.max(initial=0)), dtype=np.int64)
    chosen: list[int] = []
    for _ in range(min(most, len(pair))):
        keys = (-confidence, -times[pair], seen[given] + seen[corrected], shown[pair], unsure, used)
        best = int(np.lexsort(keys)[0])
        chosen.append(best)
        used[best] = True
        shown[pair[best]] += 1
        seen[given[best]] += 1
        seen[corrected[best]] += 1
    return np.array(chosen, dtype=np.int64)


def _first(by: np.ndarray, where: np.ndarray, most: int = CASES) -> np.ndarray:
    places = np.flatnonzero(where)
    chosen: np.ndarray = places[np.argsort(by[places], kind="stable")[:most]]
    return chosen


def _row_list(part: LabelTable) -> list[Case]:
    if not part.num_rows:
        return []
    probs = part.probs.copy()
    probs[np.arange(len(probs)), part.corrected_codes] = -1.0
    rivals = probs.argmax(axis=1)
    columns = zip(
        part.keys.to_pylist(),
        part.splits.to_pylist(),
        part["given"].to_pylist(),
        part["corrected"].to_pylist(),
        part["confidence"].to_pylist(),
        [part.classes[rival] for rival in rivals],
        probs[np.arange(len(probs)), rivals].clip(min=0).tolist(),
        part.issue_score.tolist(),
        strict=True,
    )
    return [Case(*values) for values in columns]


def _inputs(labels: LabelTable, where: np.ndarray) -> list[Case]:
    """Return rows that are shown for their input, with their given label; the highest outlier scores first."""
    part = labels.take(_first(-labels.outlier_score, where & ~labels.is_unlabelled))
    given = [", ".join(label) if isinstance(label, list) else label for label in part["given"].to_pylist()]
    columns = part.keys.to_pylist(), part.splits.to_pylist(), given, part.outlier_score.tolist()
    return [
        Case(key, split, label, "", 0.0, issue_score=score) for key, split, label, score in zip(*columns, strict=True)
    ]


def _entry_cases(labels: LabelTable) -> tuple[list[Case], list[Case]]:
    """Return the most confident changes of multi-label data, spread over classes, and other suspects."""
    changes: list[_Entry] = []
    suspects: list[_Entry] = []
    for start, part in pieces(labels):
        given, probs, scores, changed = part.given_probs, part.probs, part.entry_scores, part.changed_entries
        confidence = np.maximum(probs, 1 - probs)
        others = part.suspect_entries & ~changed
        high = np.divmod(_first(-scores.reshape(-1), others.reshape(-1)), len(labels.classes))
        moved = _first_of_classes(confidence, changed & np.isfinite(probs))
        for kept, (rows, columns) in ((changes, moved), (suspects, high)):
            values = (-scores)[rows, columns].tolist(), (start + rows).tolist(), columns.tolist()
            kept += zip(*values, *(one[rows, columns].tolist() for one in (confidence, given)), strict=True)
    classes = np.array([column for _, _, column, *_ in changes], dtype=np.int64)
    order = vary(classes, classes, np.array([confidence for *_, confidence, _ in changes]))
    return _entry_list(labels, [changes[place] for place in order]), _entry_list(labels, sorted(suspects)[:CASES])


def _first_of_classes(confidence: np.ndarray, where: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return rows and columns of the most confident of these entries, a few per column."""
    rows, columns = where.nonzero()
    order = np.lexsort((-confidence[rows, columns], columns))
    rows, columns = rows[order], columns[order]
    few = np.arange(len(columns)) - np.searchsorted(columns, columns) < PER_CLASS
    return rows[few], columns[few]


def _entry_list(labels: LabelTable, chosen: Sequence[_Entry]) -> list[Case]:
    cases = []
    for score, row, column, confidence, given in chosen:
        line = labels.slice(row, 1)
        cases.append(
            Case(
                key=line.keys[0].as_py(),
                split=line.splits[0].as_py(),
                given=_presence(given > 0.5) + ("" if given in (0.0, 1.0) else f" ({given:.0%})"),
                corrected=_presence(line.probs[0, column] > 0.5),
                confidence=confidence,
                rival=labels.classes[column],
                issue_score=-score,
            )
        )
    return cases


def _presence(present: bool) -> str:
    return "present" if present else "absent"
