"""Claims the run directory before anything else, so that its problems are reported immediately."""

import os
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pencil.data.settings import DataSettings
from pencil.errors import PencilWarning, RunError, warn
from pencil.runs.directory import RunWriter
from pencil.runs.layout import is_run, is_unfinished
from pencil.runs.leftovers import left_checkpoints, remove_checkpoints
from pencil.runs.lock import NAME as LOCK
from pencil.runs.lock import InUseError, RunLock


@dataclass(frozen=True)
class Start:
    """The directory of a run, and whether the run is started, resumed or already finished.

    ``claims_later``: the directory is inside of the data, so it is claimed after these are read. Only rank 0 has the
    ``writer``.
    """

    path: Path | None
    resumes: bool = False
    finished: bool = False
    claims_later: bool = False
    writer: RunWriter | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return what the other ranks get."""
        return {**vars(self), "writer": None}

    def claim(self, stack: ExitStack) -> None:
        """Lock the directory until the stack ends."""
        assert self.writer is not None
        stack.enter_context(self.writer)


def start_or_resume(path: Path | None, resume: bool, data: DataSettings, stack: ExitStack) -> Start:
    """Decide between start and resume. Both need the lock of the directory, which the stack holds until the end.

    Whether a run has finished is known only under the lock, because another process may be finishing it.
    """
    if path is None:
        return Start(path)
    if not (resume and is_run(path)):
        start = Start(path, claims_later=is_inside_data(path, data), writer=RunWriter(path))
        if not start.claims_later:
            start.claim(stack)
        return start
    if is_unfinished(path):
        with ExitStack() as locked:
            writer = locked.enter_context(RunWriter(path, resume=True))
            if is_unfinished(path):
                stack.enter_context(locked.pop_all())
                return Start(path, resumes=True, writer=writer)
    return Start(path, finished=True)


def clear_finished(path: Path) -> None:
    """Remove the checkpoints and the lock file of a finished run whose process was killed after writing the summary.

    Do nothing if another process holds the lock: it cleans up itself, or has the run open for a review.
    """
    if not left_checkpoints(path) and not os.path.lexists(path / LOCK):
        return
    with ExitStack() as stack:
        try:
            stack.enter_context(RunLock(path))
        except InUseError:
            return
        except RunError as error:  # for example on a read-only disk
            warn(f"cannot clean up a finished run: {error}", PencilWarning)
            return
        remove_checkpoints(path)


def is_inside_data(path: Path, settings: DataSettings) -> bool:
    """Return whether a run directory is inside a folder of its data, where a new folder would look like a class."""
    named = [str(name) for name in (settings.source, settings.test, settings.root) if name]
    # os.path accepts any name, even one that is not a valid path; Path raises for some
    listed = [os.path.expanduser(name) for name in named]  # noqa: PTH111
    folders = [os.path.realpath(name) for name in listed if os.path.isdir(name)]  # noqa: PTH112
    return any(Path(os.path.realpath(path)).is_relative_to(folder) for folder in folders)
