"""Restores an interrupted run: checks that recipe and rows are the same, and loads the trainer's state."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from pencil.data.columns import as_names
from pencil.data.examples import Examples, Splits, fingerprints
from pencil.data.keys import as_keys
from pencil.data.roles import ROLES
from pencil.errors import DataError, DataWarning, PencilError, PencilWarning, RecipeError, RunError, argument, warn
from pencil.labels.protocol import Labels
from pencil.methods.base import Method
from pencil.methods.state import state_tree
from pencil.models.probe import FAULTS, first_line
from pencil.recipe import DEFAULT_METHOD, Recipe
from pencil.recipe.resolve import FALLBACK_METHOD
from pencil.recipe.trees import flatten
from pencil.runs.checkpoints import Checkpoint
from pencil.runs.content import checked_record
from pencil.runs.directory import RunReader
from pencil.runs.leftovers import checkpoints_of
from pencil.runs.manifest import check_first_files
from pencil.runs.results import describe_environment
from pencil.terminal import agreed, counted
from pencil.training import Trainer

FREE_KEYS = {
    "data": ("root", "cache", "workers", "fingerprint"),
    "training": ("checkpoint_minutes", "checkpoint_epochs", "checkpoints_kept", "log"),
}
"""Keys that do not affect the result and may differ when a run is resumed."""
DESCRIPTIVE_KEYS = ("name", "description", "paper")
DERIVED_KEYS = (
    "model.name", "model.pretrained", "model.train", "method.transition",
    "data.normalize", "data.resize", "data.test", "data.text_model", "data.multilabel", "data.validation",
    "data.augmentation", "data.columns.key", "data.columns.numbering", "data.columns.label",
)  # fmt: skip
"""Keys that a run fills in if the recipe leaves them open."""
COMPLETED_KEYS = tuple(f"data.columns.{key}" for key in ROLES.values())
"""Keys to which a run adds names."""
PATH_KEYS = ("data.test", "data.text_model")
ASKED: dict[str, Callable[[Recipe], Any]] = {
    "data.source": lambda recipe: recipe.data.source,
    "data.pinned": lambda recipe: None if recipe.data.pinned is None else str(recipe.data.pinned),
    "model.name": lambda recipe: recipe.model.name,
    "method.name": lambda recipe: recipe.method["name"],
    "training.epochs": lambda recipe: recipe.training.epochs,
    "seed": lambda recipe: recipe.seed,
}
"""What a finished run must have in common with the run that is asked for."""
OPEN_VALUES = (None, "auto", "imagenet", "none")


BIT_KEYS = ("pencil", "python", "torch", "numpy", "processor", "gpu", "threads")
"""Keys of ``environment.json`` that may affect the last bits of a result."""


def check_unchanged(path: Path) -> None:
    """Raise DamagedError if an initial file of the run was modified; warn about a different machine or versions."""
    check_first_files(path)
    stored, now = RunReader(path, finished=False).environment, describe_environment({})
    other = [
        f"{key} is {now[key]!r} (previously {stored.get(key)!r})" for key in BIT_KEYS if now[key] != stored.get(key)
    ]
    if other:
        warn(f"the result may differ in its last bits: {'; '.join(other)}", PencilWarning)


def with_free_keys(stored: Recipe, expected: Recipe) -> Recipe:
    """Return the stored recipe with the free keys taken from ``expected``."""
    for section, keys in FREE_KEYS.items():
        now, before = getattr(expected, section), getattr(stored, section)
        changes = {key: getattr(now, key) for key in keys if key in now.model_fields_set}
        stored = stored.model_copy(update={section: before.model_copy(update=changes)})
    return stored


def check_same_recipe(path: Path, stored: Recipe, expected: Recipe) -> None:
    """Raise RecipeError listing every key in which the recipes differ, except free, descriptive and derived keys."""
    now, before = (
        {key: _as_stored(key, value) for key, value in flatten(one.model_dump(mode="json")).items()}
        for one in (expected, stored)
    )
    free = (*DESCRIPTIVE_KEYS, *(f"{section}.{key}" for section, keys in FREE_KEYS.items() for key in keys))
    different = [
        key
        for key in sorted({*now, *before})
        if now.get(key) != before.get(key)
        and not _is_under(key, free)
        and not (_is_under(key, DERIVED_KEYS) and now.get(key) in OPEN_VALUES)
        and not (key in COMPLETED_KEYS and set(as_names(now.get(key))) <= set(as_names(before.get(key))))
    ]
    _refuse_different(path, different, now, before)


def check_finished(path: Path, expected: Recipe, data: Splits | None) -> None:
    """Raise if the finished run is not the one that was asked for: other data, seed, method, network or epochs.

    Data that the recipe names are not loaded. Other keys are not compared: some of their values are only known once the
    data are.
    """
    reader = RunReader(path)
    stored = reader.recipe(with_method=True, trust=expected.trust)
    now, before = ({key: find(one) for key, find in ASKED.items()} for one in (expected, stored))
    fell_back = (now["method.name"], before["method.name"]) == (DEFAULT_METHOD, FALLBACK_METHOD)
    chosen = {key for key, value in now.items() if value in OPEN_VALUES} | ({"method.name"} if fell_back else set())
    chosen |= {"data.source"} if data is not None else set()  # their fingerprints are compared instead
    _refuse_different(path, [key for key in now if now[key] != before[key] and key not in chosen], now, before)
    if data is not None:
        recorded, seen = dict(reader.fingerprints), _fingerprints(data, stored)
        recorded.pop("pinned", None)
        if recorded != seen:
            raise DataError(
                f"{path} is a finished run on other data: rows, labels or splits differ; choose another directory with "
                f"{argument('out')}."
            )


def _refuse_different(path: Path, different: list[str], now: Mapping[str, Any], before: Mapping[str, Any]) -> None:
    if different:
        lines = "".join(f"\n  {key} is {now.get(key)!r}; expected {before.get(key)!r}" for key in different)
        raise RecipeError(
            f"{path} was started with a different recipe; choose another directory with {argument('out')}, or use the "
            f"same recipe:{lines}"
        )


def _as_stored(key: str, value: Any) -> Any:
    """Return a value in the form in which a run stores it: an absolute path, height and width."""
    if key in PATH_KEYS and isinstance(value, str) and Path(value).exists():
        return str(Path(value).absolute())
    return [value, value] if key == "data.resize" and isinstance(value, int) else value


def _is_under(key: str, sections: tuple[str, ...]) -> bool:
    return any(key == section or key.startswith(f"{section}.") for section in sections)


def check_same_pins(path: Path, fingerprints: Mapping[str, str], pinned: Path | None) -> None:
    """Raise DataError if the reviewed labels differ, because a label that is pinned later may already have changed."""
    if RunReader(path, finished=False).fingerprints.get("pinned") != fingerprints.get("pinned"):
        raise DataError(
            f"the reviewed labels in {pinned} have changed since {path} was started; expected the same labels; "
            "restore them, or train again in another directory."
        )


@dataclass(frozen=True)
class RecordedRows:
    """Keys of the training and held-out rows of an interrupted run."""

    train: np.ndarray
    validation: np.ndarray


def match_rows(path: Path, recipe: Recipe, loaded: Splits, allow_changed: bool) -> tuple[Splits, RecordedRows | None]:
    """Return the rows in the order they had when the run was started.

    If rows were added or removed and ``allow_changed`` is set, the remaining rows come first, then the new ones; the
    stored rows are returned as well.
    """
    reader = RunReader(path, finished=False)
    stored = dict(reader.fingerprints)
    stored.pop("pinned", None)  # compared by check_same_pins
    now = _fingerprints(loaded, recipe)
    if stored == now:
        return loaded, None
    table = reader.rows
    every, splits = as_keys(table["key"].to_pylist()), np.array(table["split"].to_pylist())
    keys, split = every[splits != "unlabelled"], splits[splits != "unlabelled"]
    kept, new = _places(loaded.train, keys)
    ordered = replace(loaded, train=loaded.train.subset(torch.tensor(kept + new, dtype=torch.int64)))
    if loaded.unlabelled is not None:
        same, others = _places(loaded.unlabelled, every)
        places = torch.tensor(same + others, dtype=torch.int64)
        ordered = replace(ordered, unlabelled=loaded.unlabelled.subset(places))
    if stored == _fingerprints(ordered, recipe):
        warn("the order of the rows has changed; they are matched by key", DataWarning)
        return ordered, None
    gone = len(keys) - len(kept)
    what = f"{counted(gone, 'row')} {agreed(gone, 'was', 'were')} removed, {len(new):,} added"
    if len(kept) == len(keys) and not new:
        different = sorted(name for name in {*stored, *now} if stored.get(name) != now.get(name))
        labels = "labels of some rows, or validation, test or unlabelled rows, differ"
        what = labels if any("inputs" not in name for name in different) else f"{' and '.join(different)} differ"
    if not allow_changed:
        raise DataError(f"the data has changed since {path} was stopped: {what}; restore it, or use --allow-changed.")
    if recipe.data.noise is not None or recipe.data.rows is not None:
        raise DataError(
            f"the data has changed ({what}), so data.noise or data.rows would select different rows; train again."
        )
    warn(f"the data has changed: {what}; labels are matched by key, and the current epoch is restarted", DataWarning)
    return ordered, RecordedRows(keys[split == "train"], keys[split == "validation"])


def _places(examples: Examples, keys: np.ndarray) -> tuple[list[int], list[int]]:
    """Return the positions of the examples with these keys, in this order, and the positions of all others."""
    place = {key: i for i, key in enumerate(examples.keys.tolist())}
    known = set(keys.tolist())
    return [place[key] for key in keys.tolist() if key in place], [i for key, i in place.items() if key not in known]


def _fingerprints(splits: Splits, recipe: Recipe) -> dict[str, str]:
    return fingerprints(vars(splits), content=recipe.data.fingerprint == "content")


def restore(path: Path, trainer: Trainer, changed_from: RecordedRows | None, stage: str = "") -> None:
    """Load the newest checkpoint into the trainer; if there is none, training starts from the beginning.

    If the rows have changed, ``changed_from`` holds the rows that the checkpoint was written with. ``stage`` is the
    trainer's stage, see :func:`pencil.runs.leftovers.checkpoints_of`.
    """
    checkpoints, world = checkpoints_of(path, stage=stage), trainer.world
    if world.rank == 0:
        checkpoints.recover()
    world.broadcast_object(None)  # the other ranks wait for it
    checkpoint = checkpoints.newest()
    if checkpoint is None:
        return
    try:
        _load_state(checkpoint, trainer, changed_from)
    except PencilError:
        raise
    except (*FAULTS, OverflowError) as error:
        raise RunError(
            f"{checkpoint.path} does not fit this run: {type(error).__name__}: {first_line(error)}; expected a "
            "checkpoint of the same recipe and data; restore it from a copy, or train again."
        ) from error


def _load_state(checkpoint: Checkpoint, trainer: Trainer, changed_from: RecordedRows | None) -> None:
    state = checkpoint.part("training")
    state["records"] = [checked_record(record) for record in state["records"]]
    size = sum(name.startswith("rank-") for name in checkpoint.parts())
    shards = [checkpoint.part(f"rank-{rank}") for rank in range(size)]
    if trainer.method.labels is not None and shards and "labels" in shards[0]:
        state["method"]["labels"] = _joined([shard["labels"] for shard in shards])
    if shards and "dynamics" in shards[0]:
        state["dynamics"]["train"] = _joined([shard["dynamics"]["train"] for shard in shards])
    if changed_from is not None:
        state = _matched_state(state, trainer, changed_from)
    _take_shard(state, trainer)
    trainer.load_state_dict(state)
    if changed_from is not None:
        trainer.method.on_rows_changed()


def _joined(shards: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The values of all rows for any previous world size ``W``, where rank ``r`` had the rows r, r + W, ..."""
    whole = {}
    for name in shards[0]:
        count = sum(len(shard[name]) for shard in shards)
        whole[name] = shards[0][name].new_empty(count, *shards[0][name].shape[1:])
        for rank, shard in enumerate(shards):
            whole[name][rank :: len(shards)] = shard[name]
    return whole


