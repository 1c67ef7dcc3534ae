"""A network and a label noise model as one graphical model (Vahdat, NeurIPS 2017), for single-label data.

"Toward robustness against label noise in training deep discriminative neural networks". The clean class ``y`` is a
latent variable between the network, ``f(y)``, and the given label, ``T[y, given]``. With one given label per row the
graph has no loops, so the expectation step, which the paper samples, has a closed form.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from pencil.data.examples import Batch
from pencil.data.given.given_labels import as_distribution, hard_labels
from pencil.errors import RecipeError
from pencil.labels.losses import cross_entropy, log_probs
from pencil.methods.base import Context, Epochs, Method, NonNegative, Outputs, Phase, Requirements, Task, Terms
from pencil.methods.forward import Matrix, check_transition
from pencil.methods.schedules import AnySchedule, Cosine, Schedule, as_schedule


def safe_log(probs: Tensor) -> Tensor:
    """``log(probs)``, with zero replaced by the smallest number: a label that ``T`` rules out everywhere is neutral."""
    return probs.clamp_min(torch.finfo(probs.dtype).tiny).log()


def auxiliary_distribution(transition: Tensor, given_labels: Tensor, prior_probs: Tensor | None = None) -> Tensor:
    """``p_aux(y | given)``, proportional to ``T[y, given] * prior[y]``: the belief without the input."""
    scores = safe_log(transition).t()[given_labels]
    return (scores if prior_probs is None else scores + safe_log(prior_probs)).softmax(dim=1)


def e_step(log_f: Tensor, log_t_given: Tensor, log_aux: Tensor, alpha: float) -> Tensor:
    """``q(y)``, proportional to ``(f(y) T[y, given])^(1 / (1 + alpha)) * p_aux(y | given)^(alpha / (1 + alpha))``.

    It minimises ``KL(q || p(y | x, given)) + alpha * KL(q || p_aux)``. At ``alpha = 0`` it is the model's posterior;
    a larger ``alpha`` reduces the weight of the network.
    """
    return ((log_f + log_t_given + alpha * log_aux) / (1 + alpha)).softmax(dim=1)


def estimate_prior(transition: Tensor, given_labels: Tensor, steps: int = 200) -> Tensor:
    """Return the class frequencies that maximise the likelihood of the labels under ``T``, by EM."""
    frequencies = torch.bincount(given_labels, minlength=len(transition)).to(transition) / len(given_labels)
    prior_probs = torch.full_like(frequencies, 1 / len(frequencies))
    for _ in range(steps):
        expected = (prior_probs @ transition).clamp_min(torch.finfo(frequencies.dtype).tiny)
        prior_probs = prior_probs * (transition @ (frequencies / expected))
        prior_probs = prior_probs / prior_probs.sum()  # less than one if T rules out labels that were given
    return prior_probs


def annealed(start: float, end: float, epoch: int, epochs: int) -> float:
    """Linear from ``start`` to ``end``, reached in the last epoch."""
    return start + (end - start) * epoch / max(1, epochs - 1)


@dataclass
class CnnCrfState:
    """The annealed alpha, and the posterior of every row at its last visit."""

    alpha: float
    beliefs: Tensor


class CnnCrf(Method):
    """Cross-entropy with ``q``, the belief about the clean class, which is recomputed in every step.

    As in the paper ``alpha`` is annealed, here from ``alpha_start`` to ``alpha_end`` over all epochs: at first the
    belief relies on the auxiliary distribution, later on the network. The auxiliary distribution assumes equal class
    frequencies, or with ``prior="estimated"`` the frequencies that ``T`` and the given labels imply. Soft labels count
    as their most probable class.
    """

    requirements = Requirements(transition_matrix=True)
    state: CnnCrfState
    row_state: ClassVar = {"beliefs": 0}

    def __init__(
        self,
        *,
        transition: Matrix | None = None,
        epochs: Epochs = 60,
        lr: Schedule = Cosine(0.02),
        alpha_start: NonNegative = 40.0,
        alpha_end: NonNegative = 5.0,
        prior: Literal["uniform", "estimated"] = "uniform",
    ):
        self.transition, self.epochs, self.prior = transition, epochs, prior
        self.lr: AnySchedule = as_schedule(lr)
        self.alpha_start, self.alpha_end = alpha_start, alpha_end

    def start(self, task: Task) -> tuple[Phase, ...]:
        if self.transition is None:
            raise RecipeError(
                "method.transition is not set; this method needs the true noise transition matrix, which is known in "
                "experiments only; set it, or use a method that does not need it, such as forward_estimated or auto."
            )
        transition = check_transition(self.transition, task.num_classes).to(task.device, task.dtype)
        given = hard_labels(task.given_labels)
        prior_probs = estimate_prior(transition, given) if self.prior == "estimated" else None
        classes = torch.arange(task.num_classes, device=task.device)
        self.log_t_given = safe_log(transition).t()  # one row for each possible given label
        self.log_aux = safe_log(auxiliary_distribution(transition, classes, prior_probs))
        beliefs = as_distribution(task.given_labels, task.num_classes).to(task.device, task.dtype)
        self.state = CnnCrfState(self.alpha_start, beliefs)
        train = Phase(
            "train", self.epochs, self.loss, self.lr, before_epoch=self.anneal, after_step=self.store_posterior
        )
        return (train,)

    def anneal(self, epoch: int, epochs: int, _context: Context) -> None:
        """Set alpha for this epoch."""
        self.state.alpha = annealed(self.alpha_start, self.alpha_end, epoch, epochs)

    def loss(self, outputs: Outputs, batch: Batch) -> Terms:
        """``-sum_y q(y) log f(y)``: the maximisation step, with ``q`` held constant."""
        logits, given = outputs.logits, hard_labels(batch.given_labels)
        evidence = (log_probs(logits.detach()), self.log_t_given[given], self.log_aux[given])
        posterior = e_step(*evidence, alpha=0.0)
        return Terms(cross_entropy(logits, e_step(*evidence, self.state.alpha)), carry=posterior)

    def store_posterior(self, posterior: Tensor, batch: Batch, _label_step: float) -> None:
        """Store the posterior of these rows."""
        self.state.beliefs[batch.rows] = posterior.to(self.state.beliefs.dtype)

    def label_probs(self, rows: Tensor | None = None) -> Tensor:
        """The posterior at the last visit, without the auxiliary distribution; before any visit, the given label."""
        return self.state.beliefs if rows is None else self.state.beliefs[rows]

    def metrics(self) -> dict[str, float]:
        return {"alpha": self.state.alpha}
