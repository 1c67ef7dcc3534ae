"""Confident learning: folds, out-of-fold predictions, and what is pruned against the rule worked out in loops."""

import sys

import numpy as np
import pytest
import torch
from baselines import from_recipe, started, trainer_for

from pencil import RecipeError
from pencil.data import from_arrays
from pencil.methods.confident_learning import ConfidentLearning, cleanlab_issues, mixed_labels, stratified_folds
from pencil.training import Observer

pytest.importorskip("cleanlab")


@pytest.mark.parametrize(("rows", "folds"), [(90, 3), (31, 4), (10, 5), (7, 3)])
def test_folds_share_out_rows_and_classes(rows, folds):
    given = torch.arange(rows) ** 2 % 5 % 3
    fold = stratified_folds(given, folds, seed=0)
    assert set(fold.tolist()) == set(range(folds))
    for chosen in (torch.ones(rows, dtype=torch.bool), *(given == k for k in given.unique())):
        sizes = torch.bincount(fold[chosen], minlength=folds)
        assert sizes.max() - sizes.min() <= 1
    assert torch.equal(fold, stratified_folds(given, folds, seed=0))


def test_folds_depend_on_the_seed():
    given = torch.arange(60) % 3
    assert not torch.equal(stratified_folds(given, 3, seed=0), stratified_folds(given, 3, seed=1))


def slow_issues(given, probs):
    """Prune by noise rate, as the paper has it: thresholds, confident joint, calibration, largest margins first."""
    rows, classes = probs.shape
    thresholds = [np.mean([probs[i, k] for i in range(rows) if given[i] == k]) for k in range(classes)]
    joint = np.zeros((classes, classes))
    for i in range(rows):
        above = [k for k in range(classes) if probs[i, k] >= thresholds[k]]
        if above:
            joint[given[i], max(above, key=lambda k: probs[i, k])] += 1
    for k in range(classes):
        joint[k] *= sum(given == k) / joint[k].sum()
    issues = set()
    for k in range(classes):
        for other in range(classes):
            margins = {i: probs[i, other] - probs[i, k] for i in range(rows) if given[i] == k}
            if other != k:
                issues |= set(sorted(margins, key=margins.get, reverse=True)[: round(joint[k, other])])
    return sorted(i for i in issues if probs[i].argmax() != given[i])


def test_issues_are_those_of_the_rule_in_loops():
    """Cases in which every row is above some threshold, so that calibration has nothing to round."""
    for seed in range(5):
        rng = np.random.default_rng(seed)
        clean = np.arange(120) % 3
        given = np.where(rng.random(120) < 0.2, rng.integers(0, 3, 120), clean)
        probs = np.eye(3)[clean] * 20 + rng.random((120, 3))
        probs /= probs.sum(1, keepdims=True)
        found = cleanlab_issues(torch.from_numpy(given), torch.from_numpy(probs))
        assert found.nonzero()[:, 0].tolist() == slow_issues(given, probs) == np.flatnonzero(given != clean).tolist()


def test_a_row_of_which_no_one_is_confident_is_no_issue():
    """By hand: 12 rows of class 0; 10 count as 0, one as 1, the last as nothing; scaled to 12, one is to be pruned."""
    sure = torch.tensor([[0.9, 0.05, 0.05], [0.05, 0.9, 0.05], [0.05, 0.05, 0.9]]).repeat_interleave(10, 0)
    probs = torch.cat([sure, torch.tensor([[0.3, 0.4, 0.3], [0.05, 0.9, 0.05]])])
    given = torch.cat([torch.arange(3).repeat_interleave(10), torch.tensor([0, 0])])
    assert cleanlab_issues(given, probs).nonzero()[:, 0].tolist() == [31]


def test_labels_are_mixed_row_by_row():
    given, probs = torch.eye(3), torch.full((3, 3), 1 / 3)
    mixed = mixed_labels(given, probs, torch.tensor([False, True, False]))
    assert torch.equal(mixed[[0, 2]], given[[0, 2]]) and torch.equal(mixed[1], probs[1])


