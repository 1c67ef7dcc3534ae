"""Every label store satisfies the protocol, and does with it what every other one does."""

import pytest
import torch

from pencil import RecipeError
from pencil.labels import Labels, LabelStore, MultilabelStore, ShardedLabelStore, TopKLabelStore
from pencil.labels.forms import label_form
from pencil.training.distributed import SINGLE_PROCESS

ROWS, CLASSES = 9, 4
GIVEN = torch.arange(ROWS) % CLASSES
STORES = {
    "dense": lambda: LabelStore(GIVEN, CLASSES),
    "multilabel": lambda: MultilabelStore(torch.nn.functional.one_hot(GIVEN, CLASSES).float()),
    "top_k": lambda: TopKLabelStore(GIVEN, CLASSES, k=2),
    "sharded": lambda: ShardedLabelStore(LabelStore(GIVEN, CLASSES), SINGLE_PROCESS, ROWS),
    "sharded_multilabel": lambda: ShardedLabelStore(STORES["multilabel"](), SINGLE_PROCESS, ROWS),
    "sharded_top_k": lambda: ShardedLabelStore(STORES["top_k"](), SINGLE_PROCESS, ROWS),
}
ALL = torch.arange(ROWS)
CHOSEN = torch.tensor([7, 0, 3])


@pytest.fixture(params=STORES)
def make(request):
    return STORES[request.param]


def moved(labels):
    """Label logits of the chosen rows, each with another maximum and the sum that it had."""
    return labels[CHOSEN].roll(1, dims=1)


def test_it_satisfies_the_protocol(make):
    labels = make()
    assert isinstance(labels, Labels)
    assert len(labels) == len(labels.given_labels) == ROWS and labels.num_classes == CLASSES


def test_rows_are_read_written_and_reset(make):
    labels = make()
    start = labels[ALL]
    values = moved(labels)
    labels.write(CHOSEN, values)
    assert torch.equal(labels[CHOSEN], values)
    others = torch.tensor([row for row in range(ROWS) if row not in CHOSEN.tolist()])
    assert torch.equal(labels[others], start[others])
    assert labels.probs(CHOSEN).argmax(dim=1).tolist() == ((GIVEN[CHOSEN] + 1) % CLASSES).tolist()
    labels.reset()
    assert torch.equal(labels[ALL], start)


def test_what_is_read_is_a_copy(make):
    labels = make()
    start = labels[ALL]
    labels[ALL].zero_()
    assert torch.equal(labels[ALL], start)


def test_pinned_rows_stay_when_they_are_written(make):
    labels = make()
    start, values = labels[ALL], moved(labels)
    labels.pinned = ALL == 0
    labels.write(CHOSEN, values)
    assert torch.equal(labels[torch.tensor([0])], start[:1])
    assert torch.equal(labels[CHOSEN[[0, 2]]], values[[0, 2]])


def test_state_dict_round_trip(make):
    labels, other = make(), make()
    labels.write(CHOSEN, moved(labels))
    other.load_state_dict({name: rows.clone() for name, rows in labels.state_dict().items()})
    assert torch.equal(other[ALL], labels[ALL])
    assert all(len(rows) == ROWS for rows in labels.state_dict().values())  # resuming indexes them by row


def test_probabilities_follow_from_the_logits(make):
    labels = make()
    torch.testing.assert_close(labels.to_probs(labels.initial_logits()), labels.probs(), rtol=0, atol=1e-3)
    assert torch.equal(labels.initial_logits(CHOSEN), labels.initial_logits()[CHOSEN])
    labels.write(CHOSEN, moved(labels))
    assert torch.equal(labels.probs(), labels.to_probs(labels[ALL]))
    assert torch.equal(labels.probs(CHOSEN), labels.probs()[CHOSEN])
    assert torch.equal(labels.evidence(0.0), labels.probs())
    assert torch.equal(labels.evidence(2.0, CHOSEN), labels.evidence(2.0)[CHOSEN])
    assert (labels.evidence(2.0) >= 0).all() and (labels.evidence(2.0) <= 1).all()


def test_all_rows_are_local_in_one_process(make):
    labels = make()
    assert labels.local_rows is None or labels.local_rows.equal(ALL)
    assert torch.equal(labels.local[ALL], labels[ALL])
    assert labels.local.local is labels.local
    values = torch.randn(ROWS, 2)
    assert torch.equal(labels.gather(values), values)
    assert labels.mean(torch.tensor(0.25)) == 0.25


@pytest.mark.parametrize(
    ("multilabel", "top_k", "kind"),
    [(False, None, LabelStore), (False, 2, TopKLabelStore), (True, None, MultilabelStore)],
)
def test_every_form_builds_its_store(multilabel, top_k, kind):
    given = torch.nn.functional.one_hot(GIVEN, CLASSES).float() if multilabel else GIVEN
    assert type(label_form(multilabel).store(given, CLASSES, top_k=top_k)) is kind


def test_forms_refuse_what_is_for_single_label_data():
    with pytest.raises(
        RecipeError, match="label_top_k is 2, but the data is multi-label; top-k labels need single-label data"
    ):
        label_form(True).store(torch.ones(2, 3), 3, top_k=2)
    with pytest.raises(RecipeError, match=r"init_scale is 10\.0, but the data is multi-label.*set init_probability"):
        label_form(True, init_scale=10.0)
