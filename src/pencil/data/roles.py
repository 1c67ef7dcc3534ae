"""The role of each table column: number, category, text or vector; as set, or inferred from name, type and values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from pencil.data.given.given_labels import shorten
from pencil.data.given.same_values import are_truth
from pencil.data.inputs.images import SUFFIXES
from pencil.errors import DataError, setting

Role = Literal["number", "category", "text", "vector"]
ROLES: dict[Role, str] = {"number": "numbers", "category": "categories", "text": "text", "vector": "vectors"}
"""The roles of columns to encode, and the keys of ``data.columns`` that list them."""
TEXT_COLUMNS = (
    "text", "title", "subject", "sentence", "sentence1", "sentence2", "premise", "hypothesis", "question", "answer",
    "review", "comment", "body", "description", "summary", "abstract", "content", "message", "tweet", "post",
    "headline", "utterance", "document", "passage",
)  # fmt: skip
NUMBER_NAMES = ("", "id", "index", "idx", "row", "rowid", "row_id", "no", "nr", "number", "key", "uid", "uuid")
MORE_ID_NAMES = ("guid", "ticket", "ticket_number", "case_number", "record", "sku")
"""Names under which numbers are ids only if they are unique in every row."""
INDEX_NAMES = ("", "index", "idx", "row", "rowid", "row_id")
"""Names among them that number rows without saying what they are."""
SPLIT_COLUMNS = ("split", "fold", "subset", "partition")
MISSING = ("", "na", "n/a", "#n/a", "nan", "null", "none", "?")
"""Cells, in lower case, that mark a missing number or category."""
MIN_WORDS, MIN_IDEOGRAPHS = 4, 8
"""Strings are text if they have more words than this on average, or more characters in scripts without spaces."""
FEW_LEVELS = 10
"""Up to this many different strings are categories, however few rows there are."""
ROWS_PER_LEVEL = 4
"""More are categories if each has at least this many rows on average."""
SAMPLE = 10_000
"""Maximum number of rows used to classify strings."""


class Unused(NamedTuple):
    """Why a column is not used: an unsupported type, or nothing to learn from."""

    reason: str


@dataclass(frozen=True)
class Roles:
    """The role of every used column, in table order, and why others are not used."""

    used: Mapping[str, Role]
    unused: Mapping[str, str] = field(default_factory=dict)

    def of(self, role: Role) -> tuple[str, ...]:
        """Return the columns with this role."""
        return tuple(name for name, one in self.used.items() if one == role)

    def by_key(self) -> dict[str, tuple[str, ...]]:
        """Return the columns as the keys of ``data.columns`` list them."""
        return {key: self.of(role) for role, key in ROLES.items()}

    def describe(self) -> str:
        """Return one line that lists the role of each column."""
        taken = [f"{key}: {shorten(names, 8)}" for key, names in self.by_key().items() if names]
        left = [f"{name} ({reason})" for name, reason in self.unused.items()]
        return "; ".join([*taken, *([f"not used: {shorten(left, 8)}"] if left else [])])


def find_roles(
    where: Path | str, table: pa.Table, named: Mapping[Role, Sequence[str]], taken: Sequence[str], *, closed: bool
) -> Roles:
    """Decide the role of each column: ``named`` by the user, or by name, type and values unless the list is ``closed``.

    ``taken`` are columns with another role: labels, keys, splits, or columns to ignore.
    """
    roles = _named_roles(named, taken)
    used, unused = dict[str, Role](), dict[str, str]()
    for name in table.column_names:
        found: Role | Unused | None = roles.get(name)
        if found is None and name not in taken and not closed:
            _refuse_image_names(where, name, table[name])
            found = judge_column(name, table[name])
        if isinstance(found, Unused):
            unused[name] = found.reason
        elif found is not None:
            used[name] = found
    if not used:
        seen = [f"{name!r} ({unused.get(name, 'label, key, split or ignored')})" for name in table.column_names]
        raise DataError(
            f"{where} has no column to learn from; it has {shorten(seen, 12)}; expected images, text, numbers, "
            f"categories or vectors; set them, for example texts with {setting('data.columns.text', 'NAME')}, "
            "images with path or image, others with numbers, categories or vectors."
        )
    return Roles(used, unused)


def _named_roles(named: Mapping[Role, Sequence[str]], taken: Sequence[str]) -> dict[str, Role]:
    roles: dict[str, Role] = {}
    for role, names in named.items():
        for name in names:
            if name in roles or name in taken:
                other = roles.get(name, "label, key, split, clean or ignored column")
                raise DataError(
                    f"data.columns lists {name!r} as {role} and as {other}; expected one of them; fix data.columns."
                )
            roles[name] = role
    return roles


def judge_column(name: str, column: Any) -> Role | Unused:
    """Return the role of a column from its name, type and values, or why it is not used."""
    kind = column.type
    if column.null_count == len(column):
        return Unused("empty")
    if _is_row_number(name, column):
        return Unused("row numbers")
    if is_string(kind):
        truth = are_truth(column.slice(0, SAMPLE).cast(pa.large_string()))
        return "category" if truth else _judge_strings(name, column)
    kinds: dict[Role, bool] = {
        "category": pa.types.is_dictionary(kind) or pa.types.is_boolean(kind),
        "vector": is_list(kind) and _is_numeric(kind.value_type),
        "number": _is_numeric(kind) or pa.types.is_temporal(kind),  # days, or seconds
    }
    return next((role for role, holds in kinds.items() if holds), Unused(f"of type {kind}"))


def _refuse_image_names(where: Path | str, name: str, column: Any) -> None:
    """Raise if a column contains names of image files, because the user must decide whether to read them."""
    if not is_string(column.type):
        return
    cells = column.slice(0, SAMPLE).drop_null().unique().to_pylist()
    if cells and all(cell.lower().endswith(SUFFIXES) for cell in cells):
        raise DataError(
            f"column {name!r} of {where} names images, such as {cells[0][:80]!r}; expected a common name, or a column "
            f"that is set; train on the images with {setting('data.columns.path', name)}, or ignore them with "
            f"{setting('data.columns.ignore', name)}."
        )


def _judge_strings(name: str, column: Any) -> Role | Unused:
    given = column.drop_null()
    sample = given.slice(0, SAMPLE).cast(pa.large_string())
    if name.lower() in TEXT_COLUMNS:
        return "text"
    if name.lower() in SPLIT_COLUMNS:
        return Unused(f"looks like a split; split by it with {setting('data.columns.split', name)}")
    words = pc.mean(pc.list_value_length(pc.utf8_split_whitespace(pc.utf8_trim_whitespace(sample)))).as_py() or 0
    letters, size = pc.sum(pc.utf8_length(sample)).as_py(), pc.sum(pc.binary_length(sample)).as_py()
    ideographs = size > 2 * letters and letters > MIN_IDEOGRAPHS * len(sample)
    levels = pc.count_distinct(given).as_py()
    if (words > MIN_WORDS or ideographs) and levels > FEW_LEVELS:
        return "text"
    if _are_numbers(sample):
        return "number"
    if levels <= FEW_LEVELS or levels * ROWS_PER_LEVEL <= len(given):
        return "category"
    return Unused(f"{levels:,} different values in {len(given):,} rows")


def _are_numbers(strings: Any) -> bool:
    """Return whether these strings are numbers, apart from missing markers."""
    known = strings.filter(pc.invert(is_missing(strings)))
    if not len(known):
        return False
    try:
        pc.utf8_trim_whitespace(known).cast(pa.float64())
    except pa.ArrowInvalid:
        return False
    return True


def is_missing(strings: Any) -> Any:
    """Mark strings that stand for a missing value."""
    return pc.is_in(pc.utf8_lower(pc.utf8_trim_whitespace(strings)), value_set=pa.array(MISSING, strings.type))


def is_id_name(name: str) -> bool:
    """Return whether a column has a common name of ids: id, ticket_id, PassengerId, ticket."""
    plain = name.strip()
    in_words = _names_numbers(plain) or plain.lower() in MORE_ID_NAMES
    return in_words or (plain.endswith(("Id", "ID")) and plain[:-2].isidentifier())


def _names_numbers(name: str) -> bool:
    plain = name.lower().strip()
    return plain in NUMBER_NAMES or plain.startswith("unnamed:") or plain.endswith(("_id", " id"))


def _is_row_number(name: str, column: Any) -> bool:
    """Return whether a column numbers rows: integers under a name such as id, or without a name.

    A few repeated or missing numbers do not matter; a number shared by many rows may carry information.
    """
    if not _names_numbers(name):
        return False
    known = column.drop_null()
    return _are_whole(known) and pc.count_distinct(known).as_py() * ROWS_PER_LEVEL > len(known)


def _are_whole(numbers: Any) -> bool:
    """Return whether these are integers; data frames store integer columns with gaps as floats."""
    if pa.types.is_floating(numbers.type):
        return bool(pc.all(pc.equal(numbers, pc.floor(numbers))).as_py())
    return bool(pa.types.is_integer(numbers.type))


def is_string(kind: pa.DataType) -> bool:
    """Return whether this is a string type."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def is_list(kind: pa.DataType) -> bool:
    """Return whether this is a list type."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _is_numeric(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))
