"""Single-label data: every example has exactly one class, and probabilities are a softmax over the classes."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from pencil.data.given.given_labels import hard_labels, has_tie
from pencil.labels.chance import is_chance
from pencil.labels.dynamics import TrainingDynamics
from pencil.labels.judging import Judgement
from pencil.labels.judging_rule import as_given
from pencil.labels.losses import (
    Compatibility,
    Divergence,
    NetworkLosses,
    at_least_fp32,
    compatibility_loss,
    cross_entropy,
    entropy_loss,
    forward_kl,
    inverse_kl,
    network_losses,
)
from pencil.labels.noise_model import (
    NoiseModel,
    calibrated,
    fit_noise,
    log_likelihoods,
    log_rarity,
    noise_shape,
    posterior,
    remaining_trust,
)
from pencil.labels.protocol import HeldOut, Labels
from pencil.labels.reading import read_labels
from pencil.labels.scores import Scores, scores_by_class
from pencil.labels.sharded import REPLICATED, LabelLayout
from pencil.labels.store import LabelStore, forward_kl_label_gradient, init_scale, label_gradient
from pencil.labels.top_k import TopKLabelStore

INITIAL_PROBABILITY = 0.999
"""Initial probability of the given class, unless another one is chosen."""


@dataclass(frozen=True)
class SingleLabel:
    """The form of single-label data; see :class:`pencil.labels.LabelForm`.

    Parameters
    ----------
    divergence
        Direction of the KL divergence in L_c: "inverse" (the paper's), "forward", or "both".
    compatibility
        Which L_o is used; see :func:`pencil.compatibility_loss`.
    probability
        Initial probability of the given class; 0.999 by default.
    init_scale
        The paper's K; replaces ``probability``.
    """

    score: ClassVar[str] = "accuracy"
    divergence: Divergence = "inverse"
    compatibility: Compatibility = "published"
    probability: float | None = None
    init_scale: float | None = None

    given_loss = staticmethod(cross_entropy)
    read = staticmethod(read_labels)
    log_rarity = staticmethod(log_rarity)

    # ---- labels and losses

    def to_probs(self, logits: Tensor) -> Tensor:
        return logits.softmax(dim=1)

    def as_logits(self, probs: Tensor, given_labels: Tensor) -> Tensor:
        """Return logits whose softmax is ``probs``, scaled to sum to one."""
        return (probs / probs.sum(dim=1, keepdim=True)).clamp_min(torch.finfo(probs.dtype).tiny).log()

    def has_label(self, given_labels: Tensor) -> Tensor:
        """All rows except distributions with a tie for the largest probability."""
        return ~has_tie(given_labels)

    def store(self, given_labels: Tensor, num_classes: int, *, top_k: int | None = None, **where: Any) -> Labels:
        probability = INITIAL_PROBABILITY if self.probability is None else self.probability
        scale = init_scale(probability, num_classes) if self.init_scale is None else self.init_scale
        if top_k is not None:
            return TopKLabelStore(given_labels, num_classes, k=top_k, scale=scale, **where)
        return LabelStore(given_labels, num_classes, scale=scale, **where)

    def dynamics(self, given_labels: Tensor, num_classes: int, layout: LabelLayout = REPLICATED) -> TrainingDynamics:
        return TrainingDynamics(given_labels, num_classes, layout)

    def network_losses(
        self, logits: Tensor, label_logits: Tensor, given_labels: Tensor, *, beta: float, class_mean: bool
    ) -> NetworkLosses:
        inverse = network_losses(logits, label_logits, beta=beta, class_mean=class_mean)
        if self.divergence == "inverse":
            return inverse
        forward, scale = forward_kl(logits, label_logits), 1 / logits.shape[1] if class_mean else 1.0
        if self.divergence == "both":
            both = inverse.classification + forward.detach()
            return inverse._replace(loss=inverse.loss + scale * forward, classification=both)
        loss = scale * (forward + beta * entropy_loss(logits))
        return inverse._replace(loss=loss, classification=forward.detach())

    def label_gradient(
        self, losses: NetworkLosses, logits: Tensor, label_logits: Tensor, given_labels: Tensor, pull: float
    ) -> Tensor:
        # Forward KL alone has no inverse part: y_d - y_d = 0.
        probs = losses.label_probs if self.divergence == "forward" else losses.probs
        gradient = label_gradient(losses.label_probs, probs, given_labels, pull=pull, compatibility=self.compatibility)
        if self.divergence == "inverse":
            return gradient
        return gradient + forward_kl_label_gradient(label_logits, logits)

    def compatibility_loss(self, label_logits: Tensor, given_labels: Tensor) -> Tensor:
        return compatibility_loss(label_logits, given_labels, self.compatibility)

    def kl_divergence(self, logits: Tensor, label_logits: Tensor, given_labels: Tensor, direction: str) -> Tensor:
        return (forward_kl if direction == "forward" else inverse_kl)(logits, label_logits)

    def paper_factors(self, batch_size: int, num_classes: int) -> tuple[float, float]:
        return 1 / (batch_size * num_classes), num_classes

    # ---- reading labels, and comparing predictions with them

    def keep_given(self, given_labels: Tensor, label_probs: Tensor, rate: float) -> Tensor:
        return as_given(given_labels, label_probs.shape[1], rate).to(label_probs)

    def wrong(self, given_labels: Tensor, clean_labels: Tensor) -> Tensor:
        return hard_labels(given_labels).ne(clean_labels) & ~has_tie(given_labels)

    def score_of(self, logits: Tensor, labels: Tensor) -> float:
        return self.agreement(logits, labels)

    def scores_by_class(self, probs: Tensor, labels: Tensor, threshold: float) -> Scores:
        return scores_by_class(probs, labels)

    def hits(self, logits: Tensor, given_labels: Tensor) -> tuple[float, float]:
        if given_labels.ndim == 2:
            decided = ~has_tie(given_labels)
            logits, given_labels = logits[decided], given_labels[decided]
        labels = hard_labels(given_labels).unsqueeze(1)  # a maximum costs a tenth of an argmax
        return float((logits.gather(1, labels) == logits.amax(dim=1, keepdim=True)).sum()), float(len(labels))

    def agreement(self, logits: Tensor, given_labels: Tensor) -> float:
        return float((logits.argmax(dim=1) == hard_labels(given_labels)).double().mean())

    def is_chance(self, held_out: HeldOut) -> bool:
        return is_chance(held_out[0], hard_labels(held_out[1]))

    def log_likelihoods(self, held_out: HeldOut, noise: NoiseModel | None = None) -> Tensor:
        transition = None if noise is None else noise.transition
        return log_likelihoods(held_out[0], hard_labels(held_out[1]), transition)

    def gains(self, now: HeldOut, before: Tensor) -> Tensor:
        given = hard_labels(now[1])
        right, right_before = ((logits.argmax(dim=1) == given).double() for logits in (now[0], before))
        return right - right_before

    # ---- the noise model

    def fit_noise(self, logits: Tensor, given_labels: Tensor, held_out: HeldOut | None) -> NoiseModel:
        given = hard_labels(given_labels)
        fitted_to = held_out or (logits.cpu(), given.cpu())
        return fit_noise(fitted_to[0], hard_labels(fitted_to[1]), noise_shape(logits, given))

    def refit_noise(self, noise: NoiseModel, held_out: HeldOut) -> NoiseModel:
        return calibrated(noise, held_out[0], hard_labels(held_out[1]))

    def is_worth_correcting(self, held_out: HeldOut, progress: float) -> bool:
        return True

    def remaining_trust(self, noise: NoiseModel, held_out: HeldOut, agreement: float) -> float:
        return remaining_trust(held_out[0], hard_labels(held_out[1]), noise, agreement)

    def posterior(
        self, noise: NoiseModel, logits: Tensor, given_labels: Tensor, trust: float, rarity: Tensor
    ) -> Tensor:
        return posterior(at_least_fp32(logits), given_labels, noise, trust, rarity)

    def posterior_probs(self, posterior: Tensor) -> Tensor:
        return posterior.exp()  # the posterior is in log-probabilities

    def noise_of(self, judgement: Judgement) -> NoiseModel:
        return judgement.noise

    def calibration(self, noise: NoiseModel) -> dict[str, float]:
        return {"temperature": noise.temperature}

    def findings(self, noise: NoiseModel) -> dict[str, Any]:
        return {"transition": noise.transition.tolist()}
