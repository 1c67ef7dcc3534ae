"""From loaded data to the splits of a run: select rows, inject noise, hold out, pin, resize, normalise."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from pencil.data.datasets import DATASETS
from pencil.data.examples import (
    Examples,
    Splits,
    check_trainable,
    hold_out,
    refuse_other_kind,
    warn_of_many_classes,
    warn_of_unknown_rows,
)
from pencil.data.given.given_labels import error_context, hard_labels, shorten
from pencil.data.inputs.augment import Augmentation, refuse_augmentation
from pencil.data.inputs.base import Inputs
from pencil.data.inputs.encoding import Encoder, fit_encoder
from pencil.data.inputs.geometry import apply_geometry, image_size, read_options
from pencil.data.inputs.sentences import Sentences, kept_sentences
from pencil.data.inputs.text import BUILT_IN
from pencil.data.inputs.transform import IMAGENET, Normalization
from pencil.data.keys import refuse_repeated_keys
from pencil.data.noise import corrupt
from pencil.data.pinned import pin
from pencil.data.settings import DataSettings
from pencil.data.unlabelled import with_reviewed
from pencil.errors import DataError, setting
from pencil.seeding import derive_seed, generator


@dataclass(frozen=True)
class PreparedData:
    """The splits as a network sees them, the settings with all derived values filled in, and what was derived."""

    splits: Splits
    settings: DataSettings
    noise_rate: float | None = None
    pinned_digest: str | None = None
    encoder: Encoder | None = None


def prepare(
    settings: DataSettings,
    loaded: Splits,
    seed: int,
    held_out_keys: np.ndarray | None = None,
    held_out_rows: int = 0,
    encoder: Encoder | None = None,
    *,
    cache: str | None = None,
    report: Callable[[int, int], None] | None = None,
) -> PreparedData:
    """Select rows, inject noise, hold out validation rows (also noisy), and measure the normalisation on training rows.

    The encoder of a table is fitted on training rows too, after these steps.

    Reviewed labels are applied after noise and split: they are right, and rows stay in the split of their review.

    Parameters
    ----------
    settings
        The ``[data]`` part of a recipe.
    loaded
        The loaded splits.
    seed
        Determines all random choices.
    held_out_keys
        Keys of the validation rows, instead of drawing them.
    held_out_rows
        Number of held-out rows that the method needs for its decisions; it raises the default fraction for small data.
    encoder
        The encoder of a resumed run, instead of a new one.
    cache
        Where decoded images are cached, instead of ``data.cache``.
    report
        Called as ``report(done, total)`` while sentence vectors of texts are computed.

    Raises
    ------
    DataError
        If the settings do not fit the data, or nothing can be learned from it.
    """
    _check_loaded(settings, loaded)
    if settings.pinned is not None:
        loaded = with_reviewed(loaded, settings.pinned)
    train = choose_rows(settings, loaded.train, seed)
    if settings.long_tail is not None:
        train = long_tailed(train, settings.long_tail, seed)
    _refuse_misfits(settings, train.inputs, None if loaded.test is None else loaded.test.inputs)
    size = image_size(settings, train.inputs)
    loaded_rows = train.rows  # cached images are renumbered
    reading = settings if cache is None else settings.model_copy(update={"cache": cache})
    train = apply_geometry(reading, train, size)
    rate = None
    if settings.noise is not None:
        noisy = corrupt(train, settings.noise, derive_seed(seed, "noise"), loaded_rows)
        clean = train.given_labels if train.clean_labels is None else train.clean_labels
        train = replace(train, given_labels=torch.from_numpy(noisy.labels), clean_labels=clean)
        rate = noisy.rate
    validation = None if loaded.validation is None else apply_geometry(reading, loaded.validation, size)
    fraction = settings.validation
    if validation is None:
        fraction = validation_fraction(settings, len(train), held_out_rows)
        train, validation = hold_out(train, fraction, seed, held_out_keys)
    pinned_digest = None
    if settings.pinned is not None:
        pinned, pinned_digest = pin(Splits(train, validation), settings.pinned, drawn=loaded.validation is None)
        train, validation = pinned.train, pinned.validation
    check_trainable(train)
    warn_of_unknown_rows(train)
    test = None if loaded.test is None else apply_geometry(reading, choose_test(settings, loaded.test), size)
    unlabelled = None if loaded.unlabelled is None else apply_geometry(reading, loaded.unlabelled, size)
    with kept_sentences(settings.cache, report) as sentences:
        parts = Splits(train, validation, test, unlabelled)
        splits, encoder = encode_splits(parts, settings.text_model, encoder, sentences)
    normalization = _normalization(settings, splits.train, seed)
    splits = _with_normalization(splits, normalization)
    resolved: dict[str, object] = {"normalize": normalization or "none", "resize": size or "none"}
    resolved |= {"multilabel": train.multilabel, "validation": fraction}
    resolved["augmentation"] = settings.augmentation or Augmentation()
    resolved["root"] = None if settings.root is None else settings.root.expanduser().absolute()
    if settings.test is not None and Path(settings.test).expanduser().exists():
        resolved["test"] = str(Path(settings.test).expanduser().absolute())
    columns = settings.columns if train.table is None else train.table.with_found(settings.columns)
    if columns.key is None and columns.numbering is None:  # stored with every run; see `read_recipe`
        columns = columns.model_copy(update={"numbering": "lines"})
    resolved["columns"] = columns
    if train.inputs.records is not None:
        resolved["columns"] = columns.model_copy(update=train.inputs.records.roles.by_key())
        if settings.text_model not in BUILT_IN and Path(settings.text_model).expanduser().is_dir():
            resolved["text_model"] = str(Path(settings.text_model).expanduser().absolute())
    return PreparedData(splits, settings.model_copy(update=resolved), rate, pinned_digest, encoder)


def encode_splits(
    splits: Splits, text_model: str, encoder: Encoder | None = None, sentences: Sentences | None = None
) -> tuple[Splits, Encoder | None]:
    """Return the splits with vectors instead of the rows of a table, and the encoder; other splits are unchanged.

    The encoder is fitted on the training rows unless it is passed. Splits of the same table share the vectors, in
    table order. ``sentences`` keeps vectors of texts.
    """
    records = splits.train.inputs.records
    if records is None:
        return splits, None
    encoder = fit_encoder(records, splits.train.rows, text_model, sentences) if encoder is None else encoder
    parts = {name: part for name, part in vars(splits).items() if part is not None}
    encoded: dict[str, Examples] = {}
    for name, part in parts.items():
        if name in encoded:
            continue
        of_table = {other: each for other, each in parts.items() if each.inputs is part.inputs}
        rows = torch.cat([each.rows for each in of_table.values()]).sort().values
        with error_context(f"the {name} set"):
            vectors = encode_inputs(part.inputs, encoder, rows, sentences)
        for other, each in of_table.items():
            encoded[other] = replace(each, inputs=vectors, rows=torch.searchsorted(rows, each.rows))
    return Splits(**encoded), encoder


def encode_inputs(
    inputs: Inputs, encoder: Encoder, rows: torch.Tensor | None = None, sentences: Sentences | None = None
) -> Inputs:
    """Return the vectors of these rows of a table; ``sentences`` keeps vectors of their texts."""
    if inputs.records is None:
        raise DataError(
            "the inputs are images or arrays, but the network was trained on the columns of a table; expected a table "
            f"with the columns {shorten(encoder.columns, 12)}."
        )
    return encoder.encode(inputs.records, rows, sentences)


def validation_fraction(settings: DataSettings, rows: int, held_out_rows: int = 0) -> float:
    """Return the fraction to hold out: as set, or 0.1, or up to 0.3 if 0.1 gives fewer than ``held_out_rows``."""
    if settings.validation is not None:
        return settings.validation
    return max(0.1, min(0.3, held_out_rows / max(1, rows)))


def choose_rows(settings: DataSettings, train: Examples, seed: int) -> Examples:
    """Return a random selection of ``data.rows`` rows, in order."""
    return _chosen(train, settings.rows, generator(seed, "rows"))


def _chosen(examples: Examples, count: int | None, random: torch.Generator) -> Examples:
    if count is None or count >= len(examples):
        return examples
    return examples.subset(torch.randperm(len(examples), generator=random)[:count].sort().values)


def long_tailed(train: Examples, ratio: float, seed: int) -> Examples:
    """Keep a fraction ``ratio ** (-k / (c - 1))`` of class k of c, so that the last is ``ratio`` times as rare."""
    if train.multilabel:
        raise DataError(
            "data.long_tail is set but the labels are multi-label; expected single-label labels; remove data.long_tail."
        )
    known = hard_labels(train.given_labels if train.clean_labels is None else train.clean_labels)
    order, kept = torch.randperm(len(train), generator=generator(seed, "long tail")), []
    for number in range(train.num_classes):
        of_class = order[known[order] == number]
        kept.append(of_class[: round(len(of_class) * ratio ** (-number / max(1, train.num_classes - 1)))])
    return train.subset(torch.cat(kept).sort().values)


def choose_test(settings: DataSettings, test: Examples) -> Examples:
    """Return a selection of ``data.test_rows`` rows, independent of the seed, so that all runs share a test set."""
    return _chosen(test, settings.test_rows, generator(0, "test rows"))


def _check_loaded(settings: DataSettings, loaded: Splits) -> None:
    """Raise if splits or keys do not fit together; warn of labels like ids, unless the classes are declared.

    All splits have the classes of training. Rows of one source have different keys; separate sources may share keys.
    """
    train = loaded.train
    refuse_other_kind(train, train.multilabel if settings.multilabel is None else settings.multilabel)
    refuse_repeated_keys(train.keys)
    for name, part in (("validation", loaded.validation), ("test", loaded.test)):
        if part is None:
            continue
        with error_context(f"the {name} set"):
            refuse_other_kind(part, train.multilabel)
            if part.num_classes != train.num_classes:
                raise DataError(
                    f"it has {part.num_classes} classes; expected the {train.num_classes} classes of training; "
                    "pass the same classes for all splits."
                )
            refuse_repeated_keys(part.keys)
    same = [part for part in (loaded.validation, loaded.unlabelled) if part is not None and part.inputs is train.inputs]
    if same:
        with error_context("training, validation and unlabelled rows come from one source"):
            refuse_repeated_keys(np.concatenate([part.keys for part in (train, *same)]))
    if settings.classes is None and settings.source not in DATASETS:
        warn_of_many_classes(train)


def _refuse_misfits(settings: DataSettings, train: Inputs, test: Inputs | None) -> None:
    """Raise if inputs do not support the augmentation or normalisation, or test inputs differ from training inputs."""
    if test is not None and train.resizable != test.resizable:
        kinds = ("encoded images", "arrays") if train.resizable else ("arrays", "encoded images")
        raise DataError(
            f"training inputs are {kinds[0]} and test inputs {kinds[1]}; expected both of the same kind; "
            "pass both in the same form."
        )
    augmentation = settings.augmentation or Augmentation()
    if train.channels is None:
        if augmentation != Augmentation() or settings.normalize not in ("auto", "none"):
            raise DataError(
                "data.augmentation or data.normalize is set but the inputs are columns of a table, or read item by "
                "item; expected images or arrays; remove it, or put it into the dataset's transform."
            )
        return
    if augmentation != Augmentation() and train.shape is not None and len(train.shape) != 3:
        raise DataError(
            f"data.augmentation is set but the inputs have shape {train.shape}; expected images; "
            "remove data.augmentation."
        )
    refuse_augmentation(augmentation, train.channels, train.dtype)
    _refuse_normalization(settings, train.channels)
    if test is None or train.shape is None or test.shape is None:
        return
    if (test.shape, test.dtype) != (train.shape, train.dtype):
        raise DataError(
            f"test inputs are {test.dtype} of shape {test.shape}; expected {train.dtype} of shape {train.shape}, like "
            "the training inputs; convert the test inputs."
        )


def _refuse_normalization(settings: DataSettings, channels: int) -> None:
    chosen = IMAGENET if settings.normalize == "imagenet" else settings.normalize
    if not isinstance(chosen, Normalization):
        return
    if not all(map(math.isfinite, (*chosen.mean, *chosen.std))):
        raise DataError(
            "data.normalize has a mean or deviation that is NaN or infinite; expected numbers; fix data.normalize."
        )
    if {len(chosen.mean), len(chosen.std)} != {channels} or min(chosen.std) <= 0:
        raise DataError(
            f"data.normalize has {len(chosen.mean)} means and {len(chosen.std)} deviations of at least "
            f"{min(chosen.std)}; expected {channels} of each, with deviations above 0; fix data.normalize."
        )


def _normalization(settings: DataSettings, train: Examples, seed: int) -> Normalization | None:
    """Return the normalisation as set, or measured on the training rows; None for a user's own dataset."""
    if isinstance(settings.normalize, Normalization) or settings.normalize == "imagenet":
        return IMAGENET if settings.normalize == "imagenet" else settings.normalize
    channels = train.inputs.channels
    if settings.normalize != "none":
        return train.inputs.measure(train.rows, seed)
    if train.inputs.dtype != torch.uint8 or channels is None:
        return None
    return Normalization((0.0,) * channels, (1.0,) * channels)  # scales bytes to the range 0 to 1


