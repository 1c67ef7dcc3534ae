"""The images of a run in one folder per corrected class, ready for training: hard links, or copies."""

import errno
import os
import re
import shutil
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pencil.data.read import read_source
from pencil.data.settings import FROM_PYTHON, DataSettings
from pencil.errors import RunError
from pencil.files import NO_HARD_LINKS, atomic_write
from pencil.runs.label_table import LabelTable

ODD = re.compile(r'[\x00-\x1f\x7f/\\:*?"<>|]')
LONGEST = 200
"""Maximum bytes of a name; file systems allow 255, and a number may be appended."""


@dataclass(frozen=True)
class SortedImages:
    """Number of files, copied files and images without a class, the renamed folders, and what symbolic links lead to.

    ``root`` is the folder that contains all images; None if there is none, or if there are no symbolic links.
    """

    files: int
    copied: int
    without_class: int
    renamed: dict[str, str]
    root: Path | None


Way = Literal["hard link", "copy", "symbolic link"]
"""How an image gets into its folder. A hard link takes no space; without hard links the file is copied."""


def sort_images(labels: LabelTable, settings: DataSettings, out: Path, *, way: Way = "hard link") -> SortedImages:
    """Put the image of each row into ``out/CLASS/NAME``; an image with several classes goes to each folder.

    ``out`` does not exist yet, and is outside the data. A folder of hard links or copies can be trained on like any
    folder. Symbolic links point outside the folder, which training refuses unless ``data.root`` names a folder that
    contains the images.
    """
    files = _files(settings)
    _refuse_inside(settings, out)
    places = _places(labels, files, settings.source)
    folders = folder_names(labels.classes)
    used: dict[str, dict[str, int]] = {}
    count = copied = without_class = 0
    with atomic_write(out, folder=True) as top:
        for file, classes in places:
            without_class += not classes
            for name in classes:
                folder = top / folders[name]
                if name not in used:
                    folder.mkdir()
                target = folder / _free(file.stem, file.suffix, used.setdefault(name, {}))
                copied += _place(file, target, way)
                count += 1
    renamed = {name: folders[name] for name in used if folders[name] != name}
    root = _common_folder(places) if way == "symbolic link" else None
    return SortedImages(count, copied, without_class, renamed, root)


def _common_folder(places: list[tuple[Path, list[str]]]) -> Path | None:
    """Return the folder that contains all images, following links; None if they are on several drives."""
    folders = {file.resolve().parent for file, _ in places}
    return Path(os.path.commonpath(folders)) if len({folder.drive for folder in folders}) == 1 else None


def folder_names(classes: Sequence[str]) -> dict[str, str]:
    """Return a portable folder name for each class; valid names are kept."""
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
    """Return the name, with a number before its suffix if it is taken; some file systems ignore case."""
    name = stem + ending
    asked = _folded(name)
    number = taken.get(asked, 1)  # where counting stopped last time
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
            f"the data of this run ({settings.source!r}) are not image files; expected a folder or a table of image "
            "files for --format imagefolder; choose another format."
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
        raise RunError(
            f"{out} is inside the data folder ({folder}) and would become part of the data; name another place."
        )


def _place(file: Path, target: Path, way: Way) -> bool:
    """Put an image into its folder, and return whether it was copied."""
    try:
        if way == "symbolic link":
            target.symlink_to(file)
            return False
        if way == "hard link" and _has_link(file.resolve(), target):
            return False
        shutil.copy2(file, target)
        return True
    except OSError as error:
        hint = "; remove --symlinks" if way == "symbolic link" else ""
        raise RunError(f"cannot place {file} in {target.parent.name}: {error.strerror or error}{hint}.") from error


def _has_link(file: Path, target: Path) -> bool:
    """Try to make a hard link; return whether the file system supports it."""
    try:
        os.link(file, target)
    except OSError as error:
        if error.errno not in (*NO_HARD_LINKS, errno.EXDEV, errno.EACCES):  # other errors would affect a copy too
            raise
        return False
    return True
