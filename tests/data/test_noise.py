import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest
import torch
from hypothesis import given as for_all
from hypothesis import strategies as st

from pencil import DataError
from pencil.data import noise
from pencil.data.examples import Examples
from pencil.data.inputs.base import TensorInputs
from pencil.data.prepare import prepare
from pencil.data.read import load
from pencil.data.settings import DataSettings, FileNoise, RateNoise

N = 20_000
CIFAR10_MAP = {9: 1, 2: 0, 4: 7, 3: 5, 5: 3}  # truck -> automobile, bird -> airplane, deer -> horse, cat <-> dog


def within_binomial(count: int, n: int, p: float) -> bool:
    """Five standard deviations: a right sampler fails this less than once in a million."""
    return abs(count - n * p) <= 5 * np.sqrt(n * p * (1 - p)) + 1e-9


MATRICES = {
    "symmetric": noise.symmetric_matrix(10, 0.5),
    "circular": noise.circular_matrix(10, 0.3),
    "cifar10": noise.map_matrix(10, 0.4, CIFAR10_MAP),
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
    noisy = noise.flip(np.arange(10), noise.map_matrix(10, 1.0, CIFAR10_MAP), seed=0)
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
        (lambda: noise.symmetric_matrix(10, 50), r"noise rate is 50; expected a fraction"),
        (lambda: noise.map_matrix(3, 0.5, {0: 7}), r"maps class 0 to 7; expected classes 0\.\.2"),
        (lambda: noise.flip([0, 5], np.eye(3), 0), r"label 5 at row 1"),
        (lambda: noise.flip([0, 1], [[0.5, 0.6], [0, 1]], 0), r"row 0 of the transition matrix"),
        (lambda: noise.flip([0, 1], np.ones((2, 3)), 0), r"shape \(2, 3\)"),
        (lambda: noise.flip([0.5, 1.0], np.eye(2), 0), r"expected a class index"),
    ],
)
def test_bad_noise_is_named(call, message):
    with pytest.raises(DataError, match=message):
        call()


@pytest.mark.parametrize("confidences", [False, True])
def test_entries_flip_as_often_as_the_rates_say(confidences):
    clean = (np.random.default_rng(0).random((N, 5)) < 0.3).astype(np.float32)
    noisy = noise.flip_entries(clean, false_positives=0.05, false_negatives=0.2, confidences=confidences, seed=3)
    said, present = noisy.labels > 0.5, clean > 0.5
    assert within_binomial(int((said & ~present).sum()), int((~present).sum()), 0.05)
    assert within_binomial(int((~said & present).sum()), int(present.sum()), 0.2)
    assert noisy.rate == pytest.approx(np.mean(said != present))
    sure = np.maximum(noisy.labels, 1 - noisy.labels)
    if confidences:
        wrong = said != present
        assert sure[~wrong].mean() == pytest.approx(5 / 6, abs=0.01)  # a Beta(2, 1) has the mean 2/3
        assert sure[wrong].mean() == pytest.approx(4 / 6, abs=0.01)
    else:
        assert (sure == 1).all()


def test_what_is_unknown_stays_unknown_and_is_not_counted():
    clean = np.array([[1.0, np.nan], [np.nan, 0.0], [np.nan, np.nan]])
    noisy = noise.flip_entries(clean, false_positives=1.0, false_negatives=1.0, seed=0)
    np.testing.assert_array_equal(noisy.labels, [[0.0, np.nan], [np.nan, 1.0], [np.nan, np.nan]])
    assert noisy.rate == 1.0


@pytest.mark.parametrize(
    "labels, rate, message",
    [
        ([[0.0, 0.4]], 0.1, r"clean labels: multi-label at row 0 is \[0.  0.4\]; expected 0 or 1"),
        ([0, 1], 0.1, r"clean labels: .* of shape \(2,\); expected .*\(n, classes\)"),
        ([[0.0, 1.0]], 1.1, r"noise rate is 1.1"),
    ],
)
def test_bad_entry_noise_is_named(labels, rate, message):
    with pytest.raises(DataError, match=message):
        noise.flip_entries(labels, false_positives=rate, false_negatives=0.0, seed=0)


