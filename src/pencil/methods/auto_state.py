"""What ``auto`` has learned so far: saved with every checkpoint."""

from dataclasses import dataclass, field

from torch import Tensor

from pencil.labels.entry_noise import EntryNoise
from pencil.labels.noise_model import NoiseModel


@dataclass
class AutoState:
    """What training has learned so far.

    ``total`` and ``done`` count epochs of the whole run; the backbone phase has ended once ``backbone_epochs`` is set.
    ``best_*`` describe the backbone epoch that predicts held-out labels best; ``recent_likelihoods`` are the
    likelihoods of the held-out rows after the last epochs. ``trust`` is the weight of the given label in the posterior.
    ``early_learning_share`` is the current fraction of the largest weight of ELR's regulariser (None: all of it).
    ``spread_noise`` is the fraction of random labels that the loss of the backbone phase assumes. ``dropout`` is the
    dropout strength. ``overfitted`` says whether training rows were ever fitted clearly better than held-out rows.
    ``choices`` are the decisions in words.
    """

    total: int
    done: int = 0
    round: int = 1
    backbone_epochs: int = 0
    best_epoch: int = 0
    best_likelihoods: Tensor | None = None
    best_weights: list[Tensor] = field(default_factory=list)
    best_logits: Tensor | None = None
    recent_likelihoods: list[Tensor] = field(default_factory=list)
    corrected: bool = False
    noise: NoiseModel | EntryNoise | None = None
    trust: float = 1.0
    early_learning_share: float | None = None
    spread_noise: float = 0.0
    dropout: float = 1.0
    overfitted: bool = False
    choices: list[str] = field(default_factory=list)
