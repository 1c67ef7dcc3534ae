"""Turns the results of training into the files of a run directory: label table, row table, summary, environment."""

import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from pencil._version import __version__
from pencil.arrow_arrays import list_names, matrix
from pencil.data.examples import Examples, Splits
from pencil.data.given.given_labels import has_tie, most_probable
from pencil.data.inputs.base import Inputs
from pencil.labels.dynamics import Evidence, TrainingDynamics
from pencil.labels.entry_dynamics import EntryEvidence
from pencil.labels.entry_judging import row_issue_scores
from pencil.labels.forms import label_form
from pencil.labels.outliers import FLAGGED
from pencil.labels.reading import EntryReading, read_entries, read_labels
from pencil.recipe import Recipe
from pencil.runs.label_columns import WIDE
from pencil.runs.label_table import LabelTable
from pencil.runs.summary import DataSummary, Interval, LabelSummary, Score, Summary, VerdictSummary
from pencil.runs.totals import RowTotals, row_totals
from pencil.runs.verdict_facts import detection_of, settle
from pencil.training import Outcome
from pencil.training.distributed import SINGLE_PROCESS, World


@dataclass(frozen=True)
class RowEvidence:
    """The evidence of training about some rows: issue scores and dynamics of their given labels, outlier scores.

    From the score ``suspect_from`` on, a label is a suspect. ``entry_scores`` are the issue scores of the entries of
    multi-label data, (rows, classes).
    """

    issue_scores: Tensor
    dynamics: Evidence | EntryEvidence
    suspect_from: float = torch.inf
    outlier_scores: Tensor | None = None
    conflicts: Tensor | None = None
    entry_scores: Tensor | None = None

    def suspects(self, examples: Examples) -> Tensor:
        """Return a mask of the labels with a high issue score, without pinned rows, outliers and unknown labels."""
        if self.entry_scores is None:
            scores, known = self.issue_scores, ~has_tie(examples.given_labels)
        else:
            scores, known = self.entry_scores, ~examples.given_labels.isnan()
        high = (_without_pinned(scores, examples) >= self.suspect_from) & known
        if self.outlier_scores is None:
            return high
        usual = _without_pinned(self.outlier_scores, examples) < FLAGGED
        return high & (usual if high.ndim == 1 else usual[:, None])

    def subset(self, rows: Tensor) -> "RowEvidence":
        """Return the evidence about the rows at these positions."""
        optional = self.outlier_scores, self.conflicts, self.entry_scores
        outliers, conflicts, entries = (None if one is None else one[rows] for one in optional)
        dynamics = self.dynamics.subset(rows)
        return RowEvidence(self.issue_scores[rows], dynamics, self.suspect_from, outliers, conflicts, entries)


def row_evidence(outcome: Outcome) -> tuple[RowEvidence, RowEvidence | None]:
    """Return the evidence about training rows and held-out rows."""
    judgement, held_out = outcome.judgement, outcome.validation_dynamics

    def evidence(
        scores: Tensor, dynamics: Evidence | EntryEvidence, split: str, entry_scores: Tensor | None
    ) -> RowEvidence:
        of_input = outcome.outlier_scores.get(split), outcome.conflicts.get(split)
        return RowEvidence(scores, dynamics, judgement.suspect_from, *of_input, entry_scores)

    found = evidence(judgement.issue_scores, outcome.dynamics, "train", judgement.entry_scores)
    if held_out is None or judgement.held_out_issue_scores is None:
        return found, None
    return found, evidence(judgement.held_out_issue_scores, held_out, "validation", judgement.held_out_entry_scores)


def build_label_table(
    splits: Splits,
    label_probs: Tensor,
    validation_probs: Tensor | None = None,
    evidence: tuple[RowEvidence | None, RowEvidence | None] = (None, None),
    unlabelled_probs: Tensor | None = None,
    order: Any = None,
    unlabelled_outliers: Tensor | None = None,
) -> LabelTable:
    """Return the labels of every training and held-out row, and of the unlabelled rows.

    Without ``evidence`` about training and held-out rows, issue scores are computed from the label distributions.
    ``order`` are the keys of all rows, which place unlabelled rows among the others; without it they come last.
    """
    table = label_columns_of(splits.train, label_probs, "train", evidence[0])
    if splits.validation is not None and validation_probs is not None:
        held_out = label_columns_of(splits.validation, validation_probs, "validation", evidence[1])
        table = pa.concat_tables([table, held_out])
    if splits.unlabelled is not None and unlabelled_probs is not None:
        columns = unlabelled_columns(splits.unlabelled, unlabelled_probs, table.schema, unlabelled_outliers)
        table = pa.concat_tables([table, columns])
    parts = [splits.train, *other_parts(splits, validation_probs, unlabelled_probs)]
    places = table_order(parts, splits.unlabelled if unlabelled_probs is not None else None, order)
    if places is not None:
        table = _in_order(table, places)
    return LabelTable(with_classes(table, splits.train.classes).combine_chunks())


