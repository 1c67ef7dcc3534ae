"""Files in an untrusted folder: only regular files are opened, and only inside the expected folders.

A named pipe would block the reader forever, a device never ends, and a link can lead to any file of the machine.
"""

import os
import stat
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

from pencil.errors import DataError, can_set, setting

LARGEST = 2**30
"""Images of at most ``data.max_pixels`` pixels never take more bytes than this."""


def read_within(path: Path, folders: tuple[Path, ...]) -> bytes:
    """Return the bytes of a regular file below one of these folders, following links; anywhere if empty."""
    if folders and not is_within(path, folders):
        raise OSError(f"it is behind a link that leads out of {folders[-1]} ({_how_to_allow(path, folders[-1])})")
    return read_regular(path)


def _how_to_allow(path: Path, folder: Path) -> str:
    """Return what to do about a link that leads out of a folder; a table has its paths below ``data.root``."""
    target, inside = path.resolve(), folder.resolve()
    if not can_set() or target.drive != inside.drive:
        return "copy the file into the folder"
    both = Path(os.path.commonpath([target.parent, inside]))
    root = target.parent if both == both.parent else both  # never all files of the machine
    return f"copy the file into the folder; for a folder per class, allow it with {setting('data.root', str(root))}"


def version_of(path: Path) -> bytes:
    """Return size and time of a regular file, which change whenever its content does."""
    try:
        found = path.stat()
    except (OSError, ValueError):
        return b"missing"
    return f"{found.st_size} {found.st_mtime_ns}".encode() if stat.S_ISREG(found.st_mode) else b"missing"


def read_regular(path: Path) -> bytes:
    """Return the bytes of a regular file; raise OSError for anything else, without blocking."""
    _refuse_irregular(path.stat())  # before it is opened: opening a device can have effects
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with open(descriptor, "rb") as content:  # noqa: PTH123 - a descriptor has no path
        _refuse_irregular(os.fstat(descriptor))  # it may have been replaced in between
        return content.read()


def open_own(path: Path, flags: int = os.O_RDONLY) -> BinaryIO:
    """Open a regular file with flags of `os.open`; raise OSError for anything else, and for a link.

    A file that pencil writes is never a link, and writing through one would change a file elsewhere.
    """
    with suppress(FileNotFoundError):
        _refuse_other_kinds(path.lstat())  # before it is opened: opening a pipe would block
    descriptor = os.open(path, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0), 0o666)
    return open(descriptor, "r+b" if flags & os.O_RDWR else "rb")  # noqa: PTH123 - a descriptor has no path


def read_slice(path: Path, offset: int, size: int) -> bytes:
    """Return a part of a regular file; raise OSError if the file ends before it."""
    if size > LARGEST:
        raise OSError(f"it has {size:,} bytes; expected at most {LARGEST:,}")
    _refuse_other_kinds(path.stat())
    with path.open("rb", buffering=0) as file:
        file.seek(offset)
        content = file.read(size)
    if len(content) < size:
        raise OSError(f"{path.name} ends too early; has the file changed?")
    return content


def _refuse_other_kinds(found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise OSError(f"it is {kind_of(found.st_mode)}, not a regular file")


def _refuse_irregular(found: os.stat_result) -> None:
    _refuse_other_kinds(found)
    if found.st_size > LARGEST:
        raise OSError(f"it has {found.st_size:,} bytes; expected at most {LARGEST:,}")


def kind_of(mode: int) -> str:
    """Return the kind of a file that is not a regular one."""
    kinds = (
        (stat.S_ISDIR, "a folder"),
        (stat.S_ISLNK, "a symbolic link"),
        (stat.S_ISFIFO, "a named pipe"),
        (stat.S_ISSOCK, "a socket"),
        (stat.S_ISCHR, "a device"),
        (stat.S_ISBLK, "a device"),
    )
    return next((kind for test, kind in kinds if test(mode)), "something else")


def is_within(path: Path, folders: tuple[Path, ...]) -> bool:
    """Return whether a file, following links, is one of these folders or below one."""
    try:
        place = path.resolve() if path.is_symlink() else _resolved(path.parent.absolute()) / path.name
        return any(place.is_relative_to(_resolved(folder.absolute())) for folder in folders)
    except RuntimeError:  # circular links: opening the file will give the reason
        return True


@lru_cache(maxsize=4096)  # only for absolute paths: relative ones depend on the working directory
def _resolved(folder: Path) -> Path:
    return folder.resolve()


def refuse_undecodable(path: str | Path) -> None:
    """Raise if a file name is not UTF-8, because it could be neither stored in a table nor displayed."""
    try:
        str(path).encode()
    except UnicodeEncodeError as error:
        name = os.fsencode(path)
        raise DataError(
            f"the file name {str(name)[1:]} is not UTF-8; expected UTF-8 names, which every table and page can "
            "represent; rename the file."
        ) from error
