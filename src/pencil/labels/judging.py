"""Judging labels: from the training dynamics of all rows to the probability that each given label is wrong.

:mod:`pencil.labels.judging_rule` fits the rule to the held-out rows; here it is applied to all rows, a few at a time,
and joined with the votes of several annotators.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from pencil.data.given.given_labels import hard_labels, has_tie
from pencil.data.given.votes import Votes
from pencil.labels.annotators import Consensus
from pencil.labels.annotators import consensus as find_consensus
from pencil.labels.dynamics import Evidence
from pencil.labels.entry_noise import EntryNoise
from pencil.labels.judging_rule import Rule, Survey, can_match, fit_rule, lost_fraction, survey, usable_rows
from pencil.labels.noise_model import NoiseModel, calibrated
from pencil.labels.rows import row_blocks
from pencil.labels.suspects import confident_rate, cutoff, suspect_fraction


@dataclass(frozen=True)
class Judgement:
    """What training has learned about the given labels.

    Attributes
    ----------
    posterior
        Returns the posterior of the true class for training rows, (rows, classes), given their row numbers. All rows at
        once would take many times the memory of the labels.
    held_out_probs
        The same for the held-out rows.
    issue_scores, held_out_issue_scores
        Probability that the given label of each row is wrong; rows are ordered by their dynamics.
    noise
        The noise model that both are based on.
    ceiling
        Upper limit of the noise rate: the fraction of held-out labels that the network disagrees with (95 % limit).
    knows
        Whether held-out labels are predicted better than chance. If not, labels are left as given.
    confident
        The fraction of training labels that confident counts call wrong (:func:`confident_rate`).
    lost_classes
        Classes whose rows were left as given, because no corrected label would have named them.
    suspect_from
        The issue score (of an entry, for multi-label data) from which a label is a suspect: worth a look, although it
        need not change.
    entry_noise
        For multi-label data: the noise model of entries; ``noise`` is its summary.
    entry_scores, held_out_entry_scores
        For multi-label data: the probability that each entry is wrong, (rows, classes); 0 if it is unknown.
    rule
        For single-label data: the rule behind the posterior.
    consensus
        If the labels come from several annotators: their consensus, from which the posteriors are then taken.
    """

    posterior: Callable[[Tensor], Tensor]
    held_out_probs: Tensor | None
    issue_scores: Tensor
    held_out_issue_scores: Tensor | None
    noise: NoiseModel
    ceiling: float
    knows: bool
    lost_classes: tuple[int, ...] = ()
    suspect_from: float = torch.inf
    confident: float = 0.0
    entry_noise: EntryNoise | None = None
    entry_scores: Tensor | None = None
    held_out_entry_scores: Tensor | None = None
    rule: "Rule | None" = None
    consensus: Consensus | None = None

    @property
    def probs(self) -> Tensor:
        """The posterior of all training rows, for small data."""
        return self.posterior(torch.arange(len(self.issue_scores)))


def judge(train: Evidence, given: Tensor, held_out: Evidence | None, held_out_given: Tensor | None) -> Judgement:
    """Return the judgement of all rows.

    Parameters
    ----------
    train, given
        Dynamics and given labels of the training rows: class indices or distributions.
    held_out, held_out_given
        The same for the held-out rows, if there are any; their dynamics come from evaluations.
    """
    return judge_rows(train.subset, survey(train, given), given, held_out, held_out_given)


def judge_rows(
    dynamics: Callable[[Tensor], Evidence],
    rows: Survey,
    given: Tensor,
    held_out: Evidence | None,
    held_out_given: Tensor | None,
    places: slice = slice(None),
    add_up: Callable[[Tensor], Tensor] = lambda counts: counts,
) -> Judgement:
    """Return the judgement of rows whose dynamics are computed on demand, a few whole rows at a time.

    Parameters
    ----------
    dynamics
        Returns the dynamics of local training rows, given their local positions.
    rows, given
        Survey and given labels of all training rows.
    held_out, held_out_given
        As in :func:`judge`.
    places, add_up
        The training rows of this process, and a sum of counts over all processes. The posterior of the judgement covers
        these rows.
    """
    mine, num_classes = given[places], rows.sample.shape[1]
    confident = confident_rate(lambda: _predictions(dynamics, mine, num_classes), num_classes, add_up)
    if can_match(held_out, held_out_given):
        assert held_out is not None and held_out_given is not None
        rule = fit_rule(rows, given, held_out, held_out_given, confident)
    else:
        rule = fit_rule(rows, given, dynamics(torch.arange(len(mine))), given, confident, match=False)
    if rule.knows:
        kept = torch.zeros(num_classes, dtype=torch.int64)
        for block in row_blocks(len(mine), num_classes):
            top = rule.posterior(dynamics(block), mine[block]).argmax(dim=1)
            kept += top.bincount(minlength=num_classes)
        rule = rule.keep_classes(add_up(kept), given)
    held: tuple[Tensor | None, Tensor | None] = (None, None)
    if held_out is not None and held_out_given is not None:
        held = rule.judge_held_out(held_out, held_out_given)
    scores, met = rule.issue_scores(rows, given), usable_rows(rows.visits, given)
    fraction = suspect_fraction(confident, lost_fraction(rows.disagreement[met])) if rule.knows and met.any() else 0.0
    return Judgement(
        posterior=lambda chosen: rule.posterior(dynamics(chosen), mine[chosen]),
        held_out_probs=held[0],
        issue_scores=scores,
        suspect_from=cutoff(scores[met], fraction),
        held_out_issue_scores=held[1],
        noise=rule.noise,
        ceiling=rule.ceiling,
        knows=rule.knows,
        lost_classes=rule.lost,
        confident=confident,
        rule=rule,
    )


def with_votes(judgement: Judgement, votes: Votes, train: Evidence, held_out: Evidence | None) -> Judgement:
    """Return the judgement with the votes of all annotators in place of the given labels.

    Parameters
    ----------
    judgement
        The judgement of the given labels, whose noise model calibrates the predictions.
    votes
        The votes for the training rows, followed by the held-out rows if there are any.
    train, held_out
        Their dynamics.
    """
    rule = judgement.rule
    assert rule is not None
    predictions = weights = None
    if rule.knows:
        calibrated_rows = [rule.matched.true_log_probs(train.log_probs.double())]
        weights = np.ones(len(votes.keys))
        weights[: len(train.visits)] = rule.trust
        if held_out is not None:
            calibrated_rows.append(rule.noise.true_log_probs(held_out.log_probs.double()))
        predictions = torch.cat(calibrated_rows).exp().cpu().numpy()
    crowd = find_consensus(votes, len(rule.rarity), predictions, weights)
    probs, count = torch.from_numpy(crowd.probs), len(train.visits)
    return replace(
        judgement,
        posterior=lambda rows: probs[:count][rows],
        held_out_probs=judgement.held_out_probs if held_out is None else probs[count:].float(),
        consensus=Consensus(votes, crowd, rule.knows),
    )


def _predictions(
    dynamics: Callable[[Tensor], Evidence], given: Tensor, num_classes: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the mean predictions and the given classes of the visited rows with a given label, a few at a time."""
    for block in row_blocks(len(given), num_classes):
        rows, labels = dynamics(block), given[block]
        usable = usable_rows(rows.visits, labels)
        yield rows.log_probs[usable].softmax(dim=1), hard_labels(labels)[usable]


def judge_unlabelled(logits: Tensor, noise: NoiseModel, held_out: tuple[Tensor, Tensor] | None) -> Tensor:
    """Return the class probabilities of rows without a label; NaN where there is no prediction.

    Parameters
    ----------
    logits
        Predictions for these rows.
    noise
        The noise model, used unchanged if there are no held-out rows.
    held_out
        Predictions of the same network for held-out rows, and their given labels, used for calibration.
    """
    if held_out is not None:
        decided = ~has_tie(held_out[1])
        noise = calibrated(noise, held_out[0][decided], hard_labels(held_out[1])[decided])
    return noise.true_log_probs(logits.double()).exp().float()