def _in_order(table: pa.Table, places: np.ndarray) -> pa.Table:
    """Return the rows at these positions; wide columns are copied once, where Arrow would copy them twice."""
    wide = [name for name in table.column_names if name in WIDE]
    ordered = table.drop_columns(wide).take(pa.array(places))
    row_of = np.argsort(places)
    for name in wide:
        width, start = table.schema.field(name).type.list_size, 0
        values = np.empty((len(places), width), dtype=np.float32)
        for chunk in table[name].chunks:
            values[row_of[start : start + len(chunk)]] = matrix(chunk, width)
            start += len(chunk)
        ordered = ordered.append_column(name, _as_lists(values))
    return ordered.select(table.column_names)


def table_order(parts: Sequence[Examples], unlabelled: Examples | None, order: Any) -> np.ndarray | None:
    """Return the order of the concatenated parts in the label table; None if the order is unchanged."""
    labelled = [part for part in parts if part is not unlabelled]
    places, changed = np.arange(sum(map(len, parts))), False
    if len(labelled) == 2 and not torch.isin(labelled[0].rows, labelled[1].rows).any():
        by_row = torch.cat([part.rows for part in labelled]).argsort(stable=True)  # held out of the same data
        places[: len(by_row)], changed = by_row.numpy(), True
    if unlabelled is not None and order is not None:
        keys = pa.array(np.concatenate([part.keys for part in parts])[places].tolist(), pa.string())
        found = pc.fill_null(pc.index_in(keys, value_set=order), len(keys)).to_numpy()
        places, changed = places[np.argsort(found, kind="stable")], True
    return places if changed else None


def other_parts(splits: Splits, validation_probs: Tensor | None, unlabelled_probs: Tensor | None) -> list[Examples]:
    """Return the held-out and the unlabelled rows, if there are any and their labels are known."""
    pairs = ((splits.validation, validation_probs), (splits.unlabelled, unlabelled_probs))
    return [part for part, probs in pairs if part is not None and probs is not None]


def with_classes(table: pa.Table, classes: Sequence[str]) -> pa.Table:
    """Return a label table with the class names in its metadata."""
    return table.replace_schema_metadata({"classes": json.dumps(classes)})


def build_row_table(loaded: Splits, splits: Splits) -> pa.Table:
    """Return the keys of the loaded rows in order, and the split of each.

    The split is train, validation, unlabelled or unused.
    """
    parts = [part for part in (loaded.train, loaded.unlabelled) if part is not None]
    in_order = torch.cat([part.rows for part in parts]).argsort(stable=True).numpy()
    ordered = np.concatenate([part.keys for part in parts])
    keys = pa.array((ordered if len(parts) == 1 else ordered[in_order]).tolist(), pa.string())
    is_train = pc.is_in(keys, pa.array(splits.train.keys.tolist(), pa.string()))
    split = pc.if_else(is_train, "train", "unused")
    if splits.validation is not None and loaded.validation is None:  # held out of the same rows
        is_held = pc.is_in(keys, pa.array(splits.validation.keys.tolist(), pa.string()))
        split = pc.if_else(is_held, "validation", split)
    if splits.unlabelled is not None:
        is_unlabelled = pc.is_in(keys, pa.array(splits.unlabelled.keys.tolist(), pa.string()))
        split = pc.if_else(is_unlabelled, "unlabelled", split)
    return pa.table({"key": keys, "split": split.dictionary_encode()})


