"""Small colour images: held-out labels decide between a small CNN and a head on features."""

import numpy as np
import pytest

from pencil import recipe
from pencil.data import Splits, from_arrays
from pencil.errors import Stopped
from pencil.job import run_recipe
from pencil.job.assembly import held_out_accuracy
from pencil.job.network import CNN, HEAD, Trial, try_networks

RNG = np.random.default_rng(0)


def images(count=520, size=24, channels=3):
    """Bright and dark noise, one class each."""
    labels = np.arange(count) % 2
    return RNG.integers(0, 128, (count, channels, size, size), dtype=np.uint8) + (
        100 * labels[:, None, None, None]
    ).astype(np.uint8), labels


def chosen(**sections):
    return recipe.parse({"method": {"name": "cross_entropy"}, "training": {"epochs": 1}, **sections})


def test_the_head_needs_a_lead():
    assert Trial(4000, cnn=0.5, head=0.56, lead=0.05).model == HEAD
    assert Trial(4000, cnn=0.5, head=0.54, lead=0.05).model == CNN
    assert "efficientnet_lite0 agreed with 56.0% of the held-out labels and small_cnn with 50.0%" in (
        Trial(4000, cnn=0.5, head=0.56, lead=0.05).describe()
    )


@pytest.mark.parametrize(
    ("data", "sections"),
    [
        (images(channels=1), {}),
        (images(size=16), {}),
        (images(count=80), {}),
        (images(size=72, count=500), {}),
        (images(), {"model": {"name": "small_cnn"}}),
        (images(), {"model": {"pretrained": False}}),
        (images(), {"model": {"train": "all"}}),
        (images(), {"data": {"augmentation": {"flip": True}}}),
        (images(), {"training": {"minutes": 2}, "method": {"name": "auto"}}),
    ],
)
def test_no_trial_where_there_is_no_choice(data, sections):
    assert try_networks(chosen(**sections), Splits(from_arrays(*data)), held_out_accuracy) is None


def test_a_signal_stops_the_trial(tmp_path, monkeypatch):
    monkeypatch.setattr("pencil.job.run.StopRequest.__enter__", lambda self: setattr(self, "signal", "SIGINT") or self)
    with pytest.raises(Stopped, match=r"stopped by SIGINT while networks were tried; .* run the same command again"):
        run_recipe(chosen(), tmp_path / "run", data=Splits(from_arrays(*images())))


def test_the_choice_is_trained_and_kept(tmp_path, monkeypatch):
    splits = Splits(from_arrays(*images()))
    trial = try_networks(chosen(), splits, held_out_accuracy)
    assert trial.rows == 520 and 0 <= trial.cnn <= 1 and trial.head > 0.9
    assert try_networks(chosen(), splits, held_out_accuracy) == trial  # a function of data and seed
    assert try_networks(chosen(data={"rows": 510}), splits, lambda *_: 0.5).rows == 510
    assert try_networks(chosen(), splits, held_out_accuracy, gpu=True) is None
    monkeypatch.setattr("pencil.job.run.try_networks", lambda *_words, **_options: Trial(520, 0.5, 0.9, 0.1))
    run = run_recipe(chosen(), tmp_path / "run", data=splits)
    assert run.recipe.model.train == "head" and run.environment["trial"]["head"] == 0.9
