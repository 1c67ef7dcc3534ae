"""Tables as text: the encoding and the delimiter of a CSV file are detected, then all of it is read."""

import codecs
import csv
import io
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as arrow_csv

from pencil.data.bad_rows import BadRow, BadRows, OnBadRows
from pencil.errors import DataError, DataWarning, warn
from pencil.formulas import unescape_formula_column
from pencil.terminal import counted

SUFFIXES = (".csv", ".tsv")
DELIMITERS = (",", ";", "\t", "|")
SAMPLE = 2**16
"""Number of characters at the start that decide the delimiter."""
BLOCK = 2**24
"""Number of bytes decoded at a time to detect the encoding."""
MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # it begins like the next one
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
"""Byte order marks that some programs write at the start of a file, and the encodings they stand for."""
WIDE = ("utf-32-le", "utf-32-be", "utf-16-le", "utf-16-be")
"""Encodings without a mark in which an ASCII character has a zero byte; UTF-8 text never has one."""
FIRST_BLOCK = 2**20
"""Bytes of a text file that are parsed at a time, unless a row is longer."""
ROWS_PER_BLOCK = 64
LARGEST_BLOCK = 2**30
"""Maximum length of a row in bytes; Arrow counts the bytes of a block in 32 bits."""
GUESSED = {"cp1252": "Windows-1252", "latin-1": "Latin-1"}
"""Encodings in which any text can be read; the choice is a guess, and a warning says so."""
FIRST_LINE = 2
"""The number of the first row, as in an editor or a spreadsheet: the header is line 1."""
DECIMAL_COMMA = r"^[+-]?[0-9]+(,[0-9]+)?([eE][+-]?[0-9]+)?$"


Content = TypeVar("Content")
_HELD: list[arrow_csv.ParseOptions] = []
"""Options that call Python are kept for the life of the process: if an Arrow thread drops the last reference during
interpreter shutdown, the process aborts."""


class Numbered(NamedTuple):
    """Rows of a table, and the number of each in its file, which also counts skipped lines."""

    table: pa.Table
    numbers: np.ndarray


@dataclass(frozen=True)
class Dialect:
    """How a table is written as text: the name of its encoding, and its delimiter."""

    encoding: str = "utf-8"
    delimiter: str = ","


def find_dialect(path: Path, delimiter: str | None = None) -> Dialect:
    """Return the encoding of a table, and the delimiter if it is not known.

    A file is UTF-8, UTF-16 or UTF-32, with or without a mark, or otherwise Windows-1252 or Latin-1.
    """
    encoding = _find_encoding(path)
    if delimiter is not None:
        return Dialect(encoding, delimiter)
    with path.open(encoding="utf-8-sig" if encoding == "utf-8" else encoding, newline="") as stream:
        sample = stream.read(SAMPLE)
        whole = not stream.read(1)
    order = ("\t", *(one for one in DELIMITERS if one != "\t")) if path.suffix.lower() == ".tsv" else DELIMITERS
    return Dialect(encoding, find_delimiter(sample, order, whole=whole))


def find_delimiter(sample: str, candidates: tuple[str, ...] = DELIMITERS, *, whole: bool = True) -> str:
    """Return the delimiter that gives all rows of the sample the same number of cells, at least two.

    Among several such delimiters the one with the most cells is chosen, then the first candidate. If there is none,
    because rows are damaged, the one that gives the header the most cells is chosen; for a table of one column, the
    first candidate. Delimiters inside quotes do not count. Unless the sample is the ``whole`` table, its last row
    is ignored.
    """
    best, best_rank = candidates[0], (False, 1)
    for delimiter in candidates:
        widths = _widths(sample, delimiter, whole)
        rank = (len(set(widths)) == 1 and widths[0] > 1, widths[0] if widths else 1)
        if rank > best_rank:
            best, best_rank = delimiter, rank
    return best


def read_delimited(
    path: Path,
    dialect: Dialect,
    texts: Collection[str] = (),
    on_bad_rows: OnBadRows = "error",
    numbers: Collection[str] = (),
) -> Numbered:
    """Read a table from a text file; empty cells are missing, and quoted cells may contain line breaks.

    The columns ``texts`` are read exactly as written. Unless the delimiter is a comma, columns such as ``3,14`` are
    numbers, and so are such cells of the columns ``numbers``, whatever their other cells hold.
    """
    if dialect.encoding in GUESSED:
        warn(
            f"{path} is not UTF-8 and is read as {GUESSED[dialect.encoding]}; if letters look wrong, save it as UTF-8",
            DataWarning,
        )
    cells, lines = _cells(dict.fromkeys(texts, pa.string())), _Lines()
    try:
        table = _read_csv(path, dialect, _parse_options(dialect.delimiter), cells)
    except pa.ArrowInvalid:  # perhaps lines with too many or too few cells; a single thread counts lines
        lines = _Lines()
        table = _read_csv(path, dialect, lines.options(dialect), cells, use_threads=False, lines=lines)
        if lines.found:
            lines.settle(path, on_bad_rows, table.num_rows)
    table = _as_meant(table)
    table = table if dialect.delimiter == "," else with_decimal_commas(table, texts, numbers)
    return Numbered(table, lines.numbers(0, table.num_rows))


