"""Tables as text: how a CSV file is encoded and delimited is found out from the file, then all of it is read."""

import codecs
import csv
import io
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as arrow_csv

from pencil.data.bad_rows import BadRow, BadRows, OnBadRows
from pencil.errors import DataError
from pencil.formulas import as_meant_column

SUFFIXES = (".csv", ".tsv")
DELIMITERS = (",", ";", "\t", "|")
SAMPLE = 2**16
"""This many characters of the beginning decide which delimiter it is."""
BLOCK = 2**24
"""This many bytes are decoded at a time to find the encoding."""
MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
"""Byte order marks, with which some programs begin a file, and the encodings that they stand for."""
GUESSED = {"cp1252": "Windows-1252", "latin-1": "Latin-1"}
"""Encodings in which any text can be read; whether it was meant so is a guess, which is said."""
DECIMAL_COMMA = r"^[+-]?[0-9]+(,[0-9]+)?([eE][+-]?[0-9]+)?$"


@dataclass(frozen=True)
class Dialect:
    """How a table is written as text: the name of its encoding, and what stands between two cells."""

    encoding: str = "utf-8"
    delimiter: str = ","


def find_dialect(path: Path, delimiter: str | None = None) -> Dialect:
    """Return how a table is encoded and delimited.

    A file is UTF-8 (or UTF-16, where it begins with a mark), or else Windows-1252 or Latin-1.

    Parameters
    ----------
    path
        A text file.
    delimiter
        The delimiter, where it is known.

    Raises
    ------
    DataError
        If the file is UTF-8 in a part only.
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

    Of several such delimiters the one with most cells is taken. Where there is none, because rows are damaged, it is
    the one that gives the header most cells; for a table of one column the first candidate. Delimiters inside of quotes
    do not count.

    Parameters
    ----------
    sample
        The beginning of a table.
    candidates
        Delimiters; of equally good ones the first is taken.
    whole
        Whether the sample is the whole table; otherwise its last row is not looked at.
    """
    best, best_rank = candidates[0], (False, 1)
    for delimiter in candidates:
        widths = _widths(sample, delimiter, whole)
        rank = (len(set(widths)) == 1 and widths[0] > 1, widths[0] if widths else 1)
        if rank > best_rank:
            best, best_rank = delimiter, rank
    return best


def read_delimited(path: Path, dialect: Dialect, key: str | None = None, on_bad_rows: OnBadRows = "error") -> pa.Table:
    """Read a table from a text file; an empty cell is missing, a cell may contain line breaks between quotes.

    Parameters
    ----------
    path
        The file.
    dialect
        How it is written. Unless its delimiter is the comma, columns of numbers such as ``3,14`` are numbers.
    key
        A column that is read as text, exactly as written.
    on_bad_rows
        Whether lines with too many or too few cells are an "error" or are left out ("skip").
    """
    if dialect.encoding in GUESSED:
        warnings.warn(
            f"{path} is not UTF-8 and is read as {GUESSED[dialect.encoding]}; if letters look wrong, save it as UTF-8",
            stacklevel=2,
        )
    cells = _cells({} if key is None else {key: pa.string()})
    try:
        table = arrow_csv.read_csv(path, _read_options(dialect), _parse_options(dialect.delimiter), cells)
    except pa.ArrowInvalid:  # perhaps lines with too many or too few cells; one thread counts lines
        lines = _Lines()
        one_thread = arrow_csv.ReadOptions(encoding=dialect.encoding, use_threads=False)
        table = arrow_csv.read_csv(path, one_thread, lines.options(dialect), cells)
        if lines.found:
            lines.settle(path, on_bad_rows, table.num_rows)
    table = _as_meant(table)
    return table if dialect.delimiter == "," else with_decimal_commas(table, key)


def with_decimal_commas(table: pa.Table, key: str | None = None) -> pa.Table:
    """Return the table with columns of text such as ``3,14`` as numbers; ``key`` names one that stays as it is."""
    match = partial(pc.match_substring_regex, pattern=DECIMAL_COMMA)
    for place, name in enumerate(table.column_names):
        column = table[name]
        if name == key or not pa.types.is_string(column.type) or column.null_count == len(column):
            continue
        plain = pc.utf8_trim_whitespace(column)
        if pc.any(pc.match_substring(plain, ",")).as_py() and pc.all(match(plain)).as_py():
            numbers = pc.replace_substring(plain, ",", ".").cast(pa.float64())
            table = table.set_column(place, name, numbers)
    return table


def read_names(path: Path, dialect: Dialect) -> list[str]:
    """Return the names of the columns."""
    with arrow_csv.open_csv(path, _read_options(dialect), _without_odd_lines(dialect.delimiter).options) as reader:
        return cast(list[str], reader.schema.names)


