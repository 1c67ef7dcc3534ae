"""Cells run in parallel worker processes; each result is a file, so that an interrupted benchmark can resume."""

import json
import multiprocessing
import os
import threading
import traceback
from collections.abc import Callable, Sequence
from functools import lru_cache
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pencil.bench.progress import News, Relay, Tell, warnings_told
from pencil.bench.spec import GridCell
from pencil.files import write_json

if TYPE_CHECKING:
    from pencil.data.examples import Splits

Result = dict[str, Any]
CURVES = ("test_accuracy", "test_map", "labels_correct", "validation_accuracy", "phase")
"""The metrics that are kept for every epoch."""
CHOSEN_LATER = ("rows", "test_rows", "long_tail", "noise", "validation", "augmentation")
"""Data settings that do not affect the loaded data."""


def run_cells(
    cells: Sequence[GridCell],
    folder: Path,
    processes: int,
    report: Callable[[GridCell, Result, int], None],
    watch: Callable[[GridCell, News], None] = lambda *_: None,
) -> dict[str, Result]:
    """Run every cell without a result file in ``folder``; return all results, old and new, by the identity of the cell.

    After each cell ``report(cell, result, left)`` is called, where ``left`` is the number of cells still to run,
    and while it runs ``watch(cell, news)``.
    """
    todo = unfinished(cells, folder)
    threads = threads_per_cell(processes)
    workers = [_Worker(number, threads) for number in range(min(processes, len(todo)))]
    left = len(todo)
    try:
        for worker in workers:
            worker.take(todo.pop(0))
        while left:
            ready = wait([worker.pipe for worker in workers if worker.cell is not None])
            for worker in [one for one in workers if one.pipe in ready]:
                cell, result = worker.receive()
                if not isinstance(result, dict):
                    watch(cell, result)
                    continue
                write_json(folder / f"{cell.identity()}.json", result, indent=None)
                left -= 1
                report(cell, result, left)
                if todo:
                    worker.take(todo.pop(0))
    finally:
        for worker in workers:
            worker.stop()
    return read_results(cells, folder)


def unfinished(cells: Sequence[GridCell], folder: Path) -> list[GridCell]:
    """Return the cells without a result; create the folder of the results."""
    folder.mkdir(parents=True, exist_ok=True)
    before = read_results(cells, folder)
    return [cell for cell in cells if before.get(cell.identity(), {}).get("status") != "done"]


def read_results(cells: Sequence[GridCell], folder: Path) -> dict[str, Result]:
    """Return the results so far, by the identity of the cell; an incomplete file counts as no result."""
    found = {cell.identity(): _read(folder / f"{cell.identity()}.json") for cell in cells}
    return {name: result for name, result in found.items() if result is not None}


def budgets(folder: Path) -> list[float]:
    """Return the budgets in seconds for which a folder has results."""
    found = (_read(path) for path in folder.glob("*s-*.json"))
    return sorted({float(result["budget"]) for result in found if result is not None and result.get("budget")})


class _Worker:
    """A process that runs one cell after the other and is replaced if it dies."""

    def __init__(self, number: int, threads: int | None):
        self.number, self.threads = number, threads
        self.cell: GridCell | None = None
        self._start()

    def _start(self) -> None:
        """Start the process; not as a daemon, since a cell may have data workers of its own."""
        context = multiprocessing.get_context("spawn")
        self.pipe, inner = context.Pipe()
        self.process = context.Process(target=_work, args=(inner, self.number, self.threads))
        self.process.start()
        inner.close()

    def take(self, cell: GridCell) -> None:
        self.cell = cell
        try:
            self.pipe.send(cell)
        except OSError:  # the worker died between two cells
            self._start()
            self.pipe.send(cell)

    def receive(self) -> tuple[GridCell, Result | News]:
        """Return the cell and its next message: news, or the final result."""
        cell = self.cell
        assert cell is not None
        try:
            received: Result | News = self.pipe.recv()
            if isinstance(received, dict):
                self.cell = None
            return cell, received
        except (EOFError, OSError):  # killed, or out of memory: only this cell is lost
            self.process.join()
            code = self.process.exitcode
            self.pipe.close()
            self._start()
            self.cell = None
            return cell, {"status": "failed", "error": f"the process died with exit code {code}"}

    def stop(self) -> None:
        self.process.terminate()
        self.process.join(timeout=10)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


def _work(pipe: Connection, number: int, threads: int | None) -> None:
    import torch

    threading.Thread(target=_end_with_parent, daemon=True).start()
    if threads is not None:
        torch.set_num_threads(threads)
    if torch.cuda.is_available():  # distribute processes over the GPUs
        torch.cuda.set_device(number % torch.cuda.device_count())
    while True:
        try:
            cell = pipe.recv()
        except (EOFError, KeyboardInterrupt):
            return
        with warnings_told(pipe.send):
            result = run_cell(cell, pipe.send)
        pipe.send(result)


def _end_with_parent() -> None:
    """End this process when the benchmark's main process is killed, because the result would be lost."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def run_cell(cell: GridCell, tell: Tell = lambda _: None) -> Result:
    """Run one cell and return its summary and curves, or the error: a failed cell does not stop the grid.

    ``tell`` is called with the status of the cell.
    """
    from pencil.bench.budget import plan
    from pencil.bench.decisions import compare_with_clean
    from pencil.job import run_recipe

    relay = Relay(tell)
    try:
        relay.begin("loading data")
        recipe = cell.recipe()
        data = _loaded(recipe.data.model_copy(update=dict.fromkeys(CHOSEN_LATER)).model_dump_json())
        if cell.budget_seconds is not None:
            relay.begin("measuring the time of an epoch")
            recipe = plan(recipe, data, cell.budget_seconds, relay.on_features)
        relay.begin("starting")
        run = run_recipe(recipe, data=data, progress=relay)
        last = run.metrics[-1]
        curves = {name: [record.get(name) for record in run.metrics] for name in CURVES if name in last}
        quality = compare_with_clean(run.labels, data, injected=recipe.data.noise is not None)
        done = {"status": "done", "summary": run.summary.to_dict(), "decisions": quality, "curves": curves}
        return {**done, "budget": cell.budget_seconds}
    except Exception as error:  # noqa: BLE001 - one failed cell must not stop the grid
        return {"status": "failed", "error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}


@lru_cache(maxsize=1)
def _loaded(settings: str) -> "Splits":
    """Cache of the last cell's data by its settings as JSON; the next cell usually has the same data."""
    from pencil.data.read import load
    from pencil.data.settings import DataSettings

    return load(DataSettings.model_validate_json(settings))


def default_processes() -> int:
    """Return the number of GPUs, or without a GPU the number of processes that have a core per thread."""
    import torch

    threads = torch.get_num_threads() if _names_threads() else 1
    return torch.cuda.device_count() or max(1, cores() // threads)


def threads_per_cell(processes: int) -> int | None:
    """Return an equal share of the cores, or None if ``OMP_NUM_THREADS`` sets the number of threads."""
    return None if _names_threads() else max(1, cores() // processes)


def _names_threads() -> bool:
    return bool(os.environ.get("OMP_NUM_THREADS"))


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _read(path: Path) -> Result | None:
    if not path.is_file():
        return None
    try:
        result: Result = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return None
    return result
