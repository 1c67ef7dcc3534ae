"""Several runs side by side: figures, curves over each other, what their recipes and their labels differ in."""

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pencil.report.figures import Line, Plot, draw, series
from pencil.report.material import Material
from pencil.report.words import percent

PAIRS = 15
"""So many pairs of runs are compared label by label: those of six runs."""
ABSENT = "-"
CURVES = (
    ("Test accuracy", "%", "test_accuracy", 100.0),
    ("Test mAP", "%", "test_map", 100.0),
    ("Validation accuracy (noisy)", "%", "validation_accuracy", 100.0),
    ("Validation mAP (noisy)", "%", "validation_map", 100.0),
    ("Training loss", "", "loss", 1.0),
    ("Labels that are right", "%", "labels_correct", 100.0),
    ("Labels changed", "", "labels_changed", 1.0),
    ("Label entropy", "nats", "label_entropy", 1.0),
)


def letter(place: int) -> str:
    """A, B ... Z, then 27, 28 ..."""
    return chr(ord("A") + place) if place < 26 else str(place + 1)


def figures_of(runs: Sequence[Material]) -> list[tuple[str, list[str]]]:
    """Lines of a table with a column for each run; a line that says nothing about any of them is left out."""
    lines = [(name, [_said(tell, run) for run in runs]) for name, tell in _figures()]
    return [(name, cells) for name, cells in lines if any(cell != ABSENT for cell in cells)]


def _figures() -> list[tuple[str, Callable[[Material], str | None]]]:
    scores = [
        (f"{split} {name}, {when}", _score(f"{split.lower()}_{key}", at))
        for split in ("Test", "Validation")
        for key, name in (("accuracy", "accuracy"), ("map", "mAP"))
        for when, at in (("last epoch", "last"), ("best validation epoch", "best"))
    ]
    return [
        ("Method", lambda run: str(run.summary["method"])),
        ("Model", lambda run: run.recipe.model.name),
        ("Data", lambda run: run.recipe.data.source),
        ("Seed", lambda run: str(run.summary["seed"])),
        ("Training rows", lambda run: f"{run.summary['data']['rows']['train']:,}"),
        *scores,
        ("Labels changed", _changed),
        ("Noise put in", lambda run: _share(run.summary.get("injected_noise_rate"))),
        ("Labels right before", lambda run: _share(run.summary["labels"].get("correct_before"))),
        ("Labels right after", lambda run: _share(run.summary["labels"].get("correct_after"))),
        ("Labels repaired", lambda run: _count(run.summary["labels"].get("repaired"))),
        ("Labels spoiled", lambda run: _count(run.summary["labels"].get("broken"))),
        ("Best validation epoch", lambda run: str(run.summary["best_epoch"])),
        ("Epochs", lambda run: str(run.summary["epochs"])),
        ("Seconds", lambda run: f"{run.summary['seconds']:,.1f}"),
    ]


def _said(tell: Callable[[Material], str | None], run: Material) -> str:
    return tell(run) or ABSENT


def _score(key: str, at: str) -> Callable[[Material], str | None]:
    return lambda run: _share(run.summary.get(key, {}).get(at))


def _changed(run: Material) -> str:
    labels = run.summary["labels"]
    return f"{labels['changed']:,} ({percent(labels['changed'] / max(1, labels.get('entries', labels['rows'])))})"


def _share(value: float | None) -> str | None:
    return None if value is None else percent(value)


def _count(value: int | None) -> str | None:
    return None if value is None else f"{value:,}"


def curves_of(runs: Sequence[Material]) -> list[Plot]:
    plots = []
    for title, unit, key, scale in CURVES:
        found = ((place, series(run.metrics, key, scale)) for place, run in enumerate(runs))
        lines = [
            Line(f"{letter(place)}: {runs[place].name}", values, place) for place, values in found if values is not None
        ]
        if lines:
            plots.append(draw(title, unit, lines))
    return plots


def differences(runs: Sequence[Material]) -> list[tuple[str, list[str]]]:
    """The keys in which the recipes differ."""
    flats = [_flat(run.recipe.model_dump(mode="json")) for run in runs]
    keys = dict.fromkeys(key for flat in flats for key in flat)
    lines = [(key, [flat.get(key, ABSENT) for flat in flats]) for key in keys]
    return [(key, cells) for key, cells in lines if len(set(cells)) > 1]


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        elif value is not None:
            flat[f"{prefix}{key}"] = str(value)
    return flat


def agreements(runs: Sequence[Material]) -> list[tuple[str, str, int, float]]:
    """For pairs of runs: the training rows they share, by key, and the share of those whose labels end the same."""
    tables = [_labels(run) for run in runs]
    found = []
    for one, other in list(combinations(range(len(runs)), 2))[:PAIRS]:
        if runs[one].multilabel != runs[other].multilabel:
            continue
        both = tables[one].join(tables[other], "key", join_type="inner", right_suffix=" of the other")
        if both.num_rows:
            same = pc.sum(pc.equal(both["corrected"], both["corrected of the other"])).as_py()
            found.append((letter(one), letter(other), both.num_rows, same / both.num_rows))
    return found


def _labels(run: Material) -> pa.Table:
    """Key and corrected label of the training rows, several classes as one text."""
    table = run.labels.select(["key", "split", "corrected"])
    table = table.filter(pc.equal(table["split"].cast(pa.string()), "train"))
    names = table["corrected"]
    text = pc.binary_join(names, "\n") if pa.types.is_list(names.type) else names.cast(pa.string())
    return pa.table({"key": table["key"], "corrected": text})
