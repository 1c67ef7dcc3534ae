"""The files of sharded data, as they were when they were indexed, and the images in them."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pencil.data.sources.regular_files import version_of


@dataclass(frozen=True)
class ShardFiles:
    """Shards that have been indexed.

    Parameters
    ----------
    folder, names
        The files, by their paths relative to a folder.
    versions
        Size and modification time of each file, taken before it was indexed.
    """

    folder: Path
    names: tuple[str, ...]
    versions: tuple[bytes, ...]

    def place(self, number: int) -> tuple[Path, bytes]:
        """Return the path of a shard, and its version."""
        return self.folder / self.names[number], self.versions[number]


def refuse_changed(path: Path, version: bytes) -> None:
    """Raise a ValueError, as for an unreadable image, if a shard has changed since it was indexed."""
    if version_of(path) != version:
        raise ValueError(f"{path.name} has changed since it was opened")


@dataclass(frozen=True)
class ShardImages:
    """What images in shards of any kind have in common.

    Parameters
    ----------
    shards
        The files.
    names
        Name of the images in messages.
    """

    shards: ShardFiles
    names: np.ndarray

    def __len__(self) -> int:
        return len(self.names)

    def file_of(self, row: int) -> None:
        return None
