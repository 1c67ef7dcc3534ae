"""Augmentation: crops and flips of whole batches, and torchvision's random steps on single images.

The augmentation of a row is a pure function of (seed, epoch, row): the order of the rows, the batch, the number of
worker processes and a resume do not change it. The crops and flips of an epoch are drawn once for all rows and then
indexed. torchvision's steps draw from torch's global generator, which is seeded for each row and restored.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from pencil.errors import DataError
from pencil.seeding import generator, seeded

ASPECT = (3 / 4, 4 / 3)
"""Aspect ratios of resized crops."""


@dataclass(frozen=True)
class Augmentation:
    """Random changes of training images; none by default.

    They are applied in this order: crop, flip, resized crop, TrivialAugment, colour jitter, erasing. Crops with padding
    and flips change whole batches; the other steps, from ``torchvision.transforms.v2``, change one image at a time.

    Parameters
    ----------
    crop_padding
        Pixels of zero padding on each side before the random crop, 0 to 127.
    flip
        Whether to flip images horizontally: half of them, redrawn in every epoch; or with "alternate" each image in
        every second epoch, half of them in the first.
    resized_crop
        Crop a random part of the image and resize it to the network's input size. The value is the smallest fraction of
        the area, above 0 and up to 1; aspect ratios are 3:4 to 4:3. 0 disables it. It replaces the other crops.
    colour_jitter
        Change brightness, contrast and saturation by factors of up to 1 - and 1 + ``colour_jitter``, 0 (none) to 1.
    trivial_augment
        Whether to apply one TrivialAugment (Wide) operation, drawn with its strength for each image. It shifts by up to
        32 pixels, so images should be larger.
    random_erasing
        The probability that a rectangle of 2 to 33 % of the area is replaced by the mean colour, 0 (none) to 1.
    """

    crop_padding: int = 0
    flip: bool | Literal["alternate"] = False
    resized_crop: float = 0.0
    colour_jitter: float = 0.0
    trivial_augment: bool = False
    random_erasing: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.crop_padding <= 127:
            raise ValueError(f"crop_padding is {self.crop_padding}; expected 0 to 127 pixels")
        for name in ("resized_crop", "colour_jitter", "random_erasing"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is {getattr(self, name)}; expected 0 (none) to 1")
        if self.resized_crop and self.crop_padding:
            raise ValueError(
                f"resized_crop is {self.resized_crop} and crop_padding {self.crop_padding}; expected one of them; "
                "remove the other"
            )

    @property
    def per_image(self) -> bool:
        """Whether it has steps that change one image at a time."""
        return bool(self.resized_crop or self.changes_colours or self.random_erasing)

    @property
    def changes_colours(self) -> bool:
        """Whether it has steps that need to know the values of black and white."""
        return bool(self.colour_jitter or self.trivial_augment)

    def weak(self) -> "Augmentation":
        """Return only its crops and flips: the weak view of semi-supervised methods."""
        return replace(self, colour_jitter=0.0, trivial_augment=False, random_erasing=0.0)

    def strong(self) -> "Augmentation":
        """Return its weak view with TrivialAugment and an erased rectangle in every image.

        With the same seed and epoch, both views of a row have the same crop and flip.
        """
        return replace(self.weak(), trivial_augment=True, random_erasing=1.0)

    def draw(self, rows: int, seed: int, epoch: int, frame: "Frame") -> "Draws":
        """Draw the choices of one epoch for images of size ``frame.whole`` that are cropped to ``frame.cropped``."""
        random = generator(seed, "augmentation", epoch)
        spans = [
            whole + 2 * self.crop_padding - cropped + 1
            for whole, cropped in zip(frame.whole, frame.cropped, strict=True)
        ]
        kind = torch.uint8 if max(spans) <= 256 else torch.int16
        if spans[0] == spans[1]:
            offsets = torch.randint(0, spans[0], (rows, 2), generator=random, dtype=kind)
        else:
            columns = [torch.randint(0, span, (rows,), generator=random, dtype=kind) for span in spans]
            offsets = torch.stack(columns, dim=1)
        flips = self._flips(rows, seed, epoch, random)
        cropped = max(spans) > 1 and not self.resized_crop
        steps = ImageSteps(self, seed, epoch, _compose(self, frame)) if self.per_image else None
        return Draws(self.crop_padding, frame.cropped, offsets if cropped else None, flips, steps)

    def _flips(self, rows: int, seed: int, epoch: int, random: torch.Generator) -> Tensor | None:
        """Return which images an epoch flips; ``random`` is the generator of this epoch."""
        if self.flip == "alternate":
            first = torch.rand(rows, generator=generator(seed, "augmentation", "flip")) < 0.5
            return first ^ (epoch % 2 == 1)
        return torch.rand(rows, generator=random) < 0.5 if self.flip else None


PHOTOS = Augmentation(flip=True, resized_crop=0.35, colour_jitter=0.4)
"""For photos and a pretrained network: timm's default jitter, and crops of at least 35 % of the area. Training from
scratch on ImageNet uses crops down to 8 %, which often miss the object in a small dataset."""
NAMED = {"none": Augmentation(), "photos": PHOTOS}


def refuse_augmentation(augmentation: Augmentation, channels: int | None, dtype: torch.dtype | None) -> None:
    """Raise :class:`DataError` if images of this kind do not support this augmentation.

    Colour steps need 8-bit images, grey or RGB: for other values, black and white are not defined.
    """
    if augmentation.changes_colours and (dtype != torch.uint8 or channels not in (1, 3)):
        raise DataError(
            f"colour_jitter or trivial_augment is set but the images are {dtype} with {channels} channels; expected "
            "8-bit images (uint8) with 1 or 3 channels; convert them, or remove these steps from data.augmentation."
        )


class Frame(NamedTuple):
    """Height and width of images as they are stored, and as a network sees them; the colour of erased parts."""

    whole: tuple[int, int]
    cropped: tuple[int, int]
    fill: tuple[float, ...] = (0.0,)


@dataclass(frozen=True)
class View:
    """The randomness of one pass over the data; evaluation has no view.

    Parameters
    ----------
    seed, epoch
        Together with the row they determine every random choice.
    augmentation
        How images are changed; None for not at all. Weak and strong views of the same rows are two views that differ
        in :meth:`Augmentation.weak` and :meth:`Augmentation.strong`.
    """

    seed: int
    epoch: int
    augmentation: Augmentation | None = None


@dataclass(frozen=True, eq=False)
class ImageSteps:
    """The steps of one epoch that change one image at a time."""

    augmentation: Augmentation
    seed: int
    epoch: int
    transform: nn.Module

    def apply(self, images: Tensor, rows: Tensor) -> Tensor:
        """Return the images (batch, channels, height, width) of these rows, each changed by its own draws."""
        refuse_augmentation(self.augmentation, images.shape[1], images.dtype)
        with _one_thread():
            return torch.stack([self._apply(image, row) for image, row in zip(images, rows.tolist(), strict=True)])

    def _apply(self, image: Tensor, row: int) -> Tensor:
        with seeded(self.seed, "augmentation", self.epoch, row, gpu=False):
            changed: Tensor = self.transform(image)
            return changed


def _compose(augmentation: Augmentation, frame: Frame) -> nn.Module:
    """Return torchvision's transforms for the steps on single images; imported here, because the import is slow."""
    from torchvision.transforms import v2

    steps: list[nn.Module] = []
    if augmentation.resized_crop:
        scale = (augmentation.resized_crop, 1.0)
        steps.append(v2.RandomResizedCrop(frame.cropped, scale=scale, ratio=ASPECT, antialias=True))
    if augmentation.trivial_augment:
        steps.append(v2.TrivialAugmentWide())
    if augmentation.colour_jitter:
        steps.append(v2.ColorJitter(*[augmentation.colour_jitter] * 3))
    if augmentation.random_erasing:
        steps.append(v2.RandomErasing(p=augmentation.random_erasing, value=frame.fill))
    composed: nn.Module = v2.Compose(steps)
    return composed


