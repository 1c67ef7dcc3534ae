"""Atomic writes: a file is written next to its target, flushed to disk, then renamed."""

import errno
import hashlib
import itertools
import json
import os
import platform
import re
import shlex
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from pencil.errors import PencilError, RunError

LONGEST_NAME = 255
"""Maximum bytes of a file name on common file systems."""
LONGEST_PATH = 4096 - 160
"""Maximum bytes of a path, minus room for the names inside a run directory."""
RUN_MARKS = ("recipe.toml", "environment.json")
"""A folder that contains both is a run directory; one alone may belong to another project."""
NO_HARD_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
TEMPORARY = re.compile(r"\..+\.(?P<pid>[1-9]\d{0,9})-(?P<machine>[0-9a-f]{8})-\d{1,9}(\.[^.]{1,20})?", re.DOTALL)
"""The name of a temporary file: ``.NAME.PROCESS-MACHINE-NUMBER.SUFFIX``."""
TEMPORARY_NAME, TEMPORARY_SUFFIX = 150, 20
"""Maximum bytes of the parts of a temporary name; the whole name stays below the limit of 255."""
FULL = (errno.ENOSPC, errno.EDQUOT)
NO_FOLDER_SYNC = (errno.EACCES, errno.EINVAL, errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
"""Some network file systems cannot flush a folder; a write-only folder cannot be opened to flush it."""
DEEPEST = 50
TOO_DEEP = f"it is nested more than {DEEPEST} levels deep"

_numbers = itertools.count()
_in_use: set[str] = set()


def digest(path: Path) -> str:
    """Return the SHA-256 of a regular file in hexadecimal; raise OSError for anything else, like `read_regular`."""
    refuse_irregular(path)
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


def refuse_links(path: Path, run: Path | None = None) -> None:
    """Raise :class:`RunError` if a path is or passes through a symbolic link inside a run directory.

    A run may come from an untrusted source. A link inside it could make pencil write, rename or remove files
    outside the run. The run directory itself may be a link, since the user named it. Unless it is passed, it is
    recognised by its files (:data:`RUN_MARKS`); if no parent of ``path`` is one, nothing is refused.
    """
    above = [path.absolute(), *path.absolute().parents]
    if run is None:
        runs = [place for place in above if all(os.path.lexists(place / name) for name in RUN_MARKS)]
        if not runs:
            return
        run = runs[-1]  # the outermost: a link may point to another run
    for place in reversed(above[: above.index(run.absolute())]):
        if place.is_symlink():
            raise RunError(
                f"{place} is a symbolic link; expected a regular file or folder inside a run directory; remove the "
                f"link with `rm {shlex.quote(str(place))}` (its target is kept), or link the whole run directory "
                "instead."
            )


LARGEST = 2**28
"""Bytes of the largest text file of a run; a million reviews take less, and a sparse file can claim any size."""
LARGEST_IMPORT = 2**31
"""The same for a file of another program that the user names."""


def read_regular(path: Path, largest: int = LARGEST) -> bytes:
    """Return the content of a regular file; raise OSError for a folder, pipe or device, and for a larger file."""
    refuse_irregular(path)
    size = path.stat().st_size
    if size > largest:
        raise OSError(errno.EFBIG, f"it has {size:,} bytes; expected at most {largest:,}", str(path))
    with path.open("rb") as file:
        return file.read()


def refuse_irregular(path: Path) -> None:
    """Raise OSError if the path exists and is not a regular file."""
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode):
        what = "a folder" if stat.S_ISDIR(mode) else "a pipe, a socket or a device"
        raise OSError(errno.EINVAL, f"it is {what}; expected a file", str(path))


def read_json(path: Path) -> Any:
    """Return the value in a JSON file; raise ValueError if it is not JSON or is nested too deeply."""
    return parse_json(read_regular(path))


def parse_json(text: bytes) -> Any:
    """Return the value of a JSON text; see :func:`read_json`."""
    try:
        tree = json.loads(text.decode())
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    refuse_deep(tree)
    if b"\\u" in text:
        json.dumps(tree, ensure_ascii=False).encode()  # raises for lone surrogates, which cannot be written
    return tree


def refuse_deep(tree: Any) -> None:
    """Raise ValueError if tables and lists are nested more deeply than any file of pencil."""
    level = [tree]
    for _ in range(DEEPEST):
        level = [
            inner
            for value in level
            if isinstance(value, dict | list)
            for inner in (value.values() if isinstance(value, dict) else value)
        ]
        if not level:
            return
    raise ValueError(TOO_DEEP)


@contextmanager
def atomic_write(path: Path, *, folder: bool = False, new: bool = False) -> Iterator[Path]:
    """Yield a temporary path next to ``path``, and rename it to ``path`` if the block ends without an error.

    A reader sees the previous file or the complete new one, never a partial file. When the block ends, the new name
    is on disk. After an error, no temporary file remains. Temporary files of killed processes in the same folder
    are removed first (:func:`clear_temporaries`). With ``folder`` it is an empty folder, which is always new; with
    ``new`` a path that exists already is refused. Failures are :class:`RunError`.
    """
    new = new or folder
    temporary = _temporary(path)
    try:
        refuse_links(path.parent)
        if new and os.path.lexists(path):
            raise FileExistsError
        clear_temporaries(path.parent)
        _in_use.add(temporary.name)
        try:
            mode = _create(temporary, folder)
            yield temporary
            if folder:
                temporary.rename(path)
            else:
                _flush(temporary, mode)
                _put_in_place(temporary, path, new)
        finally:
            remove(temporary)
            _in_use.discard(temporary.name)
    except PencilError:
        raise
    except (OSError, SafetensorError) as error:
        number = _error_number(error)
        full, kind = number in FULL, "folder" if folder else "file"
        seen = os.strerror(number) if full else getattr(error, "strerror", None) or error  # libraries wrap it
        reason = "it already exists" if isinstance(error, FileExistsError) else seen
        advice = f"name a new {kind} in an existing folder" if new else "the previous file, if any, is unchanged"
        advice = "the partial file was removed; free space, then repeat the command" if new and full else advice
        raise RunError(f"cannot write {path}: {reason}; {advice}.") from error
    _sync_renamed(path)


