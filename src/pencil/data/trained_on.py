"""What a network was trained on: images, the columns of a table, or arrays. Data of another kind is refused early."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pyarrow as pa
from pyarrow import parquet

from pencil.data.given.given_labels import shorten
from pencil.data.inputs.base import Inputs
from pencil.data.inputs.images import SUFFIXES as IMAGES
from pencil.data.settings import DataSettings
from pencil.data.sources import delimited, shards
from pencil.data.sources.image_columns import has_images
from pencil.errors import DataError


@dataclass(frozen=True)
class InputKind:
    """Encoded images, the columns of a table, or arrays.

    Parameters
    ----------
    name
        One of the three.
    shape
        The shape of an array as the network sees it; for images and columns of a finished run too. None if unknown.
    columns
        The names of the columns.
    """

    name: Literal["images", "columns", "arrays"]
    shape: tuple[int, ...] | None = None
    columns: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.name == "images":
            return "images"
        if self.name == "columns":
            return f"the table columns {shorten(list(map(repr, self.columns)), 12)}"
        shape = self.shape or ()
        return f"vectors of {shape[0]} numbers" if len(shape) == 1 else f"arrays of shape {shape}"

    def takes(self, other: "InputKind") -> bool:
        """Return whether a network trained on this kind takes another kind.

        Arrays may stand for images, and for rows of a table that are encoded already. Different sizes of images are
        another error.
        """
        if other.name != "arrays" or other.shape is None or self.shape is None:
            return other.name in (self.name, "arrays")
        return other.shape == self.shape or len(other.shape) == len(self.shape) > 1

    def refuse(self, other: "InputKind", where: str = "the data") -> None:
        """Raise DataError if a network trained on this kind cannot take the other; ``where`` names the data."""
        if not self.takes(other):
            raise DataError(f"{where} contains {other}; the run was trained on {self}; pass data of that kind.")


def kind_of(inputs: Inputs) -> InputKind:
    """Return the kind of inputs."""
    if inputs.records is not None:
        return InputKind("columns", columns=tuple(inputs.records.table.column_names))
    return InputKind("images" if inputs.resizable else "arrays", inputs.shape)


def kind_of_path(path: Path, settings: DataSettings) -> InputKind | None:
    """Return the kind of data as the names of files and columns show it; None if they do not.

    ``settings`` says how a table is read, and which of its columns contain images.
    """
    if path.suffix.lower() in IMAGES or (path.is_dir() and not shards.find_shards(path)):
        return InputKind("images")
    header = _header(path, settings.delimiter) if path.is_file() else None
    if header is None:
        return None
    images = not settings.columns.encoded and has_images(header, settings.columns)
    return InputKind("images") if images else InputKind("columns", columns=tuple(header.column_names))


def _header(path: Path, delimiter: str | None) -> pa.Table | None:
    """Return a table file without its rows; None for other files, and if it cannot be read, which has its own error."""
    try:
        if path.suffix.lower() == ".parquet":
            return parquet.read_schema(path).empty_table()
        if path.suffix.lower() in delimited.SUFFIXES:
            names = delimited.read_names(path, delimited.find_dialect(path, delimiter))
            return pa.schema([(name, pa.string()) for name in names]).empty_table()
    except (OSError, ValueError, pa.ArrowException):
        return None
    return None
