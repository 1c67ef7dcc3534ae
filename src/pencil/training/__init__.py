"""Training: the loop, its settings and evaluation."""

from pencil.training.loop import Observer, Outcome, Record, Trainer
from pencil.training.settings import TrainingSettings

__all__ = ["Observer", "Outcome", "Record", "Trainer", "TrainingSettings"]
