"""Reports as HTML pages: one self-contained file each, without scripts."""

import shlex
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
import tomli_w

from pencil._version import __version__
from pencil.data.examples import Splits
from pencil.data.settings import FROM_PYTHON
from pencil.errors import RunError
from pencil.files import refuse_irregular, write_text
from pencil.recipe import CUSTOM
from pencil.recipe.trees import flatten
from pencil.report.compare import agreements, curves_of, differences, figures_of, letter
from pencil.report.counts import class_lines, count_entries, count_rows, labelled, listed, moves_of, transitions
from pencil.report.figures import Line, Plot, draw, draw_reliability, phases_of, series
from pencil.report.gallery import build_gallery
from pencil.report.words import headline_numbers, page_percent, probability, reasons, sentences, verdict
from pencil.runs.advice import explain_difference, next_commands, next_step
from pencil.runs.annotators import confusions_in_words
from pencil.runs.directory import Record, RunData, RunReader
from pencil.runs.layout import METRICS, RECIPE, is_unfinished
from pencil.runs.run import Run
from pencil.runs.wording import wording

REPORT = "report.html"
GENERATOR = "pencil report"
ANNOTATORS_SHOWN = 20
"""Number of annotators, and of rows that need another opinion, on the page."""
RECIPE_SHOWN = 40_000
"""Maximum characters of a recipe on the page; a transition matrix of a thousand classes is not readable."""
LEVELS = {"reliable": "good", "doubtful": "doubtful", "do not use the corrections": "bad"}
"""CSS class of each verdict."""
OUTLIERS = (
    "{:,} rows are unlike every class, such as blurred, empty or foreign inputs. Their labels stay as given. Remove "
    "the rows that belong to none of the classes."
)
CONFLICTS = "{:,} rows have a duplicate or near-duplicate with another label: at least one of the labels is wrong."
SCORES = (
    ("train_accuracy", "training rows, given labels"),
    ("validation_{}", "held out, noisy"),
    ("test_{}", "test"),
)
LOSSES = {
    "loss": "training",
    "validation_loss": "held out, noisy",
    "loss_classification": "part: classification",
    "loss_early_learning": "part: ELR regulariser (unweighted)",
    "loss_entropy": "part: entropy",
    "loss_compatibility": "part: compatibility",
}


def write_report(
    run: Run | Path | str,
    out: Path | None = None,
    *,
    splits: Splits | None = None,
    with_data: bool = True,
    as_trained: bool = False,
) -> Path:
    """Write the report of a finished or failed run.

    Parameters
    ----------
    run : Run, Path or str
        The run, or its directory.
    out : Path, optional
        The file to write; ``report.html`` in the run directory by default.
    splits : Splits, optional
        The data, if already loaded; otherwise it is loaded, if possible, to show inputs.
    with_data : bool
        Whether data may be loaded.
    as_trained : bool
        Show the labels of training, even if an audit has decided them again; a ``Run`` already has its labels.

    Returns
    -------
    Path
        The file.
    """
    if not isinstance(run, Run) and is_unfinished(Path(run)):
        reader = RunReader(run, finished=False)
        if reader.failure is not None:
            return _write(out or Path(run) / REPORT, "failed.html.jinja", _failed(reader, reader.failure))
    data = _data(run, as_trained)
    if out is None and data.path is None:
        raise RunError(
            "this run has no directory; expected a file to write; use write_report(run, Path('report.html'))."
        )
    target = data.path / REPORT if out is None and data.path is not None else Path(str(out))
    return _write(target, "report.html.jinja", _report(data, splits, with_data))


def write_comparison(runs: Sequence[Run | Path | str], out: Path, *, as_trained: bool = False) -> Path:
    """Write a page that shows several finished runs side by side, and return its path.

    Parameters
    ----------
    runs : sequence of Run, Path or str
        At least two runs, or their directories.
    out : Path
        The file to write.
    as_trained : bool
        Show the labels of training, even of runs whose labels an audit has decided again.
    """
    found = [_data(run, as_trained) for run in runs]
    if len(found) < 2:
        raise RunError(f"{len(found)} run to compare; expected at least two; name another.")
    context = {
        "title": f"Comparison of {len(found)} runs",
        "runs": found,
        "letters": [letter(place) for place in range(len(found))],
        "figures": figures_of(found),
        "plots": curves_of(found),
        "differences": differences(found),
        "agreements": agreements(found),
    }
    return _write(out, "compare.html.jinja", context)


def _data(run: Run | Path | str, as_trained: bool) -> RunData:
    return run.data if isinstance(run, Run) else RunReader(run, as_trained=as_trained).data()


