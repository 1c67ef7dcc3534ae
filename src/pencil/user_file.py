"""Methods and models from a user's own Python file, referred to as ``my_file.py:Name``."""

import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

from pencil.errors import PencilError, RecipeError


def split_reference(name: str) -> tuple[Path, str] | None:
    """Return the file and the name in it, or None if this is not such a reference."""
    path, colon, attribute = name.rpartition(":")
    return (Path(path).expanduser(), attribute) if colon and path.endswith(".py") else None


def load_module(path: Path, wanted: str) -> ModuleType:
    """Import a user's file; it is executed again only if it has changed.

    Parameters
    ----------
    path : Path
        The file.
    wanted : str
        The name that is looked for, for the message if there is no such file.

    Raises
    ------
    RecipeError
        If the file does not exist or raises an exception.
    """
    if not path.is_file():
        raise RecipeError(f"{path} does not exist; expected a Python file that defines {wanted}.")
    return _load(path.resolve(), path.stat().st_mtime_ns)


@cache
def _load(path: Path, _modified: int) -> ModuleType:
    name = f"pencil_user_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle find a class by its module
    try:
        spec.loader.exec_module(module)
    except PencilError:
        raise
    except (Exception, SystemExit) as error:
        raise RecipeError(f"{path} cannot be loaded: {type(error).__name__}: {error}") from error
    return module
