"""Examples: rows of inputs with their given labels. Clean labels, where known, are only used for metrics."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from pencil.data.columns import ColumnUses
from pencil.data.given.given_labels import hard_labels, refuse_alike_classes, refuse_empty_classes
from pencil.data.given.votes import Votes
from pencil.data.inputs.augment import View
from pencil.data.inputs.base import Inputs
from pencil.errors import DataError, DataWarning, setting, warn
from pencil.seeding import generator
from pencil.terminal import agreed


@dataclass(frozen=True)
class Batch:
    """Some rows of the training set, as a method sees them; clean labels are not part of it.

    Parameters
    ----------
    rows
        Positions in the training set.
    inputs
        Transformed inputs (batch, ...).
    given_labels
        Class indices (batch,) or probabilities (batch, classes).
    second_inputs
        A second view of the same rows, if a method asks for one and it differs from the first.
    """

    rows: Tensor
    inputs: Tensor
    given_labels: Tensor
    second_inputs: Tensor | None = None


@dataclass(frozen=True)
class Examples:
    """A selection of rows from some inputs, with given labels, stable keys and class names.

    Parameters
    ----------
    inputs
        Where the inputs are read from; subsets share it.
    rows
        Rows of ``inputs``, one per example.
    given_labels
        Class indices (n,), label distributions (n, classes), or multi-label probabilities (n, classes).
    classes
        Class names in order.
    keys
        A stable name for each example.
    clean_labels
        Labels known to be right, only for metrics.
    multilabel
        Whether an example may have several classes.
    pinned
        True for examples whose label a person has reviewed; such a label never moves.
    weights
        Factor of each example's loss in training, 1 on average; None for 1 everywhere.
    table
        The use of each column of the table that the rows come from; None for other data.
    votes
        The annotators' votes for all rows of the source, by key, if the labels come from several annotators; subsets
        share them.
    """

    inputs: Inputs
    rows: Tensor
    given_labels: Tensor
    classes: tuple[str, ...]
    keys: np.ndarray
    clean_labels: Tensor | None = None
    multilabel: bool = False
    pinned: Tensor | None = None
    weights: Tensor | None = None
    table: ColumnUses | None = None
    votes: Votes | None = None

    def __post_init__(self) -> None:
        parts: dict[str, Tensor | np.ndarray | None] = {"labels": self.given_labels, "keys": self.keys}
        parts |= {"clean labels": self.clean_labels, "marks of pinned rows": self.pinned, "weights": self.weights}
        for name, values in parts.items():
            if values is not None and len(values) != len(self.rows):
                raise DataError(
                    f"there are {len(self.rows)} inputs but {len(values)} {name}; expected one per input; "
                    "pass arrays of equal length."
                )

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.classes)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input, as a network sees it."""
        known = self.inputs.shape
        return tuple(self.some_inputs(1).shape[1:]) if known is None else known

    def some_inputs(self, count: int) -> Tensor:
        """Read the first readable inputs, at most ``count``, as a network sees them in evaluation.

        They are read in this process, because starting workers takes longer than reading a few inputs.
        """
        inputs = self.inputs.in_process()
        for chunks in (self.rows[:64].split(count), self.rows[64:].split(64)):  # usually the first chunk is enough
            for values, _ in inputs.batches(chunks):
                if len(values):
                    return values[:count]
        raise DataError(
            f"none of the {len(self)} inputs can be read; expected at least one; run `pencil check` for the reasons."
        )

    def subset(self, chosen: Tensor) -> "Examples":
        """Return only these positions; inputs are shared, never copied."""
        return replace(
            self,
            rows=self.rows[chosen],
            given_labels=self.given_labels[chosen],
            keys=self.keys[chosen.numpy()],
            clean_labels=None if self.clean_labels is None else self.clean_labels[chosen],
            pinned=None if self.pinned is None else self.pinned[chosen],
            weights=None if self.weights is None else self.weights[chosen],
        )

    def batches(self, batch_size: int, *, order: Tensor | None = None, view: View | None = None) -> Iterator[Batch]:
        """Yield batches of this size in the given order of positions (by default all positions in order)."""
        return self.load_batches(
            split_into_batches(torch.arange(len(self)) if order is None else order, batch_size), view
        )

    def load_batches(self, chunks: Sequence[Tensor], view: View | None = None) -> Iterator[Batch]:
        """Yield a batch for each chunk of positions, without unreadable rows."""
        inputs = self.inputs.batches([self.rows[chunk] for chunk in chunks if len(chunk)], view)
        for chunk in chunks:
            if len(chunk) == 0:
                yield Batch(chunk, torch.empty(0, *self.input_shape), self.given_labels[chunk])
                continue
            values, readable = next(inputs)
            kept = chunk if readable is None else chunk[readable]
            yield Batch(kept, values, self.given_labels[kept])

    def fingerprint(self) -> str:
        """Return a digest of keys, given labels and weights; equal for the same rows in the same order."""
        digest = hashlib.sha256("\0".join(self.classes).encode())
        for start in range(0, len(self), 65536):  # never all keys at once as Python strings
            digest.update("".join(f"\0{key}" for key in self.keys[start : start + 65536]).encode())
        digest.update(self.given_labels.numpy().tobytes())
        if self.weights is not None:
            digest.update(self.weights.numpy().tobytes())
        return digest.hexdigest()


def fingerprints(parts: Mapping[str, "Examples | None"], *, content: bool = False) -> dict[str, str]:
    """Return a digest of keys and labels of each split (by its name), and a digest of its inputs if available.

    ``content`` reads the bytes of files; otherwise their size and modification time are used.
    """
    found: dict[str, str] = {}
    for name, part in parts.items():
        if part is not None:
            found[name] = part.fingerprint()
            inputs = part.inputs.fingerprint(part.rows, content=content)
            if inputs is not None:
                found[f"{name} inputs"] = inputs
    return found


