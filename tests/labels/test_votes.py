"""Votes of several annotators: against a slow derivation, against crowd-kit, and in the cases that go wrong easily."""

import numpy as np
import pandas as pd
import pytest

from pencil.data.given.votes import Votes, dawid_skene, votes_of_columns
from pencil.labels.annotators import consensus, describe_annotators, opinion_order

NAMES = ("cat", "dog", "fox")


def crowd(seed=0, rows=300, per_row=4, right=(0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.34), classes=3):
    """Votes of annotators who are right this often, and the truth."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, classes, rows)
    people = np.concatenate([rng.permutation(len(right))[:per_row] for _ in range(rows)])
    places = np.repeat(np.arange(rows), per_row)
    wrong = (truth[places] + rng.integers(1, classes, len(places))) % classes
    labels = np.where(rng.random(len(places)) < np.array(right)[people], truth[places], wrong)
    keys = np.array([f"r{row}" for row in range(rows)])
    return Votes(places, people, labels, keys, tuple(f"a{one}" for one in range(len(right)))), truth


def of(table, classes=NAMES):
    """Votes from rows of annotators' labels, None for a gap."""
    columns = [
        np.array([-1 if label is None else classes.index(label) for label in one]) for one in zip(*table, strict=True)
    ]
    names = tuple(f"a{place}" for place in range(len(columns)))
    return votes_of_columns(columns, names, np.array([str(row) for row in range(len(table))]))


def slowly(votes, classes, prior=None, weights=None, shrinkage=4.0, mean_shrinkage=100.0, iterations=300):  # noqa: C901
    """The same model in loops over probabilities: M step and E step by their definitions."""
    rows, people = len(votes.keys), len(votes.names)
    ballots = list(zip(votes.rows.tolist(), votes.annotators.tolist(), votes.labels.tolist(), strict=True))
    named = [sum(label == k for *_, label in ballots) / len(ballots) for k in range(classes)]
    posterior = []
    for row in range(rows):
        start = [0.0 if prior is None else prior[row][k] for k in range(classes)]
        for one, _, label in ballots:
            start[label] += one == row
        posterior.append([value / sum(start) for value in start])
    constant = [len({label for _, one, label in ballots if one == person}) == 1 for person in range(people)]
    for _ in range(iterations):
        count = np.zeros((people, classes, classes))
        for row, person, label in ballots:
            for k in range(classes):
                count[person][k][label] += posterior[row][k]
        right = sum(count[:, k, k].sum() for k in range(classes)) / len(ballots)
        mean = np.zeros((classes, classes))
        for k in range(classes):
            for label in range(classes):
                equal = right if k == label else (1 - right) / (classes - 1)
                total = count[:, k, :].sum() + mean_shrinkage
                mean[k][label] = (count[:, k, label].sum() + mean_shrinkage * equal) / total
        says = np.zeros_like(count)
        for person in range(people):
            for k in range(classes):
                total = count[person][k].sum() + shrinkage
                says[person][k] = mean[k] if constant[person] else (count[person][k] + shrinkage * mean[k]) / total
        share = [
            (sum(row[k] for row in posterior) + mean_shrinkage * named[k]) / (rows + mean_shrinkage)
            for k in range(classes)
        ]
        posterior = []
        for row in range(rows):
            weight = 1.0 if weights is None else weights[row]
            scores = [share[k] if prior is None else prior[row][k] for k in range(classes)]
            for one, person, label in ballots:
                if one == row:
                    scores = [scores[k] * says[person][k][label] ** weight for k in range(classes)]
            posterior.append([score / sum(scores) for score in scores])
    return np.array(posterior), says


@pytest.mark.parametrize("with_prior", [False, True])
def test_it_equals_the_definition(with_prior):
    votes, _ = crowd(rows=25, per_row=3)
    rng = np.random.default_rng(1)
    prior = rng.dirichlet(np.ones(3), 25) if with_prior else None
    weights = rng.uniform(0.3, 1.0, 25) if with_prior else None
    found = dawid_skene(votes, 3, prior, weights)
    probs, says = slowly(votes, 3, prior, weights)
    np.testing.assert_allclose(found.probs, probs, atol=1e-3)
    np.testing.assert_allclose(found.confusion, says, atol=1e-3)


@pytest.mark.filterwarnings("ignore:The (inplace|copy) keyword")  # of pandas, in crowd-kit
def test_without_shrinkage_it_is_the_model_of_crowd_kit():
    crowdkit = pytest.importorskip("crowdkit.aggregation")
    votes, truth = crowd(rows=400, per_row=5)
    frame = pd.DataFrame({"task": votes.rows, "worker": votes.annotators, "label": votes.labels})
    theirs = crowdkit.DawidSkene(n_iter=300, tol=1e-7).fit(frame)
    ours = dawid_skene(votes, 3, shrinkage=0.0, mean_shrinkage=0.0)
    np.testing.assert_allclose(ours.probs, theirs.probas_.sort_index()[[0, 1, 2]].to_numpy(), atol=2e-3)
    np.testing.assert_allclose(ours.class_prior, theirs.priors_.sort_index().to_numpy(), atol=2e-3)
    assert (ours.probs.argmax(axis=1) == truth).mean() > 0.85


def test_good_annotators_count_for_more_than_the_majority():
    votes, truth = crowd(rows=500, per_row=3, right=(0.97, 0.97, 0.45, 0.45, 0.45, 0.45, 0.45))
    majority = (votes.counts(3) + 1e-3 * np.random.default_rng(0).random((500, 3))).argmax(axis=1)
    found = dawid_skene(votes, 3).probs.argmax(axis=1)
    assert (found == truth).mean() > (majority == truth).mean() + 0.04