def _take_shard(state: dict[str, Any], trainer: Trainer) -> None:
    """Restrict the labels and dynamics to the rows that this process holds."""
    labels, world = trainer.method.labels, trainer.layout.sharded_over
    if labels is not None and labels.local_rows is not None:
        state["method"]["labels"] = {name: rows[labels.local_rows] for name, rows in state["method"]["labels"].items()}
    if world is not None:
        train = state["dynamics"]["train"]
        state["dynamics"]["train"] = {name: rows[world.rank :: world.size] for name, rows in train.items()}


def _matched_state(state: dict[str, Any], trainer: Trainer, changed_from: RecordedRows) -> dict[str, Any]:
    """The state with every per-row tensor matched to the current rows; new rows get initial values."""
    held_out = trainer.splits.validation
    train = _Matching.by_key(changed_from.train, trainer.splits.train.keys)
    matchings = {"train": train}
    if held_out is not None and len(changed_from.validation):  # a separate validation set has no stored keys
        matchings["held_out"] = _Matching.by_key(changed_from.validation, held_out.keys)
    dynamics = trainer.dynamics.state_dict(sharded=False) | {
        name: {part: matching.move(rows) for part, rows in state["dynamics"][name].items()}
        for name, matching in matchings.items()
    }
    position = {**state["position"], "step": 0}
    method = _matched_method(state["method"], trainer.method, train)
    return {**state, "method": method, "dynamics": dynamics, "position": position, "visited": None}


