"""The last steps on a batch of raw values: augmentation in training, a centre crop otherwise; normalisation."""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pencil.data.inputs.augment import Draws, Frame, View, centre_crop
from pencil.errors import DataError

BLOCK_BYTES = 32 * 2**20
"""Steps over all data copy at most this many bytes at a time; a few such copies exist at once."""


@dataclass(frozen=True)
class Normalization:
    """``(x / 255 - mean) / std`` for uint8 images per channel, ``(x - mean) / std`` for float vectors per feature."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.mean or len(self.mean) != len(self.std):
            raise ValueError(f"{len(self.mean)} means and {len(self.std)} deviations; expected the same number of each")


IMAGENET = Normalization((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


@dataclass(frozen=True)
class Transform:
    """Crop to a square of ``crop`` pixels, flip and normalise a batch of raw values; None leaves a step out."""

    normalization: Normalization | None = None
    crop: int | None = None

    def draws(self, rows: int, shape: Sequence[int], dtype: torch.dtype, view: View | None) -> Draws | None:
        """Draw the random choices of one pass over inputs of this shape (without the batch dimension) and dtype."""
        if view is None or view.augmentation is None or len(shape) != 3:
            return None
        frame = Frame((shape[1], shape[2]), self._size(shape), self._mean_colour(dtype))
        return view.augmentation.draw(rows, view.seed, view.epoch, frame)

    def apply(self, values: Tensor, rows: Tensor, draws: Draws | None) -> Tensor:
        """Return the values as a network sees them; ``draws`` is None in evaluation."""
        if draws is not None:
            values = draws.apply(values, rows)
        elif self.crop is not None:
            values = centre_crop(values, self._size(values.shape[1:]))
        return self.normalize(values)

    def normalize(self, values: Tensor) -> Tensor:
        """Return cropped values as a network sees them."""
        if self.normalization is None:
            return values
        dtype = torch.float64 if values.dtype == torch.float64 else torch.float32
        shape = (1, -1) + (1,) * (values.ndim - 2)
        scale, shift = (one.to(dtype).view(shape) for one in self._affine)
        if values.dtype == torch.uint8:
            scale = scale / 255.0
        return torch.addcmul(shift, values.to(dtype), scale)

    @functools.cached_property
    def _affine(self) -> tuple[Tensor, Tensor]:
        """The normalisation as one multiply-add: scale and shift of every channel or feature."""
        assert self.normalization is not None
        mean, std = (
            torch.tensor(one, dtype=torch.float64) for one in (self.normalization.mean, self.normalization.std)
        )
        return 1 / std, -mean / std

    def shape(self, raw: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of one input as a network sees it, from its shape before the transform."""
        return (raw[0], *self._size(raw)) if self.crop is not None else tuple(raw)

    def _size(self, shape: Sequence[int]) -> tuple[int, int]:
        return (shape[1], shape[2]) if self.crop is None else (self.crop, self.crop)

    def _mean_colour(self, dtype: torch.dtype) -> tuple[float, ...]:
        """Return the raw values that are 0 after normalisation; for bytes, the nearest ones."""
        mean = (0.0,) if self.normalization is None else self.normalization.mean
        return tuple(round(255 * value) for value in mean) if dtype == torch.uint8 else mean


IDENTITY = Transform()


def rows_within(shape: Sequence[int], bytes_each: int = 1) -> int:
    """Return how many rows of this shape fit into a block, at least one; every number takes ``bytes_each``."""
    return max(1, BLOCK_BYTES // (max(1, math.prod(shape)) * bytes_each))


class Moments:
    """Mean and standard deviation of each channel or feature, from batches that are added one after the other.

    However large the images are, at most one block of ``BLOCK_BYTES`` is copied to float64 at a time.
    """

    def __init__(self) -> None:
        self.count = 0
        self.total = self.squares = torch.zeros(0, dtype=torch.float64)

    def add(self, values: Tensor) -> None:
        """Add images (n, channels, height, width) or vectors (n, features)."""
        if self.count == 0:
            self.total, self.squares = torch.zeros(2, values.shape[1], dtype=torch.float64)
        unit, reduced = 255.0 if values.dtype == torch.uint8 else 1.0, [0, *range(2, values.ndim)]
        for rows in values.split(rows_within(values.shape[1:], 8)):
            pieces = rows.split(rows_within(rows.shape[3:], 8 * values.shape[1]), dim=2) if rows.ndim > 2 else [rows]
            for piece in pieces if len(rows) == 1 else [rows]:
                part = piece.double().div_(unit)
                self.total += part.sum(dim=reduced)  # in place: small new tensors between blocks fragment the heap
                self.squares += part.square_().sum(dim=reduced)
                del part  # before the next block is allocated
        self.count += values.numel() // values.shape[1]

    @property
    def mean(self) -> Tensor:
        """The mean of each channel or feature."""
        return self.total / self.count

    @property
    def deviation(self) -> Tensor:
        """The standard deviations; 1 for a constant channel or feature, which carries no information."""
        found = (self.squares / self.count - self.mean.square()).clamp_(min=0).sqrt()
        found[found < 1e-6] = 1.0
        return found

    def normalization(self) -> Normalization:
        """Return the normalisation to mean 0 and standard deviation 1."""
        return Normalization(tuple(self.mean.tolist()), tuple(self.deviation.tolist()))


def measure_normalization(values: Tensor, rows: Tensor) -> Normalization:
    """Compute mean and standard deviation of some rows: per channel of images, per feature of vectors."""
    moments = Moments()
    for chunk in rows.split(rows_within(values.shape[1:], 8)):
        moments.add(values[chunk])
    _refuse_non_finite(values, rows, moments.mean, moments.deviation)
    return moments.normalization()


def _refuse_non_finite(values: Tensor, rows: Tensor, mean: Tensor, deviation: Tensor) -> None:
    """Raise if mean or deviation is not finite in the dtype of the normalised values; name the largest value."""
    dtype = torch.float64 if values.dtype == torch.float64 else torch.float32
    scale, shift = 1 / deviation.to(dtype), (-mean / deviation).to(dtype)
    finite = (mean.to(dtype).isfinite() & scale.isfinite() & (scale > 0) & shift.isfinite()).flatten()
    if finite.all():
        return
    number = int(finite.to(torch.uint8).argmin())
    column, size = torch.empty(len(rows), dtype=values.dtype), rows_within(values.shape[2:], 8)
    for place, chunk in zip(column.split(size), rows.split(size), strict=True):
        place.copy_(values[chunk, number].reshape(len(chunk), -1).abs().amax(dim=1))
    column = column.nan_to_num(torch.inf)
    row = int(rows[int(column.argmax())])
    raise DataError(
        f"mean or deviation of input column {number} is not finite: row {row} holds a value of {column.max():g}; "
        "expected numbers of a moderate size; fix or remove the row, or scale the inputs."
    )


def refuse_crop(crop: int | None, shape: Sequence[int]) -> None:
    """Raise :class:`DataError` if inputs of this shape (before the crop) cannot be cropped to ``crop`` pixels."""
    if crop is None:
        return
    if len(shape) != 3:
        raise DataError(
            f"data.crop is {crop} but the inputs have shape {tuple(shape)}; expected images (channels, height, width); "
            "remove data.crop."
        )
    if crop > min(shape[1:]):
        raise DataError(
            f"data.crop is {crop} but the images have {shape[1]} x {shape[2]} pixels; expected a crop of at most "
            f"{min(shape[1:])}; use a smaller crop or larger images."
        )
