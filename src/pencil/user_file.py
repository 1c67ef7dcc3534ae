"""A user's own Python file, named as ``my_file.py:Name``: a method or a model that pencil does not ship."""

import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

from pencil.errors import PencilError, RecipeError


def split_reference(name: str) -> tuple[Path, str] | None:
    """The file and the name in it, or None where this is not such a reference."""
    path, colon, attribute = name.rpartition(":")
    return (Path(path).expanduser(), attribute) if colon and path.endswith(".py") else None


def load_module(path: Path, wanted: str) -> ModuleType:
    """The file as a module; it is run once for each version of it."""
    if not path.is_file():
        raise RecipeError(f"{path} does not exist; expected a Python file that defines {wanted}.")
    return _load(path.resolve(), path.stat().st_mtime_ns)


@cache
def _load(path: Path, modified: int) -> ModuleType:
    name = f"pencil_user_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look a class up by its module
    try:
        spec.loader.exec_module(module)
    except PencilError:
        raise
    except (Exception, SystemExit) as error:
        raise RecipeError(f"{path} cannot be loaded: {type(error).__name__}: {error}") from error
    return module
