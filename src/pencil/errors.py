"""Errors and warnings that a user can act on: what was seen, where, what was expected and what to do."""

import contextlib
import json
import logging
import re
import shlex
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ARGUMENTS = {
    "data.classes": "classes",
    "data.columns.label": "label",
    "data.multilabel": "multilabel",
}
"""Recipe keys that are arguments of :func:`pencil.fit`."""
_callers = ["Python"]
"""Stack of interfaces that show the messages; the last one is active."""


@contextmanager
def on_command_line() -> Iterator[None]:
    """Phrase remedies as command-line options instead of Python arguments."""
    _callers.append("command line")
    try:
        yield
    finally:
        _callers.pop()


_fixed = [False]
"""Stack of whether the settings are those of a finished run."""


@contextmanager
def settings_fixed() -> Iterator[None]:
    """Phrase remedies for data passed to a trained network: the data can be changed, but not the settings."""
    _fixed.append(True)
    try:
        yield
    finally:
        _fixed.pop()


def can_set() -> bool:
    """Return whether the remedy may be a setting."""
    return not _fixed[-1]


def on_cli() -> bool:
    """Return whether messages are shown on the command line."""
    return _callers[-1] == "command line"


def setting(key: str, value: Any) -> str:
    """Return what the caller writes to set a key of the recipe, ready to paste; names in capitals are placeholders.

    On the command line this is ``--set data.bad_rows=skip``, in Python an argument of :func:`pencil.fit`:
    ``settings={"data.bad_rows": "skip"}``, or ``label="NAME"`` where there is an argument for the key.
    """
    if on_cli():
        text = value if isinstance(value, str) else json.dumps(value)
        return f"--set {shlex.quote(f'{key}={text}')}"
    if key in ARGUMENTS:
        return f"{ARGUMENTS[key]}={_literal(value)}"
    return f"settings={{{_literal(key)}: {_literal(value)}}}"


def command(name: str, path: Path | str | None, *words: str) -> str:
    """Return a command of pencil on a run, in backquotes and ready to paste, whatever characters its path has."""
    return f"`{' '.join(['pencil', name, shlex.quote(str(path)), *words])}`"


def argument(name: str) -> str:
    """Return how the caller writes an argument: ``--out`` on the command line, ``out=...`` in Python."""
    return f"--{name}" if on_cli() else f"{name}=..."


def _literal(value: Any) -> str:
    """Return a value as a Python literal, with strings in double quotes."""
    return repr(value) if isinstance(value, bool) or value is None else json.dumps(value, ensure_ascii=False)


class PencilError(Exception):
    """Base class of pencil's errors. The command line prints the message and exits with code 2."""


class DataError(PencilError, ValueError):
    """The data cannot be used for training as it is."""


class RecipeError(PencilError, ValueError):
    """A recipe, an override or an argument is wrong."""


class ModelError(PencilError, ValueError):
    """The network does not fit the data."""


class TrainingError(PencilError, RuntimeError):
    """Training cannot continue; it stopped before weights or labels were damaged."""


class RunError(PencilError, OSError):
    """A run directory cannot be written or read."""


class PencilWarning(UserWarning):
    """Base class of pencil's warnings: training goes on, but something deserves attention."""


class DataWarning(PencilWarning):
    """Rows were skipped, ignored or matched in a way that may not be intended."""


class MethodWarning(PencilWarning):
    """The method or the network does something other than what was asked for, or cannot help."""


def warn(message: str, category: type[PencilWarning]) -> None:
    """Issue a warning at the line that called pencil, and log it under ``pencil`` unless a filter ignores it."""
    if not _is_ignored(message, category):
        logging.getLogger("pencil").warning(message)
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(WITHIN):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


WITHIN = (str(Path(__file__).parent), contextlib.__file__)
"""Files whose lines are not the caller's."""


def _is_ignored(message: str, category: type[Warning]) -> bool:
    """Return whether the first matching filter that applies to all modules is "ignore"."""
    for action, text, kind, module, line in warnings.filters:
        everywhere = module is None and not line
        if everywhere and issubclass(category, kind) and (text is None or re.match(text, message)):
            return action == "ignore"
    return False


def reason_of(error: BaseException) -> str:
    """Return the system's reason for an error, else the first line of its message, else its type."""
    reason: str = getattr(error, "strerror", None) or str(error).strip() or type(error).__name__
    return reason.splitlines()[0]


@contextmanager
def explained(kind: type[PencilError], what: str, advice: str, *faults: type[Exception]) -> Iterator[None]:
    """Raise ``kind`` in place of these errors: what failed, why, and what to do. Keep pencil's own errors."""
    try:
        yield
    except PencilError:
        raise
    except faults as error:
        raise kind(f"{what}: {reason_of(error)}; {advice}.") from error


class Stopped(PencilError):  # noqa: N818 - not a failure
    """Training was interrupted, saved its state and can be resumed. The command line exits with code 75.

    ``path`` is the directory of the run, if it has one.
    """

    path: Path | None = None
