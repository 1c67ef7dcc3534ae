"""find_issues: wrong labels from probabilities that a user brings."""

import numpy as np
import pandas as pd
import polars as pl
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
        ([0, 2], [[0.5, 0.5], [0.5, 0.5]], "class 2, but pred_probs have 2 columns"),
    ],
)
def test_what_does_not_fit_is_refused(labels, probs, words):
    with pytest.raises(pencil.DataError, match=words):
        pencil.find_issues(labels, probs)


NAMES = ["cat", "dog", "eel", "fox"]


def test_frames_name_the_classes_and_keep_their_index():
    given, probs, _ = data(rows=200)
    index = [f"r{row}" for row in range(200)]
    expected = pencil.find_issues(given, probs)
    words = pd.Series(np.array(NAMES)[given], index=index)
    frame = pd.DataFrame(probs, columns=NAMES, index=index)
    for labels, predicted, options in (
        (words, frame, {}),
        (words.astype("category"), frame.to_numpy(), {"classes": NAMES}),
        (pd.Series(given, index=index), frame, {}),
        (words.to_frame("label"), pl.from_pandas(frame), {}),
    ):
        found = pencil.find_issues(labels, predicted, **options)
        np.testing.assert_array_equal(found.issue_score, expected.issue_score)
        table = found.to_pandas()
        assert (table.index.tolist(), table["given"].tolist()) == (index, words.tolist())
        assert (table["given"] != table["predicted"]).tolist() == table["is_label_issue"].tolist()
        assert found.table.column_names == ["given", "predicted", "issue_score", "is_label_issue"]
    assert expected.to_pandas()["given"].tolist() == given.tolist()
    numbered = pencil.find_issues(given + 5, pd.DataFrame(probs, columns=[5, 6, 7, 8]))
    assert numbered.given_label.tolist() == given.tolist()


@pytest.mark.parametrize(
    ("labels", "probs", "options", "words"),
    [
        (["a", "b"], np.eye(2), {}, r"labels are names; .* pass `classes=` in column order"),
        (
            ["a", "c"],
            pd.DataFrame(np.eye(2), columns=["a", "b"]),
            {},
            r"label 'c' at row 1 is not one of the 2 classes",
        ),
        (["a", None], np.eye(2), {"classes": ["a", "b"]}, r"label at row 1 is missing; expected a class"),
        (["a", "b"], np.eye(2), {"classes": ["a", "b", "c"]}, r"there are 3 classes, but pred_probs have 2 columns"),
        ([0, 1], pd.DataFrame({"a": [1.0, 0.0], "b": ["x", "y"]}), {}, r"pred_probs has the columns a, b and not all"),
        (
            pd.Series([0, 1], index=["p", "q"]),
            pd.DataFrame(np.eye(2), index=["q", "p"]),
            {},
            r"row 0 has the index 'q' in pred_probs and 'p' in labels; .*pass labels.loc\[pred_probs.index\]",
        ),
    ],
)
def test_frames_that_do_not_fit(labels, probs, options, words):
    with pytest.raises(pencil.DataError, match=words):
        pencil.find_issues(labels, probs, **options)


def test_the_order_of_many_rows_does_not_matter():
    """Only some rows are used for the noise rate: a fair sample of all, not the first classes."""
    rng, classes = np.random.default_rng(0), 10
    clean = np.arange(24000) % classes
    wrong = (clean >= 5) & (rng.random(len(clean)) < 0.4)
    labels = np.where(wrong, 5 + (clean - 5 + rng.integers(1, 5, len(clean))) % 5, clean)
    strength = np.exp(4 * np.eye(classes)[clean] + 1.4 * rng.normal(size=(len(clean), classes)))
    probs = strength / strength.sum(axis=1, keepdims=True)
    by_class = np.argsort(clean, kind="stable")
    rates = [pencil.find_issues(labels[order], probs[order]).noise_rate for order in (slice(None), by_class)]
    assert rates == pytest.approx([wrong.mean()] * 2, abs=0.03)
