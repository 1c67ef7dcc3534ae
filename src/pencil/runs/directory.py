"""The run directory: the class that reads it and the class that writes it. Importing them does not import torch."""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
import safetensors.numpy
from safetensors import SafetensorError

from pencil.errors import PencilWarning, RecipeError, RunError, argument, command, on_cli, reason_of, warn
from pencil.files import (
    digest,
    make_folder,
    move,
    read_json,
    read_regular,
    refuse_irregular,
    refuse_links,
    remove,
    remove_empty,
    sync_folder,
    write,
    write_json,
    write_text,
)
from pencil.runs.annotators import Annotators
from pencil.runs.content import parse_record, read_recipe, read_row_keys, read_safetensors
from pencil.runs.label_files import LabelFile
from pencil.runs.label_table import LabelTable
from pencil.runs.layout import (
    ANNOTATORS,
    AUDITED,
    BEST,
    CHECKPOINTS,
    ENCODER,
    ENVIRONMENT,
    FAILURE,
    FORMAT,
    LABELS,
    MANIFEST,
    METRICS,
    MODEL,
    PARTS,
    RECIPE,
    ROWS,
    SUMMARY,
    WEIGHTS,
    first_files,
    has_encoder,
    is_audited,
    is_empty,
    is_run,
    is_unfinished,
    listed_files,
)
from pencil.runs.leftovers import clear_leftovers, remove_checkpoints
from pencil.runs.lock import RunLock
from pencil.runs.summary import Summary
from pencil.user_file import Trust

if TYPE_CHECKING:
    from torch import Tensor

    from pencil.data.inputs.encoding import Encoder
    from pencil.recipe import Recipe

Content = TypeVar("Content")
Record = dict[str, Any]
"""The metrics of one epoch."""


class DamagedError(RunError):
    """A file of a run directory is missing or was modified."""


