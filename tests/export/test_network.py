"""An exported network says what the network says: in torch.export, ONNX and safetensors."""

import json
import warnings

import numpy as np
import onnx
import onnxruntime
import pytest
import safetensors
import safetensors.torch
import torch
from conftest import paint
from torch import nn

import pencil
from pencil import ModelError, RunError
from pencil.cli.options import build_recipe
from pencil.export import network as network_export
from pencil.export.network import export_model
from pencil.job import run_recipe

SETTINGS = {"method": "cross_entropy", "epochs": 1, "progress": False}


def load_pt2(path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return torch.export.load(path).module()


@pytest.fixture(scope="module")
def vectors():
    """A run on numbers that came from Python, of scales far apart: without normalisation nothing would agree."""
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(40, 5)) * [1, 10, 100, 0.1, 1] + [0, 50, -300, 1, 2]).astype(np.float32)
    return pencil.fit("mlp", (x, np.arange(40) % 3), classes=["a", "b", "ü"], **SETTINGS), x


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """A run on image files, resized to 10 x 10 and cropped to 8 x 8."""
    folder = tmp_path_factory.mktemp("pictures")
    for number in range(10):
        paint(folder / f"pets/cat/{number}.png", number, (12, 14))
        paint(folder / f"pets/dog/{number}.png", 100 + number, (12, 14))
    words = ["data.resize=10", "data.crop=8", "training.batch_size=8", "data.cache=none", "data.workers=0"]
    chosen = build_recipe(str(folder / "pets"), method="cross_entropy", epochs=1, assignments=words)
    run_recipe(chosen, folder / "run", progress=False)
    return pencil.open_run(folder / "run"), folder


def raw_images(count, size=10):
    return torch.randint(0, 256, (count, 3, size, size), dtype=torch.uint8)


def logits_of(run, x):
    """The long way round, by what the run itself says of new inputs; logits up to a shift."""
    return run.predict_probs(x).log()


def same(found, expected):
    torch.testing.assert_close(found.log_softmax(dim=1), expected, atol=1e-5, rtol=1e-4)


def test_torch_export_takes_raw_images_in_batches_of_any_size(pictures, tmp_path):
    run, _ = pictures
    done = export_model(run, "torch-export", tmp_path / "net.pt2")
    assert done.from_data and done.inputs == 20 and done.largest_difference < 1e-5
    network = load_pt2(tmp_path / "net.pt2")
    for count in (1, 2, 7):
        images = raw_images(count)
        same(network(images), logits_of(run, images))
    beside = json.loads((tmp_path / "net.json").read_text())
    assert beside == done.metadata and beside["classes"] == ["cat", "dog"]
    assert beside["input"] == {"name": "inputs", "type": "uint8", "shape": ["batch", 3, 10, 10]}
    assert beside["preparation"]["included"] and beside["preparation"]["crop"] == 8
    inside = {"metadata.json": ""}
    torch.export.load(tmp_path / "net.pt2", extra_files=inside)
    assert json.loads(inside["metadata.json"]) == beside
    assert sorted(path.name for path in tmp_path.iterdir()) == ["net.json", "net.pt2"]


def test_onnx_says_the_same_and_knows_its_classes(pictures, tmp_path):
    run, _ = pictures
    done = export_model(run, "onnx", tmp_path / "net.onnx")
    assert done.from_data and done.largest_difference < 1e-5
    session = onnxruntime.InferenceSession(tmp_path / "net.onnx", providers=["CPUExecutionProvider"])
    (taken,) = session.get_inputs()
    assert (taken.name, taken.type, taken.shape) == ("inputs", "tensor(uint8)", ["batch", 3, 10, 10])
    for count in (1, 7):
        images = raw_images(count)
        (logits,) = session.run(["logits"], {"inputs": images.numpy()})
        same(torch.from_numpy(logits), logits_of(run, images))
    model = onnx.load(tmp_path / "net.onnx")
    onnx.checker.check_model(model)
    properties = {entry.key: entry.value for entry in model.metadata_props}
    assert json.loads(properties["classes"]) == ["cat", "dog"]
    assert json.loads(properties["preparation"]) == done.metadata["preparation"]


def test_onnx_without_preparation_takes_prepared_numbers(vectors, tmp_path):
    run, x = vectors
    done = export_model(run, "onnx", tmp_path / "net.onnx", preparation=False)
    assert not done.from_data and done.metadata["input"]["type"] == "float32"
    steps = done.metadata["preparation"]
    assert not steps["included"] and steps["divide_by"] == 1
    prepared = ((x - np.array(steps["mean"])) / np.array(steps["std"])).astype(np.float32)
    session = onnxruntime.InferenceSession(tmp_path / "net.onnx", providers=["CPUExecutionProvider"])
    (logits,) = session.run(None, {"inputs": prepared})
    same(torch.from_numpy(logits), logits_of(run, x))


