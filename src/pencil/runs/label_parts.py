"""The label table of a run on many ranks: each rank writes its own rows, in chunks."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from pencil.data.examples import Splits
from pencil.labels.rows import rows_at_a_time
from pencil.runs.label_columns import PROBS, TOP
from pencil.runs.label_files import ROW
from pencil.runs.results import (
    label_columns_of,
    other_parts,
    row_evidence,
    table_order,
    unlabelled_columns,
    with_classes,
)
from pencil.training import Outcome


def build_label_parts(
    splits: Splits, outcome: Outcome, order: Any, rank: int, size: int, top_k: int | None
) -> Iterator[pa.Table]:
    """Yield the rows of this rank in chunks, with their index in the whole table in the column ``row``.

    The rank writes the training rows whose results it holds. All ranks hold the results of held-out and unlabelled
    rows, so each rank writes every ``size``-th of them. ``order`` are the keys of all rows, which place unlabelled
    rows among the others; ``top_k`` keeps this many classes of each distribution.
    """
    train, others = splits.train, other_parts(splits, outcome.validation_probs, outcome.unlabelled_probs)
    unlabelled = splits.unlabelled if outcome.unlabelled_probs is not None else None
    places = table_order([train, *others], unlabelled, order)
    row_of = np.arange(len(train) + sum(map(len, others))) if places is None else np.argsort(places)
    like: pa.Schema = None

    def finished(columns: pa.Table, probs: Tensor, at: Tensor) -> pa.Table:
        nonlocal like
        like = like or columns.schema
        columns = columns if top_k is None else _with_top(columns, probs, top_k)
        return with_classes(columns.append_column(ROW, pa.array(row_of[at.numpy()])), train.classes)

    of_train, held_out = row_evidence(outcome)
    for rows in outcome.train_rows():
        evidence = replace(of_train.subset(rows.places), dynamics=rows.dynamics)
        columns = label_columns_of(train.subset(rows.places), rows.label_probs, "train", evidence)
        yield finished(columns, rows.label_probs, rows.places)
    start, outliers = len(train), outcome.outlier_scores
    for part in others:
        probs = outcome.unlabelled_probs if part is unlabelled else outcome.validation_probs
        assert probs is not None
        for chunk in torch.arange(rank, len(part), size).split(rows_at_a_time(part.num_classes)):
            chosen = part.subset(chunk)
            if part is unlabelled:
                outlying = outliers["unlabelled"][chunk] if outliers else None
                columns = unlabelled_columns(chosen, probs[chunk], like, outlying)
            else:
                evidence_of = None if held_out is None else held_out.subset(chunk)
                columns = label_columns_of(chosen, probs[chunk], "validation", evidence_of)
            yield finished(columns, probs[chunk], start + chunk)
        start += len(part)


def _with_top(columns: pa.Table, probs: Tensor, k: int) -> pa.Table:
    """Return the columns with distributions replaced by the ``k`` most probable classes and their probabilities."""
    top = probs.float().topk(min(k, probs.shape[1]), dim=1)
    columns = columns.drop_columns([PROBS])
    for name, values in zip(TOP, (top.indices.int(), top.values), strict=True):
        flat = pa.array(values.contiguous().view(-1).numpy())
        columns = columns.append_column(name, pa.FixedSizeListArray.from_arrays(flat, values.shape[1]))
    return columns
