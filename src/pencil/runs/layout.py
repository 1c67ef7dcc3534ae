"""The layout of a run directory: its format version, the names of its files, and the state of a directory.

recipe.toml         the resolved recipe; run it again with `pencil train recipe.toml`
environment.json    format version of the directory, versions, machine, fingerprints of the data
rows.parquet        the keys of all rows in the original order, and the split of each
encoder.safetensors the encoder of table rows as vectors, if the network was trained on a table
metrics.jsonl       one line per epoch
labels.parquet      every labelled row: given and corrected label, confidence, distribution; a folder with one part per
                    rank if labels were sharded
annotators.parquet  the consensus of annotators and the quality of each, if labels come from several
audited.parquet     the same table with the labels that an audit decided, if there was one
model.safetensors   the weights after the last epoch; checkpoints/best.safetensors at the best validation epoch
manifest.json       the SHA-256 of every file above: files before metrics.jsonl from the start, all files at the end
summary.json        the results in numbers; written last, so a directory with a summary is complete
failure.json        why training failed; removed when it is resumed
checkpoints/step-N  the state for `pencil resume`, until the run is finished; checkpoints/finetune/step-N while the
                    whole network is fine-tuned after the head
"""

import re
from dataclasses import dataclass
from pathlib import Path

from pencil.errors import RunError
from pencil.files import read_json
from pencil.runs.lock import NAME as LOCK

FORMAT = 2
"""The version of this layout, stored in ``environment.json`` and ``summary.json`` and checked by readers.

2 is the format of pencil 1.0, which all versions 1.x read; format 1 is from development before it (docs/stability.md).
"""
RECIPE, ENVIRONMENT, ROWS, METRICS = "recipe.toml", "environment.json", "rows.parquet", "metrics.jsonl"
LABELS, MODEL, MANIFEST, SUMMARY = "labels.parquet", "model.safetensors", "manifest.json", "summary.json"
ENCODER, FAILURE, AUDITED = "encoder.safetensors", "failure.json", "audited.parquet"
ANNOTATORS = "annotators.parquet"
PART = re.compile(rf"{re.escape(LABELS)}/[^/]*\.parquet")
"""The name of a part of the label table in the manifest."""
PARTS = ".labels.parquet.parts"
"""Folder for the ranks' parts of the label table until all are written."""
CHECKPOINTS, BEST = "checkpoints", "checkpoints/best.safetensors"
FINETUNE = "finetune"
"""The folder for checkpoints of the second stage, inside the folder of the first stage."""
WEIGHTS = {"last": MODEL, "best": BEST}
FIRST = (RECIPE, ENVIRONMENT, ROWS)
"""The files written before training, which the manifest covers from the start."""
LISTED = (*FIRST, METRICS, LABELS, MODEL, BEST)
"""The files that the manifest of a finished run covers, plus :data:`ENCODER` if there is one."""


@dataclass(frozen=True)
class FileStatus:
    """Whether a file or a checkpoint is intact; ``reason`` is empty if it is."""

    path: Path
    ok: bool
    reason: str = ""


def is_run(path: Path) -> bool:
    """Return whether a directory contains a run, finished or not."""
    return _is_file(path / RECIPE)


def is_unfinished(path: Path) -> bool:
    """Return whether a directory contains a run that has started and has no results yet."""
    return is_run(path) and not _is_file(path / SUMMARY)


def has_encoder(path: Path) -> bool:
    """Return whether a run was trained on the columns of a table."""
    return _is_file(path / ENCODER)


def is_audited(path: Path) -> bool:
    """Return whether an audit decided the labels of a run again."""
    return _is_file(path / AUDITED)


def first_files(path: Path, manifest: object = None) -> tuple[str, ...]:
    """Return the files that this run started with: the files that exist or that its manifest lists."""
    listed = isinstance(manifest, dict) and ENCODER in manifest
    return (*FIRST, ENCODER) if listed or has_encoder(path) else FIRST


def listed_files(path: Path, manifest: object = None) -> tuple[str, ...]:
    """Return the files that a finished run must have: the files that exist or that its manifest lists."""
    names = [*first_files(path, manifest), *(name for name in LISTED if name not in FIRST)]
    listed = manifest if isinstance(manifest, dict) else {}
    names += [name for name in (AUDITED, ANNOTATORS) if name in listed or _is_file(path / name)]
    parts = set(manifest) if isinstance(manifest, dict) else set()
    if (path / LABELS).is_dir():
        parts |= {f"{LABELS}/{part.name}" for part in (path / LABELS).iterdir()}
    parts = {name for name in parts if isinstance(name, str) and PART.fullmatch(name)}
    if parts:
        names[names.index(LABELS) : names.index(LABELS) + 1] = sorted(parts)
    return tuple(names)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except PermissionError as error:
        raise RunError(f"cannot read {path}: {error.strerror}; check its permissions.") from error
    except OSError:  # the name is too long
        return False


def is_empty(path: Path) -> bool:
    """Return whether a directory is empty, or only contains the leftovers of a run that could not start.

    Its process was killed and left its lock, or could not write all of the first files.
    """
    if not path.is_dir():
        return not path.exists()
    began = (LOCK, CHECKPOINTS, ENVIRONMENT, ROWS, ENCODER, MANIFEST)
    names = [entry.name for entry in path.iterdir()]
    ours = all(
        name in began or name.startswith(tuple(f".{one}." for one in (*FIRST, ENCODER, MANIFEST))) for name in names
    )
    return ours and (not names or LOCK in names or _began(path, names))


def _began(path: Path, names: list[str]) -> bool:
    """Return whether the files in a directory are the first files of a run, and not a user's own files."""
    if ENVIRONMENT not in names:  # written right after the folder for checkpoints
        folder = path / CHECKPOINTS
        return names == [CHECKPOINTS] and folder.is_dir() and not any(folder.iterdir())
    try:
        environment = read_json(path / ENVIRONMENT)
    except (OSError, ValueError):
        return False
    return isinstance(environment, dict) and {"format", "pencil", "data_fingerprint"} <= environment.keys()


def free_path(parent: Path, name: str) -> Path:
    """Return the first of ``name``, ``name-2``, ``name-3`` ... that does not exist."""
    number = 1
    while (candidate := parent / (name if number == 1 else f"{name}-{number}")).exists():
        number += 1
    return candidate


def unfinished_path(parent: Path, name: str) -> Path:
    """Return the last of ``name``, ``name-2``, ... whose run is unfinished or could not start; else a new path."""
    number, found = 1, None
    while (candidate := parent / (name if number == 1 else f"{name}-{number}")).exists():
        number += 1
        found = candidate if is_unfinished(candidate) or is_empty(candidate) else found
    return candidate if found is None else found
