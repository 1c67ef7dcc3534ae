"""The names of the files in a run directory, and what a directory holds; nothing here needs torch."""

from pathlib import Path

from pencil.runs.lock import NAME as LOCK

RECIPE, ENVIRONMENT, ROWS, METRICS = "recipe.toml", "environment.json", "rows.parquet", "metrics.jsonl"
LABELS, MODEL, MANIFEST, SUMMARY = "labels.parquet", "model.safetensors", "manifest.json", "summary.json"
CHECKPOINTS, BEST = "checkpoints", "checkpoints/best.safetensors"
WEIGHTS = {"last": MODEL, "best": BEST}
LISTED = (RECIPE, ENVIRONMENT, ROWS, METRICS, LABELS, MODEL, BEST)


def is_run(path: Path) -> bool:
    return (path / RECIPE).is_file()


def is_unfinished(path: Path) -> bool:
    return is_run(path) and not (path / SUMMARY).is_file()


def is_empty(path: Path) -> bool:
    """Whether nothing is there but what a process leaves that was killed before its run had begun."""
    if not path.is_dir():
        return not path.exists()
    began = (LOCK, CHECKPOINTS, ENVIRONMENT, ROWS)
    names = [entry.name for entry in path.iterdir()]
    ours = all(name in began or name.startswith((f".{ENVIRONMENT}.", f".{ROWS}.", f".{RECIPE}.")) for name in names)
    return ours and (not names or LOCK in names)


def free_path(parent: Path, name: str) -> Path:
    """The first of ``name``, ``name-2``, ``name-3`` ... that does not exist."""
    number = 1
    while (candidate := parent / (name if number == 1 else f"{name}-{number}")).exists():
        number += 1
    return candidate


def unfinished_path(parent: Path, name: str) -> Path:
    """The last of ``name``, ``name-2``, ``name-3`` ... whose run was stopped; a new one where there is none."""
    number, found = 1, None
    while (candidate := parent / (name if number == 1 else f"{name}-{number}")).exists():
        number += 1
        found = candidate if is_unfinished(candidate) else found
    return candidate if found is None else found
