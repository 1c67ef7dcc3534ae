"""Training checkpoints: written atomically, verified before use, never pickled.

A checkpoint is a directory ``step-0000000123`` of parts. A part is a tree of dicts, lists, tuples, tensors, numbers,
strings and None: NAME.safetensors holds its tensors, each under its path (``optimizer/state/0/exp_avg``), NAME.json
holds the rest. ``manifest.json``, written last, holds the SHA-256 and size of every file, because safetensors has no
checksum.

Reading returns what was written, in plain types: tensors are on the CPU, without gradients, and share no storage; an
instance of a subclass (Parameter, OrderedDict, a named tuple) becomes an instance of its base class.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from pencil.errors import PencilWarning, RecipeError, RunError, explained, reason_of, warn
from pencil.files import move, read_regular, refuse_links, remove, sync_folder
from pencil.memory import memory_limit
from pencil.runs.layout import FileStatus

Tree = Any
Digest = dict[str, Any]  # {"sha256": ..., "bytes": ...}expected of a file
FORMAT, MANIFEST, TENSORS, REST = 1, "manifest.json", ".safetensors", ".json"
DEPTH = 64  # maximum depth of a tree; a deeper one contains itself
UNHARMED = "the earlier checkpoints are intact; free space or check the permissions, then resume"
ODD = (AttributeError, LookupError, OSError, OverflowError, RuntimeError, SafetensorError, TypeError, ValueError)
STEP = re.compile(r"step-\d{10,}")
ASIDE = re.compile(r"\.(step-\d{10,})\.(partial|old)")
PART = re.compile(
    r"(?!manifest$)[a-z0-9][a-z0-9_-]{0,99}"
)  # lower case: names stay distinct on case-insensitive file systems
CODES = {torch.bool: "BOOL", torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32", torch.float64: "F64"}
CODES |= {getattr(torch, f"{u}int{bits}"): f"{u or 'i'}{bits}".upper() for u in ("", "u") for bits in (8, 16, 32, 64)}


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint to read. It can be sent to other processes, so that only one has to verify it."""

    path: Path
    step: int
    files: Mapping[str, Digest]

    def parts(self) -> list[str]:
        """Return the names of the parts."""
        return sorted(name.removesuffix(REST) for name in self.files if name.endswith(REST))

    def part(self, name: str) -> Tree:
        """Return the tree of a part; the same bytes are checked and decoded."""
        rest, raw = self.read(name + REST), self.read(name + TENSORS)
        with _explained(f"cannot read part {name!r} of {self.path}"):
            tensors = safetensors.torch.load(raw)
            return json.loads(rest, object_hook=lambda found: _revive(found, tensors))

    def read(self, name: str) -> bytes:
        """Return the content of a file, after comparing it with the manifest."""
        if name not in self.files:
            raise RunError(f"{self.path} has no {name!r}; its parts are {', '.join(self.parts())}.")
        file, expected = self.path / name, self.files[name]
        with _explained(f"cannot read {file}"):
            if (size := file.stat().st_size) != expected["bytes"]:
                raise RunError(f"{file} has {size:,} bytes; expected {expected['bytes']:,}.")
            content = read_regular(file, memory_limit())  # weights of any size that the machine can hold
        if hashlib.sha256(content).hexdigest() != expected["sha256"]:
            raise RunError(f"{file} was modified: its SHA-256 differs from {MANIFEST}.")
        return content


