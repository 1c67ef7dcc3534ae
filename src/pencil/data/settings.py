"""The ``[data]`` part of a recipe, and the steps it stands for: load, choose, corrupt, split, normalise."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field

from pencil import noise
from pencil.data.arrays import from_npz
from pencil.data.augment import Augmentation
from pencil.data.examples import Examples, Splits, check_trainable, hold_out
from pencil.data.inputs import Normalization, TensorInputs, measure
from pencil.data.named import DATASETS
from pencil.errors import DataError
from pencil.seeding import derive_seed, generator

FROM_PYTHON = "python"
"""Where a recipe would name its data, when the data came as objects."""

Rate = Annotated[float, Field(ge=0, le=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class RateNoise(_Strict):
    """Noise that a rate describes: uniform, to the next class, or instance-dependent."""

    kind: Literal["symmetric", "circular", "instance"]
    rate: Rate
    seed: Annotated[int, Field(ge=0)] | None = None


class MapNoise(_Strict):
    """Each class named on the left becomes the one on the right with this probability."""

    kind: Literal["map"]
    rate: Rate
    classes: dict[str, str]
    seed: Annotated[int, Field(ge=0)] | None = None


class MatrixNoise(_Strict):
    """Any transition matrix: row = clean class, column = given class."""

    kind: Literal["matrix"]
    matrix: tuple[tuple[float, ...], ...]
    seed: Annotated[int, Field(ge=0)] | None = None


NoiseSettings = Annotated[RateNoise | MapNoise | MatrixNoise, Field(discriminator="kind")]


class DataSettings(_Strict):
    """Which data, how many rows of it, with what noise, split and augmented how."""

    source: str = ""
    root: Path | None = None
    rows: Annotated[int, Field(ge=2)] | None = None
    noise: NoiseSettings | None = None
    validation: Annotated[float, Field(ge=0, lt=1)] = 0.1
    augmentation: Augmentation = Augmentation()
    normalize: Literal["auto", "none"] | Normalization = "auto"
    workers: Annotated[int, Field(ge=0)] = 0


@dataclass(frozen=True)
class PreparedData:
    """The splits of a run, the normalisation they use, and the share of labels that injected noise really changed."""

    splits: Splits
    normalization: Normalization | None
    noise_rate: float | None = None


def load(settings: DataSettings) -> tuple[Examples, Examples | None]:
    """Training and test examples of a dataset by name or of a file."""
    path = Path(settings.source).expanduser()
    if settings.source == FROM_PYTHON:
        raise DataError("the data of this recipe came from Python; call pencil.fit again, or name data of your own.")
    if settings.source in DATASETS:
        return DATASETS[settings.source](settings.root)
    if path.suffix == ".npz":
        if not path.is_file():
            raise DataError(f"{settings.source} does not exist; expected an npz file with x and y.")
        return from_npz(path)
    raise DataError(
        f"{settings.source!r} is neither a dataset ({', '.join(DATASETS)}) nor an npz file; "
        "name one of them, or pass your data to pencil.fit."
    )


def prepare(settings: DataSettings, train: Examples, test: Examples | None, seed: int) -> PreparedData:
    """Choose rows, inject noise, hold out validation rows (noisy too), measure the normalisation on training rows."""
    if settings.rows is not None and settings.rows < len(train):
        chosen = torch.randperm(len(train), generator=generator(seed, "rows"))[: settings.rows]
        train = train.subset(chosen.sort().values)
    _refuse_misfits(settings, train, test)
    rate = None
    if settings.noise is not None:
        noisy = corrupt(train, settings.noise, derive_seed(seed, "noise"))
        clean = train.given_labels if train.clean_labels is None else train.clean_labels
        train = replace(train, given_labels=torch.from_numpy(noisy.labels), clean_labels=clean)
        rate = noisy.rate
    kept, validation = hold_out(train, settings.validation, seed)
    check_trainable(kept)
    splits = Splits(kept, validation, test)
    normalization = _normalization(settings, kept)
    return PreparedData(_with_normalization(splits, normalization), normalization, rate)


def corrupt(examples: Examples, settings: RateNoise | MapNoise | MatrixNoise, seed: int) -> noise.NoisyLabels:
    """Noisy labels for examples whose given labels are clean."""
    if examples.given_labels.ndim != 1:
        raise DataError("noise is injected into class labels; these examples carry label distributions.")
    clean, count = examples.given_labels.numpy(), examples.num_classes
    seed = settings.seed if settings.seed is not None else seed
    if isinstance(settings, MatrixNoise):
        if {len(settings.matrix), *map(len, settings.matrix)} != {count}:
            raise DataError(f"the noise matrix is not {count} x {count}, as the data's {count} classes need.")
        return noise.flip(clean, np.array(settings.matrix), seed)
    if isinstance(settings, MapNoise):
        mapping = _class_map(settings.classes, examples.classes)
        return noise.flip(clean, noise.map_matrix(count, settings.rate, mapping), seed)
    if settings.kind == "symmetric":
        return noise.flip(clean, noise.symmetric_matrix(count, settings.rate), seed)
    if settings.kind == "circular":
        return noise.flip(clean, noise.circular_matrix(count, settings.rate), seed)
    if not isinstance(examples.inputs, TensorInputs):
        raise DataError("instance-dependent noise needs inputs in memory; this dataset is read item by item.")
    inputs = examples.inputs.values[examples.rows].numpy()
    return noise.flip_by_instance(clean, inputs, count, settings.rate, seed)


def _refuse_misfits(settings: DataSettings, train: Examples, test: Examples | None) -> None:
    """Augmentation and normalisation that the inputs cannot take, and test inputs unlike the training inputs."""
    if not isinstance(train.inputs, TensorInputs):
        if settings.augmentation != Augmentation() or isinstance(settings.normalize, Normalization):
            raise DataError(
                "data.augmentation and data.normalize work on data in memory; this dataset is read item by item; "
                "put them into its transform."
            )
        return
    values = train.inputs.values
    if settings.augmentation != Augmentation() and values.ndim != 4:
        raise DataError(f"data.augmentation needs images; the inputs have shape {tuple(values.shape[1:])}.")
    if isinstance(settings.normalize, Normalization):
        counts = {len(settings.normalize.mean), len(settings.normalize.std)}
        if counts != {values.shape[1]} or min(settings.normalize.std) <= 0:
            raise DataError(f"data.normalize needs {values.shape[1]} means and as many deviations above 0.")
    if test is not None and isinstance(test.inputs, TensorInputs):
        seen, expected = test.inputs.values, values
        if (seen.shape[1:], seen.dtype) != (expected.shape[1:], expected.dtype):
            raise DataError(
                f"test inputs are {seen.dtype} of shape {tuple(seen.shape[1:])}; "
                f"expected {expected.dtype} of shape {tuple(expected.shape[1:])}, as the training inputs are."
            )


def _class_map(names: Mapping[str, str], classes: tuple[str, ...]) -> dict[int, int]:
    for name in (*names, *names.values()):
        if name not in classes:
            raise DataError(f"the noise map names class {name!r}; the data has {', '.join(classes[:12])}.")
    return {classes.index(source): classes.index(target) for source, target in names.items()}


def _normalization(settings: DataSettings, train: Examples) -> Normalization | None:
    """Images and vectors held in memory are normalised; what a user's own dataset gives out is left as it is."""
    if isinstance(settings.normalize, Normalization):
        return settings.normalize
    if settings.normalize == "none" or not isinstance(train.inputs, TensorInputs):
        return None
    values = train.inputs.values
    if values.dtype == torch.uint8 or (values.ndim == 2 and not train.inputs.prepared):
        return measure(values, train.rows)
    return None


def _with_normalization(splits: Splits, normalization: Normalization | None) -> Splits:
    def apply(examples: Examples | None) -> Examples | None:
        if examples is None or normalization is None:
            return examples
        if not isinstance(examples.inputs, TensorInputs):
            raise DataError(
                "the training inputs are in memory and normalised, the test inputs are read item by item; give both "
                "in the same way, or set data.normalize to none and normalise them yourself."
            )
        return replace(examples, inputs=replace(examples.inputs, normalization=normalization))

    train = apply(splits.train)
    assert train is not None
    return Splits(train, apply(splits.validation), apply(splits.test))
