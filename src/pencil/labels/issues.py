"""Finding wrong labels from a user's out-of-sample probabilities, following cleanlab's conventions."""

from collections.abc import Sequence
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
from pencil.labels.noise_model import fit_noise, log_rarity, noise_shape, posterior


@dataclass(frozen=True)
class Issues:
    """The result for each row.

    Attributes
    ----------
    issue_score
        Probability that the given label is wrong.
    is_label_issue
        Whether another class is more probable than the given one.
    label_quality
        ``1 - issue_score``: a low value is an issue, as in cleanlab.
    given_label, predicted_label
        The given class, and the most probable class.
    noise_rate
        Estimated fraction of wrong labels, based on the probabilities.
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
    logits = probs.clamp_min(1e-12).log()
    noise = fit_noise(logits, hard, noise_shape(logits, hard))
    found = posterior(logits, hard, noise, rarity=log_rarity(hard, probs.shape[1])).exp()
    predicted = found.argmax(dim=1)
    return Issues(
        issue_score=(1 - found.gather(1, hard[:, None])[:, 0]).numpy(),
        is_label_issue=(predicted != hard).numpy(),
        given_label=hard.numpy(),
        predicted_label=predicted.numpy(),
        noise_rate=noise.rate,
        classes=names,
        index=next((one.index for one in (labels, pred_probs) if is_pandas(one)), None),
    )


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
        return hard_labels(as_given_labels(values)[0])
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
    if not bool(probs.isfinite().all()) or bool((probs < 0).any()):
        raise DataError("pred_probs contain NaN, infinity or negative values; expected probabilities; check the model.")
    if int(hard.max()) >= probs.shape[1]:
        raise DataError(
            f"labels have class {int(hard.max())}, but pred_probs have {probs.shape[1]} columns; expected one column "
            "per class; pass probabilities of all classes."
        )
