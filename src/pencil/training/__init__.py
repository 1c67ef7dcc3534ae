"""Training: the loop, its settings and evaluation."""

from pencil.training.loop import Trainer
from pencil.training.record import Observer, Outcome, Record
from pencil.training.settings import TrainingSettings

__all__ = ["Observer", "Outcome", "Record", "Trainer", "TrainingSettings"]
