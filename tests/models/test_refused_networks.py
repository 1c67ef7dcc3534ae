"""Networks that cannot be trained: one ModelError each, before anything is written."""

import threading

import numpy as np
import pytest
import torch
from commands import pencil
from torch import nn

import pencil as package
from pencil import DataError, ModelError
from pencil.models.probe import non_finite_tensors

X = np.random.default_rng(0).normal(size=(24, 4)).astype(np.float32)
Y = np.arange(24) % 3


class Odd(nn.Module):
    """A linear network with something wrong in what it returns."""

    def __init__(self, change, only_training=False):
        super().__init__()
        self.linear, self.change, self.only_training = nn.Linear(4, 3), change, only_training

    def forward(self, x):
        logits = self.linear(x)
        return self.change(logits) if self.training or not self.only_training else logits


def frozen():
    network = nn.Linear(4, 3)
    network.requires_grad_(False)
    return network


def fail(logits):
    raise RuntimeError("not today\nand not tomorrow")


class Unbuilt(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.other = nn.Linear(4, 3), nn.LazyLinear(2)

    def forward(self, x):
        return self.linear(x)


class PartlyFrozen(nn.Module):
    """What trains is not used."""

    def __init__(self):
        super().__init__()
        self.used, self.other = frozen(), nn.Linear(2, 2)

    def forward(self, x):
        return self.used(x)


class Holds(nn.Linear):
    """Holds something that cannot be copied."""

    def __init__(self, thing):
        super().__init__(4, 3)
        self.thing = thing


def broken(value, name="weight"):
    network = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3))
    with torch.no_grad():
        (network[1].weight if name == "weight" else network[0].running_var).view(-1)[1] = value
    return network


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Linear, r"the model is the class Linear; expected a torch.nn.Module; pass an instance of it"),
        (dict, r"the model is the class dict; expected a torch.nn.Module; derive it"),
        (lambda x: x, r"the model is a function; expected a torch.nn.Module; wrap it"),
        (np.ones(3), r"the model is a ndarray; expected a torch.nn.Module; pass a network"),
        (None, r"the model is a NoneType"),
        (nn.Identity(), r"the model has no parameters; expected at least one to train"),
        (nn.Flatten(), r"the model has no parameters"),
        (frozen(), r"all 2 parameters of the model are frozen \(requires_grad is False\)"),
        (PartlyFrozen(), r"do not depend on a trainable parameter; expected logits with a gradient"),
        (Odd(torch.detach), r"do not depend on a trainable parameter"),
        (Odd(lambda logits: (logits, logits)), r"returns a tuple in evaluation mode; expected a tensor of logits"),
        (Odd(lambda logits: {"logits": logits}), r"returns a dict in evaluation mode; expected a tensor of logits"),
        (Odd(lambda logits: (logits,), True), r"returns a tuple in training mode; expected a tensor of logits"),
        (Odd(lambda logits: logits.argmax(1)), r"returns torch.int64 in evaluation mode; .*remove argmax"),
        (Odd(lambda logits: logits * 1j), r"returns torch.complex64 in evaluation mode"),
        (Odd(lambda logits: logits[:, :2]), r"returns \(2, 2\) for 2 inputs; expected \(2, 3\)"),
        (Odd(lambda logits: logits[:, :2], True), r"returns \(2, 2\) for 2 inputs; expected \(2, 3\)"),
        (Odd(lambda logits: logits.sum()), r"returns \(\) for 2 inputs"),
        (Odd(fail), r"cannot train on inputs of shape \(2, 4\): not today$"),
        (Odd(fail, True), r"cannot train on inputs of shape \(2, 4\): not today$"),
        (Unbuilt(), r"has lazy layers that were never built \(other.weight, other.bias\)"),
        (Holds(threading.Lock()), r"the model cannot be copied: cannot pickle '_thread.lock' object"),
        (Holds(torch.ones(2, requires_grad=True) * 2), r"the model cannot be copied: "),
        (broken(torch.nan), r"1 tensors of the model have NaN or infinity \(1.weight\)"),
        (broken(torch.inf), r"have NaN or infinity \(1.weight\)"),
        (broken(torch.inf, "statistics"), r"have NaN or infinity \(0.running_var\)"),
    ],
)
def test_networks_that_cannot_train_are_refused(tmp_path, model, message):
    with pytest.raises(ModelError, match=message) as raised:
        package.fit(model, (X, Y), epochs=1, method="cross_entropy", out=tmp_path / "run", progress=False)
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "run").exists()


