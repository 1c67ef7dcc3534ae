"""Which column of a table contains images, as bytes or as paths."""

from pathlib import Path

import pyarrow as pa

from pencil.data.columns import IMAGE_COLUMNS, PATH_COLUMNS, Columns, as_names, usual_column
from pencil.data.roles import is_string
from pencil.errors import DataError, setting


def has_images(table: pa.Table, columns: Columns) -> bool:
    """Return whether a table contains images: a column is set for them, or has a common name and no other role."""
    if columns.path or image_column(table, columns) is not None:
        return True
    return usual_column(without_role(table, columns), PATH_COLUMNS, is_string) is not None


def image_column(table: pa.Table, columns: Columns) -> str | None:
    """Return the column of encoded images: the one that is set, or one with a common name and no other role."""
    if columns.path or columns.image:
        return columns.image
    return usual_column(without_role(table, columns), IMAGE_COLUMNS, is_bytes)


def without_role(table: pa.Table, columns: Columns) -> pa.Table:
    """Return the columns that are listed neither for encoding nor as ignored."""
    named = {name for names in columns.roles.values() for name in names} | {*as_names(columns.ignore)}
    if not named:
        return table
    return table.select([place for place, name in enumerate(table.column_names) if name not in named])


def is_bytes(kind: pa.DataType) -> bool:
    """Return whether a column of this type contains bytes, directly or as stored by the datasets library."""
    if pa.types.is_struct(kind):
        return any(field.name == "bytes" for field in kind)
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def bytes_field(where: Path | str, table: pa.Table, image: str) -> str | None:
    """Return the field of an image column that contains the bytes; None if the column contains them directly."""
    kind = table.schema.field(image).type
    is_struct = pa.types.is_struct(kind)  # as the datasets library stores images
    if not is_bytes(kind) or (is_struct and not is_bytes(kind.field("bytes").type)):
        raise DataError(
            f"column {image!r} of {where} is of type {kind}; expected encoded images as bytes; choose the right column "
            f"with {setting('data.columns.image', 'NAME')}."
        )
    return "bytes" if is_struct else None
