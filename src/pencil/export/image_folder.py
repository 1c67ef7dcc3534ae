"""The images of a run in one folder per corrected class: links to the files, or copies of them."""

import re
import shutil
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pencil.data.settings import FROM_PYTHON, DataSettings
from pencil.data.sources import read_source
from pencil.errors import RunError
from pencil.files import atomic_write
from pencil.runs.label_table import LabelTable

ODD = re.compile(r'[\x00-\x1f\x7f/\\:*?"<>|]')
LONGEST = 200
"""The longest name in bytes; file systems allow 255, and a number may follow."""


@dataclass(frozen=True)
class SortedImages:
    """How many links or copies were made, how many images have no class, and the classes whose folder was renamed."""

    files: int
    without_class: int
    renamed: dict[str, str]


def sort_images(labels: LabelTable, settings: DataSettings, out: Path, *, copy: bool = False) -> SortedImages:
    """Link or copy the image of each row to ``out/CLASS/NAME``; one with several classes goes to each folder.

    Parameters
    ----------
    labels : LabelTable
        The rows to sort, by corrected class.
    settings : DataSettings
        The data section of the run's recipe, which names the images.
    out : Path
        A folder that does not exist yet, outside the data.
    copy : bool
        Copy the files instead of linking them.
    """
    files = _files(settings)
    _refuse_inside(settings, out)
    places = _places(labels, files, settings.source)
    folders = folder_names(labels.classes)
    used: dict[str, dict[str, int]] = {}
    count = without_class = 0
    with atomic_write(out, folder=True) as top:
        for file, classes in places:
            without_class += not classes
            for name in classes:
                folder = top / folders[name]
                if name not in used:
                    folder.mkdir()
                target = folder / _free(file.stem, file.suffix, used.setdefault(name, {}))
                _place(file, target, copy)
                count += 1
    renamed = {name: folders[name] for name in used if folders[name] != name}
    return SortedImages(count, without_class, renamed)


def folder_names(classes: Sequence[str]) -> dict[str, str]:
    """Return a folder name for each class that every file system takes; names that are valid already are kept."""
    taken: dict[str, int] = {}
    plain = {name: _safe(name) for name in classes}
    ordered = sorted(plain, key=lambda name: plain[name] != name)  # stable
    return {name: _free(plain[name], "", taken) for name in ordered}


def _safe(name: str) -> str:
    """Return the name without separators and odd characters, not hidden, not too long, never empty."""
    safe = _shortened(ODD.sub("_", name), LONGEST).rstrip(". ")
    if safe.startswith("."):
        safe = "_" + safe[1:]
    return safe or "_"


def _shortened(name: str, size: int) -> str:
    return name.encode(errors="replace")[:size].decode(errors="ignore")


def _free(stem: str, ending: str, taken: dict[str, int]) -> str:
    """Return the name, with a number before its ending if it is taken; some file systems take A and a as the same."""
    name = stem + ending
    asked = _folded(name)
    number = taken.get(asked, 1)  # where counting stopped before
    while _folded(name) in taken:
        number += 1
        name = f"{_shortened(stem, LONGEST)}-{number}{ending}"
    taken[asked] = number
    taken.setdefault(_folded(name), 1)
    return name


def _folded(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold()


def _files(settings: DataSettings) -> dict[str, Path]:
    """Return the file of each key."""
    found: dict[str, Path] = {}
    if settings.source != FROM_PYTHON:
        splits = read_source(settings.source, settings, local=True)
        for part in (splits.train, splits.validation, splits.unlabelled):
            if part is None:
                continue
            for key, row in zip(part.keys, part.rows.tolist(), strict=True):
                file = part.inputs.file_of(row)
                if file is not None:
                    found[str(key)] = file.absolute()
    if not found:
        raise RunError(
            f"the data of this run ({settings.source!r}) are not images in files; --format imagefolder sorts a "
            "folder or a table of image files; choose another format."
        )
    return found


def _places(labels: LabelTable, files: dict[str, Path], source: str) -> list[tuple[Path, list[str]]]:
    """Return the file and the classes of each row, after checking that every file exists."""
    places = []
    for key, corrected in zip(labels.keys.to_pylist(), labels["corrected"].to_pylist(), strict=True):
        file = files.get(key)
        if file is None or not file.is_file():
            where = source if file is None else file
            raise RunError(f"the image {key!r} of this run is no longer at {where}; restore it, or choose fewer rows.")
        places.append((file, corrected if labels.multilabel else [corrected]))
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
