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
    """Accuracy, overall and per class; average precision where an example may be of several classes."""
    from pencil.cli.show import percent, show, table
    from pencil.data.prepare import choose_test
    from pencil.data.sources import load, read_source
    from pencil.errors import DataError
    from pencil.runs import open_run
    from pencil.training.metrics import per_class_scores

    opened = open_run(run, epoch=epoch)
    settings = opened.recipe.data
    splits = read_source(data, settings, opened.classes) if data else load(settings)
    examples = splits.train if data and splits.test is None else splits.test
    if examples is not None and not data:
        examples = choose_test(settings, examples)  # as the run itself was measured
    if examples is None:
        raise DataError(f"the data of {run} has no test set; name labelled data with --data.")
    found = per_class_scores(opened.predict_inputs(examples.inputs, examples.rows), examples)
    if as_json:
        typer.echo(json.dumps(found))
        return
    score = "average precision" if examples.multilabel else "accuracy"
    shown = table("class", score, "rows")
    for name, value in found["per_class"].items():
        shown.add_row(name, percent(value), f"{found['class_rows'][name]:,}")
    shown.add_section()
    shown.add_row("all", percent(found["map" if examples.multilabel else "accuracy"]), f"{found['rows']:,}")
    show(shown)
    if examples.multilabel:
        show(
            f"\nmicro mAP {percent(found['map_micro'])}, F1 {percent(found['f1'])} ({percent(found['f1_micro'])} micro)"
        )
