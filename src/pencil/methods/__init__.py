"""Methods: one file each, one line each in this table."""

import inspect
from pathlib import Path
from typing import Any

from pencil.errors import RecipeError
from pencil.methods.base import Method, Phase, Task, Terms, fit_budget
from pencil.methods.cross_entropy import CrossEntropy
from pencil.methods.pencil import Pencil
from pencil.user_file import load_module, split_reference

__all__ = ["METHODS", "CrossEntropy", "Method", "Pencil", "Phase", "Task", "Terms", "find_method", "fit_budget"]

METHODS: dict[str, type[Method]] = {
    "cross_entropy": CrossEntropy,
    "pencil": Pencil,
}


def find_method(name: str) -> type[Method]:
    """A method by name, or a user's own as ``my_file.py:MyMethod``."""
    if name in METHODS:
        return METHODS[name]
    own = split_reference(name)
    if own is not None:
        return _from_file(*own)
    raise RecipeError(f"there is no method {name!r}; expected {', '.join(METHODS)}, or my_file.py:MyMethod.")


def _from_file(path: Path, attribute: str) -> type[Method]:
    module = load_module(path, attribute)
    found: Any = getattr(module, attribute, None)
    if not (inspect.isclass(found) and issubclass(found, Method)):
        methods = [
            name
            for name, value in vars(module).items()
            if inspect.isclass(value) and issubclass(value, Method) and value.__module__ == module.__name__
        ]
        hint = f"; it has {', '.join(methods)}." if methods else "."
        raise RecipeError(f"{path} defines no method {attribute!r}; expected a subclass of pencil.methods.Method{hint}")
    return found