def test_vectors_are_normalised_inside(vectors, tmp_path):
    run, x = vectors
    done = export_model(run, "torch-export", tmp_path / "net.pt2")
    assert done.metadata["classes"] == ["a", "b", "ü"] and not done.metadata["multilabel"]
    same(load_pt2(tmp_path / "net.pt2")(torch.from_numpy(x)), logits_of(run, x))


def test_safetensors_hold_the_weights_and_what_to_do_before(pictures, tmp_path):
    run, _ = pictures
    done = export_model(run, "safetensors", tmp_path / "net.safetensors")
    assert done.largest_difference < 1e-5 and done.metadata["input"]["shape"] == ["batch", 3, 8, 8]
    weights = safetensors.torch.load_file(tmp_path / "net.safetensors")
    assert {name: value.shape for name, value in weights.items()} == {
        name: value.shape for name, value in run.model.state_dict().items()
    }
    assert all(torch.equal(value, weights[name]) for name, value in run.model.state_dict().items())
    with safetensors.safe_open(tmp_path / "net.safetensors", "pt") as file:
        assert json.loads(file.metadata()["classes"]) == ["cat", "dog"]
        steps = json.loads(file.metadata()["preparation"])
    images = raw_images(3)
    x = (images[:, :, 1:9, 1:9] / 255 - torch.tensor(steps["mean"]).view(3, 1, 1)) / torch.tensor(steps["std"]).view(
        3, 1, 1
    )
    same(run.model(x).detach(), logits_of(run, images))
    with pytest.raises(RunError, match="weights without a graph"):
        export_model(run, "safetensors", tmp_path / "other.safetensors", preparation=True)


def test_data_that_is_gone_is_replaced_by_random_inputs(pictures, tmp_path, monkeypatch):
    run, _ = pictures
    moved = run.recipe.model_copy(update={"data": run.recipe.data.model_copy(update={"source": "/nowhere"})})
    lost = pencil.Run(run.model, run.labels, run.metrics, run.summary, moved)
    done = export_model(lost, "safetensors", tmp_path / "net.safetensors")
    assert not done.from_data and done.inputs == 32 and done.metadata["input"]["shape"] == ["batch", 3, 8, 8]


def test_a_network_that_comes_out_different_is_not_kept(vectors, tmp_path, monkeypatch):
    run, _ = vectors
    right = network_export._WRITERS["safetensors"]

    def off(*words):
        forward = right(*words)
        return lambda x: forward(x) + 0.5

    monkeypatch.setitem(network_export._WRITERS, "safetensors", off)
    with pytest.raises(ModelError, match=r"differ by up to 0.5 on 32 inputs; expected at most .*; nothing"):
        export_model(run, "safetensors", tmp_path / "net.safetensors")
    monkeypatch.setitem(network_export._WRITERS, "safetensors", lambda *words: lambda x: right(*words)(x) * torch.nan)
    with pytest.raises(ModelError, match="differ by up to nan"):
        export_model(run, "safetensors", tmp_path / "net.safetensors")
    assert not list(tmp_path.iterdir())


class Fickle(nn.Module):
    """Its path depends on the values, which no graph can hold."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def forward(self, x):
        return self.layer(x) if x.sum() > 0 else self.layer(-x)


def test_a_network_that_cannot_be_traced_is_refused(vectors, tmp_path):
    run = pencil.fit(Fickle(), (vectors[1], np.arange(40) % 3), **SETTINGS)
    with pytest.raises(ModelError, match=r"torch.export cannot trace this network: \S"):
        export_model(run, "torch-export", tmp_path / "net.pt2")
    assert not list(tmp_path.iterdir())
    assert export_model(run, "safetensors", tmp_path / "net.safetensors").largest_difference < 1e-5


def test_what_is_refused_before_anything_is_done(vectors, tmp_path, monkeypatch):
    run, _ = vectors
    with pytest.raises(RunError, match="the format is 'tflite'; expected torch-export, onnx, safetensors"):
        export_model(run, "tflite", tmp_path / "net.tflite")
    with pytest.raises(RunError, match=r"expected a name that ends in \.onnx"):
        export_model(run, "onnx", tmp_path / "net.pt2")
    (tmp_path / "net.json").write_text("mine")
    with pytest.raises(RunError, match=r"net\.json already exists"):
        export_model(run, "torch-export", tmp_path / "net.pt2")
    with pytest.raises(RunError, match="name a file in an existing folder"):
        export_model(run, "safetensors", tmp_path / "no/net.safetensors")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "onnxscript" else name)
    with pytest.raises(RunError, match=r"ONNX needs onnxscript; install it with pip install 'pencil-labels\[onnx\]'"):
        export_model(run, "onnx", tmp_path / "net.onnx")
    assert (tmp_path / "net.json").read_text() == "mine"
