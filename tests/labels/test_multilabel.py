"""Multi-label mathematics against PyTorch's own losses and against autograd."""

import pytest
import torch
from torch.nn import functional

from pencil import TrainingError
from pencil.errors import RecipeError
from pencil.labels.multilabel_losses import (
    binary_compatibility_loss,
    binary_cross_entropy,
    binary_entropy,
    binary_label_gradient,
    binary_network_losses,
    forward_binary_kl,
    inverse_binary_kl,
)
from pencil.labels.multilabel_store import MultilabelStore
from pencil.labels.reading import read_entries

BATCH, CLASSES = 5, 4
NAN = float("nan")


@pytest.fixture
def case():
    torch.manual_seed(3)
    logits = torch.randn(BATCH, CLASSES, dtype=torch.float64, requires_grad=True)
    label_logits = torch.randn(BATCH, CLASSES, dtype=torch.float64, requires_grad=True)
    given = torch.rand(BATCH, CLASSES, dtype=torch.float64).round(decimals=1)
    given[0, 1] = given[4, 3] = NAN
    return logits, label_logits, given


def by_hand(p, q):
    """KL between two Bernoulli distributions through torch.distributions."""
    return torch.distributions.kl_divergence(
        torch.distributions.Bernoulli(probs=p), torch.distributions.Bernoulli(probs=q)
    )


def test_losses_are_sums_over_known_entries_and_means_over_rows(case):
    logits, label_logits, given = case
    known = ~given.isnan()
    f, y = logits.sigmoid(), label_logits.sigmoid()
    oracle = functional.binary_cross_entropy(f[known], given[known], reduction="sum") / BATCH
    torch.testing.assert_close(binary_cross_entropy(logits, given), oracle)
    torch.testing.assert_close(inverse_binary_kl(logits, label_logits, known), by_hand(f, y)[known].sum() / BATCH)
    torch.testing.assert_close(forward_binary_kl(logits, label_logits, known), by_hand(y, f)[known].sum() / BATCH)
    entropy = torch.distributions.Bernoulli(probs=f).entropy()[known].sum() / BATCH
    torch.testing.assert_close(binary_entropy(logits, known), entropy)


@pytest.mark.parametrize("divergence", ["inverse", "forward", "both"])
@pytest.mark.parametrize("compatibility", ["printed", "published"])
def test_label_gradient_is_autograds(case, divergence, compatibility):
    logits, label_logits, given = case
    known, pull = ~given.isnan(), 0.7
    loss = pull * binary_compatibility_loss(label_logits, given, compatibility)
    if divergence != "forward":
        loss = loss + inverse_binary_kl(logits.detach(), label_logits, known)
    if divergence != "inverse":
        loss = loss + forward_binary_kl(logits.detach(), label_logits, known)
    (expected,) = torch.autograd.grad(loss, label_logits)
    with torch.no_grad():
        found = binary_label_gradient(
            label_logits, logits, given, pull=pull, compatibility=compatibility, divergence=divergence
        )
    torch.testing.assert_close(found / BATCH, expected)
    assert (found[~known] == 0).all()


def test_network_loss_leaves_unknown_entries_alone(case):
    logits, label_logits, given = case
    known = ~given.isnan()
    losses = binary_network_losses(logits, label_logits.detach(), known, beta=0.3, class_mean=True, divergence="both")
    oracle = inverse_binary_kl(logits, label_logits, known) + forward_binary_kl(logits, label_logits, known)
    torch.testing.assert_close(losses.loss, (oracle + 0.3 * binary_entropy(logits, known)) / CLASSES)
    (gradient,) = torch.autograd.grad(losses.loss, logits)
    assert (gradient[~known] == 0).all() and (gradient[known] != 0).all()


def test_extreme_logits_stay_finite():
    logits = torch.tensor([[80.0, -80.0]], requires_grad=True)
    known = torch.ones(1, 2, dtype=torch.bool)
    loss = binary_network_losses(logits, -logits.detach(), known, beta=0.5, class_mean=True, divergence="both").loss
    loss.backward()
    assert loss.isfinite() and logits.grad.isfinite().all()


def test_store_starts_at_the_given_probability_and_moves_known_entries_only():
    given = torch.tensor([[1.0, 0.0, 0.7, NAN], [0.2, NAN, 1.0, 0.0]])
    labels = MultilabelStore(given, probability=0.99)
    torch.testing.assert_close(labels.probs()[0], torch.tensor([0.99, 0.01, 0.7, 0.5]))
    before = labels.label_logits.clone()
    labels.update(torch.tensor([0]), torch.tensor([[-5.0, 5.0, 0.0, 9.0]]), step=2.0)
    moved = labels.label_logits != before
    assert moved.tolist() == [[True, True, True, False], [False] * 4]
    labels.reset()
    assert torch.equal(labels.label_logits, before)


def test_printed_anchor_is_taken_out_of_what_is_read():
    """At rest y_d = (f + pull * y_hat) / (1 + pull), so the evidence is f."""
    given, logits, pull = torch.tensor([[1.0, 0.0]]), torch.tensor([[-2.0, 1.0]]), 3.0
    labels = MultilabelStore(given, probability=0.999)
    for _ in range(4000):
        labels.update(torch.tensor([0]), logits, step=0.5, pull=pull)
    assert (labels.probs() > 0.5).tolist() == [[True, False]]  # the anchor holds both
    torch.testing.assert_close(labels.evidence(pull), logits.sigmoid(), atol=0.01, rtol=0)


def test_reading_counts_no_unknown_entry():
    reading = read_entries(torch.tensor([[0.9, 0.2, 0.9]]), torch.tensor([[0.0, 0.0, NAN]]))
    assert reading.changed.tolist() == [[True, False, False]]
    assert reading.confidence[0, 1] == pytest.approx(0.8)


def test_bad_values_are_refused():
    with pytest.raises(RecipeError, match=r"expected a value between 0.5 and 1"):
        MultilabelStore(torch.ones(1, 2), probability=0.4)
    labels = MultilabelStore(torch.ones(2, 2))
    with pytest.raises(TrainingError, match="row 1 are not finite"):
        labels.update(torch.tensor([0, 1]), torch.tensor([[0.0, 0.0], [NAN, 0.0]]), step=1.0)
