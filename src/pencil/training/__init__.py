"""Training: the loop, its settings and evaluation."""

from pencil.training.record import Observer, Outcome, Record
from pencil.training.settings import TrainingSettings
from pencil.training.trainer import Trainer

__all__ = ["Observer", "Outcome", "Record", "Trainer", "TrainingSettings"]
