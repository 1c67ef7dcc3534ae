"""Methods: one file each, one line each in this table."""

import importlib.util
import inspect
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from pencil.errors import RecipeError
from pencil.methods.base import Method, Phase, Task, Terms, fit_budget
from pencil.methods.cross_entropy import CrossEntropy
from pencil.methods.pencil import Pencil

__all__ = ["METHODS", "CrossEntropy", "Method", "Pencil", "Phase", "Task", "Terms", "find_method", "fit_budget"]

METHODS: dict[str, type[Method]] = {
    "cross_entropy": CrossEntropy,
    "pencil": Pencil,
}


def find_method(name: str) -> type[Method]:
    """A method by name, or a user's own as ``my_file.py:MyMethod``."""
    if name in METHODS:
        return METHODS[name]
    path, colon, attribute = name.rpartition(":")
    if colon and path.endswith(".py"):
        return _from_file(Path(path).expanduser(), attribute)
    raise RecipeError(f"there is no method {name!r}; expected {', '.join(METHODS)}, or my_file.py:MyMethod.")


@cache
def _load(path: Path, modified: int) -> ModuleType:
    """A user's file as a module, run once for each version of it."""
    name = f"pencil_user_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look a class up by its module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise RecipeError(f"{path} cannot be loaded: {type(error).__name__}: {error}") from error
    return module


def _from_file(path: Path, attribute: str) -> type[Method]:
    if not path.is_file():
        raise RecipeError(f"{path} does not exist; expected a Python file that defines {attribute}.")
    module = _load(path.resolve(), path.stat().st_mtime_ns)
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
