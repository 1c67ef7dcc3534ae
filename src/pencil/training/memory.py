"""Checks whether the labels of a run fit into memory, before anything is allocated."""

import bisect
import math
import os
from collections.abc import Iterator
from pathlib import Path

from pencil.data.examples import Splits
from pencil.errors import TrainingError
from pencil.labels.dynamics import DENSE_CLASSES, TOP_K
from pencil.labels.rows import BLOCK
from pencil.memory import as_size, memory_limit
from pencil.methods.base import Requirements
from pencil.training.settings import TrainingSettings

NUMBER = 4
"""Bytes of a label logit or a probability."""
KEPT = 6
"""Bytes of one kept entry of a row, in top-k labels and dynamics: a half-precision value and its class."""
PER_ROW = 64
"""Bytes of a row independent of the number of classes: largest label logit, dynamics, narrow table columns."""
RESULTS = 2
"""Arrays of all labels at the end, for any method: the label distributions, and their column in the table."""
HELD_OUT = 4
"""Arrays of held-out and unlabelled rows: predictions, dynamics, posterior, column in the table."""
NOISE_MODEL = 9 * 8
"""Bytes for each pair of classes in the noise estimate: counts, prior and their gamma functions, in fp64."""
BLOCKS = 12 * 8 * BLOCK
"""Bytes of values that are computed in blocks of rows."""
USUAL_TOP_K = 8
"""The value of ``training.label_top_k`` in the documentation; a smaller one is suggested if it does not fit."""


def label_bytes(
    splits: Splits, needs: Requirements, top_k: int | None, ranks: int = 1, classes: int | None = None
) -> int:
    """Return the peak memory of the labels: the method's arrays, judging, and the results.

    With sharded labels each of the ``ranks`` holds a part of the training rows. ``classes`` replaces the number of
    classes of the data.
    """
    train, classes = splits.train, splits.train.num_classes if classes is None else classes
    rows = math.ceil(len(train) / ranks)
    kept = classes if classes <= DENSE_CLASSES else TOP_K
    row = PER_ROW + NUMBER * classes * RESULTS + KEPT * min(top_k or kept, classes)
    if top_k is not None and top_k < classes and needs.label_store:
        row += KEPT * top_k
    else:
        row += NUMBER * classes * needs.label_arrays
    others = sum(len(part) for part in (splits.validation, splits.unlabelled) if part is not None)
    pairs = 0 if train.multilabel else NOISE_MODEL * classes**2
    return rows * row + others * NUMBER * classes * HELD_OUT + pairs + min(BLOCKS, 24 * rows * classes)


def refuse_too_large(splits: Splits, needs: Requirements, settings: TrainingSettings, *, in_python: bool) -> None:
    """Raise if the labels of a run would not fit into the available memory.

    Under torchrun the processes of a machine share its memory, and sharded labels are spread over all processes.
    """
    sharded = settings.label_layout != "replicated" and needs.row_losses
    ranks = int(os.environ.get("WORLD_SIZE", "1")) if sharded else 1
    room = available_memory() // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    top_k = settings.label_top_k
    needed = label_bytes(splits, needs, top_k, ranks)
    if needed <= room:
        return
    train, remedy = splits.train, _remedy(splits, needs, top_k, room, ranks, in_python)
    raise TrainingError(
        f"the labels of {len(train):,} training rows with {train.num_classes:,} classes take {as_size(needed)} of "
        f"memory; expected at most {as_size(room)}, the available memory; {remedy}."
    )


def _remedy(splits: Splits, needs: Requirements, top_k: int | None, room: int, ranks: int, in_python: bool) -> str:
    largest = min(USUAL_TOP_K, (top_k or splits.train.num_classes) - 1)
    if needs.label_store and not splits.train.multilabel:
        for k in range(largest, 0, -1):
            if label_bytes(splits, needs, k, ranks) <= room:
                value = f'settings={{"training.label_top_k": {k}}}' if in_python else f"--set training.label_top_k={k}"
                return f"keep the {k} most probable classes of each row with {value}"
    if splits.train.multilabel or NOISE_MODEL * splits.train.num_classes**2 <= room:
        return "no training.label_top_k makes them fit: use fewer rows (data.rows) or a machine with more memory"
    fitting = bisect.bisect_right(
        range(splits.train.num_classes), room, key=lambda classes: label_bytes(splits, needs, top_k, ranks, classes)
    )
    return (
        "the noise estimate compares all pairs of classes, so no training.label_top_k helps: merge rare classes (up to "
        f"{fitting - 1:,} classes fit), or train in a loop of your own with pencil.labels.TopKLabelStore"
    )


def available_memory(root: Path = Path("/")) -> int:
    """Return the bytes that this process can still allocate, limited by the machine and by its containers."""
    return min([memory_limit(), *_of_machine(root), *_of_containers(root)])


def _of_machine(root: Path) -> Iterator[int]:
    for line in _lines(root / "proc/meminfo"):
        if line.startswith("MemAvailable:"):
            yield int(line.split()[1]) * 1024


def _of_containers(root: Path) -> Iterator[int]:
    """Free memory in each control group of the process, from the files of version 2 and version 1."""
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, name = line.split(":", 2)
        if controllers == "":
            top, limit, used, cache = root / "sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"
        elif "memory" in controllers.split(","):
            top, limit, used = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
            cache = "total_inactive_file"
        else:
            continue
        group = top / name.strip("/")  # inside a container this is often the top itself, whatever its name outside
        for folder in {group, *group.parents} if group.is_dir() else {top}:
            found = [*_lines(folder / limit), *_lines(folder / used)]
            if folder.is_relative_to(top) and len(found) == 2 and all(value.isdigit() for value in found):
                freed = [one.split()[1] for one in _lines(folder / "memory.stat") if one.split()[0] == cache]
                yield max(0, int(found[0]) - int(found[1]) + sum(map(int, freed)))


def _lines(path: Path) -> list[str]:
    """The lines of a kernel file; none if it does not exist (another system, no container)."""
    try:
        return path.read_text().split("\n")[:-1] if path.is_file() else []
    except OSError:
        return []
