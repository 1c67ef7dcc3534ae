"""Finding wrong labels from out-of-sample probabilities that a user brings, in the conventions of cleanlab."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pencil.data.given import as_given_labels, hard_labels
from pencil.errors import DataError
from pencil.labels.noise_model import fit_noise, log_rarity, noise_shape, posterior


@dataclass(frozen=True)
class Issues:
    """What was found about each row.

    Attributes
    ----------
    issue_score
        Probability that the given label is wrong.
    is_label_issue
        Whether another class is more probable than the given one.
    label_quality
        ``1 - issue_score``: a low one is an issue, as in cleanlab.
    given_label, predicted_label
        The given class, and the most probable one.
    noise_rate
        Estimated fraction of wrong labels, as far as the probabilities show it.
    """

    issue_score: NDArray[np.float64]
    is_label_issue: NDArray[np.bool_]
    given_label: NDArray[np.int64]
    predicted_label: NDArray[np.int64]
    noise_rate: float

    @property
    def label_quality(self) -> NDArray[np.float64]:
        """Probability that the given label is right."""
        return 1 - self.issue_score

    @property
    def ranked(self) -> NDArray[np.int64]:
        """Row numbers, the most probable issue first."""
        return np.argsort(-self.issue_score, kind="stable")


def find_issues(labels: Any, pred_probs: Any) -> Issues:
    """Return which labels are probably wrong, given probabilities by a model that was not trained on the same rows.

    Parameters
    ----------
    labels
        Class indices, (rows,).
    pred_probs
        Out-of-sample probabilities, for example of cross-validation, (rows, classes).

    Raises
    ------
    DataError
        If the two do not fit together, or probabilities are not finite or negative.

    Examples
    --------
    >>> import numpy as np
    >>> probs = np.full((60, 3), 0.02) + 0.94 * np.eye(3)[np.arange(60) % 3]
    >>> labels = np.arange(60) % 3
    >>> labels[7] = 0
    >>> int(find_issues(labels, probs).ranked[0])
    7
    """
    given, _ = as_given_labels(labels)
    probs = torch.as_tensor(np.asarray(pred_probs, dtype=np.float64))
    if probs.ndim != 2 or len(probs) != len(given):
        raise DataError(
            f"pred_probs have shape {tuple(probs.shape)}; expected ({len(given)}, classes), one row for each label; "
            "pass out-of-sample probabilities of the same rows."
        )
    if not bool(probs.isfinite().all()) or bool((probs < 0).any()):
        raise DataError("pred_probs hold NaN, infinity or negative numbers; expected probabilities; check the model.")
    hard = hard_labels(given)
    if int(hard.max()) >= probs.shape[1]:
        raise DataError(
            f"labels name class {int(hard.max())} and pred_probs have {probs.shape[1]} columns; expected a column for "
            "each class; predict all classes."
        )
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
    )
