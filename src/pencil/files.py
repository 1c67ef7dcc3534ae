"""Files that are complete or absent: written beside their target, flushed to disk, then renamed."""

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pencil.errors import PencilError, RunError

LONGEST_NAME = 255
"""Bytes of a file name on all usual file systems."""
LONGEST_PATH = 4096 - 160
"""Bytes of a whole path, less those of the names in a run directory."""
NO_HARD_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


def digest(path: Path) -> str:
    """Return the SHA-256 of a file as hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def refuse_path(path: Path) -> None:
    """Raise :class:`RunError` for a path that cannot be written: too long, not UTF-8, or with a NUL in it."""
    parts = [os.fsencode(part) for part in path.parts]
    longest = max(map(len, parts), default=0)
    if longest > LONGEST_NAME or len(os.fsencode(path.absolute())) > LONGEST_PATH:
        raise RunError(
            f"cannot write {str(path)[:60]}...: File name too long ({longest} bytes); expected names of at most "
            f"{LONGEST_NAME} bytes; choose a shorter one."
        )
    try:
        valid = "\0" not in path.as_posix().encode().decode()
    except UnicodeEncodeError:
        valid = False
    if not valid:
        raise RunError(f"cannot write {str(os.fsencode(path))[1:]}: its name is not UTF-8 text; choose another name.")


@contextmanager
def atomic_write(path: Path, *, folder: bool = False, new: bool = False) -> Iterator[Path]:
    """Yield a temporary path beside ``path``, and rename it to ``path`` if the block ends without an error.

    A reader sees the previous file or the complete new one, never a part. After an error nothing is left.

    Parameters
    ----------
    path : Path
        The file (or folder) to write. Its parent must exist.
    folder : bool
        Yield an empty folder instead of an empty file. A folder is always new.
    new : bool
        Refuse a path that exists already; otherwise an existing file is replaced.

    Raises
    ------
    RunError
        If the file system refuses, or if ``path`` must be new and exists.
    """
    new = new or folder
    temporary = path.with_name(f".{path.name}.{os.getpid()}{path.suffix}")
    try:
        if new and os.path.lexists(path):
            raise FileExistsError
        _remove(temporary)  # of a killed process that had our number
        mode = _create(temporary, folder)
        try:
            yield temporary
            if folder:
                temporary.rename(path)
            else:
                _flush(temporary, mode)
                _put_in_place(temporary, path, new)
        finally:
            _remove(temporary)
    except PencilError:
        raise
    except OSError as error:
        reason = "it already exists" if isinstance(error, FileExistsError) else error.strerror or error
        kind = "folder" if folder else "file"
        advice = f"name a new {kind} in an existing folder" if new else "the previous file, if any, is unchanged"
        raise RunError(f"cannot write {path}: {reason}; {advice}.") from error


def write(path: Path, save: Callable[[Path], Any]) -> None:
    """Write a file with ``save(temporary_path)``; see :func:`atomic_write`."""
    with atomic_write(path) as temporary:
        save(temporary)


def write_text(path: Path, text: str) -> None:
    """Write a text file in UTF-8; see :func:`atomic_write`."""
    write(path, lambda target: target.write_text(text, encoding="utf-8"))


def write_json(path: Path, tree: Any, indent: int | None = 2) -> None:
    """Write a JSON file that ends with a line break; see :func:`atomic_write`."""
    write_text(path, json.dumps(tree, indent=indent) + "\n")


def sync_folder(folder: Path) -> None:
    """Flush the names in a folder to disk, so that a rename survives a power cut."""
    if os.name != "nt":  # Windows has no such call
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _create(temporary: Path, folder: bool) -> int:
    """Create the temporary file or folder; return the permissions that the user's umask gives it."""
    if folder:
        temporary.mkdir()
    else:
        temporary.open("xb").close()
    return temporary.stat().st_mode


def _flush(temporary: Path, mode: int) -> None:
    if temporary.stat().st_mode != mode:  # safetensors replaces the file by one that only its owner may read
        temporary.chmod(mode & 0o7777)
    with temporary.open("rb+") as written:
        os.fsync(written.fileno())


def _put_in_place(temporary: Path, path: Path, new: bool) -> None:
    if not new:
        temporary.replace(path)
        return
    try:
        os.link(temporary, path)  # unlike a rename, it fails if somebody else has made the file meanwhile
    except OSError as error:
        if error.errno not in NO_HARD_LINKS:
            raise
        temporary.rename(path)


def _remove(path: Path) -> None:
    with suppress(FileNotFoundError):
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
