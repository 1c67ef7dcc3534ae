"""Copies a text table byte for byte, except for replaced cells."""

import codecs
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import BinaryIO

from pencil.data.sources.delimited import MARKS, Dialect
from pencil.errors import DataError

BLOCK = 2**22
"""Number of bytes decoded at a time."""
LINE_END = r"(?:\r\n|\n|\r)"

Change = Callable[[int, Sequence[str]], Sequence[str | None]]
"""Called with a row number and its cells; returns their new values, None for unchanged cells."""


def rewrite_cells(
    path: Path, dialect: Dialect, columns: Sequence[int], width: int, change: Change, target: BinaryIO
) -> None:
    """Write a table of ``width`` columns to a stream with cells of these columns changed, and no other byte.

    A quoted cell stays quoted; others are quoted if necessary. Lines with too many or too few cells are copied;
    like the table reader, this function counts them but not empty lines.
    """
    rows = _Rows(dialect.delimiter, columns, width)
    quoted = partial(_as_cell, delimiter=dialect.delimiter)
    with path.open("rb") as source:
        mark, encoding = _find_mark(source.read(4), dialect.encoding)
        source.seek(len(mark))
        target.write(mark)
        number = -1  # the header
        for text, spans in rows.find(source, encoding, path):
            done, pieces = 0, []
            for cells in spans:
                values = [] if cells is None or number < 0 else change(number, [_value_of(text[a:b]) for a, b in cells])
                for (start, end), value in zip(cells or (), values, strict=False):
                    if value is not None:
                        pieces += [text[done:start], quoted(text[start:end], value)]
                        done = end
                number += 1
            try:
                target.write("".join([*pieces, text[done:]]).encode(encoding))
            except UnicodeEncodeError as error:
                raise DataError(
                    f"{path} is encoded as {encoding}, which cannot encode {error.object[error.start : error.end]!r} "
                    "of a class name; save the table as UTF-8 and train again."
                ) from error


class _Rows:
    """Finds rows in text, and the positions of some cells in each row; rows of the wrong length have none."""

    def __init__(self, delimiter: str, columns: Sequence[int], width: int):
        between = re.escape(delimiter)
        plain = rf"[^{between}\r\n]*+"
        cell = rf'(?:"(?:[^"]++|"")*+"{plain}|(?!"){plain})'
        wanted = [f"({cell})" if place in columns else cell for place in range(width)]
        self.exact, self.any = between.join(wanted), f"{cell}(?:{between}{cell})*+"

    def find(
        self, source: BinaryIO, encoding: str, path: Path
    ) -> Iterator[tuple[str, list[list[tuple[int, int]] | None]]]:
        """Yield pieces of the text, and for each of their rows the places of its cells."""
        decoder, rest, content = codecs.getincrementaldecoder(encoding)(), "", b" "
        while content:
            content = source.read(BLOCK)
            text = rest + decoder.decode(content, final=not content)
            spans, end = self._split(text, whole=not content)
            yield text[:end], spans
            rest = text[end:]
        if rest:
            raise DataError(f"{path} has an unclosed quote in {rest[:40]!r}; close it and train again.")

    def _split(self, text: str, *, whole: bool) -> tuple[list[list[tuple[int, int]] | None], int]:
        """Return the cells of all rows that end in the text, and where the last of them ends."""
        end = rf"(?:{LINE_END}|\Z)" if whole else LINE_END
        empty, exact, other = (re.compile(one) for one in (LINE_END, self.exact + end, self.any + end))
        spans: list[list[tuple[int, int]] | None] = []
        at = 0
        while at < len(text):
            found = empty.match(text, at) or exact.match(text, at) or other.match(text, at)
            if found is None or (found.end() == len(text) and not whole):  # \r may be the first half of \r\n
                break
            if found.re is not empty:
                groups = range(1, len(found.regs)) if found.re is exact else ()
                spans.append([found.span(group) for group in groups] if groups else None)
            at = found.end()
        return spans, at


def _find_mark(start: bytes, encoding: str) -> tuple[bytes, str]:
    """Return the byte order mark of a file, and the encoding of the rest."""
    mark = next((mark for mark, name in MARKS if name == encoding and start.startswith(mark)), b"")
    if encoding == "utf-16":
        encoding = "utf-16-le" if mark == codecs.BOM_UTF16_LE else "utf-16-be"
    return mark, encoding


def _value_of(cell: str) -> str:
    """Return the value of a cell as it is written; what follows the closing quote belongs to it."""
    if not cell.startswith('"'):
        return cell
    inner, _, after = cell[1:].rpartition('"')
    return inner.replace('""', '"') + after


def _as_cell(before: str, value: str, delimiter: str) -> str:
    """Return a value as it is written in place of a cell."""
    if before.startswith('"') or any(sign in value for sign in (delimiter, '"', "\r", "\n")):
        return '"' + value.replace('"', '""') + '"'
    return value
