"""pencil.fit and the run directory, end to end on small data."""

import json
from contextlib import nullcontext

import numpy as np
import pyarrow.parquet as pq
import pytest
import safetensors.torch
import torch
from conftest import paint
from torch import nn
from torch.utils.data import TensorDataset

import pencil
from pencil import DataError, ModelError, RecipeError, RunError, TrainingError, recipe
from pencil.job import run_recipe
from pencil.methods import CrossEntropy
from pencil.runs.directory import RunReader
from pencil.runs.layout import free_path
from pencil.runs.lock import RunLock


def cloud(rows=120, seed=0):
    rng = np.random.default_rng(seed)
    clean = np.arange(rows) % 3
    centres = np.array([[0, 0], [4, 0], [0, 4]], dtype=np.float32)
    x = rng.normal(size=(rows, 2)).astype(np.float32) * 0.4 + centres[clean]
    given = clean.copy()
    given[::10] = (given[::10] + 1) % 3
    return x, given, clean


def net():
    return nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 3))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    x, given, clean = cloud()
    out = tmp_path_factory.mktemp("runs") / "clouds"
    return pencil.fit(
        "mlp", (x, given), out=out, test=(x, clean), clean_labels=clean, epochs=30, seed=1,
        classes=["left", "right", "top"], method="pencil", settings={"training.batch_size": 16, "method.step": 4.0},
    )  # fmt: skip


def test_the_run_directory_is_whole(finished):
    names = {str(path.relative_to(finished.path)) for path in finished.path.rglob("*") if path.is_file()}
    assert names == {
        "recipe.toml", "environment.json", "metrics.jsonl", "labels.parquet",
        "model.safetensors", "checkpoints/best.safetensors", "summary.json",
        "rows.parquet", "manifest.json", "report.html",
    }  # fmt: skip


def test_labels_hold_every_row_in_the_order_it_was_given(finished):
    table = pq.read_table(finished.path / "labels.parquet")
    assert table.column_names == [
        "key", "split", "given", "corrected", "confidence", "given_probability", "margin", "entropy", "changed",
        "issue_score", "suspect", "mean_margin", "disagreement",
        "distribution", "outlier_score", "outlier", "conflict",
    ]  # fmt: skip
    assert table["key"].to_pylist() == [str(i) for i in range(120)]
    _, given, clean = cloud()
    names = np.array(["left", "right", "top"])
    assert table["given"].to_pylist() == names[given].tolist()
    right = np.array(table["corrected"].to_pylist()) == names[clean]
    assert right.mean() >= 0.98
    probs = np.array(table["distribution"].to_pylist())
    assert np.allclose(probs.sum(axis=1), 1, atol=1e-5)
    assert table["confidence"].to_numpy() == pytest.approx(probs.max(axis=1))
    assert table["changed"].to_pylist() == (np.array(table["given"]) != np.array(table["corrected"])).tolist()
    assert table["split"].to_pylist().count("validation") == 12


def test_the_summary_says_what_happened(finished):
    summary = json.loads((finished.path / "summary.json").read_text())
    assert summary == {"format": 2, **finished.summary.to_dict()}
    assert summary["method"] == "pencil" and summary["seed"] == 1 and summary["epochs"] == 30
    assert set(summary["test_accuracy"]) == set(summary["validation_accuracy"]) == {"best", "last"}
    labels = summary["labels"]
    assert labels["correct_before"] == pytest.approx(0.9, abs=0.03) and labels["correct_after"] >= 0.98
    assert summary["data"]["classes"] == ["left", "right", "top"]
    assert len((finished.path / "metrics.jsonl").read_text().splitlines()) == 30


def test_a_run_opens_again_with_the_same_predictions(finished):
    again = pencil.open_run(finished.path)
    x, _, clean = cloud(seed=5)
    probs = again.predict_probs(x)
    assert torch.equal(probs, finished.predict_probs(x))
    assert (probs.argmax(1).numpy() == clean).mean() > 0.95
    assert again.labels.equals(finished.labels) and again.metrics == finished.metrics
    best = pencil.open_run(finished.path, epoch="best")
    kept = safetensors.torch.load_file(finished.path / "checkpoints/best.safetensors")
    assert all(torch.equal(value, kept[name]) for name, value in best.model.state_dict().items())
    with pytest.raises(DataError, match=r"contains vectors of 5 numbers; the run was trained on vectors of 2 numbers"):
        again.predict_probs(np.zeros((1, 5)))


