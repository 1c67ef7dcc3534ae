"""Arguments shared by several commands, and the recipe that they build."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pencil.cli.output import echo
from pencil.errors import RecipeError, RunError, command
from pencil.runs.layout import is_run
from pencil.terminal import counted

if TYPE_CHECKING:
    from pencil.recipe import Recipe
    from pencil.runs.directory import RunReader
    from pencil.user_file import Trust

What = Annotated[
    str,
    typer.Argument(
        metavar="WHAT", help="A recipe (name or .toml), a dataset name, or data: a folder, table, .npz or hf/NAME."
    ),
]
RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")]
MethodName = Annotated[str | None, typer.Option("--method", help="Method name, or my_file.py:MyMethod.")]
ModelName = Annotated[str | None, typer.Option("--model", help="Backbone name, such as small_cnn or timm/resnet18.")]
Seed = Annotated[int | None, typer.Option("--seed", help="Seed of noise, split, weights and order.")]
Epochs = Annotated[int | None, typer.Option("--epochs", help="Total epochs; phases keep their proportions.")]
Budget = Annotated[
    str | None,
    typer.Option(
        "--budget",
        metavar="TIME",
        help="Train for this long (90s, 10m, 2h) instead of --epochs; only for the method auto.",
    ),
]
Device = Annotated[str | None, typer.Option("--device", help="cpu, cuda or cuda:1; default: a GPU if available.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Show no progress; print only the run directory.")]
Set = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override any key of the recipe.")]
Pinned = Annotated[
    Path | None,
    typer.Option("--pinned", metavar="FILE", help="Reviewed labels (RUN/reviews.jsonl), which are kept fixed."),
]
Threshold = Annotated[
    float | None,
    typer.Option("--threshold", help="Multi-label: a class is present above this probability (default 0.5)."),
]
Mirror = Annotated[
    bool, typer.Option("--mirror", help="Average the predictions for each image and its mirror image; twice the time.")
]
TrustFiles = Annotated[
    bool, typer.Option("--trust", help="Execute the Python files that the recipe or run names; read them first.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
AsTrained = Annotated[
    bool,
    typer.Option("--as-trained", help="Read the labels of training, even if an audit has decided them again."),
]


def read_run(run: Path, *, as_trained: bool, finished: bool = True, named: bool = False) -> "RunReader":
    """Return the reader of a run; say on stderr whose labels it reads if an audit has decided them.

    Unless ``as_trained``, these are the decided labels. ``named`` names the run, because the command reads several.
    """
    from pencil.runs.directory import RunReader

    reader = RunReader(run, finished=finished, as_trained=as_trained)
    if reader.is_audited:
        audit = reader.summary.audit
        by = "an audit that was interrupted" if audit is None else f"the audit ({counted(audit.rows, 'answer')})"
        start = f"{run}: " if named else ""
        echo(f"{start}labels as decided by {by}; --as-trained reads the labels of training", err=True)
    return reader


def build_recipe(
    what: str,
    options: Mapping[str, Any] | None = None,
    *,
    method: str | None = None,
    epochs: int | None = None,
    budget: str | None = None,
    assignments: list[str] | None = None,
    trust: bool = False,
    skip_refused: bool = False,
) -> "Recipe":
    """Defaults < recipe < options < ``--set``. A method other than the recipe's uses its own defaults.

    ``options`` are values of recipe keys, such as ``{"model.name": "mlp"}``; None leaves a key unchanged. Python
    files named on the command line may be executed; files named by the recipe only with ``trust``. Otherwise they
    are refused, or skipped with ``skip_refused``.
    """
    from pencil import recipe

    if is_run(Path(what)):
        raise RecipeError(
            f"{what} is a run directory; expected data; name the data, or resume the run with "
            f"{command('resume', what)}."
        )
    tree, options = _with_length(recipe.find(what), epochs, budget), options or {}
    if method is not None and recipe.method_name(tree) != method:
        tree = {**tree, "method": {"name": method}}
    for key, value in options.items():
        if value is not None:
            tree = recipe.assign(tree, key.split("."), value)
    tree = recipe.override(tree, assignments or [])
    trusted = named_files(method, options.get("model.name"), assignments, trust=trust)
    origin = what if what.endswith(".toml") and not assignments else "this command"
    return recipe.parse(tree, origin, trust=trusted, skip_refused=skip_refused)


def _with_length(tree: dict[str, Any], epochs: int | None, budget: str | None) -> dict[str, Any]:
    """Return the recipe with its training length replaced by the command line's."""
    if epochs is not None and budget is not None:
        raise RecipeError(
            f"--epochs {epochs} and --budget {budget} both set the training length; expected one of them; remove the "
            "other."
        )
    training = tree.get("training", {})
    if (epochs is None and budget is None) or not isinstance(training, dict):
        return tree
    kept = {key: value for key, value in training.items() if key not in ("epochs", "minutes")}
    length = {"epochs": epochs} if budget is None else {"minutes": minutes(budget)}
    return {**tree, "training": kept | length}


def named_files(
    method: str | None, model: str | None, assignments: list[str] | None, *, trust: bool = False
) -> "Trust":
    """Return trust in the Python files named on the command line by --method, --model or --set."""
    from pencil import recipe
    from pencil.user_file import Trust

    by_option = {"method": {"name": method}, "model": {"name": model}}
    return Trust.of(by_option, everything=trust) | Trust.of(recipe.override({}, assignments or []))


def minutes(budget: str) -> float:
    """Return ``90s``, ``10m`` or ``1.5h`` in minutes."""
    unit = {"s": 1 / 60, "m": 1.0, "h": 60.0}.get(budget[-1:])
    try:
        found = float(budget if unit is None else budget[:-1])
    except ValueError:
        found = 0.0
    if not 0 < found < float("inf"):
        raise RecipeError(f"--budget is {budget!r}; expected a time such as 90s, 10m or 2h.")
    if unit is None:
        raise RecipeError(f"--budget is {budget!r}, which has no unit; write {budget}s, {budget}m or {budget}h.")
    return found * unit


def pick_threshold(threshold: float | None, multilabel: bool) -> float:
    """Return the probability above which a class is present in multi-label data."""
    if threshold is None:
        return 0.5
    if not multilabel:
        raise RunError("--threshold only works with multi-label runs; this run is single-label; remove it.")
    if not 0 <= threshold < 1:
        raise RunError(f"--threshold is {threshold:g}; expected a probability of at least 0 and below 1.")
    return threshold