class Checkpoints:
    """The checkpoints of one run. Only the process that holds the run's lock may save, begin, commit or recover.

    With several ranks, rank 0 begins, each rank writes parts with `write_part`, and rank 0 commits all digests, or
    recovers if a rank failed. The caller is responsible for the barrier after the first step and the all_gather of
    the digests. At least 2 complete checkpoints are kept, in case one is damaged. The path from ``run`` to
    ``folder`` may not contain symbolic links.
    """

    def __init__(self, folder: Path, keep: int = 2, run: Path | None = None):
        if keep < 2:
            raise RecipeError(f"keep is {keep}; expected at least 2 checkpoints, in case one is damaged.")
        self.folder, self.keep, self.run = folder, keep, run
        self._whole: set[Path] = set()  # written or verified by this process

    def save(self, step: int, parts: Mapping[str, Tree]) -> Checkpoint:
        """Write a checkpoint. If that fails or is interrupted, no partial checkpoint remains."""
        try:
            partial = self.begin(step)
            written = [write_part(partial, name, tree).items() for name, tree in parts.items()]
            return self.commit(partial, dict(chain.from_iterable(written)))
        except BaseException:
            self.recover()
            raise

    def begin(self, step: int) -> Path:
        """Return a directory for parts, on the file system of the checkpoints."""
        if step < 0:
            raise RunError(f"step is {step}; expected 0 or more.")
        partial = self.folder / f".step-{step:010d}.partial"
        with _explained(f"cannot write {partial}", UNHARMED):
            self.recover()
            self.folder.mkdir(parents=True, exist_ok=True)
            partial.mkdir()
        return partial

    def write_part(self, partial: Path, name: str, tree: Tree) -> dict[str, Digest]:
        """Write one part of a checkpoint; any process may write its own part."""
        return write_part(partial, name, tree)

    def commit(self, partial: Path, digests: Mapping[str, Digest]) -> Checkpoint:
        """Turn the parts into a checkpoint, replacing one of the same step, and remove the oldest."""
        target = self.folder / partial.name.removeprefix(".").removesuffix(".partial")
        with _explained(f"cannot write {partial}", UNHARMED):
            for name, digest in digests.items():  # detects ranks that wrote to other disks, before anything is pruned
                if (partial / name).stat().st_size != digest["bytes"]:
                    raise RunError(f"{partial / name} is not {digest['bytes']:,} bytes long, as its writer reported.")
            _write(partial / MANIFEST, [_manifest(target.name, digests)])
            sync_folder(partial)
            if os.path.lexists(target):
                move(target, self.folder / f".{target.name}.old")  # `recover` can restore it from there
            move(partial, target)
            sync_folder(self.folder)
            sync_folder(self.folder.parent)  # the folder may be new
            self.recover()
            self._prune(target)
        return Checkpoint(target, _step(target), dict(digests))

    def recover(self) -> None:
        """Remove partial checkpoints of killed processes; restore a checkpoint whose replacement was not completed."""
        refuse_links(self.folder, self.run)
        for path in self.folder.glob(".step-*"):
            if match := ASIDE.fullmatch(path.name):
                if match[2] == "old" and not os.path.lexists(self.folder / match[1]):
                    move(path, self.folder / match[1])
                else:
                    _remove(path)

    def newest(self) -> Checkpoint | None:
        """Return the newest intact checkpoint, verified; None if none was written. Does not modify files."""
        damaged: list[str] = []
        for path in self._paths():
            found, reason = self._examine(path)
            if found is not None:
                for each in damaged:
                    warn(f"a checkpoint is damaged: {each} Using {path}.", PencilWarning)
                return found
            if path.exists():  # otherwise the run is still training and has pruned it
                damaged.append(reason)
        if damaged:
            raise RunError(f"every checkpoint is damaged: {' '.join(damaged)} Restore a copy, or train again.")
        return None

    def verify(self) -> list[FileStatus]:
        """Return the status of every checkpoint, newest first. Does not modify files; the run may be training."""
        examined = [(path, *self._examine(path)) for path in self._paths()]
        return [FileStatus(path, found is not None, why) for path, found, why in examined if path.exists()]

    def _examine(self, path: Path) -> tuple[Checkpoint | None, str]:
        """Return the checkpoint, or a description of its damage."""
        try:
            checkpoint = Checkpoint(path, _step(path), _read_manifest(path))
            for name in checkpoint.files:
                checkpoint.read(name)
        except RunError as error:
            return None, str(error)
        self._whole.add(path)
        return checkpoint, ""

    def _paths(self) -> list[Path]:
        paths = [path for path in self.folder.glob("step-*") if STEP.fullmatch(path.name) and path.is_dir()]
        return sorted(paths, key=_step, reverse=True)

    def _prune(self, written: Path) -> None:
        """Remove all but the newest ``keep`` checkpoints; damaged ones and ones later than ``written`` do not count."""
        self._whole.add(written)
        kept = 0
        for path in self._paths():
            if kept >= self.keep:
                _remove(path)
            elif _step(path) <= _step(written):
                kept += path in self._whole or self._examine(path)[0] is not None


def write_part(partial: Path, name: str, tree: Tree) -> dict[str, Digest]:
    """Write one part of a checkpoint, from any process; return the digest of each file."""
    if not PART.fullmatch(name):
        raise RunError(
            f"part name {name!r} is not valid; expected lower-case letters, digits, - and _, and not 'manifest'."
        )
    tensors: dict[str, Tensor] = {}
    with _explained(f"cannot write {partial / name}", UNHARMED):
        text = json.dumps(_encode(tree, (), tensors)).encode()
        rest = {name + REST: _write(partial / (name + REST), [text])}
        return rest | {name + TENSORS: _write(partial / (name + TENSORS), _safetensors(tensors))}


