import numpy as np
import pytest
import torch

from pencil import DataError
from pencil.data import Splits, from_arrays, from_dataset
from pencil.data.noise import corrupt, transition_matrix
from pencil.data.prepare import prepare
from pencil.data.settings import DataSettings, MapNoise, MatrixNoise, MixedNoise, RateNoise
from pencil.data.sources import load


@pytest.fixture
def examples():
    rng = np.random.default_rng(0)
    return from_arrays(rng.normal(size=(600, 3)), np.arange(600) % 3, classes=["cat", "dog", "fish"])


def test_noise_falls_on_training_and_validation_rows_and_clean_labels_ride_along(examples):
    settings = DataSettings(noise=RateNoise(kind="symmetric", rate=0.6))
    prepared = prepare(settings, Splits(examples, test=examples), seed=0)
    splits = prepared.splits
    assert len(splits.validation) == 60
    for part in (splits.train, splits.validation):
        wrong = (part.given_labels != part.clean_labels).float().mean()
        assert 0.25 < wrong < 0.55
    assert torch.equal(splits.test.given_labels, examples.given_labels)  # the test set stays clean
    whole = torch.cat(
        [
            splits.train.given_labels != splits.train.clean_labels,
            splits.validation.given_labels != splits.validation.clean_labels,
        ]
    )
    assert prepared.noise_rate == pytest.approx(whole.float().mean().item())


@pytest.mark.parametrize(
    "noise",
    [
        RateNoise(kind="circular", rate=0.5),
        RateNoise(kind="instance", rate=0.5),
        MapNoise(kind="map", rate=0.5, classes={"cat": "dog", "dog": "cat"}),
        MatrixNoise(kind="matrix", matrix=((0.5, 0.5, 0), (0, 1, 0), (0, 0, 1))),
    ],
    ids=lambda noise: noise.kind,
)
def test_every_kind_of_noise_is_seeded(examples, noise):
    first, again, other = (corrupt(examples, noise, seed) for seed in (1, 1, 2))
    assert np.array_equal(first.labels, again.labels) and not np.array_equal(first.labels, other.labels)
    assert 0.05 < first.rate < 0.6
    pinned = noise.model_copy(update={"seed": 9})
    assert np.array_equal(corrupt(examples, pinned, 1).labels, corrupt(examples, pinned, 2).labels)


def test_rows_are_a_seeded_choice(examples):
    first, again = (prepare(DataSettings(rows=50), Splits(examples), seed=4).splits for _ in range(2))
    assert len(first.train) + len(first.validation) == 50
    assert torch.equal(first.train.rows, again.train.rows)
    assert not torch.equal(first.train.rows, prepare(DataSettings(rows=50), Splits(examples), seed=5).splits.train.rows)


def test_vectors_in_memory_are_standardised_and_a_users_own_dataset_is_not(examples):
    assert prepare(DataSettings(), Splits(examples), 0).settings.normalize != "none"
    assert prepare(DataSettings(normalize="none"), Splits(examples), 0).settings.normalize == "none"
    own = from_dataset([(torch.randn(3), i % 3) for i in range(20)])
    with pytest.raises(DataError, match="in memory and normalised, the test inputs are read item by item"):
        prepare(DataSettings(), Splits(examples, test=own), 0)
    assert prepare(DataSettings(normalize="none"), Splits(examples, test=own), 0).splits.test is own
    assert prepare(DataSettings(), Splits(own), 0).settings.normalize == "none"


@pytest.mark.parametrize(
    ("noise", "message"),
    [
        (
            MapNoise(kind="map", rate=0.5, classes={"cat": "cow"}),
            r"names class 'cow'; expected .* \(cat, dog, fish\)",
        ),
        (MatrixNoise(kind="matrix", matrix=((1, 0), (0, 1))), r"of 2 numbers; expected 3 x 3 for the 3 classes"),
    ],
)
def test_noise_that_does_not_fit_is_named(examples, noise, message):
    with pytest.raises(DataError, match=message):
        corrupt(examples, noise, 0)


def test_unknown_sources_are_named():
    with pytest.raises(DataError, match=r"'digitz' does not exist and is neither a dataset by name \(digits, wine"):
        load(DataSettings(source="digitz"))
    with pytest.raises(DataError, match="does not exist"):
        load(DataSettings(source="nowhere.npz"))


def test_mixed_noise_is_one_after_the_other(examples):
    first, second = RateNoise(kind="circular", rate=0.3), RateNoise(kind="symmetric", rate=0.3)
    mixed = MixedNoise(kind="mixed", parts=(first, second))
    names = examples.classes
    expected = transition_matrix(first, names) @ transition_matrix(second, names)
    assert transition_matrix(mixed, names) == pytest.approx(expected)
    many = from_arrays(np.zeros((30_000, 1)), np.arange(30_000) % 3, classes=list(names))
    found = corrupt(many, mixed, seed=0)
    assert found.transitions == pytest.approx(expected, abs=0.02)
    assert found.rate == pytest.approx(1 - expected.diagonal().mean(), abs=0.02)


def test_no_matrix_describes_a_mixture_with_noise_by_instance(examples):
    parts = (RateNoise(kind="circular", rate=0.2), RateNoise(kind="instance", rate=0.2))
    mixed = MixedNoise(kind="mixed", parts=parts)
    assert transition_matrix(mixed, examples.classes) is None and "instance" in mixed.kinds
    assert 0.2 < corrupt(examples, mixed, seed=0).rate < 0.5
