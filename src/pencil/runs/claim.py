"""The directory of a run is taken before anything else is done: what is wrong with it is said at once."""

import os
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from pencil.data.settings import DataSettings
from pencil.errors import RunError
from pencil.runs.directory import RunWriter
from pencil.runs.layout import is_run, is_unfinished
from pencil.runs.leftovers import clear_leftovers, left_checkpoints, remove_checkpoints
from pencil.runs.lock import NAME as LOCK
from pencil.runs.lock import InUseError, RunLock


@dataclass(frozen=True)
class Start:
    """Where a run is written, and whether it is started, resumed, or finished already.

    ``claims_later``: the directory is inside of the data, so it is made after these are read.
    """

    path: Path | None
    resumes: bool = False
    finished: bool = False
    claims_later: bool = False


def start_or_resume(path: Path | None, resume: bool, data: DataSettings, stack: ExitStack) -> Start:
    """Decide between start and resume. Both need the lock of the directory, which the stack holds until the end.

    Only under the lock it is known whether a run has finished: another process may be finishing it.

    Parameters
    ----------
    path : Path or None
        The run directory; without one there is nothing to decide.
    resume : bool
        Resume the run in it, where there is one.
    data : DataSettings
        The data section of the recipe.
    stack : ExitStack
        Holds the lock.
    """
    if path is None:
        return Start(path)
    if not (resume and is_run(path)):
        RunWriter(path)  # refuses one that is not empty
        later = is_inside_data(path, data)
        if not later:
            stack.enter_context(claimed(path))
        return Start(path, claims_later=later)
    if is_unfinished(path):
        lock = RunLock(path)
        lock.__enter__()
        if is_unfinished(path):
            stack.push(lock.__exit__)
            clear_leftovers(path)
            return Start(path, resumes=True)
        lock.__exit__()
    return Start(path, finished=True)


def clear_finished(path: Path) -> None:
    """Remove what a process left in a finished run that was killed after its summary: checkpoints and the lock file.

    Nothing is done where another process holds the lock: it does that itself, or has the run open for a review.
    """
    if not left_checkpoints(path) and not os.path.lexists(path / LOCK):
        return
    with ExitStack() as stack:
        try:
            stack.enter_context(RunLock(path))
        except InUseError:
            return
        except RunError as error:  # as on a disk that can only be read
            warnings.warn(f"what is left in a finished run stays: {error}", stacklevel=3)
            return
        remove_checkpoints(path)


@contextmanager
def claimed(path: Path) -> Iterator[None]:
    """Hold a new run directory: it is empty, can be written to, and is locked.

    If no run has begun in it at the end, it is removed again, with the folders above it that were made for it.

    Raises
    ------
    RunError
        If it is not empty, cannot be written to, or is in use by another process.
    """
    made = [folder for folder in (path, *path.parents) if not os.path.lexists(folder)]
    try:
        with RunWriter(path):
            yield
    finally:
        for folder in made:
            try:
                folder.rmdir()
            except OSError:  # it holds this run, or another one by now
                break


def is_inside_data(path: Path, settings: DataSettings) -> bool:
    """Return whether a run directory is in a folder of its data, where a new folder would look like a class."""
    named = [str(name) for name in (settings.source, settings.test, settings.root) if name]
    # os.path has an answer for every name, also for one that is no path at all; Path raises for some
    listed = [os.path.expanduser(name) for name in named]  # noqa: PTH111
    folders = [os.path.realpath(name) for name in listed if os.path.isdir(name)]  # noqa: PTH112
    return any(Path(os.path.realpath(path)).is_relative_to(folder) for folder in folders)