def summarize(
    splits: Splits, outcome: Outcome, recipe: Recipe, noise_rate: float | None, world: World = SINGLE_PROCESS
) -> tuple[Summary, Outcome]:
    """Return the results in numbers, and the outcome with the labels to write; see :func:`settle`.

    Each rank holds the results of some rows; all ranks must call this function.
    """
    train, records = splits.train, outcome.records
    of_train, of_held_out = row_evidence(outcome)
    totals = _totals(train, outcome, of_train, world)
    settled, verdict, facts = settle(splits, outcome, totals)
    if settled is not outcome:  # labels are as given
        totals = _totals(train, settled, of_train, world)
    best, last = records[outcome.best_epoch - 1], records[-1]

    def score(split: str) -> Score | None:
        name = f"{split}_{label_form(train.multilabel).score}"
        return Score(best=best[name], last=last[name]) if name in last else None

    summary = Summary(
        method=recipe.method["name"],
        seed=recipe.seed,
        seconds=sum(record["seconds"] for record in records),
        epochs=len(records),
        best_epoch=outcome.best_epoch,
        validation=score("validation"),
        test=score("test"),
        labels=summarize_labels(
            train, settled.label_probs, splits.validation, settled.validation_probs, totals
        ).model_copy(
            update={
                **_count_suspects(splits, settled, totals, (of_train, of_held_out)),
                "detection": detection_of(splits, outcome),
                **_count_inputs(splits, outcome),
            }
        ),
        verdict=VerdictSummary(
            level=verdict.level,
            reasons=verdict.reasons,
            agreement=facts.agreement,
            memorised=facts.memorised,
            gain=Interval.model_validate(facts.gain),
            lost_classes=(*facts.halved_classes, *facts.kept_classes),
        ),
        findings=_findings(outcome),
        injected_noise_rate=noise_rate,
        data=DataSummary(
            rows=splits.sizes(),
            classes=train.classes,
            multilabel=train.multilabel,
            input_shape=tuple(train.input_shape),
            input_type=input_type(train.inputs),
        ),
    )
    return summary, settled


def _totals(train: Examples, outcome: Outcome, evidence: RowEvidence, world: World) -> RowTotals | None:
    """Return the totals of single-label data over all ranks."""
    if train.multilabel:
        return None
    totals = row_totals(train, outcome.train_rows(), evidence.suspects(train))
    return totals if outcome.shard is None else totals.reduced(world.all_reduce_sum)


def _count_suspects(
    splits: Splits,
    outcome: Outcome,
    totals: RowTotals | None,
    evidence: tuple[RowEvidence, RowEvidence | None],
) -> dict[str, int]:
    """Return the number of suspects among training and held-out labels, and for multi-label data of their rows.

    ``totals`` are the totals of the training rows of single-label data, because a rank may hold only some of the rows.
    """
    parts = [(splits.validation, outcome.validation_probs, evidence[1])]
    if totals is None:
        parts.append((splits.train, outcome.label_probs, evidence[0]))
    labels, rows = 0 if totals is None else int(totals["suspects"]), 0
    for part, probs, found in parts:
        if part is not None and probs is not None:
            changed = label_form(part.multilabel).read(probs, part.given_labels).changed
            suspect = changed if found is None else changed | found.suspects(part)
            labels, rows = labels + int(suspect.sum()), rows + int(suspect.reshape(len(part), -1).any(dim=1).sum())
    return {"suspects": labels, **({"rows_to_look_at": rows} if totals is None else {})}


def _count_inputs(splits: Splits, outcome: Outcome) -> dict[str, int]:
    """Return the numbers of outliers and of conflicts among training and held-out rows, if they were looked for."""
    flagged = {name: scores >= FLAGGED for name, scores in outcome.outlier_scores.items()}
    parts = {name: getattr(splits, name) for name in ("train", "validation")}
    return {
        what: sum(int(_without_pinned(mask[name].float(), part).sum()) for name, part in parts.items() if name in mask)
        for what, mask in (("outliers", flagged), ("conflicts", outcome.conflicts))
        if flagged
    }


def _findings(outcome: Outcome) -> dict[str, Any]:
    """The noise rate, rounded as in every text, and the findings of the method."""
    judgement, noise = outcome.judgement, outcome.judgement.noise
    rate = {"estimate": round(noise.rate, 3), "low": round(noise.low, 3), "high": round(noise.high, 3)}
    return {"noise_rate": rate, **outcome.findings} if judgement.knows else outcome.findings


