"""Noise for experiments: clean labels in, noisy ones out, as a recipe's ``data.noise`` says."""

import functools
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch

from pencil import noise
from pencil.data.examples import Examples
from pencil.data.inputs import TensorInputs
from pencil.data.settings import AnyNoise, EntryNoise, MapNoise, MatrixNoise, MixedNoise
from pencil.errors import DataError
from pencil.seeding import derive_seed


def corrupt(examples: Examples, settings: AnyNoise, seed: int) -> noise.NoisyLabels | noise.NoisyEntries:
    """Noisy labels for examples whose given labels are clean."""
    clean = examples.given_labels.numpy()
    seed = settings.seed if settings.seed is not None else seed
    if isinstance(settings, EntryNoise) != examples.multilabel:
        fitting = 'of several classes at once; expected noise of kind "entries"'
        if not examples.multilabel:
            fitting = "of one class each; expected noise of kind symmetric, circular, instance, map, matrix or mixed"
        raise DataError(f'data.noise is of kind "{settings.kind}" and the examples are {fitting}.')
    if isinstance(settings, EntryNoise):
        rates = {"false_positives": settings.false_positives, "false_negatives": settings.false_negatives}
        return noise.flip_entries(clean, **rates, confidences=settings.confidences, seed=seed)
    if clean.ndim != 1:
        raise DataError("noise is injected into class labels; these examples carry label distributions.")
    if isinstance(settings, MixedNoise):
        return _one_after_the_other(examples, settings, seed)
    matrix = transition_matrix(settings, examples.classes)
    if matrix is not None:
        return noise.flip(clean, matrix, seed)
    if not isinstance(examples.inputs, TensorInputs):
        raise DataError("instance-dependent noise needs inputs in memory; this dataset is read item by item.")
    inputs = examples.inputs.values[examples.rows].numpy()
    assert settings.kind == "instance"
    return noise.flip_by_instance(clean, inputs, examples.num_classes, settings.rate, seed)


def _one_after_the_other(examples: Examples, settings: MixedNoise, seed: int) -> noise.NoisyLabels:
    labels = examples.given_labels
    for number, part in enumerate(settings.parts):
        found = corrupt(replace(examples, given_labels=labels), part, derive_seed(seed, "part", number))
        labels = torch.from_numpy(found.labels)
    return noise.compare(examples.given_labels.numpy(), labels.numpy(), examples.num_classes)


def transition_matrix(settings: AnyNoise | None, classes: tuple[str, ...]) -> np.ndarray | None:
    """Row = clean class, column = given class; None where no noise is injected, or noise that no matrix describes."""
    count = len(classes)
    if settings is None or isinstance(settings, EntryNoise):
        return None
    if isinstance(settings, MatrixNoise):
        if {len(settings.matrix), *map(len, settings.matrix)} != {count}:
            raise DataError(f"the noise matrix is not {count} x {count}, as the data's {count} classes need.")
        return np.array(settings.matrix)
    if isinstance(settings, MixedNoise):
        parts = [transition_matrix(part, classes) for part in settings.parts]
        known = [part for part in parts if part is not None]
        return None if len(known) < len(parts) else functools.reduce(np.matmul, known)
    if isinstance(settings, MapNoise):
        return noise.map_matrix(count, settings.rate, _class_map(settings.classes, classes))
    if settings.kind == "instance":
        return None
    make = noise.symmetric_matrix if settings.kind == "symmetric" else noise.circular_matrix
    return make(count, settings.rate)


def _class_map(names: Mapping[str, str], classes: tuple[str, ...]) -> dict[int, int]:
    for name in (*names, *names.values()):
        if name not in classes:
            raise DataError(f"the noise map names class {name!r}; the data has {', '.join(classes[:12])}.")
    return {classes.index(source): classes.index(target) for source, target in names.items()}