def with_decimal_commas(table: pa.Table, texts: Collection[str] = (), numbers: Collection[str] = ()) -> pa.Table:
    """Return the table with text columns such as ``3,14`` as numbers; ``texts`` stay as they are.

    In a column of ``numbers`` with other cells too, ``3,14`` becomes ``3.14``.
    """
    match = partial(pc.match_substring_regex, pattern=DECIMAL_COMMA)
    for place, name in enumerate(table.column_names):
        column = table[name]
        if name in texts or not pa.types.is_string(column.type) or column.null_count == len(column):
            continue
        plain = pc.utf8_trim_whitespace(column)
        if not pc.any(pc.match_substring(plain, ",")).as_py():
            continue
        fits, with_points = match(plain), pc.replace_substring(plain, ",", ".")
        if pc.all(fits).as_py():
            table = table.set_column(place, name, with_points.cast(pa.float64()))
        elif name in numbers:
            table = table.set_column(place, name, pc.if_else(fits, with_points, column))
    return table


def read_names(path: Path, dialect: Dialect) -> list[str]:
    """Return the names of the columns."""

    def read(block: int) -> list[str]:
        parse = _without_odd_lines(dialect.delimiter)
        with arrow_csv.open_csv(path, _read_options(dialect, block), parse) as reader:
            return cast(list[str], reader.schema.names)

    return _in_blocks(path, read)


def read_as_text(path: Path, dialect: Dialect, name: str) -> pa.ChunkedArray:
    """Return one column as written, without lines that have too many or too few cells."""
    cells = _cells({name: pa.string()})
    cells.include_columns = [name]
    return _as_meant(_read_csv(path, dialect, _without_odd_lines(dialect.delimiter), cells))[0]


def read_pieces(path: Path, dialect: Dialect, schema: pa.Schema, block: int) -> Iterator[Numbered]:
    """Yield the table in pieces of ``block`` bytes, with the types of a schema.

    Lines with too many or too few cells are skipped; a warning at the end says how many.
    """
    kinds, done = {field.name: field.type for field in schema}, 0
    for size in _blocks(path, block):
        lines, first = _Lines(), 0
        parse = lines.options(dialect)
        _HELD.append(parse)
        options = _read_options(dialect, size, use_threads=False)
        try:
            with arrow_csv.open_csv(path, options, parse, _cells(kinds)) as reader:
                for batch in reader:  # by then all malformed lines before its end are known
                    new = batch.slice(max(0, done - first))  # after a row that was longer than a block
                    first += batch.num_rows
                    if new.num_rows:
                        done = first
                        numbers = lines.numbers(first - new.num_rows, new.num_rows)
                        yield Numbered(_as_meant(pa.Table.from_batches([new])), numbers)
            break
        except pa.ArrowInvalid as error:
            if not _is_cut(error):
                raise
    else:
        raise _too_long(path)
    if lines.found:
        warn(f"{path} has {counted(len(lines.found), 'line')} with too many or too few cells, skipped", DataWarning)


def _as_meant(table: pa.Table) -> pa.Table:
    """Return the table without the quotes that pencil puts before formula-like cells."""
    for place, name in enumerate(table.column_names):
        if pa.types.is_string(table[place].type):
            table = table.set_column(place, name, unescape_formula_column(table[place]))
    return table


class _Lines:
    """Collects lines with too many or too few cells, in order, as a single thread reads them."""

    def __init__(self) -> None:
        self.found: list[BadRow] = []

    def options(self, dialect: Dialect) -> arrow_csv.ParseOptions:
        """Return parse options that report such lines here."""
        return _parse_options(dialect.delimiter, self._skip)

    def _skip(self, line: Any) -> str:
        number = -1 if line.number is None else line.number - 2  # it counts from 1 and includes the header
        self.found.append(
            BadRow(
                number,
                f"it has {counted(line.actual_columns, 'cell')}; expected {line.expected_columns}, as the header has",
            )
        )
        return "skip"

    def numbers(self, first: int, count: int) -> np.ndarray:
        """Return the file's numbers of ``count`` of the other rows, starting with the row at ``first``."""
        left_out = np.array([row for row, _ in self.found], dtype=np.int64)
        places = np.arange(first, first + count)
        return places + np.searchsorted(left_out - np.arange(len(left_out)), places, side="right")

    def settle(self, path: Path, on_bad_rows: OnBadRows, others: int) -> None:
        """Raise, or warn about skipped lines; ``others`` is the number of the other rows."""
        bad = BadRows(str(path))
        for row, reason in self.found:
            bad.add(row + FIRST_LINE, reason)
        if on_bad_rows == "error" or not others:
            bad.refuse(total=others + len(bad), remedy=None if others else "")
        warn(bad.describe_skipped(total=others + len(bad)), DataWarning)


@cache
def _without_odd_lines(delimiter: str) -> arrow_csv.ParseOptions:
    """Parse options that skip lines with too many or too few cells; kept alive like ``_HELD``."""
    return _parse_options(delimiter, lambda _: "skip")


