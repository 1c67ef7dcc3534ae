"""The roles of table columns: the keys of ``data.columns``, and the common names of columns that are not set."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
from pydantic import BaseModel, ConfigDict

from pencil.data.given.given_labels import shorten
from pencil.data.roles import ROLES, Role
from pencil.errors import DataError, can_set, setting
from pencil.terminal import agreed

PATH_COLUMNS = ("path", "file", "filename", "file_name", "image_path", "filepath")
IMAGE_COLUMNS = ("image", "image_bytes", "bytes", "img", "png", "jpg")
LABEL_COLUMNS = ("label", "labels", "class", "target", "category", "y", "fine_label")
NOT_INPUTS = ("label", "annotator", "probabilities", "indicators", "clean", "split", "ignore")
"""Keys of columns that new inputs do not need."""
OF_INPUTS = ("path", "image", "numbers", "categories", "text", "vectors", "ignore")
"""Keys of columns that define the inputs."""
Names = str | tuple[str, ...] | None
MOST_NAMED = 12
"""Maximum number of columns that a message lists."""


class Columns(BaseModel):
    """The role of each column of a table. A role that is not set is searched under common column names.

    Parameters
    ----------
    path
        Paths of image files.
    image
        Encoded images as bytes.
    numbers, categories, text, vectors
        Columns to learn from if there are no images: one or several of each kind. Columns that are not listed are
        classified by their name, type and values. Several texts are joined.
    ignore
        Columns that are not used.
    label
        One column (classes, distributions, or lists of the classes present), or one column per annotator; their votes
        become a distribution.
    annotator
        The column that names the annotator, if the table has one line per vote; lines with the same key or path are
        one row.
    probabilities
        One column per class instead of ``label``, which sum to 1 in every row.
    indicators
        One column per class of multi-label data instead of ``label``, with values from 0 to 1.
    key
        A stable, unique name for each row; by default its path, a column of unique ids, or the row number.
    clean
        Labels known to be right: one column like ``label``, or one per class beside ``indicators``.
    split
        The split of each row: train, validation or test.
    numbering
        How rows without a key are numbered: "lines" as in an editor, where the first row below a header is 2 (from 0
        without a header, as in Parquet), or "places", from 0. A run stores it; if it is set, no column is searched for
        keys.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: str | None = None
    image: str | None = None
    numbers: Names = None
    categories: Names = None
    text: Names = None
    vectors: Names = None
    ignore: Names = None
    label: str | tuple[str, ...] | None = None
    annotator: str | None = None
    probabilities: tuple[str, ...] | None = None
    indicators: tuple[str, ...] | None = None
    key: str | None = None
    clean: str | tuple[str, ...] | None = None
    split: str | None = None
    numbering: Literal["lines", "places"] | None = None

    @property
    def roles(self) -> dict[Role, tuple[str, ...]]:
        """The listed columns to encode, by role."""
        return {role: as_names(getattr(self, key)) for role, key in ROLES.items()}

    @property
    def encoded(self) -> bool:
        """Whether any columns to encode are listed."""
        return any(self.roles.values())

    @property
    def labels(self) -> tuple[str, ...]:
        """The listed label columns."""
        return (*as_names(self.label), *as_names(self.probabilities), *as_names(self.indicators))

    @property
    def beside_inputs(self) -> tuple[str, ...]:
        """The listed columns that are not inputs: labels, keys, splits."""
        others = (self.annotator, self.key, self.clean, self.split)
        return (*self.labels, *(name for value in others for name in as_names(value)))


@dataclass(frozen=True)
class ColumnUses:
    """The use of each column of a table: "label", "key", "clean label", "split", "image" or a role; or why it has none.

    ``columns`` has the key decided, which ``named_by`` describes.
    """

    used: Mapping[str, str]
    unused: Mapping[str, str]
    columns: Columns
    named_by: str

    def of(self, use: str) -> tuple[str, ...]:
        """Return the columns with this use."""
        return tuple(name for name, one in self.used.items() if one == use)

    def with_key(self, columns: Columns) -> Columns:
        """Return other columns with the key that was decided for this table."""
        return columns.model_copy(update={"key": self.columns.key, "numbering": self.columns.numbering})

    def with_found(self, columns: Columns) -> Columns:
        """Return other columns with the key that was decided and the label column that was found in this table."""
        label, columns = self.of("label"), self.with_key(columns)
        return columns if columns.labels or len(label) != 1 else columns.model_copy(update={"label": label[0]})


