"""Multi-label data: each class of an example is present or absent independently, with the probability of a sigmoid.

Entries that are not given are unknown (NaN): they are neither trained on nor changed.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from pencil.errors import RecipeError
from pencil.labels.chance import ranks_rows
from pencil.labels.entry_dynamics import EntryDynamics
from pencil.labels.entry_noise import (
    EntryNoise,
    entry_agreement,
    entry_log_likelihoods,
    fit_entry_noise,
    remaining_entry_trust,
    remaining_errors,
)
from pencil.labels.judging import Judgement
from pencil.labels.losses import Compatibility, Divergence, NetworkLosses, at_least_fp32
from pencil.labels.multilabel_losses import (
    binary_compatibility_loss,
    binary_cross_entropy,
    binary_label_gradient,
    binary_network_losses,
    forward_binary_kl,
    inverse_binary_kl,
)
from pencil.labels.multilabel_store import MultilabelStore
from pencil.labels.noise_model import SIGNIFICANT
from pencil.labels.protocol import HeldOut, Labels
from pencil.labels.reading import read_entries
from pencil.labels.scores import entry_scores_by_class, mean_average_precision
from pencil.labels.sharded import REPLICATED, LabelLayout

INITIAL_PROBABILITY = 0.99
"""Initial probability of an entry that is given as present, unless another one is chosen."""
WORTH_CORRECTING = 1 / 2
"""Labels are worth correcting if at most this fraction of the wrong entries remains under the posterior."""


@dataclass(frozen=True)
class MultiLabel:
    """The form of multi-label data; see :class:`pencil.labels.LabelForm`.

    Each entry is a binary problem, so lambda and alpha apply without the number of classes: ``step = lambda / B``,
    ``pull = alpha``. (With another factor of 1/c, the paper's lambda of 300 would move an Open Images label by only
    0.6.)

    Parameters
    ----------
    divergence
        Direction of the KL divergence in L_c: "inverse", "forward", or "both" (the paper's for Open Images).
    compatibility
        Which L_o is used; see :func:`pencil.compatibility_loss`.
    probability
        Initial probability of an entry that is given as present; 0.99 by default.
    """

    score: ClassVar[str] = "map"
    divergence: Divergence = "inverse"
    compatibility: Compatibility = "published"
    probability: float | None = None

    read = staticmethod(read_entries)
    score_of = staticmethod(mean_average_precision)
    scores_by_class = staticmethod(entry_scores_by_class)
    agreement = staticmethod(entry_agreement)

    # ---- labels and losses

    def to_probs(self, logits: Tensor) -> Tensor:
        return logits.sigmoid()

    def as_logits(self, probs: Tensor, given_labels: Tensor) -> Tensor:
        """Return logits whose sigmoid is ``probs``; unknown entries stay at one half."""
        return probs.logit(eps=torch.finfo(torch.float32).eps).masked_fill(given_labels.isnan(), 0.0)

    def has_label(self, given_labels: Tensor) -> Tensor:
        """All rows; unknown entries are ignored one by one."""
        return torch.ones(len(given_labels), dtype=torch.bool, device=given_labels.device)

    def store(self, given_labels: Tensor, num_classes: int, *, top_k: int | None = None, **where: Any) -> Labels:
        if top_k is not None:  # the sum of a row's logits is not constant here, so dropped entries would be lost
            raise RecipeError(
                f"training.label_top_k is {top_k}, but the data is multi-label; top-k labels need single-label data; "
                "remove label_top_k."
            )
        probability = INITIAL_PROBABILITY if self.probability is None else self.probability
        return MultilabelStore(given_labels, probability=probability, **where)

    def dynamics(self, given_labels: Tensor, num_classes: int, layout: LabelLayout = REPLICATED) -> EntryDynamics:
        return EntryDynamics(given_labels, num_classes, layout)

    def given_loss(self, logits: Tensor, given_labels: Tensor) -> Tensor:
        return binary_cross_entropy(logits, given_labels) / logits.shape[1]

    def network_losses(
        self, logits: Tensor, label_logits: Tensor, given_labels: Tensor, *, beta: float, class_mean: bool
    ) -> NetworkLosses:
        known = ~given_labels.isnan()
        return binary_network_losses(
            logits, label_logits, known, beta=beta, class_mean=class_mean, divergence=self.divergence
        )

    def label_gradient(
        self, losses: NetworkLosses, logits: Tensor, label_logits: Tensor, given_labels: Tensor, pull: float
    ) -> Tensor:
        return binary_label_gradient(
            label_logits,
            logits,
            given_labels,
            pull=pull,
            compatibility=self.compatibility,
            divergence=self.divergence,
        )

    def compatibility_loss(self, label_logits: Tensor, given_labels: Tensor) -> Tensor:
        return binary_compatibility_loss(label_logits, given_labels, self.compatibility)

    def kl_divergence(self, logits: Tensor, label_logits: Tensor, given_labels: Tensor, direction: str) -> Tensor:
        divergence = forward_binary_kl if direction == "forward" else inverse_binary_kl
        return divergence(logits, label_logits, ~given_labels.isnan()) / logits.shape[1]

    def paper_factors(self, batch_size: int, num_classes: int) -> tuple[float, float]:
        return 1 / batch_size, 1.0

    # ---- reading labels, and comparing predictions with them

    def keep_given(self, given_labels: Tensor, label_probs: Tensor, rate: float) -> Tensor:
        kept = torch.where(given_labels > 0.5, 1 - rate, rate).to(label_probs)
        return kept.where(~given_labels.isnan(), label_probs)

    def wrong(self, given_labels: Tensor, clean_labels: Tensor) -> Tensor:
        known = ~given_labels.isnan() & ~clean_labels.isnan()
        return (((given_labels > 0.5) != (clean_labels > 0.5)) & known).any(dim=1)

    def hits(self, logits: Tensor, given_labels: Tensor) -> tuple[float, float]:
        known = ~given_labels.isnan()
        agree = ((logits > 0) == (given_labels > 0.5)) & known
        hits, entries = torch.stack([agree.sum(), known.sum()]).tolist()  # a single device synchronisation
        return float(hits), float(entries)

    def is_chance(self, held_out: HeldOut) -> bool:
        return not ranks_rows(*held_out)

    def log_likelihoods(self, held_out: HeldOut, noise: EntryNoise | None = None) -> Tensor:
        return entry_log_likelihoods(*held_out, fit_entry_noise(*held_out) if noise is None else noise)

    def gains(self, now: HeldOut, before: Tensor) -> Tensor:
        return self.log_likelihoods(now) - self.log_likelihoods((before, now[1]))

    # ---- the noise model

    def log_rarity(self, given_labels: Tensor, num_classes: int) -> Tensor:
        return torch.zeros(num_classes).double()  # classes do not compete with each other

    def fit_noise(self, logits: Tensor, given_labels: Tensor, held_out: HeldOut | None) -> EntryNoise:
        return fit_entry_noise(*(held_out or (logits, given_labels)))

    def refit_noise(self, noise: EntryNoise, held_out: HeldOut) -> EntryNoise:
        return fit_entry_noise(*held_out)

    def is_worth_correcting(self, held_out: HeldOut, progress: float) -> bool:
        """A network that still learns what classes look like learns faster from the given labels."""
        learning = progress > SIGNIFICANT
        return not learning and remaining_errors(*held_out, fit_entry_noise(*held_out)) <= WORTH_CORRECTING

    def remaining_trust(self, noise: EntryNoise, held_out: HeldOut, agreement: float) -> float:
        return remaining_entry_trust(*held_out, noise, agreement)

    def posterior(
        self, noise: EntryNoise, logits: Tensor, given_labels: Tensor, trust: float, rarity: Tensor
    ) -> Tensor:
        log_odds = noise.posterior(at_least_fp32(logits), given_labels.to(at_least_fp32(logits)), trust)
        return log_odds.masked_fill(given_labels.isnan(), 0.0)

    def posterior_probs(self, posterior: Tensor) -> Tensor:
        return posterior.sigmoid()

    def noise_of(self, judgement: Judgement) -> EntryNoise:
        assert judgement.entry_noise is not None
        return judgement.entry_noise

    def calibration(self, noise: EntryNoise) -> dict[str, float]:
        return {"sharpness": noise.sharpness, "shift": float(noise.shift.mean())}

    def findings(self, noise: EntryNoise) -> dict[str, Any]:
        return {
            "false_positives": noise.false_positives.tolist(),
            "false_negatives": noise.false_negatives.tolist(),
        }
