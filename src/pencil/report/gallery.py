"""The rows worth a look, with their inputs where those can be had: the surest corrections, the doubtful labels, and
held-out rows that the network contradicts. Those are by themselves: their probabilities are the network's own, which is
surer of itself than a learned label ever is."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pencil.data.examples import Examples, Splits
from pencil.data.settings import FROM_PYTHON
from pencil.data.sources import load
from pencil.report.counts import CLOSE, codes, pieces, probabilities
from pencil.report.material import Material
from pencil.report.pictures import Shown, show_rows

CASES, HELD_OUT = 24, 12


@dataclass(frozen=True)
class Case:
    """One row (or one class of it): what was given, what stands, how sure, and the input itself where it is known."""

    key: str
    split: str
    given: str
    corrected: str
    confidence: float
    rival: str = ""
    rival_probability: float = 0.0
    shown: Shown | None = None


@dataclass(frozen=True)
class Gallery:
    """``why_bare`` says why inputs are missing, ``doubt`` why they may not be those of the run."""

    sure: list[Case]
    doubtful: list[Case]
    held_out: list[Case]
    why_bare: str = ""
    doubt: str = ""


def hang(material: Material, splits: Splits | None = None, *, with_data: bool = True) -> Gallery:
    """Choose the cases, then look for their inputs: in these splits, or in the data that the recipe names."""
    choose = _entry_cases if material.multilabel else _row_cases
    sure, doubtful = choose(material.trained, material.classes)
    held_out = choose(material.held_out, material.classes)[0][:HELD_OUT]
    gallery = Gallery(sure, doubtful, held_out)
    cases = [*sure, *doubtful, *held_out]
    if not cases:
        return gallery
    if splits is None and not with_data:
        return replace(gallery, why_bare="The data was not loaded for this report, as it was asked to.")
    if splits is None and material.recipe.data.source == FROM_PYTHON:
        return replace(gallery, why_bare="The data came from Python, so it could not be loaded again for this report.")
    doubt = ""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # whatever there is to say about the data, training has said
        try:
            if splits is None:
                splits = load(material.recipe.data)
                expected = material.environment.get("data_fingerprint", {}).get("train")
                if expected is not None and splits.train.fingerprint() != expected:
                    doubt = "The data has changed since this run: its rows or labels are not what they were."
            found = _look_up(splits, cases)
        except Exception as error:  # noqa: BLE001 - data may be anything and gone; the report must come all the same
            reason = (str(error) or type(error).__name__).strip().splitlines()[0]
            return replace(gallery, why_bare=f"The data could not be loaded again: {reason}")
    why = "" if any(found.values()) else "No row of this run was found in the data that its recipe names."

    def with_input(chosen: list[Case]) -> list[Case]:
        return [replace(case, shown=found.get((case.split, case.key))) for case in chosen]

    return Gallery(with_input(sure), with_input(doubtful), with_input(held_out), why, doubt)


def _look_up(splits: Splits, cases: Sequence[Case]) -> dict[tuple[str, str], Shown | None]:
    """The inputs of these rows by split and key; held-out rows are looked for among all training rows too."""
    found: dict[tuple[str, str], Shown | None] = {}
    for split in ("train", "validation"):
        missing = {case.key for case in cases if case.split == split}
        for part in (splits.validation if split == "validation" else None, splits.train):
            if part is None or not missing:
                continue
            rows = _rows_of(part, missing)
            found |= {(split, key): shown for key, shown in show_rows(part.inputs, rows).items()}
            missing -= set(rows)
    return found


def _rows_of(examples: Examples, keys: set[str]) -> dict[str, int]:
    """The input row of each of these keys that is there."""
    places = np.flatnonzero(np.isin(examples.keys, np.array(sorted(keys), dtype=examples.keys.dtype)))
    return {str(examples.keys[place]): int(examples.rows[place]) for place in places}


def _row_cases(table: pa.Table, classes: Sequence[str]) -> tuple[list[Case], list[Case]]:
    """One class each: changed labels with the surest first; labels whose class leads least."""
    confidence, margin = table["confidence"].to_numpy(), table["margin"].to_numpy()
    changed = table["changed"].to_numpy() & np.isfinite(confidence)
    sure = _first(-confidence, changed)
    doubtful = _first(margin, np.isfinite(margin) & (margin < CLOSE))
    return _row_list(table, sure, classes), _row_list(table, doubtful, classes)


def _first(by: np.ndarray, where: np.ndarray) -> np.ndarray:
    places = np.flatnonzero(where)
    chosen: np.ndarray = places[np.argsort(by[places], kind="stable")[:CASES]]
    return chosen


def _row_list(table: pa.Table, places: np.ndarray, classes: Sequence[str]) -> list[Case]:
    part = table.take(pa.array(places))
    if not part.num_rows:
        return []
    probs = pc.list_flatten(part["distribution"]).to_numpy().reshape(-1, len(classes)).copy()
    corrected = codes(part["corrected"], classes)
    probs[np.arange(len(probs)), corrected] = -1.0
    rivals = probs.argmax(axis=1)
    columns = zip(
        part["key"].to_pylist(),
        part["split"].cast(pa.string()).to_pylist(),
        part["given"].cast(pa.string()).to_pylist(),
        part["corrected"].cast(pa.string()).to_pylist(),
        part["confidence"].to_pylist(),
        [classes[rival] for rival in rivals],
        probs[np.arange(len(probs)), rivals].clip(min=0).tolist(),
        strict=True,
    )
    return [Case(*values) for values in columns]


def _entry_cases(table: pa.Table, classes: Sequence[str]) -> tuple[list[Case], list[Case]]:
    """Several classes at once: the same for entries, each by itself."""
    sure: list[tuple[float, int, int, float]] = []
    doubtful: list[tuple[float, int, int, float]] = []
    for start, part in pieces(table, len(classes)):
        given, probs = probabilities(part, len(classes))
        confidence = np.maximum(probs, 1 - probs)
        known = ~np.isnan(given) & np.isfinite(probs)
        changed = known & ((given > 0.5) != (probs > 0.5))
        for kept, by, where in (
            (sure, -confidence, changed),
            (doubtful, confidence, known & (confidence < 0.5 + CLOSE / 2)),
        ):
            for place in _first(by.reshape(-1), where.reshape(-1)):
                row, column = divmod(int(place), len(classes))
                kept.append((float(by[row, column]), start + row, column, float(given[row, column])))
    return _entry_list(table, sorted(sure)[:CASES], classes), _entry_list(table, sorted(doubtful)[:CASES], classes)


def _entry_list(table: pa.Table, chosen: Sequence[tuple[float, int, int, float]], classes: Sequence[str]) -> list[Case]:
    cases = []
    for by, row, column, given in chosen:
        line = table.slice(row, 1)
        stands = line["distribution"][0].as_py()[column] > 0.5
        cases.append(
            Case(
                key=line["key"][0].as_py(),
                split=str(line["split"][0].as_py()),
                given=("there" if given > 0.5 else "not there") + ("" if given in (0.0, 1.0) else f" ({given:.0%})"),
                corrected="there" if stands else "not there",
                confidence=abs(by),
                rival=classes[column],
            )
        )
    return cases