def _with_normalization(splits: Splits, normalization: Normalization | None) -> Splits:
    if normalization is None:
        return splits
    parts = {name: part for name, part in vars(splits).items() if part is not None}
    if any(part.inputs.channels is None for part in parts.values()):
        raise DataError(
            "the training inputs are in memory and normalised, but the test inputs are read item by item; expected "
            "both of the same kind; pass both in the same form, or normalise them yourself, with "
            f"{setting('data.normalize', 'none')}."
        )
    return Splits(**{name: replace(part, inputs=part.inputs.normalized(normalization)) for name, part in parts.items()})


def prepare_inputs(inputs: Inputs, settings: DataSettings, encoder: Encoder | None = None) -> Inputs:
    """Prepare new inputs like the inputs of a finished run with these resolved settings; vectors count as encoded."""
    if encoder is not None and (inputs.records is not None or inputs.resizable):
        inputs = encode_inputs(inputs, encoder)
    options = read_options(settings, settings.resize if isinstance(settings.resize, tuple) else None)
    if inputs.shape is not None and len(inputs.shape) != 3:
        options = replace(options, crop=None)  # the comparison with the trained shape reports the difference
    normalization = settings.normalize if isinstance(settings.normalize, Normalization) else None
    return inputs.with_options(options).normalized(normalization)
