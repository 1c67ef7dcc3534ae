"""``pencil bench``: every method on the same data, noise, backbone, budget and seeds."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pencil.cli.options import AsJson, TrustFiles, minutes
from pencil.cli.output import echo
from pencil.errors import RecipeError
from pencil.terminal import counted

if TYPE_CHECKING:
    from pencil.bench.runner import Result
    from pencil.bench.spec import GridCell, Spec

Processes = Annotated[
    int | None,
    typer.Option(
        "--processes",
        min=1,
        help="Number of cells to run in parallel; default: one per GPU, or one per core without a GPU.",
    ),
]
Names = list[str] | None


def bench(
    spec: Annotated[str, typer.Argument(metavar="SPEC", help="A benchmark by name, a .toml file, or kl-analysis.")],
    out: Annotated[Path | None, typer.Option("--out", help="Output directory; default: bench/NAME.")] = None,
    processes: Processes = None,
    engine: Annotated[
        str, typer.Option("--engine", help="Where cells run: local, or ray for a Ray cluster.")
    ] = "local",
    root: Annotated[Path | None, typer.Option("--root", help="Directory of the dataset's files.")] = None,
    budget: Annotated[
        str | None,
        typer.Option("--budget", help="Train every cell for the same time (90s, 10m), with as many epochs as fit."),
    ] = None,
    dataset: Annotated[Names, typer.Option("--dataset", help="Only this dataset; repeatable.")] = None,
    noise: Annotated[Names, typer.Option("--noise", help="Only this noise; repeatable.")] = None,
    method: Annotated[Names, typer.Option("--method", help="Only this method; repeatable.")] = None,
    seed: Annotated[
        list[int] | None, typer.Option("--seed", min=0, help="Use this seed instead of the spec's seeds; repeatable.")
    ] = None,
    latex: Annotated[bool, typer.Option("--latex", help="Also write the tables as LaTeX (results.tex).")] = False,
    trust: TrustFiles = False,
    as_json: AsJson = False,
) -> None:
    """Run a grid of methods and write tables. The same command resumes an interrupted benchmark."""
    from pencil.bench.spec import read_spec

    if spec == "kl-analysis":
        if latex:
            raise RecipeError("--latex needs a grid, and kl-analysis is not a grid; remove --latex.")
        from pencil.bench.kl_analysis import analyse

        target = out or Path("bench") / "kl-analysis"
        text = analyse(target)
        echo((target / "results.json").read_text(encoding="utf-8") if as_json else text, nl=False)
        return
    given = read_spec(spec, trust)
    whole = given.available()
    for name, file in given.left_out().items():
        echo(f"{name} is left out: it needs {file} in the current folder", err=True)
    if root is not None:
        data = {**whole.recipe.get("data", {}), "root": str(root)}
        whole = whole.model_copy(update={"recipe": {**whole.recipe, "data": data}})
    if budget is not None:
        whole = whole.model_copy(update={"budget_seconds": 60 * minutes(budget)})
    chosen = whole.part(dataset or (), noise or (), method or (), seed or ())
    target = out or Path("bench") / chosen.name
    entries = _run(whole, chosen, target, processes, engine, latex)
    if as_json:
        echo(json.dumps([entry.as_json() for entry in entries]))
    else:
        echo((target / "results.md").read_text(encoding="utf-8"), nl=False)
        echo(f"written to {target}", err=True)


def _run(whole: "Spec", chosen: "Spec", target: Path, processes: int | None, engine: str, latex: bool = False) -> Any:
    from pencil.bench import runner
    from pencil.bench.progress import show_cells
    from pencil.bench.ray_engine import run_cells_on_ray
    from pencil.training.cluster import check_engine

    check_engine(engine)
    cells = list(chosen.cells())
    for cell in whole.cells():
        cell.recipe()  # reports every error in the spec before the first cell runs
    try:
        with show_cells() as display:

            def report(cell: "GridCell", result: "Result", left: int) -> None:
                display.on_end(cell, _line(cell, result, left))

            folder = target / "cells"
            if engine == "ray":
                run_cells_on_ray(cells, folder, processes, report, display.on_news)
            else:
                runner.run_cells(cells, folder, processes or runner.default_processes(), report, display.on_news)
    finally:  # finished cells can be read even after an interruption
        entries = _write_tables(whole, chosen, target, latex)
    return entries


def _line(cell: "GridCell", result: "Result", left: int) -> str:
    """The message at the end of a cell."""
    if result["status"] == "failed":
        return f"failed: {cell.label}: {result['error']}"
    summary = result["summary"]
    test = summary.get("test_accuracy", summary.get("test_map", {})).get("last")
    shown = "" if test is None else f" test {test:.1%}"
    return f"{cell.label}:{shown} {counted(summary['epochs'], 'epoch')} in {summary['seconds']:.0f} s ({left} left)"


def _write_tables(whole: "Spec", asked: "Spec", target: Path, latex: bool = False) -> Any:
    """Write the tables of the requested grid and of all other results in the folder; return their entries."""
    from pencil.bench import tables
    from pencil.bench.latex import as_latex
    from pencil.bench.plots import plot_cells
    from pencil.bench.runner import read_results, unfinished
    from pencil.files import write_json, write_text

    chosen = _with_results(whole, asked, target / "cells")
    results = read_results(list(chosen.cells()), target / "cells")
    entries = tables.collect_entries(chosen, results)
    left = unfinished(list(asked.cells()), target / "cells")
    if left:
        total = len(list(asked.cells()))
        echo(f"{total - len(left)} of {total} cells are done; run the same command to resume", err=True)
    by_budget = _by_budget(chosen, target / "cells")
    payload = {"spec": chosen.model_dump(mode="json"), "entries": [entry.as_json() for entry in entries]}
    if len(by_budget) > 1:
        payload["by_budget"] = {name: [entry.as_json() for entry in found] for name, found in by_budget.items()}
    write_json(target / "results.json", payload, indent=1)
    write_text(target / "results.md", tables.as_markdown(chosen, entries, by_budget))
    write_text(target / "results.html", tables.as_html(chosen, entries, by_budget))
    if latex:
        write_text(target / "results.tex", as_latex(chosen, entries, by_budget))
    plot_cells(chosen, results, target)
    return entries


def _with_results(whole: "Spec", asked: "Spec", folder: Path) -> "Spec":
    """Return the requested grid, plus the rest of the whole grid that has results in the folder."""
    from pencil.bench.runner import read_results

    everything = whole.part(seeds=sorted({*whole.seeds, *asked.seeds}))
    results = read_results(list(everything.cells()), folder)
    shown = [*asked.cells(), *(cell for cell in everything.cells() if cell.identity() in results)]
    return everything.part(
        [cell.dataset for cell in shown],
        [cell.noise for cell in shown],
        [cell.method for cell in shown],
        sorted({cell.seed for cell in shown}),
    )


def _by_budget(chosen: "Spec", folder: Path) -> dict[str, Any]:
    """The entries of this grid for equal epochs and for every time budget with results in the folder."""
    from pencil.bench import tables
    from pencil.bench.runner import budgets, read_results

    found = {}
    for seconds in (None, *budgets(folder)):
        spec = chosen.model_copy(update={"budget_seconds": seconds})
        results = read_results(list(spec.cells()), folder)
        if results:
            found["equal epochs" if seconds is None else f"{seconds:g} s"] = tables.collect_entries(spec, results)
    return found