def _matched_method(stored: dict[str, Any], method: Method, matching: "_Matching") -> dict[str, Any]:
    """The state of a method with its ``row_state`` fields and its labels matched to the current rows."""
    tree, fresh = dict(stored), state_tree(method.state)
    if stored["state"] is not None:
        if method.row_state is None:
            raise RunError(
                f"rows have changed, and {type(method).__name__} does not declare which part of its state is per "
                "row; expected the class attribute row_state, empty if there is none; declare it, or train again."
            )
        rows = {name: dimension for name, dimension in method.row_state.items() if name in stored["state"]}
        tree["state"] = stored["state"] | {
            name: _moved(matching, stored["state"][name], fresh[name], dimension) for name, dimension in rows.items()
        }
    if method.labels is not None:
        initial = _initial_labels(method.labels)
        tree["labels"] = {name: matching.move(rows, initial[name]) for name, rows in stored["labels"].items()}
    return tree


def _moved(matching: "_Matching", stored: Any, initial: Any, dimension: int) -> Any:
    if isinstance(stored, Tensor):
        return matching.move(stored, initial if isinstance(initial, Tensor) else None, dimension)
    return None if stored is None else [matching.move(rows, None, dimension) for rows in stored]


def _initial_labels(labels: Labels) -> dict[str, Tensor]:
    """The labels of all rows before training; zeros for rows of other processes, which are dropped later."""
    state, local = labels.state_dict(), labels.local_rows
    if local is None:
        return state
    whole = {name: rows.new_zeros(len(labels), *rows.shape[1:]) for name, rows in state.items()}
    for name, rows in state.items():
        whole[name][local] = rows
    return whole


@dataclass(frozen=True)
class _Matching:
    """Positions of the remaining rows ``now`` and ``then``, and the current number of rows."""

    now: Tensor
    then: Tensor
    count: int

    @classmethod
    def by_key(cls, then: np.ndarray, now: np.ndarray) -> Self:
        before = {key: i for i, key in enumerate(then.tolist())}
        pairs = [(i, before[key]) for i, key in enumerate(now.tolist()) if key in before]
        places = torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2)
        return cls(places[:, 0], places[:, 1], len(now))

    def move(self, old: Tensor, initial: Tensor | None = None, dimension: int = 0) -> Tensor:
        """Return the values of the current rows; new rows get the values of ``initial``, or 0."""
        shape = (*old.shape[:dimension], self.count, *old.shape[dimension + 1 :])
        values = old.new_zeros(shape) if initial is None else initial.cpu().clone()
        kept = old.cpu().index_select(dimension, self.then).to(values)
        return values.index_copy_(dimension, self.now, kept)
