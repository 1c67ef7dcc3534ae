"""What shards of every kind have in common: their files as they were indexed, their images, and their index."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa

from pencil.data.bad_rows import BadRows
from pencil.data.columns import Columns
from pencil.data.inputs.images import Encoded
from pencil.data.sources.regular_files import version_of


def refuse_changed(path: Path, version: bytes) -> None:
    """Raise a ValueError, as for an unreadable image, if a shard has changed since it was indexed."""
    if version_of(path) != version:
        raise ValueError(f"{path.name} has changed since it was opened")


@dataclass(frozen=True)
class ShardImages(Encoded):
    """What images in shards of any kind have in common; ``names`` are for messages.

    ``shards`` are the indexed files, each with its size and time before it was indexed.
    """

    shards: tuple[tuple[Path, bytes], ...]
    names: np.ndarray


class ShardIndex(ABC):
    """Builds the index of several shards of one kind."""

    expected: ClassVar[str]
    """What a shard of this kind is, in messages."""
    one_row: ClassVar[str]
    """What a row of it is, in messages."""
    faults: ClassVar[tuple[type[Exception], ...]]
    """What :meth:`add` raises if a shard is damaged."""

    def __init__(self, folder: Path, columns: Columns, where: str):
        self.folder, self.columns, self.bad = folder, columns, BadRows(where)
        self.versions: dict[str, bytes] = {}
        self.rows: list[int] = []

    def __len__(self) -> int:
        return sum(self.rows)

    @property
    def files(self) -> tuple[tuple[Path, bytes], ...]:
        """The shards that have been added, and their versions."""
        return tuple((self.folder / name, version) for name, version in self.versions.items())

    @abstractmethod
    def add(self, shard: str) -> None:
        """Add the rows of a shard."""

    @abstractmethod
    def table(self) -> pa.Table:
        """Return the columns in memory, of all shards."""

    @abstractmethod
    def keys(self) -> np.ndarray | None:
        """Return the position of each row: its shard, and its name or number in it; None for images in files."""

    @abstractmethod
    def images(self, names: np.ndarray | None) -> Encoded | None:
        """Return the images of all shards, with the keys as names; None if there are none in them."""
