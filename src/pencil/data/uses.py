"""The use of each column of a table, in words: label, key, input, or why it is not used."""

from collections.abc import Mapping

import pyarrow as pa

from pencil.data.columns import LABEL_COLUMNS, PATH_COLUMNS, Columns, ColumnUses, as_names, usual_column
from pencil.data.inputs.base import Inputs
from pencil.data.roles import is_string
from pencil.data.sources.image_columns import image_column, without_role
from pencil.data.sources.key_column import names_rows
from pencil.errors import setting

IGNORED = "listed in data.columns.ignore"
BESIDE_IMAGES = "the images are used instead"
NO_KEYS = ("label", "clean label", "image", "text")
"""Uses of columns that are not proposed as the key, though their cells may be unique."""
SAMPLE = 1000
"""Rows of a column that are compared before all of them are."""


def describe(
    table: pa.Table, columns: Columns, inputs: Inputs, *, labelled: bool = True, has_keys: bool = False
) -> ColumnUses:
    """Return the use of each column of a table.

    Parameters
    ----------
    table
        The table.
    columns
        The role of each column, with the key decided.
    inputs
        The inputs that were read from it.
    labelled
        Whether its labels are in the columns.
    has_keys
        Whether the rows have keys that are not in the table: an index, or their positions in shards.
    """
    uses: dict[str, str] = {}
    label = columns.labels or as_names(usual_column(table, LABEL_COLUMNS)) if labelled else ()
    for use, names in (
        ("label", label),
        ("annotator", as_names(columns.annotator)),
        ("key", as_names(columns.key)),
        ("clean label", as_names(columns.clean)),
        ("split", as_names(columns.split)),
    ):
        uses |= {name: use for name in names if name not in uses}
    unused = dict.fromkeys(as_names(columns.ignore), IGNORED)
    if inputs.records is not None:
        uses |= inputs.records.roles.used
        unused |= inputs.records.roles.unused
    else:
        images = columns.path or image_column(table, columns)
        images = images or usual_column(without_role(table, columns), PATH_COLUMNS, is_string)
        uses |= dict.fromkeys(as_names(images), "image")
    known = {name: uses[name] for name in table.column_names if name in uses}
    others = [name for name in table.column_names if name not in known]
    named_by = _named_by(table, columns, known, has_keys)
    return ColumnUses(known, {name: unused.get(name, BESIDE_IMAGES) for name in others}, columns, named_by)


def _named_by(table: pa.Table, columns: Columns, uses: Mapping[str, str], has_keys: bool) -> str:
    """Return what the keys of the rows are, and if they are just numbers, how a column becomes the key."""
    if columns.key is not None:
        return columns.key
    if has_keys:
        return "the index of the table, or the position in its file"
    images = next((name for name, use in uses.items() if use == "image"), None)
    if images is not None and is_string(table[images].type):
        return f"{images} (the path of the image)"
    possible = (name for name in table.column_names if uses.get(name) not in NO_KEYS)
    unique = (name for name in possible if names_rows(table[name][:SAMPLE]) and names_rows(table[name]))
    hint = f"set one with {setting('data.columns.key', next(unique, 'NAME'))}"
    return f"the row number (no column is recognised as an id; {hint})"
