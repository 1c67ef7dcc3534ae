"""The images of a run, sorted by corrected class into a folder for each: links to the files, or copies of them."""

import json
import re
import shutil
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from pencil.data.settings import FROM_PYTHON, DataSettings
from pencil.data.sources import read_source
from pencil.errors import RunError
from pencil.export.label_files import new_folder

ODD = re.compile(r'[\x00-\x1f\x7f/\\:*?"<>|]')
LONGEST = 200
"""Bytes of a name; file systems take 255, and a number may follow."""


@dataclass(frozen=True)
class Sorted:
    """How many links or copies there are, how many images are of no class, and the folders not named as their class."""

    files: int
    without_class: int
    renamed: dict[str, str]


def sort_images(table: pa.Table, settings: DataSettings, out: Path, *, copy: bool = False) -> Sorted:
    """``out/CLASS/NAME`` for the images of these rows; one of several classes stands in the folder of each."""
    files = _files(settings)
    _refuse_inside(settings, out)
    places = _places(table, files, settings.source)
    folders = folder_names(json.loads(table.schema.metadata[b"classes"]))
    used: dict[str, dict[str, int]] = {}
    count = nowhere = 0
    with new_folder(out) as top:
        for file, classes in places:
            nowhere += not classes
            for name in classes:
                folder = top / folders[name]
                if name not in used:
                    folder.mkdir()
                target = folder / _free(file.stem, file.suffix, used.setdefault(name, {}))
                _place(file, target, copy)
                count += 1
    renamed = {name: folders[name] for name in used if folders[name] != name}
    return Sorted(count, nowhere, renamed)


def folder_names(classes: Sequence[str]) -> dict[str, str]:
    """A folder name for each class that no file system stumbles over; those that are well as they are come first."""
    taken: dict[str, int] = {}
    plain = {name: _safe(name) for name in classes}
    ordered = sorted(plain, key=lambda name: plain[name] != name)  # stable
    return {name: _free(plain[name], "", taken) for name in ordered}


def _safe(name: str) -> str:
    """Without separators and odd characters, not hidden, not too long, never empty."""
    mended = _shortened(ODD.sub("_", name), LONGEST).rstrip(". ")
    if mended.startswith("."):
        mended = "_" + mended[1:]
    return mended or "_"


def _shortened(name: str, size: int) -> str:
    return name.encode(errors="replace")[:size].decode(errors="ignore")


def _free(stem: str, ending: str, taken: dict[str, int]) -> str:
    """The name, or with a number before its ending where it is taken; file systems may hold A and a for the same."""
    name = stem + ending
    asked = _folded(name)
    number = taken.get(asked, 1)  # how far was counted before
    while _folded(name) in taken:
        number += 1
        name = f"{_shortened(stem, LONGEST)}-{number}{ending}"
    taken[asked] = number
    taken.setdefault(_folded(name), 1)
    return name


def _folded(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold()


def _files(settings: DataSettings) -> dict[str, Path]:
    """Where the image of each key is."""
    found: dict[str, Path] = {}
    if settings.source != FROM_PYTHON:
        splits = read_source(settings.source, settings)
        for part in (splits.train, splits.validation):
            if part is None:
                continue
            for key, row in zip(part.keys, part.rows.tolist(), strict=True):
                file = part.inputs.file_of(row)
                if file is not None:
                    found[str(key)] = file.absolute()
    if not found:
        raise RunError(
            f"the data of this run ({settings.source}) are not images in files; --format imagefolder sorts a folder or "
            "a table of image files; choose another format."
        )
    return found


def _places(table: pa.Table, files: dict[str, Path], source: str) -> list[tuple[Path, list[str]]]:
    """The file of each row and its classes; all are there before anything is written."""
    several = pa.types.is_list(table["corrected"].type)
    places = []
    for key, corrected in zip(table["key"].to_pylist(), table["corrected"].to_pylist(), strict=True):
        file = files.get(key)
        if file is None or not file.is_file():
            where = source if file is None else file
            raise RunError(f"the image {key!r} of this run is no longer at {where}; put it back, or choose fewer rows.")
        places.append((file, corrected if several else [corrected]))
    return places


def _refuse_inside(settings: DataSettings, out: Path) -> None:
    folder = Path(settings.source).expanduser()
    if folder.is_dir() and out.resolve().is_relative_to(folder.resolve()):
        raise RunError(f"{out} is inside the data ({folder}), of which it would become a part; name another place.")


def _place(file: Path, target: Path, copy: bool) -> None:
    try:
        if copy:
            shutil.copy2(file, target)
        else:
            target.symlink_to(file)
    except OSError as error:
        hint = "" if copy else "; where links are not allowed, use --copy"
        raise RunError(f"cannot place {file} in {target.parent.name}: {error.strerror or error}{hint}.") from error
