"""Cells on the machines of a Ray cluster: the same cells and result files as on one machine."""

from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from pencil.bench.progress import News, warnings_told
from pencil.bench.runner import Result, read_results, run_cell, unfinished
from pencil.bench.spec import GridCell
from pencil.files import write_json
from pencil.training.cluster import as_task, finished_tasks, has_gpus, joined_cluster, reason_of


def run_cells_on_ray(
    cells: Sequence[GridCell],
    folder: Path,
    at_a_time: int | None,
    report: Callable[[GridCell, Result, int], None],
    watch: Callable[[GridCell, News], None] = lambda *_: None,
) -> dict[str, Result]:
    """Run every cell that has no result yet; see :func:`pencil.bench.runner.run_cells`.

    The cluster is joined by :func:`pencil.training.cluster.joined_cluster`. A cell takes a core, and a GPU if the
    cluster has any; if its machine dies, the cell is retried once. This process receives and writes the results.
    ``watch`` is called once per second with all news.
    """
    with joined_cluster() as ray:
        todo = unfinished(cells, folder)
        left, task, news = len(todo), as_task(ray, _run_told, gpu=has_gpus(ray)), _News(todo, watch)
        arguments = [(cell, number, news.queue) for number, cell in enumerate(todo)]
        with closing(finished_tasks(ray, task, arguments, at_a_time, idle=news.show)) as finished:
            for number, reference in finished:
                news.show()
                news.ended.add(number)
                cell, left = todo[number], left - 1
                result = _result(ray, reference)
                write_json(folder / f"{cell.identity()}.json", result, indent=None)
                report(cell, result, left)
    return read_results(cells, folder)


class _News:
    """The news of running cells, in a queue on the cluster."""

    def __init__(self, cells: Sequence[GridCell], watch: Callable[[GridCell, News], None]):
        from ray.util.queue import Queue

        self.cells, self.watch, self.ended = cells, watch, set[int]()
        # takes no core from the cells, and restarts empty if its machine dies
        self.queue = Queue(actor_options={"num_cpus": 0, "max_restarts": -1, "max_task_retries": -1})

    def show(self) -> None:
        """Pass on all news."""
        from ray.util.queue import Empty

        try:
            found = self.queue.get_nowait_batch(self.queue.qsize())
        except Empty:  # it has just restarted
            return
        for number, news in found:
            if number not in self.ended:
                self.watch(self.cells[number], news)


def _run_told(cell: GridCell, number: int, queue: Any) -> Result:
    """Run a cell on a machine of the cluster; its news go into the queue."""

    def tell(news: News) -> None:
        queue.actor.put_nowait.remote((number, news))  # not awaited, because a cell does not depend on its display

    with warnings_told(tell):
        return run_cell(cell, tell)


def _result(ray: Any, task: Any) -> Result:
    """Return the result of a cell; if its process or machine died, the cell has failed and the others continue."""
    try:
        result: Result = ray.get(task)
    except ray.exceptions.RayError as error:
        return {"status": "failed", "error": reason_of(error)}
    return result
