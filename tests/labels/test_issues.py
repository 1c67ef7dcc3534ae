"""find_issues: wrong labels from probabilities that a user brings."""

import numpy as np
import pytest

import pencil


def data(rate=0.1, rows=2000, classes=4, seed=0):
    rng = np.random.default_rng(seed)
    clean = rng.integers(0, classes, rows)
    logits = 4 * np.eye(classes)[clean] + rng.normal(size=(rows, classes))
    probs = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    given = np.where(rng.random(rows) < rate, (clean + 1) % classes, clean)
    return given, probs, clean


def test_wrong_labels_come_first_with_their_probability():
    given, probs, clean = data()
    found = pencil.find_issues(given, probs)
    wrong = given != clean
    assert wrong[found.ranked[:100]].mean() > 0.95
    assert found.issue_score.mean() == pytest.approx(wrong.mean(), abs=0.03)
    assert found.noise_rate == pytest.approx(wrong.mean(), abs=0.05)
    assert (found.is_label_issue == (found.predicted_label != given)).all()
    np.testing.assert_allclose(found.label_quality, 1 - found.issue_score)


def test_it_agrees_with_cleanlab_about_the_order():
    rank = pytest.importorskip("cleanlab.rank")
    given, probs, clean = data(rate=0.2, seed=1)
    theirs = np.argsort(rank.get_label_quality_scores(given, probs))[:200]
    ours = pencil.find_issues(given, probs).ranked[:200]
    assert (given != clean)[ours].mean() >= (given != clean)[theirs].mean() - 0.02


@pytest.mark.parametrize(
    ("labels", "probs", "words"),
    [
        ([0, 1], np.ones((3, 2)), r"shape \(3, 2\); expected \(2, classes\)"),
        ([0, 1], [[0.5, np.nan], [0.5, 0.5]], "NaN, infinity or negative"),
        ([0, 2], [[0.5, 0.5], [0.5, 0.5]], "class 2 and pred_probs have 2 columns"),
    ],
)
def test_what_does_not_fit_is_refused(labels, probs, words):
    with pytest.raises(pencil.DataError, match=words):
        pencil.find_issues(labels, probs)
