"""Recipes as trees: found by name or file, merged, overridden key by key, flattened."""

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from pencil.data.datasets import DATASETS
from pencil.data.read import FORMS, as_path, is_source
from pencil.errors import RecipeError
from pencil.files import read_regular
from pencil.recipe.schema import Tree


def find(what: str) -> Tree:
    """Return the recipe tree that ``what`` names: a recipe name or file, a dataset name, or data."""
    path = as_path(what)
    if path.suffix == ".toml":
        return read(path)
    if what in shipped():
        return shipped()[what]
    if is_source(what):
        return of_source(what)
    known = [*shipped(), *DATASETS]
    close = difflib.get_close_matches(what, known, n=1)
    hint = f"did you mean {close[0]!r}?" if close else "`pencil recipes` lists the recipes."
    if path.exists():
        hint = "this file type is not supported; if it is a table, save it as CSV."
    elif path.suffix or "/" in what:
        hint = f"{path} does not exist."
    raise RecipeError(f"{what!r} is not a recipe, a recipe file (.toml), a dataset name, or data ({FORMS}); {hint}")


def of_source(source: str) -> Tree:
    """Return the recipe tree for a dataset name, folder or file; paths become absolute."""
    path = as_path(source)
    if source in DATASETS or not path.exists():
        return {"name": Path(source).name, "data": {"source": source}}
    return {"name": path.resolve().stem, "data": {"source": str(path.resolve())}}


def read(path: Path) -> Tree:
    """Return the tree of a TOML file."""
    try:
        return tomllib.loads(read_regular(path).decode())
    except OSError as error:
        raise RecipeError(f"cannot read {path}: {error.strerror}; expected a recipe in TOML.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path} is not TOML: {error}") from error


@cache
def shipped() -> dict[str, Tree]:
    """Return the recipes that ship with pencil. Each ``[variants.X]`` table of a file is a recipe FILE-X."""
    found: dict[str, Tree] = {}
    for entry in sorted(_folder().iterdir(), key=lambda entry: str(entry.name)):
        if entry.name.endswith(".toml"):
            family, stem = tomllib.loads(entry.read_text(encoding="utf-8")), entry.name.removesuffix(".toml")
            variants = family.pop("variants", {"": {}})
            for variant, changes in variants.items():
                name = f"{stem}-{variant}" if variant else stem
                found[name] = {"name": name, **merge(family, changes)}
    return found


def merge(tree: Tree, changes: Tree) -> Tree:
    """Return the tree with the changes applied, table by table."""
    merged = dict(tree)
    for key, value in changes.items():
        both = isinstance(value, dict) and isinstance(tree.get(key), dict) and "kind" not in value
        merged[key] = merge(tree[key], value) if both else value
    return merged


def flatten(tree: Mapping[str, Any], separator: str = ".") -> dict[str, Any]:
    """Return every value that is not a table, by its path.

    >>> flatten({"a": {"b": 1, "c": {}}, "d": [2]})
    {'a.b': 1, 'd': [2]}
    """
    found: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            found |= {f"{key}{separator}{path}": inner for path, inner in flatten(value, separator).items()}
        else:
            found[key] = value
    return found


def override(tree: Tree, assignments: Iterable[str]) -> Tree:
    """Return the tree with each ``a.b=value`` set; values are TOML, and bare words are strings."""
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        keys = path.strip().split(".")
        if not equals or not all(keys):
            raise RecipeError(f"override {assignment!r} is not of the form key=value, such as training.batch_size=64.")
        tree = assign(tree, keys, _toml_value(text.strip()))
    return tree


def assign(tree: Tree, keys: list[str], value: Any) -> Tree:
    """Return a copy of the tree with the value at this path."""
    head, *rest = keys
    if not rest:
        return {**tree, head: value}
    inner = tree.get(head, {})
    return {**tree, head: assign(inner if isinstance(inner, dict) else {}, rest, value)}


def _toml_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _folder() -> Any:
    return resources.files("pencil.recipe") / "shipped"
