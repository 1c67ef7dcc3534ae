"""find_issues: wrong labels from probabilities that a user brings."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.metrics import average_precision_score

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
    assert (found.predicted_label == probs.argmax(axis=1)).all()
    assert (found.predicted_label != given)[found.is_label_issue].all()
    assert found.is_label_issue.mean() == pytest.approx(found.noise_rate, abs=0.5 / len(given))
    assert found.issue_score.mean() == pytest.approx(found.noise_rate)
    np.testing.assert_allclose(found.label_quality, 1 - found.issue_score)


def softmax(logits):
    strength = np.exp(logits - logits.max(axis=1, keepdims=True))
    return strength / strength.sum(axis=1, keepdims=True)


def flipped(clean, classes, seed, strong):
    """Uniform errors, and predictions that are right more or less often."""
    rng = np.random.default_rng(seed)
    other = (clean + rng.integers(1, classes, len(clean))) % classes
    given = np.where(rng.random(len(clean)) < 0.1, other, clean)
    return given, softmax((6 if strong else 3) * np.eye(classes)[clean] + 1.2 * rng.normal(size=(len(clean), classes)))


def confused(clean, classes, seed, strong):
    """Errors of people: hard rows are labelled as the class that they resemble, and the network is unsure of them."""
    rng = np.random.default_rng(seed)
    hardness, twin = rng.beta(1, 3, len(clean)), clean ^ 1
    given = np.where(rng.random(len(clean)) < 0.7 * hardness, twin, clean)
    likeness = np.eye(classes)[clean] * (1 - hardness)[:, None] + np.eye(classes)[twin] * hardness[:, None]
    return given, softmax((9 if strong else 5) * likeness + rng.normal(size=(len(clean), classes)))


def shifted(clean, classes, seed, strong):
    """A habit: a third of the labels of each even class is the next class, and predictions have learned part of it."""
    rng = np.random.default_rng(seed)
    wrong = (clean % 2 == 0) & (rng.random(len(clean)) < 0.35)
    habit = 0.6 * np.eye(classes)[clean ^ 1] * (clean % 2 == 0)[:, None]
    strength = 6 if strong else 3
    return clean + wrong, softmax(strength * (np.eye(classes)[clean] + habit) + rng.normal(size=(len(clean), classes)))


def rare(clean, classes, seed, strong):
    """The last two classes have few labels, most of them wrong; predictions follow the class frequencies."""
    given, probs = flipped(clean, classes, seed, strong)
    weighted = probs * np.bincount(given, minlength=classes)
    return given, weighted / weighted.sum(axis=1, keepdims=True)


def f1(wrong, flagged):
    return 2 * (wrong & flagged).sum() / (wrong.sum() + flagged.sum())


@pytest.mark.parametrize("strong", [True, False])
@pytest.mark.parametrize("make", [flipped, confused, shifted, rare])
def test_it_keeps_up_with_cleanlab(make, strong):
    """The margins are needed: for confused labels, F1 is 0.003 lower than cleanlab's."""
    filters, rank = pytest.importorskip("cleanlab.filter"), pytest.importorskip("cleanlab.rank")
    weights = np.array([1.0] * 4 + [0.05 if make is rare else 1.0] * 2)
    figures = []
    for seed in range(4):
        clean = np.random.default_rng(9 + seed).choice(6, 4000, p=weights / weights.sum())
        given, probs = make(clean, 6, seed, strong)
        wrong, found = given != clean, pencil.find_issues(given, probs)
        quality = rank.get_label_quality_scores(given, probs)
        flagged = filters.find_label_issues(given, probs, n_jobs=1)
        scores = [average_precision_score(wrong, one) for one in (found.issue_score, -quality)]
        figures.append([*scores, f1(wrong, found.is_label_issue), f1(wrong, flagged)])
    ours_ap, their_ap, ours_f1, their_f1 = np.mean(figures, axis=0)
    assert ours_ap >= their_ap - 0.005
    assert ours_f1 >= their_f1 - 0.005


