"""``pencil predict``: what a run's network says about new inputs."""

import csv
import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from pencil.cli.options import AsJson, RunPath


def predict(
    run: RunPath,
    data: Annotated[
        Path, typer.Argument(metavar="DATA", help="Inputs: a folder of images, one image, a table, .npz or .npy.")
    ],
    as_json: AsJson = False,
) -> None:
    """One line per input: key, class and its probability (CSV, or JSON lines with every probability)."""
    from pencil.data.unlabelled import read_inputs
    from pencil.runs import open_run

    opened = open_run(run)
    inputs, keys = read_inputs(data, opened.recipe.data)
    probs = opened.predict_inputs(inputs)
    best = probs.max(dim=1)
    lines = csv.writer(sys.stdout, lineterminator="\n")
    if not as_json:
        lines.writerow(["key", "class", "confidence"])
    for row, key in enumerate(keys):
        name, confidence = opened.classes[int(best.indices[row])], float(best.values[row])
        if as_json:
            every = dict(zip(opened.classes, probs[row].tolist(), strict=True))
            typer.echo(json.dumps({"key": key, "class": name, "confidence": confidence, "probabilities": every}))
        else:
            lines.writerow([key, name, f"{confidence:.4f}"])
