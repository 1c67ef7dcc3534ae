import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_digits, load_wine
from sklearn.model_selection import cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import nn

from pencil import PencilClassifier, noise
from pencil.methods import CrossEntropy


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@parametrize_with_checks([PencilClassifier(epochs=12)])
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
    assert (given == clean).mean() < 0.85 < 0.93 < (classifier.labels_ == clean).mean()
    assert classifier.label_distributions_.shape == (178, 3)
    assert classifier.score(x, clean) > 0.93
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
    assert drawn.run_.summary["seed"] > 0
