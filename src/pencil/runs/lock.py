"""One writer per run directory: a lock that the operating system releases when its holder dies."""

import errno
import json
import os
import platform
import sys
import warnings
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pencil.errors import RunError
from pencil.files import refuse_links

NAME, TRIES = ".lock", 1000
BUSY = (errno.EAGAIN, errno.EACCES, errno.EDEADLK)
UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # on some network file systems

if sys.platform == "win32":
    import msvcrt

    def _lock(descriptor: int) -> None:
        os.lseek(descriptor, 2**20, os.SEEK_SET)  # beyond the content, which others must be able to read
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
else:
    import fcntl

    # flock, not lockf: a lockf lock is released once this process closes any descriptor of the file (it may
    # copy the directory), and does not exclude a second RunLock in the same process. However, a forked child shares a
    # flock, and a data worker that outlives its killed trainer would keep holding it, so each child releases it.
    def _lock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    os.register_at_fork(after_in_child=lambda: _release_in_child())


class InUseError(RunError):
    """Another process is writing to the run directory."""


class RunLock:
    """Context manager that excludes other writers from a run directory, which is created if missing.

    Attributes
    ----------
    stale : dict or None
        The previous holder, if it died without releasing the lock; otherwise None.
    """

    def __init__(self, path: Path):
        self.path = path
        self.stale: dict[str, Any] | None = None
        self._descriptor: int | None = None

    def __enter__(self) -> "RunLock":
        try:
            self._descriptor = self._acquire()
            _held.add(self)
            try:
                self.stale = _read(self._descriptor)
                _write(self._descriptor)
            except BaseException:
                self.__exit__()
                raise
        except RunError:
            raise
        except OSError as error:
            raise RunError(
                f"cannot lock {self.path / NAME}: {error.strerror or error}; expected a writable directory; check "
                "its permissions, or choose another --out."
            ) from error
        return self

    def __exit__(self, *_: object) -> None:
        if self._descriptor is None:  # in a forked child; the parent still holds the lock
            return
        descriptor, self._descriptor = self._descriptor, None
        _held.discard(self)
        with suppress(OSError):  # only the lock matters, not the file; Windows cannot remove an open file
            if _is_at(descriptor, self.path / NAME):
                (self.path / NAME).unlink()
        os.close(descriptor)
        if sys.platform == "win32":
            with suppress(OSError):
                (self.path / NAME).unlink()

    def _acquire(self) -> int:
        """Return the locked file. Retry if its last holder removes it after we opened it."""
        refuse_links(self.path)
        for left in reversed(range(TRIES)):
            try:
                self.path.mkdir(parents=True, exist_ok=True)
                # Do not follow a link, because its target would be overwritten.
                descriptor = os.open(self.path / NAME, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o644)
            except FileNotFoundError:  # another process whose run failed to start has removed the directory it created
                if left:
                    continue
                raise
            try:
                self._lock_or_refuse(descriptor)
                kept = _is_at(descriptor, self.path / NAME)
            except BaseException:
                os.close(descriptor)
                raise
            if kept:
                return descriptor
            os.close(descriptor)
        raise RunError(f"{self.path / NAME} was replaced {TRIES} times while we locked it; choose another --out.")

    def _lock_or_refuse(self, descriptor: int) -> None:
        try:
            _lock(descriptor)
        except OSError as error:
            if error.errno in BUSY:
                who = _read(descriptor) or {}
                holder = f"process {who.get('pid', '?')} on {who.get('host', '?')} since {who.get('started', '?')}"
                raise InUseError(
                    f"{self.path} is in use by {holder}; only one process may write to a run directory; wait for it, "
                    "or choose another --out."
                ) from error
            if error.errno not in UNSUPPORTED:
                raise
            warnings.warn(
                f"{self.path} cannot be locked: {error.strerror}; do not start a second run in it.", stacklevel=4
            )


_held: set[RunLock] = set()


def _release_in_child() -> None:
    """Close the descriptors in a forked child without unlocking the parent's lock."""
    for lock in _held:
        if lock._descriptor is not None:
            os.close(lock._descriptor)
            lock._descriptor = None
    _held.clear()


def _is_at(descriptor: int, path: Path) -> bool:
    """Return whether this open file still has that name; always True on Windows, where open files cannot be removed."""
    try:
        return sys.platform == "win32" or os.path.samestat(os.fstat(descriptor), path.stat(follow_symlinks=False))
    except FileNotFoundError:
        return False


def _read(descriptor: int) -> dict[str, Any] | None:
    """Return what the holder wrote; None if the file is empty, {} if it cannot be parsed."""
    os.lseek(descriptor, 0, os.SEEK_SET)
    text = os.read(descriptor, 4096)
    if not text:
        return None
    try:
        who = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return who if isinstance(who, dict) else {}


def _write(descriptor: int) -> None:
    started = datetime.now(UTC).isoformat(timespec="seconds")
    who = {"pid": os.getpid(), "host": platform.node(), "started": started}
    os.ftruncate(descriptor, 0)
    os.lseek(descriptor, 0, os.SEEK_SET)
    os.write(descriptor, json.dumps(who).encode())
