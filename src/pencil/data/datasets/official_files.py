"""Shared by the loaders of official datasets: find their files, read their lists, name what to download."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pencil.errors import DataError, explained, setting


class Release(NamedTuple):
    """A published dataset: its name, and the files to download."""

    name: str
    files: str

    @property
    def remedy(self) -> str:
        """What to do if it is missing."""
        return f"download {self.files}, unpack into a folder and pass it with {setting('data.root', 'FOLDER')}"


def need_folder(release: Release, root: Path | None) -> Path:
    """Return the folder that the user set; these datasets cannot be downloaded automatically."""
    if root is None:
        raise DataError(f"data.root is not set; expected the folder of {release.name}; {release.remedy}.")
    folder = root.expanduser()
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder; expected the folder of {release.name}; {release.remedy}.")
    return folder


def find_folder(folder: Path, files: Sequence[str], places: Sequence[str]) -> Path | None:
    """Return the first of some places below ``folder`` that contains any of these files."""
    return next((folder / place for place in places if any((folder / place / file).is_file() for file in files)), None)


def need_files(release: Release, folder: Path, files: Sequence[str], places: Sequence[str]) -> Path:
    """Return the first of some places below ``folder`` that contains these files; raise if some are missing."""
    found = find_folder(folder, files, places)
    if found is None:
        searched = " or ".join(str(folder / place) for place in places)
        raise DataError(f"{release.name} needs {', '.join(files)}; none is in {searched}; {release.remedy}.")
    absent = [file for file in files if not (found / file).is_file()]
    if absent:
        raise DataError(f"{release.name} in {found} lacks {', '.join(absent)}; {release.remedy}.")
    return found


def download_folder(root: Path | None) -> Path:
    """Return the folder for downloads: the user's folder, or a cache in the home directory."""
    return Path.home() / ".cache" / "pencil" if root is None else root.expanduser()


def download(dataset: str, target: Path, missing: str, remedy: str, *, allowed: bool) -> None:
    """Download a dataset with torchvision; ``missing`` and ``remedy`` word the error if it fails or is not allowed."""
    if not allowed:
        raise DataError(f"{missing}, and downloads are disabled; {remedy}.")
    import torchvision.datasets

    try:
        getattr(torchvision.datasets, dataset)(str(target), download=True)
    except (OSError, RuntimeError) as error:
        raise DataError(f"{missing}, and the download failed ({error}); {remedy}.") from error


def read_list(path: Path, /, **columns: pa.DataType) -> pa.Table:
    """Read a headerless, whitespace-separated text file as Arrow columns, which keeps a million rows small."""
    from pyarrow import csv

    reading = csv.ReadOptions(column_names=list(columns), use_threads=False)  # threads do not report the row number
    parsing = csv.ParseOptions(delimiter=" ", quote_char=False)
    with unreadable(path, f"expected rows of {' '.join(columns)}"):
        return csv.read_csv(path, reading, parsing, csv.ConvertOptions(column_types=columns, null_values=[""]))


def unreadable(path: Path, expected: str) -> AbstractContextManager[None]:
    """Convert the errors of Arrow and of the system for a damaged file into a DataError."""
    advice = f"{expected}; download it again"
    return explained(DataError, f"cannot read {path}", advice, OSError, pa.ArrowException)


def look_up(keys: Any, known: Any, fault: Callable[[Any, int], str]) -> np.ndarray:
    """Return the row of each key among the known keys; ``fault`` words the error for an unknown key and its row."""
    rows = pc.index_in(keys, value_set=known)
    if rows.null_count:
        row = pc.index(rows.is_null(), True).as_py()
        raise DataError(f"{fault(keys[row].as_py(), row)}; download the files again.")
    found: np.ndarray = rows.to_numpy().astype(np.int64)
    return found


def need_range(labels: np.ndarray, first: int, last: int, path: Path) -> None:
    """Raise unless all labels of a list are between the first and the last class; the message names the line."""
    good = (labels >= first) & (labels <= last)
    if not good.all():
        line = int(good.argmin())
        raise DataError(
            f"label {labels[line]} in line {line + 1} of {path} is not a class; expected {first} to {last}; "
            "download it again."
        )


def need_count(option: str, value: Any, least: int) -> int:
    """Return an option, which may be any value in a recipe; raise unless it is an integer of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise DataError(f"data.options.{option} is {value!r}; expected an integer of at least {least}; change it.")
    return value
