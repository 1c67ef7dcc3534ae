"""Labels: the losses of the paper, the label stores with their closed-form update, and how labels are read."""

from pencil.labels.forms import LabelForm, label_form
from pencil.labels.losses import (
    compatibility_loss,
    cross_entropy,
    entropy_loss,
    forward_kl,
    inverse_kl,
    pencil_loss,
)
from pencil.labels.multi_label import MultiLabel
from pencil.labels.multilabel_losses import binary_label_gradient
from pencil.labels.multilabel_store import MultilabelStore
from pencil.labels.protocol import Labels
from pencil.labels.reading import EntryReading, LabelReading, read_entries, read_labels
from pencil.labels.sharded import REPLICATED, LabelLayout, ShardedLabelStore
from pencil.labels.single_label import SingleLabel
from pencil.labels.store import LabelStore, forward_kl_label_gradient, init_scale, label_gradient
from pencil.labels.top_k import TopKLabelStore

__all__ = [
    "EntryReading",
    "LabelForm",
    "LabelLayout",
    "LabelReading",
    "LabelStore",
    "Labels",
    "MultiLabel",
    "MultilabelStore",
    "REPLICATED",
    "ShardedLabelStore",
    "SingleLabel",
    "TopKLabelStore",
    "binary_label_gradient",
    "compatibility_loss",
    "cross_entropy",
    "entropy_loss",
    "forward_kl",
    "forward_kl_label_gradient",
    "init_scale",
    "inverse_kl",
    "label_form",
    "label_gradient",
    "pencil_loss",
    "read_entries",
    "read_labels",
]
