"""Judging multi-label data: from the dynamics of all (row, class) entries to the probability that each entry is wrong.

As in :mod:`pencil.labels.judging`, the noise model is fitted to held-out rows, and training rows get the values that
held-out rows have at the same ranks. Entries whose class is named and entries whose class is not named are ranked
separately. A weak network looks like noise. Issue scores therefore come from the most probable noise model, but labels
come from the cautious one (:mod:`pencil.labels.entry_caution`): an entry changes if it is probably wrong under every
noise model that the held-out rows allow, and if its class was learned (:func:`learned_classes`).

Suspects are the highest issue scores. Their fraction is the smaller one of the noise rate and the confident counts
(:func:`confident_entry_rate`). The counts take the errors of a weak network for wrong entries: on 13,500 clean entries
of the tuning seed 2,475, where the rate expects 152. The rate of a good network is too high there: F1 0.79, with the
counts 0.81.
"""

import torch
from torch import Tensor

from pencil.labels.chance import learned_classes, ranks_rows
from pencil.labels.entry_dynamics import EntryEvidence
from pencil.labels.entry_noise import CautiousNoise, EntryNoise, fit_entry_noise_range
from pencil.labels.judging import Judgement
from pencil.labels.judging_rule import ENOUGH_TO_MATCH, upper_limit
from pencil.labels.matching import match_quantiles
from pencil.labels.noise_model import NoiseModel
from pencil.labels.suspects import confident_entry_rate, cutoff

UNDECIDED = 0.49
"""Upper limit of the probability that an entry of an unlearned class is wrong: such entries stay as given."""


def judge_entries(
    train: EntryEvidence, given: Tensor, held_out: EntryEvidence | None, held_out_given: Tensor | None
) -> Judgement:
    """Return the judgement of all rows: class probabilities, and an issue score for each row and each entry.

    Parameters
    ----------
    train, given
        Dynamics and given probabilities of the training rows, NaN where unknown.
    held_out, held_out_given
        The same for the held-out rows, if there are any.
    """
    reference, labels = train, given
    pair = None if held_out is None or held_out_given is None else (held_out, held_out_given)
    if pair is not None and int(_usable(*pair).sum()) >= ENOUGH_TO_MATCH:
        reference, labels = pair
    usable = _usable(reference, labels)
    labels = labels.masked_fill(~usable, torch.nan)
    (noise, cautious), knows = fit_entry_noise_range(reference.log_odds, labels), ranks_rows(reference.log_odds, labels)
    learned, named = learned_classes(reference.log_odds, labels), labels[usable] > 0.5
    ceiling = upper_limit((noise.log_odds(reference.log_odds) > 0)[usable] != named)
    rate = noise.rate if knows else min(ceiling / 2, 0.49)
    values, low_values = (
        model.wrong(reference.log_odds, labels)[usable] if knows else torch.full(named.shape, rate).double()
        for model in (noise, cautious)
    )

    def judged(rows: EntryEvidence, given: Tensor) -> tuple[Tensor, Tensor]:
        wrong = _wrong(rows, given, noise, values, named, rate)
        surely_wrong = _wrong(rows, given, cautious, low_values, named, rate)
        surely_wrong = surely_wrong.where(learned, surely_wrong.clamp_max(UNDECIDED))
        present = torch.where(given > 0.5, 1 - surely_wrong, surely_wrong)
        present = present.where(~given.isnan(), noise.log_odds(rows.log_odds).sigmoid() if knows else torch.tensor(0.5))
        return present, wrong

    probs, wrong = judged(train, given)
    held_probs, held_wrong = (None, None) if pair is None else judged(*pair)
    met = _usable(train, given)
    confident = confident_entry_rate(train.log_odds.sigmoid(), given.masked_fill(~met, torch.nan)) if knows else 0.0
    return Judgement(
        posterior=probs.__getitem__,
        held_out_probs=held_probs,
        issue_scores=row_issue_scores(wrong),
        held_out_issue_scores=None if held_wrong is None else row_issue_scores(held_wrong),
        noise=_as_noise_model(noise, knows),
        ceiling=ceiling,
        knows=knows,
        suspect_from=cutoff(wrong[met].float(), min(confident, rate)),
        confident=confident,
        entry_noise=noise,
        entry_scores=wrong.float(),
        held_out_entry_scores=None if held_wrong is None else held_wrong.float(),
    )


def row_issue_scores(wrong: Tensor) -> Tensor:
    """Return the probability that any entry of a row is wrong, given the probability of each entry (0 if unknown)."""
    return 1 - (1 - wrong).prod(dim=1)


def _usable(rows: EntryEvidence, given: Tensor) -> Tensor:
    """Mask of the entries that are known and were visited."""
    return ~given.isnan() & (rows.visits > 0)[:, None]


def _wrong(
    rows: EntryEvidence, given: Tensor, noise: EntryNoise | CautiousNoise, values: Tensor, named: Tensor, rate: float
) -> Tensor:
    """The probability that each entry is wrong: 0 if unknown, ``rate`` if never visited, otherwise by its rank.

    ``values`` are the probabilities of the reference entries; ``named`` says which of them have their class in the
    label.
    """
    usable = _usable(rows, given)
    ranked = noise.wrong(rows.log_odds, given)
    wrong = torch.where(given.isnan(), 0.0, torch.full_like(ranked, rate))
    for is_named in (True, False):
        chosen, reference = usable & ((given > 0.5) == is_named), values[named == is_named]
        if chosen.any():
            wrong[chosen] = match_quantiles(ranked[chosen], reference) if len(reference) else ranked[chosen]
    return wrong


def _as_noise_model(noise: EntryNoise, knows: bool) -> NoiseModel:
    """The same values, with absent and present as two classes."""
    positives, negatives = float(noise.false_positives.mean()), float(noise.false_negatives.mean())
    transition = torch.tensor([[1 - positives, positives], [negatives, 1 - negatives]], dtype=torch.float64)
    return NoiseModel(noise.rate, noise.low if knows else 0.0, noise.high, 1 / noise.sharpness, transition)
