"""Cells on the machines of a Ray cluster: the same cells and result files as on one machine."""

from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from pencil.bench.runner import Result, read_results, run_cell, unfinished
from pencil.bench.spec import Cell
from pencil.cluster import as_task, finished_tasks, has_gpus, joined_cluster, reason_of
from pencil.files import write_json


def run_cells_on_ray(
    cells: Sequence[Cell], folder: Path, at_a_time: int | None, report: Callable[[Cell, Result, int], None]
) -> dict[str, Result]:
    """Run every cell that has no result yet; see :func:`pencil.bench.runner.run_cells`.

    The cluster is that of :func:`pencil.cluster.joined_cluster`. A cell takes a core, and a GPU where the cluster has
    some; one whose machine dies runs once more. Results come back to this process, which writes them.

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
    with joined_cluster() as ray:
        todo = unfinished(cells, folder)
        left, task = len(todo), as_task(ray, run_cell, gpu=has_gpus(ray))
        with closing(finished_tasks(ray, task, [(cell,) for cell in todo], at_a_time)) as finished:
            for number, reference in finished:
                cell, left = todo[number], left - 1
                result = _result(ray, reference)
                write_json(folder / f"{cell.identity()}.json", result, indent=None)
                report(cell, result, left)
    return read_results(cells, folder)


def _result(ray: Any, task: Any) -> Result:
    """Return what a cell has returned; one whose process or machine died has failed, and the others go on."""
    try:
        result: Result = ray.get(task)
    except ray.exceptions.RayError as error:
        return {"status": "failed", "error": reason_of(error)}
    return result
