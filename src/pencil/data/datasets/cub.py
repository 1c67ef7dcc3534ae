"""CUB-200-2011: 11,788 photographs of 200 species of birds."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import torch

from pencil.data.datasets.official_files import (
    Release,
    look_up,
    need_files,
    need_folder,
    need_range,
    read_list,
)
from pencil.data.examples import Examples, Splits
from pencil.data.inputs.images import ImageFiles, ImageInputs
from pencil.data.sources.key_column import column_keys
from pencil.errors import DataError

RELEASE = Release("CUB-200-2011", "CUB_200_2011.tgz")
FILES = ("images.txt", "image_class_labels.txt", "train_test_split.txt", "classes.txt")


def cub200(root: Path | None = None) -> Splits:
    """Load the official split into training and test images; class names come from classes.txt."""
    folder = need_files(RELEASE, need_folder(RELEASE, root), FILES, ("CUB_200_2011", ""))
    images = read_list(folder / "images.txt", id=pa.int64(), path=pa.string())
    keys = column_keys(images["path"])
    classes = read_list(folder / "classes.txt", id=pa.int64(), name=pa.string())
    names = tuple(classes["name"].to_pylist())
    if classes["id"].to_pylist() != list(range(1, len(names) + 1)):
        raise DataError(
            f"{folder / 'classes.txt'} does not number its classes from 1; expected 1, 2, 3, ...; download it again."
        )
    labels = _by_image(folder / "image_class_labels.txt", images["id"], 1, len(names)) - 1
    is_train = _by_image(folder / "train_test_split.txt", images["id"], 0, 1) == 1
    inputs = ImageInputs(ImageFiles(folder / "images", keys))
    every = Examples(inputs, torch.arange(len(keys)), torch.from_numpy(labels), names, keys)
    return Splits(every.subset(_rows(is_train)), test=every.subset(_rows(~is_train)))


def _by_image(path: Path, ids: pa.ChunkedArray, first: int, last: int) -> np.ndarray:
    """Return the value of each image in a list, in image order."""
    table = read_list(path, id=pa.int64(), value=pa.int64())
    look_up(
        table["id"],
        ids,
        lambda key, row: f"image {key} in line {row + 1} of {path} is not in images.txt; expected one of its images",
    )
    values: np.ndarray = table["value"].to_numpy()
    need_range(values, first, last, path)
    rows = look_up(
        ids,
        table["id"],
        lambda key, row: f"image {key} in line {row + 1} of images.txt is not in {path}; expected every image",
    )
    by_image: np.ndarray = values[rows]
    return by_image


def _rows(chosen: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.flatnonzero(chosen))
