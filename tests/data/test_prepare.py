import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from pencil import DataError
from pencil.data import Splits, from_arrays, from_dataset
from pencil.data.inputs.transform import measure_normalization
from pencil.data.noise import corrupt, transition_matrix
from pencil.data.prepare import prepare
from pencil.data.read import load
from pencil.data.settings import DataSettings, MapNoise, MatrixNoise, MixedNoise, RateNoise


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
    with pytest.raises(DataError, match="in memory and normalised, but the test inputs are read item by item"):
        prepare(DataSettings(), Splits(examples, test=own), 0)
    assert prepare(DataSettings(normalize="none"), Splits(examples, test=own), 0).splits.test is own
    assert prepare(DataSettings(), Splits(own), 0).settings.normalize == "none"


@pytest.mark.parametrize(
    ("noise", "message"),
    [
        (
            MapNoise(kind="map", rate=0.5, classes={"cat": "cow"}),
            r"contains class 'cow'; expected .* \(cat, dog, fish\)",
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


PEAK = """
import re, sys, torch
from pencil.data.inputs.base import TensorInputs, refuse_non_finite
from pencil.data.check.inspection import inspect
from pencil.data.examples import Examples
from pencil.data.keys import as_keys

def peak():  # in MB; unlike ru_maxrss it does not start at the size of the parent process
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024

rows, side = int(sys.argv[1]), int(sys.argv[2])
kind = torch.uint8 if sys.argv[3] == "bytes" else torch.float32
inputs = TensorInputs(torch.zeros(rows, 3, side, side, dtype=kind).random_(0, 255))
before = peak()
every = torch.arange(rows)
found = inputs.measure(every, 0)
refuse_non_finite(inputs.values), inputs.fingerprint(every)
inspect(Examples(inputs, every, every % 2, ("a", "b"), as_keys(range(rows))))
print(peak() - before, *found.mean)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak of memory is read from /proc")
@pytest.mark.parametrize(
    ("rows", "side", "kind"), [("1500", "224", "bytes"), ("600", "224", "floats"), ("12", "2400", "bytes")]
)
def test_steps_over_all_data_take_bounded_memory(rows, side, kind):
    """A float64 copy of the first would take 1.8 GB, of the second 720 MB, of the third 1.6 GB."""
    done = subprocess.run(
        [sys.executable, "-c", PEAK, rows, side, kind], capture_output=True, text=True, check=True
    ).stdout.split()
    assert float(done[0]) < 256
    assert float(done[1]) == pytest.approx(127 / (255 if kind == "bytes" else 1), rel=0.01)


def test_moments_of_pieces_are_those_of_the_whole(monkeypatch):
    values = torch.randn(7, 3, 10, 12) * 3 + 1
    monkeypatch.setattr("pencil.data.inputs.transform.rows_within", lambda shape, *_: 1 if len(shape) == 3 else 4)
    found = measure_normalization(values, torch.arange(1, 7))
    torch.testing.assert_close(torch.tensor(found.mean), values[1:].mean(dim=(0, 2, 3)))
    torch.testing.assert_close(torch.tensor(found.std), values[1:].std(dim=(0, 2, 3), correction=0))