def test_a_mask_may_hold_infinity():
    network = nn.Linear(4, 3)
    network.register_buffer("mask", torch.full((2, 2), -torch.inf))
    assert non_finite_tensors(network) == []
    network.mask[0, 0] = torch.nan
    assert non_finite_tensors(network) == ["mask"]


def test_partly_frozen_and_lazy_networks_train():
    backbone = nn.Linear(4, 5).requires_grad_(False)
    for model in (nn.Sequential(backbone, nn.Linear(5, 3)), nn.LazyLinear(3)):
        package.fit(model, (X, Y), epochs=1, method="cross_entropy", progress=False)
    assert isinstance(model.weight, nn.parameter.UninitializedParameter)  # a user's network never changes


OWN = """
from torch import nn
class Pair(nn.Linear):
    def __init__(self):
        super().__init__(64, 10)
    def forward(self, x):
        logits = super().forward(x.flatten(1))
        return logits, logits
def none(): return nn.Flatten()
def cls(): return nn.Linear
"""


@pytest.mark.parametrize(
    ("name", "message"),
    [("Pair", "returns a tuple"), ("none", "has no parameters"), ("cls", "returns a type")],
)
def test_the_command_line_refuses_them_alike(tmp_path, name, message):
    (tmp_path / "own.py").write_text(OWN)
    words = ("--model", f"own.py:{name}", "--method", "cross_entropy", "--epochs", "1", "--out", "run")
    done = pencil("train", "digits", *words, cwd=tmp_path, code=2)
    assert message in done.stderr and not (tmp_path / "run").exists()


# ---- not finite


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    path = tmp_path_factory.mktemp("finite")
    np.savez(path / "d.npz", x=X, y=Y, x_test=X, y_test=Y)
    words = ("--model", "mlp", "--method", "cross_entropy", "--epochs", "1", "--set", "data.normalize=none")
    pencil("train", "d.npz", *words, "--out", "run", cwd=path)
    return path


def test_outputs_that_are_not_finite_are_an_error_with_the_rows(finished):
    huge = X.copy()
    huge[[3, 7]] = 3e38
    np.savez(finished / "huge.npz", x=huge, y=Y)
    for words in (("predict", "run", "huge.npz"), ("evaluate", "run", "--data", "huge.npz")):
        done = pencil(*words, cwd=finished, code=2)
        assert "returns NaN or infinity for 2 of 24 inputs (row 3, row 7); expected finite numbers" in done.stderr
        assert done.stdout == ""
    with pytest.raises(ModelError, match=r"for 2 of 24 inputs \(row 3, row 7\)"):
        package.open_run(finished / "run").predict_probs(huge)


@pytest.mark.parametrize("epoch", ["last", "best"])
def test_weights_that_are_not_finite_are_an_error_at_load(finished, tmp_path, epoch):
    import shutil

    from safetensors.torch import load_file, save_file

    shutil.copytree(finished / "run", tmp_path / "run")
    path = tmp_path / "run" / {"last": "model.safetensors", "best": "checkpoints/best.safetensors"}[epoch]
    weights = load_file(path)
    weights["1.weight" if "1.weight" in weights else next(iter(weights))].view(-1)[0] = torch.nan
    save_file(weights, path)
    other = {"last": "best", "best": "last"}[epoch]
    with pytest.raises(package.RunError, match=rf"of the {epoch} epoch in .* contain NaN or infinity .*{other}"):
        package.open_run(tmp_path / "run", epoch=epoch)
    package.open_run(tmp_path / "run", epoch=other)


def test_a_class_is_no_network_to_open_a_run_with(finished):
    with pytest.raises(ModelError, match="is the class Linear"):
        package.open_run(finished / "run", model=nn.Linear)


def test_statistics_that_are_not_finite_are_an_error(finished):
    wild = torch.from_numpy(X).double()
    wild[5, 2] = 1e200  # fp64 tensors stay fp64, and the square overflows
    message = r"mean or deviation of input column 2 is not finite: row 5 holds a value of 1e\+200"
    with pytest.raises(DataError, match=message):
        package.fit(nn.Linear(4, 3).double(), (wild, Y), epochs=1, settings={"data.validation": 0.0}, progress=False)
    bad = {"data.normalize": {"mean": [float("nan")] * 4, "std": [1.0] * 4}}
    with pytest.raises(DataError, match=r"data.normalize has a mean or deviation that is NaN or infinite"):
        package.fit("mlp", (X, Y), epochs=1, settings=bad, progress=False)


def test_one_cell_of_1e30_has_finite_statistics():
    wild = X.copy()
    wild[5, 2] = 1e30
    run = package.fit("mlp", (wild, Y), epochs=1, method="cross_entropy", progress=False)
    assert run.predict_probs(wild).isfinite().all()
