"""Features of images and texts on disk, keyed by content: computed once and reused by every later run."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import platformdirs
from filelock import FileLock, Timeout

from pencil.data.inputs.base import DIGEST
from pencil.errors import DataError, explained, setting

FEATURES, DIGESTS, LOCK = "features.f16", "digests.bin", ".lock"


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
    next writer overwrites. Write only while holding :meth:`lock`. The name of the folder must identify how the
    vectors were computed.
    """

    def __init__(self, folder: Path, width: int):
        self.folder, self.width = folder, width
        self._rows: dict[bytes, int] = {}
        advice = f"expected a writable folder; choose another one with {setting('data.cache', 'FOLDER')}"
        with explained(DataError, f"cannot store features in {folder}", advice, OSError):
            folder.mkdir(parents=True, exist_ok=True)
            for name in (FEATURES, DIGESTS):
                (folder / name).touch()
        self.refresh()

    @contextmanager
    def lock(self, waiting: Callable[[], None] | None = None) -> Iterator[None]:
        """Hold an exclusive lock, which is released when its holder dies.

        ``waiting`` is called every second while another process holds it, and may raise.
        """
        lock = FileLock(self.folder / LOCK)
        while not lock.is_locked:
            try:
                lock.acquire(timeout=1.0)
            except Timeout:
                if waiting is not None:
                    waiting()
        try:
            yield
        finally:
            lock.release()

    def refresh(self) -> None:
        """Read what other processes have added."""
        content = (self.folder / DIGESTS).read_bytes()
        vectors = (self.folder / FEATURES).stat().st_size // (2 * self.width)
        for row in range(len(self._rows), min(len(content) // DIGEST, vectors)):
            self._rows[content[DIGEST * row : DIGEST * (row + 1)]] = row

    def missing(self, digests: Sequence[bytes]) -> list[bytes]:
        """Return the unique digests among these that have no vector."""
        return [digest for digest in dict.fromkeys(digests) if digest not in self._rows]

    def add(self, digests: Sequence[bytes], features: np.ndarray) -> None:
        """Append vectors, which must be new."""
        rows = len(self._rows)
        advice = f"expected free disk space; free some, or choose another folder with {setting('data.cache', 'FOLDER')}"
        with explained(DataError, f"cannot store features in {self.folder}", advice, OSError):
            for name, start, content in (
                (FEATURES, 2 * self.width * rows, features.astype(np.float16).tobytes()),
                (DIGESTS, DIGEST * rows, b"".join(digests)),
            ):
                with (self.folder / name).open("r+b") as file:
                    file.truncate(start)
                    file.seek(start)
                    file.write(content)
        self._rows |= {digest: rows + number for number, digest in enumerate(digests)}

    def read(self, digests: Sequence[bytes]) -> np.ndarray:
        """Return the vectors of these digests, all of which must be known, as (rows, width) in half precision."""
        rows = np.fromiter((self._rows[digest] for digest in digests), np.int64, len(digests))
        if not len(self._rows):
            return np.empty((0, self.width), np.float16)
        stored = np.memmap(self.folder / FEATURES, np.float16, "r", shape=(len(self._rows), self.width))
        return stored[rows]
