"""Training again with reviewed labels: their rows never move, in no store, no method and no command."""

import json
import warnings
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from commands import pencil as command
from torch import nn

import pencil
from pencil import DataError, RecipeError, Stopped
from pencil.data import Splits, from_arrays
from pencil.data.given.given_labels import as_distribution
from pencil.decisions import pinned_labels
from pencil.job import resume_run
from pencil.labels.multilabel_store import MultilabelStore
from pencil.labels.sharded import LabelLayout
from pencil.labels.store import LabelStore
from pencil.labels.top_k import TopKLabelStore
from pencil.methods import METHODS, find_method
from pencil.review.session import Review
from pencil.training import Trainer, TrainingSettings, checkpointing

CLASSES, ROWS = 5, 60
PINNED = torch.arange(40) % 3 == 0
TRANSITION = [[0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.1, 0.1, 0.8]]


def given(multilabel):
    labels = torch.arange(40) % CLASSES
    return nn.functional.one_hot(labels, CLASSES).float() if multilabel else labels


def moved(store, reset_at=None):
    """The store after some updates of random rows by random predictions."""
    generator = torch.Generator().manual_seed(0)
    for number in range(8):
        if number == reset_at:
            store.reset()
        rows = torch.randperm(40, generator=generator)[:16]
        store.update(rows, 4 * torch.randn(16, CLASSES, generator=generator), step=2.0, pull=0.3)
    return store


@pytest.mark.parametrize(
    ("multilabel", "make"),
    [
        (False, lambda labels, k: LabelStore(labels, CLASSES)),
        (False, lambda labels, k: TopKLabelStore(labels, CLASSES, k=2)),
        (True, lambda labels, k: MultilabelStore(labels)),
    ],
    ids=["dense", "top-k", "binary"],
)
@pytest.mark.parametrize("reset_at", [None, 5])
def test_pinned_rows_keep_their_bits_and_the_others_move_as_ever(multilabel, make, reset_at):
    free = LabelLayout().build(given(multilabel), make)
    pinned = LabelLayout(pinned=PINNED).build(given(multilabel), make)
    start = pinned.label_logits.clone()
    assert start.equal(free.label_logits)
    moved(free, reset_at), moved(pinned, reset_at)
    assert pinned.label_logits[PINNED].equal(start[PINNED])
    assert pinned.label_logits[~PINNED].equal(free.label_logits[~PINNED])
    assert not free.label_logits[PINNED].equal(start[PINNED])


