"""Open Images V4 to V6 as a multi-label dataset: human labels where available, otherwise machine labels."""

import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from pencil.data.datasets.official_files import Release, need_count, need_folder, read_list, unreadable
from pencil.data.examples import Examples, Splits
from pencil.data.given.given_labels import as_indicators
from pencil.data.inputs.images import ImageFiles, ImageInputs
from pencil.data.sources.key_column import column_keys
from pencil.errors import DataError, explained
from pencil.seeding import generator

RELEASE = Release(
    "Open Images",
    "the image-level labels (train-annotations-human-imagelabels.csv, train-annotations-machine-imagelabels.csv, "
    "validation-annotations-human-imagelabels.csv, test-annotations-human-imagelabels.csv), class-descriptions.csv, "
    "classes-trainable.txt, and images as train/ID.jpg, validation/ID.jpg and test/ID.jpg",
)
BLOCK = 64 * 2**20
"""Bytes of a label file that are read at once: a few hundred thousand of its eighty million rows."""


def open_images(
    root: Path | None = None,
    *,
    classes: int = 250,
    train_images: int = 500,
    validation_images: int = 100,
    test_images: int = 50,
    seed: int = 0,
) -> Splits:
    """Load images and labels of some classes; only images on disk are used.

    An image is positive for a class if its label is at least 0.5. Training uses human labels where available, otherwise
    the machine's confidence; validation and test always use human labels. Classes are drawn from those with the
    requested number of positive images in every split. If there are too few, all of them are used, followed by the
    classes that come closest: ordered by their smallest fraction of the requested number in any split, then by their
    number of training images. Each class contributes at most the requested number of its images, drawn by the seed; an
    image of several classes appears once. An entry without a label is 0 in training and unknown (NaN) elsewhere.

    Parameters
    ----------
    root
        The folder with the images and label files.
    classes
        Number of classes to choose.
    train_images, validation_images, test_images
        The requested number of positive images per class; 0 omits validation or test.
    seed
        Seed for drawing classes and images.
    """
    options = {"train": train_images, "validation": validation_images, "test": test_images}
    wanted = {split: need_count(f"{split}_images", n, int(split == "train")) for split, n in options.items()}
    need_count("classes", classes, 2)
    need_count("seed", seed, 0)
    folder = need_folder(RELEASE, root)
    names = _class_names(folder)
    ids = pa.array(names)
    parts = {split: _read_split(folder, split, ids) for split, number in wanted.items() if number}
    counts = np.stack([np.bincount(part.label[part.value >= 0.5], minlength=len(ids)) for part in parts.values()])
    chosen = choose_classes(counts, np.array([wanted[split] for split in parts]), classes, seed)
    labels = [ids[int(index)].as_py() for index in chosen]
    shown = _distinct([(label, names[label]) for label in labels])
    return Splits(
        **{split: _examples(folder / split, part, chosen, shown, wanted[split], seed) for split, part in parts.items()}
    )


class _Labels(NamedTuple):
    """The labels of a split: one value for each (image, class) with a label, sorted by image."""

    split: str
    images: Any
    image: np.ndarray
    label: np.ndarray
    value: np.ndarray


def choose_classes(counts: np.ndarray, wanted: np.ndarray, number: int, seed: int) -> np.ndarray:
    """Return class indices, in order; ``counts`` has the positive images of each split (row) and class (column)."""
    full = np.flatnonzero((counts >= wanted[:, None]).all(axis=0))
    if len(full) >= number:
        order = torch.randperm(len(full), generator=generator(seed, "open_images", "classes")).numpy()
        return np.sort(full[order[:number]])
    usable = np.flatnonzero(counts[0])
    if len(usable) < number:
        raise DataError(
            f"{len(usable)} classes of Open Images have a positive training image on disk; expected {number}; "
            f"download more images or set data.options.classes={len(usable)}."
        )
    fraction = np.minimum(counts / wanted[:, None], 1).min(axis=0)[usable]
    nearest = np.lexsort((usable, -counts[0][usable], -fraction))
    return np.sort(usable[nearest[:number]])


def _examples(
    folder: Path, part: _Labels, chosen: np.ndarray, classes: tuple[str, ...], limit: int, seed: int
) -> Examples:
    column = np.full(int(chosen.max()) + 1, -1)
    column[chosen] = np.arange(len(chosen))
    among = np.isin(part.label, chosen)
    image, label, value = part.image[among], column[part.label[among]], part.value[among]
    drawn = np.zeros(len(part.images), dtype=bool)
    for index, name in enumerate(classes):
        positive = image[(label == index) & (value >= 0.5)]
        order = torch.randperm(len(positive), generator=generator(seed, "open_images", part.split, name)).numpy()
        drawn[positive[order[:limit]]] = True
    rows = np.flatnonzero(drawn)
    if not len(rows):
        raise DataError(
            f"no image in {folder} is positive for any of the {len(classes)} chosen classes; expected at least one; "
            f"download more images, or omit the split with data.options.{part.split}_images=0."
        )
    given = np.full((len(rows), len(chosen)), 0 if part.split == "train" else np.nan, dtype=np.float32)
    kept = drawn[image]
    given[np.searchsorted(rows, image[kept]), label[kept]] = value[kept]
    files = part.images.take(pa.array(rows))
    keys = column_keys(files)
    inputs = ImageInputs(ImageFiles(folder, column_keys(pc.binary_join_element_wise(files, ".jpg", ""))))
    return Examples(inputs, torch.arange(len(keys)), as_indicators(given, keys=keys), classes, keys, multilabel=True)


