"""What the loaders of official datasets share: finding their files, reading their lists, saying what to fetch."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.dtypes import StringDType

from pencil.errors import DataError

CHUNK = 65536


class Release(NamedTuple):
    """A dataset as it is published: its name, and the files to fetch where it is missing."""

    name: str
    fetch: str

    @property
    def remedy(self) -> str:
        return f"fetch {self.fetch}, unpack into a folder and name it with --set data.root=FOLDER"


def need_folder(release: Release, root: Path | None) -> Path:
    """The folder that the user named; these datasets are not downloaded for anyone."""
    if root is None:
        raise DataError(f"no folder is named for {release.name} (data.root); {release.remedy}.")
    folder = root.expanduser()
    if not folder.is_dir():
        raise DataError(f"{release.name} was looked for in {folder}, which is not a folder; {release.remedy}.")
    return folder


def find_folder(folder: Path, files: Sequence[str], places: Sequence[str]) -> Path | None:
    """The first of some places below ``folder`` that holds any of these files."""
    return next((folder / place for place in places if any((folder / place / file).is_file() for file in files)), None)


def need_files(release: Release, folder: Path, files: Sequence[str], places: Sequence[str]) -> Path:
    """The first of some places below ``folder`` that holds these files; all of them, or it says which are missing."""
    found = find_folder(folder, files, places)
    if found is None:
        looked = " or ".join(str(folder / place) for place in places)
        raise DataError(f"{release.name} needs {', '.join(files)}; none is in {looked}; {release.remedy}.")
    absent = [file for file in files if not (found / file).is_file()]
    if absent:
        raise DataError(f"{release.name} in {found} lacks {', '.join(absent)}; {release.remedy}.")
    return found


def download_folder(root: Path | None) -> Path:
    return Path.home() / ".cache" / "pencil" if root is None else root.expanduser()


def download(dataset: str, target: Path, missing: str, remedy: str) -> None:
    """Have torchvision fetch one of its datasets, or say what is missing, why, and what to do by hand."""
    import torchvision.datasets

    try:
        getattr(torchvision.datasets, dataset)(str(target), download=True)
    except (OSError, RuntimeError) as error:
        raise DataError(f"{missing}, and the download failed ({error}); {remedy}.") from error


def read_list(path: Path, /, **columns: pa.DataType) -> pa.Table:
    """A text file of rows parted by blanks, without a header; Arrow columns, so a million rows stay small."""
    from pyarrow import csv

    try:
        return csv.read_csv(
            path,
            csv.ReadOptions(column_names=list(columns), use_threads=False),  # or messages would not number the row
            csv.ParseOptions(delimiter=" ", quote_char=False),
            csv.ConvertOptions(column_types=columns, null_values=[""]),
        )
    except (OSError, pa.ArrowException) as error:
        raise DataError(
            f"cannot read {path}: {str(error).splitlines()[0]}; expected rows of {' '.join(columns)}; fetch it again."
        ) from error


def look_up(keys: Any, known: Any, fault: Callable[[Any, int], str]) -> np.ndarray:
    """The row of each key among the known ones; ``fault`` words what is wrong with a key, and its row, that is not."""
    rows = pc.index_in(keys, value_set=known)
    if rows.null_count:
        row = pc.index(rows.is_null(), True).as_py()
        raise DataError(f"{fault(keys[row].as_py(), row)}; fetch the files again.")
    found: np.ndarray = rows.to_numpy().astype(np.int64)
    return found


def need_range(labels: np.ndarray, first: int, last: int, path: Path) -> None:
    """Labels of a list lie between the first and last class, or the line is named."""
    good = (labels >= first) & (labels <= last)
    if not good.all():
        line = int(good.argmin())
        raise DataError(
            f"label {labels[line]} in line {line + 1} of {path} is not a class; expected {first} to {last}."
        )


def need_count(option: str, value: Any, least: int) -> int:
    """Options come from a recipe, where they may be anything."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise DataError(f"data.options.{option} is {value!r}; expected a whole number from {least}.")
    return value


def arrow_keys(column: Any, suffix: str = "") -> np.ndarray:
    """Keys from an Arrow column, never all of them as Python strings at once."""
    keys = np.empty(len(column), dtype=StringDType())
    for start in range(0, len(column), CHUNK):
        keys[start : start + CHUNK] = [f"{key}{suffix}" for key in column[start : start + CHUNK].to_pylist()]
    return keys
