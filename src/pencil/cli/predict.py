"""``pencil predict``: the predictions of a run's network for new inputs."""

import csv
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pencil.cli.options import AsJson, RunPath, Threshold, TrustFiles, pick_threshold
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
        typer.Option("--maps", metavar="FILE.npz", help="Also write where each class was found (model.attention)."),
    ] = None,
    trust: TrustFiles = False,
    as_json: AsJson = False,
) -> None:
    """One line per input: key, class and its probability (CSV, or JSON lines with every probability).

    The key is the image's path in its folder, or its whole path as named where there are several DATA.

    For multi-label data the classes are separated by semicolons, and the confidence is that of the least confident one.

    In CSV a key or class that a spreadsheet program would take for a formula has a quote (') before it.
    """
    from pencil.data.sources import read_inputs
    from pencil.export import save_maps
    from pencil.export.cells import neutral
    from pencil.runs.run import open_run

    opened = open_run(run, trust=trust)
    cut = pick_threshold(threshold, opened.multilabel)
    inputs, keys = read_inputs(data, opened.recipe.data)
    if maps is not None:
        save_maps(maps, keys, opened.classes, opened.class_maps(inputs).numpy())
    probs = opened.predict_inputs(inputs)
    lines = csv.writer(text_output(), lineterminator="\n")
    if not as_json:
        lines.writerow(["key", "class", "confidence"])
    for key, row in zip(keys, probs, strict=True):
        if row.isnan().any():  # it cannot be read, and the user has been warned
            echo(json.dumps({"key": key, "class": None})) if as_json else lines.writerow([neutral(str(key)), "", ""])
            continue
        name, confidence = _describe(row, opened.classes, cut if opened.multilabel else None)
        if as_json:
            every = dict(zip(opened.classes, row.tolist(), strict=True))
            echo(json.dumps({"key": key, "class": name, "confidence": confidence, "probabilities": every}))
        else:
            names = [name] if isinstance(name, str) else name
            lines.writerow([neutral(str(key)), ";".join(map(neutral, names)), f"{confidence:.4f}"])


def _describe(probs: "Tensor", classes: tuple[str, ...], threshold: float | None) -> tuple[str | list[str], float]:
    """Return the class and its probability, or all classes present and the probability of the least confident one."""
    if threshold is None:
        best = probs.max(dim=0)
        return classes[int(best.indices)], float(best.values)
    present = probs > threshold
    confidence = probs.where(present, 1 - probs).amin()
    return [name for name, there in zip(classes, present.tolist(), strict=True) if there], float(confidence)
