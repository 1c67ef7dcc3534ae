"""The runs in a folder, each summarised. Does not import torch."""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pencil.errors import RunError
from pencil.runs.directory import RunReader
from pencil.runs.layout import METRICS, RECIPE, SUMMARY, is_run, is_unfinished
from pencil.runs.summary import Summary

DEPTH = 3
"""Maximum folder depth to search for runs: `runs/demo/auto` is two."""


@dataclass(frozen=True)
class ListedRun:
    """A run: its state, the time of the last write, its method, and its summary once it has finished.

    ``reason`` says why a run has failed or cannot be read. ``epochs`` is the number of finished epochs.
    """

    path: Path
    state: Literal["finished", "unfinished", "failed", "damaged"]
    written: float
    method: str | None = None
    epochs: int = 0
    summary: Summary | None = None
    reason: str = ""

    @property
    def age(self) -> float:
        """Seconds since the last write."""
        return max(0.0, time.time() - self.written)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data as ``pencil runs --json`` prints it, without unknown values."""
        known = {"method": self.method, "reason": self.reason, "epochs": self.epochs}
        tree = {"path": str(self.path), "state": self.state, "age_seconds": round(self.age)}
        tree |= {name: value for name, value in known.items() if value}
        return tree if self.summary is None else tree | self.summary.to_dict()


def list_runs(folder: Path) -> list[ListedRun]:
    """Return the runs in a folder, or the folder itself if it is a run, newest first."""
    if not folder.is_dir():
        raise RunError(f"folder {folder} does not exist; name the folder of your runs: `pencil runs FOLDER`.")
    return sorted(map(describe_run, _find_runs(folder, DEPTH)), key=lambda run: -run.written)


def describe_run(path: Path, *, as_trained: bool = False) -> ListedRun:
    """Return the state of a run: finished, unfinished or damaged; ``as_trained`` ignores what an audit decided."""
    written = max(_time(path / name) for name in (RECIPE, METRICS, SUMMARY))
    try:
        reader = RunReader(path, finished=False, as_trained=as_trained)
        method = reader.recipe_tree.get("method")
        name = str(method.get("name", "")) if isinstance(method, dict) else ""
        if not is_unfinished(path):
            summary = reader.summary
            return ListedRun(path, "finished", written, summary.method, summary.epochs, summary)
        done = len(reader.metrics) if (path / METRICS).exists() else 0
        failure = reader.failure
        return ListedRun(path, "failed" if failure else "unfinished", written, name, done, reason=failure or "")
    except RunError as error:
        return ListedRun(path, "damaged", written, reason=str(error).splitlines()[0])


def _find_runs(folder: Path, depth: int) -> Iterator[Path]:
    if is_run(folder):
        yield folder
        return
    if not depth:
        return
    try:
        with os.scandir(folder) as entries:
            inner = sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
    except OSError:  # skip unreadable folders
        return
    for name in inner:
        yield from _find_runs(folder / name, depth - 1)


def _time(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