def _report(run: RunData, splits: Splits | None, with_data: bool) -> dict[str, Any]:
    matrix, labels = None, labelled(run.labels)
    if run.multilabel:
        counts, lines = count_entries(labels)
    else:
        counts, moves = count_rows(labels), moves_of(labels)
        lines, matrix = class_lines(moves), transitions(moves)
    recipe = run.recipe.to_toml()
    shown = listed(lines)
    calibration = run.summary.labels.calibration
    gallery = build_gallery(run, splits, with_data=with_data)
    return {
        "title": run.name,
        "source": _source(run.recipe.data.source),
        "run": run,
        "words": run.summary.data.wording,
        "verdict": verdict(run, counts),
        "level": LEVELS.get(run.summary.verdict.level, "") if run.summary.verdict else "",
        "reasons": reasons(run),
        "numbers": headline_numbers(run, counts),
        "difference": explain_difference(run.summary, counts.changed / max(1, counts.labels)),
        "next_step": next_step(run.summary),
        "commands": [] if run.path is None else next_commands(run.summary, run.path),
        "sentences": sentences(run, counts, matrix.pairs[0] if matrix and matrix.pairs else None),
        "counts": counts,
        "phases": phases_of(run.metrics),
        "plots": _plots(run.metrics, run.multilabel, run.summary.best_epoch if run.summary.validation else None),
        "below_zero": any((record.get("loss") or 0) < 0 for record in run.metrics if "loss_early_learning" in record),
        "reliability": None if calibration is None else draw_reliability(calibration.bins),
        "matrix": matrix,
        "lines": shown,
        "lines_left_out": len(lines) - len(shown),
        "annotators": run.annotators,
        "annotators_shown": ANNOTATORS_SHOWN,
        "mixed_up": confusions_in_words,
        "gallery": gallery,
        "inputs": [
            ("outliers", "Outliers", OUTLIERS.format(run.labels.outlier.sum()), gallery.outliers),
            ("conflicts", "Conflicts", CONFLICTS.format(run.labels.conflict.sum()), gallery.conflicts),
        ],
        "recipe": recipe[:RECIPE_SHOWN],
        "recipe_left_out": max(0, len(recipe) - RECIPE_SHOWN),
        "environment": _environment(run),
        "again": _again(run),
    }


def _failed(reader: RunReader, failure: str) -> dict[str, Any]:
    metrics = reader.metrics if (reader.path / METRICS).exists() else []
    multilabel = any("validation_map" in record or "test_map" in record for record in metrics)
    run, recipe = shlex.quote(str(reader.path)), tomli_w.dumps(reader.recipe_tree)
    return {
        "title": reader.path.absolute().name,
        "failure": failure,
        "epochs": len(metrics),
        "commands": [
            ("fix the cause, then continue from the last checkpoint", f"pencil resume {run}"),
            ("or start again", f"pencil train {run}/{RECIPE} --out {run}-again"),
        ],
        "phases": phases_of(metrics),
        "plots": _plots(metrics, multilabel, None),
        "recipe": recipe[:RECIPE_SHOWN],
    }


def _plots(metrics: Sequence[Record], multilabel: bool, best: int | None) -> list[Plot]:
    """Draw the curves of training; ``best`` is the epoch to mark."""
    phases = phases_of(metrics)
    words = wording(multilabel)
    accuracies = {key.format(words.score): name for key, name in SCORES}
    agreement = {}
    if multilabel:  # training agreement is not mAP
        agreement["train_accuracy"] = accuracies.pop("train_accuracy")
    wanted = [
        (words.score_title, "%", accuracies, 100.0, best),
        ("Loss", "", LOSSES, 1.0, None),
        ("Entries that agree with the network", "%", agreement, 100.0, None),
        ("Labels right", "%", {"labels_correct": "training labels"}, 100.0, None),
        ("Labels changed", "", {"labels_changed": "training labels that differ from the given labels"}, 1.0, None),
        ("Label entropy", "nats", {"label_entropy": "mean over labels"}, 1.0, None),
    ]
    plots = []
    for title, unit, names, scale, mark in wanted:
        found = ((place, name, series(metrics, key, scale)) for place, (key, name) in enumerate(names.items()))
        lines = [Line(name, values, place) for place, name, values in found if values is not None]
        if lines:
            plots.append(draw(title, unit, lines, phases, mark))
    return plots


def _source(source: str) -> str:
    """Return the name of the data; of a path the last part, because the recipe below has all of it."""
    return Path(source).name if Path(source).is_absolute() else source


def _again(run: RunData) -> str:
    """Return the command that repeats this run; empty if part of it was passed as Python objects."""
    path, recipe = run.path, run.recipe
    if path is None or recipe.data.source == FROM_PYTHON or CUSTOM in (recipe.model.name, recipe.method["name"]):
        return ""
    return f"pencil train {shlex.quote(str(path / RECIPE))} --out {shlex.quote(f'{path}-again')}"


def _environment(run: RunData) -> dict[str, str]:
    flat = flatten(run.environment, separator=", ")
    return {name.replace("_", " "): "none" if value is None else str(value) for name, value in flat.items()}


def _write(target: Path, template: str, context: dict[str, Any]) -> Path:
    if target.is_dir():
        raise RunError(f"{target} is a folder; expected the name of a file, such as {target / REPORT}.")
    if target.exists() and not _is_report(target):
        raise RunError(f"{target} already exists and is not a pencil report; name another file with --out.")
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("pencil.report"),
        autoescape=True,  # names of classes, files and rows may be hostile
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "short": short,
        "percent": page_percent,
        "probability": probability,
        "count": lambda value: f"{value:,}",
    }
    text = environment.get_template(template).render(generator=GENERATOR, version=__version__, **context)
    write_text(target, text.rstrip() + "\n")
    return target


def _is_report(path: Path) -> bool:
    try:
        refuse_irregular(path)
        with path.open("rb") as file:
            return f'content="{GENERATOR}"'.encode() in file.read(1024)
    except OSError:
        return False


HIDDEN = {*map(chr, range(0x202A, 0x202F)), *map(chr, range(0x2066, 0x206A))}
"""Bidirectional control characters, which can make a name look like another."""


def short(text: object, most: int = 60) -> str:
    """Return a name, shortened in the middle if it is long; control characters are replaced."""
    seen = "".join(
        "�" if letter in HIDDEN or unicodedata.category(letter) in ("Cc", "Cs") else letter
        for letter in str(text)[:10_000]
    )
    return seen if len(seen) <= most else f"{seen[: most // 2]}…{seen[-(most // 2 - 1) :]}"
