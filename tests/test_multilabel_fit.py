"""Several classes at once through pencil.fit and a run: arrays and datasets in, repaired matrices out."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import pencil
from pencil import DataError, ModelError
from pencil.data import from_arrays
from pencil.data.check.inspection import as_tree, inspect
from pencil.data.inputs.base import TensorInputs
from pencil.data.inputs.images import ImageFiles, ImageInputs
from pencil.job.check import check_recipe
from pencil.recipe import parse

pytestmark = pytest.mark.filterwarnings("ignore:auto (cannot|needs):UserWarning")  # tested in test_auto.py


def scenes(rows=400, classes=4, seed=0, missing=0.2):
    """Sums of the patterns of the classes present; some that are present are not said to be."""
    rng = np.random.default_rng(seed)
    clean = (rng.random((rows, classes)) < 0.35).astype(int)
    x = clean @ np.random.default_rng(99).normal(size=(classes, 12)) + 0.3 * rng.normal(size=(rows, 12))
    given = np.where((clean == 1) & (rng.random(clean.shape) < missing), 0, clean)
    return x.astype(np.float32), given, clean


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    x, given, clean = scenes()
    held, _, truth = scenes(seed=1, rows=100)
    return pencil.fit(
        "mlp", (x, given), test=(held, truth), clean_labels=clean, classes=["sea", "sky", "sun", "tree"], epochs=24,
        out=tmp_path_factory.mktemp("runs") / "scenes", settings={"training.batch_size": 32},
    )  # fmt: skip


def test_missing_classes_are_found(finished):
    labels = finished.summary.labels
    assert labels.entries == 360 * 4 and labels.correct_before < 0.95 and labels.correct_after >= labels.correct_before
    assert labels.detection.average_precision > 0.95  # 40 held-out rows: found, but few are sure enough to be changed
    assert finished.summary.test.last > 0.97
    x, given, clean = scenes()
    corrected = np.array(finished.labels["distribution"].to_pylist()) > 0.5
    assert (given == clean).mean() < 0.96 and (corrected == clean).mean() >= (given == clean).mean()
    assert finished.multilabel and finished.recipe.data.multilabel is True
    again = pencil.open_run(finished.path)
    assert torch.equal(again.predict_probs(x), finished.predict_probs(x))


def test_a_dataset_of_vectors_trains_like_arrays():
    x, given, _ = scenes(rows=80)
    options = {"epochs": 3, "settings": {"data.normalize": "none"}}
    arrays = pencil.fit("mlp", (x, given), **options)
    dataset = pencil.fit("mlp", TensorDataset(torch.from_numpy(x), torch.from_numpy(given)), **options)
    pairs = pencil.fit("mlp", list(zip(torch.from_numpy(x), given.tolist(), strict=True)), **options)
    assert arrays.multilabel and arrays.labels.equals(dataset.labels) and arrays.labels.equals(pairs.labels)


def test_the_keyword_and_the_setting_are_one():
    x, given, _ = scenes(rows=60)
    soft = np.where(given == 1, 0.9, 0.1)
    for options in ({"multilabel": True}, {"settings": {"data.multilabel": True}}):
        assert pencil.fit("mlp", (x, soft), epochs=3, **options).multilabel
    one_hot = np.eye(4)[np.arange(60) % 4]
    assert not pencil.fit("mlp", (x, one_hot), epochs=3).multilabel
    assert pencil.fit("mlp", (x, one_hot), epochs=3, multilabel=True).multilabel


def test_what_does_not_fit_is_refused():
    x, given, clean = scenes(rows=60)
    for options, message in (
        ({"test": (x, clean[:, :3])}, r"^the test set: the labels have 3 columns but there are 4 classes"),
        ({"test": (x, clean[:, 0])}, r"^the test set: labels are int64 of shape \(60,\)"),
        ({"classes": 5}, r"4 columns but there are 5 classes"),
        (
            {"multilabel": False},
            r"label distribution at row \d+ .* is .*expected values from 0 to 1 that sum to 1; fix the row\.$",
        ),
        ({"clean_labels": clean * 0.5}, r"clean_labels: multi-label at row"),
    ):
        with pytest.raises(DataError, match=message):
            pencil.fit("mlp", (x, given), epochs=3, **options)
    with pytest.raises(DataError, match="are single-label; expected multi-label"):
        pencil.fit("mlp", from_arrays(x, clean[:, 0]), epochs=3, multilabel=True)
    with pytest.raises(ModelError, match=r"expected .* one logit for each of the 4 classes"):
        pencil.fit(nn.Linear(12, 3), (x, given), epochs=3)


def test_one_class_by_itself():
    x, given, clean = scenes()
    run = pencil.fit("mlp", (x, given[:, :1]), multilabel=True, epochs=12, settings={"training.batch_size": 32})
    assert run.classes == ("0",) and run.predict_probs(x).shape == (400, 1)
    assert ((run.predict_probs(x).numpy() > 0.5) == clean[:, :1]).mean() > 0.95


def test_unknown_rows_are_warned_of_in_training_and_counted_in_a_check(tmp_path):
    x, given, _ = scenes(rows=60)
    labels = given.astype(np.float32)
    labels[:3], labels[5, 1] = np.nan, np.nan
    with pytest.warns(UserWarning, match="have no known labels and are ignored in training") as seen:
        run = pencil.fit("mlp", (x, labels), method="pencil", epochs=3, settings={"data.validation": 0.0})
    assert [str(warning.message) for warning in seen] == [
        "3 of 60 training rows have no known labels and are ignored in training; label them or remove them"
    ]
    assert run.summary.labels.entries == 60 * 4 - 13
    unchanged = np.array(run.labels["distribution"].to_pylist())[:3]
    assert (unchanged == 0.5).all() and run.labels["changed"].to_pylist()[:3] == [0, 0, 0]
    assert run.labels["confidence"].to_pylist()[:3] == [0.5] * 3  # sure of nothing
    np.savez(tmp_path / "d.npz", x=x, y=labels)
    result = check_recipe(parse({"data": {"source": str(tmp_path / "d.npz")}}))  # and no warning here
    tree = as_tree(result.findings["train"], result.data["train"])
    assert tree["unknown_rows"] == 3 and tree["unknown_labels"] == 13 and not result.problems
    assert tree["rows_without_class"] == inspect(result.data["train"]).rows_without_class > 0


class Mapped(nn.Module):
    """A network with a map for each class: the mean over it is the logit."""

    def __init__(self):
        super().__init__()
        self.conv, self.drop = nn.Conv2d(3, 4, 2, stride=2), nn.Dropout(0.5)

    def maps(self, x):
        return self.drop(self.conv(x))

    def forward(self, x):
        return self.maps(x).mean(dim=(2, 3))


@pytest.fixture(scope="module")
def mapped():
    images = np.random.default_rng(0).integers(0, 256, (600, 6, 8, 3), dtype=np.uint8)
    labels = np.random.default_rng(1).integers(0, 2, (600, 4))
    return images, pencil.fit(Mapped(), (images, labels), method="cross_entropy", epochs=1)


def test_class_maps_are_what_the_logits_are_made_of(mapped):
    images, run = mapped  # more than one batch of them
    run.model.train()
    maps = run.class_maps(images)
    assert run.model.training
    assert maps.shape == (600, 4, 3, 4) and not maps.requires_grad
    torch.testing.assert_close(maps.mean(dim=(2, 3)).sigmoid(), run.predict_probs(images))  # no dropout: evaluation
    values = torch.from_numpy(images).permute(0, 3, 1, 2).contiguous()
    assert torch.equal(run.class_maps(TensorInputs(values)), maps)
    with pytest.raises(DataError, match=r"inputs are float of shape \(3, 6, 8\); this network was trained on uint8"):
        run.class_maps(images.transpose(0, 3, 1, 2).astype(np.float32))


def test_maps_of_images_that_cannot_be_read_are_nan(tmp_path, pets):
    (pets / "cat/bad.png").write_bytes(b"no image")
    names = np.array(["cat/0.png", "cat/bad.png", "dog/0.png"])
    examples = from_arrays(np.zeros((3, 3, 8, 8)), [[1, 1], [1, 0], [0, 1]])
    images = pencil.data.Examples(
        ImageInputs(ImageFiles(pets, names)), torch.tensor([0, 2]), examples.given_labels[:2], ("cat", "dog"),
        examples.keys[:2], multilabel=True,
    )  # fmt: skip
    settings = {
        "model.attention": True,
        "model.attention_width": 4,
        "training.batch_size": 2,
        "data.bad_rows": "skip",
    }
    run = pencil.fit("small_cnn", images, method="cross_entropy", epochs=1, settings=settings)
    with pytest.warns(UserWarning, match="cannot be read"):
        maps = run.class_maps(ImageInputs(ImageFiles(pets, names)))
    assert maps.isnan().flatten(1).all(dim=1).tolist() == [False, True, False] and maps.shape[1] == 2


def test_a_network_without_maps_says_so(finished):
    with pytest.raises(ModelError, match=r"this network \(mlp\) has no class maps; .*model.attention.: True"):
        finished.class_maps(np.zeros((2, 12)))
