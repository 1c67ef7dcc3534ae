"""The ``[data]`` part of a recipe."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from pencil.data.bad_rows import OnBadRows
from pencil.data.columns import Columns
from pencil.data.inputs.augment import NAMED, Augmentation
from pencil.data.inputs.base import MAX_PIXELS
from pencil.data.inputs.text import AUTO
from pencil.data.inputs.transform import Normalization

FROM_PYTHON = "python"
"""The ``data.source`` of a recipe whose data was passed as Python objects."""

Rate = Annotated[float, Field(ge=0, le=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


WholePath = Annotated[Path, AfterValidator(lambda path: path.expanduser().absolute())]
"""An absolute path, so that the run can be resumed from any directory."""


class _Noise(_Strict):
    kind: str
    seed: Annotated[int, Field(ge=0)] | None = None

    @property
    def kinds(self) -> set[str]:
        """The kinds of this noise, or of its parts."""
        return {self.kind}


class RateNoise(_Noise):
    """Noise with one rate: symmetric (uniform), circular (to the next class), or instance-dependent.

    Parameters
    ----------
    kind
        "symmetric", "circular" or "instance".
    rate
        The noise rate, 0 to 1. For "instance" this is the mean of the examples' rates before they are truncated to
        [0, 1], so small rates come out higher: 0.05 gives 0.101 on average, 0.2 gives 0.206.
    seed
        Seed of the noise; None derives it from the seed of the run.
    """

    kind: Literal["symmetric", "circular", "instance"]
    rate: Rate


class MapNoise(_Noise):
    """Noise that changes each class on the left to the class on the right, with probability ``rate``."""

    kind: Literal["map"]
    rate: Rate
    classes: dict[str, str]


class MatrixNoise(_Noise):
    """Noise from an arbitrary transition matrix: row = clean class, column = given class."""

    kind: Literal["matrix"]
    matrix: tuple[tuple[float, ...], ...]


class FileNoise(_Noise):
    """Labels from real annotators, for data whose own labels are clean: class indices in a .npy file.

    Parameters
    ----------
    file
        One class index for every row of the data, in data order.
    rate
        If set, only a random part of the wrong labels is used, so that the noise rate is this value.
    """

    kind: Literal["file"]
    file: WholePath
    rate: Rate | None = None


class EntryNoise(_Noise):
    """Multi-label noise: each (example, class) flips independently.

    Parameters
    ----------
    false_positives, false_negatives
        Probability that an absent class is given as present, and that a present class is given as absent.
    confidences
        Whether the labels become soft, like a classifier's confidences.
    """

    kind: Literal["entries"]
    false_positives: Rate
    false_negatives: Rate
    confidences: bool = False


class MixedNoise(_Noise):
    """Several kinds of noise in sequence, each applied to the labels that the previous one left."""

    kind: Literal["mixed"]
    parts: Annotated[
        tuple[Annotated[RateNoise | MapNoise | MatrixNoise, Field(discriminator="kind")], ...], Field(min_length=1)
    ]

    @property
    def kinds(self) -> set[str]:
        """The kinds of its parts."""
        return {part.kind for part in self.parts}


AnyNoise = RateNoise | MapNoise | MatrixNoise | FileNoise | EntryNoise | MixedNoise
NoiseSettings = Annotated[AnyNoise, Field(discriminator="kind")]


Pixels = Annotated[int, Field(ge=1)]


def _augmentation(given: Any) -> Any:
    """Replace a name by its value; "auto" is None and is resolved when the data is prepared."""
    if isinstance(given, str) and given not in ("auto", *NAMED):
        raise ValueError(f"expected 'auto', {', '.join(map(repr, NAMED))}, or a table such as {{flip = true}}")
    return NAMED.get(given) if isinstance(given, str) else given


class DataSettings(_Strict):
    """The ``[data]`` part of a recipe: data source, number of rows, noise, splits, resizing and augmentation.

    Parameters
    ----------
    source
        The name of a dataset, a folder per class, a table, an npz file, or ``hf/NAME``.
    root
        The folder of a named dataset, or of the images of a table; for a folder per class, the folder that links may
        point into.
    options
        Options of a named dataset, or of ``datasets.load_dataset``.
    columns
        The role of each column of a table.
    text_model
        The model that encodes text: "wordllama", which is installed with pencil; "minilm", which adds the sentence
        vectors of the extra ``pencil-labels[text]``; or a Hugging Face model by name or folder. "auto" is "minilm" if
        it is installed and fast enough.
    classes
        Class names in order; by default derived from the labels.
    multilabel
        Whether an example may have several classes; None decides from the labels.
    test
        A source for the test set.
    rows, test_rows
        Number of rows to choose at random; None takes all.
    long_tail
        How many times rarer the last class is than the first.
    noise
        Label noise to inject into training and validation rows.
    pinned
        A ``reviews.jsonl`` with labels that are right and never move.
    validation
        The fraction of rows to hold out.
    resize
        Size of encoded images: "auto", "none" (all have the same size), a side, or (height, width).
    crop
        Side of a square crop: random in training, centred otherwise.
    augmentation
        Random changes of training images: "auto" (the default), "none", "photos", or an
        :class:`~pencil.data.inputs.augment.Augmentation`. "auto" is "photos" if all layers of a named network are
        trained on 8-bit colour images of more than 64 pixels, otherwise "none". None is "auto"; a run stores the
        resolved value.
    normalize
        "auto" (measured, or as the pretrained weights expect), "none", "imagenet", or means and standard deviations.
    cache
        Where decoded images are cached: "auto", "none", "memory", or a folder.
    delimiter
        The delimiter of a text table; None detects it.
    bad_rows
        Whether an unusable row is an "error" or is skipped ("skip"): an unreadable image, a line with too many cells, a
        path that is missing or leads out of the folder, a label that is not one of the classes.
    max_pixels
        Images with more pixels count as unreadable.
    workers
        Worker processes that decode and augment images; None uses one per core minus one, at most four.
    fingerprint
        How image files are recognised when a run is resumed: by size and modification time, or by content.
    """

    source: str = ""
    root: Path | None = None
    options: dict[str, Any] = Field(default_factory=dict)
    columns: Columns = Columns()
    text_model: str = AUTO
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
    augmentation: Annotated[Augmentation | None, BeforeValidator(_augmentation)] = None
    normalize: Literal["auto", "none", "imagenet"] | Normalization = "auto"
    cache: str = "auto"
    delimiter: Annotated[str, Field(min_length=1, max_length=1)] | None = None
    bad_rows: OnBadRows = "error"
    max_pixels: Pixels = MAX_PIXELS
    workers: Annotated[int, Field(ge=0)] | None = None
    fingerprint: Literal["stat", "content"] = "stat"