def _read_split(folder: Path, split: str, ids: pa.Array) -> _Labels:
    images = _on_disk(folder / split)
    image, label, value = _known(_find(folder, f"{split}-annotations-human-imagelabels.csv"), images, ids)
    if split == "train":
        machine = _known(_find(folder, f"{split}-annotations-machine-imagelabels.csv"), images, ids)
        image, label, value = (np.concatenate(pair) for pair in zip((image, label, value), machine, strict=True))
    pairs, first = np.unique(
        image.astype(np.int64) * len(ids) + label, return_index=True
    )  # human labels take precedence over machine labels
    return _Labels(
        split, images, (pairs // len(ids)).astype(np.int32), (pairs % len(ids)).astype(np.int32), value[first]
    )


def _known(path: Path, images: pa.Array, ids: pa.Array) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return image, class and confidence of the rows about known images and classes, as numbers.

    The file is read in blocks: eighty million rows of names would not fit in memory, but their numbers do.
    """
    from pyarrow import csv

    columns = {"ImageID": pa.string(), "LabelName": pa.string(), "Confidence": pa.float32()}
    convert = csv.ConvertOptions(column_types=columns, include_columns=list(columns))
    found: list[tuple[np.ndarray, ...]] = [(np.zeros(0, np.int32), np.zeros(0, np.int32), np.zeros(0, np.float32))]
    line = 2
    with (
        unreadable(path, f"expected the columns {', '.join(columns)}"),
        csv.open_csv(path, csv.ReadOptions(block_size=BLOCK), convert_options=convert) as blocks,
    ):
        for block in blocks:
            found.append(_block(block, images, ids, path, line))
            line += block.num_rows
    image, label, value = (np.concatenate(column) for column in zip(*found, strict=True))
    return image, label, value


def _block(block: Any, images: pa.Array, ids: pa.Array, path: Path, line: int) -> tuple[np.ndarray, ...]:
    value = block["Confidence"]
    good = pc.fill_null(pc.and_(pc.greater_equal(value, 0), pc.less_equal(value, 1)), False)
    if not pc.all(good, min_count=0).as_py():
        row = pc.index(good, False).as_py()
        raise DataError(
            f"the confidence in line {line + row} of {path} is {value[row].as_py()}; expected 0 to 1; "
            "download it again."
        )
    label = pc.index_in(block["LabelName"], value_set=ids)
    of_class = label.is_valid()
    image = pc.index_in(block["ImageID"].filter(of_class), value_set=images)
    on_disk = image.is_valid()
    kept = (image.filter(on_disk), label.filter(of_class).filter(on_disk), value.filter(of_class).filter(on_disk))
    return tuple(column.to_numpy(zero_copy_only=False) for column in kept)


def _class_names(folder: Path) -> dict[str, str]:
    """Return the display names of the trainable classes by label, or of all classes if there is no list of them."""
    from pyarrow import csv

    path = _find(folder, "class-descriptions.csv")
    options = csv.ReadOptions(column_names=["LabelName", "DisplayName"])
    text = csv.ConvertOptions(column_types={"LabelName": pa.string(), "DisplayName": pa.string()})
    with unreadable(path, "expected labels and names"):
        table = csv.read_csv(path, options, convert_options=text)
    names = dict(zip(table["LabelName"].to_pylist(), table["DisplayName"].to_pylist(), strict=True))
    names.pop("LabelName", None)  # V6 has a header, V4 and V5 have none
    trainable = _look_for(folder, "classes-trainable.txt")
    if trainable is None:
        return names
    listed = [label for label in read_list(trainable, label=pa.string())["label"].to_pylist() if label != "LabelName"]
    return {label: names.get(label, label) for label in listed}


def _distinct(classes: list[tuple[str, str]]) -> tuple[str, ...]:
    """Return display names, with the label appended if two classes share a name."""
    shown = [name for _, name in classes]
    return tuple(name if shown.count(name) == 1 else f"{name} ({label})" for label, name in classes)


def _on_disk(folder: Path) -> pa.Array:
    with explained(DataError, f"cannot read the folder {folder}", RELEASE.remedy, OSError), os.scandir(folder) as files:
        found = pa.array((file.name[:-4] for file in files if file.name.endswith(".jpg")), pa.string())
    if not len(found):
        raise DataError(f"{folder} contains no images; expected files ID.jpg; {RELEASE.remedy}.")
    return found.sort()


def _find(folder: Path, name: str) -> Path:
    found = _look_for(folder, name)
    if found is None:
        raise DataError(
            f"Open Images needs *{name}; it is not in {folder} or {folder / 'annotations'}; {RELEASE.remedy}."
        )
    return found


def _look_for(folder: Path, name: str) -> Path | None:
    """Return a file with any prefix; the first by name, so that V6 files (``oidv6-``) come before older ones."""
    places = (folder, folder / "annotations")
    return next((path for place in places for path in sorted(place.glob(f"*{name}"))), None)
