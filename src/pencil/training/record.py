"""What training reports: a record of every epoch to its observers, and an outcome at the end."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from pencil.labels.dynamics import Evidence
from pencil.labels.entry_dynamics import EntryEvidence
from pencil.labels.judging import Judgement
from pencil.labels.rows import row_blocks
from pencil.methods.base import Phase, Terms

Record = dict[str, Any]
"""The metrics of one epoch: a line of ``metrics.jsonl``."""


class Observer:
    """Observes training, like a progress display or a run directory. Every hook is optional."""

    def on_choice(self, sentence: str) -> None:
        """A choice was made before training, described by this sentence."""

    def on_features(self, done: int, total: int) -> None:
        """Before a head is trained: the features of this many images or texts have been computed."""

    def on_start(self, phases: tuple[Phase, ...], steps_per_epoch: int, steps_done: int, earlier_epochs: int) -> None:
        """Training starts, or resumes after ``steps_done`` steps; epochs of an earlier stage are not counted."""

    def on_plan(self, phases: tuple[Phase, ...]) -> None:
        """After every epoch: past and future phases, as the method currently plans them."""

    def on_step(self) -> None:
        """A step has ended."""

    def on_epoch_end(self, record: Record) -> None:
        """An epoch has ended with these metrics."""


@dataclass(frozen=True)
class TrainRows:
    """What training learned about the training rows at ``places``: labels, posterior of the true class, dynamics."""

    places: Tensor
    label_probs: Tensor
    posterior: Tensor
    dynamics: Evidence | EntryEvidence


@dataclass(frozen=True)
class Outcome:
    """The result of training.

    ``label_probs`` are the label distributions of the training rows, ``validation_probs`` of the held-out rows.
    ``unlabelled_probs`` are calibrated predictions for rows without a label. ``judgement`` is the assessment of
    training and held-out labels from their training dynamics.

    If each rank keeps the results of its own rows (``Trainer.run(whole=False)``), ``shard`` yields the rows of this
    rank in blocks; ``label_probs`` is then empty, and ``judgement.posterior`` takes local positions. The ``dynamics``
    have no per-class values. ``outlier_scores`` are the scores of the rows of each split, and ``conflicts``
    mark the rows with a duplicate that has another label, if they were looked for.
    """

    model: nn.Module
    best_weights: dict[str, Tensor]
    best_epoch: int
    label_probs: Tensor
    validation_probs: Tensor | None
    records: list[Record]
    judgement: Judgement
    dynamics: Evidence | EntryEvidence
    validation_dynamics: Evidence | EntryEvidence | None = None
    findings: dict[str, Any] = field(default_factory=dict)
    unlabelled_probs: Tensor | None = None
    outlier_scores: Mapping[str, Tensor] = field(default_factory=dict)
    conflicts: Mapping[str, Tensor] = field(default_factory=dict)
    shard: Callable[[], Iterator[TrainRows]] | None = None

    def __repr__(self) -> str:
        rows, epochs = len(self.judgement.issue_scores), len(self.records)
        return f"Outcome({rows:,} training rows, {epochs} epochs, best epoch {self.best_epoch})"

    def train_rows(self) -> Iterator[TrainRows]:
        """Yield the results of the training rows in blocks; with ``shard``, the rows of this rank."""
        if self.shard is not None:
            yield from self.shard()
        else:
            for places in row_blocks(*self.label_probs.shape):
                dynamics = self.dynamics.subset(places)
                yield TrainRows(places, self.label_probs[places], self.judgement.posterior(places), dynamics)


@dataclass
class RunningMeans:
    """Sums over the steps of an epoch, weighted by batch size.

    ``hits`` of ``known`` given labels agree with the prediction: rows, or entries of multi-label data.
    """

    rows: int = 0
    hits: float = 0.0
    known: float = 0.0
    losses: dict[str, float] = field(default_factory=dict)

    def add(self, terms: Terms, loss: float, hits: tuple[float, float], rows: int) -> None:
        """Add a step on this many rows; ``hits``: how many labels agree with the prediction, of how many."""
        self.rows += rows
        self.hits += hits[0]
        self.known += hits[1]
        self.losses["loss"] = self.losses.get("loss", 0.0) + loss * rows
        for name, part in terms.parts.items():
            self.losses[f"loss_{name}"] = self.losses.get(f"loss_{name}", 0.0) + float(part) * rows

    def means(self) -> Record:
        """Return the means so far."""
        losses = {name: total / self.rows for name, total in self.losses.items()}
        return losses | {"train_accuracy": self.hits / max(1.0, self.known)}


@dataclass
class Position:
    """How far training has come: whole phases, whole epochs of the current phase, steps of the current epoch."""

    phase: int = 0
    epoch: int = 0
    step: int = 0
