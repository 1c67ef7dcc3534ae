"""Examples: rows of inputs with the labels given for them. Clean labels, where known, ride along for metrics only."""

import hashlib
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.dtypes import StringDType
from torch import Tensor

from pencil.data.given import hard_labels, refuse_alike_classes, refuse_empty_classes
from pencil.data.inputs import Inputs, View
from pencil.errors import DataError
from pencil.seeding import generator


def as_keys(values: Any) -> np.ndarray:
    """Keys as one array of strings of any length: no Python object per row, so worker processes share it as it is."""
    array = np.asarray(values)
    return array.astype(str).astype(StringDType()) if array.dtype.kind in "iu" else array.astype(StringDType())


@dataclass(frozen=True)
class Batch:
    """Some rows of the training set, as a method sees them: nothing in it knows the clean labels."""

    rows: Tensor
    inputs: Tensor
    given_labels: Tensor


@dataclass(frozen=True)
class Examples:
    """A choice of rows from some inputs, with given labels, stable keys and class names."""

    inputs: Inputs
    rows: Tensor
    given_labels: Tensor
    classes: tuple[str, ...]
    keys: np.ndarray
    clean_labels: Tensor | None = None
    multilabel: bool = False
    pinned: Tensor | None = None
    """True for rows whose label a person has reviewed: nothing moves it."""

    def __post_init__(self) -> None:
        lengths = {"labels": len(self.given_labels), "keys": len(self.keys)}
        if self.clean_labels is not None:
            lengths["clean labels"] = len(self.clean_labels)
        if self.pinned is not None:
            lengths["marks of pinned rows"] = len(self.pinned)
        for name, count in lengths.items():
            if count != len(self.rows):
                raise DataError(f"there are {len(self.rows)} inputs but {count} {name}; expected as many of each.")

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input, as a network sees it."""
        return tuple(self.some_inputs(1).shape[1:])

    def some_inputs(self, count: int) -> Tensor:
        """The first inputs that can be read, up to so many of them, as a network sees them in evaluation."""
        for chunks in (self.rows[:64].split(count), self.rows[64:].split(64)):  # most often the first is enough
            for values, _ in self.inputs.batches(chunks):
                if len(values):
                    return values[:count]
        raise DataError(f"none of the {len(self)} inputs can be read.")

    def subset(self, chosen: Tensor) -> "Examples":
        """These positions only; inputs are shared, never copied."""
        return replace(
            self,
            rows=self.rows[chosen],
            given_labels=self.given_labels[chosen],
            keys=self.keys[chosen.numpy()],
            clean_labels=None if self.clean_labels is None else self.clean_labels[chosen],
            pinned=None if self.pinned is None else self.pinned[chosen],
        )

    def batches(self, batch_size: int, *, order: Tensor | None = None, view: View | None = None) -> Iterator[Batch]:
        """Batches in the given order of positions (all of them, as they stand, by default)."""
        return self.pieces(cut(torch.arange(len(self)) if order is None else order, batch_size), view)

    def pieces(self, chunks: Sequence[Tensor], view: View | None = None) -> Iterator[Batch]:
        """A batch for each chunk of positions; rows whose input cannot be read are missing from it."""
        inputs = self.inputs.batches([self.rows[chunk] for chunk in chunks if len(chunk)], view)
        for chunk in chunks:
            if len(chunk) == 0:
                yield Batch(chunk, torch.empty(0, *self.input_shape), self.given_labels[chunk])
                continue
            values, readable = next(inputs)
            kept = chunk if readable is None else chunk[readable]
            yield Batch(kept, values, self.given_labels[kept])

    def fingerprint(self) -> str:
        """A digest of keys and given labels: the same for the same rows in the same order."""
        digest = hashlib.sha256("\0".join(self.classes).encode())
        for start in range(0, len(self), 65536):  # never all keys at once as Python strings
            digest.update("".join(f"\0{key}" for key in self.keys[start : start + 65536]).encode())
        digest.update(self.given_labels.numpy().tobytes())
        return digest.hexdigest()


def cut(order: Tensor, batch_size: int) -> list[Tensor]:
    """Pieces of ``batch_size``; a single row left over joins the piece before it, as batch statistics need two."""
    chunks = list(order.split(batch_size))
    if len(chunks) > 1 and len(chunks[-1]) == 1:
        chunks[-2:] = [torch.cat(chunks[-2:])]
    return chunks


@dataclass(frozen=True)
class Splits:
    """What a run trains on, what it chooses its best epoch by (noisy too), and what it is measured on."""

    train: Examples
    validation: Examples | None = None
    test: Examples | None = None

    def sizes(self) -> dict[str, int]:
        return {name: len(part) for name, part in vars(self).items() if part is not None}


def hold_out(
    examples: Examples, share: float, seed: int, keys: np.ndarray | None = None
) -> tuple[Examples, Examples | None]:
    """Keep a random share of the rows for validation, or those with these keys; every class keeps one to train on.

    Fewer than ten rows, or one per class, leave nothing to spare: then there is no validation split.
    """
    if keys is not None:
        chosen = torch.from_numpy(np.isin(examples.keys, keys))
        return examples.subset(torch.where(~chosen)[0]), examples.subset(
            torch.where(chosen)[0]
        ) if chosen.any() else None
    if not 0 <= share < 1:
        raise DataError(f"validation share is {share}; expected from 0 (none) to below 1.")
    if share == 0 or len(examples) < 10:
        return examples, None
    order = torch.randperm(len(examples), generator=generator(seed, "validation"))
    given = examples.given_labels[order].numpy()
    first_of_class = torch.zeros(len(order), dtype=torch.bool)
    if examples.multilabel:
        first_of_class[(given > 0.5).argmax(axis=0)] = True
    else:  # a rare class must not vanish from training
        first_of_class[np.unique(hard_labels(torch.from_numpy(given)).numpy(), return_index=True)[1]] = True
    free = order[~first_of_class]
    held = free[: max(1, round(share * len(examples)))]
    if len(held) == 0:
        return examples, None
    in_training = torch.ones(len(examples), dtype=torch.bool)
    in_training[held] = False
    return examples.subset(in_training.nonzero()[:, 0]), examples.subset(held.sort().values)


def refuse_other_kind(examples: Examples, multilabel: bool) -> None:
    """Labels of one class each and of several at once cannot stand for one another."""
    if examples.multilabel and not multilabel:
        raise DataError("the labels are of several classes at once; expected one class for each row.")
    if multilabel and not examples.multilabel:
        raise DataError(
            "the labels are of one class for each row; expected several classes at once: a matrix with a column for "
            "each class, lists of classes, or data.columns.indicators."
        )


def check_trainable(examples: Examples) -> None:
    """Refuse what cannot be learned from before the first epoch."""
    if len(examples) < 2:
        raise DataError(f"there are {len(examples)} training examples; expected at least 2.")
    if examples.num_classes < 2 and not examples.multilabel:
        raise DataError(f"the only class is {examples.classes[0]!r}; expected at least two classes to tell apart.")
    refuse_alike_classes(examples.classes)
    refuse_empty_classes(examples.given_labels, examples.classes)


UNKNOWN = "have no known label and teach nothing"


def warn_of_unknown_rows(examples: Examples) -> None:
    """A row of which no class is known takes part in no loss and no update."""
    unknown = int(examples.given_labels.isnan().all(dim=1).sum()) if examples.multilabel else 0
    if unknown:
        warnings.warn(
            f"{unknown:,} of {len(examples):,} training rows {UNKNOWN}; label them or leave them out", stacklevel=2
        )
