"""The results of a run in numbers, as a typed value: ``summary.json``."""

import json
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from pencil.errors import RunError
from pencil.files import parse_json
from pencil.runs.layout import FORMAT, SUMMARY
from pencil.runs.wording import Wording, wording
from pencil.terminal import counted, shorten

Count = Annotated[int, Field(ge=0, lt=2**53)]
NAME = 40
"""Maximum characters of a name in a one-line text."""


class _Frozen(BaseModel):
    """Unknown keys are ignored, because a later version may add keys without a new format."""

    model_config = ConfigDict(frozen=True, extra="ignore", from_attributes=True)


class Score(_Frozen):
    """A score (accuracy, or mAP for multi-label data) at the best validation epoch and at the last epoch."""

    best: float
    last: float


class CalibrationBin(_Frozen):
    """A confidence bin: the number of labels, their mean confidence, and the fraction that is right."""

    rows: Count
    confidence: float
    right: float


class Calibration(_Frozen):
    """Calibration of the confidences; ``error`` is the expected calibration error."""

    error: float
    bins: Annotated[tuple[CalibrationBin, ...], Field(min_length=1)]


class Detection(_Frozen):
    """How well issue scores detect wrong labels of training and held-out rows, if clean labels are known.

    Attributes
    ----------
    errors : int
        Number of wrong labels.
    auroc, average_precision : float
        Scores of the issue score as a detector of wrong labels.
    precision_of_200, precision_of_errors : float
        Fraction of wrong labels among the first 200 rows, and among as many rows as there are wrong labels.
    """

    errors: Count
    auroc: float
    average_precision: float
    precision_of_200: float
    precision_of_errors: float


class Interval(_Frozen):
    """An estimated fraction and its 95 % interval."""

    estimate: float
    low: float
    high: float

    def __str__(self) -> str:
        """Return the estimate and the interval in per cent, as every text shows them."""
        return f"{100 * self.estimate:.1f} % (95 % interval {100 * self.low:.1f} to {100 * self.high:.1f} %)"


class VerdictSummary(_Frozen):
    """How reliable the corrected labels are, and why; see `pencil.labels.verdict`.

    Attributes
    ----------
    level, reasons : str, tuple of str
        The verdict, and its reasons in words.
    agreement : float or None
        Agreement of the network with held-out labels.
    memorised : float or None
        Of the labels that the network would not predict, the fraction that it repeats for training rows.
    gain : Interval or None
        The labels that become right minus the labels that become wrong by the corrections, as a fraction of all labels.
    lost_classes : tuple of str
        Classes that lost more than half of their rows, or were not learned.
    """

    level: Literal["reliable", "doubtful", "do not use the corrections"]
    reasons: tuple[str, ...] = ()
    agreement: float | None = None
    memorised: float | None = None
    gain: Interval | None = None
    lost_classes: tuple[str, ...] = ()


class LabelSummary(_Frozen):
    """What happened to the labels. Fields that need clean labels are None if those are unknown.

    Attributes
    ----------
    rows, changed : int
        Training rows, and the training labels that changed (entries, for multi-label data).
    entries : int or None
        Known (row, class) entries of multi-label training data.
    held_out, held_out_changed : int
        Held-out labels (entries, for multi-label data), and the held-out labels that changed.
    suspects : int or None
        Labels of training and held-out rows worth a look (entries, for multi-label data): corrections, and further high
        issue scores. None in files of earlier versions.
    outliers, conflicts : int or None
        Numbers of training and held-out rows that are unlike every class, and that have a duplicate with another
        label; None in files of earlier versions.
    rows_to_look_at : int or None
        Rows of multi-label data with a suspect: those that `pencil review` shows first.
    pinned : int or None
        Reviewed labels that are kept fixed, if there are any.
    correct_before, correct_after : float or None
        The fraction of training labels that are right as given and as corrected.
    repaired, broken : int or None
        Training labels that were wrong and are now right, and the reverse.
    calibration : Calibration or None
        Calibration of the confidences.
    detection : Detection or None
        How well issue scores detect wrong labels.
    """

    rows: Count
    pinned: Count | None = None
    entries: Count | None = None
    changed: Count
    held_out: Count = 0
    held_out_changed: Count = 0
    suspects: Count | None = None
    outliers: Count | None = None
    conflicts: Count | None = None
    rows_to_look_at: Count | None = None
    correct_before: float | None = None
    correct_after: float | None = None
    repaired: Count | None = None
    broken: Count | None = None
    calibration: Calibration | None = None
    detection: Detection | None = None

    @property
    def count(self) -> int:
        """The number of training labels: entries for multi-label data, otherwise rows."""
        return self.rows if self.entries is None else self.entries

    @property
    def total(self) -> int:
        """The number of labels of training and held-out rows."""
        return self.count + self.held_out

    @property
    def total_changed(self) -> int:
        """The number of changed training and held-out labels: the rows of ``pencil labels RUN --only-changed``."""
        return self.changed + self.held_out_changed

    @property
    def to_look_at(self) -> int:
        """The number of labels to review: the suspects. Runs of earlier versions have only the changed labels."""
        return self.total_changed if self.suspects is None else self.suspects