@contextmanager
def _one_thread() -> Iterator[None]:
    """Use one thread, like worker processes, because the last bits of a sum depend on the number of threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@dataclass(frozen=True)
class Draws:
    """The random choices of one epoch for every row; ``steps`` draw theirs when they are applied."""

    padding: int
    size: tuple[int, int]
    offsets: Tensor | None
    flips: Tensor | None
    steps: ImageSteps | None = None

    def apply(self, images: Tensor, rows: Tensor) -> Tensor:
        """Augment ``images`` (batch, channels, height, width); ``rows`` are their rows in the data."""
        if self.offsets is not None:
            images = crop(images, self.offsets[rows].long(), self.padding, self.size)
        if self.flips is not None:
            images = torch.where(self.flips[rows][:, None, None, None], images.flip(-1), images)
        return images if self.steps is None or not len(images) else self.steps.apply(images, rows)


def crop(images: Tensor, offsets: Tensor, padding: int, size: tuple[int, int]) -> Tensor:
    """Pad with zeros and crop each image to ``size`` at its own (top, left) offset."""
    padded = functional.pad(images, (padding,) * 4) if padding else images
    windows = padded.unfold(2, size[0], 1).unfold(3, size[1], 1)  # a view of every crop of every image, without a copy
    return windows[torch.arange(len(images)), :, offsets[:, 0], offsets[:, 1]]


def centre_crop(images: Tensor, size: tuple[int, int]) -> Tensor:
    """Return the centre of each image, as a view of the tensor."""
    top, left = ((whole - cropped) // 2 for whole, cropped in zip(images.shape[-2:], size, strict=True))
    return images[..., top : top + size[0], left : left + size[1]]
