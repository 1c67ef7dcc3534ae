"""A person's decisions merged into the labels of a run."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa

from pencil.arrow_arrays import matrix
from pencil.decisions import ENTRY_KINDS, Decision, presence
from pencil.errors import RunError
from pencil.runs.entry_columns import with_entries
from pencil.runs.label_columns import ENTRY_SCORES, PROBS, SUSPECTS, TOP
from pencil.runs.label_table import LabelTable


def merge_decisions(labels: LabelTable, decisions: Iterable[Decision]) -> LabelTable:
    """Return the table with the person's labels; see :meth:`LabelTable.merge_decisions`."""
    decisions = list(decisions)
    chosen = {decision.where: decision.label for decision in decisions if decision.label is not None}
    rows = labels.find_rows(chosen)
    for key, split in chosen.keys() - rows.keys():
        raise RunError(
            f"a review names {key!r} ({split}), which is not in the label table; expected reviews of this run."
        )
    reviewed = np.zeros(labels.num_rows, dtype=bool)
    reviewed[list(rows.values())] = True
    by_row = {row: (where[0], chosen[where]) for where, row in rows.items()}
    picked = np.array(sorted(by_row), dtype=np.int64)
    present = presence((by_row[int(row)] for row in picked), labels.classes, multilabel=labels.multilabel)
    merged = (_merge_sets if labels.multilabel else _merge_classes)(labels, picked, present)
    table = labels.table
    if "outlier" in table.column_names:
        nothing = labels.find_rows(one.where for one in decisions if one.decision == "none")
        merged["outlier"] = _changed_at(table["outlier"], picked, False)
        merged["outlier"] = _changed_at(pa.chunked_array([merged["outlier"]]), np.array([*nothing.values()], int), True)
        merged["conflict"] = _changed_at(table["conflict"], picked, False)
    merged["confidence"] = _changed_at(table["confidence"], picked, 1.0)
    for name, values in merged.items():
        table = table.set_column(table.column_names.index(name), table.schema.field(name), values)
    merged_rows = LabelTable(table.append_column("reviewed", pa.array(reviewed)))
    answers = [decision for decision in decisions if decision.decision in ENTRY_KINDS]
    return _merge_entries(merged_rows, answers) if answers else merged_rows


def _merge_entries(labels: LabelTable, answers: list[Decision]) -> LabelTable:
    """Return the table of multi-label data with the answers about single entries; their rows are not reviewed."""
    code = {name: number for number, name in enumerate(labels.classes)}
    rows_of = labels.find_rows(answer.where for answer in answers)
    for answer in answers:
        if not labels.multilabel or answer.where not in rows_of or answer.entry not in code:
            raise RunError(
                f"a review asks whether {answer.entry!r} is in {answer.key!r} ({answer.split}), which is not an entry "
                "of the label table; expected reviews of this run."
            )
    rows = np.array(sorted(set(rows_of.values())), dtype=np.int64)
    part = labels.take(rows)
    given, present, wrong, suspect = part.given_probs, part.probs.copy(), part.entry_scores.copy(), part.suspect_entries
    for answer in answers:
        at = int(np.searchsorted(rows, rows_of[answer.where])), code[answer.entry]
        present[at] = answer.decision == "present"
        suspect[at] = wrong[at] = present[at] != (given[at] > 0.5)
    return LabelTable(with_entries(labels, rows, present, wrong, suspect))


def _merge_classes(labels: LabelTable, picked: np.ndarray, present: np.ndarray) -> dict[str, Any]:
    table, names = labels.table, pa.array(labels.classes, pa.string())
    chosen = present.argmax(axis=1)
    codes = labels.corrected_codes.copy()
    codes[picked] = chosen
    given = labels.given_codes[picked]
    same, differs = given == chosen, (given != chosen) & (given >= 0)
    return {
        "corrected": pa.DictionaryArray.from_arrays(pa.array(codes), names).cast(table.schema.field("corrected").type),
        "given_probability": _changed_at(table["given_probability"], picked, np.where(given < 0, np.nan, same)),
        "margin": _changed_at(table["margin"], picked, 1.0),
        "entropy": _changed_at(table["entropy"], picked, 0.0),
        "changed": _changed_at(table["changed"], picked, differs),
        "issue_score": _changed_at(table["issue_score"], picked, differs),
        **({"suspect": _changed_at(table["suspect"], picked, differs)} if "suspect" in table.column_names else {}),
        **_chosen_probs(labels, picked, present),
    }


def _chosen_probs(labels: LabelTable, picked: np.ndarray, present: np.ndarray) -> dict[str, Any]:
    """The distributions with all probability on the person's class."""
    if PROBS in labels.column_names:
        return {PROBS: _changed_probs(labels, picked, present)}
    width = labels.schema.field(TOP[0]).type.list_size
    places, kept = (matrix(labels[name], width).copy() for name in TOP)
    chosen = present.argmax(axis=1)
    found = places[picked] == chosen[:, None]
    place = found.argmax(axis=1)  # the first column if the class is not among the most probable
    kept[picked] = 0.0
    kept[picked, place], places[picked, place] = 1.0, chosen
    return {
        name: pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), type=labels[name].type)
        for name, values in zip(TOP, (places, kept), strict=True)
    }


def _merge_sets(labels: LabelTable, picked: np.ndarray, present: np.ndarray) -> dict[str, Any]:
    part = labels.take(picked)
    given, probs = part.given_probs, part.probs
    known = ~np.isnan(given)
    different = known & (present != (given > 0.5))
    merged = {
        "corrected": _changed_lists(labels, "corrected", picked, present),
        "changed": _changed_at(labels["changed"], picked, different.sum(axis=1)),
        "issue_score": _changed_at(labels["issue_score"], picked, different.any(axis=1)),
        "distribution": _changed_probs(labels, picked, np.where(known | present, present, probs)),
    }
    if SUSPECTS in labels.column_names:
        merged[SUSPECTS] = _changed_lists(labels, SUSPECTS, picked, different)
        merged[ENTRY_SCORES] = _changed_probs(labels, picked, different, ENTRY_SCORES)
    return merged


def _changed_lists(labels: LabelTable, column: str, picked: np.ndarray, present: np.ndarray) -> pa.Array:
    """The lists of classes of a column, with those that are present in the picked rows."""
    lists, names = labels[column].combine_chunks(), np.array(labels.classes, dtype=object)
    new = pa.array([names[row].tolist() for row in present], lists.type)
    order = np.arange(labels.num_rows)
    order[picked] = labels.num_rows + np.arange(len(picked))
    return pa.concat_arrays([lists, new]).take(pa.array(order))


def _changed_at(column: pa.ChunkedArray, picked: np.ndarray, values: Any) -> pa.Array:
    copy = column.to_numpy().copy()
    copy[picked] = values
    return pa.array(copy, column.type)


def _changed_probs(
    labels: LabelTable, picked: np.ndarray, values: np.ndarray, column: str = PROBS
) -> pa.FixedSizeListArray:
    copy = matrix(labels[column], len(labels.classes)).copy()
    copy[picked] = values
    return pa.FixedSizeListArray.from_arrays(pa.array(copy.ravel()), type=labels[column].type)
