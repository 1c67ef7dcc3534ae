"""From loaded data to a run's splits: choose, corrupt, hold out, pin, size, normalise."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from pencil.data.augment import Augmentation
from pencil.data.examples import Examples, Splits, check_trainable, hold_out, refuse_other_kind, warn_of_unknown_rows
from pencil.data.geometry import apply_geometry, image_size, sized
from pencil.data.given import about, hard_labels
from pencil.data.images import ImageInputs
from pencil.data.inputs import IMAGENET, DatasetInputs, Inputs, Normalization, TensorInputs, measure
from pencil.data.noise import corrupt
from pencil.data.pinned import pin
from pencil.data.settings import DataSettings
from pencil.errors import DataError
from pencil.seeding import derive_seed, generator


@dataclass(frozen=True)
class PreparedData:
    """The splits of a run, the settings with everything derived filled in, and the noise that was really injected.

    ``pinned_digest`` is that of the reviewed labels, where there are any.
    """

    splits: Splits
    settings: DataSettings
    noise_rate: float | None = None
    pinned_digest: str | None = None


def prepare(
    settings: DataSettings, loaded: Splits, seed: int, held_out: np.ndarray | None = None, telling: int = 0
) -> PreparedData:
    """Choose rows, inject noise, hold out validation rows (noisy too), measure the normalisation on training rows.

    Reviewed labels come after noise and split: they are right, and rows stay where they were when they were reviewed.
    ``telling`` is how many held-out rows a method would like to decide by; ``held_out`` names them by key.
    """
    _refuse_other_kinds(settings, loaded)
    train = choose_rows(settings, loaded.train, seed)
    if settings.long_tail is not None:
        train = long_tailed(train, settings.long_tail, seed)
    _refuse_misfits(settings, train, loaded.test)
    size = image_size(settings, train)
    train = apply_geometry(settings, train, size)
    rate = None
    if settings.noise is not None:
        noisy = corrupt(train, settings.noise, derive_seed(seed, "noise"))
        clean = train.given_labels if train.clean_labels is None else train.clean_labels
        train = replace(train, given_labels=torch.from_numpy(noisy.labels), clean_labels=clean)
        rate = noisy.rate
    validation = None if loaded.validation is None else apply_geometry(settings, loaded.validation, size)
    share = settings.validation
    if validation is None:
        share = share_held_out(settings, len(train), telling)
        train, validation = hold_out(train, share, seed, held_out)
    pinned_digest = None
    if settings.pinned is not None:
        pinned, pinned_digest = pin(Splits(train, validation), settings.pinned, drawn=loaded.validation is None)
        train, validation = pinned.train, pinned.validation
    check_trainable(train)
    warn_of_unknown_rows(train)
    test = None if loaded.test is None else apply_geometry(settings, choose_test(settings, loaded.test), size)
    normalization = _normalization(settings, train, seed)
    splits = _with_normalization(Splits(train, validation, test), normalization)
    resolved: dict[str, object] = {"normalize": normalization or "none", "resize": size or "none"}
    resolved |= {"multilabel": train.multilabel, "validation": share}
    resolved["root"] = None if settings.root is None else settings.root.expanduser().absolute()
    if settings.test is not None and Path(settings.test).expanduser().exists():
        resolved["test"] = str(Path(settings.test).expanduser().absolute())
    return PreparedData(splits, settings.model_copy(update=resolved), rate, pinned_digest)


def share_held_out(settings: DataSettings, rows: int, telling: int = 0) -> float:
    """What is asked for, or a tenth; of few rows up to 30 % where less would tell a method nothing."""
    if settings.validation is not None:
        return settings.validation
    return max(0.1, min(0.3, telling / max(1, rows)))


def choose_rows(settings: DataSettings, train: Examples, seed: int) -> Examples:
    """A random choice of as many rows as the settings ask for, in the order they have."""
    if settings.rows is None or settings.rows >= len(train):
        return train
    chosen = torch.randperm(len(train), generator=generator(seed, "rows"))[: settings.rows]
    return train.subset(chosen.sort().values)


def long_tailed(train: Examples, ratio: float, seed: int) -> Examples:
    """Of class k of c a share ``ratio ** (-k / (c - 1))`` of the rows, so that the last is ``ratio`` times as rare."""
    if train.multilabel:
        raise DataError("data.long_tail is for one class per example; these labels name several at once.")
    known = hard_labels(train.given_labels if train.clean_labels is None else train.clean_labels)
    order, kept = torch.randperm(len(train), generator=generator(seed, "long tail")), []
    for number in range(train.num_classes):
        of_class = order[known[order] == number]
        kept.append(of_class[: round(len(of_class) * ratio ** (-number / max(1, train.num_classes - 1)))])
    return train.subset(torch.cat(kept).sort().values)


def choose_test(settings: DataSettings, test: Examples) -> Examples:
    """The same choice whatever the seed, so that all runs are measured on the same rows."""
    if settings.test_rows is None or settings.test_rows >= len(test):
        return test
    chosen = torch.randperm(len(test), generator=generator(0, "test rows"))[: settings.test_rows]
    return test.subset(chosen.sort().values)


def _refuse_other_kinds(settings: DataSettings, loaded: Splits) -> None:
    """All splits have labels of one kind, and of that which was asked for, over the same classes."""
    train = loaded.train
    refuse_other_kind(train, train.multilabel if settings.multilabel is None else settings.multilabel)
    for name, part in (("validation", loaded.validation), ("test", loaded.test)):
        if part is not None:
            with about(f"the {name} set"):
                refuse_other_kind(part, train.multilabel)
                if part.num_classes != train.num_classes:
                    raise DataError(f"it has {part.num_classes} classes; expected the {train.num_classes} of training.")


def _refuse_misfits(settings: DataSettings, train: Examples, test: Examples | None) -> None:
    """Augmentation and normalisation that the inputs cannot take, and test inputs unlike the training inputs."""
    if test is not None and isinstance(train.inputs, ImageInputs) != isinstance(test.inputs, ImageInputs):
        kinds = ("encoded images", "arrays") if isinstance(train.inputs, ImageInputs) else ("arrays", "encoded images")
        raise DataError(f"training inputs are {kinds[0]} and test inputs {kinds[1]}; expected both of one kind.")
    if isinstance(train.inputs, ImageInputs):
        _refuse_normalization(settings, channels=3)
        return
    if not isinstance(train.inputs, TensorInputs):
        if settings.augmentation != Augmentation() or settings.normalize not in ("auto", "none"):
            raise DataError(
                "data.augmentation and data.normalize work on images and arrays; this dataset is read item by item; "
                "put them into its transform."
            )
        return
    values = train.inputs.values
    if settings.augmentation != Augmentation() and values.ndim != 4:
        raise DataError(f"data.augmentation needs images; the inputs have shape {tuple(values.shape[1:])}.")
    _refuse_normalization(settings, channels=values.shape[1])
    if test is not None and isinstance(test.inputs, TensorInputs):
        seen, expected = test.inputs.values, values
        if (seen.shape[1:], seen.dtype) != (expected.shape[1:], expected.dtype):
            raise DataError(
                f"test inputs are {seen.dtype} of shape {tuple(seen.shape[1:])}; "
                f"expected {expected.dtype} of shape {tuple(expected.shape[1:])}, as the training inputs are."
            )


def _refuse_normalization(settings: DataSettings, channels: int) -> None:
    chosen = IMAGENET if settings.normalize == "imagenet" else settings.normalize
    if isinstance(chosen, Normalization) and (
        {len(chosen.mean), len(chosen.std)} != {channels} or min(chosen.std) <= 0
    ):
        raise DataError(f"data.normalize needs {channels} means and as many deviations above 0.")


MEASURED = 2048
"""So many images tell the mean and deviation of each channel to three digits."""


def _normalization(settings: DataSettings, train: Examples, seed: int) -> Normalization | None:
    """Images and vectors are normalised; what a user's own dataset gives out is left as it is."""
    if isinstance(settings.normalize, Normalization) or settings.normalize == "imagenet":
        return IMAGENET if settings.normalize == "imagenet" else settings.normalize
    if settings.normalize == "none":
        return _unscaled(train.inputs)
    if isinstance(train.inputs, ImageInputs):
        some = torch.randperm(len(train), generator=generator(seed, "measure"))[:MEASURED]
        parts = list(train.inputs.raw(train.rows[some].split(64)))
        images = [images for images, _ in parts if len(images)]
        if not images:
            reason = parts[0][1][0][1]
            raise DataError(f"none of {len(some)} images can be read; the first, because {reason}; see `pencil check`.")
        return measure(torch.cat(images), torch.arange(sum(map(len, images))))
    if not isinstance(train.inputs, TensorInputs):
        return None
    values = train.inputs.values
    if values.dtype == torch.uint8 or (values.ndim in (2, 4) and not train.inputs.prepared):
        readable = train.inputs.readable
        return measure(values, train.rows if readable is None else train.rows[readable[train.rows]])
    return None


