"""Finding wrong labels from a user's out-of-sample probabilities, following cleanlab's conventions.

Labels are ranked by the log-odds of the best other class, suspects and noise rate follow from confident counts
(:mod:`pencil.labels.suspects`). A fitted noise model is not used: it explains errors that follow the inputs, as
people's errors do, as truth. ``benchmarks/find_issues.py`` compares the result with cleanlab.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from pencil.data.given.given_labels import (
    as_array,
    as_class_names,
    as_given_labels,
    hard_labels,
    lacks_label,
    name_rows,
)
from pencil.data.given.resolving import resolve_labels
from pencil.data.sources.frames import as_label_values, as_matrix, as_table, is_frame, is_pandas, refuse_misaligned
from pencil.errors import DataError
from pencil.labels.rows import row_blocks
from pencil.labels.suspects import confident_joint, confident_rate

FLOOR = 1e-12
"""Smallest probability: the logarithm of a smaller one is not meaningful in single precision."""
OTHER = 0.5
"""Weight of the best other class against the given class.

With 0 (self-confidence) confusions of a pair of classes rank too low, with 1 random errors do. Mean average precision
on 25 columns of logistic regression: 0.749 with 0, 0.754 with 0.5, 0.755 with 1, but lower than with 0 in 0, 3 and 6 of
them."""
FEW = 5.0
"""Labels added to the counts of both directions of a pair: fewer show no direction."""
SATURATED, BISECTIONS = 36.0, 60
"""Log-odds from which a probability is 1 in double precision; halvings that reach that precision."""


@dataclass(frozen=True)
class Issues:
    """The result for each row.

    Attributes
    ----------
    issue_score
        Probability that the given label is wrong: the order of the labels to look at, with ``noise_rate`` as its mean.
    is_label_issue
        Whether the label is a suspect: another class is predicted, and the score is one of the highest. There are
        as many suspects as ``noise_rate`` expects.
    label_quality
        ``1 - issue_score``: a low value is an issue, as in cleanlab.
    given_label, predicted_label
        The given class, and the class with the highest predicted probability.
    noise_rate
        Estimated fraction of wrong labels, from confident counts (Northcutt et al. 2021). A weak model's errors are
        part of it.
    classes
        The class names, where they are known.
    index
        The index of the labels or the probabilities, if either is a pandas object.
    """

    issue_score: NDArray[np.float64]
    is_label_issue: NDArray[np.bool_]
    given_label: NDArray[np.int64]
    predicted_label: NDArray[np.int64]
    noise_rate: float
    classes: tuple[str, ...] | None = None
    index: Any = None

    def __repr__(self) -> str:
        found, rows = int(self.is_label_issue.sum()), len(self.issue_score)
        return f"Issues({found:,} of {rows:,} labels, noise rate {self.noise_rate:.1%})"

    @property
    def label_quality(self) -> NDArray[np.float64]:
        """Probability that the given label is right."""
        return 1 - self.issue_score

    @property
    def ranked(self) -> NDArray[np.int64]:
        """Row numbers, most probable issue first."""
        return np.argsort(-self.issue_score, kind="stable")

    @property
    def table(self) -> pa.Table:
        """An Arrow table of all rows in order: given and predicted class, issue_score, is_label_issue."""
        columns = {"given": self._names(self.given_label), "predicted": self._names(self.predicted_label)}
        return pa.table({**columns, "issue_score": self.issue_score, "is_label_issue": self.is_label_issue})

    def to_pandas(self) -> Any:
        """Return the table as a pandas DataFrame with the index of the labels."""
        frame = self.table.to_pandas()
        return frame if self.index is None else frame.set_index(self.index)

    def _names(self, classes: NDArray[np.int64]) -> Any:
        return classes if self.classes is None else pa.array(self.classes, pa.string()).take(pa.array(classes))


def find_issues(labels: Any, pred_probs: Any, *, classes: Sequence[str] | None = None) -> Issues:
    """Return which labels are probably wrong, given probabilities from a model that was not trained on the same rows.

    Parameters
    ----------
    labels
        Class indices, (rows,), as an array or a data frame column; or class names, if these are known.
    pred_probs
        Out-of-sample probabilities, for example from cross-validation, (rows, classes). The columns of a data frame
        name the classes.
    classes
        The class names in column order; by default, the column names of a data frame.

    Raises
    ------
    DataError
        If labels and probabilities do not match, or if probabilities are not finite or are negative.

    Examples
    --------
    >>> import numpy as np
    >>> probs = np.full((60, 3), 0.02) + 0.94 * np.eye(3)[np.arange(60) % 3]
    >>> labels = np.arange(60) % 3
    >>> labels[7] = 0
    >>> int(find_issues(labels, probs).ranked[0])
    7
    """
    refuse_misaligned(pred_probs, labels, ("pred_probs", "labels"))
    names = None if classes is None else as_class_names(classes)
    probs, columns = _as_probs(pred_probs)
    names = columns if names is None else names
    if probs.ndim == 2 and names is not None and len(names) != probs.shape[1]:
        raise DataError(
            f"there are {len(names)} classes, but pred_probs have {probs.shape[1]} columns; expected one name per "
            "column; pass `classes=` in column order."
        )
    hard = _hard_labels(labels, names)
    _refuse_misfits(hard, probs)

    def blocks() -> Iterator[tuple[Tensor, Tensor]]:
        for rows in row_blocks(*probs.shape):
            yield probs[rows], hard[rows]

    joint, predicted = confident_joint(blocks, probs.shape[1]), probs.argmax(dim=1)
    rate = _noise_rate(joint, confident_rate(blocks, probs.shape[1]), predicted != hard)
    direction = _direction(joint, hard.bincount(minlength=probs.shape[1]))
    log_odds = torch.cat([_log_odds(*block, direction) for block in blocks()])
    return Issues(
        issue_score=_as_probability(log_odds, rate).numpy(),
        is_label_issue=_suspects(log_odds, predicted != hard, rate).numpy(),
        given_label=hard.numpy(),
        predicted_label=predicted.numpy(),
        noise_rate=rate,
        classes=names,
        index=next((one.index for one in (labels, pred_probs) if is_pandas(one)), None),
    )


def _noise_rate(joint: Tensor, confident: float, differs: Tensor) -> float:
    """Return the estimated fraction of wrong labels, at most the fraction that differs from the prediction.

    Rows without a confident class count as right in ``joint``, and like the confident rows of their class in the
    confident rate. The less the predictions agree with the labels, the less such a row says about its label, so the
    estimate moves from the first count to the second by the agreement.
    """
    counted = float(joint.sum() - joint.trace()) / len(differs)
    disagreement = float(differs.double().mean())
    return min(disagreement, counted + (confident - counted) * (1 - disagreement))


def _direction(joint: Tensor, labels: Tensor) -> Tensor:
    """Return by how much labels j look like k more often than labels k look like j, as a log-ratio (j, k).

    Classes that only look alike are confused in both directions, labels that are wrong by habit in one. Between classes
    of unequal size, one direction is more frequent anyway, so the ratio counts by the smaller over the larger size.
    """
    sizes = labels.clamp_min(1).double()
    balance = torch.minimum(sizes[:, None], sizes) / torch.maximum(sizes[:, None], sizes)
    return ((joint + FEW) / (joint.T + FEW)).log() * balance


def _log_odds(probs: Tensor, given: Tensor, direction: Tensor) -> Tensor:
    """Return the weighted log-odds that another class is the right one."""
    log_probs, own = probs.clamp_min(FLOOR).log(), given[:, None]
    others = (log_probs + direction[given]).scatter(1, own, -torch.inf)
    return OTHER * others.max(dim=1).values - log_probs.gather(1, own)[:, 0]


def _suspects(log_odds: Tensor, differs: Tensor, rate: float) -> Tensor:
    """Return a mask of the highest log-odds among labels that differ from the prediction, as many as the rate."""
    order = log_odds.masked_fill(~differs, -torch.inf).argsort(descending=True, stable=True)
    return torch.zeros_like(differs).index_fill_(0, order[: round(rate * len(order))], value=True)


def _as_probability(log_odds: Tensor, rate: float) -> Tensor:
    """Return probabilities in the order of the log-odds whose mean is the rate, or half a label if the rate is 0."""
    mean = max(rate, 0.5 / len(log_odds))
    low, high = float(log_odds.min()) - SATURATED, float(log_odds.max()) + SATURATED
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if float((log_odds - middle).sigmoid().mean()) > mean else (low, middle)
    return (log_odds - high).sigmoid()


def _as_probs(pred_probs: Any) -> tuple[Tensor, tuple[str, ...] | None]:
    """Return the probabilities and their column names, if the columns have names."""
    if not is_frame(pred_probs):
        return torch.from_numpy(np.array(pred_probs, dtype=np.float64)), None
    values, names = as_matrix(
        as_table(pred_probs), "pred_probs", "the probability of each class in a column of its own"
    )
    return torch.from_numpy(values), names


def _hard_labels(labels: Any, names: tuple[str, ...] | None) -> Tensor:
    values = as_label_values(labels)[0]
    if names is None:
        if as_array(values).dtype.kind in "OSTU":
            raise DataError(
                "labels are names; expected class indices, or the names of the columns of pred_probs; pass `classes=` "
                "in column order, or pass pred_probs as a data frame."
            )
        only_first = np.ndim(values) == 1 and len(values) > 0 and not as_array(values).any()
        return hard_labels(as_given_labels(values, 2 if only_first else None)[0])  # pred_probs name the other classes
    given = resolve_labels(values, names, multilabel=False).given
    missing = lacks_label(given, multilabel=False)
    if missing.any():
        rows = missing.nonzero()[:, 0].tolist()
        raise DataError(f"label at {name_rows(rows)} is missing; expected a class; remove rows without a label.")
    return hard_labels(given)


def _refuse_misfits(hard: Tensor, probs: Tensor) -> None:
    """Raise if labels and probabilities do not match."""
    if probs.ndim != 2 or len(probs) != len(hard):
        raise DataError(
            f"pred_probs have shape {tuple(probs.shape)}; expected ({len(hard)}, classes), one row per label; "
            "pass out-of-sample probabilities of the same rows."
        )
    if probs.shape[1] < 2:
        raise DataError("pred_probs have 1 column; expected two or more; pass a column for each class.")
    if not bool(probs.isfinite().all()) or bool((probs < 0).any()):
        raise DataError("pred_probs contain NaN, infinity or negative values; expected probabilities; check the model.")
    if int(hard.max()) >= probs.shape[1]:
        raise DataError(
            f"labels have class {int(hard.max())}, but pred_probs have {probs.shape[1]} columns; expected one column "
            "per class; pass probabilities of all classes."
        )
