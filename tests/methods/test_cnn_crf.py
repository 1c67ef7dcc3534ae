"""CNN-CRF: its posterior by brute force, its belief as the optimum it is said to be, its prior from counts."""

import numpy as np
import pytest
import torch
from baselines import batch_of, from_recipe, started, trainer_for

from pencil import RecipeError
from pencil.data import from_arrays
from pencil.data.noise import circular_matrix, flip, symmetric_matrix
from pencil.methods import Outputs
from pencil.methods.cnn_crf import CnnCrf, annealed, auxiliary_distribution, e_step, estimate_prior

T = torch.tensor([[0.7, 0.2, 0.1], [0.05, 0.9, 0.05], [0.3, 0.1, 0.6]], dtype=torch.float64)
TRANSITION = tuple(map(tuple, T.tolist()))


def kl(q, p):
    return (q * (q / p).log()).sum(-1)


def brute_posterior(f, given, transition):
    """``p(y | x, given)`` from the joint distribution of all clean and given labels, one pair after the other."""
    found = torch.zeros_like(f)
    for row in range(len(f)):
        joint = {(y, g): float(f[row, y] * transition[y, g]) for y in range(3) for g in range(3)}
        evidence = sum(p for (_, g), p in joint.items() if g == given[row])
        for y in range(3):
            found[row, y] = joint[y, int(given[row])] / evidence
    return found


def e_step_of(log_f, given, alpha, prior=None):
    aux = auxiliary_distribution(T, given, prior)
    return e_step(log_f, T.log().t()[given], aux.log(), alpha), aux


def test_without_alpha_the_belief_is_the_posterior():
    log_f, given = torch.randn(6, 3, dtype=torch.float64).log_softmax(1), torch.tensor([0, 1, 2, 2, 1, 0])
    belief, _ = e_step_of(log_f, given, alpha=0.0)
    torch.testing.assert_close(belief, brute_posterior(log_f.exp(), given, T))


def test_the_auxiliary_distribution_is_the_posterior_of_someone_who_sees_no_input():
    given, prior = torch.tensor([0, 1, 2]), torch.tensor([0.5, 0.2, 0.3], dtype=torch.float64)
    torch.testing.assert_close(auxiliary_distribution(T, given, prior), brute_posterior(prior.expand(3, 3), given, T))
    uniform = torch.full((3, 3), 1 / 3, dtype=torch.float64)
    torch.testing.assert_close(auxiliary_distribution(T, given), brute_posterior(uniform, given, T))


@pytest.mark.parametrize("alpha", [0.0, 0.5, 5.0, 40.0])
def test_the_belief_minimises_both_divergences(alpha):
    """Against every point of a fine grid over the simplex, and by its gradient, which is constant there."""
    log_f, given = torch.tensor([[2.0, 0.0, -1.0]], dtype=torch.float64).log_softmax(1), torch.tensor([2])
    prior = torch.tensor([0.5, 0.2, 0.3], dtype=torch.float64)
    belief, aux = e_step_of(log_f, given, alpha, prior)
    posterior = brute_posterior(log_f.exp(), given, T)

    def objective(q):
        return kl(q, posterior) + alpha * kl(q, aux)

    steps = torch.arange(1, 200, dtype=torch.float64) / 200
    grid = torch.cartesian_prod(steps, steps)
    grid = torch.cat([grid, 1 - grid.sum(1, keepdim=True)], 1)
    grid = grid[grid[:, 2] > 1e-9]
    values = objective(grid)
    assert objective(belief).item() <= values.min().item()
    assert (grid[values.argmin()] - belief).abs().max() < 0.01
    q = belief.clone().requires_grad_()
    objective(q).sum().backward()
    assert (q.grad - q.grad.mean()).abs().max() < 1e-9  # along the simplex it goes neither up nor down


def test_with_a_uniform_prior_the_network_alone_is_tempered():
    """Then p_aux is T's column, scaled, and the belief is ``T[y, given] * f(y)^(1 / (1 + alpha))``, scaled."""
    log_f, given = torch.randn(3, 3, dtype=torch.float64).log_softmax(1), torch.tensor([0, 1, 2])
    belief, _ = e_step_of(log_f, given, alpha=3.0)
    expected = T.t()[given] * log_f.exp() ** 0.25
    torch.testing.assert_close(belief, expected / expected.sum(1, keepdim=True))


def test_zeros_of_the_matrix_rule_classes_out_and_nothing_breaks():
    method = CnnCrf(transition=tuple(map(tuple, circular_matrix(3, 0.4).tolist())), alpha_start=0.0)
    batch = batch_of((0, 1, 2))
    belief = started(method, (0, 1, 2))["train"].loss(Outputs(torch.zeros(3, 3)), batch).carry
    torch.testing.assert_close(belief, torch.from_numpy(circular_matrix(3, 0.4)).float().t())
    impossible = CnnCrf(transition=((1.0, 0.0, 0.0), (1.0, 0.0, 0.0), (0.0, 0.0, 1.0)))  # no class is given as 1
    terms = started(impossible, (0, 1, 2))["train"].loss(Outputs(torch.zeros(3, 3)), batch)
    torch.testing.assert_close(terms.carry[1], torch.full((3,), 1 / 3))
    assert terms.loss.isfinite()


