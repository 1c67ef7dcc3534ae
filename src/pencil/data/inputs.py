"""Where inputs come from: one tensor in memory, or any map-style dataset read item by item."""

import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, default_collate

from pencil.data.augment import Augmentation, Draws, Frame, centre_crop
from pencil.errors import DataError
from pencil.seeding import seeded


@dataclass(frozen=True)
class View:
    """What is random about one pass over the data; evaluation has none."""

    seed: int
    epoch: int
    augmentation: Augmentation | None = None


class Loaded(NamedTuple):
    """The inputs of a chunk of rows; ``kept`` says which of them could be read, where some could not."""

    values: Tensor
    kept: Tensor | None = None


class Inputs(Protocol):
    """The inputs of a dataset, handed out in batches of chosen rows."""

    def __len__(self) -> int: ...

    @property
    def complete(self) -> bool:
        """Whether no row is ever left out: one that cannot be read is an error."""
        ...

    def batches(self, chunks: Sequence[Tensor], view: View | None = None) -> Iterator[Loaded]:
        """The inputs of each chunk of rows in turn."""
        ...


@dataclass(frozen=True)
class Normalization:
    """``(x / 255 - mean) / std`` for uint8 images per channel, ``(x - mean) / std`` for float vectors per feature."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


IMAGENET = Normalization((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


@dataclass(frozen=True)
class Finish:
    """The last steps for a whole batch of raw values: crop (at random in training, else centred), flip, normalise."""

    normalization: Normalization | None = None
    crop: int | None = None

    def draws(self, rows: int, shape: Sequence[int], view: View | None) -> Draws | None:
        """What is random in this pass over inputs of this shape (without the batch dimension)."""
        if view is None or view.augmentation is None or len(shape) != 3:
            return None
        return view.augmentation.draw(rows, view.seed, view.epoch, Frame((shape[1], shape[2]), self._size(shape)))

    def apply(self, values: Tensor, rows: Tensor, draws: Draws | None) -> Tensor:
        if draws is not None:
            values = draws.apply(values, rows)
        elif self.crop is not None:
            values = centre_crop(values, self._size(values.shape[1:]))
        if self.normalization is None:
            return values
        scale, shift = _affine(self.normalization, values)
        return torch.addcmul(shift, values.to(scale.dtype), scale)

    def shape(self, raw: Sequence[int]) -> tuple[int, ...]:
        """The shape of one input as a network sees it."""
        return (raw[0], *self._size(raw)) if self.crop is not None else tuple(raw)

    def _size(self, shape: Sequence[int]) -> tuple[int, int]:
        return (shape[1], shape[2]) if self.crop is None else (self.crop, self.crop)


PLAIN = Finish()


def _affine(normalization: Normalization, values: Tensor) -> tuple[Tensor, Tensor]:
    """Normalisation as one multiply-add, shaped to broadcast over a batch."""
    shape = (1, -1) + (1,) * (values.ndim - 2)
    dtype = torch.float64 if values.dtype == torch.float64 else torch.float32
    mean = torch.tensor(normalization.mean, dtype=dtype).view(shape)
    std = torch.tensor(normalization.std, dtype=dtype).view(shape)
    unit = 255.0 if values.dtype == torch.uint8 else 1.0
    return 1 / (unit * std), -mean / std


@dataclass(frozen=True)
class TensorInputs:
    """Data held as one tensor, in memory or mapped from a file; uint8 images stay uint8 until their batch is made.

    ``prepared`` says that floats come from a user's own dataset and are to be taken as they are; ``readable`` which
    rows hold anything, where some images could not be decoded.
    """

    values: Tensor
    finish: Finish = PLAIN
    prepared: bool = False
    readable: Tensor | None = None

    def __len__(self) -> int:
        return len(self.values)

    @property
    def complete(self) -> bool:
        return self.readable is None

    def batches(self, chunks: Sequence[Tensor], view: View | None = None) -> Iterator[Loaded]:
        draws = self.finish.draws(len(self), self.values.shape[1:], view)
        for chunk in chunks:
            kept = None if self.readable is None else self.readable[chunk]
            rows = chunk if kept is None else chunk[kept]
            yield Loaded(self.finish.apply(self.values[rows], rows, draws), kept)


def refuse_non_finite(values: Tensor) -> Tensor:
    """The same values, if all of them are numbers."""
    if values.is_floating_point():
        finite = values.isfinite().flatten(1).all(dim=1)
        if not finite.all():
            row = int(finite.to(torch.uint8).argmin())
            raise DataError(f"input at row {row} holds NaN or infinity; expected numbers; mend or leave out the row.")
    return values


def measure(values: Tensor, rows: Tensor) -> Normalization:
    """Mean and deviation of these rows, per channel of images (n, c, h, w) or per feature of vectors (n, d)."""
    unit = 255.0 if values.dtype == torch.uint8 else 1.0
    kept = [0, *range(2, values.ndim)]
    total = torch.zeros(values.shape[1], dtype=torch.float64)
    squares = torch.zeros_like(total)
    for chunk in rows.split(4096):  # a copy of everything in float64 would not fit where the data just does
        part = values[chunk].double() / unit
        total += part.sum(dim=kept)
        squares += part.square().sum(dim=kept)
    count = len(rows) * values[0, 0].numel()
    mean = total / count
    deviation = (squares / count - mean.square()).clamp_(min=0).sqrt()
    deviation[deviation < 1e-6] = 1.0  # a constant pixel or feature carries nothing; leave it finite
    return Normalization(tuple(mean.tolist()), tuple(deviation.tolist()))


INPUT_KEYS = ("image", "pixel_values", "inputs", "input", "features", "x")
LABEL_KEYS = ("label", "labels", "target", "y")


def take_input(item: Any) -> Any:
    """The input of a dataset's item: the first of a pair, or the input field of a dict."""
    return _take(item, 0, INPUT_KEYS, "input")


