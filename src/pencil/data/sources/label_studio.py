"""The JSON export of a Label Studio project: the votes of all annotators as a table, one line per vote."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa

from pencil.data.bad_rows import BadRows
from pencil.data.rows import Rows
from pencil.data.settings import DataSettings
from pencil.data.sources.table import rows_of_table
from pencil.errors import DataError
from pencil.files import LARGEST_IMPORT, parse_json, read_regular

LOCAL_FILES = "/data/local-files/?d="
"""How Label Studio writes the path of a file of local storage."""
KEY, ANNOTATOR, LABEL = "key", "annotator", "label"


def read(path: Path, settings: DataSettings, *, new: bool = False) -> Rows:
    """Return the rows of a JSON export: the fields of every task, and the choice of each annotator.

    The key is the field ``key`` if there is one, as in tasks that pencil wrote, otherwise the id of the task. Images of
    local storage become paths below ``data.root``, by default the folder of the file.

    Raises
    ------
    DataError
        If the file is not an export, or an annotation does not have exactly one choice.
    """
    try:
        tasks = parse_json(read_regular(path, LARGEST_IMPORT))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"cannot read {path}: {error}; expected the JSON export of Label Studio.") from error
    if not isinstance(tasks, list) or not all(
        isinstance(one, dict) and isinstance(one.get("data"), dict) for one in tasks
    ):
        raise DataError(
            f"{path} is not a list of tasks with their data; expected the JSON export of Label Studio (not JSON-MIN); "
            "export the project again."
        )
    lines = [line for task in tasks for line in _lines(path, task)]
    if not lines:
        raise DataError(f"{path} has no tasks; expected at least one; export the project again.")
    names = dict.fromkeys(name for line in lines for name in line)
    table = pa.table({name: [line.get(name) for line in lines] for name in names})
    columns = {KEY: KEY, ANNOTATOR: ANNOTATOR, LABEL: LABEL} | settings.columns.model_dump(exclude_none=True)
    root = path.parent if settings.root is None else settings.root
    chosen = settings.model_copy(update={"columns": type(settings.columns)(**columns), "root": root})
    return rows_of_table(table, chosen, BadRows(str(path), np.arange(len(lines))), new=new)


def _lines(path: Path, task: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a line for each annotation of a task; one line without a label if there is none."""
    number = task.get("id")
    fields: dict[str, Any] = {KEY: str(task["data"].get(KEY, number))}
    for name, value in task["data"].items():
        if isinstance(value, str) and value.startswith(LOCAL_FILES):
            fields["path"] = unquote(value.removeprefix(LOCAL_FILES))
        elif isinstance(value, str | int | float) and name not in (ANNOTATOR, LABEL, KEY):
            fields[name] = value
    answers = [one for one in _objects(task.get("annotations")) if not one.get("was_cancelled")]
    for answer in answers:
        results = [one.get("value") for one in _objects(answer.get("result")) if one.get("type") == "choices"]
        lists = [value.get("choices") for value in results if isinstance(value, dict)]
        choices = [choice for one in lists if isinstance(one, list) for choice in one]
        if len(choices) != 1:
            raise DataError(
                f"{path}: an annotation of task {number} has {len(choices)} choices; expected one class; remove the "
                "annotation, or let annotators choose one class."
            )
        yield {**fields, ANNOTATOR: _name(answer.get("completed_by")), LABEL: str(choices[0])}
    if not answers:
        yield {**fields, ANNOTATOR: None, LABEL: None}


def _objects(value: Any) -> list[dict[str, Any]]:
    """Return the objects in a list; none if it is not a list."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _name(person: Any) -> str:
    """Return the name of an annotator, who is an id or an object with an email address."""
    return str(person.get("email") or person.get("id")) if isinstance(person, dict) else str(person)
