import numpy as np
import pytest
from hypothesis import given as for_all
from hypothesis import strategies as st

from pencil import DataError, noise

N = 20_000


def within_binomial(count: int, n: int, p: float) -> bool:
    """Five standard deviations: a right sampler fails this less than once in a million."""
    return abs(count - n * p) <= 5 * np.sqrt(n * p * (1 - p)) + 1e-9


MATRICES = {
    "symmetric": noise.symmetric_matrix(10, 0.5),
    "circular": noise.circular_matrix(10, 0.3),
    "cifar10": noise.map_matrix(10, 0.4, noise.CIFAR10_CONFUSIONS),
    "given": np.random.default_rng(0).dirichlet(np.ones(10), size=10),
}


@pytest.mark.parametrize("name", MATRICES)
def test_every_transition_occurs_as_often_as_the_matrix_says(name):
    matrix, clean = MATRICES[name], np.arange(N) % 10
    noisy = noise.flip(clean, matrix, seed=5)
    for i in range(10):
        rows = clean == i
        for j in range(10):
            assert within_binomial(int((noisy.labels[rows] == j).sum()), int(rows.sum()), matrix[i, j])


def test_symmetric_noise_draws_from_all_classes_the_true_one_included():  # section 4.1
    clean = np.zeros(N, dtype=np.int64)
    noisy = noise.flip(clean, noise.symmetric_matrix(10, 0.5), seed=1)
    assert within_binomial(int((noisy.labels != 0).sum()), N, 0.5 * 9 / 10)


def test_circular_goes_to_the_next_class_and_around():
    noisy = noise.flip(np.arange(100), noise.circular_matrix(100, 1.0), seed=0)
    assert np.array_equal(noisy.labels, (np.arange(100) + 1) % 100)


def test_cifar10_map_is_the_papers():
    noisy = noise.flip(np.arange(10), noise.map_matrix(10, 1.0, noise.CIFAR10_CONFUSIONS), seed=0)
    assert noisy.labels.tolist() == [0, 1, 0, 5, 7, 3, 6, 7, 8, 1]


@for_all(rate=st.floats(0, 1), classes=st.integers(2, 12), seed=st.integers(0, 2**32))
def test_the_reported_rate_and_transitions_are_what_happened(rate, classes, seed):
    clean = np.arange(200) % classes
    before = clean.copy()
    for noisy in (
        noise.flip(clean, noise.symmetric_matrix(classes, rate), seed),
        noise.flip_by_instance(clean, np.outer(clean, [1.0, 2.0]), classes, rate, seed),
    ):
        assert noisy.rate == np.mean(noisy.labels != clean)
        present = np.bincount(clean, minlength=classes) > 0
        assert np.allclose(noisy.transitions[present].sum(axis=1), 1)
        assert noisy.transitions[0, 1] == np.mean(noisy.labels[clean == 0] == 1)
        assert noisy.labels.min() >= 0 and noisy.labels.max() < classes
    assert np.array_equal(clean, before)  # never in place


def test_same_seed_same_labels_other_seed_other_labels():
    clean, matrix = np.arange(500) % 5, noise.symmetric_matrix(5, 0.5)
    assert np.array_equal(noise.flip(clean, matrix, 3).labels, noise.flip(clean, matrix, 3).labels)
    assert not np.array_equal(noise.flip(clean, matrix, 3).labels, noise.flip(clean, matrix, 4).labels)
    assert noise.flip(clean[:8], matrix, 3).labels.tolist() == [0, 1, 3, 3, 0, 0, 1, 1]  # exact, on every machine


def test_instance_noise_has_the_rate_and_hangs_on_the_input():
    rng = np.random.default_rng(0)
    x, clean = rng.normal(size=(N, 6)), np.arange(N) % 4
    noisy = noise.flip_by_instance(clean, x, 4, 0.4, seed=2)
    assert noisy.rate == pytest.approx(0.4, abs=0.02)
    flipped = (noisy.labels != clean) & (clean == 0)
    to_one, to_two = flipped & (noisy.labels == 1), flipped & (noisy.labels == 2)
    apart = np.linalg.norm(x[to_one].mean(axis=0) - x[to_two].mean(axis=0))
    shuffled = rng.permutation(np.flatnonzero(flipped))
    chance = np.linalg.norm(x[shuffled[: to_one.sum()]].mean(axis=0) - x[shuffled[to_one.sum() :]].mean(axis=0))
    assert apart > 5 * chance
    assert noise.flip_by_instance(clean, x, 4, 0.0, seed=2).rate == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: noise.symmetric_matrix(10, 50), r"noise rate is 50; expected a share"),
        (lambda: noise.map_matrix(3, 0.5, {0: 7}), r"maps class 0 to 7; expected classes 0\.\.2"),
        (lambda: noise.flip([0, 5], np.eye(3), 0), r"label 5 at row 1"),
        (lambda: noise.flip([0, 1], [[0.5, 0.6], [0, 1]], 0), r"row 0 of the transition matrix"),
        (lambda: noise.flip([0, 1], np.ones((2, 3)), 0), r"shape \(2, 3\)"),
        (lambda: noise.flip([0.5, 1.0], np.eye(2), 0), r"class indices"),
    ],
)
def test_bad_noise_is_named(call, message):
    with pytest.raises(DataError, match=message):
        call()
