"""Duplicates with another label: rows with the same input, or a nearly identical image."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from pencil.data.check.duplicates import Sketches

if TYPE_CHECKING:
    from pencil.data.examples import Examples
    from pencil.data.inputs.base import InspectedRow

Place = tuple["Examples", int]
"""The examples that contain a row, and its position in them."""


@dataclass(frozen=True)
class Twin:
    """A duplicate of a row; ``exact`` if the input is identical, otherwise a nearly identical image."""

    row: int
    exact: bool


def find_twins(own: Place, others: Sequence[tuple[int, Place]]) -> list[Twin]:
    """Return the other rows that are duplicates of a row, with the comparison of ``pencil check``."""
    first = _inspect(own)
    found = []
    for row, place in others:
        second = _inspect(place)
        if first.fault is None and second.fault is None and (first.digest == second.digest or _near(first, second)):
            found.append(Twin(row, first.digest == second.digest))
    return sorted(found, key=lambda twin: not twin.exact)


def _inspect(place: Place) -> "InspectedRow":
    part, number = place
    return next(iter(part.inputs.inspect([torch.tensor([int(part.rows[number])])])))[0]


def _near(first: "InspectedRow", second: "InspectedRow") -> bool:
    if first.look is None or second.look is None:
        return False
    sketches = Sketches(np.stack([first.look.sketch, second.look.sketch]))
    return bool(sketches.is_near(np.array([0]), np.array([1]))[0])
