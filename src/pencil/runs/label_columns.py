"""The columns of ``labels.parquet``: what each must be, checked once when a file is read.

A file may come from anybody. After this check every property of `LabelTable` finds the types that it works with.
"""

import json
from collections.abc import Iterable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

SINGLE_LABEL = ("key", "split", "given", "corrected", "confidence", "given_probability", "margin", "entropy", "changed",
                "issue_score", "mean_margin", "disagreement", "distribution")  # fmt: skip
MULTILABEL = ("key", "split", "given", "corrected", "confidence", "changed", "issue_score", "given_probabilities",
              "distribution")  # fmt: skip
"""The columns of a whole table; more may follow."""
FLOATS = ("confidence", "given_probability", "margin", "entropy", "issue_score", "mean_margin", "disagreement",
          "audited_confidence")  # fmt: skip
CLASSES = b"classes"


def check_columns(table: pa.Table, wanted: Iterable[str] | None) -> None:
    """Check names, types and values of a table that was read from a file.

    Parameters
    ----------
    table : pyarrow.Table
        The table.
    wanted : iterable of str, optional
        The columns that were asked for; all by default.

    Raises
    ------
    ValueError
        With what was seen and what was expected.
    """
    names = table.column_names
    double = next((name for name in names if names.count(name) > 1), None)
    if double is not None:
        raise ValueError(f"the column {double!r} is there {names.count(double)} times; expected it once")
    multilabel = "given" in names and pa.types.is_list(table.schema.field("given").type)
    for name in (MULTILABEL if multilabel else SINGLE_LABEL) if wanted is None else ("key", "split", "given", *wanted):
        if name not in names:
            raise ValueError(f"there is no column {name!r}; expected the columns of {table_of(multilabel)}")
    classes = read_classes(table.schema.metadata)
    if not table.num_rows:
        raise ValueError("it has no rows")
    table.validate(full=True)  # text that is not UTF-8, lists that end outside
    for name in names:
        _check_type(table, name, multilabel, len(classes))
    for name in {"given", "corrected", "candidates"}.intersection(names):
        _check_classes(table[name], name, classes)


def read_classes(metadata: dict[bytes, bytes] | None) -> tuple[str, ...]:
    """Return the class names in the metadata of a table; a ValueError where there are none."""
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
        raise ValueError("the class names in its metadata are not different from each other")
    try:
        "".join(classes).encode()
    except UnicodeEncodeError:
        raise ValueError("the class names in its metadata are not text (half a character)") from None
    return tuple(classes)


def table_of(multilabel: bool) -> str:
    """Return what a table is called in messages."""
    return "multi-label data" if multilabel else "single-label data"


def _check_type(table: pa.Table, name: str, multilabel: bool, classes: int) -> None:
    kind, expected = table.schema.field(name).type, ""
    if name in ("key", "split") and not (pa.types.is_string(kind) if name == "key" else _is_text(kind)):
        expected = "text"
    elif name in ("given", "corrected", "candidates"):
        lists = multilabel or name == "candidates"
        expected = "" if (_is_texts(kind) if lists else _is_text(kind)) else "lists of text" if lists else "text"
    elif name in FLOATS and not pa.types.is_float32(kind):
        expected = "float"
    elif name == "changed" and not (pa.types.is_int32(kind) if multilabel else pa.types.is_boolean(kind)):
        expected = "int32" if multilabel else "bool"
    elif name == "pinned" and not pa.types.is_boolean(kind):
        expected = "bool"
    elif name in ("distribution", "given_probabilities") and not kind.equals(pa.list_(pa.float32(), classes)):
        expected = f"lists of {classes} floats, one for each class"
    if expected:
        raise ValueError(f"the column {name!r} has the type {kind}; expected {expected}")
    filled = {*SINGLE_LABEL, *MULTILABEL, "pinned", "candidates", "audited_confidence"}
    may_be_empty = not multilabel and name == "given"  # where annotators disagree, or there is no label
    if name in filled and not may_be_empty and _nulls(table[name]):
        raise ValueError(f"the column {name!r} has empty cells; expected a value in each")


def _check_classes(column: pa.ChunkedArray, name: str, classes: Sequence[str]) -> None:
    for chunk in column.chunks:
        values = chunk.flatten() if pa.types.is_list(chunk.type) else chunk
        found = values.dictionary if pa.types.is_dictionary(values.type) else pc.unique(values)
        unknown = [value for value in found.to_pylist() if value is not None and value not in classes]
        if unknown:
            raise ValueError(f"the column {name!r} names the class {unknown[0]!r}; expected one of the {len(classes)}")


def _nulls(column: pa.ChunkedArray) -> int:
    """Return the number of empty cells, those inside of lists included."""
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