def split_into_batches(order: Tensor, batch_size: int) -> list[Tensor]:
    """Split positions into batches; a single leftover row joins the last batch: batch statistics need two rows."""
    chunks = list(order.split(batch_size))
    if len(chunks) > 1 and len(chunks[-1]) == 1:
        chunks[-2:] = [torch.cat(chunks[-2:])]
    return chunks


@dataclass(frozen=True)
class Splits:
    """The training set, the (noisy) validation set that selects the best epoch, the test set, and unlabelled rows.

    Unlabelled rows come from the source of the training rows and share its ``inputs``. They are not used in training or
    evaluation; the trained network labels them.
    """

    train: Examples
    validation: Examples | None = None
    test: Examples | None = None
    unlabelled: Examples | None = None

    def sizes(self) -> dict[str, int]:
        """Return the number of examples of each existing split."""
        return {name: len(part) for name, part in vars(self).items() if part is not None}


def hold_out(
    examples: Examples, fraction: float, seed: int, keys: np.ndarray | None = None
) -> tuple[Examples, Examples | None]:
    """Hold out a fraction of the rows for validation, or the rows with these keys; every class keeps a training row.

    With fewer than ten rows, or one per class, there is no validation split (None).
    """
    if keys is not None:
        chosen = torch.from_numpy(np.isin(examples.keys, keys))
        return examples.subset(torch.where(~chosen)[0]), examples.subset(
            torch.where(chosen)[0]
        ) if chosen.any() else None
    if not 0 <= fraction < 1:
        raise DataError(
            f"the validation fraction is {fraction}; expected a value from 0 (none) to below 1; set it with "
            f"{setting('data.validation', 0.1)}."
        )
    if fraction == 0 or len(examples) < 10:
        return examples, None
    order = torch.randperm(len(examples), generator=generator(seed, "validation"))
    given = examples.given_labels[order].numpy()
    first_of_class = torch.zeros(len(order), dtype=torch.bool)
    if examples.multilabel:
        first_of_class[(given > 0.5).argmax(axis=0)] = True
    else:  # a rare class must not disappear from training
        first_of_class[np.unique(hard_labels(torch.from_numpy(given)).numpy(), return_index=True)[1]] = True
    free = order[~first_of_class]
    held = free[: max(1, round(fraction * len(examples)))]
    if len(held) == 0:
        return examples, None
    in_training = torch.ones(len(examples), dtype=torch.bool)
    in_training[held] = False
    return examples.subset(in_training.nonzero()[:, 0]), examples.subset(held.sort().values)


def refuse_other_kind(examples: Examples, multilabel: bool) -> None:
    """Raise if single-label labels are expected and these are multi-label, or vice versa."""
    if examples.multilabel and not multilabel:
        raise DataError(
            "the labels are multi-label; expected single-label data, one class for each row; pass one class per row."
        )
    if multilabel and not examples.multilabel:
        raise DataError(
            "the labels are single-label; expected multi-label data: a matrix with a column for each class, lists of "
            "classes, or data.columns.indicators; pass the labels in one of these forms."
        )


def check_trainable(examples: Examples) -> None:
    """Raise, before the first epoch, if nothing can be learned from these examples."""
    if len(examples) < 2:
        raise DataError(f"there are {len(examples)} training examples; expected at least 2; add more.")
    if examples.num_classes < 2 and not examples.multilabel:
        raise DataError(
            f"the only class is {examples.classes[0]!r}; expected at least two classes; add examples of another class."
        )
    refuse_alike_classes(examples.classes)
    refuse_empty_classes(examples.given_labels, examples.classes)


FEW_CLASSES, ROWS_PER_CLASS = 10, 4
"""With more classes than this, and fewer rows per class on average, labels look like numbers or ids: of three rows in a
class one is held out, and the other two cannot show which of them is wrong. (Columns of strings are judged alike.)"""


def warn_of_many_classes(examples: Examples) -> None:
    """Warn if labels look like numbers or ids, because few rows share a label."""
    if examples.multilabel:
        return
    classes, rows = len(hard_labels(examples.given_labels).unique()), len(examples)
    if classes <= FEW_CLASSES or rows >= ROWS_PER_CLASS * classes:
        return
    names = () if examples.table is None else examples.table.of("label")
    column = f" in column {names[0]!r}" if len(names) == 1 else ""
    other = "" if examples.table is None else f"name another column with {setting('data.columns.label', 'NAME')}, or "
    warn(
        f"the labels{column} have {classes:,} classes in {rows:,} rows, {rows / classes:.1f} rows per class; they look "
        f"like numbers or ids, not classes; {other}group the values into fewer classes",
        DataWarning,
    )


UNKNOWN = "no known labels"
"""Part of the warning of :func:`warn_of_unknown_rows`, by which it is filtered."""


def warn_of_unknown_rows(examples: Examples) -> None:
    """Warn about multi-label rows without any known class; they are excluded from losses and updates."""
    unknown = int(examples.given_labels.isnan().all(dim=1).sum()) if examples.multilabel else 0
    if unknown:
        have, are, them = (agreed(unknown, *words) for words in (("has", "have"), ("is", "are"), ("it", "them")))
        warn(
            f"{unknown:,} of {len(examples):,} training rows {have} {UNKNOWN} and {are} ignored in training; label "
            f"{them} or remove {them}",
            DataWarning,
        )
