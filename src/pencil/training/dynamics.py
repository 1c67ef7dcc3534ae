"""The dynamics of a run: those of training rows, met in every step, and of held-out rows, met in every evaluation."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from pencil.data.examples import Examples, Splits
from pencil.data.given import hard_labels
from pencil.labels.dynamics import Evidence, TrainingDynamics
from pencil.labels.entry_dynamics import EntryDynamics, EntryEvidence
from pencil.labels.entry_judging import judge_entries
from pencil.labels.judging import Judgement, Rule, Survey, can_match, fit_rule, judge, sample_rows
from pencil.labels.sharded import LabelLayout

RunEvidence = tuple[Evidence | EntryEvidence, Evidence | EntryEvidence | None]
"""The dynamics of training rows, and of held-out rows where there are any."""


TOGETHER = 16
"""Steps whose predictions are recorded together: for small networks the calls take longer than the numbers."""
VALUES = 2**22
"""Of sharded rows this many probabilities are in memory at a time."""


class RunDynamics:
    """Records what was predicted for every row, or entry of multi-label data, and judges the given labels by it.

    Parameters
    ----------
    splits
        Training and held-out rows.
    layout
        Where the labels of the training rows are kept; their dynamics are kept there too.
    device
        Of the training rows' dynamics.
    """

    def __init__(self, splits: Splits, layout: LabelLayout, device: torch.device):
        self.splits, self.layout, self.device = splits, layout, device
        self.restart()

    def restart(self) -> None:
        """Forget all visits."""
        train, held_out, layout, device = self.splits.train, self.splits.validation, self.layout, self.device
        make = EntryDynamics if train.multilabel else TrainingDynamics
        self.train = make(train.given_labels.to(device), train.num_classes, layout)
        self.held_out = None if held_out is None else make(held_out.given_labels, held_out.num_classes)
        self._waiting: list[tuple[Tensor, Tensor]] = []
        self._judged: Judgement | None = None

    def add(self, rows: Tensor, logits: Tensor) -> None:
        """Count a visit of training rows, each of them once in an epoch, with what was predicted before the step."""
        self._judged = None
        if self.layout.sharded_over is not None:  # where all ranks record together
            self.train.add(rows, logits)
            return
        self._waiting.append((rows, logits.detach()))
        if len(self._waiting) == TOGETHER:
            self._record()

    def _record(self) -> None:
        """Record the visits that wait for it."""
        if self._waiting:
            rows, logits = (torch.cat(parts) for parts in zip(*self._waiting, strict=True))
            self._waiting = []
            self.train.add(rows, logits)

    def add_evaluation(self, held_out_logits: Tensor | None) -> None:
        """Count a visit of the held-out rows that can be read, at the end of an epoch."""
        self._judged = None
        self._record()
        if self.held_out is not None and held_out_logits is not None:
            read = ~held_out_logits[:, 0].isnan()
            self.held_out.add(read.nonzero()[:, 0], held_out_logits[read])

    def add_predictions(self, logits: Tensor) -> None:
        """Count a visit of the training rows that can be read; with sharded rows all ranks call this together."""
        rows, world = torch.arange(len(logits), device=logits.device), self.layout.sharded_over
        if world is not None:
            rows = rows[world.rank :: world.size]
        rows = rows[~logits[rows, 0].isnan()]
        self._judged = None
        self._record()
        self.train.add(rows.to(self.device), logits[rows].to(self.device))

    def evidence(self) -> RunEvidence:
        """Return the dynamics of training and held-out rows; all ranks call this together."""
        self._record()
        return self.train.evidence(), None if self.held_out is None else self.held_out.evidence()

    def judge(self, evidence: RunEvidence | None = None) -> Judgement:
        """Return the judgement of all rows by their dynamics so far; all ranks call this together.

        ``evidence`` is what :meth:`evidence` returns, where the caller has it already.
        """
        if self._judged is None:
            self._judged = self._judge(*(evidence or self.evidence()))
        return self._judged

    def _judge(self, train: Evidence | EntryEvidence, held_out: Evidence | EntryEvidence | None) -> Judgement:
        given, validation = self.splits.train.given_labels, self.splits.validation
        held_out_given = None if validation is None else validation.given_labels
        if isinstance(train, EntryEvidence):
            assert not isinstance(held_out, Evidence)
            return judge_entries(train, given, held_out, held_out_given)
        assert not isinstance(held_out, EntryEvidence)
        return judge(train, given, held_out, held_out_given)

    def can_judge_shards(self) -> bool:
        """Return whether :meth:`judge_shards` can be called: rows are sharded, of single-label data, and some held out.

        Without held-out rows training rows are compared with each other, for which all of them have to be in one place.
        """
        if self.layout.sharded_over is None or not isinstance(self.train, TrainingDynamics):
            return False
        held_out, validation = self.held_out, self.splits.validation
        if not isinstance(held_out, TrainingDynamics) or validation is None:
            return False
        return can_match(held_out.evidence(), validation.given_labels)

    def judge_shards(self) -> "ShardedJudgement":
        """Return the judgement of all rows, each process for its own; all ranks call this together.

        It equals :meth:`judge`. A process holds a few numbers of every row, and whole distributions of its own rows
        only while they are asked for.
        """
        self._record()
        world, train, held_out, validation = self.layout.sharded_over, self.train, self.held_out, self.splits.validation
        assert world is not None and isinstance(train, TrainingDynamics) and isinstance(held_out, TrainingDynamics)
        assert validation is not None
        given, reference = self.splits.train.given_labels, held_out.evidence()
        rule = fit_rule(rows := self._survey(train), given, reference, validation.given_labels)
        kept = torch.zeros(train.num_classes, dtype=torch.int64)
        for places, evidence in _chunks(train):
            probs = rule.posterior(evidence, given[places * world.size + world.rank])
            kept += probs.argmax(dim=1).bincount(minlength=train.num_classes)
        rule = rule.keep_classes(world.all_reduce_sum(kept), given)
        nothing, scores = torch.empty(0, train.num_classes), rule.issue_scores(rows, given)
        judgement = rule.judgement(nothing, scores, reference, validation.given_labels)
        empty = Evidence(nothing, *(torch.empty(0) for _ in range(4)))
        return ShardedJudgement(judgement, rule, train, (empty, reference))

    def _survey(self, train: TrainingDynamics) -> Survey:
        """The survey of all training rows, of which this process has some; whole rows are exchanged for the sample."""
        world, given = self.layout.sharded_over, self.splits.train.given_labels
        assert world is not None
        confidence, predicted = torch.empty(len(train.given), dtype=torch.float64), torch.empty_like(train.given).cpu()
        for places, evidence in _chunks(train):
            top = evidence.log_probs.double().softmax(dim=1).max(dim=1)
            confidence[places], predicted[places] = top.values, top.indices
        visits, log_given, _, disagreement = (train.gather(one.contiguous()).cpu() for one in train.scalars.unbind(1))
        rows = sample_rows(visits, given)
        mine = rows % world.size == world.rank
        sample = torch.zeros(len(rows), train.num_classes)
        sample[mine] = train.local_evidence(rows[mine] // world.size).log_probs
        predicted = train.gather(predicted.to(torch.int32)).long()
        return Survey(
            train.gather(confidence), predicted, log_given, disagreement, visits, world.all_reduce_sum(sample)
        )

    def state_dict(self, *, sharded: bool) -> dict[str, Any]:
        """Return the dynamics that every process has, or those of this process's shard."""
        self._record()
        return {name: one.state_dict() for name, one in self._parts().items() if (one.world is not None) == sharded}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the dynamics of the rows of this process."""
        self._waiting, self._judged = [], None
        for name, part in self._parts().items():
            part.load_state_dict(state[name])

    def _parts(self) -> dict[str, TrainingDynamics | EntryDynamics]:
        parts = {"train": self.train, "held_out": self.held_out}
        return {name: part for name, part in parts.items() if part is not None}


@dataclass(frozen=True)
class ShardedJudgement:
    """A judgement of sharded rows.

    Attributes
    ----------
    judgement
        The judgement of held-out rows, and the issue scores of all training rows. It has no training posteriors.
    rule
        Gives the posteriors of the training rows of this process.
    train
        Their dynamics.
    evidence
        The evidence of held-out rows; that of training rows has no rows.
    """

    judgement: Judgement
    rule: Rule
    train: TrainingDynamics
    evidence: RunEvidence

    def rows(self, places: Tensor, given: Tensor) -> tuple[Tensor, Evidence]:
        """Return posteriors and dynamics of rows of this process, given their places among them and their labels."""
        evidence = self.train.local_evidence(places)
        return self.rule.posterior(evidence, given), evidence


def _chunks(train: TrainingDynamics) -> Iterator[tuple[Tensor, Evidence]]:
    """Yield the rows of this process with their dynamics, few enough at a time that all their classes fit."""
    for places in torch.arange(len(train.given)).split(rows_at_a_time(train.num_classes)):
        yield places, train.local_evidence(places)


def rows_at_a_time(num_classes: int) -> int:
    """Return how many rows are whole distributions at a time."""
    return max(1, VALUES // num_classes)


def with_issue_scores(
    judgement: Judgement, scores: Tensor, held_out: Examples | None, held_out_probs: Tensor | None
) -> Judgement:
    """Return the judgement with a method's own issue scores; held-out rows get theirs from the predictions."""
    held_out_scores = None
    if held_out is not None and held_out_probs is not None:
        given = hard_labels(held_out.given_labels)
        held_out_scores = 1 - held_out_probs.gather(1, given[:, None])[:, 0].double()
    return replace(judgement, issue_scores=scores.double().cpu(), held_out_issue_scores=held_out_scores)
