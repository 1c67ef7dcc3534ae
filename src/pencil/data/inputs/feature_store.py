"""Features of images and texts on disk, keyed by content: computed once and reused by every later run."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import numpy as np
import platformdirs
from filelock import BaseFileLock, FileLock, Timeout

from pencil.data.inputs.base import DIGEST
from pencil.data.sources.regular_files import open_own
from pencil.errors import DataError, explained, reason_of, setting

FEATURES, DIGESTS, LOCK = "features.f16", "digests.bin", ".lock"
NO_DIGEST = bytes(DIGEST)
"""The digest of an input without one; a crash can leave it, or a digest that occurs before, but no writer stores it."""


def default_folder() -> Path:
    """Return where features are stored unless ``data.cache`` sets a folder: the user's cache folder."""
    return platformdirs.user_cache_path("pencil") / "features"


def store_folder(cache: str, name: str) -> Path | None:
    """Return the folder of a store with this ``data.cache``; None if features are not kept."""
    if cache in ("none", "memory"):
        return None
    return (default_folder() if cache == "auto" else Path(cache).expanduser()) / name


class FeatureStore:
    """A folder with two append-only files: vectors in half precision, and the digest of each input.

    A digest is written after its vector, so a killed process leaves at most a vector without a digest, which the
    next writer overwrites. Write only while holding :meth:`lock`, which makes the folder; reading changes nothing. The
    name of the folder must identify how the vectors were computed.

    The folder may come from a stranger: links are refused, and what no writer leaves behind counts as not stored.
    """

    def __init__(self, folder: Path, width: int):
        self.folder, self.width = folder, width
        self._rows: dict[bytes, int] = {}
        self.refresh()

    @contextmanager
    def lock(self, waiting: Callable[[], None] | None = None) -> Iterator[None]:
        """Hold an exclusive lock, which is released when its holder dies.

        ``waiting`` is called every second while another process holds it, and may raise.
        """
        with self._explained("store"):
            self.folder.mkdir(parents=True, exist_ok=True)
            self._open(LOCK, os.O_RDWR | os.O_CREAT).close()  # the lock itself would wait for a folder or a pipe
        lock = FileLock(self.folder / LOCK)
        while not lock.is_locked:
            if not self._acquired(lock) and waiting is not None:
                waiting()
        try:
            yield
        finally:
            lock.release()

    def _acquired(self, lock: BaseFileLock) -> bool:
        """Wait a second for a lock; return whether it is held now."""
        with self._explained("store"):
            try:
                lock.acquire(timeout=1.0)
            except Timeout:
                return False
        return True

    def refresh(self) -> None:
        """Read what other processes have added, up to the first digest that no writer has written."""
        with (
            self._explained("read"),
            suppress(FileNotFoundError),
            self._open(FEATURES) as features,
            self._open(DIGESTS) as digests,
        ):
            vectors = os.fstat(features.fileno()).st_size // (2 * self.width)
            digests.seek(DIGEST * len(self._rows))
            for row in range(len(self._rows), vectors):
                found = digests.read(DIGEST)
                if len(found) < DIGEST or found == NO_DIGEST or found in self._rows:
                    break
                self._rows[found] = row

    def missing(self, digests: Sequence[bytes]) -> list[bytes]:
        """Return the unique digests among these that have no vector."""
        return [digest for digest in dict.fromkeys(digests) if digest not in self._rows]

    def add(self, digests: Sequence[bytes], features: np.ndarray) -> None:
        """Append vectors, which must be new."""
        rows = len(self._rows)
        with self._explained("store"):
            for name, start, content in (
                (FEATURES, 2 * self.width * rows, features.astype(np.float16).tobytes()),
                (DIGESTS, DIGEST * rows, b"".join(digests)),
            ):
                with self._open(name, os.O_RDWR | os.O_CREAT) as file:
                    file.truncate(start)
                    file.seek(start)
                    file.write(content)
        self._rows |= {digest: rows + number for number, digest in enumerate(digests)}

    def read(self, digests: Sequence[bytes]) -> np.ndarray:
        """Return the vectors of these digests, all of which must be known, as (rows, width) in half precision."""
        rows = np.fromiter((self._rows[digest] for digest in digests), np.int64, len(digests))
        if not len(self._rows):
            return np.empty((0, self.width), np.float16)
        with self._explained("read"), self._open(FEATURES) as file:
            stored = np.memmap(file, np.float16, "r", shape=(len(self._rows), self.width))
            return stored[rows]

    def _open(self, name: str, flags: int = os.O_RDONLY) -> BinaryIO:
        if self.folder.is_symlink():  # perhaps to a store of other vectors, which would be overwritten
            raise OSError("it is a symbolic link")
        try:
            return open_own(self.folder / name, flags)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise OSError(f"{name}: {reason_of(error)}") from error

    def _explained(self, what: str) -> AbstractContextManager[None]:
        advice = "expected a writable folder with free space and no other files; remove it, or choose another one with "
        advice += setting("data.cache", "FOLDER")
        return explained(DataError, f"cannot {what} features in {self.folder}", advice, OSError, ValueError)
