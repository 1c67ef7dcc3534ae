"""Clothing1M: a million shop images in 14 classes, labelled from the surrounding text; some are labelled by hand."""

from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from pencil.data.datasets.official_files import (
    Release,
    look_up,
    need_count,
    need_files,
    need_folder,
    need_range,
    read_list,
)
from pencil.data.examples import Examples, Splits
from pencil.data.inputs.images import ImageFiles, ImageInputs
from pencil.data.sources.key_column import column_keys
from pencil.errors import DataError
from pencil.seeding import generator

RELEASE = Release("Clothing1M", "the images (0.tar to 9.tar) and the key and label lists of its authors")
SPLITS = {"train": "noisy_train", "validation": "clean_val", "test": "clean_test"}
LABELS = {"noisy": "noisy_label_kv.txt", "clean": "clean_label_kv.txt"}
FILES = (*(f"{name}_key_list.txt" for name in SPLITS.values()), *LABELS.values())
NAMES = "category_names_eng.txt"
CLASSES = (
    "T-Shirt", "Shirt", "Knitwear", "Chiffon", "Sweater", "Hoodie", "Windbreaker", "Jacket", "Downcoat", "Suit",
    "Shawl", "Dress", "Vest", "Underwear",
)  # fmt: skip


def clothing1m(root: Path | None = None, *, per_class: int | Literal["all"] | None = 18571, seed: int = 0) -> Splits:
    """Load Clothing1M: noisy labels to train on, clean labels to validate and test on.

    Parameters
    ----------
    root
        The folder with the images and lists.
    per_class
        Training images per class of a pseudo-balanced subset (balanced by noisy labels), at most the size of the
        smallest class; 18,571 give about 260,000 images. None, or "all" in a recipe, uses all images.
    seed
        Seed of the subset.
    """
    folder = need_folder(RELEASE, root)
    lists = need_files(RELEASE, folder, FILES, ("", "annotations"))
    limit = None if per_class in (None, "all") else need_count("per_class", per_class, 1)
    classes = _class_names(lists / NAMES)
    parts = {}
    for split, name in SPLITS.items():
        labels_file = lists / LABELS[name.partition("_")[0]]
        keys, labels = _read(lists / f"{name}_key_list.txt", labels_file, len(classes))
        if split == "train" and limit is not None:
            rows = balanced(labels, limit, classes, need_count("seed", seed, 0))
            keys, labels = keys.take(pa.array(rows.numpy())), labels[rows.numpy()]
        names = column_keys(keys)
        inputs = ImageInputs(ImageFiles(folder, names))
        parts[split] = Examples(inputs, torch.arange(len(names)), torch.from_numpy(labels), classes, names)
    return Splits(**parts)


def balanced(labels: np.ndarray, per_class: int, classes: tuple[str, ...], seed: int) -> Tensor:
    """Return rows with equally many of every class, drawn by the seed, in order."""
    counts = np.bincount(labels, minlength=len(classes))
    if not counts.all():
        empty = classes[int(counts.argmin())]
        raise DataError(
            f"class {empty!r} has no noisy label; expected labels of every class; download the lists again."
        )
    size = min(per_class, int(counts.min()))
    chosen = []
    for index in range(len(classes)):
        order = torch.randperm(int(counts[index]), generator=generator(seed, "clothing1m", index))
        chosen.append(torch.from_numpy(np.flatnonzero(labels == index))[order[:size]])
    return torch.cat(chosen).sort().values


def _read(keys_file: Path, labels_file: Path, num_classes: int) -> tuple[pa.ChunkedArray, np.ndarray]:
    keys = read_list(keys_file, key=pa.string())["key"]
    table = read_list(labels_file, key=pa.string(), label=pa.int64())
    labels: np.ndarray = table["label"].to_numpy()
    need_range(labels, 0, num_classes - 1, labels_file)
    rows = look_up(
        keys, table["key"], lambda key, row: f"{key!r} in line {row + 1} of {keys_file} has no label in {labels_file}"
    )
    return keys, labels[rows]


def _class_names(path: Path) -> tuple[str, ...]:
    if not path.is_file():
        return CLASSES
    names = tuple(line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip())
    if len(names) != len(CLASSES):
        raise DataError(
            f"{path} has {len(names)} class names; expected {len(CLASSES)}, one in each line; download it again."
        )
    return names