def _encode(value: Tree, path: tuple[str, ...], tensors: dict[str, Tensor]) -> Any:
    """Return a tree as JSON, with marks: ``{"$tensor": path}``, ``{"$tuple": items}``, ``{"$dict": pairs}``."""
    if len(path) > DEPTH:
        raise RunError(f"{'/'.join(path[:3])}/... is more than {DEPTH} levels deep; does it contain itself?")
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Tensor):
        return {"$tensor": _collect(value, path, tensors)}
    if isinstance(value, list | tuple):
        items = [_encode(item, (*path, str(index)), tensors) for index, item in enumerate(value)]
        return items if isinstance(value, list) else {"$tuple": items}
    if isinstance(value, Mapping) and all(isinstance(key, str | int) and not isinstance(key, bool) for key in value):
        pairs = [(key, _encode(item, (*path, str(key)), tensors)) for key, item in value.items()]
        plain = all(isinstance(key, str) and not key.startswith("$") for key in value)
        return dict(pairs) if plain else {"$dict": pairs}
    seen = f"{'/'.join(path) or 'a part'} is {type(value).__name__}, or has keys that are neither str nor int"
    raise RunError(f"{seen}; expected dicts, lists, tuples, tensors, numbers, strings and None; convert it.")


def _collect(tensor: Tensor, path: tuple[str, ...], tensors: dict[str, Tensor]) -> str:
    """Add a tensor under its path, or under a similar name if that is taken, as in ``{"a": {"b": x}, "a/b": y}``."""
    name = "/".join(path).encode(errors="backslashreplace").decode()
    while name in tensors or name == "__metadata__":  # reserved by safetensors
        name += "~"
    if tensor.dtype not in CODES or tensor.layout != torch.strided or tensor.is_meta:
        seen = f"{tensor.dtype}, {tensor.layout}, on {tensor.device}"
        raise RunError(
            f"the tensor {name} is {seen}; expected a dense tensor of numbers or bool, not on the meta device; "
            "convert it."
        )
    tensors[name] = tensor.detach()
    return name


def _revive(found: dict[str, Any], tensors: Mapping[str, Tensor]) -> Tree:
    """Return the value of a mark in the JSON; no name in it is ever imported, called or opened."""
    match list(found.items()):
        case [("$tensor", str(name))]:
            return tensors[name]
        case [("$tuple", list(items))]:
            return tuple(items)
        case [("$dict", list(pairs))] if all(type(key) in (str, int) for key, _ in pairs):
            return dict(pairs)
    if any(key.startswith("$") for key in found):
        raise ValueError(f"{', '.join(found)} is not a mark of format {FORMAT}")
    return found


def _safetensors(tensors: Mapping[str, Tensor]) -> Iterator[bytes | memoryview]:
    """Yield the bytes of the file, so that they are hashed while being written."""
    ordered = sorted(tensors.items(), key=lambda item: -item[1].element_size())  # keeps each tensor aligned when mapped
    header, end = dict[str, Any](), 0
    for name, tensor in ordered:
        start, end = end, end + tensor.nbytes
        header[name] = {"dtype": CODES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for _, tensor in ordered:  # normalise strides: a contiguous tensor may have any stride where a side is 0 or 1
        yield tensor.cpu().resolve_neg().contiguous().as_strided((tensor.numel(),), (1,)).view(torch.uint8).numpy().data


def _write(path: Path, chunks: Iterable[bytes | memoryview]) -> Digest:
    digest = hashlib.sha256()
    with path.open("xb") as file:
        for chunk in chunks:
            file.write(chunk)
            digest.update(chunk)
        file.flush()
        os.fsync(file.fileno())
        return {"sha256": digest.hexdigest(), "bytes": file.tell()}


def _manifest(name: str, files: Mapping[str, Digest]) -> bytes:
    return json.dumps({"format": FORMAT, "checkpoint": name, "files": files}, indent=2, sort_keys=True).encode()


def _read_manifest(path: Path) -> dict[str, Digest]:
    """Return the digest of each file. The manifest must match our format byte for byte."""
    with _explained(f"cannot read {path / MANIFEST}"):
        text = read_regular(path / MANIFEST)
        found = json.loads(text)["files"].items()
        files = {name: {"bytes": int(digest["bytes"]), "sha256": digest["sha256"]} for name, digest in found}
        parts = {name.removesuffix(REST) for name in files if PART.fullmatch(name.removesuffix(REST))}
        pairs = {part + kind for part in parts for kind in (REST, TENSORS)}
        if files.keys() != pairs or text != _manifest(path.name, files):
            raise ValueError(f"expected format {FORMAT}, two files per part, and no modified bytes")
        return files


def _remove(path: Path) -> None:
    try:
        doomed = path.with_name(f".{path.name.removeprefix('.')}").with_suffix(".partial")
        move(path, doomed)  # first, so that a killed process leaves no partial checkpoint
        remove(doomed)
    except RunError:
        raise
    except OSError as error:  # a superfluous checkpoint must not stop training
        warn(f"cannot remove {path}: {reason_of(error)}; remove it by hand.", PencilWarning)


def _step(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def _explained(what: str, advice: str = "use an earlier checkpoint") -> AbstractContextManager[None]:
    """Raise RunError for a full disk and for every error caused by damaged or hostile files."""
    return explained(RunError, what, advice, *ODD)
