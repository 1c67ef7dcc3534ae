"""Argilla: a dataset as ``rg.Dataset.from_disk`` reads it, and the answers in the records that it exports."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pencil.errors import RunError
from pencil.export.answers import Answer
from pencil.export.json_rows import as_classes, need, numbered, write_rows
from pencil.export.shown import Contents, Row
from pencil.files import atomic_write
from pencil.runs.label_table import LabelTable

RECORDS, FOLDER = "records.json", ".argilla"
QUESTION = "label"


def save_argilla(labels: LabelTable, contents: Contents, out: Path, version: str) -> str:
    """Write records with a suggestion each, and the settings of their dataset, to a new folder.

    Parameters
    ----------
    labels : LabelTable
        The rows, in the order of the records.
    contents : Contents
        What the rows show: images, or the rows of a table as texts.
    out : Path
        A folder that does not exist yet.
    version : str
        The name of the dataset, and the agent of the suggestions.

    Returns
    -------
    str
        Empty: nothing is left to do.
    """
    shows = "text"

    def records() -> Iterator[dict[str, Any]]:
        nonlocal shows
        for row in contents.rows(labels):
            shows = "image" if row.shown.name else "text"
            yield _record(row, shows, version)

    with atomic_write(out, folder=True) as folder:
        write_rows(folder / RECORDS, records())
        (folder / FOLDER).mkdir()
        dataset = {"name": version, "guidelines": None, "allow_extra_metadata": True, "status": "draft"}
        for name, tree in (("settings.json", _settings(labels, shows)), ("dataset.json", dataset)):
            (folder / FOLDER / name).write_text(json.dumps(tree, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
    return ""


def _record(row: Row, shows: str, version: str) -> dict[str, Any]:
    shown = row.shown
    content = shown.text if shows == "text" else shown.data_address() if shown.file is None else str(shown.file)
    metadata = {"key": row.key, "split": row.split, "issue_score": row.issue_score}
    if row.given is not None:
        metadata["given"] = row.given if isinstance(row.given, str) else list(row.given)
    several = not isinstance(row.corrected, str)
    value = list(row.corrected) if several else row.corrected
    score = [row.confidence] * len(row.corrected) if several else row.confidence
    suggestion = {QUESTION: {"value": value, "score": score, "agent": version}} if row.corrected else {}
    return {
        "id": f"{row.split}/{row.key}",
        "fields": {shows: content},
        "metadata": metadata,
        "suggestions": suggestion,
        "responses": {},
        "vectors": {},
    }


def _settings(labels: LabelTable, shows: str) -> dict[str, Any]:
    kind = "multi_label_selection" if labels.multilabel else "label_selection"
    options = [{"text": name, "value": name} for name in labels.classes]
    question = {"type": kind, "options": options, "visible_options": None}
    if labels.multilabel:
        question["options_order"] = "natural"
    field = {"type": "image"} if shows == "image" else {"type": "text", "use_markdown": False}
    metadata = (("split", {"type": "terms", "values": None}), ("issue_score", {"type": "float"}))
    return {
        "guidelines": None,
        "questions": [{"name": QUESTION, "title": QUESTION, "required": True, "settings": question, "type": kind}],
        "fields": [{"name": shows, "title": shows, "required": True, "settings": field, "type": shows}],
        "vectors": [],
        "metadata": [
            {"name": name, "title": name, "settings": settings, "visible_for_annotators": True}
            for name, settings in metadata
        ],
        "allow_extra_metadata": True,
        "distribution": {"strategy": "overlap", "min_submitted": 1},
        "mapping": None,
    }


def read_argilla(source: Path, records: Iterable[Any]) -> Iterator[Answer]:
    """Yield the responses of every record that is completed, the last of a record last.

    Raises
    ------
    RunError
        If a record is not one of an export of `save_argilla`.
    """
    for position, record in numbered(source, "record", records):
        responses = record.get("responses") or {}
        if not responses or record.get("status") == "pending":  # a draft of somebody
            continue
        metadata, answers = record.get("metadata"), responses.get(QUESTION) if isinstance(responses, dict) else None
        if not isinstance(metadata, dict) or not isinstance(answers, list):
            raise RunError(
                f"{source}: {position} has no metadata, or no responses to the question {QUESTION!r}; expected records "
                "of the dataset that `pencil labels` wrote."
            )
        for answer in answers:
            key, split = (need(source, position, metadata, name) for name in ("key", "split"))
            value = answer.get("value") if isinstance(answer, dict) else None
            yield Answer(position, key, split, None if value is None else as_classes(source, position, value))


def is_argilla(tree: Any) -> bool:
    """Return whether these are records of Argilla."""
    return (
        isinstance(tree, list)
        and bool(tree)
        and isinstance(tree[0], dict)
        and {"fields", "responses"} <= tree[0].keys()
    )