def write(path: Path, save: Callable[[Path], Any]) -> None:
    """Write a file with ``save(temporary_path)``; see :func:`atomic_write`."""
    with atomic_write(path) as temporary:
        save(temporary)


def write_text(path: Path, text: str) -> None:
    """Write a text file in UTF-8, with identical bytes on every system; see :func:`atomic_write`."""
    # Windows would translate \n to \r\n, and the digest of the text would differ from the digest of the file.
    write(path, lambda target: target.write_text(text, encoding="utf-8", newline="\n"))


def write_json(path: Path, tree: Any, indent: int | None = 2) -> None:
    """Write a JSON file that ends with a line break; see :func:`atomic_write`."""
    write_text(path, json.dumps(tree, indent=indent) + "\n")


def clear_temporaries(folder: Path) -> None:
    """Remove the temporary files and folders that killed processes left in a folder.

    Only names that match our pattern are removed, and only if their process ran on this machine and is dead. Files
    whose process number is in use again, and files of other machines that share the folder, are kept for now.
    """
    with suppress(OSError), os.scandir(folder) as entries:
        for name in [entry.name for entry in entries if entry.name.startswith(".")]:
            if (match := TEMPORARY.fullmatch(name)) and match["machine"] == _machine() and _is_left(name, match["pid"]):
                with suppress(OSError):
                    remove(folder / name)


def make_folder(path: Path, *, empty: bool = True) -> Path:
    """Make a folder and return it; ``empty`` first removes a folder that an earlier process left there."""
    refuse_links(path.parent if empty else path)
    try:
        if empty:
            remove(path)
        path.mkdir(exist_ok=not empty)
    except PencilError:
        raise
    except OSError as error:
        raise RunError(
            f"cannot write {path}: {error.strerror}; free space, or check the permissions of its folder, then repeat "
            "the "
            "command."
        ) from error
    return path


def move(source: Path, target: Path) -> None:
    """Rename a file or folder, replacing an existing file; raise OSError on failure."""
    refuse_links(source.parent)
    refuse_links(target.parent)
    source.replace(target)


def sync_file(path: Path) -> None:
    """Flush the content of a file to disk."""
    with path.open("rb+") as written:
        os.fsync(written.fileno())


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries to disk, so that a rename survives a power cut; skip it where unsupported."""
    if os.name == "nt":  # Windows has no such call
        return
    try:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno not in NO_FOLDER_SYNC:
            raise


def _temporary(path: Path) -> Path:
    """Return a unique path next to ``path``, with the same suffix because some libraries check it."""
    suffix = path.suffix if 1 < len(os.fsencode(path.suffix)) <= TEMPORARY_SUFFIX else ""
    name = os.fsdecode(os.fsencode(path.name)[:TEMPORARY_NAME])
    return path.with_name(f".{name}.{os.getpid()}-{_machine()}-{next(_numbers)}{suffix}")


@cache
def _machine() -> str:
    """Return eight hexadecimal digits that identify this machine or container; process numbers are unique within it."""
    try:
        numbering = str(Path("/proc/self/ns/pid").readlink())
    except OSError:  # not Linux
        numbering = ""
    return hashlib.sha256(f"{platform.node()} {numbering}".encode()).hexdigest()[:8]


def _is_left(name: str, pid: str) -> bool:
    """Return whether the process that made a temporary file is dead; False if uncertain."""
    if int(pid) == os.getpid():
        return name not in _in_use  # otherwise a dead process had our number
    if os.name == "nt":  # os.kill would end the process
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    return False


def _create(temporary: Path, folder: bool) -> int:
    """Create the temporary file or folder; return the permissions that the user's umask gives it."""
    if folder:
        temporary.mkdir()
    else:
        temporary.open("xb").close()
    return temporary.stat().st_mode


def _flush(temporary: Path, mode: int) -> None:
    if temporary.stat().st_mode != mode:  # safetensors replaces the file with one that only its owner may read
        temporary.chmod(mode & 0o7777)
    sync_file(temporary)


def _put_in_place(temporary: Path, path: Path, new: bool) -> None:
    if not new:
        temporary.replace(path)
        return
    try:
        os.link(temporary, path)  # unlike a rename, it fails if another process has created the file
    except OSError as error:
        if error.errno not in NO_HARD_LINKS:
            raise
        temporary.rename(path)


def _sync_renamed(path: Path) -> None:
    try:
        sync_folder(path.parent)
    except OSError as error:
        raise RunError(
            f"{path} is written, but a power cut may lose it: cannot flush its folder: {error.strerror}; check the "
            "disk, then repeat the command."
        ) from error


def _error_number(error: OSError | SafetensorError) -> int:
    """Return the errno of an error, which safetensors only mentions in the text; 0 if there is none."""
    named = re.search(r"\(os error (\d+)\)", str(error))
    return getattr(error, "errno", None) or (int(named[1]) if named else 0)


def remove_empty(folders: Iterable[Path]) -> None:
    """Remove folders, the innermost first, up to the first that holds something."""
    for folder in folders:
        try:
            folder.rmdir()
        except OSError:  # it holds a run by now, this one or another
            return


def remove(path: Path) -> None:
    """Remove a file, a link, or a folder with its contents; ignore a missing path."""
    refuse_links(path.parent)
    with suppress(FileNotFoundError):
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
