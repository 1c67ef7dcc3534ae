"""Labels: the losses of the paper, the label stores with their closed-form update, and how labels are read."""

from pencil.labels.store import LabelStore

__all__ = ["LabelStore"]
