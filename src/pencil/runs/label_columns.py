"""The columns of ``labels.parquet`` and their types, checked once when a file is read.

A file may come from an untrusted source. After this check every property of `LabelTable` can rely on the types.
"""

import json
from collections.abc import Iterable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from pencil.runs.wording import wording

SINGLE_LABEL = ("key", "split", "given", "corrected", "confidence", "given_probability", "margin", "entropy", "changed",
                "issue_score", "mean_margin", "disagreement", "distribution")  # fmt: skip
MULTILABEL = ("key", "split", "given", "corrected", "confidence", "changed", "issue_score", "given_probabilities",
              "distribution")  # fmt: skip
"""The columns of a whole table; more may follow."""
ALWAYS = ("key", "split", "given")
"""The columns that are always read: they identify a row and the type of its labels."""
PROBS, GIVEN_PROBS, ENTRY_SCORES = "distribution", "given_probabilities", "entry_issue_scores"
TOP = ("top_classes", "top_probabilities")
"""Columns with one number per class. Top-k labels in parts have ``TOP`` instead of ``PROBS``: the indices of the most
probable classes and their probabilities; the other classes share the rest."""
WIDE = (PROBS, GIVEN_PROBS, ENTRY_SCORES, *TOP)
FLOATS = ("confidence", "given_probability", "margin", "entropy", "issue_score", "mean_margin", "disagreement",
          "outlier_score")  # fmt: skip
SUSPECTS = "suspects"
"""The classes of a row of multi-label data whose entries are worth a look; earlier versions did not write it, nor the
issue scores of entries."""
OUTLIERS = ("outlier_score", "outlier", "conflict")
"""Columns about the input of a row; runs of earlier versions do not have them."""
CLASSES = b"classes"


def check_schema(schema: pa.Schema, wanted: Iterable[str] | None) -> pa.Schema:
    """Return the wanted columns (by default all) plus key, split and given, after checking their names and types.

    Probabilities are returned in either form. A missing, repeated or mistyped column is a ValueError.
    """
    names = schema.names
    double = next((name for name in names if names.count(name) > 1), None)
    if double is not None:
        raise ValueError(f"the column {double!r} occurs {names.count(double)} times; expected it once")
    multilabel = "given" in names and pa.types.is_list(schema.field("given").type)
    expected = (MULTILABEL if multilabel else SINGLE_LABEL) if wanted is None else (*ALWAYS, *wanted)
    if PROBS in expected and PROBS not in names and set(TOP) & set(names):
        expected = (*(name for name in expected if name != PROBS), *TOP)
    for name in expected:
        if name not in names:
            form = wording(multilabel).form
            raise ValueError(f"the column {name!r} is missing; expected the columns of {form} data")
    classes = parse_classes(schema.metadata)
    fields = [field for field in schema if wanted is None or field.name in expected]
    for field in fields:
        _check_type(field, multilabel, len(classes))
    return pa.schema(fields, schema.metadata)


def check_values(table: pa.Table) -> None:
    """Raise ValueError for invalid values in the columns of a label file whose types are correct."""
    classes = parse_classes(table.schema.metadata)
    table.validate(full=True)  # detects text that is not UTF-8 and list offsets out of range
    for name in table.column_names:
        multilabel = name == "given" and pa.types.is_list(table.schema.field(name).type)
        filled = {*SINGLE_LABEL, *MULTILABEL, *TOP, "pinned", "candidates", "suspect", SUSPECTS, *OUTLIERS}
        may_be_empty = name == "given" and not multilabel  # if annotators disagree, or there is no label
        if name in filled and not may_be_empty and _nulls(table[name]):
            raise ValueError(f"the column {name!r} has empty cells; expected a value in each cell")
    for name in {"given", "corrected", "candidates", SUSPECTS}.intersection(table.column_names):
        _check_classes(table[name], name, classes)
    if TOP[0] in table.column_names:
        places = pc.min_max(pc.list_flatten(table[TOP[0]]))
        if table.num_rows and not 0 <= places["min"].as_py() <= places["max"].as_py() < len(classes):
            raise ValueError(f"the column {TOP[0]!r} contains an unknown class; expected 0 to {len(classes) - 1}")


def parse_classes(metadata: dict[bytes, bytes] | None) -> tuple[str, ...]:
    """Return the class names in the metadata of a table; raise ValueError if there are none."""
    text = (metadata or {}).get(CLASSES)
    if text is None:
        raise ValueError("there are no class names in its metadata")
    try:
        classes = json.loads(text)
    except RecursionError:
        classes = None
    if not isinstance(classes, list) or not classes or not all(isinstance(name, str) for name in classes):
        raise ValueError("the class names in its metadata are not a list of names")
    if len(set(classes)) < len(classes):
        raise ValueError("the class names in its metadata are not unique")
    try:
        "".join(classes).encode()
    except UnicodeEncodeError:
        raise ValueError("the class names in its metadata are not valid text (lone surrogate)") from None
    return tuple(classes)


def _check_type(field: pa.Field, multilabel: bool, classes: int) -> None:
    name, kind, expected = field.name, field.type, ""
    if name in ("key", "split") and not (pa.types.is_string(kind) if name == "key" else _is_text(kind)):
        expected = "text"
    elif name in ("given", "corrected", "candidates", SUSPECTS):
        lists = multilabel or name in ("candidates", SUSPECTS)
        expected = "" if (_is_texts(kind) if lists else _is_text(kind)) else "lists of text" if lists else "text"
    elif name in FLOATS and not pa.types.is_float32(kind):
        expected = "float"
    elif name == "changed" and not (pa.types.is_int32(kind) if multilabel else pa.types.is_boolean(kind)):
        expected = "int32" if multilabel else "bool"
    elif name in ("pinned", "suspect", "outlier", "conflict") and not pa.types.is_boolean(kind):
        expected = "bool"
    elif name in (PROBS, GIVEN_PROBS, ENTRY_SCORES) and not kind.equals(pa.list_(pa.float32(), classes)):
        expected = f"lists of {classes} floats, one per class"
    elif name in TOP:
        number = pa.int32() if name == TOP[0] else pa.float32()
        fits = pa.types.is_fixed_size_list(kind) and kind.value_type == number and 0 < kind.list_size <= classes
        expected = "" if fits else f"lists of {number}, at most one per class"
    if expected:
        raise ValueError(f"the column {name!r} has type {kind}; expected {expected}")


def _check_classes(column: pa.ChunkedArray, name: str, classes: Sequence[str]) -> None:
    for chunk in column.chunks:
        values = chunk.flatten() if pa.types.is_list(chunk.type) else chunk
        found = values.dictionary if pa.types.is_dictionary(values.type) else pc.unique(values)
        unknown = [value for value in found.to_pylist() if value is not None and value not in classes]
        if unknown:
            raise ValueError(f"the column {name!r} names the class {unknown[0]!r}; expected one of the {len(classes)}")


def _nulls(column: pa.ChunkedArray) -> int:
    """Return the number of empty cells, including those inside lists."""
    inside = 0
    for chunk in column.chunks:
        if pa.types.is_list(chunk.type) or pa.types.is_fixed_size_list(chunk.type):
            inside += chunk.flatten().null_count
        elif pa.types.is_dictionary(chunk.type):
            inside += chunk.dictionary.null_count
    return int(column.null_count) + inside


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind.value_type if pa.types.is_dictionary(kind) else kind))


def _is_texts(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) and pa.types.is_string(kind.value_type))
