"""What the network that is kept says about whole splits, each process taking its share of the rows."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from pencil.data.examples import Examples, Splits
from pencil.data.given import as_distribution
from pencil.data.pinned import apply_pinned
from pencil.training.distributed import World
from pencil.training.evaluation import BATCH, Compute, predict_logits
from pencil.training.metrics import to_probs
from pencil.training.networks import Learner


class Predictor:
    """Logits and probabilities of a split by name: train, validation or test."""

    def __init__(self, splits: Splits, compute: Compute, world: World):
        self.splits, self.compute, self.world = splits, compute, world

    def logits(self, learner: Learner, split: str, between: Callable[[], None] | None = None) -> Tensor:
        """``between`` is called equally often by all processes, after every batch."""
        examples: Examples = getattr(self.splits, split)
        rows, logits = self.world.local(examples.rows), torch.empty(0, examples.num_classes)
        if len(rows):
            logits = predict_logits(
                learner.model, examples.inputs, rows, forward=learner.forward, compute=self.compute, between=between
            )
        most = math.ceil(len(examples) / self.world.size)
        if between is not None and math.ceil(len(rows) / BATCH) < math.ceil(most / BATCH):
            between()
        return self.world.all_gather_local(logits, len(examples))

    def best_logits(self, learner: Learner, split: str) -> Tensor:
        """By the network as it was at its best epoch, where that is known."""
        if not learner.best_weights:
            return self.logits(learner, split)
        now = {name: value.clone() for name, value in learner.model.state_dict().items()}
        learner.model.load_state_dict(learner.best_weights)
        try:
            return self.logits(learner, split)
        finally:
            learner.model.load_state_dict(now)

    def probs(self, learner: Learner, split: str) -> Tensor:
        """Where an input cannot be read, the given label stands; where a label is pinned, that one."""
        examples: Examples = getattr(self.splits, split)
        logits = self.logits(learner, split)
        unread = logits[:, 0].isnan()
        probs = to_probs(logits, examples.multilabel)
        if unread.any():
            probs[unread] = as_distribution(examples.given_labels[unread], examples.num_classes)
        return apply_pinned(probs, examples)
