"""Every loss against its printed formula, and every gradient against numbers."""

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck

from pencil.labels import losses

B, C = 5, 4


@pytest.fixture
def case():
    g = torch.Generator().manual_seed(3)
    logits = torch.randn(B, C, generator=g, dtype=torch.float64, requires_grad=True)
    label_logits = (2 * torch.randn(B, C, generator=g, dtype=torch.float64)).requires_grad_()
    given = torch.tensor([0, 3, 1, 2, 2])
    return logits, label_logits, given


def by_hand(logits, label_logits):
    """f and y_d as plain NumPy, exponentials and sums written out."""
    f = np.exp(logits.detach().numpy())
    y = np.exp(label_logits.detach().numpy())
    return f / f.sum(1, keepdims=True), y / y.sum(1, keepdims=True)


def test_values_are_the_printed_formulas(case):
    logits, label_logits, given = case
    f, y = by_hand(logits, label_logits)
    onehot = np.eye(C)[given.numpy()]
    expected = {
        losses.cross_entropy(logits, given): -(onehot * np.log(f)).sum() / B,  # Eq. 1
        losses.forward_kl(logits, label_logits): (y * np.log(y / f)).sum() / B,  # Eq. 2-3
        losses.inverse_kl(logits, label_logits): (f * np.log(f / y)).sum() / B,  # Eq. 4-5
        losses.compatibility_loss(label_logits, given): -(onehot * np.log(y)).sum() / B,
        losses.entropy_loss(logits): -(f * np.log(f)).sum() / B,
    }
    for seen, value in expected.items():
        assert seen.item() == pytest.approx(value, rel=1e-12)


def test_published_compatibility_applies_softmax_twice(case):
    _, label_logits, given = case
    _, y = by_hand(label_logits, label_logits)
    twice = np.exp(y) / np.exp(y).sum(1, keepdims=True)
    expected = -np.log(twice[np.arange(B), given.numpy()]).mean()
    assert losses.compatibility_loss(label_logits, given, "published").item() == pytest.approx(expected, rel=1e-12)


def test_soft_given_labels_agree_with_class_indices(case):
    logits, label_logits, given = case
    onehot = torch.eye(C, dtype=torch.float64)[given]
    torch.testing.assert_close(losses.cross_entropy(logits, given), losses.cross_entropy(logits, onehot))
    for kind in losses.COMPATIBILITIES:
        hard, soft = (losses.compatibility_loss(label_logits, labels, kind) for labels in (given, onehot))
        torch.testing.assert_close(hard, soft)


@pytest.mark.parametrize(
    "loss",
    [
        lambda z, y, g: losses.cross_entropy(z, g),
        lambda z, y, g: losses.forward_kl(z, y),
        lambda z, y, g: losses.inverse_kl(z, y),
        lambda z, y, g: losses.compatibility_loss(y, g),
        lambda z, y, g: losses.compatibility_loss(y, g, "published"),
        lambda z, y, g: losses.entropy_loss(z),
    ],
    ids=["cross_entropy", "forward_kl", "inverse_kl", "compatibility", "compatibility_published", "entropy"],
)
def test_gradients_are_right(loss, case):
    logits, label_logits, given = case
    assert gradcheck(lambda z, y: loss(z, y, given), (logits, label_logits))


@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0, 2.5])
@pytest.mark.parametrize("class_mean", [True, False])
def test_the_written_out_gradient_of_the_network_loss_is_autograds(case, beta, class_mean):
    logits, label_logits, _ = case
    fixed = label_logits.detach()
    assert gradcheck(lambda z: losses.pencil_loss(z, fixed, beta=beta, class_mean=class_mean), (logits,))
    composed = losses.inverse_kl(logits, fixed) + beta * losses.entropy_loss(logits)
    composed = composed / C if class_mean else composed
    seen = losses.pencil_loss(logits, fixed, beta=beta, class_mean=class_mean)
    torch.testing.assert_close(seen, composed)
    (by_autograd,) = torch.autograd.grad(composed, logits)
    (written_out,) = torch.autograd.grad(seen, logits)
    torch.testing.assert_close(written_out, by_autograd)


def test_network_losses_names_its_parts(case):
    logits, label_logits, _ = case
    seen = losses.network_losses(logits, label_logits, beta=0.3, class_mean=False)
    torch.testing.assert_close(seen.classification, losses.inverse_kl(logits, label_logits).detach())
    torch.testing.assert_close(seen.entropy, losses.entropy_loss(logits).detach())
    torch.testing.assert_close(seen.loss.detach(), seen.classification + 0.3 * seen.entropy)
    torch.testing.assert_close(seen.probs, logits.detach().softmax(1))
    torch.testing.assert_close(seen.label_probs, label_logits.detach().softmax(1))


def test_the_network_loss_sends_no_gradient_to_the_labels(case):
    logits, label_logits, _ = case
    losses.pencil_loss(logits, label_logits, beta=0.4).backward()
    assert label_logits.grad is None and logits.grad is not None


def test_limits(case):
    logits, _, _ = case
    same = logits.detach().requires_grad_()
    assert losses.inverse_kl(logits, same).item() == pytest.approx(0, abs=1e-14)
    assert losses.forward_kl(logits, same).item() == pytest.approx(0, abs=1e-14)
    assert losses.entropy_loss(torch.zeros(2, C)).item() == pytest.approx(np.log(C))


def test_extreme_logits_stay_finite():
    logits = torch.tensor([[500.0, -500.0, 0.0]], requires_grad=True)
    label_logits = torch.tensor([[-400.0, 400.0, 0.0]])
    loss = losses.pencil_loss(logits, label_logits, beta=0.8)
    loss.backward()
    assert loss.isfinite() and logits.grad.isfinite().all()
    assert losses.forward_kl(logits, label_logits).isfinite()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_logits_are_computed_in_fp32(dtype):
    logits = torch.randn(8, 10).to(dtype).requires_grad_()
    label_logits = torch.randn(8, 10)
    loss = losses.pencil_loss(logits, label_logits, beta=0.4)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, losses.pencil_loss(logits.float(), label_logits, beta=0.4))
    loss.backward()
    assert logits.grad.dtype == dtype


def test_an_unknown_compatibility_is_named():
    with pytest.raises(ValueError, match=r"'prnted'.*printed, published"):
        losses.compatibility_loss(torch.zeros(1, 2), torch.tensor([0]), "prnted")


def test_a_batch_without_rows_has_a_gradient_of_no_rows():
    """A rank may have no rows of a batch; the others wait for its gradient."""
    logits = torch.zeros(0, 3, requires_grad=True)
    losses.network_losses(logits, torch.zeros(0, 3), beta=0.1, class_mean=True).loss.backward()
    assert logits.grad.shape == (0, 3)
