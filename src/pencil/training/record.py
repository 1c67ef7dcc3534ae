"""What training tells: a record of every epoch to whoever watches, and an outcome in the end."""

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from pencil.methods.base import Phase, Terms

Record = dict[str, Any]


class Observer:
    """Something that watches training: a progress display, a run directory. Every method may be left as it is."""

    def started(self, phases: tuple[Phase, ...], steps_per_epoch: int, steps_done: int) -> None: ...

    def stepped(self) -> None: ...

    def epoch_ended(self, record: Record) -> None: ...


@dataclass(frozen=True)
class Outcome:
    """What training gives back; ``label_probs`` are for the training rows."""

    model: nn.Module
    best_weights: dict[str, Tensor]
    best_epoch: int
    label_probs: Tensor
    validation_probs: Tensor | None
    records: list[Record]
    findings: dict[str, Any] = field(default_factory=dict)


@dataclass
class Sums:
    """Running sums over an epoch, weighted by batch size."""

    rows: int = 0
    right: float = 0.0
    losses: dict[str, float] = field(default_factory=dict)

    def add(self, terms: Terms, value: float, right: float, rows: int) -> None:
        self.rows += rows
        self.right += right
        self.losses["loss"] = self.losses.get("loss", 0.0) + value * rows
        for name, part in terms.parts.items():
            self.losses[f"loss_{name}"] = self.losses.get(f"loss_{name}", 0.0) + float(part) * rows

    def means(self) -> Record:
        return {name: total / self.rows for name, total in self.losses.items()} | {
            "train_accuracy": self.right / self.rows
        }


@dataclass
class Position:
    """How far training has come: so many whole phases, whole epochs of the next one, and steps of the next epoch."""

    phase: int = 0
    epoch: int = 0
    step: int = 0
