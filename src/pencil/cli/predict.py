"""``pencil predict``: the predictions of a run's network for new inputs."""

import csv
import json
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from pencil.cli.options import AsJson, Mirror, RunPath, Threshold, TrustFiles, pick_threshold
from pencil.cli.output import echo, text_output

if TYPE_CHECKING:
    from torch import Tensor


def predict(
    run: RunPath,
    data: Annotated[
        list[Path],
        typer.Argument(metavar="DATA...", help="Images and folders of images, or one table, .npz or .npy."),
    ],
    threshold: Threshold = None,
    maps: Annotated[
        Path | None,
        typer.Option(
            "--maps", metavar="FILE.npz", help="Also write the attention map of each class (needs model.attention)."
        ),
    ] = None,
    mirror: Mirror = False,
    trust: TrustFiles = False,
    as_json: AsJson = False,
) -> None:
    """Print one line per input: key, class and its probability (CSV, or JSON lines with every probability).

    If inputs cannot be read, a column `error` gives the reasons, all other inputs are still predicted, and the exit
    code is 1.

    The key is the image's path within its folder, or the path as given if there are several DATA.

    For multi-label data the classes are separated by semicolons, and the confidence is the lowest of their
    probabilities.

    In CSV, a key or class that a spreadsheet program would run as a formula is prefixed with a quote (').
    """
    from pencil.data.read import read_inputs
    from pencil.export import save_maps
    from pencil.runs.run import open_run, trained_on

    opened = open_run(run, trust=trust).without_refusals()
    cut = pick_threshold(threshold, opened.multilabel)
    inputs, keys = read_inputs(data, opened.recipe.data, trained_on(opened))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*the row is skipped")  # its reason is in the output
        if maps is not None:
            save_maps(maps, keys, opened.classes, opened.class_maps(inputs).numpy())
        probs = opened.predict_inputs(inputs, mirror=mirror)
    unread = probs.isnan().any(dim=1).nonzero()[:, 0].tolist()
    errors = {row: inputs.fault_of(row) or "it cannot be read" for row in unread}
    answers = [
        Prediction(key, errors[row]) if row in errors else _answer(key, some, opened.classes, cut, opened.multilabel)
        for row, (key, some) in enumerate(zip(keys, probs, strict=True))
    ]
    _write_json(answers) if as_json else _write_csv(answers, with_errors=bool(errors))
    if errors:
        echo(f"error: {len(errors):,} of {len(keys):,} inputs cannot be read; all others have predictions", err=True)
        raise typer.Exit(1)


class Prediction(NamedTuple):
    """The prediction for one input, or the reason why it is missing."""

    key: str
    error: str | None = None
    name: str | list[str] = ""
    confidence: float = 0.0
    probabilities: dict[str, float] | None = None


def _answer(key: str, probs: "Tensor", classes: tuple[str, ...], threshold: float, multilabel: bool) -> Prediction:
    name, confidence = _describe(probs, classes, threshold if multilabel else None)
    return Prediction(key, None, name, confidence, dict(zip(classes, probs.tolist(), strict=True)))


def _write_json(answers: list[Prediction]) -> None:
    for key, error, name, confidence, probabilities in answers:
        found = {"class": name, "confidence": confidence, "probabilities": probabilities}
        echo(json.dumps({"key": key, **(found if error is None else {"class": None, "error": error})}))


def _write_csv(answers: list[Prediction], *, with_errors: bool) -> None:
    from pencil.formulas import escape_formula

    lines = csv.writer(text_output(), lineterminator="\n")
    lines.writerow(["key", "class", "confidence", *(["error"] if with_errors else [])])
    for key, error, name, confidence, _ in answers:
        names = [name] if isinstance(name, str) else name
        cells = [
            escape_formula(str(key)),
            ";".join(map(escape_formula, names)),
            "" if error is not None else f"{confidence:.4f}",
        ]
        lines.writerow([*cells, *([escape_formula(error or "")] if with_errors else [])])


def _describe(probs: "Tensor", classes: tuple[str, ...], threshold: float | None) -> tuple[str | list[str], float]:
    """Return the class and its probability, or all classes present and the probability of the least confident one."""
    if threshold is None:
        best = probs.max(dim=0)
        return classes[int(best.indices)], float(best.values)
    present = probs > threshold
    confidence = probs.where(present, 1 - probs).amin()
    return [name for name, there in zip(classes, present.tolist(), strict=True) if there], float(confidence)
