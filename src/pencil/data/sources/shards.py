"""Data in shards, which need not fit into memory: a folder of WebDataset tar files or of Parquet files.

A row is identified by its shard and its name or number in it. Labels are read like those of a table; an image is read
on demand by the process that needs it.
"""

import os
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pencil.data.columns import LABEL_COLUMNS, NOT_INPUTS, OF_INPUTS, Columns, usual_column
from pencil.data.inputs.images import SUFFIXES as IMAGES
from pencil.data.inputs.images import ImageInputs
from pencil.data.rows import SPLIT_NAMES, Rows
from pencil.data.settings import DataSettings
from pencil.data.sources.folder import find_images
from pencil.data.sources.parquet_shards import SUFFIXES as PARQUET
from pencil.data.sources.parquet_shards import ParquetIndex
from pencil.data.sources.regular_files import is_within, refuse_undecodable
from pencil.data.sources.shard_files import ShardIndex
from pencil.data.sources.table import rows_of_table
from pencil.data.sources.table_files import with_label_values
from pencil.data.sources.tar_shards import SUFFIXES as TAR
from pencil.data.sources.tar_shards import TarIndex
from pencil.errors import DataError, DataWarning, explained, reason_of, setting, warn
from pencil.files import refuse_irregular

IN_NAME = re.compile(r"([a-z]+)[-_.]")
"""The split at the start of a shard's name, such as ``train-00000-of-00004.parquet``."""
COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")
MARKS = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd")
"""The first bytes of files compressed by gzip, bzip2, xz and zstd."""


def find_shards(folder: Path) -> list[str]:
    """Return the shards of a folder by their relative paths, sorted; empty for other folders.

    They are in the folder itself, without sub-folders or images beside them, or in sub-folders named after splits.
    """
    files, inner = _look(folder)
    found = _shards_in(folder, files)
    if inner:
        splits = inner if set(inner) <= set(SPLIT_NAMES) else []
        by_split = {name: _shards_in(folder / name, _look(folder / name)[0]) for name in splits}
        whole = "train" in by_split and all(by_split.values())
        found = [f"{name}/{file}" for name, files in by_split.items() for file in files] if whole else []
    if len({Path(name).suffix.lower() for name in found}) > 1:
        raise DataError(f"{folder} has .tar and .parquet files; expected shards of one kind; separate them.")
    return sorted(found)


def refuse_misplaced(folder: Path) -> None:
    """Raise if a folder has neither images nor usable shards, but shards elsewhere; the message says where."""
    files, inner = _look(folder)
    packed = [name for name in files if name.lower().endswith(COMPRESSED)]
    within = [name for name in inner if _shards_in(folder / name, _look(folder / name)[0])]
    beside = _shards_in(folder, files) if inner else []
    if not (packed or within or beside) or next(find_images(folder, folder), None) is not None:
        return
    if beside:
        raise DataError(
            f"{folder} has shards, such as {beside[0]!r}, beside the folder {min(inner)!r}; expected no folders other "
            "than train, val and test, with all shards in them; move it away."
        )
    if within:
        raise DataError(
            f"{folder} contains no images; expected images or shards in the folder itself, or in train, val and test; "
            f"there are shards in {within[0]}/; use that folder: {folder / within[0]}."
        )
    raise DataError(
        f"{folder} has compressed tar files, such as {packed[0]!r}; expected {' or '.join((*TAR, *PARQUET))} files, "
        "in which images can be read at their position; decompress them to .tar files."
    )


def _look(folder: Path) -> tuple[list[str], list[str]]:
    """Return the names of the files and of the sub-folders of a folder."""
    advice = "expected a folder of data; check its permissions"
    with explained(DataError, f"cannot read the folder {folder}", advice, OSError), os.scandir(folder) as entries:
        visible = sorted((entry.name, entry.is_dir()) for entry in entries if not entry.name.startswith("."))
    return [name for name, is_folder in visible if not is_folder], [name for name, is_folder in visible if is_folder]


def _shards_in(folder: Path, files: Sequence[str]) -> list[str]:
    """Return which files of a folder are shards; empty if there are images beside them."""
    shards = [name for name in files if name.lower().endswith((*TAR, *PARQUET)) and (folder / name).is_file()]
    return [] if shards and any(name.lower().endswith(IMAGES) for name in files) else shards


