"""``pencil evaluate``: how good a run's network is on its test set, or on other labelled data."""

import json
from typing import Annotated

import typer

from pencil.cli.options import AsJson, RunPath


def evaluate(
    run: RunPath,
    data: Annotated[
        str | None, typer.Option("--data", help="Labelled data instead of the test set: a folder, table, .npz.")
    ] = None,
    epoch: Annotated[str, typer.Option("--epoch", help="Weights of the `last` or the `best` epoch.")] = "last",
    as_json: AsJson = False,
) -> None:
    """Accuracy, overall and per class."""
    from pencil.cli.show import percent, show, table
    from pencil.data.given import hard_labels
    from pencil.data.sources import load, read_source
    from pencil.errors import DataError
    from pencil.runs import open_run

    opened = open_run(run, epoch=epoch)
    settings = opened.recipe.data
    examples = read_source(data, settings, opened.classes).train if data else load(settings).test
    if examples is None:
        raise DataError(f"the data of {run} has no test set; name labelled data with --data.")
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