def test_weights_load_without_pencil(finished):
    weights = safetensors.torch.load_file(finished.path / "model.safetensors")
    assert all(torch.equal(value, weights[name]) for name, value in finished.model.state_dict().items())


def test_a_saved_recipe_runs_again_to_the_same_bits(tmp_path):
    tree = {
        "seed": 3,
        "data": {"source": "digits", "rows": 200, "noise": {"kind": "symmetric", "rate": 0.3}},
        "training": {"epochs": 3, "batch_size": 32},
    }
    first = run_recipe(recipe.parse(tree), tmp_path / "first")
    saved = recipe.parse(recipe.read(tmp_path / "first" / "recipe.toml"))
    second = run_recipe(saved, tmp_path / "second")
    for name in ("labels.parquet", "model.safetensors", "recipe.toml"):
        assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "second" / name).read_bytes(), name
    assert first.summary.injected_noise_rate == second.summary.injected_noise_rate > 0.2


def test_the_users_model_and_data_are_not_changed():
    x, given, _ = cloud()
    model = net()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    copies = x.copy(), given.copy()
    run = pencil.fit(model, (x, given), epochs=3)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not torch.equal(run.model.state_dict()["0.weight"], before["0.weight"])
    assert np.array_equal(x, copies[0]) and np.array_equal(given, copies[1])
    assert run.path is None and run.labels.num_rows == 120


def test_own_model_method_and_dataset(tmp_path):
    x, given, _ = cloud()
    dataset = TensorDataset(torch.from_numpy(x), torch.from_numpy(given))
    run = pencil.fit(net(), dataset, method=CrossEntropy(epochs=2), out=tmp_path / "own")
    assert [record["phase"] for record in run.metrics] == ["train", "train"]
    with pytest.raises(RunError, match="was passed as a Python object; open the run with"):
        pencil.open_run(tmp_path / "own")
    again = pencil.open_run(tmp_path / "own", model=net())
    assert torch.equal(again.model[0].weight, run.model[0].weight)
    with pytest.raises(RunError, match="do not fit this model"):
        pencil.open_run(tmp_path / "own", model=nn.Linear(2, 3))


def test_an_output_directory_that_holds_something_is_refused_untouched(finished, tmp_path):
    before = {path: path.stat().st_mtime_ns for path in finished.path.rglob("*")}
    with pytest.raises(RunError, match="is not empty; expected a new or empty directory"):
        pencil.fit(net(), cloud()[:2], out=finished.path)
    assert before == {path: path.stat().st_mtime_ns for path in finished.path.rglob("*")}
    (tmp_path / "empty").mkdir()
    pencil.fit(net(), cloud()[:2], out=tmp_path / "empty", epochs=3)
    assert (tmp_path / "empty" / "summary.json").exists()


def test_a_finished_run_is_opened_only_for_the_same_data_and_recipe(finished):
    x, given, clean = cloud()
    same = {
        "out": finished.path, "resume": True, "test": (x, clean), "clean_labels": clean, "epochs": 30, "seed": 1,
        "classes": ["left", "right", "top"], "method": "pencil",
        "settings": {"training.batch_size": 16, "method.step": 4.0},
    }  # fmt: skip
    assert pencil.fit("mlp", (x, given), **same).labels.equals(finished.labels)
    with pytest.raises(
        DataError, match=r"is a finished run on other data: .*; choose another directory with out=\.\.\."
    ):
        pencil.fit("mlp", (x, given[::-1].copy()), **same)
    different = r"was started with a different recipe; choose another directory with out=.*\n  seed is 5; expected 1"
    with pytest.raises(RecipeError, match=different):
        pencil.fit("mlp", (x, given), **(same | {"seed": 5}))


def never(*_, **__):
    raise AssertionError("the directory is refused before that")


