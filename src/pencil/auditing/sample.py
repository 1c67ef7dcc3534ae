"""The sample of a run: drawn once, stored in ``audit.json``, continued and extended by later sessions."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pencil.auditing.design import LEAST_ROWS, ROWS, Strata, build_strata, draw_sample
from pencil.decisions import Decision, Where, now
from pencil.errors import RunError
from pencil.files import read_json, write_json
from pencil.runs.directory import RunReader
from pencil.runs.label_table import LabelTable
from pencil.terminal import agreed, counted

DESIGN = "audit.json"
FORMAT, MORE_CHANGES, SHARED_STREAM = 3, 2, 1
"""The format of ``audit.json``, and the earlier ones: their samples have more changed rows, and those of format 1 share
the random stream of their seed."""
COLUMNS = ("corrected", "confidence", "given_probability", "changed", "issue_score", "mean_margin", "distribution")
ALL_OFFERED = 10
"""Up to this many classes, all are offered for every row; with more, the label distribution selects them."""


@dataclass(frozen=True)
class AuditSample:
    """The labels of a run and the sampled rows.

    Attributes
    ----------
    run : Path or None
        The run directory, if there is one.
    labels : LabelTable
        All labels, as training left them.
    population : ndarray
        The rows that the audit covers: all rows that are not pinned.
    strata : Strata
        The strata of the population.
    places : ndarray
        The drawn positions in the population, in display order.
    seed : int
        The seed of the sample.
    stages : tuple of int
        The sample size after each session that drew rows.
    format : int
        The format of ``audit.json``, which determines the random stream.
    """

    run: Path | None
    labels: LabelTable
    population: np.ndarray
    strata: Strata
    places: np.ndarray
    seed: int
    stages: tuple[int, ...]
    format: int = FORMAT

    @property
    def rows(self) -> np.ndarray:
        """The drawn rows of the label table, in display order."""
        drawn: np.ndarray = self.population[self.places]
        return drawn

    def where(self, at: int) -> Where:
        """Return the key and split of the row at this position."""
        row = int(self.rows[at])
        return self.labels.keys[row].as_py(), self.labels.splits[row].as_py()

    def all_where(self) -> list[Where]:
        """Return the key and split of every drawn row, in display order."""
        return [self.where(at) for at in range(len(self.places))]

    def decision(self, at: int, label: str | None, kind: str = "") -> Decision:
        """Return the answer about the row at this position: a class, or ``none`` or ``skip`` without one."""
        row = int(self.rows[at])
        given, corrected = self.labels.given_labels[row], self.labels.corrected_labels[row]
        if label is not None:
            kind = "accept" if label == corrected else "reject" if label == given else "other"
        return Decision(*self.where(at), kind, label, given, corrected, now(), audit=True)

    def extended(self, rows: int) -> "AuditSample":
        """Return the sample with this many rows; it begins with the rows of this one."""
        return _draw(self.run, self.labels, (*self.stages, rows), self.seed, self.format)

    def to_tree(self) -> dict[str, Any]:
        """Return the content of ``audit.json``."""
        rows = [list(where) for where in self.all_where()]
        return {"format": self.format, "seed": self.seed, "stages": list(self.stages), "rows": rows}


def open_sample(run: Path, rows: int | None = None, seed: int | None = None, *, new: bool = True) -> AuditSample:
    """Return the sample of a run: the stored sample, extended if more rows are requested, or a new one.

    Only a new or extended sample is written; the caller holds the lock.

    Parameters
    ----------
    run : Path
        The directory of a finished run.
    rows : int, optional
        The size of the sample; by default the stored size, or 100.
    seed : int, optional
        The seed; by default the stored seed, or 0.
    new : bool
        Whether a new sample may be drawn; otherwise a stored one is required.

    Raises
    ------
    RunError
        If the data is multi-label, or the stored sample conflicts with the arguments.
    """
    labels, stored = trained_labels(run), read_design(run)
    if stored is None and not new:
        raise RunError(f"the run in {run} has no audit yet (no {DESIGN}); start one with `pencil audit {run}`.")
    sample = plan_sample(run, labels, stored, rows, seed)
    if stored is None or sample.stages != tuple(stored["stages"]):
        write_json(run / DESIGN, sample.to_tree(), indent=None)
    return sample


def plan_sample(
    run: Path | None,
    labels: LabelTable,
    stored: dict[str, Any] | None = None,
    rows: int | None = None,
    seed: int | None = None,
) -> AuditSample:
    """Return the sample as `open_sample` does, without writing it.

    Parameters
    ----------
    run : Path or None
        The run directory, if there is one.
    labels : LabelTable
        The labels of training.
    stored : dict, optional
        The content of ``audit.json``, if there is one.
    rows, seed : int, optional
        The size and the seed of the sample.
    """
    if stored is None:
        return _draw(run, labels, (_enough(ROWS if rows is None else rows),), 0 if seed is None else seed)
    stages = stored["stages"]
    if seed is not None and seed != stored["seed"]:
        raise RunError(
            f"the seed is {seed}, but the audit of {run} was drawn with seed {stored['seed']}; leave out the seed to "
            "continue it."
        )
    sample = _draw(run, labels, tuple(stages), stored["seed"], stored["format"])
    if [list(where) for where in sample.all_where()] != stored["rows"]:
        raise RunError(
            f"the rows in {DESIGN} of {run} do not match its seed and the labels; expected the files of one run; "
            "restore them from a copy."
        )
    if rows is None or rows == stages[-1]:
        return sample
    if rows < stages[-1]:
        raise RunError(
            f"--rows is {rows}, but {counted(stages[-1], 'row')} {agreed(stages[-1], 'is', 'are')} already drawn; "
            "expected at least as many."
        )
    return sample.extended(rows)


def read_design(run: Path) -> dict[str, Any] | None:
    """Return the validated content of ``audit.json``; None if it does not exist."""
    path = run / DESIGN
    try:
        tree = read_json(path)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise RunError(f"cannot read {path}: {reason}; restore the file from a copy.") from error
    if not (
        isinstance(tree, dict)
        and tree.get("format") in (FORMAT, MORE_CHANGES, SHARED_STREAM)
        and _is_count(tree.get("seed"))
        and isinstance(tree.get("rows"), list)
        and isinstance(tree.get("stages"), list)
        and tree["stages"]
        and all(_is_count(stage) for stage in tree["stages"])
        and tree["stages"] == sorted(set(tree["stages"]))
    ):
        raise RunError(f"{path} is not an audit of format {FORMAT}; restore the file from a copy.")
    return tree


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**53


def trained_labels(run: Path) -> LabelTable:
    """Return the labels of training, whatever an audit decided: they determine the sample."""
    reader = RunReader(run, as_trained=True)
    if reader.read_labels(()).multilabel:
        raise RunError(
            f"the run in {run} is multi-label; expected single-label data, because an audit asks for one class per "
            f"row; use `pencil review {run}`."
        )
    optional = [name for name in ("pinned", "outlier") if name in reader.label_names()]
    return reader.read_labels((*COLUMNS, *optional))


def _enough(rows: int) -> int:
    if rows < LEAST_ROWS:
        raise RunError(f"--rows is {rows}; expected at least {LEAST_ROWS}, so that every stratum has two.")
    return rows


def _draw(run: Path | None, labels: LabelTable, stages: tuple[int, ...], seed: int, form: int = FORMAT) -> AuditSample:
    population = np.flatnonzero(~labels.pinned & ~labels.is_unlabelled)
    if not len(population):
        raise RunError(
            "every label is pinned, so there is nothing to audit; expected labels without a person's decision."
        )
    strata = build_strata(labels.changed[population], confidences(labels)[population], earlier=form < FORMAT)
    places = draw_sample(strata, stages, seed, own_stream=form != SHARED_STREAM)
    return AuditSample(run, labels, population, strata, places, seed, stages, form)


def confidences(labels: LabelTable) -> np.ndarray:
    """Return the confidence of every row; NaN counts as 0."""
    return np.nan_to_num(labels.confidence.astype(np.float64)).clip(0, 1)