def test_the_loss_is_cross_entropy_with_a_constant_belief():
    method = CnnCrf(transition=TRANSITION)
    phase = started(method, dtype=torch.float64)["train"]
    logits = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    terms = phase.loss(Outputs(logits), batch_of((0, 1, 2, 0)))
    assert not terms.carry.requires_grad
    terms.loss.backward()
    belief, _ = e_step_of(logits.detach().log_softmax(1), torch.tensor([0, 1, 2, 0]), alpha=40.0)
    torch.testing.assert_close(logits.grad, (logits.detach().softmax(1) - belief) / 4)  # of soft cross-entropy
    posterior, _ = e_step_of(logits.detach().log_softmax(1), torch.tensor([0, 1, 2, 0]), alpha=0.0)
    torch.testing.assert_close(terms.carry, posterior)  # what is read off as the label


def test_beliefs_are_kept_by_row():
    method = CnnCrf(transition=TRANSITION)
    phase, batch = started(method)["train"], batch_of((0, 2), rows=[3, 2])
    terms = phase.loss(Outputs(torch.randn(2, 3)), batch)
    phase.after_step(terms.carry, batch, 0.0)
    torch.testing.assert_close(method.label_probs()[[3, 2]], terms.carry)
    assert method.label_probs()[:2].tolist() == [[1, 0, 0], [0, 1, 0]]


def test_alpha_falls_in_a_straight_line():
    assert [annealed(40, 5, epoch, 8) for epoch in range(8)] == pytest.approx([40, 35, 30, 25, 20, 15, 10, 5])
    assert annealed(40, 5, 0, 1) == 40


def test_the_prior_is_found_from_given_labels():
    """Where counts are exactly what T makes of a prior, it is the prior; else no other is more likely."""
    prior = torch.tensor([0.6, 0.1, 0.3], dtype=torch.float64)
    counts = (prior @ T * 1e5).round().long()
    given = torch.arange(3).repeat_interleave(counts)
    torch.testing.assert_close(estimate_prior(T, given), prior, atol=1e-3, rtol=0)
    skewed = torch.tensor([0] * 5 + [1] * 3 + [2] * 40)  # more of 2 than any prior could make: 60 % at most
    steps = np.linspace(0.001, 0.998, 60)
    grid = torch.tensor([(a, b, 1 - a - b) for a in steps for b in steps if a + b < 1])
    found = estimate_prior(T, skewed)

    def likelihood(p):
        return (p @ T).log()[..., skewed].sum(-1)

    assert likelihood(found) >= likelihood(grid).max() - 1e-6


def test_the_estimated_prior_reaches_the_beliefs():
    given = (0, 0, 0, 0, 1, 2)
    uniform, estimated = CnnCrf(transition=TRANSITION), CnnCrf(transition=TRANSITION, prior="estimated")
    for method in (uniform, estimated):
        started(method, given, dtype=torch.float64)
    expected = auxiliary_distribution(T, torch.arange(3), estimate_prior(T, torch.tensor(given)))
    torch.testing.assert_close(estimated.log_aux.exp(), expected)
    assert not torch.allclose(uniform.log_aux, estimated.log_aux)


def test_it_sees_through_much_noise_with_the_true_matrix():
    rng, matrix = np.random.default_rng(0), symmetric_matrix(3, 0.5)
    clean = np.arange(240) % 3
    centres = np.array([[0, 0], [4, 0], [0, 4]], dtype=np.float32)
    x = rng.normal(size=(240, 2)).astype(np.float32) * 0.3 + centres[clean]
    examples = from_arrays(x, flip(clean, matrix, seed=0).labels, clean_labels=clean)
    method = CnnCrf(transition=tuple(map(tuple, matrix.tolist())), epochs=15, lr=0.1, alpha_start=2.0, alpha_end=0.0)
    outcome = trainer_for(examples, method).run()
    network = outcome.model(torch.from_numpy(x)).argmax(1)
    assert (network == torch.from_numpy(clean)).double().mean() > 0.97
    assert outcome.records[0]["labels_correct"] < 0.7 and outcome.records[-1]["labels_correct"] > 0.85
    assert outcome.records[-1]["alpha"] == 0


def test_what_it_refuses():
    with pytest.raises(RecipeError, match="needs the true noise transition matrix"):
        started(CnnCrf())
    with pytest.raises(RecipeError, match="3 rows of 3 numbers; expected 4 rows of 4"):
        started(CnnCrf(transition=TRANSITION), classes=4)
    with pytest.raises(RecipeError, match=r"method\.alpha_end"):
        from_recipe("cnn_crf", alpha_end=-1)
    assert CnnCrf.requirements.transition_matrix


def test_from_a_recipe_and_within_a_budget(blobs):
    method = from_recipe("cnn_crf", transition=T.tolist(), prior="estimated")
    outcome = trainer_for(blobs, method, epochs=3).run()
    assert [record["alpha"] for record in outcome.records] == pytest.approx([40, 22.5, 5])
