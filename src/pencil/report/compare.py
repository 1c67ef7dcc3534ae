"""Several runs side by side: numbers, curves, and differences between their recipes and labels."""

from collections.abc import Callable, Sequence
from itertools import combinations

import pyarrow as pa
import pyarrow.compute as pc

from pencil.arrow_arrays import scalar
from pencil.recipe.trees import flatten
from pencil.report.figures import Line, Plot, draw, series
from pencil.report.words import page_percent
from pencil.runs.directory import RunData
from pencil.runs.label_table import LabelTable
from pencil.runs.summary import Summary

PAIRS = 15
"""Maximum number of run pairs compared label by label: all pairs of six runs."""
ABSENT = "-"
CURVES = (
    ("Test accuracy", "%", "test_accuracy", 100.0),
    ("Test mAP", "%", "test_map", 100.0),
    ("Validation accuracy (noisy)", "%", "validation_accuracy", 100.0),
    ("Validation mAP (noisy)", "%", "validation_map", 100.0),
    ("Training loss", "", "loss", 1.0),
    ("Labels right", "%", "labels_correct", 100.0),
    ("Labels changed", "", "labels_changed", 1.0),
    ("Label entropy", "nats", "label_entropy", 1.0),
)


def letter(place: int) -> str:
    """Return A, B ... Z, then 27, 28 ..."""
    return chr(ord("A") + place) if place < 26 else str(place + 1)


def figures_of(runs: Sequence[RunData]) -> list[tuple[str, list[str]]]:
    """Return the rows of a table with one column per run, without rows that are empty for all runs."""
    lines = [(name, [describe(run) or ABSENT for run in runs]) for name, describe in _figures()]
    return [(name, cells) for name, cells in lines if any(cell != ABSENT for cell in cells)]


def _figures() -> list[tuple[str, Callable[[RunData], str | None]]]:
    scores = [
        (f"{split} {name}, {when}", _score(split.lower(), key, at))
        for split in ("Test", "Validation")
        for key, name in (("accuracy", "accuracy"), ("map", "mAP"))
        for when, at in (("last epoch", "last"), ("best validation epoch", "best"))
    ]
    return [
        ("Method", lambda run: run.summary.method),
        ("Model", lambda run: run.recipe.model.name),
        ("Data", lambda run: run.recipe.data.source),
        ("Seed", lambda run: str(run.summary.seed)),
        ("Training rows", lambda run: f"{run.summary.data.rows['train']:,}"),
        *scores,
        ("Labels changed", _changed),
        ("Injected noise rate", lambda run: _percent_or_none(run.summary.injected_noise_rate)),
        ("Labels right before", lambda run: _percent_or_none(run.summary.labels.correct_before)),
        ("Labels right after", lambda run: _percent_or_none(run.summary.labels.correct_after)),
        ("Labels repaired", lambda run: _count(run.summary.labels.repaired)),
        ("Labels broken", lambda run: _count(run.summary.labels.broken)),
        ("Best validation epoch", lambda run: str(run.summary.best_epoch)),
        ("Epochs", lambda run: str(run.summary.epochs)),
        ("Seconds", lambda run: f"{run.summary.seconds:,.1f}"),
    ]


def _score(split: str, key: str, at: str) -> Callable[[RunData], str | None]:
    def find(summary: Summary) -> float | None:
        score = summary.test if split == "test" else summary.validation
        return None if score is None or key != summary.score else score.best if at == "best" else score.last

    return lambda run: _percent_or_none(find(run.summary))


def _changed(run: RunData) -> str:
    labels = run.summary.labels
    return f"{labels.changed:,} ({page_percent(labels.changed / max(1, labels.count))})"


def _percent_or_none(value: float | None) -> str | None:
    return None if value is None else page_percent(value)


def _count(value: int | None) -> str | None:
    return None if value is None else f"{value:,}"


def curves_of(runs: Sequence[RunData]) -> list[Plot]:
    """Draw one plot per metric that at least one run has."""
    plots = []
    for title, unit, key, scale in CURVES:
        found = ((place, series(run.metrics, key, scale)) for place, run in enumerate(runs))
        lines = [
            Line(f"{letter(place)}: {runs[place].name}", values, place) for place, values in found if values is not None
        ]
        if lines:
            plots.append(draw(title, unit, lines))
    return plots


def differences(runs: Sequence[RunData]) -> list[tuple[str, list[str]]]:
    """Return the keys in which the recipes differ, with the value of each run."""
    trees = (flatten(run.recipe.model_dump(mode="json")) for run in runs)
    flats = [{key: str(value) for key, value in tree.items() if value is not None} for tree in trees]
    keys = dict.fromkeys(key for flat in flats for key in flat)
    lines = [(key, [flat.get(key, ABSENT) for flat in flats]) for key in keys]
    return [(key, cells) for key, cells in lines if len(set(cells)) > 1]


def agreements(runs: Sequence[RunData]) -> list[tuple[str, str, int, float]]:
    """Return for pairs of runs the number of common training rows, by key, and the fraction with the same label."""
    tables = [_corrected(run.labels.train) for run in runs]
    found = []
    for one, other in list(combinations(range(len(runs)), 2))[:PAIRS]:
        if runs[one].multilabel != runs[other].multilabel:
            continue
        both = tables[one].join(tables[other], "key", join_type="inner", right_suffix=" of the other")
        if both.num_rows:
            same = pc.sum(pc.equal(both["corrected"], both["corrected of the other"])).as_py()
            found.append((letter(one), letter(other), both.num_rows, same / both.num_rows))
    return found


def _corrected(labels: LabelTable) -> pa.Table:
    """Return the key and corrected label of each row; multi-label classes are joined to one string."""
    names = labels["corrected"]
    text = pc.binary_join(names, scalar("\n")) if labels.multilabel else names.cast(pa.string())
    return pa.table({"key": labels["key"], "corrected": text})