def take_label(item: Any) -> Any:
    """The label of a dataset's item: the second of a pair, or the label field of a dict."""
    return _take(item, 1, LABEL_KEYS, "label")


def _take(item: Any, position: int, keys: tuple[str, ...], what: str) -> Any:
    if isinstance(item, Mapping):
        for key in keys:
            if key in item:
                return item[key]
        raise DataError(
            f"dataset items are dicts with the fields {', '.join(map(repr, item))}; "
            f"expected the {what} under one of {', '.join(map(repr, keys))}."
        )
    if isinstance(item, Sequence) and not isinstance(item, str) and len(item) >= 2:
        return item[position]
    raise DataError(f"a dataset item is a {type(item).__name__}; expected a pair (x, y) or a dict.")


@dataclass(frozen=True)
class DatasetInputs:
    """Any map-style dataset; random transforms in it are seeded by (seed, epoch, row)."""

    dataset: Any
    workers: int = 0
    complete: bool = True

    def __len__(self) -> int:
        return len(self.dataset)

    def batches(self, chunks: Sequence[Tensor], view: View | None = None) -> Iterator[Loaded]:
        items = _SeededItems(self.dataset, (view.seed, view.epoch) if view else (0, -1))
        for values in read_ahead(items, chunks, _collate, self.workers):
            yield Loaded(values)


def read_ahead(
    items: Any, chunks: Sequence[Tensor], collate: Callable[[list[Any]], Any], workers: int
) -> Iterator[Any]:
    """What ``collate`` makes of the items of each chunk; worker processes read the next chunks meanwhile."""
    loader: DataLoader[Any] = DataLoader(
        items,
        batch_sampler=_Chunks(chunks),
        num_workers=min(workers, len(chunks)),
        collate_fn=collate,
        pin_memory=torch.cuda.is_available(),
        generator=torch.Generator(),  # or it would draw from the global one
        worker_init_fn=_leave_interrupts_to_parent,
    )
    try:
        yield from loader
    except DataError as error:  # from a worker it comes wrapped in that process's traceback; the last line is ours
        raise DataError(str(error).strip().splitlines()[-1].removeprefix(f"{_qualified(DataError)}: ")) from error


def _leave_interrupts_to_parent(worker: int) -> None:
    """Ctrl-C reaches every process of a terminal; the one that trains saves first, and needs its readers for that."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@dataclass(frozen=True)
class _Chunks:
    """Chunks of rows as lists, one at a time: an epoch's order stays one array."""

    chunks: Sequence[Tensor]

    def __len__(self) -> int:
        return len(self.chunks)

    def __iter__(self) -> Iterator[list[int]]:
        return (chunk.tolist() for chunk in self.chunks)


@dataclass(frozen=True)
class _SeededItems:
    dataset: Any
    stream: tuple[int, int]

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, row: int) -> tuple[int, Tensor]:
        with seeded(self.stream[0], "item", self.stream[1], row, gpu=False):
            value = take_input(self.dataset[row])
        if isinstance(value, np.ndarray):
            value = torch.from_numpy(value)
        if not isinstance(value, Tensor):
            raise DataError(
                f"input at row {row} is a {type(value).__name__}; expected a tensor; "
                "give the dataset a transform such as torchvision.transforms.ToTensor()."
            )
        return row, value


def _qualified(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _collate(items: list[tuple[int, Tensor]]) -> Tensor:
    for row, value in items:
        if value.shape != items[0][1].shape:
            raise DataError(
                f"input at row {row} has shape {tuple(value.shape)}, at row {items[0][0]} {tuple(items[0][1].shape)}; "
                "expected one shape; resize in the dataset's transform."
            )
        if value.is_floating_point() and not value.isfinite().all():
            raise DataError(f"input at row {row} holds NaN or infinity; expected numbers; mend or leave out the row.")
    batch: Tensor = default_collate([value for _, value in items])
    return batch
