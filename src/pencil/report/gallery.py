"""The rows to look at, with their inputs if those can be loaded: confident changes, doubtful labels, and held-out rows
that the network contradicts. Held-out rows are listed apart: the network was not trained on them."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from pencil.data.examples import Examples, Splits
from pencil.data.settings import FROM_PYTHON
from pencil.data.sources import load
from pencil.report.counts import CLOSE, pieces
from pencil.report.pictures import Shown, show_rows
from pencil.runs.directory import RunData
from pencil.runs.label_table import LabelTable

CASES, HELD_OUT = 24, 12


@dataclass(frozen=True)
class Case:
    """One row (or one class of it): given and corrected label, confidence, and the input if it is known.

    ``given`` is None where there is none, or annotators disagree. ``rival`` is the most probable other class, or for
    multi-label data the class that the case is about.
    """

    key: str
    split: str
    given: str | None
    corrected: str
    confidence: float
    rival: str = ""
    rival_probability: float = 0.0
    shown: Shown | None = None


@dataclass(frozen=True)
class Gallery:
    """The cases to show; ``why_bare`` says why inputs are missing, ``doubt`` why they may not be those of the run."""

    confident: list[Case]
    doubtful: list[Case]
    held_out: list[Case]
    why_bare: str = ""
    doubt: str = ""


def build_gallery(run: RunData, splits: Splits | None = None, *, with_data: bool = True) -> Gallery:
    """Choose the cases, then find their inputs.

    Parameters
    ----------
    run : RunData
        The run.
    splits : Splits, optional
        The data, if it is loaded already; else it is loaded as the recipe names it.
    with_data : bool
        Whether data may be loaded.
    """
    choose = _entry_cases if run.multilabel else _row_cases
    confident, doubtful = choose(run.labels.train)
    held_out = choose(run.labels.held_out)[0][:HELD_OUT]
    gallery = Gallery(confident, doubtful, held_out)
    cases = [*confident, *doubtful, *held_out]
    if not cases:
        return gallery
    if splits is None and not with_data:
        return replace(gallery, why_bare="The data was not loaded for this report, as requested.")
    if splits is None and run.recipe.data.source == FROM_PYTHON:
        return replace(gallery, why_bare="The data came from Python, so it could not be loaded again for this report.")
    doubt = ""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # training has warned about the data already
        try:
            if splits is None:
                splits = load(run.recipe.data, local=True)
                expected = run.environment.get("data_fingerprint", {}).get("train")
                if expected is not None and splits.train.fingerprint() != expected:
                    doubt = "The data has changed since this run: its rows or labels are different now."
            found = _look_up(splits, cases)
        except Exception as error:  # noqa: BLE001 - the data may be anything, or gone; the report is written without it
            reason = (str(error) or type(error).__name__).strip().splitlines()[0]
            return replace(gallery, why_bare=f"The data could not be loaded again: {reason}")
    why = "" if any(found.values()) else "No row of this run was found in the data that its recipe names."

    def with_input(chosen: list[Case]) -> list[Case]:
        return [replace(case, shown=found.get((case.split, case.key))) for case in chosen]

    return Gallery(with_input(confident), with_input(doubtful), with_input(held_out), why, doubt)


def _look_up(splits: Splits, cases: Sequence[Case]) -> dict[tuple[str, str], Shown | None]:
    """Return the inputs of these rows by split and key; held-out rows are searched among all training rows too."""
    found: dict[tuple[str, str], Shown | None] = {}
    for split in ("train", "validation", "unlabelled"):
        missing = {case.key for case in cases if case.split == split}
        for part in (getattr(splits, split), splits.train):
            if part is None or not missing:
                continue
            places = _places_of(part, missing)
            found |= {(split, key): shown for key, shown in show_rows(part, places).items()}
            missing -= set(places)
    return found


def _places_of(examples: Examples, keys: set[str]) -> dict[str, int]:
    """Return the place of each of these keys that exists."""
    places = np.flatnonzero(np.isin(examples.keys, np.array(sorted(keys), dtype=examples.keys.dtype)))
    return {str(examples.keys[place]): int(place) for place in places}


def _row_cases(labels: LabelTable) -> tuple[list[Case], list[Case]]:
    """Return the most confident changes and the most doubtful labels of single-label data."""
    confidence, margin = labels.confidence, labels["margin"].to_numpy()
    confident = _first(-confidence, labels.changed & np.isfinite(confidence))
    doubtful = _first(margin, np.isfinite(margin) & (margin < CLOSE))
    return _row_list(labels.take(confident)), _row_list(labels.take(doubtful))


def _first(by: np.ndarray, where: np.ndarray) -> np.ndarray:
    places = np.flatnonzero(where)
    chosen: np.ndarray = places[np.argsort(by[places], kind="stable")[:CASES]]
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
        strict=True,
    )
    return [Case(*values) for values in columns]


def _entry_cases(labels: LabelTable) -> tuple[list[Case], list[Case]]:
    """Return the most confident changes and the most doubtful entries of multi-label data."""
    confident: list[tuple[float, int, int, float]] = []
    doubtful: list[tuple[float, int, int, float]] = []
    for start, part in pieces(labels):
        given, probs = part.given_probs, part.probs
        confidence = np.maximum(probs, 1 - probs)
        known = ~np.isnan(given) & np.isfinite(probs)
        changed = known & ((given > 0.5) != (probs > 0.5))
        for kept, by, where in (
            (confident, -confidence, changed),
            (doubtful, confidence, known & (confidence < 0.5 + CLOSE / 2)),
        ):
            for place in _first(by.reshape(-1), where.reshape(-1)):
                row, column = divmod(int(place), len(labels.classes))
                kept.append((float(by[row, column]), start + row, column, float(given[row, column])))
    return _entry_list(labels, sorted(confident)[:CASES]), _entry_list(labels, sorted(doubtful)[:CASES])


def _entry_list(labels: LabelTable, chosen: Sequence[tuple[float, int, int, float]]) -> list[Case]:
    cases = []
    for by, row, column, given in chosen:
        line = labels.slice(row, 1)
        cases.append(
            Case(
                key=line.keys[0].as_py(),
                split=line.splits[0].as_py(),
                given=_presence(given > 0.5) + ("" if given in (0.0, 1.0) else f" ({given:.0%})"),
                corrected=_presence(line.probs[0, column] > 0.5),
                confidence=abs(by),
                rival=labels.classes[column],
            )
        )
    return cases


def _presence(present: bool) -> str:
    return "present" if present else "absent"
