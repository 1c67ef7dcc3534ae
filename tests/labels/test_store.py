"""The label store: closed form against autograd, its invariants, its fixed points."""

import doctest
import math

import pytest
import torch
from hypothesis import given as for_all
from hypothesis import strategies as st

import pencil.labels.store
from pencil import DataError, LabelStore, TrainingError
from pencil.labels import losses
from pencil.labels.reading import read_labels
from pencil.labels.store import PAPER_INIT_SCALE, anchor_free, forward_kl_label_gradient, init_scale, label_gradient

double = {"dtype": torch.float64}


def overall_loss(logits, label_logits, given, alpha, beta, compatibility):
    """The paper's L, written with the three losses; only autograd knows its gradient."""
    c = logits.shape[1]
    return (
        losses.inverse_kl(logits, label_logits) / c
        + alpha * losses.compatibility_loss(label_logits, given, compatibility)
        + beta / c * losses.entropy_loss(logits)
    )


@for_all(
    batch=st.integers(1, 7),
    classes=st.integers(2, 9),
    alpha=st.sampled_from([0.0, 0.1, 0.8]),
    label_lr=st.sampled_from([0.0, 3.0, 600.0]),
    compatibility=st.sampled_from(losses.COMPATIBILITIES),
    soft=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_the_closed_form_is_gradient_descent_on_the_overall_loss(
    batch, classes, alpha, label_lr, compatibility, soft, seed
):
    g = torch.Generator().manual_seed(seed)
    given = torch.randint(classes, (batch,), generator=g)
    labels = torch.nn.functional.one_hot(given, classes).double() if soft else given
    store = LabelStore(labels, classes, **double)
    store.label_logits += torch.randn(batch, classes, generator=g, **double)
    logits = torch.randn(batch, classes, generator=g, **double)
    by_autograd = store.label_logits.clone().requires_grad_()
    overall_loss(logits, by_autograd, store.given_labels, alpha, 0.4, compatibility).backward()
    expected = by_autograd.detach() - label_lr * by_autograd.grad
    before = store.label_logits.sum(dim=1)

    rows = torch.arange(batch)
    step, pull = label_lr / (batch * classes), alpha * classes
    store.update(rows, logits, step=step, pull=pull, compatibility=compatibility)

    torch.testing.assert_close(store.label_logits, expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(store.label_logits.sum(dim=1), before, rtol=1e-10, atol=1e-9)  # Proposition 1


def test_label_gradient_is_y_minus_f():  # Eq. 28
    logits, label_logits = torch.randn(6, 5, **double), torch.randn(6, 5, **double).requires_grad_()
    losses.inverse_kl(logits, label_logits).backward()
    label_probs, probs = label_logits.detach().softmax(1), logits.softmax(1)
    torch.testing.assert_close(label_logits.grad, (label_probs - probs) / 6)
    torch.testing.assert_close(label_gradient(label_probs, probs, torch.zeros(6).long()), label_probs - probs)


def test_forward_kl_gradient_is_eq_24_and_leaves_ruled_out_classes_alone():
    logits = torch.randn(6, 5, **double)
    label_logits = torch.randn(6, 5, **double).requires_grad_()
    losses.forward_kl(logits, label_logits).backward()
    torch.testing.assert_close(label_logits.grad, forward_kl_label_gradient(label_logits.detach(), logits) / 6)

    wrong = LabelStore(torch.tensor([0]), 10)  # given 0, the network is sure of 7
    sure = torch.zeros(1, 10).index_fill_(1, torch.tensor([7]), 12.0)
    rows = torch.tensor([0])
    inverse = label_gradient(wrong.probs(rows), sure.softmax(1), wrong.given_labels)[0, 7].abs()
    forward = forward_kl_label_gradient(wrong[rows], sure)[0, 7].abs()
    assert inverse > 0.9 and forward < 1e-3


def test_initialisation_is_k_times_the_given_label():  # Eq. 8
    store = LabelStore([2, 0], 3)
    assert torch.equal(store.label_logits, torch.tensor([[0, 0, 10.0], [10.0, 0, 0]]))
    soft = LabelStore([[0.2, 0.8], [1.0, 0.0]])
    torch.testing.assert_close(soft.label_logits, torch.tensor([[2.0, 8.0], [10.0, 0.0]]))
    torch.testing.assert_close(store.probs()[0, 2].item(), math.exp(10) / (math.exp(10) + 2), rtol=1e-5, atol=0)


@pytest.mark.parametrize("classes", [2, 10, 100, 1000])
def test_initial_probability_is_the_knob(classes):
    store = LabelStore([1], classes, scale=init_scale(0.99, classes))
    assert store.probs()[0, 1].item() == pytest.approx(0.99, abs=1e-5)


def test_k_10_is_not_nearly_one_hot_for_many_classes():
    assert LabelStore([1], 1000, scale=PAPER_INIT_SCALE).probs()[0, 1].item() == pytest.approx(0.957, abs=1e-3)
    with pytest.raises(ValueError, match="between 1/10 and 1"):
        init_scale(0.05, 10)


def test_untouched_rows_are_untouched():
    store = LabelStore(torch.arange(8) % 4, 4)
    before = store.label_logits.clone()
    rows = torch.tensor([5, 1])
    store.update(rows, torch.randn(2, 4), step=2.0, pull=0.5)
    others = torch.tensor([0, 2, 3, 4, 6, 7])
    assert torch.equal(store.label_logits[others], before[others])
    assert not torch.equal(store.label_logits[rows], before[rows])


@for_all(seed=st.integers(0, 10**6), pull=st.sampled_from([0.0, 1.0]), kind=st.sampled_from(losses.COMPATIBILITIES))
def test_permutation_equivariance(seed, pull, kind):
    """Neither the order of rows in a batch nor the numbering of classes means anything."""
    g = torch.Generator().manual_seed(seed)
    given, logits = torch.randint(5, (6,), generator=g), torch.randn(6, 5, generator=g, **double)
    rows, classes = torch.randperm(6, generator=g), torch.randperm(5, generator=g)
    plain, mixed = LabelStore(given, 5, **double), LabelStore(classes.argsort()[given], 5, **double)
    plain.update(torch.arange(6), logits, step=3.0, pull=pull, compatibility=kind)
    mixed.update(rows, logits[rows][:, classes], step=3.0, pull=pull, compatibility=kind)
    torch.testing.assert_close(mixed.label_logits, plain.label_logits[:, classes])


def test_limits_of_step_and_pull():
    given, logits, rows = torch.tensor([0, 1, 2]), torch.randn(3, 3), torch.arange(3)
    still = LabelStore(given, 3)
    still.update(rows, logits, step=0.0, pull=5.0)
    assert torch.equal(still.label_logits, LabelStore(given, 3).label_logits)  # lambda = 0: labels stay
    free = LabelStore(given, 3, **double)
    for _ in range(4000):
        free.update(rows, logits.double(), step=1.0)
    torch.testing.assert_close(free.probs(), logits.double().softmax(1), rtol=0, atol=1e-6)  # alpha = 0: y_d -> f


@pytest.mark.parametrize("pull", [0.3, 1.0, 4.0])
def test_the_printed_fixed_point_and_reading_it_without_the_anchor(pull):
    given, rows = torch.tensor([0, 1]), torch.arange(2)
    logits = torch.tensor([[0.0, 3.0, 1.0], [2.0, 0.0, 0.0]], **double)
    store = LabelStore(given, 3, **double)
    for _ in range(20000):
        store.update(rows, logits, step=0.5, pull=pull)
    f, onehot = logits.softmax(1), torch.eye(3, **double)[given]
    torch.testing.assert_close(store.probs(), (f + pull * onehot) / (1 + pull), rtol=0, atol=1e-7)
    torch.testing.assert_close(store.evidence(pull), f, rtol=0, atol=1e-3)  # K = 10 is not quite one-hot
    flips = (store.probs().argmax(1) != given).tolist()
    lead = (f.max(1).values - f[rows, given]).tolist()
    assert flips == [gap > pull for gap in lead]  # so with pull >= 1 never
    assert (store.evidence(pull).argmax(1) != given).all()


def test_the_published_force_fades_once_a_label_has_flipped():
    """The same network, the same pull: printed holds the label for ever, published lets it go."""
    given, rows, logits = torch.tensor([0]), torch.tensor([0]), torch.tensor([[0.0, 9.0, 0.0]])
    printed, published = LabelStore(given, 3), LabelStore(given, 3)
    for _ in range(500):
        printed.update(rows, logits, step=1.0, pull=1.0, compatibility="printed")
        published.update(rows, logits, step=1.0, pull=1.0, compatibility="published")
    assert printed.probs().argmax().item() == 0
    assert published.probs().argmax().item() == 1 and published.probs()[0, 1].item() > 0.8


@pytest.mark.parametrize("classes", [2, 3, 10, 100])
@pytest.mark.parametrize(("compatibility", "limit"), [("printed", 1.0), ("published", 2.0)])
def test_the_pull_that_holds_every_label(compatibility, limit, classes):
    """A certain network changes a label for any pull below the limit, and for none above it."""
    given, rows = torch.tensor([0]), torch.tensor([0])
    certain = torch.full((1, classes), -30.0, **double)
    certain[0, 1] = 30.0
    for pull in (0.97 * limit, 1.03 * limit):
        store = LabelStore(given, classes, **double)
        for _ in range(3000):
            store.update(rows, certain, step=1.0, pull=pull, compatibility=compatibility)
        assert losses.is_held(pull, compatibility) == (store.probs().argmax().item() == 0) == (pull > limit)
        assert pull < limit or store.evidence(pull, compatibility=compatibility).argmax().item() == 1


@pytest.mark.parametrize("classes", [2, 10, 100])
def test_the_published_fixed_point_read_without_the_anchor_is_the_prediction(classes):
    """Also where the network is not certain, and where it agrees with the given label."""
    given, rows = torch.tensor([0, 1]), torch.arange(2)
    logits = torch.zeros(2, classes, **double)
    logits[:, 1] = math.log(0.4 / 0.6 * (classes - 1))  # f is 0.4 for the second class, 0.6 for all others together
    store = LabelStore(given, classes, scale=25.0, **double)  # the correction for labels that have not moved vanishes
    for _ in range(6000):
        store.update(rows, logits, step=0.3, pull=10.0, compatibility="published")
    evidence = store.evidence(10.0, compatibility="published")
    torch.testing.assert_close(evidence, logits.softmax(dim=1), rtol=0, atol=2e-3)
    assert torch.equal(store.evidence(10.0, rows, "published"), evidence)


def test_anchor_free_stays_on_the_simplex_before_the_labels_have_come_to_rest():
    store = LabelStore([0, 1], 3)
    store.update(torch.arange(2), torch.randn(2, 3), step=7.0, pull=2.0)
    evidence = store.evidence(2.0)
    assert (evidence >= 0).all()
    torch.testing.assert_close(evidence.sum(1), torch.ones(2))


@pytest.mark.parametrize(("classes", "pull"), [(3, 1.0), (10, 1.0), (100, 10.0), (1000, 100.0)])
def test_labels_that_have_not_moved_read_as_they_were_given(classes, pull):
    given = torch.arange(20) % classes
    store = LabelStore(given, classes)
    assert torch.equal(store.evidence(pull).argmax(1), given)
    torch.testing.assert_close(store.evidence(pull), store.probs(), rtol=0, atol=1e-4)
    torch.testing.assert_close(anchor_free(store.probs(), store.probs(), 0.0), store.probs())
    assert torch.equal(store.evidence(0.0), store.probs())


def test_update_refuses_logits_that_are_not_finite():
    store = LabelStore([0, 1, 1], 2)
    before = store.label_logits.clone()
    with pytest.raises(TrainingError, match=r"logits of row 2 are not finite; .*no label was changed"):
        store.update(torch.tensor([0, 2]), torch.tensor([[0.0, 1.0], [torch.nan, 0.0]]), step=1.0)
    assert torch.equal(store.label_logits, before)


@pytest.mark.parametrize("kind", losses.COMPATIBILITIES)
def test_autocast_changes_nothing(kind):
    given, logits = torch.arange(64) % 50, 3 * torch.randn(64, 50)
    plain, cast = LabelStore(given, 50), LabelStore(given, 50)
    plain.update(torch.arange(64), logits, step=3.0, pull=1.0, compatibility=kind)
    with torch.autocast("cpu", torch.bfloat16):
        cast.update(torch.arange(64), logits, step=3.0, pull=1.0, compatibility=kind)
        inside = losses.pencil_loss(logits, cast.label_logits, beta=0.4)
    assert torch.equal(plain.label_logits, cast.label_logits)
    assert torch.equal(inside, losses.pencil_loss(logits, cast.label_logits, beta=0.4))


def test_labels_stay_fp32_under_mixed_precision():
    store = LabelStore([0, 1], 2)
    store.update(torch.arange(2), torch.randn(2, 2).bfloat16(), step=1e-4)
    assert store.label_logits.dtype == torch.float32
    assert not torch.equal(store.label_logits, LabelStore([0, 1], 2).label_logits)  # bf16 would have lost this step


def test_state_dict_round_trip():
    store, other = LabelStore([0, 1], 2), LabelStore([0, 1], 2)
    store.update(torch.arange(2), torch.randn(2, 2), step=3.0)
    other.load_state_dict({k: v.clone() for k, v in store.state_dict().items()})
    assert torch.equal(store.label_logits, other.label_logits)
    other.reset()
    assert torch.equal(other.label_logits, LabelStore([0, 1], 2).label_logits)


def test_the_example_in_the_docstring():
    assert doctest.testmod(pencil.labels.store).attempted == 3
    assert doctest.testmod(pencil.labels.store).failed == 0


def test_reading():
    probs = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8]])
    reading = read_labels(probs, torch.tensor([0, 0]))
    assert reading.corrected.tolist() == [0, 2] and reading.changed.tolist() == [False, True]
    torch.testing.assert_close(reading.confidence, torch.tensor([0.7, 0.8]))
    torch.testing.assert_close(reading.given_probability, torch.tensor([0.7, 0.1]))
    torch.testing.assert_close(reading.margin, torch.tensor([0.5, 0.7]))
    torch.testing.assert_close(reading.entropy, -(probs * probs.log()).sum(1))


@pytest.mark.parametrize(
    ("labels", "classes", "message"),
    [
        ([0, 1, 12], 12, r"label 12 at row 2 does not fit 12 classes \(0\.\.11\); pass classes=13"),
        ([0, -1], 2, r"label -1 at row 1 does not fit 2 classes"),
        ([0.0, float("nan")], 2, r"label at row 1 is nan"),
        ([0.0, 1.5], 2, r"label 1.5 at row 1 is not a whole number"),
        ([0, None], 2, r"label at row 1 is missing"),
        (["cat", "dog"], None, r"map names to indices"),
        ([], 2, r"empty"),
        ([0, 0], None, r"1 class; expected at least two"),
        ([[0.5, 0.6]], None, r"row 0 .*sum to 1"),
        ([[0.5, 0.5]], 3, r"2 columns but there are 3 classes"),
        ([[[1.0]]], None, r"shape \(1, 1, 1\)"),
    ],
)
def test_bad_labels_are_named(labels, classes, message):
    with pytest.raises(DataError, match=message):
        LabelStore(labels, classes)
