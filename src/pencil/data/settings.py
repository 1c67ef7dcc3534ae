"""The ``[data]`` part of a recipe."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from pencil.data.augment import Augmentation
from pencil.data.images import MAX_PIXELS, Unreadable
from pencil.data.inputs import Normalization
from pencil.data.table import Columns

FROM_PYTHON = "python"
"""Where a recipe would name its data, when the data came as objects."""

Rate = Annotated[float, Field(ge=0, le=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Noise(_Strict):
    kind: str
    seed: Annotated[int, Field(ge=0)] | None = None

    @property
    def kinds(self) -> set[str]:
        return {self.kind}


class RateNoise(_Noise):
    """Noise that a rate describes: uniform, to the next class, or instance-dependent."""

    kind: Literal["symmetric", "circular", "instance"]
    rate: Rate


class MapNoise(_Noise):
    """Each class named on the left becomes the one on the right with this probability."""

    kind: Literal["map"]
    rate: Rate
    classes: dict[str, str]


class MatrixNoise(_Noise):
    """Any transition matrix: row = clean class, column = given class."""

    kind: Literal["matrix"]
    matrix: tuple[tuple[float, ...], ...]


class EntryNoise(_Noise):
    """Several classes at once: each (example, class) flips by itself; ``confidences`` makes the labels soft."""

    kind: Literal["entries"]
    false_positives: Rate
    false_negatives: Rate
    confidences: bool = False


class MixedNoise(_Noise):
    """One noise after the other, each on what those before it left."""

    kind: Literal["mixed"]
    parts: Annotated[
        tuple[Annotated[RateNoise | MapNoise | MatrixNoise, Field(discriminator="kind")], ...], Field(min_length=1)
    ]

    @property
    def kinds(self) -> set[str]:
        return {part.kind for part in self.parts}


AnyNoise = RateNoise | MapNoise | MatrixNoise | EntryNoise | MixedNoise
NoiseSettings = Annotated[AnyNoise, Field(discriminator="kind")]


Pixels = Annotated[int, Field(ge=1)]
WholePath = Annotated[Path, AfterValidator(lambda path: path.expanduser().absolute())]
"""Where a file is, wherever the run goes on from."""


class DataSettings(_Strict):
    """Which data, how many rows of it, with what noise, split, resized and augmented how."""

    source: str = ""
    root: Path | None = None
    options: dict[str, Any] = Field(default_factory=dict)
    columns: Columns = Columns()
    classes: tuple[str, ...] | None = None
    multilabel: bool | None = None
    test: str | None = None
    rows: Annotated[int, Field(ge=2)] | None = None
    test_rows: Annotated[int, Field(ge=1)] | None = None
    long_tail: Annotated[float, Field(ge=1)] | None = None
    noise: NoiseSettings | None = None
    pinned: WholePath | None = None
    validation: Annotated[float, Field(ge=0, lt=1)] | None = None
    resize: Literal["auto", "none"] | Pixels | tuple[Pixels, Pixels] = "auto"
    crop: Pixels | None = None
    augmentation: Augmentation = Augmentation()
    normalize: Literal["auto", "none", "imagenet"] | Normalization = "auto"
    cache: str = "auto"
    unreadable: Unreadable = "error"
    max_pixels: Pixels = MAX_PIXELS
    workers: Annotated[int, Field(ge=0)] | None = None
