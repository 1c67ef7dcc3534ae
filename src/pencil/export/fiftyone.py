"""FiftyOne: a dataset in its layout on disk (FiftyOneDataset), and the answers in a re-exported dataset."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pencil.decisions import Label
from pencil.errors import RunError
from pencil.export.answers import Answer
from pencil.export.contents import Contents, Row
from pencil.export.json_rows import need, numbered, write_rows
from pencil.files import atomic_write
from pencil.runs.label_table import LabelTable

METADATA, SAMPLES = "metadata.json", "samples.json"
VERSION = "1.0.0"
"""The version of the written layout; FiftyOne migrates it to its own version."""
REVIEWED = "reviewed"
"""The field with a person's label; ``accept`` and ``reject`` are tags."""
KINDS = ("accept", "reject")


def save_fiftyone(labels: LabelTable, contents: Contents, out: Path, version: str) -> str:
    """Write a dataset with the fields given, corrected, issue_score, changed, key and split to a new folder.

    Image files stay where they are; images that have no file are written to ``data``. The splits are tags.
    """
    with atomic_write(out, folder=True) as folder:
        rows = contents.images(labels, "FiftyOne", folder / "data")
        samples = (_sample(row, number) for number, row in enumerate(rows))
        write_rows(folder / SAMPLES, samples, '{"samples": [', "]}")
        (folder / METADATA).write_text(json.dumps(_metadata(labels, version), indent=2) + "\n", encoding="utf-8")
    return ""


def _sample(row: Row, number: int) -> dict[str, Any]:
    first = 4 * number  # ids: the sample, then its labels
    return {
        "_id": _identity(first),
        "filepath": f"data/{row.shown.name}" if row.shown.file is None else str(row.shown.file),
        "tags": [row.split],
        "_media_type": "image",
        "_rand": (number * 0.6180339887) % 1,  # FiftyOne uses it for random views
        "key": row.key,
        "split": row.split,
        "given": _label(row.given, first + 1, None),
        "corrected": _label(row.corrected, first + 2, row.confidence),
        "issue_score": row.issue_score,
        "changed": row.changed,
    }


def _identity(number: int, inner: int = 0) -> dict[str, str]:
    return {"$oid": f"{inner:08x}{number:016x}"}


def _label(label: Label | None, number: int, confidence: float | None) -> dict[str, Any] | None:
    if label is None:
        return None
    names = [label] if isinstance(label, str) else label
    found: list[dict[str, Any]] = [
        {"_id": _identity(number, inner), "_cls": "Classification", "tags": [], "label": name, "confidence": confidence}
        for inner, name in enumerate(names)
    ]
    return found[0] if isinstance(label, str) else {"_cls": "Classifications", "classifications": found}


def _metadata(labels: LabelTable, version: str) -> dict[str, Any]:
    kind = "Classifications" if labels.multilabel else "Classification"
    fields = [
        _field("id", "ObjectIdField", stored="_id"),
        _field("filepath", "StringField"),
        _field("tags", "ListField", "StringField"),
        _field("metadata", "EmbeddedDocumentField", document="metadata.ImageMetadata"),
        _field("_media_type", "StringField"),
        _field("_rand", "FloatField"),
        _field("key", "StringField"),
        _field("split", "StringField"),
        *(
            _field(name, "EmbeddedDocumentField", document=f"labels.{kind}", fields=_label_fields(kind))
            for name in ("given", "corrected")
        ),
        _field("issue_score", "FloatField"),
        _field("changed", "BooleanField"),
    ]
    tables = ("classes", "mask_targets", "default_mask_targets", "skeletons", "group_media_types", "app_config")
    runs = ("annotation_runs", "brain_methods", "evaluations", "runs")
    return {
        "version": VERSION,
        "media_type": "image",
        "info": {"pencil run": version},
        "default_classes": list(labels.classes),
        "sample_fields": fields,
        **{name: {} for name in (*tables, *runs)},
        **{name: [] for name in ("tags", "frame_fields", "saved_views", "workspaces")},
    }


def _label_fields(kind: str) -> list[dict[str, Any]]:
    one = [
        _field("id", "ObjectIdField", stored="_id"),
        _field("tags", "ListField", "StringField"),
        _field("label", "StringField"),
        _field("confidence", "FloatField"),
        _field("logits", "VectorField"),
    ]
    if kind == "Classification":
        return one
    several = _field("classifications", "ListField", "EmbeddedDocumentField", "labels.Classification", one)
    return [several, _field("logits", "VectorField")]


def _field(
    name: str,
    kind: str,
    inner: str = "",
    document: str = "",
    fields: list[dict[str, Any]] | None = None,
    stored: str = "",
) -> dict[str, Any]:
    return {
        "name": name,
        "ftype": f"fiftyone.core.fields.{kind}",
        "subfield": f"fiftyone.core.fields.{inner}" if inner else None,
        "embedded_doc_type": f"fiftyone.core.{document}" if document else None,
        "fields": fields or [],
        "db_field": stored or name,
        "description": None,
        "info": None,
    }


def read_fiftyone(source: Path, tree: Mapping[str, Any]) -> Iterator[Answer]:
    """Yield the answers of ``samples.json``: the field ``reviewed``, else a tag ``accept`` or ``reject``."""
    for position, sample in numbered(source, "sample", tree["samples"]):
        tags = sample.get("tags") or []
        if not isinstance(tags, list):
            raise RunError(f"{source}: {position} has the tags {str(tags)[:40]!r}; expected a list of texts.")
        kinds = [kind for kind in KINDS if kind in tags]
        if len(kinds) > 1 and sample.get(REVIEWED) is None:
            raise RunError(
                f"{source}: {position} has the tags accept and reject; expected one of them; remove the other."
            )
        if sample.get(REVIEWED) is None and not kinds:
            continue
        key, split = (need(source, position, sample, name) for name in ("key", "split"))
        if sample.get(REVIEWED) is None:
            yield Answer(position, key, split, None, kind=kinds[0])
        else:
            yield Answer(position, key, split, _names(source, position, sample[REVIEWED]))


def _names(source: Path, position: str, field: Any) -> tuple[str, ...]:
    """Return the classes of a Classification or Classifications."""
    one = isinstance(field, dict) and field.get("_cls") == "Classification"
    labels = [field] if one else field.get("classifications") if isinstance(field, dict) else None
    if not isinstance(labels, list) or not all(
        isinstance(label, dict) and isinstance(label.get("label"), str) for label in labels
    ):
        raise RunError(
            f"{source}: {position} has the field {REVIEWED} {str(field)[:40]!r}; expected a Classification, or "
            "Classifications for multi-label data."
        )
    return tuple(label["label"] for label in labels)


def is_fiftyone(tree: Any) -> bool:
    """Return whether this is the file of samples of a FiftyOne dataset."""
    return isinstance(tree, dict) and isinstance(tree.get("samples"), list)
