"""Microsoft COCO as a multi-label dataset with its 80 object classes."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch

from pencil.data.datasets.official_files import Release, look_up, need_count, need_files, need_folder
from pencil.data.examples import Examples, Splits
from pencil.data.given.given_labels import as_indicators
from pencil.data.inputs.images import ImageFiles, ImageInputs
from pencil.data.keys import as_keys
from pencil.errors import DataError

KEPT = ("images", "annotations", "categories", "id", "image_id", "category_id", "file_name", "name")


def coco(root: Path | None = None, *, year: int = 2014) -> Splits:
    """Load the training images of a year, 2014 or 2017, and its validation images as test set.

    The labels of the test images are not public. Images without any annotated object are dropped: 82,081 and 40,137
    of 2014 remain.
    """
    need_count("year", year, 2014)
    release = Release(f"COCO {year}", f"train{year}.zip, val{year}.zip and annotations_trainval{year}.zip")
    files = tuple(f"instances_{part}{year}.json" for part in ("train", "val"))
    folder = need_folder(release, root)
    found = need_files(release, folder, files, ("annotations", ""))
    train, test = (_read(found / file) for file in files)
    if train.categories != test.categories:
        raise DataError(
            f"{found / files[1]} has other categories than {files[0]}; expected the same; download both again."
        )
    return Splits(_examples(train, folder / f"train{year}"), test=_examples(test, folder / f"val{year}"))


class _Annotated(NamedTuple):
    categories: tuple[tuple[int, str], ...]
    file_names: list[str]
    indicators: np.ndarray


def _examples(part: _Annotated, folder: Path) -> Examples:
    keys = as_keys(part.file_names)
    given = as_indicators(part.indicators, keys=keys)
    classes = tuple(name for _, name in part.categories)
    return Examples(
        ImageInputs(ImageFiles(folder, keys)), torch.arange(len(keys)), given, classes, keys, multilabel=True
    )


def _read(path: Path) -> _Annotated:
    try:
        with path.open(encoding="utf-8") as stream:
            content = json.load(stream, object_hook=_slim)
        categories = tuple(sorted((int(entry["id"]), str(entry["name"])) for entry in content["categories"]))
        ids = np.array([entry["id"] for entry in content["images"]], dtype=np.int64)
        names = [str(entry["file_name"]) for entry in content["images"]]
        image = np.array([entry["image_id"] for entry in content["annotations"]], dtype=np.int64)
        category = np.array([entry["category_id"] for entry in content["annotations"]], dtype=np.int64)
    except (OSError, ValueError, KeyError, TypeError) as error:
        seen = f"there is no {error}" if isinstance(error, KeyError) else str(error)
        raise DataError(
            f"cannot read {path}: {seen}; expected images, annotations and categories; download it again."
        ) from error
    indicators = np.zeros((len(ids), len(categories)), dtype=np.float32)
    rows = _positions(image, ids, path, "image_id")
    indicators[
        rows, _positions(category, np.array([i for i, _ in categories], dtype=np.int64), path, "category_id")
    ] = 1
    annotated = np.flatnonzero(indicators.any(axis=1))
    return _Annotated(categories, [names[row] for row in annotated.tolist()], indicators[annotated])


def _slim(entry: dict[str, Any]) -> dict[str, Any]:
    """Drop the outlines of objects, nine tenths of the file, while reading."""
    return {key: entry[key] for key in KEPT if key in entry}


def _positions(values: np.ndarray, known: np.ndarray, path: Path, what: str) -> np.ndarray:
    def fault(value: int, row: int) -> str:
        return f"annotation {row} of {path} has the {what} {value}, which the file does not list; expected a listed one"

    return look_up(pa.array(values), pa.array(known), fault)
