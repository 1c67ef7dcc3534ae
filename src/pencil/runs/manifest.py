"""Checks the files of a run against the digests in its manifest."""

from pathlib import Path
from typing import Any

from pencil.errors import RunError, explained, reason_of
from pencil.files import digest, read_json
from pencil.runs.directory import DamagedError, RunReader
from pencil.runs.layout import (
    ENVIRONMENT,
    FINETUNE,
    MANIFEST,
    RECIPE,
    SUMMARY,
    FileStatus,
    first_files,
    is_run,
    is_unfinished,
    listed_files,
)
from pencil.runs.leftovers import checkpoints_of


def read_manifest(path: Path) -> dict[str, Any]:
    """Return the SHA-256 of each file of a run by its name."""
    what, advice = f"the run in {path} is damaged: {MANIFEST}", "restore it from a copy, or train again"
    with explained(DamagedError, what, advice, OSError, ValueError):
        tree = read_json(path / MANIFEST)
        if not isinstance(tree, dict):
            raise ValueError(f"it holds a {type(tree).__name__} instead of a JSON object")
        return tree


def check_first_files(path: Path) -> None:
    """Raise DamagedError if the recipe, environment or rows of a run were modified after it started."""
    expected = read_manifest(path)
    for name in first_files(path, expected):
        status = _compare(path / name, expected.get(name))
        if not status.ok:
            raise DamagedError(
                f"{path / name} was modified after the run started ({status.reason}); restore it, or train again in "
                "another directory."
            )


def verify(path: Path) -> list[FileStatus]:
    """Return the status of every file of a finished run, or of every checkpoint of an unfinished run.

    The newest checkpoint comes first; checkpoints of fine-tuning come before checkpoints of the head.
    """
    if not is_run(path):
        raise RunError(
            f"{path} is not a run directory (it has no {RECIPE}); name a directory that `pencil train` wrote."
        )
    statuses = [status for stage in (FINETUNE, "") for status in checkpoints_of(path, stage=stage).verify()]
    try:
        RunReader(path, finished=False)
    except DamagedError as error:
        if is_unfinished(path):  # otherwise the manifest has its digest
            statuses.append(FileStatus(path / ENVIRONMENT, False, str(error)))
    if is_unfinished(path):
        return [*statuses, *_first_statuses(path)]
    try:
        _ = RunReader(path).summary
    except DamagedError:
        pass  # environment.json contains it, and the manifest has the digest of environment.json
    except RunError as error:
        statuses.append(FileStatus(path / SUMMARY, False, str(error)))
    try:
        expected = read_manifest(path)
    except DamagedError as error:
        return [*statuses, FileStatus(path / MANIFEST, False, str(error))]
    return [*statuses, *(_compare(path / name, expected.get(name)) for name in listed_files(path, expected))]


def _compare(file: Path, expected: Any) -> FileStatus:
    """Return whether the digest of a file matches the manifest."""
    try:
        same = digest(file) == expected
    except FileNotFoundError:
        return FileStatus(file, False, "it is missing")
    except OSError as error:
        return FileStatus(file, False, f"it cannot be read: {reason_of(error)}")
    return FileStatus(file, same, "" if same else f"it was modified: its SHA-256 differs from {MANIFEST}")


def _first_statuses(path: Path) -> list[FileStatus]:
    try:
        check_first_files(path)
    except DamagedError as error:
        return [FileStatus(path / MANIFEST, False, str(error))]
    return [FileStatus(path / name, True) for name in first_files(path)]
