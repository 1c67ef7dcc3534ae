"""Other labelling tools by name, with their functions for writing and reading files."""

import lzma
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pencil.decisions import Where
from pencil.errors import RunError
from pencil.export.answers import Answer, Imported, import_answers
from pencil.export.contents import Contents
from pencil.export.cvat import ANNOTATIONS, read_cvat, save_cvat
from pencil.export.fiftyone import SAMPLES, is_fiftyone, read_fiftyone, save_fiftyone
from pencil.export.label_studio import is_label_studio, read_label_studio, save_label_studio
from pencil.files import LARGEST_IMPORT, parse_json, read_regular, refuse_irregular
from pencil.runs.directory import RunReader
from pencil.runs.label_table import LabelTable

SAVERS: dict[str, Callable[[LabelTable, Contents, Path, str], str]] = {
    "labelstudio": save_label_studio,
    "fiftyone": save_fiftyone,
    "cvat": save_cvat,
}
"""Each takes the rows, their content, a folder that does not exist yet and the name of the run, and returns
instructions for the next step in the tool; empty if there is none."""
READERS: tuple[tuple[Callable[[Any], bool], Callable[[Path, Any], Iterator[Answer]]], ...] = (
    (is_fiftyone, read_fiftyone),
    (is_label_studio, read_label_studio),
)
"""Readers of JSON files, selected by content."""
IN_FOLDERS = (SAMPLES, ANNOTATIONS)
EXPECTED = "a JSON or JSON-MIN export of Label Studio, samples.json of FiftyOne, or CVAT for images 1.1 (XML or ZIP)"

LARGEST = 2**28
"""Maximum bytes to unpack from an archive: the tags of a million images take less, and their tree takes five times
as much memory."""
DAMAGE = (ValueError, RuntimeError, EOFError, zipfile.BadZipFile, zlib.error, lzma.LZMAError)
"""Errors of reading an archive or JSON; encrypted files and unknown compressions raise RuntimeError."""


def save_for(tool: str, reader: RunReader, labels: LabelTable, out: Path) -> str:
    """Write rows of a run for another tool to a new folder, and return instructions for the next step, if any.

    Parameters
    ----------
    tool : str
        ``labelstudio``, ``fiftyone`` or ``cvat``.
    reader : RunReader
        The run.
    labels : LabelTable
        The rows to write.
    out : Path
        A folder that does not exist yet.

    Raises
    ------
    RunError
        If rows cannot be shown in this tool, or cannot be identified in its answers.
    """
    contents = Contents(reader.recipe().data)
    if tool == "cvat":  # the other tools keep the keys of rows
        _refuse_shared_images(_rows_by_name(contents, reader.read_labels(())), labels)
    return SAVERS[tool](labels, contents, out, reader.path.absolute().name)


def _rows_by_name(contents: Contents, labels: LabelTable) -> dict[str, list[Where]]:
    """Return the rows of each image name."""
    rows: dict[str, list[Where]] = {}
    for where in zip(labels.keys.to_pylist(), labels.splits.to_pylist(), strict=True):
        name = contents.name(where)
        if name:  # a text has none
            rows.setdefault(name, []).append(where)
    return rows


def _refuse_shared_images(rows: Mapping[str, Sequence[Where]], labels: LabelTable) -> None:
    """Raise if exported rows share an image with another row, because answers could not be matched to rows."""
    shared = {where: name for name, places in rows.items() if len(places) > 1 for where in places}
    found = list(labels.find_rows(shared))
    if not found:
        return
    name = shared[found[0]]
    (key, _), (other, _), *_ = rows[name]
    raise RunError(
        f"the image {name!r} is shared by {len(rows[name])} rows, such as {key!r} and {other!r}; expected a separate "
        "image for each row, because CVAT identifies rows only by image; choose --format labelstudio or fiftyone."
    )


def import_file(run: Path, source: Path, *, complete: bool = False, as_trained: bool = False) -> Imported:
    """Append decisions made in another tool to the decisions of a run; the tool is detected from the file's content.

    Parameters
    ----------
    run : Path
        The run directory.
    source : Path
        The file that the tool exported, or its folder.
    complete : bool
        A person has looked at every row of the file. A CVAT file holds the exported labels too: unchanged labels
        count only then.
    as_trained : bool
        The file was made from the labels of training, even if an audit has decided them again.

    Raises
    ------
    RunError
        If the file cannot be read, is not from a known tool, or names an unknown row or class. Nothing is appended
        then.
    """
    reader = RunReader(run, as_trained=as_trained)
    labels = reader.read_labels(("corrected", "confidence", "changed", "issue_score"))
    source = _find_file(source)
    answers = list(read_tool_answers(source))
    written = datetime.fromtimestamp(source.stat().st_mtime, UTC).isoformat()

    def names() -> dict[str, list[Where]]:
        return _rows_by_name(Contents(reader.recipe().data), labels)

    return import_answers(run, source, answers, labels, complete=complete, names=names, written=written)


def _find_file(source: Path) -> Path:
    """Return the file of a tool; a folder is searched for it."""
    if not source.is_dir():
        return source
    inside = [source / name for name in IN_FOLDERS if (source / name).is_file()]
    if len(inside) != 1:
        raise RunError(f"{source} has {len(inside)} of {', '.join(IN_FOLDERS)}; expected one; name the file.")
    return inside[0]


def read_tool_answers(source: Path) -> Iterator[Answer]:
    """Return the answers in a file of any of the tools."""
    try:
        content = _read(source)
        if content.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"<"):
            return read_cvat(source, content)
        tree = parse_json(content)
    except OSError as error:
        raise RunError(f"cannot read {source}: {error.strerror or error}; expected {EXPECTED}.") from error
    except DAMAGE as error:
        kind = "is not a readable archive" if _is_archive(source) else "is neither JSON nor XML"
        raise RunError(f"{source} {kind} ({str(error).rstrip('.')}); expected {EXPECTED}.") from error
    for is_of_tool, read in READERS:
        if is_of_tool(tree):
            return read(source, tree)
    raise RunError(f"{source} is JSON of an unknown format; expected {EXPECTED}.")


def _is_archive(source: Path) -> bool:
    return source.suffix.lower() == ".zip"


def _read(source: Path) -> bytes:
    """Return the content of a file, or of the annotations in a ZIP archive, as exported by CVAT."""
    if not _is_archive(source):
        return read_regular(source, LARGEST_IMPORT)
    refuse_irregular(source)
    with zipfile.ZipFile(source) as archive:
        found = [name for name in archive.namelist() if name.rpartition("/")[2] == ANNOTATIONS]
        if len(found) != 1:
            raise ValueError(f"it has {len(found)} files named {ANNOTATIONS}")
        size = archive.getinfo(found[0]).file_size
        if size > LARGEST:
            raise ValueError(
                f"{ANNOTATIONS} in it has {size >> 20:,} MiB; expected at most {LARGEST >> 20} MiB; unpack it, and "
                f"import {ANNOTATIONS}"
            )
        with archive.open(found[0]) as content:
            return content.read(LARGEST)
