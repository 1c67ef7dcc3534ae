"""Methods and models from a user's own Python file, referred to as ``my_file.py:Name``, and which files may run.

A recipe or a run may come from an untrusted source. A Python file that it names is executed only if the user also named
that file, or trusts the whole recipe. :class:`Trust` records this choice; :func:`load_module` checks it and is the only
function that executes a file.
"""

import importlib.util
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from pencil.errors import PencilError, RecipeError

PREFIX = "pencil_user_"
"""Prefix of the module name of a user's file."""


def split_reference(name: str) -> tuple[Path, str] | None:
    """Return the file and the name in it, or None if ``name`` is not such a reference."""
    path, colon, attribute = name.rpartition(":")
    return (Path(path).expanduser(), attribute) if colon and path.endswith(".py") else None


@dataclass(frozen=True)
class Trust:
    """Which Python files may be executed: the files that the user named, or everything that a recipe or run names."""

    files: frozenset[Path] = frozenset()
    everything: bool = False

    @classmethod
    def of(cls, tree: Mapping[str, Any], *, everything: bool = False) -> "Trust":
        """Return trust in the files that these recipe keys name; the user must have written the keys."""
        return cls(frozenset(path.resolve() for path in references(tree).values()), everything)

    def __or__(self, other: "Trust") -> "Trust":
        """Return trust in the files of both."""
        return Trust(self.files | other.files, self.everything or other.everything)

    def allows(self, path: Path) -> bool:
        """Return whether this file may be executed."""
        return self.everything or path.resolve() in self.files

    def refused(self, tree: Mapping[str, Any]) -> dict[str, Path]:
        """Return the existing files that these recipe keys name and that may not be executed, by key."""
        return {key: path for key, path in references(tree).items() if path.is_file() and not self.allows(path)}


NO_FILES = Trust()


def as_trust(trust: Trust | bool) -> Trust:
    """Return True as trust in every file, and False as trust in none."""
    return Trust(everything=trust) if isinstance(trust, bool) else trust


def references(tree: Mapping[str, Any]) -> dict[str, Path]:
    """Return the Python files that a recipe names, by key: ``method.name`` and ``model.name``."""
    found = {}
    for section in ("method", "model"):
        keys = tree.get(section)
        name = keys.get("name") if isinstance(keys, Mapping) else None
        own = split_reference(name) if isinstance(name, str) else None
        if own is not None:
            found[f"{section}.name"] = own[0]
    return found


def describe_refusal(origin: str, refused: Mapping[str, Path]) -> str:
    """Return one line: the files that a recipe would run, their keys, and the remedy."""
    files = " and ".join(f"the Python file {path} ({key})" for key, path in refused.items())
    return (
        f"{origin} would run {files}; expected a file that this command names; read it, then add --trust "
        "(from Python: trust=True)."
    )


def load_module(path: Path, wanted: str, trust: Trust) -> ModuleType:
    """Import a user's file; execute it again only if it has changed. ``wanted`` is the name to find, for messages."""
    if not path.is_file():
        raise RecipeError(f"{path} does not exist; expected a Python file that defines {wanted}.")
    if not trust.allows(path):
        raise RecipeError(describe_refusal("this recipe", {wanted: path}))
    return _load(path.resolve(), path.stat().st_mtime_ns)


def loaded_modules() -> list[ModuleType]:
    """Return the user's files that this process has imported."""
    return [module for name, module in sys.modules.items() if name.startswith(PREFIX)]


@cache
def _load(path: Path, _modified: int) -> ModuleType:
    name = f"{PREFIX}{path.stem}"
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
