"""COCO: a category for each class and an annotation of the whole image, and the answers in such a file."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pencil.errors import RunError
from pencil.export.answers import Answer
from pencil.export.json_rows import write_rows
from pencil.export.shown import Contents, Row
from pencil.files import atomic_write
from pencil.runs.label_table import LabelTable

ANNOTATIONS, IMAGES = "annotations.json", "images"


def save_coco(labels: LabelTable, contents: Contents, out: Path, version: str) -> str:
    """Write ``annotations.json`` to a new folder: images, categories, and annotations with a score.

    The box of an annotation is the whole image, as readers of detections need one. Images that have no file are
    written to ``images``.

    Parameters
    ----------
    labels : LabelTable
        The rows.
    contents : Contents
        What the rows show, which must be images.
    out : Path
        A folder that does not exist yet.
    version : str
        The description of the file.

    Returns
    -------
    str
        The folder that file names are relative to.
    """
    categories = {name: number for number, name in enumerate(labels.classes, 1)}
    annotations: list[dict[str, Any]] = []
    with atomic_write(out, folder=True) as folder:

        def images() -> Iterator[dict[str, Any]]:
            for number, row in enumerate(contents.images(labels, "COCO", folder / IMAGES), 1):
                image = _image(row, number)
                annotations.extend(_annotations(row, image, categories, len(annotations) + 1))
                yield image

        listed = [{"id": number, "name": name, "supercategory": ""} for name, number in categories.items()]
        before = json.dumps({"info": {"description": version}, "categories": listed}, ensure_ascii=False)
        write_rows(folder / ANNOTATIONS, images(), before[:-1] + ', "images": [', "],")
        with (folder / ANNOTATIONS).open("a", encoding="utf-8") as file:
            file.write('"annotations": [\n')
            file.write(",\n".join(map(json.dumps, annotations)))
            file.write("\n]}\n")
    return f"the names of images are relative to {out / IMAGES if (out / IMAGES).is_dir() else contents.folder}"


def _image(row: Row, number: int) -> dict[str, Any]:
    width, height = row.shown.size
    about = {"key": row.key, "split": row.split, "given": row.given, "issue_score": row.issue_score}
    return {"id": number, "file_name": row.shown.name, "width": width, "height": height, **about}


def _annotations(row: Row, image: Mapping[str, Any], categories: Mapping[str, int], first: int) -> list[dict[str, Any]]:
    width, height = image["width"], image["height"]
    whole = {"bbox": [0, 0, width, height], "area": width * height, "iscrowd": 0, "score": row.confidence}
    names = [row.corrected] if isinstance(row.corrected, str) else row.corrected
    return [
        {"id": first + place, "image_id": image["id"], "category_id": categories[name], **whole}
        for place, name in enumerate(names)
    ]


def read_coco(source: Path, tree: Mapping[str, Any]) -> Iterator[Answer]:
    """Yield the categories of every image, in any order of annotations; an image may have several of one category.

    Nothing in the format says who made an annotation, so no answer is ``seen``.

    Raises
    ------
    RunError
        If an annotation is of an image or a category that the file does not have.
    """
    names = {one["id"]: one["name"] for one in _entries(source, tree, "categories", ("id", "name"))}
    images = {one["id"]: one for one in _entries(source, tree, "images", ("id", "file_name"))}
    found: dict[Any, dict[str, None]] = {identity: {} for identity in images}
    for number, one in enumerate(_entries(source, tree, "annotations", ("image_id", "category_id")), 1):
        image, category = one["image_id"], one["category_id"]
        if image not in images or category not in names:
            seen = f"image {image!r}" if image not in images else f"category {category!r}"
            raise RunError(f"{source}: annotation {number} has {seen}, which the file does not list; export it again.")
        found[image][names[category]] = None
    for number, (identity, image) in enumerate(images.items(), 1):
        key, split = image.get("key"), image.get("split")
        known = isinstance(key, str) and isinstance(split, str)
        yield Answer(
            f"image {number}",
            str(key) if known else str(image["file_name"]),
            str(split) if known else None,
            tuple(found[identity]),
            seen=False,
        )


def _entries(source: Path, tree: Mapping[str, Any], name: str, fields: tuple[str, ...]) -> list[dict[str, Any]]:
    entries = tree.get(name)
    if not isinstance(entries, list):
        raise RunError(f"{source} has no list of {name}; expected a COCO file; export it again.")
    for number, entry in enumerate(entries, 1):
        missing = [
            field for field in fields if not isinstance(entry, dict) or not isinstance(entry.get(field), str | int)
        ]
        if missing:
            raise RunError(f"{source}: number {number} of its {name} has no {missing[0]}; expected a COCO file.")
    return entries


def is_coco(tree: Any) -> bool:
    """Return whether this is a COCO file."""
    return isinstance(tree, dict) and {"images", "categories"} <= tree.keys()
