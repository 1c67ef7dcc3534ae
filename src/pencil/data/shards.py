"""Data in shards, which no memory need hold: a folder of WebDataset tar files or of Parquet files.

A row is known by its shard and its name or number in it. Labels are read as those of a table are; an image is read by
the process that needs it, when it needs it.
"""

import os
import re
import tarfile
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from pencil.data.bad_rows import SKIP
from pencil.data.columns import LABEL_COLUMNS, NOT_INPUTS, refuse_unknown
from pencil.data.examples import Splits
from pencil.data.images import SUFFIXES as IMAGES
from pencil.data.images import ImageInputs
from pencil.data.inputs import Inputs
from pencil.data.keys import as_keys, refuse_repeated_keys
from pencil.data.parquet_shards import SUFFIXES as PARQUET
from pencil.data.parquet_shards import ParquetIndex
from pencil.data.regular_files import is_within, refuse_undecodable
from pencil.data.settings import DataSettings
from pencil.data.table import SPLIT_NAMES, Known, has_images, read_keys, read_splits, unlabelled_inputs
from pencil.data.tar_shards import SUFFIXES as TAR
from pencil.data.tar_shards import TarIndex, wanted_fields
from pencil.errors import DataError

IN_NAME = re.compile(r"([a-z]+)[-_.]")
"""The split at the beginning of the name of a shard, such as ``train-00000-of-00004.parquet``."""


def find_shards(folder: Path) -> list[str]:
    """Return the shards of a folder by their relative paths, sorted; none for a folder of something else.

    They are in the folder itself, which then has no sub-folder and no image, or in sub-folders named after splits.

    Raises
    ------
    DataError
        If there are shards of both kinds.
    """
    found, inner = _look(folder)
    if inner:
        by_split = {name: _look(folder / name)[0] for name in inner} if set(inner) <= set(SPLIT_NAMES) else {}
        whole = "train" in by_split and all(by_split.values())
        found = [f"{name}/{file}" for name, files in by_split.items() for file in files] if whole else []
    if len({Path(name).suffix.lower() for name in found}) > 1:
        raise DataError(f"{folder} has .tar and .parquet files; expected shards of one kind; separate them.")
    return sorted(found)


def _look(folder: Path) -> tuple[list[str], list[str]]:
    """Return the names of the shards in a folder, none where images lie beside them, and those of its sub-folders."""
    try:
        with os.scandir(folder) as entries:
            visible = [(entry.name, entry.is_dir()) for entry in entries if not entry.name.startswith(".")]
    except OSError as error:
        raise DataError(
            f"cannot read the folder {folder}: {error.strerror}; expected a folder of data; check its permissions."
        ) from error
    files = [name for name, is_folder in visible if not is_folder]
    shards = [name for name in files if name.lower().endswith((*TAR, *PARQUET)) and (folder / name).is_file()]
    has_images = any(name.lower().endswith(IMAGES) for name in files) if shards else False
    return [] if has_images else shards, [name for name, is_folder in visible if is_folder]


def from_shards(path: Path, settings: DataSettings, classes: Sequence[str] | None) -> Splits:
    """Return the splits of a folder of shards, or of one tar file; see ``docs/data.md``."""
    table, known, root = _read(path, settings)
    columns = settings.columns
    if known.inputs is not None:
        columns = columns.model_copy(update={"image": None})
        if not columns.labels and not any(name in table.column_names for name in LABEL_COLUMNS):
            raise DataError(
                f"{path} has no labels; expected NAME.cls, or NAME.json with the field 'label', beside each NAME.jpg "
                "of a tar file, or a column 'label'; name another one with data.columns.label."
            )
    splits = read_splits(
        path, table, columns, classes, root, settings.multilabel, settings.bad_rows, known.keys, known=known
    )
    refuse_repeated_keys(np.concatenate([part.keys for part in vars(splits).values() if part is not None]))
    return splits


