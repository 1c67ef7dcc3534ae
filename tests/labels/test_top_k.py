"""The store of the k largest label logits per row, against the dense store and Proposition 1."""

import pytest
import torch

from pencil import RecipeError
from pencil.labels.rows import BLOCK
from pencil.labels.store import LabelStore
from pencil.labels.top_k import TopKLabelStore

CLASSES = 12


def updated(store, steps=6, seed=0):
    """The store after some updates of random rows by random predictions."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        rows = torch.randperm(len(store), generator=generator)[:20]
        store.update(rows, 4 * torch.randn(20, CLASSES, generator=generator), step=2.0, pull=0.3)
    return store


@pytest.fixture
def given():
    return torch.arange(50) % CLASSES


def test_with_all_classes_it_is_the_dense_store(given):
    dense, top = updated(LabelStore(given, CLASSES)), updated(TopKLabelStore(given, CLASSES, k=CLASSES))
    torch.testing.assert_close(top.label_logits, dense.label_logits, rtol=0, atol=1e-6)
    more = TopKLabelStore(given, CLASSES, k=3 * CLASSES)
    assert more.k == CLASSES


def test_a_row_keeps_its_sum_whatever_is_cut_off(given):
    """Proposition 1 for k of c classes, though what is kept is rounded to half precision."""
    top = updated(TopKLabelStore(given, CLASSES, k=3))
    torch.testing.assert_close(top.label_logits.sum(dim=1), torch.full((50,), 10.0), rtol=0, atol=1e-4)


def test_the_largest_entries_are_kept_and_the_rest_is_shared(given):
    top = TopKLabelStore(given, CLASSES, k=2)
    logits = torch.zeros(1, CLASSES)
    logits[0, 3], logits[0, 7], logits[0, 1] = 6.0, 5.0, 1.0
    logits[0, 0] = 10.0 - logits.sum()
    top.write(torch.tensor([4]), logits)
    found = top[torch.tensor([4])][0]
    assert found[3] == 6 and found[7] == 5
    others = [k for k in range(CLASSES) if k not in (3, 7)]
    torch.testing.assert_close(found[others], torch.full((10,), -0.1))


def test_close_classes_keep_their_order_whatever_the_others_have():
    """A posterior gives improbable classes logits of -87; the sum of a row then moves the probable ones up to +87."""
    first = torch.rand(500, generator=torch.Generator().manual_seed(0)) * 0.2 + 0.4
    logits = torch.full((500, 1000), -87.3)
    logits[:, 0], logits[:, 1] = first.log(), (1 - first).log()
    dense, top = LabelStore(torch.zeros(500, dtype=torch.int64), 1000), TopKLabelStore([0] * 500, 1000, k=8)
    rows, predicted = torch.arange(500), torch.randn(500, 1000, generator=torch.Generator().manual_seed(1))
    for store in (dense, top):
        store.write(rows, logits)
    torch.testing.assert_close(top.probs(), dense.probs(), rtol=0, atol=1e-4)
    assert ((top.probs()[:, 0] > top.probs()[:, 1]) == (first > 0.5)).all()
    for store in (dense, top):
        store.update(rows, predicted, step=0.1)
    torch.testing.assert_close(top.probs(), dense.probs(), rtol=0, atol=3e-4)
    assert sum(one[0].numel() * one.element_size() for one in top.state_dict().values()) == 36  # bytes of a row


def test_it_is_small_and_starts_as_given(given):
    top, dense = TopKLabelStore(given, CLASSES, k=2), LabelStore(given, CLASSES)
    torch.testing.assert_close(top.probs(), dense.probs(), rtol=0, atol=1e-6)
    assert top.top.dtype == torch.float16 and top.index.dtype == torch.int16 and top.top.shape == (50, 2)
    updated(top)
    top.reset()
    torch.testing.assert_close(top.probs(), dense.probs(), rtol=0, atol=1e-6)


def test_indices_of_very_many_classes_fit():
    top = TopKLabelStore(torch.tensor([0, 39_999]), 40_000, k=2)
    assert top.index.dtype == torch.int32 and top.probs().argmax(dim=1).tolist() == [0, 39_999]


def test_state_goes_through_a_dict(given):
    first, second = updated(TopKLabelStore(given, CLASSES, k=3)), TopKLabelStore(given, CLASSES, k=3)
    second.load_state_dict(first.state_dict())
    assert second.label_logits.equal(first.label_logits)


def test_k_must_be_a_number_of_entries(given):
    with pytest.raises(RecipeError, match="label_top_k is 0; expected at least 1"):
        TopKLabelStore(given, CLASSES, k=0)


def test_it_never_holds_dense_logits_of_many_rows(monkeypatch):
    """50,000 classes: 65,536 dense rows would take 13 GB."""
    dense, rows = TopKLabelStore.initial_logits, []

    def counted(store, chosen):
        rows.append(len(chosen))
        return dense(store, chosen)

    monkeypatch.setattr(TopKLabelStore, "initial_logits", counted)
    store = TopKLabelStore(torch.arange(60), 50_000, k=8)
    assert sum(rows) == 60 and max(rows) * store.num_classes <= BLOCK