@pytest.mark.parametrize("strength", [2, 3, 6])
def test_clean_labels_are_not_flagged_more_often_than_by_cleanlab(strength):
    filters = pytest.importorskip("cleanlab.filter")
    rng = np.random.default_rng(strength)
    clean = rng.integers(0, 6, 4000)
    probs = softmax(strength * np.eye(6)[clean] + rng.normal(size=(4000, 6)))
    found = pencil.find_issues(clean, probs)
    assert found.is_label_issue.sum() <= filters.find_label_issues(clean, probs, n_jobs=1).sum()


def test_perfect_predictions_are_ranked_although_nothing_is_flagged():
    clean = np.arange(300) % 3
    probs = 0.01 + 0.97 * np.eye(3)[clean]
    probs[17] = [0.2, 0.2, 0.6]
    found = pencil.find_issues(clean, probs)
    assert (found.noise_rate, found.is_label_issue.any(), found.ranked[0]) == (0.0, False, 17)
    wrong = np.arange(300) < 30
    exact = pencil.find_issues((clean + wrong) % 3, np.eye(3)[clean])  # probabilities of 0 and 1
    assert exact.is_label_issue.tolist() == wrong.tolist()
    assert np.isfinite(exact.issue_score).all()


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
        assert (table["given"] != table["predicted"])[table["is_label_issue"]].all()
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
        (["a", "a"], np.ones((2, 1)), {"classes": ["a"]}, r"pred_probs have 1 column; expected two or more"),
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
    """Rows are processed in blocks, and sorted rows fill blocks with few classes."""
    rng, classes = np.random.default_rng(0), 10
    clean = np.arange(24000) % classes
    wrong = (clean >= 5) & (rng.random(len(clean)) < 0.4)
    labels = np.where(wrong, 5 + (clean - 5 + rng.integers(1, 5, len(clean))) % 5, clean)
    strength = np.exp(4 * np.eye(classes)[clean] + 1.4 * rng.normal(size=(len(clean), classes)))
    probs = strength / strength.sum(axis=1, keepdims=True)
    by_class = np.argsort(clean, kind="stable")
    rates = [pencil.find_issues(labels[order], probs[order]).noise_rate for order in (slice(None), by_class)]
    assert rates == pytest.approx([wrong.mean()] * 2, abs=0.03)


def test_nothing_is_flagged_where_every_label_is_predicted():
    given = np.arange(90) % 3
    for sure in (0.5, 0.8, 0.999):
        probs = np.full((90, 3), (1 - sure) / 2)
        probs[np.arange(90), given] = sure
        found = pencil.find_issues(given, probs)
        assert not found.is_label_issue.any() and found.noise_rate == pytest.approx(0, abs=1e-9)


def test_classes_without_a_label_change_nothing():
    given, probs, clean = data(classes=3)
    wide = np.insert(probs, [1, 3], 1e-6, axis=1)  # classes 1 and 4 of five are given to no row
    wide /= wide.sum(axis=1, keepdims=True)
    found, other = pencil.find_issues(given, probs), pencil.find_issues(np.array([0, 2, 3])[given], wide)
    assert (found.is_label_issue == other.is_label_issue).mean() > 0.99
    assert average_precision_score(given != clean, other.issue_score) > 0.95


def test_labels_of_one_value():
    _, probs, _ = data(classes=3)
    found = pencil.find_issues(np.zeros(len(probs), dtype=int), probs)
    assert np.isfinite(found.issue_score).all() and set(found.ranked) == set(range(len(probs)))
    assert found.issue_score[probs.argmax(axis=1) == 0].max() < found.issue_score[probs[:, 0] < 0.1].min()


def test_the_order_is_consistent_when_a_class_is_removed():
    given, probs, clean = data(rate=0.15)
    rest = (given != 3) & (clean != 3)
    fewer = probs[rest, :3] / probs[rest, :3].sum(axis=1, keepdims=True)
    whole, part = pencil.find_issues(given, probs), pencil.find_issues(given[rest], fewer)
    wrong = (given != clean)[rest]
    both = [average_precision_score(wrong, one) for one in (whole.issue_score[rest], part.issue_score)]
    assert min(both) > 0.95 and abs(both[0] - both[1]) < 0.02
    assert (whole.is_label_issue[rest] == part.is_label_issue).mean() > 0.97