class UnknownColumnError(DataError):
    """Columns are listed that a table does not have: ``names``."""

    names: tuple[str, ...] = ()


def as_names(value: Names) -> tuple[str, ...]:
    """Return one name, several or none as a tuple."""
    return (value,) if isinstance(value, str) else value or ()


def refuse_repeated_columns(where: Path | str, names: Sequence[str]) -> None:
    """Raise if two columns have the same name."""
    repeated = next((name for name, count in Counter(names).items() if count > 1), None)
    if repeated is not None:
        raise DataError(f"{where} has the column {repeated!r} more than once; expected it once; rename one of them.")


def refuse_unknown(where: Path | str, table: pa.Table, columns: Columns) -> None:
    """Raise if ``columns`` lists a column that the table does not have."""
    known = set(table.column_names)
    named: Iterable[tuple[str, Any]] = columns.model_dump(exclude={"numbering"}).items()
    missing = {name: use for use, value in named for name in as_names(value) if name not in known}
    if missing:
        key = f"data.columns.{next(iter(missing.values()))}"
        remedy = f"name another one with {setting(key, 'NAME')}, or add it" if can_set() else "add what is missing"
        error = UnknownColumnError(
            f"{where} has no {agreed(len(missing), 'column', 'columns')} {_list(list(missing), 'and')}; it has "
            f"{_list(table.column_names)}; {remedy} to the table."
        )
        error.names = tuple(missing)
        raise error


def find_column(where: Path | str, table: pa.Table, usual: Sequence[str], what: str, *keys: str) -> str:
    """Return the first column with a common name; ``what`` and the recipe ``keys`` describe it in the message."""
    found = usual_column(table, usual)
    if found is None:
        remedy = f"name it with {' or '.join(setting(key, 'NAME') for key in keys)}"
        raise DataError(
            f"{where} has no {what} column with a common name ({', '.join(usual)}); it has "
            f"{_list(table.column_names)}; {remedy if can_set() else 'add such a column, or rename one'}."
        )
    return found


def usual_column(table: pa.Table, names: Sequence[str], fits: Any = lambda _kind: True) -> str | None:
    """Return the first column with one of these names and a matching type; None if there is none."""
    fitting = [field.name for field in table.schema if field.name.lower() in names and fits(field.type)]
    return usual_name(fitting, names)


def usual_name(names: Sequence[str], usual: Sequence[str]) -> str | None:
    """Return the first of these names that is a common one, ignoring case; None if there is none."""
    by_name = {name.lower(): name for name in names}
    return next((by_name[name] for name in usual if name in by_name), None)


def taken_names(columns: Columns, names: Sequence[str], *, labelled: bool = True) -> list[str]:
    """Return the columns that are not inputs: labels, keys, splits, and columns to ignore.

    Without ``labelled``, a column with a common label name is treated like any other.
    """
    usual = usual_name(names, LABEL_COLUMNS) if labelled and columns.label is None else None
    return [*as_names(usual), *columns.beside_inputs, *as_names(columns.ignore)]


def label_names(columns: Columns, names: Sequence[str]) -> tuple[str, ...]:
    """Return the columns of a table that contain classes, as names or indices: given and clean labels, not
    probabilities.

    Parameters
    ----------
    columns
        The role of each column.
    names
        The columns of the table, among which an unset label is searched.
    """
    if columns.probabilities is not None or columns.indicators is not None:
        return ()
    label = columns.label or usual_name(names, LABEL_COLUMNS)
    clean = columns.clean if isinstance(columns.clean, str) else None
    return tuple(dict.fromkeys((*as_names(label), *as_names(clean))))


def _list(names: Sequence[str], last: str = "") -> str:
    shown = list(map(repr, names))
    if last and 1 < len(shown) <= MOST_NAMED:
        return f"{', '.join(shown[:-1])} {last} {shown[-1]}"
    return shorten(shown, MOST_NAMED)
