"""Going on with a run that was stopped: the same recipe, the same rows, the trainer where it was."""

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pencil.data.examples import Examples, Splits, as_keys
from pencil.data.sources import load
from pencil.errors import DataError, RecipeError, RunError
from pencil.job import Job, assemble, execute, set_by_hand
from pencil.methods import Method
from pencil.recipe import CUSTOM, Recipe
from pencil.runs.checkpoints import Checkpoint
from pencil.runs.directory import RunReader, checkpoints_of
from pencil.runs.layout import is_unfinished
from pencil.runs.run import Run, open_run
from pencil.training import Trainer
from pencil.trees import flatten


def resume(
    path: Path | str,
    data: Splits | None = None,
    *,
    expected: Recipe | None = None,
    model: nn.Module | None = None,
    method: Method | None = None,
    allow_changed: bool = False,
    progress: bool | None = None,
) -> Run:
    """Go on to the same result as if the run had never been stopped; a run that is finished is only opened.

    ``data``, ``model`` and ``method`` are needed where they came from Python. ``expected`` is the recipe that the
    caller has in mind: another one is refused. Rows are known by their keys, whatever their order; with
    ``allow_changed`` some may have come or gone: then labels follow their keys, and the epoch begins anew.
    """
    path = Path(path)
    reader = RunReader(path, finished=False)
    if not is_unfinished(path):
        return open_run(path, model=model)
    chosen = reader.recipe(with_method=True)
    if expected is not None:
        chosen = _kept_up(chosen, expected)
    _refuse_missing_objects(path, chosen, data, model, method)
    loaded = load(chosen.data) if data is None else data
    same, changes = _as_before(path, chosen, loaded, allow_changed)
    job = assemble(chosen, same, model=model, method=method, held_out=None if changes is None else changes.validation)
    if expected is not None:
        _refuse_other_recipe(path, job.recipe, set_by_hand(expected, job.prepared.splits))
    _refuse_other_pins(path, job)
    return execute(job, path, progress=progress, restore=lambda trainer: _restore(path, job, trainer, changes))


def _refuse_missing_objects(
    path: Path, chosen: Recipe, data: Splits | None, model: nn.Module | None, method: Method | None
) -> None:
    for what, name, given in (("network", chosen.model.name, model), ("method", chosen.method["name"], method)):
        if name == CUSTOM and given is None:
            raise RunError(f"the {what} of {path} came from Python; go on with pencil.fit(..., out=..., resume=True).")


UPKEEP = {
    "data": ("root", "cache", "workers"),
    "training": ("checkpoint_minutes", "checkpoint_epochs", "checkpoints_kept", "log"),
}
"""What has no part in the result, and may be another when a run goes on."""


def _kept_up(stored: Recipe, expected: Recipe) -> Recipe:
    for section, keys in UPKEEP.items():
        now, before = getattr(expected, section), getattr(stored, section)
        changes = {key: getattr(now, key) for key in keys if key in now.model_fields_set}
        stored = stored.model_copy(update={section: before.model_copy(update=changes)})
    return stored


def _refuse_other_recipe(path: Path, stored: Recipe, expected: Recipe) -> None:
    """Name the keys that differ, leaving out what a run fills in by itself and what only concerns its upkeep."""
    now, before = flatten(expected.model_dump(mode="json")), flatten(stored.model_dump(mode="json"))
    upkeep = ("name", "description", "paper", *(f"{section}.{key}" for section, keys in UPKEEP.items() for key in keys))
    filled_in = ("normalize", "resize", "test", "multilabel", "validation")
    derived = ("model.name", "method.transition", *(f"data.{key}" for key in filled_in))
    other = [
        key
        for key in sorted({*now, *before})
        if now.get(key) != before.get(key)
        and not key.startswith(upkeep)
        and not (key.startswith(derived) and now.get(key) in (None, "auto", "imagenet", "none"))
    ]
    if other:
        lines = "".join(f"\n  {key} is {now.get(key)!r}; it was {before.get(key)!r}" for key in other)
        raise RecipeError(f"{path} was started with another recipe; leave --resume out, or ask for the same:{lines}")


def _refuse_other_pins(path: Path, job: Job) -> None:
    """A label that was pinned after training had begun may have moved already."""
    if RunReader(path, finished=False).fingerprints.get("pinned") != job.fingerprints.get("pinned"):
        raise DataError(
            f"the reviewed labels in {job.recipe.data.pinned} are others than when {path} was started; expected the "
            "same; bring them back, or train again in another directory."
        )


class Changes:
    """Which rows a stopped run had, by key, and which of them were held out."""

    def __init__(self, keys: np.ndarray, split: np.ndarray):
        self.train, self.validation = keys[split == "train"], keys[split == "validation"]


