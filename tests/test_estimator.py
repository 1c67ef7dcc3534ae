import pickle

import numpy as np
import pandas as pd
import polars as pl
import pytest
from scipy.sparse import csr_matrix
from sklearn.base import clone
from sklearn.datasets import load_digits, load_wine
from sklearn.model_selection import cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import nn

from pencil import PencilClassifier
from pencil.data import noise
from pencil.methods import CrossEntropy

pytestmark = pytest.mark.filterwarnings("ignore:auto (cannot|needs):UserWarning")  # tested in test_auto.py


REASON = "rows of weight 0 still take part in the split, the batches and the estimate of the noise"
NOT_EQUIVALENT = {f"check_sample_weight_equivalence_on_{kind}_data": REASON for kind in ("dense", "sparse")}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@parametrize_with_checks([PencilClassifier(epochs=12)], expected_failed_checks=lambda _: NOT_EQUIVALENT)
def test_scikit_learns_own_checks(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def wine():
    x, clean = load_wine(return_X_y=True)
    noisy = noise.flip(clean, noise.symmetric_matrix(3, 0.3), seed=0)
    names = np.array(["barolo", "grignolino", "barbera"])
    return x, names[clean], names[noisy.labels]


def test_string_labels_are_corrected(wine):
    x, clean, given = wine
    classifier = PencilClassifier().fit(x, given)
    assert set(classifier.classes_) == {"barolo", "grignolino", "barbera"}
    assert (given == clean).mean() < 0.85 < 0.9 < (classifier.labels_ == clean).mean()
    assert classifier.label_distributions_.shape == (178, 3)
    assert classifier.score(x, clean) > 0.9
    again = pickle.loads(pickle.dumps(classifier))
    assert (again.predict(x) == classifier.predict(x)).all()


def test_pipeline_cross_validation_and_clone(wine):
    x, clean, given = wine
    pipeline = make_pipeline(StandardScaler(), PencilClassifier())
    predicted = cross_val_predict(clone(pipeline), x, given, cv=3)
    assert (predicted == clean).mean() > 0.85


def test_images_own_network_and_other_methods():
    x, y = load_digits(return_X_y=True)
    images = (x.reshape(-1, 8, 8) * 15).astype(np.uint8)[:300]
    assert PencilClassifier(epochs=6).fit(images, y[:300]).score(images, y[:300]) > 0.8
    own = PencilClassifier(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), method=CrossEntropy(epochs=5))
    assert own.fit(x[:300].astype(np.float32), y[:300]).score(x[:300].astype(np.float32), y[:300]) > 0.8


def test_random_state_decides(wine):
    x, _, given = wine
    one, same, other = (PencilClassifier(epochs=3, random_state=s).fit(x, given) for s in (1, 1, 2))
    assert np.array_equal(one.predict_proba(x), same.predict_proba(x))
    assert not np.array_equal(one.predict_proba(x), other.predict_proba(x))
    drawn = PencilClassifier(epochs=3, random_state=np.random.RandomState(0)).fit(x, given)
    assert drawn.run_.summary.seed > 0


def scenes(rows=300, seed=0):
    """Sums of the patterns of the classes present; one in five of those is not said to be there."""
    rng = np.random.default_rng(seed)
    clean = (rng.random((rows, 4)) < 0.35).astype(int)
    x = clean @ np.random.default_rng(99).normal(size=(4, 12)) + 0.3 * rng.normal(size=(rows, 12))
    return x, np.where((clean == 1) & (rng.random(clean.shape) < 0.2), 0, clean), clean


def test_an_indicator_matrix_is_several_classes_at_once():
    x, given, clean = scenes()
    classifier = PencilClassifier(epochs=20, batch_size=16, validation=0.0).fit(x, given)
    assert classifier.classes_.tolist() == [0, 1, 2, 3] and classifier.label_distributions_.shape == (300, 4)
    assert (given == clean).mean() < 0.96 < (classifier.labels_ == clean).mean()
    assert classifier.labels_.dtype == classifier.predict(x).dtype == given.dtype
    probs = classifier.predict_proba(x)
    assert probs.shape == (300, 4) and ((probs > 0.5) == classifier.predict(x)).all()
    assert probs.sum(axis=1).max() > 1.5  # each class by itself
    assert classifier.score(x, clean) > 0.9
    predicted = cross_val_predict(PencilClassifier(epochs=20, batch_size=16), x, given, cv=3)
    assert (predicted == clean).mean() > 0.95


def test_matrices_that_could_be_one_class_each_and_sparse_ones():
    x, given, _ = scenes(60)
    one_hot = np.eye(4, dtype=int)[np.arange(60) % 4]
    assert PencilClassifier(epochs=3).fit(x, one_hot).run_.multilabel  # as everywhere in scikit-learn
    dense = PencilClassifier(epochs=3).fit(x, given).predict_proba(x)
    assert np.array_equal(PencilClassifier(epochs=3).fit(x, csr_matrix(given)).predict_proba(x), dense)
    assert np.array_equal(PencilClassifier(epochs=3, multilabel=True).fit(x, given).predict_proba(x), dense)
    column = PencilClassifier(epochs=3, multilabel=True).fit(x, given[:, :1])
    assert column.predict(x).shape == (60, 1) and column.classes_.tolist() == [0]


