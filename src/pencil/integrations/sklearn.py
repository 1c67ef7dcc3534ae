"""pencil as a scikit-learn classifier."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_array, check_consistent_length, check_random_state, column_or_1d
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import nn

from pencil.data.given.given_labels import is_nan, shorten
from pencil.data.sources.frames import as_table, is_frame, needs_encoding
from pencil.fitting import fit
from pencil.methods import Method

INPUTS: dict[str, Any] = {"dtype": (np.float32, np.uint8), "allow_nd": True, "accept_sparse": ("csr", "csc", "coo")}


class PencilClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier for labels that may be wrong.

    Vectors and uint8 images are normalised. Sparse matrices are converted to dense 32-bit floats; a matrix that would
    need more than half of the memory raises an error. A data frame of numbers is treated as an array, as in other
    estimators; a data frame with text, categories, dates or missing cells is encoded as a table, and predictions need
    the same columns.

    For multi-label data (a row may have several classes), ``y`` is an indicator matrix (rows, classes); ``labels_`` and
    predictions are indicator matrices as well, and probabilities are independent per class.

    There is no ``set_output``, which scikit-learn provides only for transformers. The columns of ``predict_proba`` are
    in the order of ``classes_``.

    Parameters
    ----------
    model : str or nn.Module
        A backbone name ("auto": an MLP for vectors, a small CNN for uint8 images) or a network.
    method : str or Method
        A method name or instance.
    epochs, batch_size : int
        The training budget.
    validation : float or None
        Fraction of rows to hold out; their labels are as noisy as the others and are used to choose settings. None: a
        tenth, or more for very few rows.
    settings : dict or None
        Further recipe keys, such as ``{"method.lr": 0.05}``.
    multilabel : bool or None
        Whether the data is multi-label. None: True if ``y`` is a matrix of 0 and 1. True: ``y`` may also contain
        probabilities, and NaN for unknown labels.
    random_state : int or RandomState or None
        Seed of weights, split and order.

    Attributes
    ----------
    classes_ : ndarray
        The classes, or the column numbers of a multi-label ``y``.
    labels_ : ndarray
        The corrected label of every training row.
    label_distributions_ : ndarray
        The probability of each class for every training row, (rows, classes).
    n_features_in_, feature_names_in_ : int, ndarray
        The number of columns, and the column names of a data frame.
    run_ : Run
        The whole run: network, label table, metrics and summary.
    """

    def __init__(
        self,
        model: str | nn.Module = "auto",
        *,
        method: str | Method = "auto",
        epochs: int = 60,
        batch_size: int = 64,
        validation: float | None = None,
        settings: Mapping[str, Any] | None = None,
        multilabel: bool | None = None,
        random_state: int | np.random.RandomState | None = 0,
    ):
        self.model = model
        self.method = method
        self.epochs = epochs
        self.batch_size = batch_size
        self.validation = validation
        self.settings = settings
        self.multilabel = multilabel
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        tags.input_tags.sparse = True
        return tags

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "PencilClassifier":  # noqa: N803 - scikit-learn's names
        """Train on inputs ``X`` and labels ``y`` that may be wrong.

        A row whose label is None, NaN, ``pandas.NA`` or empty text is unlabelled: it is not used for training, and
        ``labels_`` contains the network's prediction.

        ``sample_weight`` multiplies the loss of each row in training; noise estimates ignore the weights.
        """
        y, missing = (y, None) if self.multilabel else _fill_missing(y)
        X, y = self._validated(X, y)  # noqa: N806
        if sample_weight is not None:
            sample_weight = _check_sample_weight(sample_weight, y, dtype=np.float64)
        multilabel = y.ndim == 2
        if multilabel:
            self.classes_, given = np.arange(y.shape[1]), y
        else:
            check_classification_targets(y)
            self.classes_, places = np.unique(y, return_inverse=True)
            given = np.array([str(name) for name in self.classes_], dtype=object)[places]
            if missing is not None:
                given[missing] = None
            if len(self.classes_) < 2:
                raise ValueError(f"y has 1 class ({self.classes_[0]!r}); expected at least two classes.")
        seed = self.random_state
        if not isinstance(seed, (int, np.integer)):
            seed = int(check_random_state(seed).randint(2**31))
        settings = {"training.batch_size": self.batch_size, "data.validation": self.validation}
        self.run_ = fit(
            self.model,
            (X, given),
            method=self.method,
            classes=[str(name) for name in self.classes_],
            sample_weight=sample_weight,
            multilabel=multilabel,
            epochs=self.epochs,
            seed=int(seed),
            settings={**settings, **(self.settings or {})},
            progress=False,
        )
        self.label_distributions_ = self.run_.labels.probs
        self.labels_ = self._to_labels(self.label_distributions_)
        return self

    def predict_proba(self, X: Any) -> np.ndarray:  # noqa: N803
        """Return the probability of each class, (rows, classes), in the order of ``classes_``."""
        check_is_fitted(self)
        X = self._inputs(X, reset=False)  # noqa: N806
        probs: np.ndarray = self.run_.predict_probs(X).numpy()
        return probs

    def predict(self, X: Any) -> np.ndarray:  # noqa: N803
        """Return the most probable class of each row, or an indicator matrix for multi-label data."""
        return self._to_labels(self.predict_proba(X))

    def _to_labels(self, probs: np.ndarray) -> np.ndarray:
        """Return the most probable class, or for multi-label data 1 for each class whose probability exceeds 0.5."""
        labels: np.ndarray = self.classes_[probs.argmax(axis=1)] if not self.run_.multilabel else (probs > 0.5) * 1
        return labels

    def _inputs(self, X: Any, *, reset: bool) -> Any:  # noqa: N803
        """Return checked inputs: an array, a sparse matrix, or a table without its index.

        ``reset`` is set in training: column names are stored, and the cells decide whether a data frame is a table.
        Later it is a table if the network was trained on one.
        """
        encoder = None if reset else self.run_.encoder
        if is_frame(X):
            table = as_table(X)
            if needs_encoding(table) if reset else encoder is not None:
                validate_data(self, X, skip_check_array=True, reset=reset)
                return table
        elif encoder is not None:
            raise ValueError(
                f"X is a {type(X).__name__}; expected a data frame with the training columns "
                f"{shorten(encoder.columns)}; pass one."
            )
        return validate_data(self, X, **INPUTS, reset=reset)

    def _validated(self, X: Any, y: Any) -> tuple[Any, Any]:  # noqa: N803
        """Return checked inputs, and labels as a vector, or as a matrix for multi-label data."""
        if self.multilabel:
            X = self._inputs(X, reset=True)  # noqa: N806
            y = check_array(y, accept_sparse=True, dtype=np.float32, ensure_all_finite="allow-nan", input_name="y")
        elif is_frame(X):
            X = self._inputs(X, reset=True)  # noqa: N806
            y = check_array(y, accept_sparse=True, dtype=None, ensure_2d=False, input_name="y")
        else:
            X, y = validate_data(self, X, y, multi_output=True, **INPUTS)  # noqa: N806
        check_consistent_length(X, y)
        y = y.toarray() if hasattr(y, "toarray") else y  # a sparse matrix
        if y.ndim == 1 or self.multilabel:
            return X, y
        if y.shape[1] == 1:
            return X, column_or_1d(y, warn=True)
        kind = type_of_target(y, input_name="y")
        if kind != "multilabel-indicator" or self.multilabel is False:
            raise ValueError(
                f"y is a {kind} matrix of shape {y.shape} and multilabel is {self.multilabel}; expected one label "
                "per row, or a matrix of 0 and 1; pass multilabel=True for probabilities or NaN."
            )
        return X, y


