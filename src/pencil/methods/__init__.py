"""Methods: one file each, one line each in this table."""

import importlib.util
import inspect
from pathlib import Path
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


def _from_file(path: Path, attribute: str) -> type[Method]:
    if not path.is_file():
        raise RecipeError(f"{path} does not exist; expected a Python file that defines {attribute}.")
    spec = importlib.util.spec_from_file_location(f"pencil_user_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: Any = getattr(module, attribute, None)
    if not (inspect.isclass(found) and issubclass(found, Method)):
        names = [n for n, value in vars(module).items() if inspect.isclass(value) and issubclass(value, Method)]
        raise RecipeError(
            f"{path} defines no method {attribute!r}; expected a subclass of pencil.methods.Method"
            + (f"; it has {', '.join(n for n in names if n != 'Method')}." if len(names) > 1 else ".")
        )
    return found
