"""Better features are used where they fit into the user's minutes."""

import numpy as np
import pandas as pd
import pytest
import torch

import pencil
from pencil import recipe
from pencil.data import Splits, from_arrays
from pencil.data.read import load
from pencil.job import quality, run_recipe
from pencil.job.quality import Quality, choose_quality

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 255, (40, 3, 72, 72), dtype=np.uint8), np.arange(40) % 2
TEXTS = [f"{word} {number} of them came back" for number in range(40) for word in ("apples", "letters")]


def chosen(**sections):
    return recipe.parse({"method": {"name": "cross_entropy"}, "training": {"epochs": 1}, **sections})


def test_the_better_features_need_time():
    made = Quality("model.name", "3,000 images", ("fast", 20.0), ("best", 90.0), minutes=2)
    assert made.name == made.chosen(chosen()).model.name == "best"
    assert made.describe().startswith(
        "features of 3,000 images: best, about 1.5 min on this machine; fast would take about 20 s ("
    )
    short = Quality("data.text_model", "9 texts", ("wordllama", 1.0), ("minilm", 90.0), minutes=1)
    assert short.chosen(chosen()).data.text_model == "wordllama"
    assert "wordllama, about 1 s on this machine; minilm would take about 1.5 min" in short.describe()


@pytest.mark.parametrize("minutes", [None, 30.0])
def test_photos_are_timed_with_both_networks(minutes, monkeypatch):
    plain = chosen(data={"cache": "none"}, method={"name": "auto"}, training={"minutes": minutes})
    seen = []
    monkeypatch.setattr(quality, "estimate_features", lambda _, network, count, __: seen.append(network.width) or count)
    found = choose_quality(plain, Splits(from_arrays(*IMAGES)))
    assert (found.fast, found.best) == (("efficientnet_lite0", 40), ("efficientnet_lite2", 40))
    assert seen == [1280, 1840] and found.minutes == (10 if minutes is None else 15)
    tested = Splits(from_arrays(*IMAGES), test=from_arrays(*IMAGES))
    fewer = plain.model_copy(update={"data": plain.data.model_copy(update={"rows": 10})})
    assert choose_quality(fewer, tested).best[1] == 50


@pytest.mark.parametrize(
    ("data", "sections"),
    [
        ((IMAGES[0][:, :, :24, :24], IMAGES[1]), {}),
        (IMAGES, {"model": {"name": "efficientnet_lite0"}}),
        (IMAGES, {"model": {"pretrained": False, "train": "all"}}),
        (IMAGES, {"model": {"train": "all"}}),
        (IMAGES, {"model": {"finetune_epochs": 1}}),
        (IMAGES, {"data": {"augmentation": {"flip": True}}}),
        ((RNG.random((40, 9), dtype=np.float32), IMAGES[1]), {}),
    ],
)
def test_no_choice_where_none_is_open(data, sections):
    assert choose_quality(chosen(**sections), Splits(from_arrays(*data))) is None


def test_a_run_keeps_its_choice_and_its_features(tmp_path, monkeypatch):
    settings = {"data.cache": str(tmp_path / "cache")}
    run = pencil.fit("auto", IMAGES, epochs=1, method="cross_entropy", settings=settings)
    assert run.recipe.model.name == "efficientnet_lite2" and run.recipe.model.pretrained
    monkeypatch.setattr(quality, "PATIENCE", 0.0)
    again = pencil.fit("auto", IMAGES, epochs=1, method="cross_entropy", settings=settings)
    assert again.recipe.model.name == "efficientnet_lite2"  # its features are kept, so they take no time
    other = pencil.fit("auto", IMAGES, epochs=1, method="cross_entropy", settings={"data.cache": "none"})
    assert other.recipe.model.name == "efficientnet_lite0"


def test_texts(tmp_path, monkeypatch):
    table, out = tmp_path / "t.csv", tmp_path / "run"
    pd.DataFrame({"text": TEXTS, "label": ["fruit", "post"] * 40}).to_csv(table, index=False)
    options = {"epochs": 1, "method": "cross_entropy", "settings": {"data.cache": str(tmp_path / "cache")}}
    run = pencil.fit("auto", table, out=out, **options)
    assert run.recipe.data.text_model == run.encoder.plan.text_model == "minilm"
    inputs = load(run.recipe.data).train.inputs
    torch.testing.assert_close(pencil.open_run(out).predict_inputs(inputs), run.predict_inputs(inputs))
    monkeypatch.setattr(quality, "is_installed", lambda: False)  # a recorded choice is kept
    assert run_recipe(run.recipe).encoder.plan.text_model == "minilm"
    plain = pencil.fit("auto", table, **options)
    assert plain.recipe.data.text_model == "auto" and plain.encoder.width == run.encoder.width - 384