@pytest.mark.parametrize("fault", ["not empty", "not writable", "in use"])
def test_the_directory_is_refused_before_anything_is_read(tmp_path, monkeypatch, fault):
    monkeypatch.setattr("pencil.job.run.load", never)
    out = tmp_path / "below" / "run"
    if fault == "not writable":
        (tmp_path / "below").write_text("a file")
    else:
        out.mkdir(parents=True)
    if fault == "not empty":
        (out / "notes.txt").write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    holder = RunLock(out) if fault == "in use" else nullcontext()
    expected = {"not empty": "is not empty", "not writable": "cannot lock", "in use": "is in use by process"}
    with holder, pytest.raises(RunError, match=expected[fault]):
        run_recipe(recipe.parse({"data": {"source": "digits"}}), out)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_new_run_is_locked_while_data_and_features_are_made(tmp_path, monkeypatch):
    out = tmp_path / "runs" / "new"

    def second_start(*_):
        with pytest.raises(RunError, match="is in use by process"):
            pencil.fit(net(), cloud()[:2], out=out, epochs=3)
        raise DataError("nothing there")

    monkeypatch.setattr("pencil.job.run.load", second_start)
    for made in ([], [tmp_path / "runs", out]):  # what was there before is there afterwards, and nothing else
        for folder in made:
            folder.mkdir()
        with pytest.raises(DataError, match="nothing there"):
            run_recipe(recipe.parse({"data": {"source": "digits"}}), out)
        assert sorted(tmp_path.rglob("*")) == made


def test_a_run_directory_inside_the_data_is_made_after_these_are_read(tmp_path, monkeypatch):
    for split in ("train", "val"):
        for number in range(8):
            paint(tmp_path / split / ("cat", "dog")[number % 2] / f"{number}.png", number)
    out, seen = tmp_path / "runs" / "new", []

    def refuse(_, loaded, *__, **___):
        seen.append((loaded.train.classes, (out / ".lock").is_file()))
        raise DataError("enough")

    monkeypatch.setattr("pencil.job.run.try_networks", refuse)
    with pytest.raises(DataError, match="enough"):
        run_recipe(recipe.parse({"data": {"source": str(tmp_path)}}), out)
    assert seen == [(("cat", "dog"), True)] and not (tmp_path / "runs").exists()


