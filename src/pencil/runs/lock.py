"""One writer per run directory: a lock that the operating system releases when its holder dies."""

import errno
import json
import os
import platform
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from pencil.errors import PencilWarning, RunError, warn
from pencil.files import refuse_links

NAME, TRIES = ".lock", 1000
WAIT = 0.1
"""Seconds to retry: the last holder may remove the file after this process opened it and before it locks it."""
START = 1
"""Offset of the text in the file: on Windows the first byte is locked, and no other process can read it."""
UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # on some network file systems
TRAINING = "training"
"""The task of a process that can write to another directory instead."""


class InUseError(RunError):
    """Another process is writing to the run directory."""


class RunLock:
    """Context manager that excludes other writers from a run directory, which is created if missing.

    ``task`` says in the lock file, and thereby to others, what the process does. filelock does not follow links, and
    releases the lock in forked children, such as data workers.
    """

    def __init__(self, path: Path, task: str = TRAINING):
        self.path, self.task = path, task
        self._held: FileLock | None = None
        self._identity: os.stat_result | None = None

    def __enter__(self) -> "RunLock":
        file = self.path / NAME
        lock = FileLock(file, timeout=WAIT, thread_local=False, fallback_to_soft=False, on_acquired=self._sign)
        try:
            refuse_links(self.path)
            self._acquire(lock)
        except Timeout as error:
            raise InUseError(
                f"{self.path} is in use by {_holder(_read(file))}; only one process may write to a run directory; wait "
                f"for it, {self._or_else('or stop it with Ctrl-C in its terminal')}."
            ) from error
        except RunError:
            raise
        except OSError as error:
            if error.errno not in UNSUPPORTED:
                raise RunError(
                    f"cannot lock {file}: {error.strerror or error}; expected a writable directory; check its "
                    f"permissions, {self._or_else('or copy the run to another place')}."
                ) from error
            file.unlink(missing_ok=True)  # it does not lock anything
            warn(f"{self.path} cannot be locked: {error.strerror}; do not start a second run in it.", PencilWarning)
        self._held = lock
        return self

    def __exit__(self, *_: object) -> None:
        if self._held is None or not self._held.is_locked:  # in a forked child; the parent still holds the lock
            return
        self._remove()
        self._held.release()

    def _or_else(self, other: str) -> str:
        """Return the second remedy: only training can use another directory."""
        return "or choose another --out" if self.task == TRAINING else other

    def _remove(self) -> None:
        """Remove the file that this process has locked."""
        file = self.path / NAME
        with suppress(OSError):  # only the lock matters; on Windows filelock removes the file
            if self._identity and os.path.samestat(self._identity, file.stat(follow_symlinks=False)):
                file.unlink()

    def _acquire(self, lock: FileLock) -> None:
        """Acquire the lock. Retry if another process, whose run failed to start, removes the directory it created."""
        for left in reversed(range(TRIES)):
            try:
                self.path.mkdir(parents=True, exist_ok=True)
                lock.acquire()
                return
            except FileNotFoundError:
                if not left:
                    raise

    def _sign(self, descriptor: int) -> None:
        """Write who holds the lock. On a full disk the empty file is removed, before filelock releases the lock."""
        self._identity = os.fstat(descriptor)
        started = datetime.now(UTC).isoformat(timespec="seconds")
        who = {"pid": os.getpid(), "host": platform.node(), "started": started, "task": self.task}
        try:
            os.ftruncate(descriptor, 0)
            os.lseek(descriptor, 0, os.SEEK_SET)
            os.write(descriptor, b" " * START + json.dumps(who).encode())
        except OSError:
            self._remove()
            raise


def _holder(who: dict[str, Any]) -> str:
    """Return the process that wrote the file, and what it does."""
    holder = f"process {who.get('pid', '?')} on {who.get('host', '?')} since {who.get('started', '?')}"
    return f"{holder} ({who['task']})" if "task" in who else holder


def _read(file: Path) -> dict[str, Any]:
    """Return what the holder wrote; {} if it cannot be read or parsed."""
    try:
        with file.open("rb", buffering=0) as stream:
            stream.seek(START)
            who = json.loads(stream.read(4096))
    except (OSError, ValueError, RecursionError):
        return {}
    return who if isinstance(who, dict) else {}
