"""Rows whose input could not be read: their labels were not judged, so the results of a run exclude them."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pencil.data.examples import Splits
from pencil.runs.summary import Summary
from pencil.training import Outcome
from pencil.training.record import TrainRows

NAMED = 10
"""Maximum number of unread rows that a summary names; the rest are only counted."""


def find_unread(outcome: Outcome, gather: Callable[[Any], list[Any]]) -> dict[str, Tensor]:
    """Return the positions of the rows of each split whose input could not be read.

    ``gather`` gathers the values of all ranks, each of which holds some training rows; all ranks must call it.
    """
    if outcome.shard is None:
        found = (outcome.dynamics.visits == 0).nonzero()[:, 0]
    else:
        mine = [rows.places[rows.dynamics.visits == 0] for rows in outcome.shard()]
        found = torch.cat(gather(torch.cat([torch.empty(0, dtype=torch.int64), *mine]))).sort().values
    unread = {"train": found}
    if outcome.validation_dynamics is not None:
        unread["validation"] = (outcome.validation_dynamics.visits == 0).nonzero()[:, 0]
    if outcome.unlabelled_probs is not None:
        unread["unlabelled"] = outcome.unlabelled_probs.isnan().any(dim=1).nonzero()[:, 0]
    return unread


def without_unread(splits: Splits, outcome: Outcome, unread: dict[str, Tensor]) -> tuple[Splits, Outcome]:
    """Return the splits and results of a run without these rows; see `find_unread`."""
    if not any(map(len, unread.values())):
        return splits, outcome
    sizes = splits.sizes()
    kept = {name: _others(sizes[name], places) for name, places in unread.items()}
    parts = {name: getattr(splits, name).subset(places) for name, places in kept.items()}
    train, held_out, unlabelled = (kept.get(name) for name in ("train", "validation", "unlabelled"))
    posterior = outcome.judgement.posterior
    judgement = replace(
        outcome.judgement,
        posterior=posterior if train is None else lambda rows: posterior(train[rows]),
        issue_scores=_of(outcome.judgement.issue_scores, train),
        held_out_probs=_of(outcome.judgement.held_out_probs, held_out),
        held_out_issue_scores=_of(outcome.judgement.held_out_issue_scores, held_out),
        entry_scores=_of(outcome.judgement.entry_scores, train),
        held_out_entry_scores=_of(outcome.judgement.held_out_entry_scores, held_out),
    )
    shard = outcome.shard
    return replace(splits, **parts), replace(
        outcome,
        label_probs=_of(outcome.label_probs, train),
        validation_probs=_of(outcome.validation_probs, held_out),
        judgement=judgement,
        dynamics=_dynamics_of(outcome.dynamics, train),
        validation_dynamics=_dynamics_of(outcome.validation_dynamics, held_out),
        unlabelled_probs=_of(outcome.unlabelled_probs, unlabelled),
        outlier_scores={name: _of(scores, kept.get(name)) for name, scores in outcome.outlier_scores.items()},
        conflicts={name: _of(mask, kept.get(name)) for name, mask in outcome.conflicts.items()},
        shard=None if shard is None else lambda: _renumbered(shard(), unread["train"]),
    )


def with_unread(summary: Summary, splits: Splits, unread: dict[str, Tensor]) -> Summary:
    """Return the summary with the number of unread rows and the names of the first ones."""
    keys = [str(key) for name, places in unread.items() for key in getattr(splits, name).keys[places.numpy()]]
    data = summary.data.model_copy(update={"unread": len(keys), "unread_keys": tuple(keys[:NAMED])})
    return summary.model_copy(update={"data": data}) if keys else summary


def _others(rows: int, places: Tensor) -> Tensor:
    kept = torch.ones(rows, dtype=torch.bool)
    kept[places] = False
    return kept.nonzero()[:, 0]


def _of(values: Any, rows: Tensor | None) -> Any:
    """Return the values of these rows; missing or sharded values are returned unchanged."""
    return values if values is None or rows is None or not len(values) else values[rows]


def _dynamics_of(dynamics: Any, rows: Tensor | None) -> Any:
    if dynamics is None or rows is None:
        return dynamics
    return type(dynamics)(**{name: _of(values, rows) for name, values in vars(dynamics).items()})


def _renumbered(parts: Iterator[TrainRows], unread: Tensor) -> Iterator[TrainRows]:
    """Yield the results of this rank without unread rows, with positions renumbered accordingly."""
    for part in parts:
        rows = (part.dynamics.visits > 0).nonzero()[:, 0]
        places = part.places[rows]
        yield TrainRows(
            places - torch.searchsorted(unread, places),
            part.label_probs[rows],
            part.posterior[rows],
            _dynamics_of(part.dynamics, rows),
        )