def refit(x, y, settings):
    return pencil.fit("mlp", (x, y), settings=settings, out="r")


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x, y: pencil.fit(nn.Linear(2, 5), (x, y), out="r"), ModelError, r"one logit for each of the 3 classes"),
        (lambda x, y: pencil.fit(net(), (x, y[:-1]), out="r"), DataError, r"x has 120 rows but y has 119"),
        (lambda x, y: pencil.fit(net(), (x, y), classes=4, out="r"), DataError, r"1 of 4 classes have no example: '3'"),
        (
            lambda x, y: pencil.fit(net(), (x, y), settings={"training.batch_siz": 3}, out="r"),
            RecipeError,
            r"'training.batch_size'",
        ),
        (
            lambda x, y: pencil.fit(net(), (x, y), epochs=2, method="pencil", settings={"method.step": 2.0}, out="r"),
            RecipeError,
            r"2 epochs are too few for 3 phases",
        ),
        (
            lambda x, y: refit(x, y, {"method.name": "pencil", "method.init_probability": 1.5}),
            RecipeError,
            r"initial probability is 1.5",
        ),
        (
            lambda x, y: refit(x, y, {"data.augmentation": {"flip": True}}),
            DataError,
            r"augmentation .*expected images",
        ),
        (
            lambda x, y: refit(x, y, {"data.normalize": {"mean": [0], "std": [1]}}),
            DataError,
            r"normalize .*expected 2 of each",
        ),
        (lambda x, y: refit(x, y, {"training.batch_size": 1}), ModelError, r"cannot train on inputs of shape \(1, 2\)"),
        (lambda x, y: refit(x, y, {"model.options": {"width": -3}}), ModelError, r"does not take the options"),
        (lambda x, y: pencil.fit(net(), (x, y), settings={"model.options": {}}, out="r"), RecipeError, r"is an object"),
        (lambda x, y: pencil.fit(net(), (x, y), test=(x[:, :1], y), out="r"), DataError, r"test inputs are .*\(1,\)"),
        (lambda x, y: pencil.fit("small_cn", (x, y), out="r"), ModelError, r"there is no model 'small_cn'"),
        (lambda x, y: pencil.fit("timm/resnet1", (x, y), out="r"), ModelError, r"needs images"),
        (lambda x, y: pencil.fit(net(), (x, y), method="pencl", out="r"), RecipeError, r"no method 'pencl'"),
    ],
)
def test_refusals_come_before_anything_is_written(call, error, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    x, given, _ = cloud()
    with pytest.raises(error, match=message):
        call(x, given)
    assert list(tmp_path.iterdir()) == []


def test_a_failed_run_leaves_what_it_had_and_is_known_as_unfinished(tmp_path):
    x, given, _ = cloud()
    with pytest.raises(TrainingError, match=r"the loss became|is not finite"):
        pencil.fit(net(), (x * 1e18, given), out=tmp_path / "r", settings={"method.lr": 1e30, "data.normalize": "none"})
    assert (tmp_path / "r" / "recipe.toml").exists() and not (tmp_path / "r" / "summary.json").exists()
    assert not list((tmp_path / "r").glob(".*"))
    for opened in (pencil.open_run, RunReader):
        with pytest.raises(RunError, match=r"has not finished .*pencil resume"):
            opened(tmp_path / "r")
    with pytest.raises(RunError, match="is not a run directory"):
        pencil.open_run(tmp_path)


@pytest.mark.parametrize("name", ["labels.parquet", "model.safetensors", "summary.json"])
def test_a_damaged_run_is_named(tmp_path, name):
    pencil.fit("mlp", cloud()[:2], out=tmp_path / "r", epochs=3)
    (tmp_path / "r" / name).write_bytes(b"{ not what it was")
    with pytest.raises(RunError, match=r"the run in .* is damaged"):
        pencil.open_run(tmp_path / "r")


def test_a_misspelt_network_is_refused_before_the_data_is_read(tmp_path):
    found = recipe.parse({"data": {"source": str(tmp_path / "missing.csv")}, "model": {"name": "small_cn"}})
    with pytest.raises(ModelError, match=r"no model 'small_cn' \(did you mean 'small_cnn'\?\)"):
        run_recipe(found)


def test_images_seen_as_uint8_are_not_mistaken_for_floats():
    images = np.random.default_rng(0).integers(0, 256, (40, 8, 8), dtype=np.uint8)
    run = pencil.fit("small_cnn", (images, np.arange(40) % 2), epochs=3)
    assert run.predict_probs(images).shape == (40, 2)
    with pytest.raises(DataError, match=r"inputs are float .* trained on uint8"):
        run.predict_probs(images[:, None].astype(np.float32))


def test_known_clean_labels_survive_injected_noise():
    x, given, clean = cloud()
    noise = {"data.noise": {"kind": "symmetric", "rate": 0.5}}
    run = pencil.fit(net(), (x, given), clean_labels=clean, epochs=3, settings=noise)
    plain = pencil.fit(net(), (x, given), epochs=3, settings=noise)
    assert run.summary.labels.correct_before != plain.summary.labels.correct_before


def test_a_method_object_is_not_changed():
    method = CrossEntropy(epochs=2)
    own = pencil.methods.Pencil(backbone_epochs=1, correction_epochs=1, finetune_epochs=1)
    for passed in (method, own):
        before = dict(vars(passed))
        pencil.fit(net(), cloud()[:2], method=passed)
        assert vars(passed) == before


def test_free_path_counts_up(tmp_path):
    assert free_path(tmp_path, "a").name == "a"
    (tmp_path / "a").mkdir()
    assert free_path(tmp_path, "a").name == "a-2"


def test_timm_models_by_name():
    images = np.random.default_rng(0).integers(0, 256, (24, 32, 32, 3), dtype=np.uint8)
    run = pencil.fit("timm/test_resnet", (images, np.arange(24) % 2), epochs=3, settings={"training.batch_size": 8})
    assert run.recipe.model.name == "timm/test_resnet"
    with pytest.raises(ModelError, match="timm has no model 'resnet1888'"):
        pencil.fit("timm/resnet1888", (images, np.arange(24) % 2), epochs=3)


def test_a_method_that_needs_the_true_matrix_gets_that_of_injected_noise_and_no_other():
    from pencil.data import Splits
    from pencil.data.settings import DataSettings, RateNoise
    from pencil.job import assemble
    from pencil.recipe import parse

    x = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    examples = pencil.data.from_arrays(x, np.arange(40) % 2)
    plain = parse({"method": {"name": "forward"}})
    with pytest.raises(pencil.RecipeError, match=r"method.transition is not set; this method needs the true"):
        assemble(plain, Splits(examples)).trainer()
    noisy = plain.model_copy(update={"data": DataSettings(noise=RateNoise(kind="circular", rate=0.25))})
    told = assemble(noisy, Splits(examples)).recipe.method["transition"]
    assert told == [[0.75, 0.25], [0.25, 0.75]]
