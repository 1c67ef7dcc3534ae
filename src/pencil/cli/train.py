"""``pencil train``: run a recipe, or train on a dataset."""

import json
from pathlib import Path
from typing import Annotated

import typer

from pencil.cli.options import AsJson, Epochs, MethodName, ModelName, Seed, Set, What, build_recipe


def train(
    what: What,
    method: MethodName = None,
    model: ModelName = None,
    out: Annotated[Path | None, typer.Option("--out", help="Run directory; runs/NAME by default.")] = None,
    seed: Seed = None,
    epochs: Epochs = None,
    assignments: Set = None,
    as_json: AsJson = False,
) -> None:
    """Train on noisy labels: a robust model and corrected labels, in a run directory."""
    recipe = build_recipe(what, method, model, seed, epochs, assignments)
    from pencil.cli.show import show_summary
    from pencil.job import run_recipe
    from pencil.runs import free_path

    target = out or free_path(Path("runs"), f"{recipe.name}-{Path(recipe.method['name']).stem}")
    run = run_recipe(recipe, target, progress=True)
    if as_json:
        typer.echo(json.dumps({"path": str(target), **run.summary}))
    else:
        show_summary([run])