def summarize_labels(
    train: Examples,
    label_probs: Tensor,
    held_out: Examples | None = None,
    held_out_probs: Tensor | None = None,
    totals: RowTotals | None = None,
) -> LabelSummary:
    """Count the changed labels and, if clean labels are known, the labels that are right before and after.

    ``totals`` are the totals of the training rows of single-label data, if already known.
    """
    if totals is None and not train.multilabel:
        totals = RowTotals.nothing(train.num_classes).added(train, label_probs, label_probs)
    clean = train.clean_labels
    parts = [(train, label_probs), (held_out, held_out_probs)]
    found: dict[str, Any] = {"rows": len(train), **_count_labels(parts, totals)}
    if train.pinned is not None:
        found["pinned"] = int(train.pinned.sum())
    if totals is not None:
        return LabelSummary(**found, **(totals.correctness(len(train)) if clean is not None else {}))
    if clean is not None:
        entries = read_entries(label_probs, train.given_labels)
        known, before, after = ~clean.isnan(), entries.given == (clean > 0.5), entries.agrees(clean)
        found["correct_before"], found["correct_after"] = (float(one[known].double().mean()) for one in (before, after))
        changed = entries.changed & known
        found["repaired"], found["broken"] = (int((changed & one).sum()) for one in (after, before))
    return LabelSummary(**found)


def _count_labels(parts: Sequence[tuple[Examples | None, Tensor | None]], totals: RowTotals | None) -> dict[str, Any]:
    """Count the labels of training and held-out rows, in this order, that changed.

    ``totals`` are the totals of the training rows of single-label data, because a rank may hold only some of the rows.
    """
    found: dict[str, Any] = {}
    for held_out, (examples, probs) in enumerate(parts):
        if examples is None or probs is None:
            continue
        if totals is not None and not held_out:
            found["changed"] = int(totals["changed"])
            continue
        reading = label_form(examples.multilabel).read(probs, examples.given_labels)
        found |= {"held_out": reading.count} if held_out else {"entries": reading.count}
        found["held_out_changed" if held_out else "changed"] = int(reading.changed.sum())
    return found


def input_type(inputs: Inputs) -> Literal["uint8", "float"]:
    """Return ``uint8`` for images, which are divided by 255, and ``float`` for numbers, which are not scaled."""
    return "uint8" if inputs.dtype == torch.uint8 else "float"