@dataclass(frozen=True)
class RunData:
    """A finished run without its network; if it has no directory, ``environment`` is empty and ``path`` is None."""

    labels: LabelTable
    metrics: list[Record] = field(repr=False)
    summary: Summary
    recipe: "Recipe"
    environment: Mapping[str, Any] = field(default_factory=dict, repr=False)
    path: Path | None = None
    annotators: Annotators | None = None

    @property
    def name(self) -> str:
        """The name of the directory, or the name of the recipe."""
        return self.recipe.name if self.path is None else self.path.absolute().name

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes."""
        return self.summary.data.classes

    @property
    def multilabel(self) -> bool:
        """Whether an example may have several classes."""
        return self.summary.data.multilabel


class RunReader:
    """Reads the files of a run directory lazily.

    Parameters
    ----------
    path : Path or str
        The run directory.
    finished : bool
        Raise for a run that has not finished.
    as_trained : bool
        Read the labels and the verdict of training, even if an audit has decided them again.

    Raises
    ------
    RunError
        If the directory is not a run, has another format, or a file is missing or damaged. The message is one line that
        names the file, what was seen and what to do.
    """

    def __init__(self, path: Path | str, *, finished: bool = True, as_trained: bool = False):
        self.path = Path(path)
        if not is_run(self.path):
            raise RunError(
                f"{self.path} is not a run directory (it has no {RECIPE}); name a directory that `pencil train` wrote."
            )
        if finished and is_unfinished(self.path):
            raise RunError(
                f"the run in {self.path} has not finished (it has no {SUMMARY}); resume it with "
                f"{command('resume', self.path)}."
            )
        _check_format(self.path, self.environment)
        self.as_trained = as_trained
        self.is_audited = is_audited(self.path) and not as_trained

    @cached_property
    def environment(self) -> dict[str, Any]:
        """Format version, library versions, machine, and fingerprints of the data."""
        tree = self._read(ENVIRONMENT, read_json)
        if not isinstance(tree, dict):
            raise self._damaged(ENVIRONMENT, f"it holds a {type(tree).__name__} instead of a JSON object")
        return tree

    @property
    def fingerprints(self) -> dict[str, str]:
        """The digest of keys and labels of each split as loaded, and of the reviewed labels (``pinned``)."""
        found = self.environment.get("data_fingerprint")
        if not isinstance(found, dict) or not all(isinstance(digits, str) for digits in found.values()):
            raise self._damaged(ENVIRONMENT, "it has no data_fingerprint")
        return dict(found)

    @cached_property
    def recipe_tree(self) -> dict[str, Any]:
        """The resolved recipe as nested tables."""
        return self._read(RECIPE, read_recipe)

    def recipe(self, *, with_method: bool = False, trust: Trust | bool = False) -> "Recipe":
        """Return the resolved recipe. This imports torch.

        Parameters
        ----------
        with_method : bool
            Also check the settings of the method, which imports a user-defined method.
        trust : bool or Trust
            Which Python files the recipe may execute; none by default.
        """
        from pencil.recipe import parse

        data = self.recipe_tree.get("data")
        if not isinstance(data, dict) or not data.get("source"):  # an empty source would be the current folder
            raise self._damaged(RECIPE, "it does not name its data (data.source)")
        try:
            stored = parse(self.recipe_tree, str(self.path / RECIPE), with_method=False)
        except RecipeError as error:
            first, *rest = [line.strip() for line in str(error).splitlines()[1:]]
            raise self._damaged(RECIPE, first.rstrip(".") + (f", and {len(rest)} more" if rest else "")) from error
        return parse(self.recipe_tree, str(self.path / RECIPE), trust=trust) if with_method else stored

    @cached_property
    def verdict(self) -> tuple[str, list[str]] | None:
        """The verdict of the run and its reasons, without the rest of the summary; None if there is none."""
        tree = self._read(SUMMARY, read_json)
        measured = tree.get("audit") if isinstance(tree, dict) and not self.as_trained else None
        tree = measured if isinstance(measured, dict) and measured.get("verdict") else tree
        found = tree.get("verdict") if isinstance(tree, dict) else None
        if not isinstance(found, dict) or not isinstance(found.get("reasons"), list):
            return None
        return str(found.get("level")), [str(reason) for reason in found["reasons"]]

    @cached_property
    def failure(self) -> str | None:
        """Why training failed; None if it did not."""
        if not (self.path / FAILURE).exists():
            return None
        tree = self._read(FAILURE, read_json)
        if not isinstance(tree, dict) or not isinstance(tree.get("error"), str):
            raise self._damaged(FAILURE, "it does not say why the run failed ('error')")
        return str(tree["error"])

    @cached_property
    def rows(self) -> pa.Table:
        """The key and the split (train, validation, unlabelled or unused) of every row, in the original order."""
        return self._read(ROWS, read_row_keys)

    @cached_property
    def encoder(self) -> "Encoder | None":
        """Encoder of table rows as vectors; None for other inputs. This imports torch."""
        from pencil.data.inputs.encoding import read_encoder

        if not has_encoder(self.path):
            return None
        return self._read(ENCODER, lambda path: read_encoder(*read_safetensors(path)))

    @cached_property
    def metrics(self) -> list[Record]:
        """The metrics of every epoch."""
        lines = self._read(METRICS, lambda path: read_regular(path).splitlines())
        found = []
        for number, line in enumerate(lines, 1):
            try:
                found.append(parse_record(line))
            except ValueError as error:
                raise self._damaged(
                    METRICS, f"line {number} does not contain the metrics of an epoch ({error})"
                ) from error
        return found

    @property
    def label_file(self) -> str:
        """The name of the label table: as training wrote it, or as an audit decided it."""
        return AUDITED if self.is_audited else LABELS

    @cached_property
    def labels(self) -> LabelTable:
        """The label table with all its columns."""
        return self.read_labels()

    def read_labels(self, columns: Iterable[str] | None = None) -> LabelTable:
        """Return the label table, with ``columns`` restricted to those plus key, split and given."""
        return self._read(self.label_file, lambda path: LabelTable.read_file(path, columns))

    def label_names(self) -> list[str]:
        """Return the names of the label table's columns."""
        return self._read(self.label_file, lambda path: list(LabelFile(path).schema.names))

    @cached_property
    def summary(self) -> Summary:
        """The results in numbers; after an audit, its counts and its verdict replace those of training."""
        text = self._read(SUMMARY, lambda path: read_regular(path).decode())
        found = Summary.from_json(text, f"the run in {self.path} is damaged: {SUMMARY}")
        return found if self.as_trained else found.after_audit()

    @cached_property
    def annotators(self) -> Annotators | None:
        """The consensus of the rows and the quality of each annotator; None without several annotators."""
        return self._read(ANNOTATORS, Annotators.read) if os.path.lexists(self.path / ANNOTATORS) else None

    def weights_path(self, epoch: str = "last") -> Path:
        """Return the safetensors file with the weights of the ``last`` or the ``best`` epoch."""
        if epoch not in WEIGHTS:
            raise RunError(f"epoch is {epoch!r}; expected {' or '.join(WEIGHTS)}.")
        return self.path / WEIGHTS[epoch]

    def read_weights(self, epoch: str = "last") -> "dict[str, Tensor]":
        """Return the weights of the ``last`` or the ``best`` epoch. This imports torch."""
        import safetensors.torch

        def read(path: Path) -> "dict[str, Tensor]":
            refuse_irregular(path)
            return safetensors.torch.load_file(path)

        return self._read(self.weights_path(epoch).relative_to(self.path), read)

    def data(self) -> RunData:
        """Return the whole run except its network. This imports torch."""
        named = self.summary.data.classes, self.summary.data.multilabel
        if named != (self.labels.classes, self.labels.multilabel):
            raise self._damaged(SUMMARY, f"its classes differ from {self.label_file}")
        found = self.labels, self.metrics, self.summary, self.recipe(), self.environment, self.path
        return RunData(*found, self.annotators)

    def _read(self, name: str | Path, read: Callable[[Path], Content]) -> Content:
        try:
            return read(self.path / name)
        except FileNotFoundError as error:
            raise self._damaged(name, "it is missing") from error
        except (OSError, ValueError, KeyError, RecursionError, pa.ArrowException, SafetensorError) as error:
            raise self._damaged(name, reason_of(error).rstrip(".")) from error

    def _damaged(self, name: str | Path, seen: str) -> "DamagedError":
        return DamagedError(
            f"the run in {self.path} is damaged: {name}: {seen}; restore the file from a copy, or train again."
        )


