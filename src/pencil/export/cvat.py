"""CVAT: tags in its XML for images, version 1.1, the labels of a task, and the answers in such a file."""

import json
from collections.abc import Iterator
from pathlib import Path
from xml.etree.ElementTree import Element, ParseError, SubElement, TreeBuilder, XMLParser, fromstring, tostring

from pencil.errors import RunError
from pencil.export.answers import Answer
from pencil.export.contents import Contents, Row
from pencil.files import atomic_write
from pencil.runs.label_table import LabelTable

ANNOTATIONS, LABELS, IMAGES = "annotations.xml", "labels.json", "images"
BY_A_PERSON = ("manual", "semi-auto")
"""The sources of tags that a person made or changed; uploaded tags have another source."""


def save_cvat(labels: LabelTable, contents: Contents, out: Path, version: str) -> str:
    """Write ``annotations.xml``, to upload to a task with these images, and ``labels.json``, to create the task.

    Images without a file are written to ``images``. Returns the location of the task's images.
    """
    with atomic_write(out, folder=True) as folder:
        with (folder / ANNOTATIONS).open("w", encoding="utf-8") as file:
            file.write('<?xml version="1.0" encoding="utf-8"?>\n<annotations>\n<version>1.1</version>\n')
            file.write(tostring(_meta(labels, version), encoding="unicode") + "\n")
            for number, row in enumerate(contents.images(labels, "CVAT", folder / IMAGES)):
                file.write(tostring(_image(row, number), encoding="unicode") + "\n")
            file.write("</annotations>\n")
        tags = [{"name": name, "type": "tag", "attributes": []} for name in labels.classes]
        (folder / LABELS).write_text(json.dumps(tags, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return f"create the task with the images in {out / IMAGES if (out / IMAGES).is_dir() else contents.folder}"


def _meta(labels: LabelTable, version: str) -> Element:
    meta = Element("meta")
    task = SubElement(meta, "task")
    for name, text in (("name", version), ("size", str(labels.num_rows)), ("mode", "annotation")):
        SubElement(task, name).text = text
    listed = SubElement(task, "labels")
    for name in labels.classes:
        label = SubElement(listed, "label")
        SubElement(label, "name").text = name
        SubElement(label, "type").text = "tag"
        SubElement(label, "attributes")
    return meta


def _image(row: Row, number: int) -> Element:
    width, height = row.shown.size
    image = Element("image", id=str(number), name=row.shown.name, width=str(width), height=str(height))
    for name in [row.corrected] if isinstance(row.corrected, str) else row.corrected:
        SubElement(image, "tag", label=name, source="auto")
    return image


class _WithoutDocumentType(TreeBuilder):
    """Parses XML without a document type, because its entities could exhaust the memory."""

    def doctype(self, *_: str | None) -> None:
        """Refuse a document type, whatever the encoding of the file."""
        raise ValueError("it has a document type, which CVAT does not write")


def read_cvat(source: Path, content: bytes) -> Iterator[Answer]:
    """Yield the tags of every image of an XML file; tags that a person made according to CVAT are ``seen``."""
    try:
        top = fromstring(content, XMLParser(target=_WithoutDocumentType()))
    except (ParseError, ValueError, LookupError, TypeError) as error:  # the others: invalid encodings
        raise RunError(f"{source} is not XML ({error}); expected {ANNOTATIONS} of CVAT; export it again.") from error
    if top.tag != "annotations":
        raise RunError(
            f"{source} is XML with the element {top.tag!r}; expected 'annotations'; export as CVAT for images 1.1."
        )
    if top.find("track") is not None:
        raise RunError(f"{source} has tracks of a video; expected images; export the task as CVAT for images 1.1.")
    for number, image in enumerate(top.findall("image"), 1):
        position, name = f"image {number}", image.get("name")
        if not name:
            raise RunError(f"{source}: {position} has no name; expected the path of an image; export the task again.")
        tags = image.findall("tag")
        missing = [tag for tag in tags if tag.get("label") is None]
        if missing:
            raise RunError(f"{source}: {position} ({name!r}) has a tag without a label; expected one; export it again.")
        seen = any(tag.get("source") in BY_A_PERSON for tag in tags)
        yield Answer(position, name, None, tuple(str(tag.get("label")) for tag in tags), seen=seen)
