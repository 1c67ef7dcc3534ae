"""The content of each row for another tool: an image file, an image, or the cells of a table as text."""

import base64
import io
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import numpy as np

from pencil.data.check.cells import row_cells
from pencil.data.read import read_source
from pencil.data.settings import FROM_PYTHON, DataSettings
from pencil.decisions import Label, Where
from pencil.errors import RunError
from pencil.runs.label_table import LabelTable

if TYPE_CHECKING:
    from pencil.data.examples import Examples

SPLITS = ("train", "validation", "unlabelled")
NUMBERS = 64
"""Maximum numbers of a vector to show."""
LONGEST_NAME = 200


@dataclass(frozen=True, eq=False)
class Content:
    """The content of a row: an image file, the pixels (uint8) of an image without a file, or the text of its cells.

    ``name`` is the path of the image relative to the folder of all images, with slashes; empty for text.
    """

    name: str = ""
    file: Path | None = None
    pixels: np.ndarray | None = None
    text: str = ""

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of the image."""
        from PIL import Image

        if self.pixels is not None:
            height, width = self.pixels.shape[:2]
            return width, height
        assert self.file is not None
        try:
            with Image.open(self.file) as image:  # reads only the header
                return image.size
        except OSError as error:
            raise RunError(
                f"cannot read {self.file}: {error}; expected an image; fix it, or choose fewer rows."
            ) from error

    def png(self) -> bytes:
        """Return the pixels as a PNG file."""
        from PIL import Image

        assert self.pixels is not None
        target = io.BytesIO()
        Image.fromarray(self.pixels).save(target, "PNG")
        return target.getvalue()

    def data_address(self) -> str:
        """Return the pixels as a ``data:`` URL."""
        return f"data:image/png;base64,{base64.b64encode(self.png()).decode()}"


@dataclass(frozen=True, eq=False)
class Row:
    """A row of a run for a tool; labels of multi-label data are tuples, and ``given`` may be None."""

    key: str
    split: str
    given: Label | None
    corrected: Label
    confidence: float
    issue_score: float
    changed: bool
    shown: Content


class Contents:
    """The data that a run was trained on, by key and split. Loading it imports torch."""

    def __init__(self, settings: DataSettings):
        if settings.source == FROM_PYTHON:
            raise RunError(
                "the data of this run was passed as Python objects, so there is nothing to show in another tool; "
                "expected a run on a named dataset, a folder or a file; choose --format csv, jsonl or parquet."
            )
        self.settings = settings
        splits = read_source(settings.source, settings, local=True)
        self._parts: dict[str, tuple[Examples, dict[str, int]]] = {}
        for split in SPLITS:
            part = getattr(splits, split)
            if part is not None:
                self._parts[split] = part, {str(key): place for place, key in enumerate(part.keys)}

    @cached_property
    def folder(self) -> Path:
        """The folder that the names of image files are relative to."""
        source = Path(self.settings.source).expanduser().absolute()
        if source.is_dir():
            return source
        return source.parent if self.settings.root is None else self.settings.root.expanduser().absolute()

    def rows(self, labels: LabelTable) -> Iterator[Row]:
        """Yield the rows of a label table with their content."""
        given, corrected = labels.given_labels, labels.corrected_labels
        for row, (key, split) in enumerate(zip(labels.keys.to_pylist(), labels.splits.to_pylist(), strict=True)):
            believed = corrected[row]
            assert believed is not None
            yield Row(
                key,
                split,
                given[row],
                believed,
                round(float(labels.confidence[row]), 6),
                round(float(labels.issue_score[row]), 6),
                bool(labels.changed[row]),
                self.show((key, split)),
            )

    def images(self, labels: LabelTable, tool: str, folder: Path) -> Iterator[Row]:
        """Yield the rows for a tool that only shows images; images without a file are written to ``folder``."""
        for row in self.rows(labels):
            if not row.shown.name:
                raise RunError(
                    f"{row.key!r} of this run is not an image, which {tool} needs; choose --format labelstudio."
                )
            if row.shown.file is None:
                target = folder / row.shown.name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(row.shown.png())
            yield row

    def show(self, where: Where) -> Content:
        """Return the content of a row."""
        part, place = self._find(where)
        row = int(part.rows[place])
        file = part.inputs.file_of(row)
        if file is not None:
            file = file.absolute()
            if not file.is_file():
                raise RunError(
                    f"the image {where[0]!r} of this run is no longer at {file}; restore it, or choose fewer rows."
                )
            return Content(self._relative(file), file)
        pixels = part.inputs.picture(row)
        if pixels is not None:
            return Content(_picture_name(where), None, pixels)
        return Content(text=_text(part, row))

    def name(self, where: Where) -> str:
        """Return the name of the image of a row, without reading it; empty for a text."""
        part, place = self._find(where)
        row = int(part.rows[place])
        file = part.inputs.file_of(row)
        if file is not None:
            return self._relative(file.absolute())
        return "" if part.inputs.records is not None else _picture_name(where)

    def _find(self, where: Where) -> "tuple[Examples, int]":
        key, split = where
        for name in (split, "train"):  # held-out rows usually come from the training data
            part, places = self._parts.get(name, self._parts["train"])
            if key in places:
                return part, places[key]
        raise RunError(
            f"the data of this run ({self.settings.source}) no longer contains row {key!r} ({split}); restore the "
            "training data."
        )

    def _relative(self, file: Path) -> str:
        inside = file.is_relative_to(self.folder)
        return (file.relative_to(self.folder) if inside else file.relative_to(file.anchor)).as_posix()


def _picture_name(where: Where) -> str:
    """Return a unique file name for an image without a file."""
    key, split = where
    name = quote(key, safe=" ")
    if len(name) > LONGEST_NAME:
        raise RunError(f"the key {key[:40]!r}... is too long for the name of an image; expected shorter keys.")
    return f"{split}/{name}.png"


def _text(part: "Examples", row: int) -> str:
    """Return the cells of a row, or the first numbers of a vector."""
    import torch

    records = part.inputs.records
    if records is not None:
        cells = row_cells(records, row)
        return cells[0].value if len(cells) == 1 else "\n".join(f"{cell.column}: {cell.value}" for cell in cells)
    values = part.inputs.raw(torch.tensor([row])).values[0].numpy().astype(np.float64).ravel()
    shown = ", ".join(f"{value:.4g}" for value in values[:NUMBERS])
    return shown if len(values) <= NUMBERS else f"{shown}, ... ({len(values)} numbers)"
