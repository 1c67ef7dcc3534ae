"""PENCIL as a scikit-learn classifier."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import nn

from pencil.job import fit
from pencil.methods import Method


class PencilClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier for labels that may be wrong.

    After ``fit``, ``labels_`` holds the corrected label of every training row, ``label_distributions_`` the probability
    of each class, and ``run_`` the whole run (metrics, summary, network). Vectors and uint8 images are normalised.

    Parameters
    ----------
    model : str or nn.Module
        A backbone by name ("auto": an MLP for vectors, a small CNN for uint8 images) or your own network.
    method : str or Method
        Any method of pencil by name, or an instance.
    epochs, batch_size : int
        The training budget.
    validation : float
        Share of rows held out to watch training; they count as noisy like all others.
    settings : dict or None
        Further recipe keys, such as ``{"method.step": 4.0}``.
    random_state : int, RandomState or None
        Seed of weights, split and order.
    """

    def __init__(
        self,
        model: str | nn.Module = "auto",
        *,
        method: str | Method = "pencil",
        epochs: int = 60,
        batch_size: int = 64,
        validation: float = 0.0,
        settings: Mapping[str, Any] | None = None,
        random_state: int | np.random.RandomState | None = 0,
    ):
        self.model = model
        self.method = method
        self.epochs = epochs
        self.batch_size = batch_size
        self.validation = validation
        self.settings = settings
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> "PencilClassifier":  # noqa: N803 - scikit-learn's names
        X, y = validate_data(self, X, y, dtype=(np.float32, np.uint8), allow_nd=True)  # noqa: N806
        check_classification_targets(y)
        self.classes_, given = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"the labels name 1 class ({self.classes_[0]!r}); expected at least two classes.")
        seed = self.random_state
        if not isinstance(seed, (int, np.integer)):
            seed = int(check_random_state(seed).randint(2**31))
        settings = {"training.batch_size": self.batch_size, "data.validation": self.validation}
        self.run_ = fit(
            self.model,
            (X, given),
            method=self.method,
            classes=[str(name) for name in self.classes_],
            epochs=self.epochs,
            seed=int(seed),
            settings={**settings, **(self.settings or {})},
            progress=False,
        )
        distribution = self.run_.labels["distribution"].combine_chunks()
        self.label_distributions_ = distribution.flatten().to_numpy().reshape(len(given), -1)
        self.labels_ = self.classes_[self.label_distributions_.argmax(axis=1)]
        return self

    def predict_proba(self, X: Any) -> np.ndarray:  # noqa: N803
        check_is_fitted(self)
        X = validate_data(self, X, dtype=(np.float32, np.uint8), allow_nd=True, reset=False)  # noqa: N806
        probs: np.ndarray = self.run_.predict_probs(X).numpy()
        return probs

    def predict(self, X: Any) -> np.ndarray:  # noqa: N803
        best = self.predict_proba(X).argmax(axis=1)
        labels: np.ndarray = self.classes_[best]
        return labels
