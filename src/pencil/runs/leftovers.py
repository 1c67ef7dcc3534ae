"""Removes what processes left in a run directory: only under its lock, and never through a symbolic link."""

import re
from pathlib import Path
from typing import TYPE_CHECKING

from pencil.errors import PencilWarning, warn
from pencil.files import clear_temporaries, refuse_links, remove
from pencil.runs.layout import CHECKPOINTS, FINETUNE, PARTS

if TYPE_CHECKING:
    from pencil.runs.checkpoints import Checkpoints

CHECKPOINT = re.compile(r"step-\d{10,}|\.step-\d{10,}\.(partial|old)")
FOLDERS = (CHECKPOINTS, f"{CHECKPOINTS}/{FINETUNE}")


def checkpoints_of(path: Path, keep: int = 2, stage: str = "") -> "Checkpoints":
    """Return the checkpoints of a run, or of its second stage. This imports torch."""
    from pencil.runs.checkpoints import Checkpoints

    return Checkpoints(path / CHECKPOINTS / stage, keep, path)


def clear_leftovers(path: Path) -> None:
    """Remove incomplete files of killed processes from a run directory."""
    for name in FOLDERS:
        refuse_links(path / name, path)
    for folder in (path, *(path / name for name in FOLDERS)):
        clear_temporaries(folder)
    remove(path / PARTS)
    for stage in ("", FINETUNE):
        checkpoints_of(path, stage=stage).recover()


def remove_checkpoints(path: Path) -> None:
    """Remove the checkpoints of a finished run, complete or not; warn if one cannot be removed."""
    for left in left_checkpoints(path):
        refuse_links(left.parent, path)
        try:
            remove(left)
        except OSError as error:
            warn(
                f"cannot remove {left}, which is no longer needed: {error.strerror or error}; remove it by hand.",
                PencilWarning,
            )


def left_checkpoints(path: Path) -> list[Path]:
    """Return the checkpoints in a run directory, complete or not."""
    found = [left for name in FOLDERS for left in (path / name).glob("*step-*")]
    return sorted(left for left in found if CHECKPOINT.fullmatch(left.name))
