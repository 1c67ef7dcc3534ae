"""The sample of a run: drawn once, stored in ``audit.json``, continued and extended by later sessions."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pencil.auditing.design import LEAST_ROWS, ROWS, Strata, build_strata, draw_sample
from pencil.auditing.questions import Questions, questions_of
from pencil.decisions import Unit
from pencil.errors import RunError, command
from pencil.files import read_json, write_json
from pencil.runs.directory import RunReader
from pencil.runs.label_columns import ENTRY_SCORES, GIVEN_PROBS, SUSPECTS
from pencil.runs.label_table import LabelTable
from pencil.terminal import agreed, counted

DESIGN = "audit.json"
FORMAT = 3
"""The format of ``audit.json``."""
COLUMNS = ("corrected", "confidence", "changed", "issue_score", "distribution")
ROWS_ONLY, ENTRIES_ONLY = ("given_probability", "mean_margin"), (GIVEN_PROBS,)
"""Further columns of single-label and of multi-label data."""
OPTIONAL = ("pinned", "outlier", ENTRY_SCORES, SUSPECTS)
"""Columns that some runs do not have."""


@dataclass(frozen=True)
class AuditSample:
    """The labels of a run and the sampled rows, or entries of multi-label data.

    Attributes
    ----------
    run : Path or None
        The run directory, if there is one.
    questions : Questions
        All units that the audit can ask about.
    strata : Strata
        The strata of the population.
    places : ndarray
        The drawn positions in the population, in display order.
    seed : int
        The seed of the sample.
    stages : tuple of int
        The sample size after each session that drew rows.
    """

    run: Path | None
    questions: Questions
    strata: Strata
    places: np.ndarray
    seed: int
    stages: tuple[int, ...]

    @property
    def labels(self) -> LabelTable:
        """All labels, as training left them."""
        return self.questions.labels

    @property
    def population(self) -> np.ndarray:
        """The units that the audit covers."""
        return self.questions.population

    @property
    def units(self) -> np.ndarray:
        """The drawn units, in display order."""
        drawn: np.ndarray = self.population[self.places]
        return drawn

    @property
    def rows(self) -> np.ndarray:
        """The rows of the label table that the drawn units belong to, in display order."""
        return np.array([self.questions.row(unit) for unit in self.units.tolist()], dtype=np.int64)

    def where(self, at: int) -> Unit:
        """Return what identifies the unit at this position: key and split, and the class of an entry."""
        return self.questions.name(int(self.units[at]))

    def all_where(self) -> list[Unit]:
        """Return what identifies every drawn unit, in display order."""
        return [self.questions.name(unit) for unit in self.units.tolist()]

    def extended(self, rows: int) -> "AuditSample":
        """Return the sample with this many rows; it begins with the rows of this one."""
        return _draw(self.run, self.questions, (*self.stages, rows), self.seed)

    def to_tree(self) -> dict[str, Any]:
        """Return the content of ``audit.json``."""
        rows = [list(name) for name in self.all_where()]
        return {"format": FORMAT, "seed": self.seed, "stages": list(self.stages), "rows": rows}


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
        If the stored sample conflicts with the arguments.
    """
    labels, stored = trained_labels(run), read_design(run)
    if stored is None and not new:
        raise RunError(f"the run in {run} has no audit yet (no {DESIGN}); start one with {command('audit', run)}.")
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
        The labels from training.
    stored : dict, optional
        The content of ``audit.json``, if there is one.
    rows, seed : int, optional
        The size and the seed of the sample.
    """
    questions = questions_of(labels)
    if stored is None:
        return _draw(run, questions, (_enough(ROWS if rows is None else rows),), 0 if seed is None else seed)
    stages = stored["stages"]
    if seed is not None and seed != stored["seed"]:
        raise RunError(
            f"the seed is {seed}, but the audit of {run} was drawn with seed {stored['seed']}; leave out the seed to "
            "continue it."
        )
    sample = _draw(run, questions, tuple(stages), stored["seed"])
    if [list(name) for name in sample.all_where()] != stored["rows"]:
        raise RunError(
            f"the rows in {DESIGN} of {run} do not match its seed and the labels; expected the files of one run; "
            "restore them from a copy."
        )
    if rows is None or rows == stages[-1]:
        return sample
    if rows < stages[-1]:
        raise RunError(
            f"--rows is {rows}, but {counted(stages[-1], *questions.nouns)} {agreed(stages[-1], 'is', 'are')} already "
            "drawn; expected at least as many."
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
    if isinstance(tree, dict) and tree.get("format") in range(1, FORMAT):
        raise RunError(
            f"{path} has format {tree['format']}, of a version before 1.0 that drew samples in another way; "
            f"expected format {FORMAT}; remove the file and start again with {command('audit', run)}."
        )
    if not (
        isinstance(tree, dict)
        and tree.get("format") == FORMAT
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
    """Return the labels from training, whatever an audit decided: they determine the sample."""
    reader = RunReader(run, as_trained=True)
    own = ENTRIES_ONLY if reader.read_labels(()).multilabel else ROWS_ONLY
    optional = [name for name in OPTIONAL if name in reader.label_names()]
    return reader.read_labels((*COLUMNS, *own, *optional))


def _enough(rows: int) -> int:
    if rows < LEAST_ROWS:
        raise RunError(f"--rows is {rows}; expected at least {LEAST_ROWS}, so that every stratum has two.")
    return rows


def _draw(run: Path | None, questions: Questions, stages: tuple[int, ...], seed: int) -> AuditSample:
    values = questions.changed, questions.confidence, questions.kinds
    strata = build_strata(*(one[questions.population] for one in values))
    places = draw_sample(strata, stages, seed)
    return AuditSample(run, questions, strata, places, seed, stages)
