"""Reports as HTML pages: one file each, with everything in it, and no script."""

import shlex
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from pencil._version import __version__
from pencil.data.examples import Splits
from pencil.data.settings import FROM_PYTHON
from pencil.errors import RunError
from pencil.files import write_text
from pencil.recipe import CUSTOM
from pencil.report.compare import agreements, curves_of, differences, figures_of, letter
from pencil.report.counts import class_lines, count_entries, count_rows, listed, moves_of, transitions
from pencil.report.figures import Line, Plot, draw, draw_reliability, phases_of, series
from pencil.report.gallery import hang
from pencil.report.material import Material, gather
from pencil.report.words import percent, sentences, verdict
from pencil.runs.layout import RECIPE
from pencil.runs.run import Run

REPORT = "report.html"
GENERATOR = "pencil report"
RECIPE_SHOWN = 40_000
"""So many characters of a recipe are shown: a transition matrix of a thousand classes is nothing to read."""
SCORES = (
    ("train_accuracy", "training rows, given labels"),
    ("validation_{}", "validation, noisy"),
    ("test_{}", "test"),
)
LOSSES = {
    "loss": "training",
    "validation_loss": "validation, noisy",
    "loss_classification": "part: classification",
    "loss_entropy": "part: entropy",
    "loss_compatibility": "part: compatibility",
}


def write_report(
    run: Run | Path | str, out: Path | None = None, *, splits: Splits | None = None, with_data: bool = True
) -> Path:
    """Write the report of a finished run, to ``report.html`` in its directory by default; says where it is.

    Inputs are shown from ``splits`` where they are given, else the data is loaded again if that can be done.
    """
    material = gather(run)
    if out is None and material.path is None:
        raise RunError(
            "this run has no directory; say where its report is to go: write_report(run, Path('report.html'))."
        )
    target = material.path / REPORT if out is None and material.path is not None else Path(str(out))
    return _write(target, "report.html.jinja", _report(material, splits, with_data))


def write_comparison(runs: Sequence[Run | Path | str], out: Path) -> Path:
    """Write a page that shows several finished runs side by side; says where it is."""
    materials = [gather(run) for run in runs]
    if len(materials) < 2:
        raise RunError(f"there is {len(materials)} run to compare; expected at least two; name another.")
    context = {
        "title": f"Comparison of {len(materials)} runs",
        "runs": materials,
        "letters": [letter(place) for place in range(len(materials))],
        "figures": figures_of(materials),
        "plots": curves_of(materials),
        "differences": differences(materials),
        "agreements": agreements(materials),
    }
    return _write(out, "compare.html.jinja", context)


def _report(material: Material, splits: Splits | None, with_data: bool) -> dict[str, Any]:
    trained, classes = material.trained, material.classes
    matrix = None
    if material.multilabel:
        counts, lines = count_entries(trained, classes)
    else:
        counts, moves = count_rows(trained), moves_of(trained, classes)
        lines, matrix = class_lines(moves), transitions(moves)
    recipe = material.recipe.to_toml()
    shown = listed(lines)
    return {
        "title": material.name,
        "run": material,
        "verdict": verdict(material, counts),
        "sentences": sentences(material, counts, matrix.pairs[0] if matrix and matrix.pairs else None),
        "counts": counts,
        "phases": phases_of(material.metrics),
        "plots": _plots(material),
        "reliability": _reliability(material),
        "matrix": matrix,
        "lines": shown,
        "lines_left_out": len(lines) - len(shown),
        "gallery": hang(material, splits, with_data=with_data),
        "recipe": recipe[:RECIPE_SHOWN],
        "recipe_left_out": max(0, len(recipe) - RECIPE_SHOWN),
        "environment": _flat(material.environment),
        "again": _again(material),
    }


def _reliability(material: Material) -> Markup | None:
    found = material.summary["labels"].get("calibration")
    return None if found is None else draw_reliability(found["bins"])


def _plots(material: Material) -> list[Plot]:
    metrics, phases = material.metrics, phases_of(material.metrics)
    score = "mAP" if material.multilabel else "Accuracy"
    best = material.summary["best_epoch"] if f"validation_{material.score}" in material.summary else None
    accuracies = {key.format(material.score): name for key, name in SCORES}
    agreement = {}
    if material.multilabel:  # which is no mAP
        agreement["train_accuracy"] = accuracies.pop("train_accuracy")
    wanted = [
        (score, "%", accuracies, 100.0, best),
        ("Loss", "", LOSSES, 1.0, None),
        ("Entries that agree with the network", "%", agreement, 100.0, None),
        ("Labels that are right", "%", {"labels_correct": "training labels"}, 100.0, None),
        ("Labels changed", "", {"labels_changed": "differ from the given ones"}, 1.0, None),
        ("Label entropy", "nats", {"label_entropy": "mean over labels"}, 1.0, None),
    ]
    plots = []
    for title, unit, names, scale, mark in wanted:
        found = ((place, name, series(metrics, key, scale)) for place, (key, name) in enumerate(names.items()))
        lines = [Line(name, values, place) for place, name, values in found if values is not None]
        if lines:
            plots.append(draw(title, unit, lines, phases, mark))
    return plots


def _again(material: Material) -> str:
    """The command that makes this run once more; none where part of it came from Python."""
    recipe = material.recipe
    if (
        material.path is None
        or recipe.data.source == FROM_PYTHON
        or CUSTOM in (recipe.model.name, recipe.method["name"])
    ):
        return ""
    return f"pencil train {shlex.quote(str(material.path / RECIPE))} --out {shlex.quote(f'{material.path}-again')}"


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}".replace("_", " ")
        flat |= (
            _flat(value, f"{prefix}{key}, ")
            if isinstance(value, dict)
            else {name: "none" if value is None else str(value)}
        )
    return flat


def _write(target: Path, template: str, context: dict[str, Any]) -> Path:
    if target.is_dir():
        raise RunError(f"{target} is a folder; expected the name of a file, such as {target / REPORT}.")
    if target.exists() and not _is_report(target):
        raise RunError(f"{target} already exists and is no report of ours; name another file with --out.")
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("pencil.report"),
        autoescape=True,  # names of classes, files and rows are anyone's
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"short": short, "percent": percent, "sure": sure, "count": lambda value: f"{value:,}"}
    text = environment.get_template(template).render(generator=GENERATOR, version=__version__, **context)
    write_text(target, text.rstrip() + "\n")
    return target


def _is_report(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return f'content="{GENERATOR}"'.encode() in file.read(1024)
    except OSError:
        return False


HIDDEN = {*map(chr, range(0x202A, 0x202F)), *map(chr, range(0x2066, 0x206A))}
"""Characters that turn the order of others around, so that a name reads as another."""


def short(text: object, most: int = 60) -> str:
    """A name cut in its middle where it is long; what would hide or turn around a part of it is made visible."""
    seen = "".join(
        "�" if letter in HIDDEN or unicodedata.category(letter) in ("Cc", "Cs") else letter
        for letter in str(text)[:10_000]
    )
    return seen if len(seen) <= most else f"{seen[: most // 2]}…{seen[-(most // 2 - 1) :]}"


def sure(probability: float) -> str:
    """A probability, which is never a certainty."""
    return f"over {percent(0.999)}" if probability > 0.999 else percent(probability)
