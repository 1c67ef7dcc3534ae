"""Label Studio: tasks with a prediction each, and the answers in its JSON and JSON-MIN exports."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from pencil.data.sources.label_studio import LOCAL_FILES
from pencil.errors import RunError
from pencil.export.answers import Answer
from pencil.export.contents import Contents, Row
from pencil.export.json_rows import as_classes, need, numbered, write_rows
from pencil.files import atomic_write
from pencil.runs.label_table import LabelTable

TASKS, CONFIG = "tasks.json", "config.xml"
CHOICES = "label"
"""The name of the choices in the labelling interface and in the answers."""


def save_label_studio(labels: LabelTable, contents: Contents, out: Path, version: str) -> str:
    """Write ``tasks.json`` and ``config.xml``, the labelling interface, to a new folder.

    Image files are referenced by the URLs under which Label Studio serves local files; other images are embedded in the
    tasks. Rows of a table become text. Returns instructions for Label Studio to find the images, if it needs any.
    """
    root = contents.folder.parent
    served = False
    shows = "text"

    def tasks() -> Iterator[dict[str, Any]]:
        nonlocal served, shows
        for row in contents.rows(labels):
            shows = "image" if row.shown.name else "text"
            served = served or row.shown.file is not None
            yield _task(row, shows, root, version)

    with atomic_write(out, folder=True) as folder:
        write_rows(folder / TASKS, tasks())
        (folder / CONFIG).write_text(_config(labels, shows), encoding="utf-8")
    if not served:
        return ""
    return (
        f"start Label Studio with LABEL_STUDIO_LOCAL_FILES_SERVING_ENABLED=true and "
        f"LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT={root}, and add {contents.folder} as local storage of the project"
    )


def _task(row: Row, shows: str, root: Path, version: str) -> dict[str, Any]:
    chosen = [row.corrected] if isinstance(row.corrected, str) else list(row.corrected)
    result = {"from_name": CHOICES, "to_name": shows, "type": "choices", "value": {"choices": chosen}}
    prediction = {"model_version": version, "score": row.confidence, "result": [result] if chosen else []}
    about = {"key": row.key, "split": row.split, "given": row.given, "issue_score": row.issue_score}
    return {"data": {shows: _content(row, root), **about}, "predictions": [prediction]}


def _content(row: Row, root: Path) -> str:
    shown = row.shown
    if not shown.name:
        return shown.text
    if shown.file is None:
        return shown.data_address()
    inside = shown.file.is_relative_to(root)
    return LOCAL_FILES + quote((shown.file.relative_to(root) if inside else shown.file.relative_to("/")).as_posix())


def _config(labels: LabelTable, shows: str) -> str:
    view = Element("View")
    SubElement(view, shows.capitalize(), name=shows, value=f"${shows}")
    how = {"choice": "multiple"} if labels.multilabel else {"choice": "single", "required": "true"}
    choices = SubElement(view, "Choices", {"name": CHOICES, "toName": shows, "showInline": "true", **how})
    for name in labels.classes:
        SubElement(choices, "Choice", value=name)
    indent(view)
    return tostring(view, encoding="unicode") + "\n"


def read_label_studio(source: Path, tasks: Iterable[Any]) -> Iterator[Answer]:
    """Yield the answers of a JSON export, full or minimal; within a task the oldest first, ground truth last.

    A task without an annotation has no answer, and a cancelled annotation is a skip.
    """
    for position, task in numbered(source, "task", tasks):
        if "data" in task:
            yield from _full(source, position, task)
        elif task.get("annotation_id") is not None:
            key, split = (need(source, position, task, name) for name in ("key", "split"))
            classes = as_classes(source, position, _minimal_choice(task.get(CHOICES, [])))
            yield Answer(position, key, split, classes, str(task.get("updated_at") or ""))


def _full(source: Path, position: str, task: Mapping[str, Any]) -> Iterator[Answer]:
    data, annotations = task["data"], task.get("annotations")
    if not isinstance(data, dict) or not isinstance(annotations, list):
        raise RunError(
            f"{source}: {position} has no object data or no list of annotations; expected the JSON export of a "
            "Label Studio project; export it as JSON or JSON-MIN."
        )
    made = [one for one in annotations if isinstance(one, dict)]
    for one in sorted(made, key=lambda one: (bool(one.get("ground_truth")), _time(one))):
        key, split = (need(source, position, data, name) for name in ("key", "split"))
        classes = None if one.get("was_cancelled") else _choices(source, position, one)
        yield Answer(position, key, split, classes, _time(one))


def _time(annotation: Mapping[str, Any]) -> str:
    return str(annotation.get("updated_at") or annotation.get("created_at") or "")


def _choices(source: Path, position: str, annotation: Mapping[str, Any]) -> tuple[str, ...]:
    results = annotation.get("result") or []
    chosen: list[str] = []
    for result in results if isinstance(results, list) else []:
        if isinstance(result, dict) and result.get("type") == "choices" and result.get("from_name") == CHOICES:
            value = result.get("value") or {}
            if not isinstance(value, dict):
                raise RunError(
                    f"{source}: {position} has the value {str(value)[:40]!r}; expected an object with a list of "
                    "choices, as Label Studio writes it; export the project again as JSON or JSON-MIN."
                )
            chosen += as_classes(source, position, value.get("choices", []))
    if results and not chosen:
        raise RunError(
            f"{source}: {position} has results, but none of them is a choice named {CHOICES!r}; expected the labelling "
            f"interface of {CONFIG}; set up the project with it."
        )
    return tuple(chosen)


def _minimal_choice(value: Any) -> Any:
    """Return the choices of JSON-MIN, where a single choice is a text and several choices are an object."""
    return value.get("choices", value) if isinstance(value, dict) else value


def is_label_studio(tree: Any) -> bool:
    """Return whether this is a JSON or JSON-MIN export of Label Studio."""
    return (
        isinstance(tree, list)
        and all(isinstance(task, dict) for task in tree[:1])
        and bool(not tree or {"annotations", "annotation_id"} & tree[0].keys())
    )