def _as_before(path: Path, chosen: Recipe, loaded: Splits, allow_changed: bool) -> tuple[Splits, Changes | None]:
    """The same rows in the order they had; where rows have come or gone, those that stayed first, then the new."""
    reader = RunReader(path, finished=False)
    stored = reader.fingerprints
    stored.pop("pinned", None)  # which has a word of its own to say
    if stored == {name: part.fingerprint() for name, part in vars(loaded).items() if part is not None}:
        return loaded, None
    table = reader.rows
    keys, split = as_keys(table["key"].to_pylist()), np.array(table["split"].to_pylist())
    place = {key: i for i, key in enumerate(loaded.train.keys.tolist())}
    kept = [place[key] for key in keys.tolist() if key in place]
    known = set(keys.tolist())
    new = [i for key, i in place.items() if key not in known]
    ordered = replace(loaded, train=loaded.train.subset(torch.tensor(kept + new, dtype=torch.int64)))
    if stored == {name: part.fingerprint() for name, part in vars(ordered).items() if part is not None}:
        warnings.warn("the rows come in another order than before; they are known by their keys", stacklevel=3)
        return ordered, None
    what = f"{len(keys) - len(kept):,} rows are gone, {len(new):,} are new"
    if len(kept) == len(keys) and not new:
        what = "the labels of some rows, or the validation or test rows, are others"
    if not allow_changed:
        raise DataError(f"the data has changed since {path} was stopped: {what}; bring it back, or --allow-changed.")
    if chosen.data.noise is not None or chosen.data.rows is not None:
        raise DataError(f"the data has changed ({what}), and data.noise or data.rows draw other rows now; train again.")
    warnings.warn(f"the data has changed: {what}; labels follow their keys, and the epoch begins anew", stacklevel=3)
    return ordered, Changes(keys, split)


def _restore(path: Path, job: Job, trainer: Trainer, changes: Changes | None) -> None:
    checkpoints, world = checkpoints_of(path), trainer.world
    if world.rank == 0:
        checkpoints.recover()
    world.broadcast_object(None)  # the others look when that is done
    checkpoint = checkpoints.newest()
    if checkpoint is None:  # stopped before the first one: from the beginning
        return
    state = checkpoint.part("training")
    labels = trainer.method.labels
    if labels is not None:
        state["method"]["labels"] = _whole_labels(checkpoint, state)
    if changes is not None:
        state = _carried_over(state, trainer, changes, job.prepared.splits.train)
    if labels is not None and labels.own_rows is not None:
        state["method"]["labels"] = {name: rows[labels.own_rows] for name, rows in state["method"]["labels"].items()}
    trainer.restore(state)


def _whole_labels(checkpoint: Checkpoint, state: dict[str, Any]) -> dict[str, Tensor]:
    """The labels of all rows, from however many processes they come: of ``W``, rank ``r`` had the rows r, r + W, ..."""
    size = sum(name.startswith("rank-") for name in checkpoint.parts())
    if size == 0:
        labels: dict[str, Tensor] = state["method"]["labels"]
        return labels
    shards = [checkpoint.part(f"rank-{rank}")["labels"] for rank in range(size)]
    whole = {}
    for name in shards[0]:
        count = sum(len(shard[name]) for shard in shards)
        whole[name] = shards[0][name].new_empty(count, *shards[0][name].shape[1:])
        for rank, shard in enumerate(shards):
            whole[name][rank::size] = shard[name]
    return whole


def _carried_over(state: dict[str, Any], trainer: Trainer, changes: Changes, train: Examples) -> dict[str, Any]:
    """The state with every per-row tensor of the method moved to the rows as they are now; new rows start fresh."""
    before = {key: i for i, key in enumerate(changes.train.tolist())}
    pairs = [(i, before[key]) for i, key in enumerate(train.keys.tolist()) if key in before]
    now, then = torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2).unbind(dim=1)

    def moved(old: Any, fresh: Any) -> Any:
        if isinstance(old, Tensor) and old.ndim and len(old) == len(before):
            values = fresh.clone() if isinstance(fresh, Tensor) else old.new_zeros(len(train), *old.shape[1:])
            values[now] = old[then].to(values)
            return values
        if isinstance(old, dict):
            return {
                key: moved(value, fresh.get(key) if isinstance(fresh, dict) else None) for key, value in old.items()
            }
        if isinstance(old, list | tuple):
            return [moved(value, None) for value in old]
        return old

    position = {**state["position"], "step": 0}
    return {**state, "method": moved(state["method"], trainer.method.state()), "position": position, "visited": None}
