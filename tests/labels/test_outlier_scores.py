"""Outlier scores: distances to a part of each class, their calibration, and rows of no class."""

import numpy as np
import pytest
import torch
from scipy.stats import norm, spearmanr

from pencil.labels.outliers import FLAGGED, TENTH, Reference, class_distances, members_of, outlier_scores


def blobs(seed=0, classes=4, rows=100, width=16, apart=6.0):
    """Rows around the centre of their class."""
    random = torch.Generator().manual_seed(seed)
    labels = torch.arange(classes).repeat_interleave(rows)
    centres = apart * torch.randn(classes, width, generator=random)
    return centres[labels] + torch.randn(len(labels), width, generator=random), labels


def score(vectors, labels):
    own = torch.arange(len(vectors))
    return outlier_scores(*Reference.of(vectors, labels).compare(vectors, own))


def test_the_distance_is_to_the_nearest_part_of_the_nearest_class():
    vectors, labels = blobs(rows=30)
    found = class_distances(vectors, vectors, members_of(labels), 0.2, torch.arange(len(vectors)))
    for row in (0, 45, 119):
        by_class = []
        for code in range(4):
            others = [i for i in range(120) if labels[i] == code and i != row]
            by_class.append(sorted(float((vectors[row] - vectors[i]).norm()) for i in others)[5])  # 6 of 30
        assert float(found[row]) == pytest.approx(min(by_class), rel=1e-4)


def test_the_score_is_one_minus_the_rate_of_false_discoveries():
    logs = np.sort(np.random.default_rng(0).normal(size=400))
    logs[-20:] += 6
    found = outlier_scores(torch.from_numpy(np.exp(logs)), torch.zeros(400, dtype=torch.bool)).numpy()
    low, middle, high = (logs[round(part * 399)] for part in (0.25, 0.5, 0.75))
    tails = norm.sf(logs, middle, max(middle - low, high - middle) / 0.6745)
    rates = [min(1.0, tails[row] * 400 / (400 - row)) for row in range(400)]
    np.testing.assert_allclose(found, 1 - np.minimum.accumulate(rates), atol=0.0021)  # the rank breaks ties
    assert (np.diff(found) > 0).all()
    assert (found >= FLAGGED)[-20:].all() and (found >= FLAGGED).sum() <= 22


def test_rows_that_are_far_from_every_class_are_flagged():
    vectors, labels = blobs()
    random = torch.Generator().manual_seed(1)
    far = 12 * torch.randn(5, vectors.shape[1], generator=random)
    found = score(torch.cat([vectors, far]), torch.cat([labels, labels[:5]]))
    assert (found[-5:] >= FLAGGED).all() and found[-5:].min() > found[:-5].max()


def test_outliers_that_resemble_each_other_are_flagged():
    """Their nearest rows are outliers too, so the mean distance to the nearest rows is small."""
    vectors, labels = blobs(apart=2.0)
    random = torch.Generator().manual_seed(1)
    alike = 6 * torch.randn(1, vectors.shape[1], generator=random) + 0.1 * torch.randn(20, 16, generator=random)
    every, given = torch.cat([vectors, alike]), torch.cat([labels, torch.arange(20) % 4])
    distances = torch.cdist(every, every).fill_diagonal_(torch.inf)
    nearest = distances.topk(10, largest=False).values.mean(dim=1)
    assert nearest[-20:].max() < nearest[:-20].min()
    found = score(every, given)
    assert (found[-20:] >= FLAGGED).all() and found[-20:].min() > found[:-20].max()


def test_rows_among_labels_that_do_not_agree_count_as_farther():
    distances = torch.linspace(1, 2, 100)
    disagree = torch.arange(100) == 60
    assert outlier_scores(distances, disagree).argmax() == 60
    vectors, labels = blobs(classes=2, apart=0.0)  # the classes are the same
    assert Reference.of(vectors, labels).compare(vectors, torch.arange(200))[1].float().mean() > 0.9
    vectors, labels = blobs(classes=2)
    assert not Reference.of(vectors, labels).compare(vectors, torch.arange(200))[1].any()


@pytest.mark.parametrize("seed", range(3))
def test_no_row_of_trivial_data_is_flagged(seed):
    vectors, labels = blobs(seed)
    assert (score(vectors, labels) < FLAGGED).all()


def test_scaling_or_moving_all_features_does_not_matter():
    vectors, labels = blobs(apart=2.0)
    for other in (vectors * 1000, vectors * 0.01, vectors + 3):
        torch.testing.assert_close(score(other, labels), score(vectors, labels), atol=2e-3, rtol=0)


def test_a_rare_class_is_not_an_outlier():
    vectors, labels = blobs()
    rare = 40 + torch.randn(8, vectors.shape[1], generator=torch.Generator().manual_seed(2))
    found = score(torch.cat([vectors, rare]), torch.cat([labels, torch.full((8,), 4)]))
    assert (found[-8:] < FLAGGED).all()


def test_labels_of_one_value_missing_classes_and_rows_without_a_label():
    vectors, labels = blobs(classes=1)
    one, skipped, unlabelled = (score(vectors, labels + code) for code in (0, 7, -1))
    assert (one < FLAGGED).all() and spearmanr(one, skipped).statistic > 0.99 and (unlabelled < FLAGGED).all()
    several = torch.nn.functional.one_hot(labels, 3).bool()  # multi-label, two classes without rows
    torch.testing.assert_close(score(vectors, several), one)


def test_the_order_is_consistent_when_a_class_is_removed():
    vectors, labels = blobs()
    rest = labels != 2
    assert spearmanr(score(vectors, labels)[rest], score(vectors[rest], labels[rest])).statistic > 0.95


def test_unreadable_rows_and_tiny_data():
    nothing = torch.zeros(3, dtype=torch.bool)
    assert outlier_scores(torch.tensor([1.0, torch.nan, 2.0]), nothing)[1] == 0
    assert outlier_scores(torch.full((3,), torch.nan), nothing).tolist() == [0, 0, 0]
    vectors, labels = torch.eye(2), torch.tensor([0, 1])
    assert (score(vectors, labels) < FLAGGED).all()
    reference = Reference.of(*blobs())
    assert len(reference.compare(torch.empty(0, 16), torch.empty(0, dtype=torch.int64))[0]) == 0
    assert TENTH < 1