def blobs(rows, seed):
    """A third of the rows is pinned, to a label that is wrong: whatever listens to the network would move it."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(rows) % 3
    points = torch.randn(rows, 4, generator=generator, dtype=torch.float64) + 6 * nn.functional.one_hot(labels, 4)
    pinned = torch.rand(rows, generator=generator) < 0.2
    examples = from_arrays(points, torch.where(pinned, (labels + 1) % 3, labels), classes=3)
    return replace(examples, pinned=pinned)


def many_labels(rows, seed):
    generator = torch.Generator().manual_seed(seed)
    points = 3 * torch.randn(rows, 4, generator=generator, dtype=torch.float64)
    pinned, labels = torch.rand(rows, generator=generator) < 0.2, (points[:, :3] > 0).float()
    examples = from_arrays(points, torch.where(pinned[:, None], 1 - labels, labels).numpy(), multilabel=True)
    return replace(examples, pinned=pinned)


class Watch:
    """Looks at the pinned rows of the label store wherever training could be saved."""

    def __init__(self, pinned):
        self.rows, self.first, self.looks = pinned.nonzero()[:, 0], None, 0

    def __call__(self, trainer):
        labels = trainer.method.labels
        if labels is None:
            return
        now = labels[self.rows]
        self.first = now if self.first is None else self.first
        assert now.equal(self.first)
        self.looks += 1


def train(name="pencil", make=blobs, epochs=5, *, forget=False, top_k=None, **options):
    """Train with pinned rows, or with the same labels and none of them pinned."""
    if find_method(name).requirements.transition_matrix:
        options["transition"] = TRANSITION
    splits = Splits(make(ROWS, 0), make(30, 1))
    if forget:
        splits = Splits(replace(splits.train, pinned=None), replace(splits.validation, pinned=None))
    torch.manual_seed(1)
    network = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3)).double()
    settings = TrainingSettings(batch_size=20, epochs=epochs, device="cpu", label_top_k=top_k)
    watch = None if forget else Watch(splits.train.pinned)
    trainer = Trainer(network, splits, find_method(name)(**options), settings, seed=5, on_pause=watch)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return trainer, trainer.run(), watch


QUICKLY = {"step": 20.0, "rounds": 2, "backbone_epochs": 2, "correction_epochs": 2, "finetune_epochs": 1}
EPOCHS = 6


@pytest.mark.parametrize(
    ("make", "top_k"), [(blobs, None), (blobs, 2), (many_labels, None)], ids=["dense", "top-k", "several classes"]
)
def test_pencil_never_moves_them(make, top_k):
    """Through two rounds, each of which begins with a reset, with a look after every step; see test_world for ranks."""
    trainer, outcome, watch = train(make=make, epochs=EPOCHS, top_k=top_k, **QUICKLY)
    part = trainer.splits.train
    sure = as_distribution(part.given_labels, 3).to(outcome.label_probs)
    assert watch.looks > EPOCHS * ROWS // 20
    assert outcome.label_probs[part.pinned].equal(sure[part.pinned])
    assert not outcome.label_probs[~part.pinned].equal(sure[~part.pinned])


def test_without_pins_the_same_labels_would_move():
    trainer, outcome, _ = train(epochs=EPOCHS, forget=True, **QUICKLY)
    wrong = blobs(ROWS, 0).pinned
    moved = outcome.label_probs.argmax(dim=1) != trainer.splits.train.given_labels
    assert moved[wrong].float().mean() > 0.8


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_method_says_the_persons_word(name):
    trainer, outcome, _ = train(name)
    for part, probs in (
        (trainer.splits.train, outcome.label_probs),
        (trainer.splits.validation, outcome.validation_probs),
    ):
        sure = as_distribution(part.given_labels, 3).double()
        assert probs[part.pinned].double().equal(sure[part.pinned])
        assert not probs[~part.pinned].double().equal(sure[~part.pinned])
    if "labels_changed" in outcome.records[-1]:
        changed = (outcome.label_probs.argmax(dim=1) != trainer.splits.train.given_labels).sum()
        assert outcome.records[-1]["labels_changed"] == changed


def test_soft_labels_of_joint_optimization_stay():
    trainer, *_ = train("joint_optimization", update_from=0.2, window=2)
    part = trainer.splits.train
    sure = as_distribution(part.given_labels, 3).double()
    assert trainer.method.state.soft_labels[part.pinned].equal(sure[part.pinned])
    assert not trainer.method.state.soft_labels[~part.pinned].equal(sure[~part.pinned])


def test_no_method_leaves_out_what_a_person_has_looked_at():
    trainer, *_ = train("truncated_lq", epochs=20, k=0.9)
    assert trainer.method.state.chosen[trainer.splits.train.pinned].all() and not trainer.method.state.chosen.all()
    pytest.importorskip("cleanlab")
    for forget in (True, False):
        trainer, *_ = train("confident_learning", epochs=20, forget=forget)
        assert trainer.method.state.issues[blobs(ROWS, 0).pinned].any() == forget


# Runs


def cloud(rows=90):
    rng = np.random.default_rng(0)
    clean = np.arange(rows) % 3
    x = (rng.normal(size=(rows, 4)) + 4 * np.eye(4)[clean]).astype(np.float32)
    return x, np.where(rng.random(rows) < 0.2, (clean + 1) % 3, clean)


def review(path, **said):
    """Lines as the page writes them: key and label, for arrays whose classes are 0, 1 and 2."""
    lines = [
        {"key": key, "split": "train", "decision": "other", "label": label, "given": "0", "corrected": "0"}
        for key, label in said.items()
    ]
    with path.open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    return path


SAID = {str(row): str(row % 7 % 3) for row in range(0, 90, 4)}
QUICK = {"training.batch_size": 16, "method.name": "pencil", "method.step": 8.0}


def fit(path, out=None, **options):
    settings = {**QUICK, "data.pinned": path} if path else QUICK
    return pencil.fit("mlp", cloud(), out=out, epochs=10, settings=settings, progress=False, **options)


def test_fit_takes_reviews_and_writes_down_that_it_did(tmp_path):
    path = review(tmp_path / "reviews.jsonl", **SAID)
    run = fit(str(path), tmp_path / "run")
    rows = {row["key"]: row for row in run.labels.to_pylist()}
    assert {key for key, row in rows.items() if row["pinned"]} == set(SAID)
    assert {rows[key]["split"] for key in SAID} == {"train", "validation"}
    for key, label in SAID.items():
        row = rows[key]
        assert row["given"] == row["corrected"] == label and not row["changed"]
        assert (row["confidence"], row["given_probability"], row["margin"], row["entropy"]) == (1, 1, 1, 0)
        assert row["distribution"] == [float(name == label) for name in run.classes]
    in_training = sum(rows[key]["split"] == "train" for key in SAID)
    assert run.summary.labels.pinned == in_training
    assert f'pinned = "{path}"' in (tmp_path / "run" / "recipe.toml").read_text()
    fingerprints = json.loads((tmp_path / "run" / "environment.json").read_text())["data_fingerprint"]
    assert set(fingerprints) == {"train", "train inputs", "pinned"}
    path.unlink()  # a finished run needs it no more
    assert pencil.open_run(tmp_path / "run").labels.equals(run.labels)


def stopped(monkeypatch, step, *arguments, **options):
    places, original = iter(range(10**9)), checkpointing.Checkpointer.__call__

    def look(self, trainer):
        if next(places) == step:
            self.request.signal = "SIGTERM"
        original(self, trainer)

    with monkeypatch.context() as patch:
        patch.setattr(checkpointing.Checkpointer, "__call__", look)
        with pytest.raises(Stopped):
            fit(*arguments, **options)


def test_a_stopped_run_goes_on_with_the_same_reviews_only(tmp_path, monkeypatch):
    path, out = review(tmp_path / "reviews.jsonl", **SAID), tmp_path / "run"
    whole = fit(path, tmp_path / "whole")
    stopped(monkeypatch, 40, path, out)
    before = path.read_text()
    review(path, **{"9": "1"})
    with pytest.raises(DataError, match=r"the reviewed labels in .* have changed since .* was started"):
        fit(path, out, resume=True)
    with pytest.raises(DataError, match=r"reviewed labels in .* have changed since"):
        resume_run(out, data=Splits(from_arrays(*cloud())), allow_changed=True)
    with pytest.raises(RecipeError, match=r"data.pinned is None; expected '.*reviews.jsonl'"):
        fit(None, out, resume=True)
    skip = {"key": "9", "split": "train", "decision": "skip", "label": None}
    path.write_text(before + json.dumps(skip) + "\n")  # which pins nothing
    monkeypatch.chdir(tmp_path)
    resumed = fit("reviews.jsonl", out, resume=True)
    assert resumed.labels.equals(whole.labels)
    weights, others = resumed.model.state_dict(), whole.model.state_dict()
    assert all(weights[name].equal(others[name]) for name in others)


def test_a_run_without_reviews_does_not_go_on_with_some(tmp_path, monkeypatch):
    stopped(monkeypatch, 40, None, tmp_path / "run")
    with pytest.raises(RecipeError, match=r"data.pinned is .*; expected None"):
        fit(review(tmp_path / "reviews.jsonl", **SAID), tmp_path / "run", resume=True)


@pytest.fixture(scope="module")
def reviewed(tmp_path_factory):
    """Data, a run on it, and a person who knows better about its first rows."""
    folder = tmp_path_factory.mktemp("reviewed")
    x, y = cloud()
    np.savez(folder / "mine.npz", x=x, y=y, classes=["ant", "bee", "cow"], keys=[f"p{i}" for i in range(90)])
    words = ["--method", "pencil", "--epochs", 10, "--set", "training.batch_size=16", "--set", "method.step=8"]
    command("train", "mine.npz", "--out", "first", *words, cwd=folder)
    with Review(folder / "first") as review:
        for row in review.queue.order[:4].tolist():
            review.decide(row, "reject", [])
        for row in review.queue.order[-4:].tolist():
            review.decide(row, "other", [(int(review.queue.given.codes[row]) + 1) % 3])
    command("train", "mine.npz", "--pinned", "first/reviews.jsonl", "--out", "second", *words, cwd=folder)
    return folder


def test_review_and_train_again(reviewed):
    said = pinned_labels(reviewed / "first" / "reviews.jsonl")
    first, second = (pq.read_table(reviewed / name / "labels.parquet") for name in ("first", "second"))
    assert first["split"].to_pylist() == second["split"].to_pylist() and "pinned" not in first.column_names
    rows = {row["key"]: row for row in second.to_pylist() if row["pinned"]}
    assert {key: row["corrected"] for key, row in rows.items()} == said and len(said) == 8
    assert all(row["confidence"] == 1 and not row["changed"] for row in rows.values())
    shown = command("labels", "second", "--only-changed", cwd=reviewed).stdout
    assert not any(f"\n{key}," in shown for key in said)


def test_in_the_next_review_they_come_last(reviewed):
    with Review(reviewed / "second") as review:
        queue = review.queue
        last = {queue.where(row)[0] for row in queue.order[-8:].tolist()}
    assert last == set(pinned_labels(reviewed / "first" / "reviews.jsonl"))


def test_the_command_line_refuses_in_words_and_writes_nothing(reviewed):
    train = partial(command, "train", "mine.npz", "--out", "never", cwd=reviewed, code=2)
    assert "nowhere.jsonl does not exist; expected decisions" in train("--pinned", "nowhere.jsonl").stderr
    review(reviewed / "bird.jsonl", p3="bird")
    assert "the review of 'p3' names 'bird', which is not one of the 3" in train("--pinned", "bird.jsonl").stderr
    review(reviewed / "others.jsonl", q3="ant")
    assert "none of the 1 labels in" in train("--pinned", "others.jsonl").stderr
    assert "none of the 1 labels in" in command(
        "check", "mine.npz", "--pinned", "others.jsonl", cwd=reviewed, code=2
    ).stderr  # fmt: skip
    assert not (reviewed / "never").exists()
    assert "ready to train" in command("check", "mine.npz", "--pinned", "first/reviews.jsonl", cwd=reviewed).stdout
