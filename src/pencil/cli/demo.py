"""``pencil demo``: label correction on a real dataset shipped with a dependency, in under a minute."""

import json
from pathlib import Path
from typing import Annotated

import typer

from pencil.cli.options import AsJson, build_recipe
from pencil.cli.output import echo

RECIPES = {"cross_entropy": "digits-symmetric-50-cross-entropy", "auto": "digits-symmetric-50-auto"}


def demo(
    out: Annotated[Path | None, typer.Option("--out", help="Directory for both runs; default: runs/demo.")] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of noise, split, weights and order.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Corrupt half of the labels of 1,347 digits, train cross-entropy and auto, and test both on 450 clean digits."""
    from pencil.cli.show import show_results
    from pencil.errors import RunError
    from pencil.job import run_recipe
    from pencil.runs.layout import free_path

    target = out or free_path(Path("runs"), "demo")
    if target.exists():
        raise RunError(f"{target} already exists; choose another directory with --out.")
    runs = []
    for method, recipe in RECIPES.items():
        echo(f"training {method} on digits with 50 % symmetric label noise ...", err=True)
        runs.append(run_recipe(build_recipe(recipe, {"seed": seed}), target / method, progress=True))
    if as_json:
        echo(json.dumps([{"path": str(run.path), **run.summary.to_dict()} for run in runs]))
    else:
        show_results([(run.path, run.summary) for run in runs], title="Digits, 50 % symmetric label noise")