def read(path: Path, settings: DataSettings, *, new: bool = False) -> Rows:
    """Return the rows of a folder of shards, or of one tar file; see ``docs/data.md``.

    Parameters
    ----------
    path
        The folder or file.
    settings
        The role of each column or field; relative image paths start at ``root``, by default the folder.
    new
        Whether these are new inputs for a trained network: labels are not read.
    """
    columns = settings.columns
    if new:
        columns = columns.model_copy(update=dict.fromkeys({*NOT_INPUTS} - {"ignore"}))
    index = _index(path, columns, settings)
    table, keys = index.table(), index.keys()
    images = index.images(keys)
    if images is not None:
        columns = columns.model_copy(update=dict.fromkeys(OF_INPUTS))
        if not new and not columns.labels and usual_column(table, LABEL_COLUMNS) is None:
            raise DataError(
                f"{path} has no labels; expected NAME.cls, or NAME.json with the field 'label', beside each NAME.jpg "
                "of a tar file, or a column 'label'; name another one with "
                f"{setting('data.columns.label', 'NAME')}."
            )
    if isinstance(index, TarIndex) and not new:
        table = with_label_values(path, table, columns, settings.classes)
    splits = None if new or columns.split is not None else _splits(path, list(index.versions), index.rows)
    root = settings.root or (path if path.is_dir() else path.parent)
    chosen = settings.model_copy(update={"columns": columns, "root": root})
    inputs = None if images is None else ImageInputs(images)
    return rows_of_table(table, chosen, index.bad, inputs=inputs, keys=keys, splits=splits, new=new)


def _index(path: Path, columns: Columns, settings: DataSettings) -> ShardIndex:
    """Index all shards; shards behind a link that leads out of their folder are refused."""
    folder, shards = (path, find_shards(path)) if path.is_dir() else (path.parent, [path.name])
    within = (path,) if settings.root is None else (settings.root.expanduser(), path)
    for shard in shards:
        refuse_undecodable(folder / shard)
        if path.is_dir() and not is_within(path / shard, within):
            raise DataError(
                f"{path / shard} is behind a link that leads out of {path}; expected a file in the folder; copy "
                f"it, or set a folder that contains both with {setting('data.root', 'FOLDER')}."
            )
    kind = TarIndex if shards[0].lower().endswith(TAR) else ParquetIndex
    index = kind(folder, columns, str(path))
    for shard in shards:
        before = len(index)
        try:
            index.add(shard)
        except index.faults as error:
            _settle_damaged(folder / shard, reason_of(error), len(index) - before, index.expected, settings)
    if not len(index):
        raise DataError(f"{path} has no rows; expected at least {index.one_row}; check the files.")
    return index


def _settle_damaged(shard: Path, reason: str, rows: int, expected: str, settings: DataSettings) -> None:
    """Raise, or warn that only the rows before the damage are used, depending on ``bad_rows``."""
    packed = _is_compressed(shard)
    seen = f"{shard} is compressed" if packed else f"{shard} is damaged: {reason}"
    if settings.bad_rows == "error":
        raise DataError(
            f"{seen}; expected {expected}; {'decompress it' if packed else 'copy it again'}, or skip its damaged rows "
            f"with {setting('data.bad_rows', 'skip')} ({rows:,} of its rows would remain)."
        )
    warn(f"{seen}; only its first {rows:,} rows are used", DataWarning)


def _is_compressed(shard: Path) -> bool:
    """Return whether a file is compressed as a whole; False if it cannot be opened."""
    try:
        refuse_irregular(shard)
        with shard.open("rb") as file:
            return file.read(8).startswith(MARKS)
    except OSError:  # this is also why it could not be read as a shard
        return False


def _splits(path: Path, shards: Sequence[str], rows: Sequence[int]) -> np.ndarray | None:
    """Return the split of each row from the folders or names of the shards; None if they name no split."""
    names = []
    for shard in shards:
        inner, _, file = shard.rpartition("/")
        match = IN_NAME.match(file.lower())
        names.append(SPLIT_NAMES.get(inner or (match[1] if match else ""), ""))
    if "" in names and any(names):
        first, other = (shards[names.index(name)] for name in (next(filter(None, names)), ""))
        raise DataError(
            f"the name of {first!r} in {path} begins with a split, but {other!r} does not; expected all names "
            f"to begin with one ({', '.join(SPLIT_NAMES)}) or none; rename or move such shards, or set a split column "
            f"with {setting('data.columns.split', 'NAME')}."
        )
    return None if "train" not in names else np.repeat(np.array(names), rows)
