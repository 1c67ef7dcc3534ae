import sys

import pytest
import torch

from pencil import DataError
from pencil.data.datasets import DATASETS
from pencil.data.datasets.small import digits
from pencil.data.noise import corrupt
from pencil.data.prepare import prepare
from pencil.data.settings import DataSettings, EntryNoise, RateNoise

canvases = DATASETS["canvases"]
FEW = {"images": 60, "test_images": 20}


def test_a_canvas_says_which_digits_are_on_it():
    splits = canvases(None, **FEW)
    train, test = splits.train, splits.test
    assert train.multilabel and train.inputs.values.shape == (60, 1, 64, 64) and len(test) == 20
    assert train.inputs.values.dtype == torch.uint8
    present = train.given_labels.sum(dim=1)
    assert present.min() >= 1 and 1 < present.mean() < 4 and present.max() <= 4
    assert torch.equal(train.clean_labels, train.given_labels)
    assert len({*train.keys, *test.keys}) == 80


def test_the_same_seed_draws_the_same_canvases():
    first, again, other = (canvases(None, **FEW, seed=seed).train for seed in (1, 1, 2))
    assert torch.equal(first.inputs.values, again.inputs.values) and first.fingerprint() == again.fingerprint()
    assert not torch.equal(first.inputs.values, other.inputs.values)


def test_items_are_really_there(monkeypatch):
    """With no background, no fragments and one item, a canvas is as bright as its item allows."""
    module = sys.modules["pencil.data.datasets.canvases"]
    monkeypatch.setattr(module, "_background", lambda size, rng: torch.zeros(size, size))
    monkeypatch.setattr(module, "FRAGMENTS", 0)
    monkeypatch.setattr(module, "MOST_ITEMS", 1)
    train = canvases(None, images=20, test_images=1, size=32).train
    lit = (train.inputs.values > 40).flatten(1).sum(dim=1)
    assert (train.given_labels.sum(dim=1) == 1).all() and (lit > 5).all() and (lit < 32 * 32 * 0.35**2).all()


def test_test_canvases_hold_no_training_item(monkeypatch):
    module = sys.modules["pencil.data.datasets.canvases"]
    asked = []
    scatter = module._scatter
    monkeypatch.setattr(module, "_scatter", lambda items, *rest: asked.append(items) or scatter(items, *rest))
    canvases(None, images=1, test_images=1)
    source = digits()
    assert [part.fingerprint() for part in asked] == [source.train.fingerprint(), source.test.fingerprint()]


@pytest.mark.parametrize(
    "options, message",
    [
        ({"items": "cats"}, "'cats'; expected one of digits, fashion_mnist"),
        ({"size": 8}, "size is 8; expected at least 16"),
        ({"images": 0}, "images is 0; expected at least 1"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(DataError, match=message):
        canvases(None, **options)


def test_noise_is_for_entries_where_examples_are_of_several_classes():
    settings = DataSettings(
        source="canvases", noise=EntryNoise(kind="entries", false_positives=0.05, false_negatives=0.2)
    )
    prepared = prepare(settings, canvases(None, images=400, test_images=5), seed=0)
    train = prepared.splits.train
    assert prepared.noise_rate == pytest.approx(0.085, abs=0.02)
    assert not torch.equal(train.given_labels, train.clean_labels) and train.given_labels.unique().tolist() == [0, 1]


def test_noise_of_the_wrong_kind_is_refused():
    by_entry = EntryNoise(kind="entries", false_positives=0.1, false_negatives=0.1)
    with pytest.raises(DataError, match='kind "symmetric", but the labels are multi-label; expected'):
        corrupt(canvases(None, images=5, test_images=1).train, RateNoise(kind="symmetric", rate=0.1), 0)
    with pytest.raises(DataError, match='kind "entries", but the labels are single-label; expected'):
        corrupt(digits().train, by_entry, 0)