class DataSummary(_Frozen):
    """The data of a run: rows per split, class names, and the shape and type of one input.

    ``unread`` rows could not be read (``data.bad_rows=skip``): they have no label and are not counted in ``rows``.
    ``unread_keys`` lists the first of them.
    """

    rows: dict[str, Count]
    unread: Count = 0
    unread_keys: tuple[str, ...] = ()
    classes: Annotated[tuple[str, ...], Field(min_length=1)]
    multilabel: bool
    input_shape: Annotated[tuple[Annotated[Count, Field(ge=1)], ...], Field(min_length=1)]
    input_type: Literal["uint8", "float"]

    def __repr__(self) -> str:
        rows = ", ".join(f"{shorten(split, NAME)} {count:,}" for split, count in list(self.rows.items())[:4])
        what = f"{len(self.classes):,} classes, {self.wording.form}, {self.input_type} {self.input_shape}"
        return f"DataSummary({rows}; {what})"

    __str__ = __repr__

    @property
    def wording(self) -> Wording:
        """The words for the labels and scores of this data."""
        return wording(self.multilabel)

    @property
    def unread_words(self) -> str:
        """Describes the rows that could not be read; empty if there are none."""
        more = self.unread - len(self.unread_keys)
        named = ", ".join(self.unread_keys) + (f" and {more:,} more" if more else "")
        verb = "has" if self.unread == 1 else "have"
        return f"{counted(self.unread, 'row')} could not be read and {verb} no label: {named}" if self.unread else ""

    @field_validator("rows")
    @classmethod
    def _has_training_rows(cls, rows: dict[str, int]) -> dict[str, int]:
        if "train" not in rows:
            raise ValueError("expected the number of rows of each split, including 'train'")
        return rows


class AuditedDecision(_Frozen):
    """How an audit decides labels again; see `pencil.auditing.deciding`."""

    shift: float
    trust: float
    rank: float
    runner_up_shift: float
    runner_up_trust: float = 1.0
    weight: float = 1.0
    keep: bool = False


class AuditSummary(_Frozen):
    """The result of a person's audit for all labels, training and held-out.

    Attributes
    ----------
    population, rows : int
        The number of labels that the audit covers, and the number of audited labels: rows, or entries of multi-label
        data.
    cannot_tell, no_class : int
        The number of answers "cannot tell", which widen the intervals, and "none of the classes", which count the given
        and the corrected label as wrong.
    given_wrong, corrected_right : Interval
        The fraction of given labels that are wrong, and of corrected labels that are right.
    changes_right : Interval or None
        The precision of the changes: the fraction of changed labels that are right. None if no label changed.
    decision : AuditedDecision or None
        How labels were decided again; None if the labels of training remain in use. For multi-label data, how entries
        whose class is not named were.
    named_decision : AuditedDecision or None
        For multi-label data, how entries whose class is named were decided again.
    labels : LabelSummary or None
        What happened to the labels, as decided by the audit.
    verdict : VerdictSummary or None
        The verdict, as measured by the audit.
    """

    population: Count
    rows: Count
    cannot_tell: Count
    no_class: Count
    given_wrong: Interval
    corrected_right: Interval
    changes_right: Interval | None = None
    decision: AuditedDecision | None = None
    named_decision: AuditedDecision | None = None
    labels: LabelSummary | None = None
    verdict: VerdictSummary | None = None

    @property
    def sentence(self) -> str:
        """The result in words."""
        return f"audited: {self.corrected_right} of the corrected labels are right"


class _Findings(_Frozen):
    """The findings that the report shows; there may be others."""

    noise_rate: Interval | None = None
    choices: tuple[str, ...] = ()


