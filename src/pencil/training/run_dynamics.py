"""The dynamics of a run: of training rows, visited in every step, and of held-out rows, visited in every evaluation."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pencil.data.examples import Examples, Splits
from pencil.data.given.given_labels import hard_labels
from pencil.labels.dynamics import Evidence, TrainingDynamics
from pencil.labels.entry_dynamics import EntryDynamics, EntryEvidence
from pencil.labels.entry_judging import judge_entries
from pencil.labels.forms import label_form
from pencil.labels.judging import Judgement, judge, judge_rows, with_votes
from pencil.labels.judging_rule import Survey, can_match, sample_rows
from pencil.labels.noise_model import top_classes
from pencil.labels.rows import row_blocks
from pencil.labels.sharded import LabelLayout

RunEvidence = tuple[Evidence | EntryEvidence, Evidence | EntryEvidence | None]
"""The dynamics of training rows, and of held-out rows if there are any."""


TOGETHER = 16
"""Steps whose predictions are recorded together: for small networks the calls take longer than the computation."""


class RunDynamics:
    """Records the predictions for every row (or entry of multi-label data), and judges the given labels by them.

    Dynamics of training rows are stored like their labels, on ``device``.
    """

    def __init__(self, splits: Splits, layout: LabelLayout, device: torch.device):
        self.splits, self.layout, self.device = splits, layout, device
        self.restart()

    def restart(self) -> None:
        """Discard all visits."""
        train, held_out, layout, device = self.splits.train, self.splits.validation, self.layout, self.device
        make = label_form(train.multilabel).dynamics
        self.train = make(train.given_labels.to(device), train.num_classes, layout)
        self.held_out = None if held_out is None else make(held_out.given_labels, held_out.num_classes)
        self._waiting: list[tuple[Tensor, Tensor]] = []
        self._judged: Judgement | None = None

    def add(self, rows: Tensor, logits: Tensor) -> None:
        """Record a visit of training rows, once per epoch each, with the predictions before the step."""
        self._judged = None
        if self.layout.sharded_over is not None:  # all ranks record together
            self.train.add(rows, logits)
            return
        self._waiting.append((rows, logits.detach()))
        if len(self._waiting) == TOGETHER:
            self._record()

    def _record(self) -> None:
        """Record the pending visits."""
        if self._waiting:
            rows, logits = (torch.cat(parts) for parts in zip(*self._waiting, strict=True))
            self._waiting = []
            self.train.add(rows, logits)

    def add_evaluation(self, held_out_logits: Tensor | None) -> None:
        """Record a visit of the readable held-out rows at the end of an epoch."""
        self._judged = None
        self._record()
        if self.held_out is not None and held_out_logits is not None:
            read = ~held_out_logits[:, 0].isnan()
            self.held_out.add(read.nonzero()[:, 0], held_out_logits[read])

    def add_predictions(self, logits: Tensor) -> None:
        """Record a visit of the readable training rows; with sharded rows all ranks must call this together."""
        rows, world = torch.arange(len(logits), device=logits.device), self.layout.sharded_over
        if world is not None:
            rows = rows[world.rank :: world.size]
        rows = rows[~logits[rows, 0].isnan()]
        self._judged = None
        self._record()
        self.train.add(rows.to(self.device), logits[rows].to(self.device))

    def evidence(self) -> RunEvidence:
        """Return the dynamics of training and held-out rows for the label table; all ranks must call this."""
        self._record()
        return self.train.scalar_evidence(), None if self.held_out is None else self.held_out.scalar_evidence()

    def judge(self) -> Judgement:
        """Return the judgement of all rows, given their dynamics so far; all ranks must call this together."""
        if self._judged is None:
            self._record()
            self._judged = self._judge()
        return self._judged

    def _judge(self) -> Judgement:
        given, validation = self.splits.train.given_labels, self.splits.validation
        held_out_given = None if validation is None else validation.given_labels
        if isinstance(self.train, EntryDynamics):
            assert not isinstance(self.held_out, TrainingDynamics)
            held_out = None if self.held_out is None else self.held_out.evidence()
            return judge_entries(self.train.evidence(), given, held_out, held_out_given)
        if self.layout.sharded_over is None:
            return self._with_votes(self.judge_shards())
        return judge(self.train.evidence(), given, self._held_out_evidence(), held_out_given)

    def _with_votes(self, judgement: Judgement) -> Judgement:
        """Return the judgement by the votes of all annotators, if the labels come from several."""
        train, validation, held_out = self.splits.train, self.splits.validation, self._held_out_evidence()
        if train.votes is None:
            return judgement
        assert isinstance(self.train, TrainingDynamics)
        keys = train.keys
        if validation is None or validation.votes is not train.votes:  # held-out rows of another source
            held_out = None
        else:
            keys = np.concatenate([keys, validation.keys])
        return with_votes(judgement, train.votes.of(keys), self.train.evidence(), held_out)

    def _held_out_evidence(self) -> Evidence | None:
        assert not isinstance(self.held_out, EntryDynamics)
        return None if self.held_out is None else self.held_out.evidence()

    def can_judge_shards(self) -> bool:
        """Return whether :meth:`judge_shards` can be called: single-label data, sharded rows, and some rows held out.

        Without held-out rows, training rows are compared with each other, which needs all of them in one place.
        """
        if self.layout.sharded_over is None or not isinstance(self.train, TrainingDynamics):
            return False
        held_out, validation = self.held_out, self.splits.validation
        if not isinstance(held_out, TrainingDynamics) or validation is None:
            return False
        return can_match(held_out.evidence(), validation.given_labels)

    def judge_shards(self) -> Judgement:
        """Return the judgement of all rows, with the posterior of the local rows; all ranks must call this.

        It equals :meth:`judge`. A process holds a few numbers of every row, and full distributions of its own rows only
        on demand.
        """
        self._record()
        world, train, validation = self.layout.sharded_over, self.train, self.splits.validation
        assert isinstance(train, TrainingDynamics)
        given, held_out_given = self.splits.train.given_labels, None if validation is None else validation.given_labels
        judged = partial(judge_rows, train.local_evidence, self._survey(train), given)
        if world is None:
            return judged(self._held_out_evidence(), held_out_given)
        mine = slice(world.rank, None, world.size)
        return judged(self._held_out_evidence(), held_out_given, mine, world.all_reduce_sum)

    def _survey(self, train: TrainingDynamics) -> Survey:
        """The survey of all training rows, some of which are local; whole rows are exchanged for the sample."""
        world, given = self.layout.sharded_over, self.splits.train.given_labels
        blocks = row_blocks(len(train.given), train.num_classes)
        tops = [top_classes(train.local_evidence(places).log_probs) for places in blocks]
        confidence, predicted = (torch.cat(parts) for parts in zip(*tops, strict=True))
        visits, log_given, _, disagreement = (train.gather(one.contiguous()).cpu() for one in train.scalars.unbind(1))
        rows = sample_rows(visits, given)
        if world is None:
            sample = train.local_evidence(rows).log_probs
            return Survey(confidence, predicted, log_given, disagreement, visits, sample)
        mine = rows % world.size == world.rank
        sample = torch.zeros(len(rows), train.num_classes)
        sample[mine] = train.local_evidence(rows[mine] // world.size).log_probs
        predicted = train.gather(predicted.to(torch.int32)).long()
        return Survey(
            train.gather(confidence), predicted, log_given, disagreement, visits, world.all_reduce_sum(sample)
        )

    def state_dict(self, *, sharded: bool) -> dict[str, Any]:
        """Return the dynamics, either of all rows (replicated) or of this process's shard."""
        self._record()
        return {name: one.state_dict() for name, one in self._parts().items() if (one.world is not None) == sharded}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the dynamics of the local rows."""
        self._waiting, self._judged = [], None
        for name, part in self._parts().items():
            part.load_state_dict(state[name])

    def _parts(self) -> dict[str, TrainingDynamics | EntryDynamics]:
        parts = {"train": self.train, "held_out": self.held_out}
        return {name: part for name, part in parts.items() if part is not None}


def with_issue_scores(
    judgement: Judgement, scores: Tensor, held_out: Examples | None, held_out_probs: Tensor | None
) -> Judgement:
    """Return the judgement with a method's own issue scores; scores of held-out rows come from the predictions."""
    held_out_scores = None
    if held_out is not None and held_out_probs is not None:
        given = hard_labels(held_out.given_labels)
        held_out_scores = 1 - held_out_probs.gather(1, given[:, None])[:, 0].double()
    return replace(judgement, issue_scores=scores.double().cpu(), held_out_issue_scores=held_out_scores)