def _unscaled(inputs: Inputs) -> Normalization | None:
    """Bytes become numbers from 0 to 1, which a network can take, and nothing else."""
    if isinstance(inputs, ImageInputs) or (isinstance(inputs, TensorInputs) and inputs.values.dtype == torch.uint8):
        channels = 3 if isinstance(inputs, ImageInputs) else inputs.values.shape[1]
        return Normalization((0.0,) * channels, (1.0,) * channels)
    return None


def _with_normalization(splits: Splits, normalization: Normalization | None) -> Splits:
    def apply(examples: Examples | None) -> Examples | None:
        if examples is None or normalization is None:
            return examples
        if isinstance(examples.inputs, DatasetInputs):
            raise DataError(
                "the training inputs are in memory and normalised, the test inputs are read item by item; give both "
                "in the same way, or set data.normalize to none and normalise them yourself."
            )
        return replace(examples, inputs=normalized(examples.inputs, normalization))

    train = apply(splits.train)
    assert train is not None
    return Splits(train, apply(splits.validation), apply(splits.test))


def conform(inputs: Inputs, settings: DataSettings) -> Inputs:
    """New inputs, prepared as those of a finished run were; ``settings`` are the resolved ones of its recipe."""
    normalization = settings.normalize if isinstance(settings.normalize, Normalization) else None
    if isinstance(inputs, TensorInputs):
        crop = settings.crop if inputs.values.ndim == 4 else None
        inputs = replace(inputs, finish=replace(inputs.finish, crop=crop))
    elif isinstance(inputs, ImageInputs):
        if not isinstance(settings.resize, tuple):
            raise DataError("this network was trained on arrays; expected an .npz or .npy file of such, not images.")
        inputs = sized(settings, inputs, settings.resize)
    return normalized(inputs, normalization)


def normalized(inputs: Inputs, normalization: Normalization | None) -> Inputs:
    """Inputs that are ours to finish, finished with this normalisation; a user's own dataset is left as it is."""
    if isinstance(inputs, (TensorInputs, ImageInputs)):
        return replace(inputs, finish=replace(inputs.finish, normalization=normalization))
    return inputs