class RunWriter:
    """Writes a run directory during training. No other process can write to it at the same time.

    Use it as a context manager, which holds the lock of the directory. No existing file is overwritten, and no file is
    left half-written. If no run has begun in the directory at the end, it is removed again, with the folders above it
    that were made for it.

    Parameters
    ----------
    path : Path
        The directory, which must be new or empty.
    resume : bool
        Resume the run in the directory.
    """

    def __init__(self, path: Path, *, resume: bool = False):
        self.path, self.resume = path, resume
        self._check_empty()
        self._lock = RunLock(path)
        self._made: list[Path] = []
        self._environment: dict[str, Any] | None = None

    def __enter__(self) -> Self:
        self._made = [folder for folder in (self.path, *self.path.parents) if not os.path.lexists(folder)]
        try:
            self._lock.__enter__()
            self._check_empty()  # once more: another process may have written here before we had the lock
            clear_leftovers(self.path)
        except BaseException:
            self.__exit__()
            raise
        return self

    def _check_empty(self) -> None:
        if not self.resume and not is_empty(self.path):
            resume = command("resume", self.path) if on_cli() else "resume=True"
            hint = f"resume with {resume}, or " if is_unfinished(self.path) else ""
            if is_run(self.path) and not hint and not on_cli():
                hint = f"open the finished run with {resume}, or "
            seen = "is a file" if self.path.is_file() else "is not empty"
            raise RunError(
                f"{self.path} {seen}; expected a new or empty directory; {hint}choose another with {argument('out')}."
            )

    def __exit__(self, *_: object) -> None:
        self._lock.__exit__()
        remove_empty(self._made)

    @property
    def environment(self) -> dict[str, Any]:
        """The content of ``environment.json``, as written by `begin` now or before an interruption."""
        if self._environment is None:
            self._environment = RunReader(self.path, finished=False).environment
        return self._environment

    def begin(
        self, recipe: "Recipe", environment: Mapping[str, Any], rows: pa.Table, encoder: "Encoder | None" = None
    ) -> None:
        """Write the initial files: environment, rows, table encoder, digests, and the recipe last."""
        refuse_links(self.path / CHECKPOINTS, self.path)
        make_folder(self.path / CHECKPOINTS, empty=False)
        self._environment = {"format": FORMAT, **environment}
        write_json(self.path / ENVIRONMENT, self._environment)
        write(self.path / ROWS, lambda target: pq.write_table(rows, target, compression="zstd"))
        if encoder is not None:
            arrays, header = dict(encoder.arrays), encoder.metadata()
            write(self.path / ENCODER, lambda target: safetensors.numpy.save_file(arrays, target, header))
        text = recipe.to_toml()
        digests = {name: digest(self.path / name) for name in first_files(self.path) if name != RECIPE}
        write_json(self.path / MANIFEST, {**digests, RECIPE: hashlib.sha256(text.encode()).hexdigest()})
        write_text(self.path / RECIPE, text)  # last: a directory with a recipe can be resumed

    def truncate_metrics(self, records: Iterable[Record]) -> None:
        """Truncate the metrics to the epochs of a checkpoint."""
        write_text(self.path / METRICS, "".join(json.dumps(record) + "\n" for record in records))

    def append_metrics(self, record: Record) -> None:
        """Append the metrics of an epoch."""
        refuse_links(self.path / METRICS, self.path)
        try:
            with (self.path / METRICS).open("a", encoding="utf-8", newline="\n") as lines:
                lines.write(json.dumps(record) + "\n")
        except OSError as error:  # checkpoints also contain the metrics, and `finish` rewrites all of them
            warn(f"cannot write {self.path / METRICS}: {error.strerror}; training continues.", PencilWarning)

    def record_failure(self, error: Exception) -> None:
        """Record why training failed; on a full disk only the exception itself reports it."""
        with suppress(RunError):
            write_json(self.path / FAILURE, {"kind": type(error).__name__, "error": str(error) or type(error).__name__})

    def forget_failure(self) -> None:
        """Remove the record of an earlier failure, because training continues."""
        with suppress(OSError):  # anything but a file was not written by us
            (self.path / FAILURE).unlink(missing_ok=True)

    def begin_label_parts(self) -> Path:
        """Return a new folder for the label table parts of all ranks."""
        return make_folder(self.path / PARTS)

    def finish(
        self,
        labels: LabelTable | Mapping[str, str],
        metrics: Iterable[Record],
        weights: "dict[str, Tensor]",
        best_weights: "dict[str, Tensor]",
        summary: Summary,
        annotators: Annotators | None = None,
    ) -> None:
        """Write the results, the summary last; then remove the checkpoints, which are no longer needed.

        If the ranks wrote the labels in parts (:meth:`begin_label_parts`), ``labels`` maps the name of each part to its
        digest.
        """
        self.truncate_metrics(metrics)
        digests = self._write_labels(labels)
        if annotators is not None:
            annotators.write(self.path / ANNOTATORS)
        write(self.path / MODEL, lambda target: _save_weights(weights, target))
        write(self.path / BEST, lambda target: _save_weights(best_weights, target))
        others = (name for name in listed_files(self.path) if name not in digests)
        write_json(self.path / MANIFEST, {**{name: digest(self.path / name) for name in others}, **digests})
        write_text(self.path / SUMMARY, summary.to_json())
        remove_checkpoints(self.path)

    def _write_labels(self, labels: LabelTable | Mapping[str, str]) -> dict[str, str]:
        """Put the label table in place; return the digests of its parts, by their names in the manifest."""
        target = self.path / LABELS
        if target.is_dir() or not isinstance(
            labels, LabelTable
        ):  # left by a process that was killed before the summary
            remove(target)
        if isinstance(labels, LabelTable):
            labels.write(target)
            return {}
        sync_folder(self.path / PARTS)
        move(self.path / PARTS, target)
        return {f"{LABELS}/{name}": digits for name, digits in labels.items()}


def _check_format(path: Path, environment: Mapping[str, Any]) -> None:
    seen = environment.get("format")
    if type(seen) is not int or seen != FORMAT:
        has = "no format version" if seen is None else f"format {repr(seen)[:40]}"
        version = environment.get("pencil")
        short = isinstance(version, str) and len(version) <= 40 and version.isprintable()
        writer = f"pencil {version}" if short else "the version of pencil that wrote it"
        raise RunError(
            f"the run in {path} has {has} in {ENVIRONMENT}; expected format {FORMAT}; open the run with "
            f"{writer}, or train again."
        )


def _save_weights(weights: "dict[str, Tensor]", target: Path) -> None:
    """Save plain tensors that torch and timm can load without pencil; tied weights are stored once per name."""
    import safetensors.torch

    safetensors.torch.save_file({name: value.cpu().contiguous().clone() for name, value in weights.items()}, target)
