"""``pencil train``: train a recipe or a dataset; ``pencil resume``: resume an interrupted run."""

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pencil.cli.options import (
    AsJson,
    Budget,
    Device,
    Epochs,
    MethodName,
    ModelName,
    Pinned,
    Quiet,
    RunPath,
    Seed,
    Set,
    TrustFiles,
    What,
    build_recipe,
)
from pencil.cli.output import echo

if TYPE_CHECKING:
    from pencil.runs.run import Run

Processes = Annotated[
    int | None, typer.Option("--processes", min=1, help="Number of training processes on this machine.")
]
Engine = Annotated[
    str,
    typer.Option(
        "--engine", help="Where the features of a frozen backbone are computed: local, or ray for a Ray cluster."
    ),
]
Log = Annotated[
    list[str] | None, typer.Option("--log", help="Also log every epoch to tensorboard, wandb or mlflow; repeatable.")
]
Finetune = Annotated[
    int | None,
    typer.Option(
        "--finetune",
        min=1,
        metavar="EPOCHS",
        help="Train the head on a pretrained network, then fine-tune the whole network for EPOCHS.",
    ),
]
AllowChanged = Annotated[
    bool, typer.Option("--allow-changed", help="Resume even if rows were added or removed; labels are matched by key.")
]


def train(
    what: What,
    method: MethodName = None,
    model: ModelName = None,
    out: Annotated[Path | None, typer.Option("--out", help="Run directory; default: runs/NAME.")] = None,
    seed: Seed = None,
    epochs: Epochs = None,
    budget: Budget = None,
    finetune: Finetune = None,
    pinned: Pinned = None,
    device: Device = None,
    log: Log = None,
    assignments: Set = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume if this command was interrupted before.")] = False,
    allow_changed: AllowChanged = False,
    processes: Processes = None,
    engine: Engine = "local",
    trust: TrustFiles = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Train on noisy labels: a robust model and corrected labels, in a run directory."""
    options = {
        "seed": seed,
        "data.pinned": pinned,
        "model.name": model,
        "model.finetune_epochs": finetune,
        "training.device": device,
        "training.log": log or None,
    }
    recipe = build_recipe(
        what, options, method=method, epochs=epochs, budget=budget, assignments=assignments, trust=trust
    )
    from pencil.job import run_recipe
    from pencil.runs.layout import free_path, unfinished_path

    resume = resume or int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0

    def default_path(resumes: bool) -> Path:
        name = f"{recipe.name}-{Path(recipe.method['name']).stem}"
        return (unfinished_path if resumes else free_path)(Path("runs"), name)

    if processes is not None:
        _launch(processes, out or default_path(resume))
    target, progress = out or default_path, not quiet
    run = run_recipe(recipe, target, resume=resume, allow_changed=allow_changed, progress=progress, engine=engine)
    _show(run, as_json, quiet)


def resume(
    path: RunPath,
    allow_changed: AllowChanged = False,
    processes: Processes = None,
    engine: Engine = "local",
    trust: TrustFiles = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Resume an interrupted run; the result is the same as without the interruption."""
    if processes is not None:
        _launch(processes)
    from pencil.job import resume_run

    run = resume_run(path, allow_changed=allow_changed, progress=not quiet, engine=engine, trust=trust)
    _show(run, as_json, quiet)


def _launch(processes: int, target: Path | None = None) -> None:
    """Run this command again in several processes, all with the same run directory."""
    from pencil.training.distributed import launch

    arguments = list(sys.argv[1:])
    position = next(i for i, word in enumerate(arguments) if word.split("=")[0] == "--processes")
    del arguments[position : position + (1 if "=" in arguments[position] else 2)]
    if target is not None and not any(word.split("=")[0] == "--out" for word in arguments):
        arguments += ["--out", str(target)]
    raise typer.Exit(launch(processes, arguments))


def _show(run: "Run", as_json: bool, quiet: bool) -> None:
    from pencil.cli.show import show_results

    if int(os.environ.get("RANK", "0")) > 0:
        return
    if as_json:
        echo(json.dumps({"path": str(run.path), **run.summary.to_dict()}))
    elif quiet:
        echo(run.path)
    else:
        show_results([(run.path, run.summary)])
