"""Inputs for display on a page: embedded small images, the first numbers of vectors, the cells of table rows."""

import base64
import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from pencil.data.check.cells import Cell, measure_spread, row_cells
from pencil.data.examples import Examples, Splits
from pencil.data.given.given_labels import hard_labels
from pencil.data.inputs.base import Inputs
from pencil.decisions import Where
from pencil.errors import DataError

SIDE = 96
COARSE = 48
"""Images whose sides are at most this long are enlarged without smoothing, so that their pixels are visible."""
NUMBERS = 6
CELLS = 8
"""Maximum cells shown per row."""


@dataclass(frozen=True)
class Shown:
    """An input on the page: an image as a data URL, text, or the cells of a table."""

    picture: str = ""
    coarse: bool = False
    words: str = ""
    cells: tuple[Cell, ...] = ()
    more: int = 0


def find_shown(splits: Splits, rows: Iterable[Where]) -> dict[Where, Shown]:
    """Return the inputs of these rows for display, without rows that cannot be read.

    Rows that a run has held out may be training rows in the data, so they are searched there too.
    """
    found: dict[Where, Shown | None] = {}
    wanted = list(rows)
    for split in ("train", "validation", "unlabelled"):
        missing = {key for key, of in wanted if of == split}
        for part in (getattr(splits, split), splits.train):
            if part is None or not missing:
                continue
            places = np.flatnonzero(np.isin(part.keys, np.array(sorted(missing), dtype=part.keys.dtype)))
            shown = show_rows(part, {str(part.keys[place]): int(place) for place in places})
            found |= {(key, split): one for key, one in shown.items()}
            missing -= shown.keys()
    return {where: one for where, one in found.items() if one is not None}


def show_rows(examples: Examples, places: Mapping[str, int]) -> dict[str, Shown | None]:
    """Return the inputs of the examples at these positions by key; None for an unreadable input."""
    records = examples.inputs.records
    if records is None:
        return {key: show_row(examples.inputs, int(examples.rows[place])) for key, place in places.items()}
    spread, single = measure_spread(examples, records), not examples.multilabel
    found: dict[str, Shown | None] = {}
    for key, place in places.items():
        code = int(hard_labels(examples.given_labels[place : place + 1])[0]) if single else -1
        cells = row_cells(records, int(examples.rows[place]), spread, code)
        found[key] = Shown(cells=tuple(cells[:CELLS]), more=max(0, len(cells) - CELLS))
    return found


def show_row(inputs: Inputs, row: int) -> Shown | None:
    """Return a row as an image or as numbers; None if it cannot be read."""
    try:
        picture = inputs.picture(row, side=2 * SIDE)
        return _numbers(inputs.raw(torch.tensor([row])).values[0]) if picture is None else _picture(picture)
    except DataError:
        return None


def _numbers(values: Tensor) -> Shown:
    flat = values.detach().cpu().reshape(-1)
    numbers = ", ".join(f"{number:.3g}" for number in flat[:NUMBERS].tolist())
    size = " x ".join(map(str, values.shape)) if values.ndim > 1 else str(len(flat))
    return Shown(words=numbers if len(flat) <= NUMBERS else f"{numbers}, ... ({size} numbers)")


def _picture(pixels: np.ndarray) -> Shown:
    image = Image.fromarray(pixels)
    coarse = max(image.size) <= COARSE
    image.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
    image = Image.fromarray(np.asarray(image))  # only the pixels: no profile, comment or location
    content = io.BytesIO()
    kind = "png" if coarse else "jpeg"
    if coarse:
        image.save(content, "png", optimize=True)
    else:
        image.save(content, "jpeg", quality=80)
    return Shown(f"data:image/{kind};base64,{base64.b64encode(content.getvalue()).decode()}", coarse)
