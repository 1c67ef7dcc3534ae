"""Matching training rows to held-out rows: both are drawn from the same data, so their averages must agree."""

import math
from dataclasses import replace

import torch
from torch import Tensor

from pencil.data.given.given_labels import hard_labels
from pencil.labels.noise_model import NoiseModel, posterior
from pencil.labels.rows import rows_at_a_time

MATCH_TEMPERATURES = torch.logspace(-1.0, 0.8, 19, dtype=torch.float64).tolist()
MATCH_TRUSTS = torch.linspace(0.0, 1.5, 11, dtype=torch.float64).tolist()
SPREAD = 0.3
"""Prior spread of the log temperature and of the trust between training rows and other rows."""


def match_held_out(
    sample: Tensor, given: Tensor, held_out_logits: Tensor, held_out_given: Tensor, noise: NoiseModel
) -> tuple[NoiseModel, float]:
    """Return the noise model with the temperature for training rows, and the trust in their labels.

    They are chosen so that three averages of the posterior agree between training and held-out rows: the fraction of
    changed labels, the probability of the most probable class, and the probability of the given class. They only need
    to agree within the standard errors of the held-out averages: with few held-out rows both stay near their defaults.
    """
    held_out = summarize_posterior(held_out_logits, held_out_given, noise)
    target, errors = held_out.mean(dim=1), held_out.std(dim=1).clamp_min(1e-3) / len(held_out_given) ** 0.5
    logits = sample.double()
    found: list[tuple[float, float, float]] = []
    for temperature in MATCH_TEMPERATURES:
        model = replace(noise, temperature=temperature)
        for trust in MATCH_TRUSTS:
            gap = summarize_posterior(logits, given, model, trust).mean(dim=1) - target
            moved = (math.log(temperature / noise.temperature) / SPREAD) ** 2 + ((trust - 1) / SPREAD) ** 2
            found.append((float((gap / errors).square().sum()) + moved, temperature, trust))
    _, temperature, trust = min(found)
    return replace(noise, temperature=temperature), trust


def match_quantiles(scores: Tensor, reference: Tensor) -> Tensor:
    """Return the scores in the same order, with the values that ``reference`` has at the same ranks.

    Each score is placed in the middle of its rank interval: the larger of two need not match the largest of thousands.
    """
    ordered, last = reference.double().sort().values, len(reference) - 1
    places = (relative_ranks(scores) * len(reference) - 0.5).clamp(0, last)
    below = places.floor().long()
    return torch.lerp(ordered[below], ordered[(below + 1).clamp_max(last)], places - below)


def relative_ranks(scores: Tensor) -> Tensor:
    """Return the rank of each score, evenly spaced between 0 and 1 (both excluded)."""
    ranks = torch.empty(len(scores), dtype=torch.float64)
    ranks[scores.argsort(stable=True)] = (torch.arange(len(scores), dtype=torch.float64) + 0.5) / len(scores)
    return ranks


def summarize_posterior(
    logits: Tensor, given: Tensor, noise: NoiseModel, trust: float = 1.0, rarity: Tensor | None = None
) -> Tensor:
    """Return three numbers about the posterior of each row, in fp64, (3, rows).

    Whether its label changes, the probability of its most probable class, and the probability of the given class. The
    arguments are those of :func:`pencil.labels.noise_model.posterior`, which is computed block by block.
    """
    size, found = rows_at_a_time(logits.shape[1]), []
    for some, labels in zip(logits.split(size), given.split(size), strict=True):
        probs, own = posterior(some.double(), labels, noise, trust, rarity).exp(), hard_labels(labels)
        top = probs.max(dim=1)
        found.append(torch.stack([(top.indices != own).double(), top.values, probs.gather(1, own[:, None])[:, 0]]))
    return torch.cat(found, dim=1)