def read_pieces(path: Path, dialect: Dialect, schema: pa.Schema, block: int) -> Iterator[pa.Table]:
    """Yield the table in pieces of ``block`` bytes, with the types of a schema.

    Lines with too many or too few cells are left out; a warning at the end says how many.
    """
    kinds = {field.name: field.type for field in schema}
    options = arrow_csv.ReadOptions(block_size=block, encoding=dialect.encoding)
    odd = _without_odd_lines(dialect.delimiter)
    before = odd.count
    with arrow_csv.open_csv(path, options, odd.options, _cells(kinds)) as reader:
        for batch in reader:
            yield _as_meant(pa.Table.from_batches([batch]))
    if odd.count > before:
        warnings.warn(
            f"{path} has {odd.count - before:,} lines with too many or too few cells; they are left out", stacklevel=2
        )


def _as_meant(table: pa.Table) -> pa.Table:
    """Return the table without the quotes that pencil puts before cells that look like a formula."""
    for place, name in enumerate(table.column_names):
        if pa.types.is_string(table[place].type):
            table = table.set_column(place, name, as_meant_column(table[place]))
    return table


class _Lines:
    """Collects the lines that have too many or too few cells."""

    def __init__(self) -> None:
        self.found: list[BadRow] = []

    def options(self, dialect: Dialect) -> arrow_csv.ParseOptions:
        """Return how a file is parsed, so that such lines come here."""
        return _parse_options(dialect.delimiter, self._skip)

    def _skip(self, line: Any) -> str:
        number = -1 if line.number is None else line.number - 2  # it counts from 1, and counts the header
        self.found.append(
            BadRow(number, f"it has {line.actual_columns} cells; expected {line.expected_columns}, as the header has")
        )
        return "skip"

    def settle(self, path: Path, on_bad_rows: OnBadRows, others: int) -> None:
        """Raise, or say which lines are left out; ``others`` is the number of the other rows."""
        bad = BadRows(str(path))
        for row, reason in self.found:
            bad.add(row, reason)
        if on_bad_rows == "error" or not others:
            bad.refuse(total=others + len(bad))
        warnings.warn(f"{bad.describe(total=others + len(bad))}; they are left out", stacklevel=4)


class _OddLines:
    """How a file is parsed so that lines with too many or too few cells are left out, and how many have been."""

    def __init__(self, delimiter: str):
        self.count = 0
        self.options = _parse_options(delimiter, self._skip)

    def _skip(self, _: Any) -> str:
        self.count += 1
        return "skip"


@cache
def _without_odd_lines(delimiter: str) -> _OddLines:
    """Kept for the life of the process.

    A thread of Arrow that drops the last reference while the interpreter shuts down aborts the process.
    """
    return _OddLines(delimiter)


def _parse_options(delimiter: str, on_odd_line: Callable[[Any], str] | None = None) -> arrow_csv.ParseOptions:
    return arrow_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True, invalid_row_handler=on_odd_line)


def _read_options(dialect: Dialect) -> arrow_csv.ReadOptions:
    return arrow_csv.ReadOptions(encoding=dialect.encoding)


def _cells(kinds: Mapping[str, pa.DataType]) -> arrow_csv.ConvertOptions:
    return arrow_csv.ConvertOptions(strings_can_be_null=True, null_values=[""], column_types=dict(kinds))


def _widths(sample: str, delimiter: str, whole: bool) -> list[int]:
    """Return the number of cells of each row of the sample; none where it cannot be taken apart."""
    try:
        rows = [len(row) for row in csv.reader(io.StringIO(sample, newline=""), delimiter=delimiter) if row]
    except csv.Error:
        return []
    return rows if whole or len(rows) < 2 else rows[:-1]


def _find_encoding(path: Path) -> str:
    """Return the encoding of a file, by its mark or by all of its bytes."""
    with path.open("rb") as stream:
        start = stream.read(4)
        marked = next((name for mark, name in MARKS if start.startswith(mark)), None)
        if marked == "utf-16":
            return marked
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
                        f"{path} is UTF-8 up to byte {at:,} and something else from there; expected one encoding; save "
                        "it again as UTF-8."
                    ) from error
                stream.seek(0)
                return _find_single_byte(stream.read(4 * BLOCK))
    return "utf-8"


def _find_single_byte(content: bytes) -> str:
    """Return the name of Windows-1252, or of Latin-1 for text that has bytes without a meaning in the other."""
    try:
        content.decode("cp1252")
    except UnicodeDecodeError:
        return "latin-1"
    return "cp1252"