def test_probabilities_and_unknown_entries_are_taken_where_it_is_said_so():
    x, given, _ = scenes(60)
    soft = np.where(given == 1, 0.9, 0.2)
    soft[3, 1] = np.nan
    fitted = PencilClassifier(epochs=3, multilabel=True, validation=0.0).fit(x, soft)
    assert fitted.run_.summary.labels.entries == 239 and fitted.label_distributions_[3, 1] == 0.5
    for y, options, message in (
        (
            np.where(given == 1, 0.9, 0.2),
            {},
            r"y is a continuous-multioutput matrix of shape \(60, 4\).*multilabel=True",
        ),
        (soft, {}, "Input y contains NaN"),
        (given, {"multilabel": False}, r"y is a multilabel-indicator matrix .* and multilabel is False; expected one"),
        (given * 2, {"multilabel": True}, r"multi-label at row \d+ .* is .*expected values from 0 to 1"),
        (given[:, 0], {"multilabel": True}, "Expected 2D array, got 1D array"),
        (given[:-1], {"multilabel": True}, "inconsistent numbers of samples"),
        (given * [1, 1, 1, 0], {}, "1 of 4 classes have no example: '3'"),
    ):
        with pytest.raises(ValueError, match=message):
            PencilClassifier(epochs=3, **options).fit(x, y)


def test_sparse_matrices_are_taken(wine):
    x, _, given = wine
    sparse = np.where(x > np.median(x, axis=0), x, 0)
    dense = PencilClassifier(epochs=3).fit(sparse, given).predict_proba(sparse)
    fitted = PencilClassifier(epochs=3).fit(csr_matrix(sparse), given)
    assert np.array_equal(fitted.predict_proba(csr_matrix(sparse)), dense)


def test_a_frame_of_numbers_is_an_array(wine):
    x, _, given = wine
    names = [f"c{place}" for place in range(x.shape[1])]
    expected = PencilClassifier(epochs=3).fit(x, given).predict_proba(x)
    for frame in (pd.DataFrame(x, columns=names), pl.DataFrame(x, schema=names)):
        fitted = PencilClassifier(epochs=3).fit(frame, pd.Series(given))
        assert fitted.feature_names_in_.tolist() == names
        assert np.array_equal(fitted.predict_proba(frame), expected)


@pytest.mark.parametrize("library", [pd, pl])
def test_a_frame_of_words_and_missing_cells_is_a_table(library):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 120)
    words = [None if number % 20 == 0 else ("blue", "red")[label] for number, label in enumerate(y)]
    frame = library.DataFrame({"size": rng.normal(size=120), "colour": words})
    drawn = frame.sample(120, replace=True, random_state=0) if library is pd else frame  # rows twice, as bagging draws
    truth = y[drawn.index] if library is pd else y
    fitted = PencilClassifier(epochs=8, method="cross_entropy").fit(drawn, truth)
    assert (fitted.n_features_in_, fitted.feature_names_in_.tolist()) == (2, ["size", "colour"])
    assert fitted.score(frame, y) > 0.9
    with pytest.raises(ValueError, match="feature names should match"):
        fitted.predict(frame[["size"]])
    with pytest.raises(
        ValueError, match="X is a ndarray; expected a data frame with the training columns size, colour"
    ):
        fitted.predict(np.zeros((2, 2)))


def label_forms():
    """Labels 3 and 7, or their names; those of rows 2 and 5 are missing."""
    numbers = [3, 7, 3, 7, 3, 7] * 10
    names = ["three" if label == 3 else "seven" for label in numbers]
    nothing = [None if row in (2, 5) else label for row, label in enumerate(numbers)]
    no_name = [None if row in (2, 5) else label for row, label in enumerate(names)]
    return {
        "None": (no_name, "U"),
        "NaN in a list": ([np.nan if label is None else label for label in no_name], "U"),
        "pd.NA": (np.array([pd.NA if label is None else label for label in nothing], dtype=object), "i"),
        "empty text": (["" if label is None else label for label in no_name], "U"),
        "NaN": (np.array([np.nan if label is None else label for label in nothing]), "f"),
        "Int64": (pd.Series(nothing, dtype="Int64"), "i"),
        "Int64 without a gap": (pd.Series(numbers, dtype="Int64"), "i"),
        "string": (pd.Series(no_name, dtype="string"), "U"),
        "category": (pd.Series(no_name, dtype="category"), "U"),
        "category of numbers": (pd.Categorical(nothing), "i"),
        "boolean": (pd.Series([None if label is None else label == 3 for label in nothing], dtype="boolean"), "b"),
    }


@pytest.mark.parametrize("form", label_forms())
def test_rows_without_a_label_are_predicted_and_labels_keep_their_type(form):
    y, kind = label_forms()[form]
    x = np.array([[-1.0, 0.5] if row % 2 else [1.0, 0.5] for row in range(60)], dtype=np.float32)
    classifier = PencilClassifier(epochs=4, batch_size=8, method="cross_entropy").fit(x, y)
    expected = np.array(label_forms()["Int64 without a gap"][0], dtype=int)
    assert classifier.classes_.dtype.kind == classifier.labels_.dtype.kind == classifier.predict(x).dtype.kind == kind
    assert len(classifier.classes_) == 2 and len(classifier.labels_) == len(classifier.label_distributions_) == 60
    named = {"U": np.where(expected == 3, "three", "seven"), "b": expected == 3}.get(kind, expected)
    assert (classifier.labels_ == named).all() and (classifier.predict(x) == named).all()
    rows = classifier.run_.summary.data.rows
    assert rows.get("unlabelled", 0) == (0 if "without" in form else 2)


def test_labels_that_are_all_missing_are_refused():
    with pytest.raises(ValueError, match="none of the 4 rows has a label; expected labels for some rows"):
        PencilClassifier().fit(np.eye(4), [None, np.nan, pd.NA, ""])
