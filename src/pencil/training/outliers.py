"""The outlier scores of all rows of a run, from their features."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from pencil.data.examples import Examples, Splits
from pencil.data.given.given_labels import hard_labels, has_tie
from pencil.data.inputs.base import Inputs, Loaded
from pencil.labels.outliers import Reference, outlier_scores
from pencil.models.probe import last_features
from pencil.seeding import some_places
from pencil.training.compute import Compute
from pencil.training.distributed import World
from pencil.training.evaluation import predict_logits

MOST, FEWEST, PAIRS = 10_000, 2_000, 5 * 10**8
"""Rows are compared with at most ``MOST`` training rows; with fewer, but at least ``FEWEST``, if there would be more
than ``PAIRS`` pairs."""
BLOCK = 4096
"""Number of rows whose features are in memory at a time."""

Read = Callable[[Inputs, Tensor], Tensor]
"""Returns the vectors of some rows, NaN for unreadable ones."""


def find_outliers(
    splits: Splits, model: nn.Module, features: Splits | None, compute: Compute, world: World
) -> dict[str, Tensor]:
    """Return the outlier score of each training, held-out and unlabelled row, by split; all ranks must call this.

    Rows are compared by the features of a frozen backbone, by their numbers if they are vectors, or else by the inputs
    of the network's last layer.

    Parameters
    ----------
    splits
        The rows that were trained on.
    model
        The trained network.
    features
        The same rows as features of a frozen backbone, if there is one.
    """
    compared = splits if features is None else features
    parts = {name: getattr(compared, name) for name in ("train", "validation", "unlabelled")}
    parts = {name: part for name, part in parts.items() if part is not None}
    train = parts["train"]
    places = some_places(len(train), max(FEWEST, min(MOST, PAIRS // sum(map(len, parts.values())))))
    if features is not None:
        read: Read = _of_backbone
    elif len(train.input_shape) == 1:
        read = _standardised(train.inputs, train.rows[places])
    else:
        read = _of_network(model, compute)
    vectors = read(train.inputs, train.rows[places])
    readable = vectors.isfinite().all(dim=1)
    if int(readable.sum()) < 2:
        return {name: torch.zeros(len(part)) for name, part in parts.items()}
    places = places[readable]
    reference = Reference.of(vectors[readable], _labels(train)[places])
    found = [
        _compare(part, reference, read, places if name == "train" else None, world) for name, part in parts.items()
    ]
    scores = outlier_scores(*(torch.cat(columns) for columns in zip(*found, strict=True)))
    return dict(zip(parts, scores.split([len(part) for part in parts.values()]), strict=True))


def _compare(
    part: Examples, reference: Reference, read: Read, places: Tensor | None, world: World
) -> tuple[Tensor, Tensor]:
    """Compare rows with the reference; ``places`` are its positions among these rows, None if it has none of them.

    Ranks take turns in blocks of a fixed size, so that the results do not depend on the number of ranks.
    """
    own = torch.full((len(part),), -1)
    if places is not None:
        own[places] = torch.arange(len(places))
    found = torch.zeros(2, len(part), dtype=torch.float64)
    for rows in torch.arange(len(part)).split(BLOCK)[world.rank :: world.size]:
        vectors = read(part.inputs, part.rows[rows])
        distances, disagree = reference.compare(vectors.nan_to_num(), own[rows])
        found[0, rows] = distances.double().masked_fill(~vectors.isfinite().all(dim=1), torch.nan)
        found[1, rows] = disagree.double()
    distances, disagree = world.all_reduce_sum(found)
    return distances, disagree > 0


def _labels(train: Examples) -> Tensor:
    """Return the class of each row, -1 for none, or which classes each row has."""
    if train.multilabel:
        return train.given_labels > 0.5
    return hard_labels(train.given_labels).masked_fill(has_tie(train.given_labels), -1)


def _of_backbone(inputs: Inputs, rows: Tensor) -> Tensor:
    """Features as the backbone returns them; standardised features separate outliers less well."""
    return normalize(_placed(inputs.raw(rows), len(rows)), dim=1)


def _placed(loaded: Loaded, rows: int) -> Tensor:
    """Return the values of all rows, NaN for unreadable ones."""
    values = loaded.values.float()
    if loaded.kept is None:
        return values
    found = torch.full((rows, *values.shape[1:]), torch.nan)
    found[loaded.kept] = values
    return found


def _of_network(model: nn.Module, compute: Compute) -> Read:
    def read(inputs: Inputs, rows: Tensor) -> Tensor:
        found = predict_logits(model, inputs, rows, forward=last_features(model), compute=compute)
        return normalize(found, dim=1)

    return read


def _standardised(inputs: Inputs, rows: Tensor) -> Read:
    """Numbers in standard deviations; large values are common in tables, so only their logarithm counts."""

    def values(inputs: Inputs, rows: Tensor) -> Tensor:
        return _placed(next(iter(inputs.batches([rows]))), len(rows))

    sample = values(inputs, rows)
    sample = sample[sample.isfinite().all(dim=1)]
    mean, deviation = sample.mean(dim=0), sample.std(dim=0, correction=0)
    deviation[deviation <= 1e-6 * sample.abs().amax(dim=0)] = 1.0  # a constant
    return lambda inputs, rows: ((values(inputs, rows) - mean) / deviation).asinh()