def read_shard_inputs(path: Path, settings: DataSettings) -> tuple[Inputs, Sequence[str]]:
    """Return the inputs of a folder of shards, or of one tar file, and their keys; labels are not read."""
    columns = settings.columns.model_copy(update=dict.fromkeys(NOT_INPUTS))
    table, known, root = _read(path, settings.model_copy(update={"columns": columns}))
    inputs, keys = known.inputs, None
    if inputs is None:
        inputs, keys = unlabelled_inputs(path, table, columns, root)
    elif columns.key is not None:
        refuse_unknown(path, table, columns.model_copy(update={"image": None}))
        keys = read_keys(path, table, columns)
    found = known.keys if columns.key is None and known.keys is not None else keys
    assert found is not None
    return inputs, found.tolist()


def _read(path: Path, settings: DataSettings) -> tuple[pa.Table, Known, Path]:
    """Return the columns in memory, what else is known about the rows, and the folder of relative paths."""
    folder, shards = (path, find_shards(path)) if path.is_dir() else (path.parent, [path.name])
    within = (folder,) if settings.root is None else (settings.root.expanduser(), folder)
    for shard in shards:
        refuse_undecodable(folder / shard)
        if not is_within(folder / shard, within):
            raise DataError(
                f"{folder / shard} is behind a link that leads out of {folder}; expected a file in the folder; copy "
                "it, or name a folder that holds both with data.root."
            )
    read = _read_tar if Path(shards[0]).suffix.lower() in TAR else _read_parquet
    table, known = read(path, folder, shards, settings)
    return table, known, folder if settings.root is None else settings.root.expanduser()


def _read_tar(path: Path, folder: Path, shards: Sequence[str], settings: DataSettings) -> tuple[pa.Table, Known]:
    index, rows = TarIndex(folder, wanted_fields(settings.columns), str(path)), list[int]()
    for shard in shards:
        before, reason = len(index), None
        try:
            index.add(shard)
        except (OSError, tarfile.TarError) as error:
            reason = str(error)
        rows.append(len(index) - before)
        _settle_damaged(folder / shard, reason, rows[-1], "an uncompressed tar file", settings)
    images = index.images()
    _refuse_empty(path, len(images), "a sample with an image")
    return index.table(), Known(ImageInputs(images), images.names, _splits(shards, rows), index.bad)


def _read_parquet(path: Path, folder: Path, shards: Sequence[str], settings: DataSettings) -> tuple[pa.Table, Known]:
    index = ParquetIndex(folder, settings.columns)
    for shard in shards:
        reason = None
        try:
            index.add(shard)
        except (OSError, pa.ArrowException) as error:
            reason = str(error).splitlines()[0]
        _settle_damaged(folder / shard, reason, 0, "a Parquet file", settings)
    _refuse_empty(path, len(index), "a row")
    try:
        table = index.table()
    except pa.ArrowException as error:
        raise DataError(
            f"the files of {path} have different columns: {str(error).splitlines()[0]}; expected the same columns in "
            "all of them; convert them."
        ) from error
    splits = _splits(index.shards, index.rows)
    if index.image is None and has_images(table, settings.columns):  # in files, whose paths are the keys
        return table, Known(splits=splits)
    keys = as_keys(index.names())
    return table, Known(None if index.image is None else ImageInputs(index.images(keys)), keys, splits)


def _settle_damaged(shard: Path, reason: str | None, rows: int, expected: str, settings: DataSettings) -> None:
    """Raise if a shard is damaged, or warn that only the rows before the damage are used, as ``bad_rows`` asks."""
    if reason is None:
        return
    if settings.bad_rows == "error":
        raise DataError(
            f"{shard} is damaged: {reason}; expected {expected}; copy it again, or {SKIP} (of this one {rows:,} rows "
            "would be left)."
        )
    warnings.warn(f"{shard} is damaged: {reason}; of its rows the first {rows:,} are used", stacklevel=4)


def _refuse_empty(path: Path, rows: int, expected: str) -> None:
    if not rows:
        raise DataError(f"{path} has no rows; expected at least {expected}; check the files.")


def _splits(shards: Sequence[str], rows: Sequence[int]) -> np.ndarray | None:
    """Return the split of each row by the folders or the names of the shards; None where they name none."""
    names = []
    for shard in shards:
        inner, _, file = shard.rpartition("/")
        match = IN_NAME.match(file.lower())
        names.append(SPLIT_NAMES.get(inner or (match[1] if match else ""), ""))
    return None if "" in names or "train" not in names else np.repeat(np.array(names), rows)