class Watch(Observer):
    """The rows that each phase has met, and its networks, by way of the loss."""

    def __init__(self, method):
        self.rows, self.networks, self.said = {}, {}, {}
        inner = method.loss

        def loss(logits, batch):
            self.current = batch.rows.tolist()
            return inner(logits, batch)

        method.loss = loss

    def on_start(self, phases, steps_per_epoch, steps_done, earlier_epochs):
        self.pending = []

    def on_step(self):
        self.pending += self.current

    def on_epoch_end(self, record):
        self.rows.setdefault(record["phase"], set()).update(self.pending)
        self.pending = []
        self.networks[record["phase"]] = self.trainer.model
        self.said[record["phase"]] = self.trainer.predict().softmax(1)


def test_every_row_is_judged_by_a_network_that_has_not_seen_it(blobs):
    method = ConfidentLearning(fold_epochs=8, final_epochs=8, lr=0.05)
    watch = Watch(method)
    watch.trainer = trainer_for(blobs, method, observers=(watch,))
    outcome = watch.trainer.run()
    names = ["fold 1", "fold 2", "fold 3"]
    assert list(watch.rows) == [*names, "final"] and len({id(n) for n in watch.networks.values()}) == 4
    for number, name in enumerate(names):
        held = (method.state.fold_of == number).nonzero()[:, 0]
        assert watch.rows[name] == set(range(90)) - set(held.tolist())
        torch.testing.assert_close(method.state.out_of_fold_probs[held], watch.said[name][held])
    wrong = (blobs.given_labels != blobs.clean_labels).nonzero()[:, 0].tolist()
    assert method.state.issues.nonzero()[:, 0].tolist() == wrong
    assert watch.rows["final"] == set(range(90)) - set(wrong)
    assert (outcome.label_probs.argmax(1) == blobs.clean_labels).all()
    assert outcome.records[-1]["test_accuracy"] > 0.95 and outcome.records[-1]["pruned_rows"] == 3
    assert outcome.records[-9]["labels_changed"] == 0  # as long as folds are under way, labels read as given


def test_soft_given_labels_train(blobs):
    soft = torch.nn.functional.one_hot(blobs.given_labels, 3) * 0.9 + 0.1 / 3
    outcome = trainer_for(from_arrays(blobs.inputs.values, soft), ConfidentLearning(), epochs=8).run()
    assert outcome.label_probs.shape == (90, 3)


def test_a_row_that_cannot_be_read_stays_as_given():
    method = ConfidentLearning(folds=2)
    started(method, (0, 1, 0, 1, 0, 1), classes=2)

    class Context:
        def predict(self, *, best=False):
            logits = torch.tensor([[2.0, 0.0], [0.0, 2.0]] * 3)
            logits[2] = torch.nan
            return logits

    method.collect(0, Context())
    method.prune(Context())
    assert method.state.out_of_fold_probs.isfinite().all() and method.state.out_of_fold_probs[2].tolist() == [1, 0]


def test_from_a_recipe_and_within_a_budget(blobs):
    method = from_recipe("confident_learning", folds=2)
    outcome = trainer_for(blobs, method, epochs=7).run()
    assert [record["phase"] for record in outcome.records] == ["fold 1"] * 2 + ["fold 2"] * 1 + ["final"] * 4
    with pytest.raises(RecipeError, match="3 epochs are too few for 4 phases fold 1, fold 2, fold 3, final"):
        trainer_for(blobs, ConfidentLearning(), epochs=3)


def test_what_it_refuses(monkeypatch):
    with pytest.raises(RecipeError, match=r"4 training rows for 3 folds.*lower method\.folds"):
        started(ConfidentLearning())
    with pytest.raises(RecipeError, match=r"method\.folds"):
        from_recipe("confident_learning", folds=1)
    monkeypatch.setitem(sys.modules, "cleanlab", None)
    with pytest.raises(RecipeError, match=r"pip install 'pencil-labels\[cleanlab\]'"):
        started(ConfidentLearning(), (0, 1, 2, 0, 1, 2))