def describe_environment(
    fingerprints: Mapping[str, str], weights: dict[str, str] | None = None, trial: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Return everything besides the recipe that a result may depend on.

    ``fingerprints`` are digests of the keys and labels of each split as loaded (before noise and splitting), and of
    the reviewed labels; ``trial`` are the accuracies by which the network was chosen.
    """
    return {
        "pencil": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "platform": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "threads": torch.get_num_threads(),
        "data_fingerprint": dict(fingerprints),
        "first_weights": weights,
        "trial": trial,
    }


def label_columns_of(examples: Examples, label_probs: Tensor, split: str, evidence: RowEvidence | None) -> pa.Table:
    """Return the columns of the label table for rows of one split."""
    if examples.multilabel:
        return _entry_columns(examples, label_probs, split, evidence)
    if evidence is None:
        seen_once = TrainingDynamics(examples.given_labels, examples.num_classes)
        seen_once.add(torch.arange(len(examples)), label_probs.clamp_min(1e-12).log())
        dynamics = seen_once.evidence()
        issues, suspect = 1 - dynamics.log_given.exp(), torch.zeros(len(examples), dtype=torch.bool)
    else:
        assert isinstance(evidence.dynamics, Evidence)
        dynamics, issues, suspect = evidence.dynamics, evidence.issue_scores, evidence.suspects(examples)
    reading = read_labels(label_probs, examples.given_labels)
    unmet = reading.undecided | (dynamics.visits == 0)  # zero visits: the input could not be read
    names = pa.array(examples.classes)

    def named(labels: Tensor) -> pa.DictionaryArray:
        codes = labels.numpy().astype(np.int32)
        return pa.DictionaryArray.from_arrays(pa.array(codes, mask=codes < 0), names)

    return pa.table(
        {
            **_identity(examples, split),
            "given": named(reading.given),
            "corrected": named(reading.corrected),
            "confidence": reading.confidence.float().numpy(),
            "given_probability": reading.given_probability.float().numpy(),
            "margin": reading.margin.float().numpy(),
            "entropy": reading.entropy.float().numpy(),
            "changed": reading.changed.numpy(),
            "issue_score": _without_pinned(issues, examples).masked_fill(reading.undecided, 0.0).float().numpy(),
            "suspect": (suspect | reading.changed).numpy(),
            "mean_margin": dynamics.margin.masked_fill(unmet, torch.nan).float().numpy(),
            "disagreement": dynamics.disagreement.masked_fill(unmet, torch.nan).float().numpy(),
            "distribution": _matrix(label_probs),
            **_outliers(examples, evidence),
            **_pinned(examples),
            **_candidates(examples, reading.undecided),
        }
    )


def unlabelled_columns(
    examples: Examples, probs: Tensor, like: pa.Schema, outlier_scores: Tensor | None = None
) -> pa.Table:
    """Return the columns of unlabelled rows, in the same format as the other rows."""
    unknown = torch.full((len(examples),), torch.nan)
    no_evidence = Evidence(probs, unknown, unknown, unknown, torch.zeros(len(examples)))
    evidence = RowEvidence(torch.zeros(len(examples)), no_evidence, outlier_scores=outlier_scores)
    columns = label_columns_of(examples, probs, "unlabelled", evidence)
    if "candidates" in like.names:
        nothing = torch.zeros(len(examples), examples.num_classes, dtype=torch.bool)
        columns = columns.append_column("candidates", _present(nothing, examples.classes))
    if "pinned" in like.names:
        columns = columns.append_column("pinned", pa.array(np.zeros(len(examples), dtype=bool)))
    return columns.select(like.names)


def _entry_columns(examples: Examples, label_probs: Tensor, split: str, evidence: RowEvidence | None) -> pa.Table:
    """Return the columns of multi-label data: given classes, corrected classes and all probabilities."""
    entries = read_entries(label_probs, examples.given_labels)
    confidence = entries.confidence.where(entries.known, torch.inf)
    wrong, suspect = _entry_issues(entries, label_probs), entries.changed
    issues = row_issue_scores(wrong)
    if evidence is not None and evidence.entry_scores is not None:
        wrong, issues = evidence.entry_scores, evidence.issue_scores
        suspect = suspect | evidence.suspects(examples)
    return pa.table(
        {
            **_identity(examples, split),
            "given": _present(entries.given, examples.classes),
            "corrected": _present(entries.corrected & entries.known, examples.classes),
            "confidence": confidence.amin(dim=1).nan_to_num(posinf=0.5).float().numpy(),
            "changed": entries.changed.sum(dim=1).int().numpy(),
            "issue_score": _without_pinned(issues, examples).float().numpy(),
            "suspects": _present(suspect, examples.classes),
            "entry_issue_scores": _matrix(_without_pinned(wrong, examples)),
            "given_probabilities": _matrix(examples.given_labels),
            "distribution": _matrix(label_probs),
            **_outliers(examples, evidence),
            **_pinned(examples),
        }
    )


def _entry_issues(entries: EntryReading, label_probs: Tensor) -> Tensor:
    """Return the issue score of each entry, computed from the label probabilities alone."""
    wrong = torch.where(entries.given, 1 - label_probs, label_probs)
    return wrong.where(entries.known, torch.zeros_like(wrong))


def _without_pinned(scores: Tensor, examples: Examples) -> Tensor:
    """Set the issue score of reviewed labels to 0."""
    if examples.pinned is None:
        return scores
    return scores.masked_fill(examples.pinned if scores.ndim == 1 else examples.pinned[:, None], 0.0)


def _identity(examples: Examples, split: str) -> dict[str, Any]:
    return {
        "key": pa.array(examples.keys.tolist(), pa.string()),
        "split": pa.array([split] * len(examples)).dictionary_encode(),
    }


def _outliers(examples: Examples, evidence: RowEvidence | None) -> dict[str, Any]:
    """Return additional columns if outliers and conflicts were looked for; a person's label is neither."""
    if evidence is None or evidence.outlier_scores is None:
        return {}
    scores = _without_pinned(evidence.outlier_scores, examples)
    conflicts = torch.zeros(len(examples)) if evidence.conflicts is None else evidence.conflicts
    return {
        "outlier_score": scores.float().numpy(),
        "outlier": (scores >= FLAGGED).numpy(),
        "conflict": (_without_pinned(conflicts.float(), examples) > 0).numpy(),
    }


def _pinned(examples: Examples) -> dict[str, Any]:
    """Return an additional column if some labels are reviewed."""
    return {} if examples.pinned is None else {"pinned": examples.pinned.numpy()}


def _candidates(examples: Examples, undecided: Tensor) -> dict[str, Any]:
    """Return an additional column if labels were given as distributions: the tied classes of undecided rows."""
    if examples.given_labels.ndim == 1:
        return {}
    return {"candidates": _present(most_probable(examples.given_labels) & undecided[:, None], examples.classes)}


def _present(entries: Tensor, classes: tuple[str, ...]) -> pa.ListArray:
    return list_names(entries.numpy(), classes)


def _matrix(values: Tensor) -> pa.FixedSizeListArray:
    return _as_lists(values.float().contiguous().numpy())


def _as_lists(values: np.ndarray) -> pa.FixedSizeListArray:
    return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])
