"""Rows that could not be read: results without them, of one process and of many."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from pencil.data import Splits, from_arrays
from pencil.labels.dynamics import Evidence
from pencil.labels.judging import Judgement
from pencil.labels.noise_model import NoiseModel
from pencil.runs.unread import find_unread, without_unread
from pencil.training import Outcome
from pencil.training.record import TrainRows

ROWS, UNREAD = 7, [1, 4]


def evidence(rows, unread):
    visits = torch.ones(rows)
    visits[unread] = 0
    numbers = torch.arange(rows, dtype=torch.float32)
    return Evidence(numbers[:, None].repeat(1, 2), numbers, numbers, numbers, visits)


@pytest.fixture
def splits():
    def part(name, rows):
        return from_arrays(np.zeros((rows, 2)), np.arange(rows) % 2, keys=[f"{name}{row}" for row in range(rows)])

    return Splits(part("t", ROWS), part("v", 3), unlabelled=part("u", 2))


@pytest.fixture
def outcome():
    probs = torch.arange(ROWS, dtype=torch.float32)[:, None].repeat(1, 2)
    noise = NoiseModel.__new__(NoiseModel)
    judgement = Judgement(probs.__getitem__, probs[:3], probs[:, 0], probs[:3, 0], noise, 0.1, True, 0.0)
    unlabelled = torch.tensor([[torch.nan, torch.nan], [0.5, 0.5]])
    return Outcome(
        model=None,
        best_weights={},
        best_epoch=1,
        label_probs=probs,
        validation_probs=probs[:3],
        records=[],
        judgement=judgement,
        dynamics=evidence(ROWS, UNREAD),
        validation_dynamics=evidence(3, [2]),
        unlabelled_probs=unlabelled,
    )


def test_results_are_without_them(splits, outcome):
    unread = find_unread(outcome, lambda found: [found])
    assert {name: places.tolist() for name, places in unread.items()} == {
        "train": UNREAD,
        "validation": [2],
        "unlabelled": [0],
    }
    kept, found = without_unread(splits, outcome, unread)
    assert kept.train.keys.tolist() == ["t0", "t2", "t3", "t5", "t6"] and kept.sizes() == {
        "train": 5,
        "validation": 2,
        "unlabelled": 1,
    }
    for values in (found.label_probs[:, 0], found.judgement.issue_scores, found.dynamics.margin):
        assert values.tolist() == [0, 2, 3, 5, 6]
    assert len(found.validation_probs) == len(found.validation_dynamics.visits) == 2
    assert found.unlabelled_probs.tolist() == [[0.5, 0.5]]


def test_nothing_changes_where_all_were_read(splits, outcome):
    whole = replace(
        outcome,
        dynamics=evidence(ROWS, []),
        validation_dynamics=evidence(3, []),
        unlabelled_probs=outcome.validation_probs[:2],
    )
    found = without_unread(splits, whole, find_unread(whole, lambda found: [found]))
    assert found[0] is splits and found[1] is whole


def test_ranks_agree_about_the_places_of_the_others(splits, outcome):
    def shard(rank):
        places = torch.arange(rank, ROWS, 2)
        yield TrainRows(
            places, outcome.label_probs[places], outcome.judgement.probs[places], outcome.dynamics.subset(places)
        )

    nothing = replace(
        outcome, label_probs=torch.empty(0, 2), dynamics=outcome.dynamics.subset(torch.empty(0, dtype=torch.int64))
    )
    ranks = [replace(nothing, shard=lambda rank=rank: shard(rank)) for rank in range(2)]
    local = [torch.tensor([4]), torch.tensor([1])]
    seen = {}
    for one in ranks:
        unread = find_unread(one, lambda _: local)
        assert unread["train"].tolist() == UNREAD
        _, found = without_unread(splits, one, unread)
        for rows in found.train_rows():
            seen |= dict(zip(rows.places.tolist(), rows.label_probs[:, 0].tolist(), strict=True))
    assert seen == {0: 0.0, 1: 2.0, 2: 3.0, 3: 5.0, 4: 6.0}
