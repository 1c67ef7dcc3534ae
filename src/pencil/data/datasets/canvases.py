"""A generated multi-label dataset: small pictures scattered over a cluttered canvas."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from pencil.data.datasets.small import digits, fashion_mnist
from pencil.data.examples import Examples, Splits
from pencil.data.inputs.base import TensorInputs
from pencil.data.keys import as_keys
from pencil.errors import DataError

ITEMS = ("digits", "fashion_mnist")
SCALES = (0.2, 0.35)
"""The side of an item, as a fraction of the canvas side."""
MOST_ITEMS, FRAGMENTS, TRIES = 4, 6, 8


def canvases(
    root: Path | None = None,
    *,
    items: str = "digits",
    size: int = 64,
    images: int = 4000,
    test_images: int = 1000,
    seed: int = 0,
    download: bool = True,
) -> Splits:
    """Generate canvases with one to four items each; a label lists the classes present (c = 10).

    Items differ in size, brightness and position, seldom overlap, and lie between fragments of other items on an uneven
    background. Test canvases consist of items that no training canvas contains. The same seed gives the same canvases.

    Parameters
    ----------
    root
        The folder of the items' dataset.
    items
        The dataset of the items, "digits" or "fashion_mnist".
    size
        Height and width of a canvas in pixels, at least 16.
    images, test_images
        Number of canvases to generate.
    seed
        Seed of the canvases.
    download
        Whether the items' dataset may be downloaded.
    """
    if items not in ITEMS:
        raise DataError(f"data.options.items is {items!r}; expected one of {', '.join(ITEMS)}; choose one of them.")
    for name, value, least in (("size", size, 16), ("images", images, 1), ("test_images", test_images, 1)):
        if value < least:
            raise DataError(f"data.options.{name} is {value}; expected at least {least}; increase it.")
    source = digits(root) if items == "digits" else fashion_mnist(root, download=download)
    assert source.test is not None
    train = _scatter(source.train, images, size, np.random.default_rng([seed, 0]), "train")
    return Splits(train, test=_scatter(source.test, test_images, size, np.random.default_rng([seed, 1]), "test"))


def _scatter(items: Examples, count: int, size: int, rng: np.random.Generator, part: str) -> Examples:
    pictures, labels = items.inputs.raw(items.rows).values.float() / 255, items.given_labels.numpy()
    drawn = torch.empty(count, 1, size, size, dtype=torch.uint8)
    present = torch.zeros(count, items.num_classes)
    for i in range(count):
        chosen = rng.integers(len(labels), size=rng.integers(1, MOST_ITEMS + 1))
        present[i, labels[chosen]] = 1
        canvas = _background(size, rng)
        for picture in pictures[rng.integers(len(labels), size=FRAGMENTS)]:
            _paste(canvas, _fragment(picture, size, rng), _place(size, [], 0, rng), rng)
        taken: list[tuple[int, int, int]] = []
        for picture in pictures[chosen]:
            side = round(size * rng.uniform(*SCALES))
            top, left = _place(size, taken, side, rng)
            taken.append((top, left, side))
            _paste(canvas, _resized(picture, side, side), (top, left), rng)
        drawn[i, 0] = (canvas.clamp_(0, 1) * 255).round().to(torch.uint8)
    keys = as_keys([f"{part}-{i:05d}" for i in range(count)])
    return Examples(TensorInputs(drawn), torch.arange(count), present, items.classes, keys, present, multilabel=True)


def _background(size: int, rng: np.random.Generator) -> Tensor:
    """Draw uneven light with a little grain."""
    light = _resized(torch.from_numpy(rng.uniform(0, 0.35, (1, 4, 4)).astype(np.float32)), size, size)
    return light + torch.from_numpy(rng.normal(0, 0.06, (size, size)).astype(np.float32))


def _fragment(picture: Tensor, size: int, rng: np.random.Generator) -> Tensor:
    """Cut out a third of an item in each direction: strokes and edges that do not belong to any class."""
    side = round(size * rng.uniform(*SCALES))
    whole, third = _resized(picture, side, side), max(2, side // 3)
    top, left = rng.integers(side - third + 1, size=2)
    return whole[top : top + third, left : left + third]


def _place(size: int, taken: list[tuple[int, int, int]], side: int, rng: np.random.Generator) -> tuple[int, int]:
    """Return a free position if a few tries find one, otherwise the last one tried."""
    for _ in range(TRIES):
        top, left = (int(value) for value in rng.integers(size - side + 1, size=2))
        if all(max(abs(top - y), abs(left - x)) >= (side + other) // 2 for y, x, other in taken):
            break
    return top, left


def _paste(canvas: Tensor, picture: Tensor, at: tuple[int, int], rng: np.random.Generator) -> None:
    """Add the picture's light to the canvas, so that the content below stays visible."""
    region = canvas[at[0] : at[0] + picture.shape[0], at[1] : at[1] + picture.shape[1]]
    region += rng.uniform(0.45, 0.9) * picture[: region.shape[0], : region.shape[1]]


def _resized(picture: Tensor, height: int, width: int) -> Tensor:
    return interpolate(picture[None], (height, width), mode="bilinear", antialias=True, align_corners=False)[0, 0]
