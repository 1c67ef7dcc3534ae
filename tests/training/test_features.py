"""Training on features of a frozen backbone: the same as computed by hand, kept, found again, resumed."""

import shutil

import commands
import numpy as np
import pytest
import torch
from conftest import paint, truncate
from PIL import Image

import pencil
from pencil import recipe
from pencil.data.inputs.base import TensorInputs
from pencil.data.inputs.feature_store import FeatureStore
from pencil.data.read import load
from pencil.errors import DataError, ModelError, RecipeError, Stopped
from pencil.job import run_recipe
from pencil.job.assembly import assemble
from pencil.job.check import check_recipe
from pencil.training import features as features_module
from pencil.training.checkpointing import Checkpointer
from pencil.training.compute import CPU
from pencil.training.extraction import Extractor
from pencil.training.features import compute_features, count_missing


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Forty pictures of 96 x 72 pixels: bright ones and dark ones, four of them in the wrong folder."""
    folder = tmp_path_factory.mktemp("data") / "photos"
    for number in range(40):
        bright = number % 2 == 0
        given = bright if number >= 4 else not bright
        path = paint(folder / f"{'bright' if given else 'dark'}/{number}.png", number, (72, 96))
        pixels = np.asarray(Image.open(path)) // 2 + (127 if bright else 0)
        Image.fromarray(pixels.astype(np.uint8)).save(path)
    return folder


def photo_recipe(folder, *more, method="elr", epochs=4):
    tree = {"data": {"source": str(folder), "workers": 0}, "method": {"name": method}, "training": {"epochs": epochs}}
    for key, value in more:
        tree = recipe.assign(tree, key.split("."), value)
    return recipe.parse(tree)


def test_features_are_those_of_the_backbone(photos, tmp_path):
    job = assemble(photo_recipe(photos), load(photo_recipe(photos).data))
    found = compute_features(job.prepared.splits, job.network, tmp_path / "store")
    assert found.computed == 40
    train = job.prepared.splits.train
    images = train.some_inputs(4)
    with torch.no_grad():
        by_hand = job.network.eval().backbone(torch.nn.functional.interpolate(images, (112, 149), mode="bilinear"))
    stored = found.splits.train.inputs.raw(torch.arange(4)).values.float()
    torch.testing.assert_close(stored, by_hand, rtol=2e-3, atol=2e-3)
    scaled = next(iter(found.splits.train.inputs.batches([torch.arange(len(train))]))).values
    torch.testing.assert_close(scaled.mean(dim=0), torch.zeros(1280), atol=1e-3, rtol=0)
    again = compute_features(job.prepared.splits, job.network, tmp_path / "store")
    assert again.computed == 0 and count_missing(job.prepared.splits, 1280, tmp_path / "store") == 0
    torch.testing.assert_close(again.splits.train.inputs.in_memory, found.splits.train.inputs.in_memory)


class Flat(torch.nn.Module):
    def forward(self, images):
        return images.flatten(1)


@pytest.mark.parametrize("value", [70000.0, -70000.0, torch.inf, torch.nan])
def test_features_that_half_precision_cannot_hold_are_refused(value):
    """Kept as infinity, they would be found in the store by every later run."""
    images = torch.full((6, 3, 2, 2), 65504.0)
    extractor, chunks = Extractor(Flat(), CPU), [torch.arange(6)]
    (found,) = extractor.chunks(TensorInputs(images), chunks)
    assert (found.features == 65504).all()
    images[4, 1, 0, 0] = value
    with pytest.raises(ModelError, match="beyond 65,504"):
        list(extractor.chunks(TensorInputs(images), chunks))


@pytest.fixture(scope="module")
def trained(photos, tmp_path_factory):
    return run_recipe(photo_recipe(photos, epochs=8), tmp_path_factory.mktemp("trained") / "run")


def test_a_run_on_photos_predicts_and_opens_like_any_other(trained):
    run = trained
    assert run.recipe.model.train == "head" and run.recipe.model.name == "efficientnet_lite2"
    assert run.environment["first_weights"]["pretrained"] == "efficientnet_lite2"
    again = pencil.open_run(run.path)
    inputs = load(run.recipe.data).train.inputs
    torch.testing.assert_close(again.predict_inputs(inputs), run.predict_inputs(inputs))
    bright = run.predict_inputs(inputs)[:, run.classes.index("bright")] > 0.5
    truth = torch.tensor([int(str(name).split("/")[1][:-4]) % 2 == 0 for name in inputs.encoded.names])
    assert (bright == truth).float().mean() > 0.85
    best = pencil.open_run(run.path, epoch="best")
    assert set(best.model.state_dict()) == set(run.model.state_dict())
    assert (run.path / "report.html").is_file()


def test_a_second_run_finds_the_features(photos, tmp_path, monkeypatch):
    settings = ("data.cache", str(tmp_path / "cache"))
    run_recipe(photo_recipe(photos, settings))

    def fail(*_words):
        raise AssertionError("features are computed again")

    monkeypatch.setattr(features_module._Extraction, "_compute", fail)
    run_recipe(photo_recipe(photos, settings, method="cross_entropy"))
    with pytest.raises(AssertionError, match="computed again"):
        run_recipe(photo_recipe(photos, settings, ("data.resize", 80)))


def test_stopped_extraction_goes_on_where_it_was(photos, tmp_path, monkeypatch):
    monkeypatch.setattr(features_module, "CHUNK", 16)
    job = assemble(photo_recipe(photos), load(photo_recipe(photos).data))

    def stop(done, _total):
        if done >= 16:
            raise Stopped("enough")

    with pytest.raises(Stopped):
        compute_features(job.prepared.splits, job.network, tmp_path / "store", report=stop)
    assert count_missing(job.prepared.splits, 1280, tmp_path / "store") == 24
    assert compute_features(job.prepared.splits, job.network, tmp_path / "store").computed == 24


def finetuning_recipe(photos):
    """Six epochs of the head, two of the whole network."""
    return photo_recipe(photos, ("model.finetune_epochs", 2), epochs=6)


@pytest.fixture(scope="module")
def finetuned(photos, tmp_path_factory):
    return run_recipe(finetuning_recipe(photos), tmp_path_factory.mktemp("finetuned") / "run")


def test_resume_is_exact(photos, finetuned, tmp_path, monkeypatch):
    save_or_stop = Checkpointer.__call__
    for done in (3, 7):  # while the head trains, and while the whole network does

        def stop(self, trainer, done=done):
            if len(trainer.records) == done:
                self.request.signal = "SIGTERM"
            save_or_stop(self, trainer)

        with monkeypatch.context() as patch, pytest.raises(Stopped):
            patch.setattr(Checkpointer, "__call__", stop)
            run_recipe(finetuning_recipe(photos), tmp_path / "run", resume=True)
    resumed = run_recipe(finetuning_recipe(photos), tmp_path / "run", resume=True)
    for name, value in finetuned.model.state_dict().items():
        assert torch.equal(value, resumed.model.state_dict()[name]), name
    assert resumed.labels.table.equals(finetuned.labels.table)


def test_unreadable_photos_are_skipped_or_named(photos, tmp_path):
    folder = tmp_path / "photos"
    shutil.copytree(photos, folder)
    truncate(next(iter(sorted((folder / "dark").iterdir()))))
    with pytest.raises(DataError, match="cannot be read"):
        run_recipe(photo_recipe(folder))
    with pytest.warns(UserWarning, match="skipped"):
        run = run_recipe(photo_recipe(folder, ("data.bad_rows", "skip")))
    assert len(run.labels) == 39 and run.summary.data.unread == 1


def test_check_plans_a_head_and_writes_nothing(photos, tmp_path):
    found = check_recipe(photo_recipe(photos, ("data.cache", str(tmp_path / "cache"))))
    assert not found.problems and found.plan["trained_part"] == "head" and found.seconds > 0
    assert not (tmp_path / "cache").exists()


def test_a_user_dataset_of_photos_trains_a_head(photos):
    images = torch.rand(24, 3, 96, 96) * torch.linspace(0.2, 1, 24)[:, None, None, None]
    items = [(image, int(number >= 12)) for number, image in enumerate(images)]
    run = pencil.fit("auto", items, method="cross_entropy", epochs=3)
    assert run.recipe.model.train == "head" and run.predict_probs(images).shape == (24, 2)


def test_export_has_backbone_and_head_in_one_file(trained, tmp_path):
    commands.pencil("export", trained.path, "--format", "torch-export", "--out", "net.pt2", cwd=tmp_path)
    program = torch.export.load(tmp_path / "net.pt2").module()
    assert program(torch.zeros(2, 3, 72, 96, dtype=torch.uint8)).shape == (2, 2)


def test_finetuning_moves_the_backbone_and_keeps_the_labels(photos, finetuned):
    head, run = run_recipe(photo_recipe(photos, ("model.name", "efficientnet_lite0"), epochs=6)), finetuned
    assert [record["epoch"] for record in run.metrics] == list(range(1, 9)) and run.summary.epochs == 8
    assert run.labels.table.equals(head.labels.table)
    before, after = head.model.state_dict(), run.model.state_dict()
    assert not torch.equal(before["backbone.conv_stem.weight"], after["backbone.conv_stem.weight"])
    assert not list((run.path / "checkpoints").rglob("step-*"))
    again = pencil.open_run(run.path)
    inputs = load(run.recipe.data).train.inputs
    torch.testing.assert_close(again.predict_inputs(inputs), run.predict_inputs(inputs))
    with pytest.raises(ModelError, match=r"finetune_epochs is 2 and model\.train is all"):
        run_recipe(photo_recipe(photos, ("model.finetune_epochs", 2), ("model.train", "all")))


def test_the_store_is_named_after_all_that_features_depend_on(photos):
    names = set()
    for more in ((), (("model.options", {"global_pool": "max"}),), (("data.resize", 80),), (("data.crop", 64),)):
        given = (("model.name", "efficientnet_lite0"), ("model.pretrained", True), *more)
        chosen = photo_recipe(photos, *given)
        job = assemble(chosen, load(chosen.data))
        names.add(features_module.store_name(job.recipe.model, job.network, job.recipe.data))
    assert len(names) == 4


def test_features_of_a_dataset_without_digests_are_never_found_again(tmp_path):
    first, second = (torch.rand(24, 3, 96, 96) * scale for scale in (0.2, 1.0))
    options = {"method": "cross_entropy", "epochs": 1, "settings": {"data.cache": str(tmp_path / "cache")}}
    runs = [pencil.fit("auto", [(one, i % 2) for i, one in enumerate(part)], **options) for part in (first, second)]
    assert not torch.equal(*(run.model.feature_mean for run in runs)) and not list(tmp_path.rglob("*.f16"))


def test_waiting_for_another_run_is_said_and_can_be_stopped(photos, tmp_path):
    job = assemble(photo_recipe(photos), load(photo_recipe(photos).data))
    store, seen = FeatureStore(tmp_path / "store", 1280), []

    def waiting():
        seen.append(1)
        raise Stopped("enough")

    with store.lock(), pytest.raises(Stopped):
        compute_features(job.prepared.splits, job.network, tmp_path / "store", waiting=waiting)
    assert seen == [1]


def test_budget_and_finetuning_exclude_each_other(photos):
    budget = ("training.minutes", 1), ("model.finetune_epochs", 2)
    with pytest.raises(RecipeError, match="expected one of them"):
        run_recipe(photo_recipe(photos, *budget, method="auto", epochs=None))


def test_finetuning_takes_float_images_without_colour_steps():
    images = torch.rand(24, 3, 72, 72) * torch.linspace(0.2, 1, 24)[:, None, None, None]
    labels = (torch.arange(24) >= 12).long()
    options = {"model.finetune_epochs": 1}
    run = pencil.fit("auto", (images.numpy(), labels.numpy()), method="cross_entropy", epochs=2, settings=options)
    assert run.summary.epochs == 3
