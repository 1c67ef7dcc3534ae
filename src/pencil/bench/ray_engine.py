"""Cells on the machines of a Ray cluster: the same cells and result files as on one machine."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pencil.bench.runner import Result, read_results, run_cell, unfinished
from pencil.bench.spec import Cell
from pencil.errors import RecipeError
from pencil.files import write_json

RETRIES = 1
"""A cell whose machine dies runs once more on another one."""


def run_cells_on_ray(
    cells: Sequence[Cell], folder: Path, at_a_time: int | None, report: Callable[[Cell, Result, int], None]
) -> dict[str, Result]:
    """Run every cell that has no result yet; see :func:`pencil.bench.runner.run_cells`.

    The cluster is the one that ``RAY_ADDRESS`` names; without it a local one is started, and stopped at the end. A cell
    takes a core, and a GPU where the cluster has some. Results come back to this process, which writes them.

    Parameters
    ----------
    cells : sequence of Cell
        The grid.
    folder : Path
        Has a file for each result.
    at_a_time : int or None
        Run at most this many cells at a time; None leaves it to Ray.
    report : callable
        Called as ``report(cell, result, left)`` after each cell.
    """
    ray = _import_ray()
    todo = unfinished(cells, folder)
    joined = not ray.is_initialized()
    if joined:
        address = os.environ.get("RAY_ADDRESS", "local")
        ray.init(address=address, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        gpus = 1 if ray.cluster_resources().get("GPU", 0) else 0
        remote = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=RETRIES)(run_cell)
        left = len(todo)
        running: dict[Any, Cell] = {}
        while todo or running:
            while todo and (at_a_time is None or len(running) < at_a_time):
                cell = todo.pop(0)
                running[remote.remote(cell)] = cell
            (done, *_), _ = ray.wait(list(running), num_returns=1)
            cell, left = running.pop(done), left - 1
            result = _result(ray, done)
            write_json(folder / f"{cell.identity()}.json", result, indent=None)
            report(cell, result, left)
    finally:
        if joined:
            ray.shutdown()
    return read_results(cells, folder)


def _result(ray: Any, task: Any) -> Result:
    """Return what a cell has returned; one whose process or machine died has failed, and the others go on."""
    try:
        result: Result = ray.get(task)
    except ray.exceptions.RayError as error:
        return {"status": "failed", "error": f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"}
    return result


def _import_ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise RecipeError("--engine ray needs Ray; install it with pip install 'pencil-labels[ray]'.") from error
    return ray
