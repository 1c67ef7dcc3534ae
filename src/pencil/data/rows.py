"""The waist of the data: every source returns :class:`Rows`, and :func:`to_splits` makes labelled examples of them."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import torch

from pencil.data.bad_rows import BadRows, OnBadRows
from pencil.data.columns import ColumnUses
from pencil.data.examples import Examples, Splits
from pencil.data.given.from_columns import LabelCells, read_cells
from pencil.data.given.given_labels import error_context
from pencil.data.inputs.base import Inputs
from pencil.data.keys import refuse_repeated_keys
from pencil.errors import DataError, explained

SPLIT_NAMES = {
    "train": "train", "training": "train", "val": "validation", "valid": "validation", "validation": "validation",
    "dev": "validation", "test": "test", "testing": "test",
}  # fmt: skip
"""Names of splits, in columns, folders and files, and the splits they stand for."""


@dataclass(frozen=True)
class Rows:
    """The rows of a source, before labels are classes and before bad rows are refused or skipped.

    Parameters
    ----------
    inputs
        Where the inputs are read from, one for each row.
    labels
        The labels as the source holds them; None for new inputs without labels.
    keys
        A stable name for each row.
    splits
        The split of each row: "train", "validation" or "test"; None if all are training rows.
    bad
        The bad rows found so far; it names the source, and numbers its rows, in messages.
    table
        The use of each column of the table that the rows come from; None for other data.
    others
        Validation and test rows that the source stores apart from the training rows, with inputs of their own.
    """

    inputs: Inputs
    labels: LabelCells | None
    keys: np.ndarray
    splits: np.ndarray | None = None
    bad: BadRows = field(default_factory=lambda: BadRows("the data"))
    table: ColumnUses | None = None
    others: Mapping[str, "Rows"] = field(default_factory=dict)

    def __post_init__(self) -> None:
        count = len(self.inputs)
        if len(self.keys) != count:
            raise DataError(
                f"there are {count} inputs but {len(self.keys)} keys; expected one per input; pass arrays of equal "
                "length."
            )
        if self.labels is not None and self.labels.count != count:
            raise DataError(
                f"x has {count} rows but y has {self.labels.count}; expected one label per row; pass arrays of equal "
                "length."
            )


def to_splits(rows: Rows, on_bad_rows: OnBadRows = "error") -> Splits:
    """Return the splits of labelled rows: labels become classes here, whatever the source."""
    splits = _to_splits(rows, on_bad_rows)
    found = {}
    for name, part in rows.others.items():
        assert part.labels is not None
        labels = replace(part.labels, classes=splits.train.classes, multilabel=splits.train.multilabel)
        with error_context(f"the {name} set"):
            found[name] = _to_splits(replace(part, labels=labels), on_bad_rows).train
    return replace(splits, **found)


def _to_splits(rows: Rows, on_bad_rows: OnBadRows) -> Splits:
    assert rows.labels is not None
    with arrow_errors(rows.bad.where):
        labels, clean = read_cells(rows.labels, rows.keys, rows.bad)
    places = torch.arange(len(rows.inputs))
    every = Examples(
        rows.inputs,
        places,
        labels.given,
        labels.classes,
        rows.keys,
        clean,
        labels.multilabel,
        table=rows.table,
        votes=labels.votes,
    )
    splits, kept = rows.splits, rows.bad.settle(on_bad_rows, rows.keys)
    if kept is not None:
        every, splits = every.subset(torch.from_numpy(kept)), None if splits is None else splits[kept]
    refuse_repeated_keys(every.keys)
    if splits is None:
        return Splits(every)
    parts = {name: torch.from_numpy(np.flatnonzero(splits == name)) for name in ("train", "validation", "test")}
    if not len(parts["train"]):
        raise DataError(f"{rows.bad.where} has no training rows; expected at least one; fix the split column.")
    return Splits(**{name: every.subset(part) for name, part in parts.items() if len(part)})


def arrow_errors(where: str) -> AbstractContextManager[None]:
    """Convert the error of a cast that a damaged or wrongly encoded column does not allow into a :class:`DataError`."""
    advice = (
        "expected labels, keys and splits as text or numbers, labels also as lists, and text in UTF-8; convert the "
        "columns, or set others with data.columns"
    )
    return explained(DataError, f"cannot read {where}", advice, pa.ArrowException)