class Summary(_Frozen):
    """The results of a run.

    Attributes
    ----------
    method : str
        The method's name.
    seed, epochs, best_epoch : int
        ``best_epoch`` is the epoch with the best score on the held-out rows, whose labels may be wrong.
    seconds : float
        The training time of all epochs.
    validation, test : Score or None
        The scores on held-out rows and on the test set, if there is one.
    labels : LabelSummary
        How many labels changed, and how many are right if that is known.
    verdict : VerdictSummary or None
        How reliable the corrected labels are; None in files of earlier versions.
    findings : dict
        What the method estimated or chose itself, such as the noise rate; empty for most methods.
    injected_noise_rate : float or None
        The fraction of labels corrupted by injected noise.
    data : DataSummary
        Rows, classes and inputs.
    audit : AuditSummary or None
        The result of a person's audit, if there was one.
    """

    method: str
    seed: int
    seconds: float
    epochs: Count
    best_epoch: Count
    validation: Score | None = None
    test: Score | None = None
    labels: LabelSummary
    verdict: VerdictSummary | None = None
    findings: dict[str, Any] = {}
    injected_noise_rate: float | None = None
    data: DataSummary
    audit: AuditSummary | None = None

    @field_validator("findings")
    @classmethod
    def _can_be_shown(cls, findings: dict[str, Any]) -> dict[str, Any]:
        _Findings.model_validate(findings)
        return findings

    @property
    def noise_rate(self) -> Interval | None:
        """The fraction of given labels that are wrong, as measured by an audit, otherwise as estimated by training.

        Every text about wrong labels shows this value. It is not the fraction of labels that changed.
        """
        return _Findings.model_validate(self.findings).noise_rate if self.audit is None else self.audit.given_wrong

    def after_audit(self) -> "Summary":
        """Return the summary with the verdict that an audit measured, and its counts if it decided labels again."""
        if self.audit is None:
            return self
        found = {"labels": self.audit.labels, "verdict": self.audit.verdict}
        return self.model_copy(update={name: value for name, value in found.items() if value is not None})

    @property
    def score(self) -> str:
        """The name of the score in metrics and in JSON: ``accuracy``, or ``map`` for multi-label data."""
        return self.data.wording.score

    def describe(self) -> str:
        """Return a one-line description of the results."""
        level = "no verdict" if self.verdict is None else self.verdict.level
        scores = [(split, one) for split, one in (("test", self.test), ("held-out", self.validation)) if one]
        score = "".join(f", {split} {self.score} {one.last:.3f}" for split, one in scores[:1])
        changed = f"{self.labels.total_changed:,} of {self.labels.total:,} labels changed"
        changed += f", {counted(self.labels.to_look_at, 'suspect')}"
        return f"{shorten(self.method, NAME)}, {len(self.data.classes):,} classes, {changed}{score}, {level}"

    def __repr__(self) -> str:
        return f"Summary({self.describe()})"

    __str__ = __repr__

    def to_dict(self) -> dict[str, Any]:
        """Return plain data as ``--json`` prints it: scores by name, without unknown values."""
        tree = _as_lists(self.model_dump())
        scores = {f"{split}_{self.score}": tree.pop(split) for split in ("validation", "test")}
        labels = {name: value for name, value in tree.pop("labels").items() if value is not None}
        findings, audit = tree.pop("findings"), tree.pop("audit")
        head = {name: tree.pop(name) for name in ("method", "seed", "seconds", "epochs", "best_epoch")}
        verdict = tree.pop("verdict")
        return {
            **head,
            **({} if verdict is None else {"verdict": verdict}),
            **{name: value for name, value in scores.items() if value is not None},
            "labels": labels,
            **({"findings": findings} if findings else {}),
            **tree,
            **({"audit": audit} if audit else {}),
        }

    def to_json(self) -> str:
        """Return the content of ``summary.json``."""
        return json.dumps({"format": FORMAT, **self.to_dict()}, indent=2) + "\n"

    @classmethod
    def from_dict(cls, tree: dict[str, Any], source: str = SUMMARY) -> Self:
        """Return the summary of plain data as `to_dict` makes it.

        Raises
        ------
        RunError
            If a field is missing or of the wrong type; ``source`` names the file in the message.
        """
        named = dict(tree)
        try:
            score = wording(tree["data"]["multilabel"]).score
            named |= {split: tree.get(f"{split}_{score}") for split in ("validation", "test")}
            return cls.model_validate(named)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"]))
            raise RunError(
                f"{source} is not a summary of a run: {place}: {first['msg']}; restore the file from a copy."
            ) from error
        except (KeyError, TypeError, AttributeError) as error:
            raise RunError(
                f"{source} is not a summary of a run: expected 'data' with 'multilabel'; restore the file from a copy."
            ) from error

    @classmethod
    def from_json(cls, text: str, source: str = SUMMARY) -> Self:
        """Return the summary in the content of ``summary.json``; ``source`` names the file in errors.

        Raises
        ------
        RunError
            If the text is not JSON, has another format, or lacks a field.
        """
        try:
            tree = parse_json(text.encode())
        except ValueError as error:
            raise RunError(f"{source} is not JSON: {error}; restore the file from a copy.") from error
        if not isinstance(tree, dict):
            raise RunError(f"{source} holds a {type(tree).__name__}; expected a JSON object; restore the file.")
        if tree.get("format") != FORMAT:
            raise RunError(
                f"{source} has format {repr(tree.get('format'))[:40]}; expected format {FORMAT}; open the run with "
                "the version of pencil that wrote it, or train again."
            )
        return cls.from_dict(tree, source)


def _as_lists(value: Any) -> Any:
    """Return plain data with tuples converted to lists, as in JSON."""
    if isinstance(value, dict):
        return {name: _as_lists(inner) for name, inner in value.items()}
    return [_as_lists(inner) for inner in value] if isinstance(value, tuple | list) else value
