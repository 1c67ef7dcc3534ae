"""``pencil evaluate``: how good a run's network is on its test set, or on other labelled data."""

import json
from pathlib import Path
from typing import Annotated

import typer

from pencil.cli.options import AsJson, RunPath


def evaluate(
    run: RunPath,
    data: Annotated[Path | None, typer.Option("--data", help="Labelled data (.npz) instead of the test set.")] = None,
    epoch: Annotated[str, typer.Option("--epoch", help="Weights of the `last` or the `best` epoch.")] = "last",
    as_json: AsJson = False,
) -> None:
    """Accuracy, overall and per class."""
    from pencil.cli.show import percent, show, table
    from pencil.data.arrays import from_npz
    from pencil.data.examples import Examples
    from pencil.data.given import hard_labels
    from pencil.data.settings import load
    from pencil.errors import DataError
    from pencil.runs import open_run

    opened = open_run(run, epoch=epoch)
    examples: Examples | None = from_npz(data, opened.classes)[0] if data else load(opened.recipe.data)[1]
    if examples is None:
        raise DataError(f"the data of {run} has no test set; name labelled data with --data FILE.npz.")
    labels = hard_labels(examples.given_labels)
    right = opened.predict_inputs(examples.inputs, examples.rows).argmax(dim=1) == labels
    per_class = {
        name: float(right[labels == k].double().mean()) for k, name in enumerate(opened.classes) if (labels == k).any()
    }
    accuracy = float(right.double().mean())
    if as_json:
        typer.echo(json.dumps({"accuracy": accuracy, "rows": len(examples), "per_class": per_class}))
        return
    shown = table("class", "accuracy", "rows")
    for k, name in enumerate(opened.classes):
        shown.add_row(name, percent(per_class.get(name)), f"{int((labels == k).sum()):,}")
    shown.add_section()
    shown.add_row("all", percent(accuracy), f"{len(examples):,}")
    show(shown)
