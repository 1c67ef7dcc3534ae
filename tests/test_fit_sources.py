"""pencil.fit on a source by name, folder or file: the same run as the command line trains, with the same recipe."""

import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torchvision.datasets import ImageFolder

import pencil
from pencil.errors import DataError


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    root, draw = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for name, shade in (("cat", 60), ("dog", 180)):
        (root / name).mkdir()
        for number in range(12):
            pixels = draw.integers(shade - 40, shade + 40, (12, 12, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / name / f"{number}.png")
    return root


def fit(data, model="small_cnn", **options):
    return pencil.fit(model, data, method="cross_entropy", epochs=1, progress=False, **options)


def test_a_folder_by_path_and_by_name(photos, monkeypatch):
    monkeypatch.chdir(photos.parent)
    run = fit(photos.name, test=photos)
    assert run.recipe.data.source == run.recipe.data.test == str(photos.resolve())
    assert run.recipe.name == photos.name
    assert run.summary.test is not None
    assert "cat/0.png" in run.labels.keys.to_pylist()
    assert fit(Path(photos)).summary.test is None
    same = fit(ImageFolder(photos))
    assert sorted(same.labels.keys.to_pylist()) == sorted(run.labels.keys.to_pylist())
    np.testing.assert_array_equal(same.labels.probs, run.labels.probs)


def test_a_table_in_a_file_with_a_named_label(tmp_path):
    rows = [f"{number},{'yes' if number % 2 else 'no'}" for number in range(40)]
    (tmp_path / "t.csv").write_text("\n".join(["size,tag", *rows]))
    run = fit(tmp_path / "t.csv", "mlp", label="tag", out=tmp_path / "run", test=str(tmp_path / "t.csv"))
    assert run.recipe.data.columns.label == "tag"
    assert pencil.open_run(tmp_path / "run").recipe.data.source == str(tmp_path / "t.csv")


def test_refused(tmp_path):
    with pytest.raises(DataError, match=r"'photoz' does not exist and is neither a dataset by name \(.*pass one of"):
        fit("photoz")
    with pytest.raises(DataError, match=r"the test set: 'wines' does not exist"):
        fit("wine", "mlp", test="wines")
    with pytest.raises(DataError, match=r"classes is 3; expected the class names"):
        fit("wine", "mlp", classes=3)


@pytest.mark.parametrize("classes", [[f"kind {place}" for place in range(20)], 20])
def test_declared_classes_are_not_taken_for_ids(classes):
    x, y = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32), np.arange(60) % 20
    with pytest.warns(UserWarning, match="look like numbers or ids"):
        pencil.fit("mlp", (x, y), method="cross_entropy", epochs=1, progress=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit((x, y), model="mlp", classes=classes)
