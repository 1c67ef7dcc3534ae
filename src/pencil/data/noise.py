"""Seeded label noise: noisy labels from clean ones, with the measured noise rate.

Every class-conditional noise is a transition matrix ``T``, where ``T[i, j]`` is the probability that label ``i`` is
given as ``j``; :func:`flip` draws from any such matrix. Instance-dependent noise also depends on the inputs
(:func:`flip_by_instance`). In multi-label data each (example, class) entry flips independently (:func:`flip_entries`).
:func:`corrupt` uses these functions to apply the noise of a recipe to examples.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from pencil.data.examples import Examples
from pencil.data.given.given_labels import as_clean_indicators, as_given_labels, error_context, shorten
from pencil.data.inputs.encoding import fit_encoder
from pencil.data.settings import AnyNoise, EntryNoise, FileNoise, MapNoise, MatrixNoise, MixedNoise
from pencil.errors import DataError, setting
from pencil.files import refuse_irregular
from pencil.seeding import derive_seed


@dataclass(frozen=True)
class NoisyLabels:
    """Noisy labels, the fraction of labels that changed, and the measured transition matrix."""

    labels: NDArray[np.int64]
    rate: float
    transitions: NDArray[np.float64]


def symmetric_matrix(num_classes: int, rate: float) -> NDArray[np.float64]:
    """Return the matrix of symmetric noise (section 4.1).

    Parameters
    ----------
    num_classes
        The number of classes.
    rate
        The probability that a label is redrawn, uniformly from all classes including its own.
    """
    _check_rate(rate)
    return (1 - rate) * np.eye(num_classes) + rate / num_classes


def circular_matrix(num_classes: int, rate: float) -> NDArray[np.float64]:
    """Return the matrix of circular noise (CIFAR-100 in the paper).

    Parameters
    ----------
    num_classes
        The number of classes.
    rate
        The probability that a label becomes the next class; the last class becomes the first.
    """
    _check_rate(rate)
    return (1 - rate) * np.eye(num_classes) + rate * np.roll(np.eye(num_classes), 1, axis=1)


def map_matrix(num_classes: int, rate: float, mapping: Mapping[int, int]) -> NDArray[np.float64]:
    """Return the matrix of noise between pairs of classes (CIFAR-10 in the paper).

    Parameters
    ----------
    num_classes
        The number of classes.
    rate
        The probability that a label of a mapped class changes.
    mapping
        The class that each mapped class changes to.
    """
    _check_rate(rate)
    matrix = np.eye(num_classes)
    for source, target in mapping.items():
        if not (0 <= source < num_classes and 0 <= target < num_classes):
            raise DataError(
                f"noise maps class {source} to {target}; expected classes 0..{num_classes - 1}; fix the map."
            )
        matrix[source] = 0
        matrix[source, source] += 1 - rate
        matrix[source, target] += rate
    return matrix


def flip(clean_labels: ArrayLike, transition: ArrayLike, seed: int) -> NoisyLabels:
    """Redraw each label from its row of a transition matrix.

    Parameters
    ----------
    clean_labels
        Class indices (n,).
    transition
        Probabilities (classes, classes): row = clean class, column = given class.
    seed
        The same seed gives the same labels.
    """
    matrix = np.asarray(transition, dtype=np.float64)
    _check_transition(matrix)
    clean = as_given_labels(clean_labels, len(matrix))[0].numpy()
    uniform = np.random.default_rng(seed).random(len(clean))
    noisy = np.empty_like(clean)
    for label in np.unique(clean):
        rows = clean == label
        noisy[rows] = _invert(matrix[label], uniform[rows])
    return compare(clean, noisy, len(matrix))


def flip_by_instance(
    clean_labels: ArrayLike, inputs: ArrayLike, num_classes: int, rate: float, seed: int, *, spread: float = 0.1
) -> NoisyLabels:
    """Draw instance-dependent noise (Xia et al. 2020, Algorithm 2): flip rate and target depend on the input.

    Each example has its own flip rate, drawn from a normal distribution around ``rate`` truncated to [0, 1]; the target
    class is drawn from a softmax of a random projection of the standardised input, one projection per clean class.

    As in the paper, ``rate`` is the mean before truncation, which raises small rates: with the default ``spread``, 0.02
    gives 0.088 on average, 0.05 gives 0.101, 0.1 gives 0.129, 0.2 gives 0.206; from 0.3 to 0.7 the mean is unchanged.

    Parameters
    ----------
    clean_labels
        Class indices (n,).
    inputs
        Numbers of any shape (n, ...).
    num_classes
        The number of classes.
    rate
        The mean flip rate before truncation.
    seed
        The same seed gives the same labels.
    spread
        The standard deviation of the flip rates before truncation.
    """
    _check_rate(rate)
    clean = as_given_labels(clean_labels, num_classes)[0].numpy()
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
    """Noisy multi-label labels, and the fraction of known entries that are wrong."""

    labels: NDArray[np.float32]
    rate: float


def flip_entries(
    clean_labels: ArrayLike, *, false_positives: float, false_negatives: float, seed: int, confidences: bool = False
) -> NoisyEntries:
    """Flip each entry of an indicator matrix independently; NaN (unknown) stays unknown.

    Parameters
    ----------
    clean_labels
        0, 1 or NaN (n, classes).
    false_positives, false_negatives
        Probability that an absent class is given as present, and that a present class is given as absent.
    seed
        The same seed gives the same labels.
    confidences
        Whether to give probabilities, like a classifier: from 0.5 to 1 for a class given as present, from 0 to 0.5 for
        a class given as absent. Right entries tend to be more confident (0.83 on average) than wrong ones (0.67).
    """
    _check_rate(false_positives)
    _check_rate(false_negatives)
    with error_context("clean labels"):
        clean = as_clean_indicators(clean_labels).numpy()
    rng = np.random.default_rng(seed)
    known, present = ~np.isnan(clean), clean > 0.5
    wrong = (rng.random(clean.shape) < np.where(present, false_negatives, false_positives)) & known
    given = present ^ wrong
    confidence = np.ones(clean.shape)
    if confidences:
        confidence = 0.5 + 0.5 * np.where(wrong, rng.beta(1, 2, clean.shape), rng.beta(2, 1, clean.shape))
    labels = np.where(known, np.where(given, confidence, 1 - confidence), np.nan).astype(np.float32)
    return NoisyEntries(labels, float(wrong[known].mean()) if known.any() else 0.0)


def compare(clean: NDArray[np.int64], noisy: NDArray[np.int64], num_classes: int) -> NoisyLabels:
    """Measure the noise rate and the transitions between clean and noisy class indices."""
    counts = np.zeros((num_classes, num_classes))
    np.add.at(counts, (clean, noisy), 1)
    transitions = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    return NoisyLabels(noisy, float((clean != noisy).mean()) if len(clean) else 0.0, transitions)


def corrupt(
    examples: Examples, settings: AnyNoise, seed: int, loaded_rows: torch.Tensor | None = None
) -> NoisyLabels | NoisyEntries:
    """Inject noise into examples whose given labels are clean.

    Parameters
    ----------
    examples
        The examples; they are not modified.
    settings
        The ``[data.noise]`` part of a recipe.
    seed
        Seed of the noise, if the settings have none.
    loaded_rows
        The number of each example in the loaded data, which the rows of a label file follow; by default its row.

    Raises
    ------
    DataError
        If the noise does not fit the labels, or depends on inputs that are not in memory.
    """
    clean = examples.given_labels.numpy()
    seed = settings.seed if settings.seed is not None else seed
    if isinstance(settings, EntryNoise) != examples.multilabel:
        fitting = 'multi-label; expected noise of kind "entries"'
        if not examples.multilabel:
            fitting = "single-label; expected noise of kind symmetric, circular, instance, map, matrix, file or mixed"
        raise DataError(
            f'data.noise is of kind "{settings.kind}", but the labels are {fitting}; change data.noise.kind.'
        )
    if isinstance(settings, EntryNoise):
        rates = {"false_positives": settings.false_positives, "false_negatives": settings.false_negatives}
        return flip_entries(clean, **rates, confidences=settings.confidences, seed=seed)
    if clean.ndim != 1:
        raise DataError("data.noise is set but the labels are distributions; expected class labels; remove data.noise.")
    if isinstance(settings, MixedNoise):
        return _corrupt_in_turn(examples, settings, seed, loaded_rows)
    if isinstance(settings, FileNoise):
        return labels_of_file(examples, settings, seed, examples.rows if loaded_rows is None else loaded_rows)
    matrix = transition_matrix(settings, examples.classes)
    if matrix is not None:
        return flip(clean, matrix, seed)
    assert settings.kind == "instance"
    return flip_by_instance(clean, _values(examples), examples.num_classes, settings.rate, seed)


def _values(examples: Examples) -> np.ndarray:
    """Return the values that instance-dependent noise depends on.

    For table rows these are the vectors of a separate encoder, fitted on all of these rows with the built-in text
    vectors: noise is drawn before rows are held out, and does not depend on ``data.text_model``.
    """
    records = examples.inputs.records
    if records is not None:
        return fit_encoder(records, examples.rows).encode(records, examples.rows).values.numpy()
    values = examples.inputs.in_memory
    if values is None:
        raise DataError(
            "data.noise depends on the inputs but these are not in memory; expected arrays, tables or cached images; "
            f"cache the images with {setting('data.cache', 'memory')}, or choose another kind of noise."
        )
    return values[examples.rows].numpy()


def labels_of_file(examples: Examples, settings: FileNoise, seed: int, loaded_rows: torch.Tensor) -> NoisyLabels:
    """Return the annotators' labels for these rows of the data, or a random part of their mistakes.

    Raises
    ------
    DataError
        If the file is not an array of one class index per row of the data.
    """
    expected = f"expected one class index from 0 to {examples.num_classes - 1} for every row of the data"
    try:
        refuse_irregular(settings.file)
        given = np.load(settings.file, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"data.noise.file, {settings.file}, cannot be read: {error}; {expected} in .npy.") from error
    rows, clean = loaded_rows.numpy(), examples.given_labels.numpy()
    fits = isinstance(given, np.ndarray) and given.ndim == 1 and np.issubdtype(given.dtype, np.integer)
    if not fits or len(given) <= rows.max() or not 0 <= given.min() <= given.max() < examples.num_classes:
        seen = f"shape {given.shape} and type {given.dtype}" if isinstance(given, np.ndarray) else "several arrays"
        raise DataError(f"data.noise.file, {settings.file}, has {seen}; {expected}; choose another file.")
    noisy = given[rows].astype(np.int64)
    wrong = np.flatnonzero(noisy != clean)
    if settings.rate is not None:
        right = np.random.default_rng(seed).permutation(wrong)[round(settings.rate * len(clean)) :]
        noisy[right] = clean[right]
    return compare(clean, noisy, examples.num_classes)


def _corrupt_in_turn(
    examples: Examples, settings: MixedNoise, seed: int, loaded_rows: torch.Tensor | None
) -> NoisyLabels:
    labels = examples.given_labels
    for number, part in enumerate(settings.parts):
        before = replace(examples, given_labels=labels)
        found = corrupt(before, part, derive_seed(seed, "part", number), loaded_rows)
        labels = torch.from_numpy(found.labels)
    return compare(examples.given_labels.numpy(), labels.numpy(), examples.num_classes)


def transition_matrix(settings: AnyNoise | None, classes: tuple[str, ...]) -> np.ndarray | None:
    """Return the matrix of the noise in a recipe: row = clean class, column = given class.

    None if there is no noise, or if no matrix describes it (instance-dependent or multi-label noise).
    """
    count = len(classes)
    if settings is None or isinstance(settings, EntryNoise | FileNoise):
        return None
    if isinstance(settings, MatrixNoise):
        lengths = {len(settings.matrix), *map(len, settings.matrix)}
        if lengths != {count}:
            raise DataError(
                f"the noise matrix has rows and columns of {', '.join(map(str, sorted(lengths)))} numbers; expected "
                f"{count} x {count} for the {count} classes of the data; fix data.noise.matrix."
            )
        return np.array(settings.matrix)
    if isinstance(settings, MixedNoise):
        parts = [transition_matrix(part, classes) for part in settings.parts]
        known = [part for part in parts if part is not None]
        return None if len(known) < len(parts) else functools.reduce(np.matmul, known)
    if isinstance(settings, MapNoise):
        return map_matrix(count, settings.rate, _class_map(settings.classes, classes))
    if settings.kind == "instance":
        return None
    make = symmetric_matrix if settings.kind == "symmetric" else circular_matrix
    return make(count, settings.rate)


def _class_map(names: Mapping[str, str], classes: tuple[str, ...]) -> dict[int, int]:
    for name in (*names, *names.values()):
        if name not in classes:
            raise DataError(
                f"the noise map contains class {name!r}; expected classes of the data ({shorten(classes, 12)}); "
                "fix data.noise.classes."
            )
    return {classes.index(source): classes.index(target) for source, target in names.items()}


def _invert(probs: NDArray[np.float64], uniform: NDArray[np.float64]) -> NDArray[np.int64]:
    cumulative = probs.cumsum()
    cumulative /= cumulative[-1]  # so that rounding leaves no gap below 1
    return np.searchsorted(cumulative, uniform, side="right")


def _truncated_normal(rng: np.random.Generator, mean: float, spread: float, size: int) -> NDArray[np.float64]:
    if spread == 0 or mean in (0, 1):
        return np.full(size, float(mean))
    values = rng.normal(mean, spread, size)
    while (outside := (values < 0) | (values > 1)).any():
        values[outside] = rng.normal(mean, spread, int(outside.sum()))
    return values


def _check_rate(rate: float) -> None:
    if not 0 <= rate <= 1:
        raise DataError(f"noise rate is {rate}; expected a fraction from 0 to 1; write 50 % as 0.5.")


def _check_transition(matrix: NDArray[np.float64]) -> None:
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise DataError(f"transition matrix has shape {matrix.shape}; expected (classes, classes); make it square.")
    good = (matrix >= 0).all(axis=1) & np.isclose(matrix.sum(axis=1), 1)
    if not good.all():
        row = int(np.argmin(good))
        raise DataError(
            f"row {row} of the transition matrix is {matrix[row]}; expected probabilities that sum to 1; fix the row."
        )