def test_a_network_counts_beside_the_votes():
    votes, truth = crowd(rows=400, per_row=2)
    predictions = np.full((400, 3), 0.1) + 0.7 * np.eye(3)[truth]
    alone, both = (consensus(votes, 3, prior).probs.argmax(axis=1) for prior in (None, predictions))
    assert (both == truth).mean() > (alone == truth).mean() + 0.05


def test_few_rows_do_not_lose_a_class():
    votes = of([("cat", "cat", "dog"), ("dog", None, "dog"), (None, None, "cat"), ("cat", "dog", None)])
    assert dawid_skene(votes, 3).probs.argmax(axis=1)[:3].tolist() == [0, 1, 0]


def test_rules_that_always_name_the_same_class_do_not_collapse():
    rng = np.random.default_rng(3)
    truth = rng.integers(0, 2, 600)
    rules = [(k, hit, miss) for k in (0, 1) for hit, miss in ((0.6, 0.03), (0.5, 0.05), (0.4, 0.1))]
    columns = [np.where(rng.random(600) < np.where(truth == k, hit, miss), k, -1) for k, hit, miss in rules]
    votes = votes_of_columns(columns, [f"rule{place}" for place in range(6)], np.arange(600).astype(str))
    plain, ours = (
        dawid_skene(votes, 2, shrinkage=one, mean_shrinkage=other).probs for one, other in ((0.0, 0.0), (4.0, 100.0))
    )
    covered = votes.counts(2).any(axis=1)
    right = [(probs.argmax(axis=1) == truth)[covered].mean() for probs in (plain, ours)]
    assert right[0] < 0.7 < 0.85 < right[1]


def test_one_annotator_is_believed():
    votes = of([("cat",), ("dog",), ("dog",), ("fox",)])
    found = consensus(votes, 3)
    assert found.probs.argmax(axis=1).tolist() == [0, 1, 1, 2]
    (one,) = describe_annotators(votes, found, NAMES)
    assert one.answers == 4 and one.agreement is None and one.accuracy == 1 and not one.at_random
    assert votes.soft_labels(3).tolist() == [[1, 0, 0], [0, 1, 0], [0, 1, 0], [0, 0, 1]]


def test_all_agree():
    votes = of([(name,) * 4 for name in NAMES * 10])
    found = consensus(votes, 3)
    assert (found.probs.max(axis=1) > 0.999).all() and (found.probs.argmax(axis=1) == np.arange(30) % 3).all()
    people = describe_annotators(votes, found, NAMES)
    assert all(one.agreement == 1 and one.accuracy > 0.999 and not one.confusions for one in people)


def test_annotators_who_never_overlap_keep_their_votes():
    table = [tuple(NAMES[row % 3] if person == row % 4 else None for person in range(4)) for row in range(40)]
    votes = of(table)
    found = consensus(votes, 3)
    assert (found.probs.argmax(axis=1) == np.arange(40) % 3).all()
    assert all(one.agreement is None for one in describe_annotators(votes, found, NAMES))


def test_a_row_with_one_vote_needs_another_opinion_before_a_row_with_four():
    table = [("cat",) * 4, ("dog",) * 4, ("fox",) * 4] * 10 + [("cat", None, None, None)]
    table += [("cat", "dog", "cat", "cat")] * 3  # so that nobody is perfect
    votes = of(table)
    order = opinion_order(votes, consensus(votes, 3)).tolist()
    assert order.index(30) < min(order.index(row) for row in range(30))


def test_a_class_that_nobody_names_and_a_row_without_votes():
    votes = of([("cat", "cat", "dog"), ("dog", "dog", "dog"), (None, None, None), ("cat", "cat", "cat")] * 5)
    found = consensus(votes, 3)
    assert np.isfinite(found.probs).all() and (found.probs.argmax(axis=1)[[0, 1, 3]] == [0, 1, 0]).all()
    assert (found.probs[:, 2] < 0.4).all() and np.isnan(votes.soft_labels(3)[2]).all()
    assert not np.isnan(votes.soft_labels(3)[3]).any()


def test_who_answers_at_random_and_who_mixes_up_what():
    rng = np.random.default_rng(7)
    truth = rng.integers(0, 3, 400)
    good = [np.where(rng.random(400) < 0.9, truth, rng.integers(0, 3, 400)) for _ in range(3)]
    mixing = np.where((truth == 1) & (rng.random(400) < 0.7), 2, truth)
    votes = votes_of_columns(
        [*good, mixing, rng.integers(0, 3, 400)], ["ann", "bob", "eve", "mix", "dice"], np.arange(400).astype(str)
    )
    people = describe_annotators(votes, consensus(votes, 3), NAMES)
    assert [one.name for one in people if one.at_random] == ["dice"] == [people[0].name]
    mixed = next(one for one in people if one.name == "mix").confusions[0]
    assert (mixed.true, mixed.named) == ("dog", "fox") and mixed.rate == pytest.approx(0.7, abs=0.1)


def test_votes_follow_their_keys():
    votes, _ = crowd(rows=30)
    keys = votes.keys[[7, 3, 20]]
    chosen = votes.of(np.array([*keys, "new"]))
    assert chosen.counts(3).tolist() == [*votes.counts(3)[[7, 3, 20]].tolist(), [0, 0, 0]]
    assert len(votes.of(np.array([], dtype=str)).rows) == 0