def _parse_options(delimiter: str, on_odd_line: Callable[[Any], str] | None = None) -> arrow_csv.ParseOptions:
    return arrow_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True, invalid_row_handler=on_odd_line)


def _read_options(dialect: Dialect, block: int, *, use_threads: bool = True) -> arrow_csv.ReadOptions:
    return arrow_csv.ReadOptions(encoding=dialect.encoding, block_size=block, use_threads=use_threads)


def _read_csv(
    path: Path,
    dialect: Dialect,
    parse: arrow_csv.ParseOptions,
    cells: arrow_csv.ConvertOptions,
    *,
    use_threads: bool = True,
    lines: "_Lines | None" = None,
) -> pa.Table:
    """Read a whole file."""

    def read(block: int) -> pa.Table:
        if lines is not None:
            lines.found.clear()
        return arrow_csv.read_csv(path, _read_options(dialect, block, use_threads=use_threads), parse, cells)

    return _in_blocks(path, read)


def _in_blocks(path: Path, read: Callable[[int], Content]) -> Content:
    """Return what ``read`` returns for a block size, in larger blocks if a row is longer than a block."""
    for block in _blocks(path):
        try:
            return read(block)
        except pa.ArrowInvalid as error:
            if not _is_cut(error):
                raise
    raise _too_long(path)


def _blocks(path: Path, first: int = FIRST_BLOCK) -> Iterator[int]:
    """Yield block sizes, each for the case that a row is longer than the previous size.

    They have room for many rows of the length of the first line, so that a wide table is not split into many pieces.
    """
    with path.open("rb") as stream:
        width = len(stream.readline(BLOCK))
    block = min(max(first, ROWS_PER_BLOCK * width), LARGEST_BLOCK)
    yield block
    while block < min(4 * path.stat().st_size, LARGEST_BLOCK):  # UTF-8 text is never longer
        block = min(8 * block, LARGEST_BLOCK)
        yield block


def _is_cut(error: pa.ArrowInvalid) -> bool:
    """Return whether Arrow failed because a row is longer than a block."""
    return "straddl" in str(error) or "block" in str(error)


def _too_long(path: Path) -> DataError:
    return DataError(
        f"{path} has a row of more than {LARGEST_BLOCK // 2**30} GiB, perhaps because a quote is never closed; "
        "expected shorter rows; close the quote, or save the table as Parquet."
    )


def _cells(kinds: Mapping[str, pa.DataType]) -> arrow_csv.ConvertOptions:
    """How cells are converted: booleans stay text, whatever else their column contains in this file or another."""
    return arrow_csv.ConvertOptions(
        strings_can_be_null=True, null_values=[""], column_types=dict(kinds), true_values=[], false_values=[]
    )


def _widths(sample: str, delimiter: str, whole: bool) -> list[int]:
    """Return the number of cells of each row of the sample; empty if it cannot be parsed."""
    try:
        rows = [len(row) for row in csv.reader(io.StringIO(sample, newline=""), delimiter=delimiter) if row]
    except csv.Error:
        return []
    return rows if whole or len(rows) < 2 else rows[:-1]


def _find_encoding(path: Path) -> str:
    """Return the encoding of a file, from its mark or from all of its bytes."""
    with path.open("rb") as stream:
        start = stream.read(4)
        marked = next((name for mark, name in MARKS if start.startswith(mark)), None)
        if marked not in (None, "utf-8"):
            return marked
        stream.seek(0)
        wide = _find_wide(stream.read(SAMPLE))
        if wide is not None:
            return wide
        stream.seek(0)
        decoder, other, content = codecs.getincrementaldecoder("utf-8")(), False, b" "
        while content:
            content = stream.read(BLOCK)
            try:
                other |= not decoder.decode(content, final=not content).isascii()
            except UnicodeDecodeError as error:
                if other or marked or not error.object[: error.start].isascii():
                    at = stream.tell() - len(error.object) + error.start
                    raise DataError(
                        f"{path} is UTF-8 up to byte {at:,} and something else after that; expected one encoding; save "
                        "it again as UTF-8."
                    ) from error
                stream.seek(0)
                return _find_single_byte(stream.read(4 * BLOCK))
    return "utf-8"


def _find_wide(sample: bytes) -> str | None:
    """Return the encoding of unmarked text with zero bytes: the one in which it has none and has lines."""
    if b"\0" not in sample:
        return None
    whole = sample[: len(sample) // 4 * 4]  # so that no character is cut
    for encoding in WIDE:
        text = codecs.getincrementaldecoder(encoding)(errors="replace").decode(whole)
        if "\0" not in text and "\ufffd" not in text and ("\n" in text or "\r" in text):
            return encoding
    return None


def _find_single_byte(content: bytes) -> str:
    """Return Windows-1252, or Latin-1 for text with bytes that Windows-1252 does not define."""
    try:
        content.decode("cp1252")
    except UnicodeDecodeError:
        return "latin-1"
    return "cp1252"