def _fill_missing(y: Any) -> tuple[Any, np.ndarray | None]:
    """Return labels with missing ones filled in, and the mask of missing labels; None if none are missing.

    Labels of a nullable or categorical type become an array of their values. Anything else is returned unchanged.
    """
    is_plain = isinstance(getattr(y, "dtype", None), np.dtype)
    values = np.asarray(y) if is_plain and not hasattr(y, "toarray") else _as_objects(y)
    if values is None or values.ndim != 1 or values.dtype.kind not in "Of" or not len(values):
        return y, None
    missing = np.array([_is_missing(label) for label in values], dtype=bool)
    if missing.all():
        raise ValueError(f"none of the {len(missing)} rows has a label; expected labels for some rows; label them.")
    if values.dtype == object:
        kinds = {type(label) for label in values[~missing]}
        values = values if len(kinds) > 1 else np.array(_filled(values, missing).tolist())
    return _filled(values, missing), missing if missing.any() else None


def _as_objects(y: Any) -> np.ndarray | None:
    """Return a list of labels, or a column of a nullable or categorical type, as objects; None for anything else."""
    if isinstance(y, (list, tuple)):
        return None if any(isinstance(label, (list, tuple, np.ndarray)) for label in y) else np.array(y, dtype=object)
    return np.asarray(y.astype(object)) if hasattr(y, "isna") and hasattr(y, "dtype") else None


def _filled(values: np.ndarray, missing: np.ndarray) -> np.ndarray:
    return np.where(missing, values[missing.argmin()], values)


def _is_missing(label: Any) -> bool:
    """Return whether a label is None, NaN, ``pandas.NA`` (which need not be installed) or empty text."""
    if isinstance(label, str):
        return not label.strip()
    return label is None or is_nan(label) or type(label).__name__ in ("NAType", "NaTType")
