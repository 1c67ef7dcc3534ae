"""``pencil evaluate``: the scores of a run's network on its test set or on other labelled data."""

import json
from typing import Annotated

import typer

from pencil.cli.options import AsJson, Mirror, RunPath, Threshold, TrustFiles, pick_threshold
from pencil.cli.output import echo
from pencil.terminal import percent


def evaluate(
    run: RunPath,
    data: Annotated[
        str | None,
        typer.Option("--data", help="Labelled data to use instead of the test set: a folder, table or .npz."),
    ] = None,
    epoch: Annotated[str, typer.Option("--epoch", help="Weights of the `last` or the `best` epoch.")] = "last",
    threshold: Threshold = None,
    mirror: Mirror = False,
    trust: TrustFiles = False,
    as_json: AsJson = False,
) -> None:
    """Print accuracy, overall and per class; for multi-label data, average precision and F1."""
    from pencil.cli.show import say, table
    from pencil.data.prepare import choose_test
    from pencil.data.read import load, read_like
    from pencil.errors import DataError, settings_fixed
    from pencil.runs.run import open_run, trained_on
    from pencil.training.metrics import per_class_scores

    opened = open_run(run, epoch=epoch, trust=trust)
    cut = pick_threshold(threshold, opened.multilabel)
    settings = opened.recipe.data
    with settings_fixed():
        splits = (
            read_like(data, settings, opened.classes, opened.multilabel, kind=trained_on(opened))
            if data
            else load(settings, local=not trust)
        )
        examples = splits.train if data and splits.test is None else splits.test
        if examples is not None and not data:
            examples = choose_test(settings, examples)  # the same rows as the run's own score
        if examples is None:
            raise DataError(f"the data of {run} has no test set; pass labelled data with --data DATA.")
        probs = opened.predict_inputs(examples.inputs, examples.rows, mirror=mirror)
    found = per_class_scores(probs, examples, cut) | ({"mirror": True} if mirror else {})
    averaged = ", averaged with mirror images" if mirror else ""
    if as_json:
        echo(json.dumps(found))
    elif examples.multilabel:
        shown = table("class", "average precision", f"F1 above {cut:g}", "rows")
        for name, value in found["per_class"].items():
            shown.add_row(name, percent(value), percent(found["class_f1"][name]), f"{found['class_rows'][name]:,}")
        shown.add_section()
        shown.add_row(f"mean of classes{averaged}", percent(found["map"]), percent(found["f1"]), f"{found['rows']:,}")
        shown.add_row("all labels (micro)", percent(found["map_micro"]), percent(found["f1_micro"]), "")
        say(shown)
    else:
        shown = table("class", "accuracy", "rows")
        for name, value in found["per_class"].items():
            shown.add_row(name, percent(value), f"{found['class_rows'][name]:,}")
        shown.add_section()
        shown.add_row(f"all{averaged}", percent(found["accuracy"]), f"{found['rows']:,}")
        say(shown)