def rows_of(labels):
    keys = np.array([str(row) for row in range(len(labels))])
    return Examples(TensorInputs(torch.randn(len(labels), 3)), torch.arange(len(labels)), labels, tuple("abcd"), keys)


def test_labels_of_annotators_from_a_file(tmp_path):
    clean = torch.arange(40) % 4
    examples = rows_of(clean)
    given = clean.numpy().copy()
    given[:10] = (given[:10] + 1) % 4
    np.save(tmp_path / "labels.npy", given.astype(np.uint8))
    whole = noise.corrupt(examples, FileNoise(kind="file", file=tmp_path / "labels.npy"), seed=0)
    assert (whole.labels == given).all() and whole.rate == 0.25
    part = noise.corrupt(examples, FileNoise(kind="file", file=tmp_path / "labels.npy", rate=0.1), seed=0)
    assert (part.labels != clean.numpy()).sum() == 4 and part.rate == 0.1
    some = examples.subset(torch.arange(5, 15))
    assert (
        noise.corrupt(some, FileNoise(kind="file", file=tmp_path / "labels.npy"), seed=0).labels == given[5:15]
    ).all()


@pytest.mark.parametrize("content", [np.zeros(3, int), np.full(40, 9), np.zeros(40), np.zeros((40, 2), int)])
def test_a_file_of_labels_that_does_not_fit_is_refused(tmp_path, content):
    np.save(tmp_path / "labels.npy", content)
    examples = rows_of(torch.arange(40) % 4)
    with pytest.raises(DataError, match="expected one class index from 0 to 3 for every row"):
        noise.corrupt(examples, FileNoise(kind="file", file=tmp_path / "labels.npy"), seed=0)


def table_of_two_groups(path, rows=1200):
    """A table in which nothing but two groups of rows can be told apart: by number, category and text alike."""
    group = np.arange(rows) // 3 % 2
    words = np.array(["win money now with a free prize", "see you at dinner with the family"])[group]
    columns = {"amount": group * 5.0, "city": np.array(["Rome", "Oslo"])[group], "text": words}
    pyarrow.csv.write_csv(pa.table({**columns, "label": np.array(["a", "b", "c"])[np.arange(rows) % 3]}), path)
    return load(DataSettings(source=str(path))), group


@pytest.mark.parametrize(("rate", "produced"), [(0.02, 0.088), (0.05, 0.101), (0.1, 0.129), (0.2, 0.206), (0.3, 0.3)])
def test_small_rates_of_instance_noise_come_out_higher_as_documented(rate, produced):
    clean, x = np.arange(40_000) % 4, np.random.default_rng(0).normal(size=(40_000, 2))
    assert noise.flip_by_instance(clean, x, 4, rate, seed=1).rate == pytest.approx(produced, abs=0.006)


def test_instance_noise_on_a_table_depends_on_its_cells(tmp_path):
    splits, group = table_of_two_groups(tmp_path / "t.csv")
    settings = RateNoise(kind="instance", rate=0.4)
    noisy, again = (noise.corrupt(splits.train, settings, seed) for seed in (3, 3))
    assert np.array_equal(noisy.labels, again.labels)
    assert noisy.rate == pytest.approx(0.4, abs=0.04)
    clean = splits.train.given_labels.numpy()
    for label in range(3):
        for number in range(2):
            flipped = noisy.labels[(clean == label) & (group == number) & (noisy.labels != label)]
            assert np.bincount(flipped).max() / len(flipped) > 0.95  # by chance it would be about 0.5


def test_instance_noise_on_a_table_is_drawn_before_rows_are_held_out(tmp_path):
    splits, _ = table_of_two_groups(tmp_path / "t.csv", rows=300)
    settings = DataSettings(noise=RateNoise(kind="instance", rate=0.3, seed=5))
    few, many = (prepare(settings.model_copy(update={"validation": part}), splits, seed=1) for part in (0.1, 0.3))
    labels = noise.corrupt(splits.train, settings.noise, 0).labels.tolist()
    expected = dict(zip(splits.train.keys.tolist(), labels, strict=True))
    for prepared in (few, many):
        for part in (prepared.splits.train, prepared.splits.validation):
            assert part.given_labels.tolist() == [expected[key] for key in part.keys.tolist()]
    assert few.noise_rate == many.noise_rate
