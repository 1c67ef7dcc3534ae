"""Training that stops anywhere and goes on ends in the same bits as if it had never stopped."""

import copy
import warnings
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from pencil import recipe
from pencil.data import Splits, from_arrays
from pencil.data.inputs.augment import PHOTOS, Augmentation
from pencil.data.inputs.base import ReadOptions
from pencil.data.inputs.transform import IMAGENET
from pencil.errors import RecipeError, RunError
from pencil.labels import LabelStore
from pencil.labels.sharded import ShardedLabelStore
from pencil.methods import METHODS, find_method
from pencil.methods.auto import AutoState
from pencil.methods.state import load_state, state_tree
from pencil.models import mlp, small_cnn
from pencil.runs.checkpoints import Checkpoints
from pencil.runs.resume import RecordedRows, _initial_labels, _matched_state, check_same_recipe
from pencil.training import Trainer, TrainingSettings

STATEFUL = {"pencil": {"step": 2.0, "rounds": 2}, "joint_optimization": {"update_from": 0.3, "window": 3}}
TRANSITION = [[0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.1, 0.1, 0.8]]


class Halt(Exception):  # noqa: N818 - a signal, not an error
    pass


def blobs(rows=90, seed=0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(rows) % 3
    points = torch.randn(rows, 4, generator=generator) + 2 * nn.functional.one_hot(labels, 4)
    noisy = torch.where(torch.rand(rows, generator=generator) < 0.3, (labels + 1) % 3, labels)
    return from_arrays(points, noisy, classes=3, clean_labels=labels)


def network():
    torch.manual_seed(3)
    return nn.Sequential(mlp(4, 3, width=16), nn.Dropout(0.2))


def build(method, pause=None, *, epochs=8, model=None, splits=None, **options):
    splits = splits or Splits(blobs(), blobs(30, 1), blobs(30, 2))
    settings = TrainingSettings(batch_size=16, epochs=epochs, device="cpu", **options)
    return Trainer(copy.deepcopy(model) if model else network(), splits, method, settings, seed=5, on_pause=pause)


def make(name):
    options = dict(STATEFUL.get(name, {}))
    if find_method(name).requirements.transition_matrix:
        options["transition"] = TRANSITION
    return find_method(name)(**options)


def halting_at(call):
    """Stops at the so-manieth place where it could be saved, with the state it had there."""
    calls = iter(range(10**9))

    def pause(trainer):
        if next(calls) == call:
            raise Halt

    return pause


def same(first, second):
    assert first.label_probs.equal(second.label_probs)
    assert first.best_epoch == second.best_epoch
    assert first.judgement.issue_scores.equal(second.judgement.issue_scores)
    for weights, others in (
        (first.model.state_dict(), second.model.state_dict()),
        (first.best_weights, second.best_weights),
    ):
        assert weights.keys() == others.keys() and all(weights[name].equal(others[name]) for name in weights)
    strip = [{k: v for k, v in record.items() if k != "seconds"} for record in first.records]
    assert strip == [{k: v for k, v in record.items() if k != "seconds"} for record in second.records]


def gone_on(make_trainer, call, folder):
    """Stop at a place, go through a checkpoint on disk, go on in a new trainer."""
    stopped = make_trainer(halting_at(call))
    with pytest.raises(Halt):
        stopped.run()
    checkpoints = Checkpoints(folder)
    checkpoints.save(stopped.steps_done, {"training": stopped.state_dict()})
    resumed = make_trainer(None)
    resumed.load_state_dict(checkpoints.newest().part("training"))
    return resumed.run()


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_method_goes_on_to_the_same_bits(name, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        whole = build(make(name), epochs=6).run()
        for call in (7, 31):  # within the first epoch, within a later phase
            same(whole, gone_on(lambda pause: build(make(name), pause, epochs=6), call, tmp_path / str(call)))


def test_further_rounds_go_on_to_the_same_bits(tmp_path):
    def automatic():
        return find_method("auto")(lr=0.05, max_backbone=0.2, rounds=3)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        whole = build(automatic(), epochs=8).run()
        for call in (5, 33, 70):
            same(whole, gone_on(lambda pause: build(automatic(), pause), call, tmp_path / str(call)))


def test_every_place_is_good_to_stop_at(tmp_path):
    """Steps, evaluations, ends of epochs and of phases."""
    places = iter(range(10**9))
    whole = build(make("pencil"), lambda trainer: next(places), epochs=5).run()
    count = next(places)
    assert count == 1 + 5 * (6 + 2 + 1)  # the start; for each epoch six steps, two evaluations and its end
    for call in range(0, count, 4):
        same(whole, gone_on(lambda pause: build(make("pencil"), pause, epochs=5), call, tmp_path / str(call)))


@pytest.mark.parametrize("optimizer", ["sgd", "rmsprop", "adamw"])
def test_every_optimizer_goes_on(optimizer, tmp_path):
    def trainer(pause):
        return build(make("pencil"), pause, optimizer={"name": optimizer}, epochs=5)

    same(trainer(None).run(), gone_on(trainer, 20, tmp_path))


@pytest.mark.parametrize("name", ["auto", "pencil"])
def test_images_with_augmentation_and_several_classes_go_on(name, tmp_path):
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(40, 1, 8, 8, generator=generator)
    labels = (images.flatten(1)[:, :3] > 0.5).int().numpy()
    images[:, 0, 0, :3] = (images[:, 0, 0, :3] > 0.5).float() * 8  # easy to see
    examples = from_arrays(images, labels, multilabel=True)
    splits = Splits(examples, examples)

    def trainer(pause):
        torch.manual_seed(0)
        settings = TrainingSettings(batch_size=16, epochs=5, device="cpu", channels_last=True)
        return Trainer(
            small_cnn(1, 3, width=4),
            splits,
            make(name),
            settings,
            augmentation=Augmentation(crop_padding=1, flip=True),
            on_pause=pause,
        )

    whole = trainer(None).run()
    for call in (8, 19):
        same(whole, gone_on(trainer, call, tmp_path / str(call)))


def test_automatic_correction_of_several_classes_goes_on(tmp_path):
    """Stopped in every phase: the noise model of entries and the sums of an epoch are part of the state."""
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(200, 4, generator=generator)
    given = ((points[:, :3] > 0) ^ (torch.rand(200, 3, generator=generator) < 0.1)).float()
    given[::9], given[1::9, 0] = torch.nan, torch.nan
    examples = from_arrays(points, given.numpy(), multilabel=True)
    splits = Splits(examples.subset(torch.arange(140)), examples.subset(torch.arange(140, 200)))

    def trainer(pause):
        return build(find_method("auto")(lr=0.3, patience=1, max_backbone=0.3), pause, epochs=8, splits=splits)

    whole = trainer(None).run()
    assert {record["phase"] for record in whole.records} == {"backbone", "correction", "finetune"}
    for call in (20, 50, 80):
        same(whole, gone_on(trainer, call, tmp_path / str(call)))


def test_images_changed_one_by_one_go_on_with_another_number_of_workers(tmp_path):
    """Augmentation of (seed, epoch, row): in this process up to the stop, in two worker processes after it."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (40, 3, 32, 32), generator=generator, dtype=torch.uint8)
    examples = from_arrays(images, torch.arange(40) % 3)

    def trainer(pause):
        torch.manual_seed(0)
        inputs = examples.inputs.with_options(ReadOptions(workers=2 if pause is None else 0)).normalized(IMAGENET)
        splits = Splits(replace(examples, inputs=inputs), replace(examples, inputs=inputs))
        settings = TrainingSettings(batch_size=16, epochs=3, device="cpu")
        network, augmentation = small_cnn(3, 3, width=4), replace(PHOTOS, trivial_augment=True, random_erasing=0.5)
        return Trainer(network, splits, make("cross_entropy"), settings, augmentation=augmentation, on_pause=pause)

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create", category=UserWarning)
        whole = trainer(lambda trainer: None).run()
        same(whole, gone_on(trainer, 8, tmp_path))


def test_the_automatic_method_may_stop_anywhere(tmp_path):
    """Also where it has just gone back to an earlier network, and looks at that."""

    def automatic():
        return find_method("auto")(lr=0.05, max_backbone=0.4)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        places = iter(range(10**9))
        whole = build(automatic(), lambda trainer: next(places), epochs=5).run()
        assert {record["phase"] for record in whole.records} == {"backbone", "correction", "finetune"}
        for call in range(next(places)):
            same(whole, gone_on(lambda pause: build(automatic(), pause, epochs=5), call, tmp_path / str(call)))


def dimensions(tree, length):
    """The fields of a state that have tensors of this length, and in which dimension."""
    found = {}
    for name, value in tree.items():
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, torch.Tensor) and length in one.shape:
                found[name] = one.shape.index(length)
    return found


@pytest.mark.parametrize("name", sorted(METHODS))
def test_all_that_a_method_keeps_of_rows_is_matched_when_rows_change(name):
    """Rows 11 to 90 stay and 11 come; what a row had goes with it, and a new row has what it has at first."""
    before, now = blobs(91), blobs(102)
    splits = Splits(now.subset(torch.arange(11, 102)), blobs(30, 1))
    assert now.keys[:91].tolist() == before.keys.tolist()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        trained = build(make(name), halting_at(31), epochs=6, splits=Splits(before, blobs(30, 1)))
        with pytest.raises(Halt):
            trained.run()
        fresh = build(make(name), epochs=6, splits=splits)
    state, stored, first = trained.state_dict(), trained.method, state_tree(fresh.method.state)
    declared = dict(stored.row_state or {})
    assert stored.state is None or dimensions(state_tree(stored.state), 91) == declared
    found = _matched_state(state, fresh, RecordedRows(before.keys, splits.validation.keys))
    for field, dimension in declared.items():
        values, olds = found["method"]["state"][field], getattr(stored.state, field)
        lists = [[one] if isinstance(one, torch.Tensor) else list(one) for one in (values, olds)]
        for value, old in zip(*lists, strict=True):
            assert value.shape[dimension] == 91
            assert value.narrow(dimension, 0, 80).equal(old.narrow(dimension, 11, 80))
            if isinstance(first[field], torch.Tensor):
                assert value.narrow(dimension, 80, 11).equal(first[field].narrow(dimension, 80, 11))
    if stored.labels is not None:
        labels, initial = found["method"]["labels"]["label_logits"], fresh.method.labels.label_logits
        assert labels[:80].equal(stored.labels.label_logits[11:]) and labels[80:].equal(initial[80:])
    fresh.load_state_dict(found)
    fresh.method.on_rows_changed()
    assert fresh.run().label_probs.sum(dim=1).allclose(torch.ones(91))


def test_weights_are_not_taken_for_values_of_rows():
    """The first layer of this network has as many weights as there are rows."""
    splits, others = Splits(blobs(16), blobs(30, 1)), Splits(blobs(20).subset(torch.arange(4, 20)), blobs(30, 1))
    trained, fresh = build(make("auto"), splits=splits), build(make("auto"), splits=others)
    trained.method.state.best_weights = trained.snapshot()
    assert any(len(value) == 16 for value in trained.snapshot() if value.ndim)
    state = _matched_state(trained.state_dict(), fresh, RecordedRows(splits.train.keys, splits.validation.keys))
    pairs = zip(state["method"]["state"]["best_weights"], trained.snapshot(), strict=True)
    assert all(found.equal(weights) for found, weights in pairs)


def test_a_method_that_does_not_declare_the_state_of_rows_is_refused_other_rows():
    trained, others = build(make("elr")), Splits(blobs().subset(torch.arange(4, 90)), blobs(30, 1))
    fresh = build(make("elr"), splits=others)
    fresh.method.row_state = None
    with pytest.raises(
        RunError,
        match="Elr does not declare which part of its state is per row; expected the class attribute row_state",
    ):
        _matched_state(trained.state_dict(), fresh, RecordedRows(trained.splits.train.keys, others.validation.keys))


def test_new_rows_of_sharded_labels_begin_as_given():
    whole, world = LabelStore(blobs(7).given_labels, 3), SimpleNamespace(rank=1, size=2)
    labels = ShardedLabelStore(LabelStore(blobs(7).given_labels[1::2], 3), world, 7)
    assert _initial_labels(labels)["label_logits"][1::2].equal(whole.label_logits[1::2])


def test_a_state_of_another_version_is_refused():
    with pytest.raises(RunError, match="has no best_epoch of AutoState; expected one of this pencil version"):
        load_state(AutoState(total=3), {k: v for k, v in state_tree(AutoState(total=3)).items() if k != "best_epoch"})
    trainer = build(make("cross_entropy"))
    state = trainer.state_dict()
    with pytest.raises(RunError, match="has no known of RunningMeans; expected one of this pencil version"):
        trainer.load_state_dict({**state, "means": {k: v for k, v in state["means"].items() if k != "known"}})


def test_a_value_is_compared_in_the_form_in_which_a_run_stores_it(tmp_path, monkeypatch):
    (tmp_path / "held").mkdir()
    monkeypatch.chdir(tmp_path)

    def chosen(**data):
        return recipe.parse({"data": {"source": "digits", **data}})

    stored = chosen(test=str(tmp_path / "held"), resize=[32, 32])
    check_same_recipe(tmp_path, stored, chosen(test="held", resize=32))
    with pytest.raises(RecipeError, match=r"data.resize is \[16, 16\]; expected \[32, 32\]"):
        check_same_recipe(tmp_path, stored, chosen(test="held", resize=16))
