"""Seeded label noise: clean labels in, new noisy ones out, with the rate that was really produced.

Every class-conditional noise is a transition matrix ``T``, where ``T[i, j]`` is the probability that a label ``i`` is
given as ``j``; :func:`flip` draws from any such matrix. Instance-dependent noise also looks at the inputs. Where an
example may be of several classes at once, each (example, class) entry flips by itself: :func:`flip_entries`.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from pencil.data import noise
from pencil.data.examples import Examples
from pencil.data.inputs import TensorInputs
from pencil.data.settings import AnyNoise, EntryNoise, MapNoise, MatrixNoise, MixedNoise
from pencil.errors import DataError
from pencil.seeding import derive_seed

CIFAR10_CONFUSIONS: Mapping[int, int] = {9: 1, 2: 0, 4: 7, 3: 5, 5: 3}
"""truck -> automobile, bird -> airplane, deer -> horse, cat <-> dog (section 4.1)."""


@dataclass(frozen=True)
class NoisyLabels:
    """Noisy labels beside the share of labels that really changed and the transitions that really happened."""

    labels: NDArray[np.int64]
    rate: float
    transitions: NDArray[np.float64]


def symmetric_matrix(num_classes: int, rate: float) -> NDArray[np.float64]:
    """With probability ``rate`` a label is drawn uniformly from all classes, its own included (section 4.1)."""
    _check_rate(rate)
    return (1 - rate) * np.eye(num_classes) + rate / num_classes


def circular_matrix(num_classes: int, rate: float) -> NDArray[np.float64]:
    """With probability ``rate`` a label becomes the next class, the last one the first (CIFAR-100 in the paper)."""
    _check_rate(rate)
    return (1 - rate) * np.eye(num_classes) + rate * np.roll(np.eye(num_classes), 1, axis=1)


def map_matrix(num_classes: int, rate: float, mapping: Mapping[int, int]) -> NDArray[np.float64]:
    """With probability ``rate`` a label of a mapped class becomes its image (CIFAR-10 in the paper)."""
    _check_rate(rate)
    matrix = np.eye(num_classes)
    for source, target in mapping.items():
        if not (0 <= source < num_classes and 0 <= target < num_classes):
            raise DataError(f"noise maps class {source} to {target}; expected classes 0..{num_classes - 1}.")
        matrix[source] = 0
        matrix[source, source] += 1 - rate
        matrix[source, target] += rate
    return matrix


def flip(clean_labels: ArrayLike, transition: ArrayLike, seed: int) -> NoisyLabels:
    """Draw each label anew from its row of ``transition``."""
    matrix = np.asarray(transition, dtype=np.float64)
    _check_transition(matrix)
    clean = _check_clean(clean_labels, len(matrix))
    uniform = np.random.default_rng(seed).random(len(clean))
    noisy = np.empty_like(clean)
    for label in np.unique(clean):
        rows = clean == label
        noisy[rows] = _invert(matrix[label], uniform[rows])
    return compare(clean, noisy, len(matrix))


def flip_by_instance(
    clean_labels: ArrayLike, inputs: ArrayLike, num_classes: int, rate: float, seed: int, *, spread: float = 0.1
) -> NoisyLabels:
    """Instance-dependent noise (Xia et al. 2020, Algorithm 2): how likely and to what a label flips hangs on its input.

    Each example has a flip rate of its own, normal around ``rate`` and cut to [0, 1]; where it goes is a softmax of a
    random projection of the standardised input, one projection per clean class.
    """
    _check_rate(rate)
    clean = _check_clean(clean_labels, num_classes)
    features = np.asarray(inputs, dtype=np.float64).reshape(len(clean), -1)
    features = (features - features.mean()) / (features.std() or 1.0)
    rng = np.random.default_rng(seed)
    rates = _truncated_normal(rng, rate, spread, len(clean))
    uniform = rng.random(len(clean))
    noisy = np.empty_like(clean)
    for label in range(num_classes):  # one class at a time keeps the projections small
        rows = np.flatnonzero(clean == label)
        scores = features[rows] @ rng.standard_normal((features.shape[1], num_classes))
        scores[:, label] = -np.inf
        probs = np.exp(scores - scores.max(axis=1, keepdims=True))
        probs *= (rates[rows] / probs.sum(axis=1))[:, None]
        probs[:, label] = 1 - rates[rows]
        cumulative = probs.cumsum(axis=1)
        cumulative /= cumulative[:, -1:]
        noisy[rows] = (uniform[rows, None] >= cumulative).sum(axis=1)
    return compare(clean, noisy, num_classes)


@dataclass(frozen=True)
class NoisyEntries:
    """Noisy multi-labels beside the share of known entries that now say the wrong thing."""

    labels: NDArray[np.float32]
    rate: float


def flip_entries(
    clean_labels: ArrayLike, *, false_positives: float, false_negatives: float, seed: int, confidences: bool = False
) -> NoisyEntries:
    """Flip each entry of an indicator matrix: absent to present, present to absent; NaN (unknown) stays unknown.

    ``confidences`` gives labels as a machine would: what is said to be present has a probability from 0.5 to 1, what
    is said to be absent one from 0 to 0.5. Right ones tend to be surer (0.83 on average) than wrong ones (0.67).
    """
    _check_rate(false_positives)
    _check_rate(false_negatives)
    clean = _check_indicators(clean_labels)
    rng = np.random.default_rng(seed)
    known, present = ~np.isnan(clean), clean > 0.5
    wrong = (rng.random(clean.shape) < np.where(present, false_negatives, false_positives)) & known
    said = present ^ wrong
    sure = np.ones(clean.shape)
    if confidences:
        sure = 0.5 + 0.5 * np.where(wrong, rng.beta(1, 2, clean.shape), rng.beta(2, 1, clean.shape))
    labels = np.where(known, np.where(said, sure, 1 - sure), np.nan).astype(np.float32)
    return NoisyEntries(labels, float(wrong[known].mean()) if known.any() else 0.0)


def _invert(probs: NDArray[np.float64], uniform: NDArray[np.float64]) -> NDArray[np.int64]:
    cumulative = probs.cumsum()
    cumulative /= cumulative[-1]  # so that rounding never leaves a gap below 1
    return np.searchsorted(cumulative, uniform, side="right")


def _truncated_normal(rng: np.random.Generator, mean: float, spread: float, size: int) -> NDArray[np.float64]:
    if spread == 0 or mean in (0, 1):
        return np.full(size, float(mean))
    values = rng.normal(mean, spread, size)
    while (outside := (values < 0) | (values > 1)).any():
        values[outside] = rng.normal(mean, spread, int(outside.sum()))
    return values


def compare(clean: NDArray[np.int64], noisy: NDArray[np.int64], num_classes: int) -> NoisyLabels:
    counts = np.zeros((num_classes, num_classes))
    np.add.at(counts, (clean, noisy), 1)
    transitions = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    return NoisyLabels(noisy, float((clean != noisy).mean()) if len(clean) else 0.0, transitions)


def _check_rate(rate: float) -> None:
    if not 0 <= rate <= 1:
        raise DataError(f"noise rate is {rate}; expected a share from 0 to 1 (50 % is 0.5).")


def _check_transition(matrix: NDArray[np.float64]) -> None:
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise DataError(f"transition matrix has shape {matrix.shape}; expected (classes, classes).")
    good = (matrix >= 0).all(axis=1) & np.isclose(matrix.sum(axis=1), 1)
    if not good.all():
        row = int(np.argmin(good))
        raise DataError(f"row {row} of the transition matrix is {matrix[row]}; expected probabilities that sum to 1.")


def _check_clean(labels: ArrayLike, num_classes: int) -> NDArray[np.int64]:
    clean = np.asarray(labels)
    if clean.ndim != 1 or clean.dtype.kind not in "iu":
        raise DataError(f"noise needs class indices; saw labels of shape {clean.shape} and type {clean.dtype}.")
    bad = (clean < 0) | (clean >= num_classes)
    if bad.any():
        row = int(np.argmax(bad))
        raise DataError(f"label {clean[row]} at row {row} does not fit {num_classes} classes (0..{num_classes - 1}).")
    return clean.astype(np.int64)


def _check_indicators(labels: ArrayLike) -> NDArray[np.float64]:
    clean = np.asarray(labels, dtype=np.float64)
    if clean.ndim != 2:
        raise DataError(f"labels have shape {clean.shape}; expected (n, classes) with 0 or 1 for each class.")
    good = ((clean == 0) | (clean == 1) | np.isnan(clean)).all(axis=1)
    if not good.all():
        row = int(np.argmin(good))
        raise DataError(f"clean label at row {row} is {clean[row]}; expected 0 or 1 for each class, NaN where unknown.")
    return clean


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
