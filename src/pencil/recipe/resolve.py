"""From a tree to a recipe: every key checked, the method's arguments spelled out, all mistakes at once."""

import difflib
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from pencil.errors import RecipeError
from pencil.methods import find_method
from pencil.recipe.arguments import method_arguments, without_none
from pencil.recipe.schema import AUTOMATIC, CUSTOM, Recipe, Tree


def parse(tree: Mapping[str, Any], origin: str = "the recipe", *, with_method: bool = True) -> Recipe:
    """A recipe from nested keys; raises one :class:`RecipeError` that lists everything that is wrong.

    Without ``with_method`` the method's arguments are taken as they stand, and no file of a user's own method is run.
    """
    problems: list[str] = []
    tree = dict(tree)
    if with_method and isinstance(tree.get("method", {}), Mapping) and method_name(tree) != CUSTOM:
        tree["method"] = {"name": "pencil"} | dict(tree.get("method", {}))
        problems += _resolve_method(tree)
    recipe = None
    try:
        recipe = Recipe.model_validate(tree)
    except ValidationError as error:
        problems += _explain(error, (), _paths(Recipe.model_json_schema()))
    if problems or recipe is None:
        raise RecipeError(f"{origin} has {len(problems)} mistake(s):\n" + "\n".join(f"  {line}" for line in problems))
    return recipe


def _resolve_method(tree: Tree) -> list[str]:
    """Spell out every argument of the method in the tree; return what is wrong with them.

    PENCIL without a number of its own sets itself; where there are several classes at once, the job says so later.
    """
    if tree["method"] == {"name": "pencil"}:
        tree["method"] = {"name": AUTOMATIC}
    name = tree["method"]["name"]
    if not isinstance(name, str):
        return [f"method.name: expected a name; saw {name!r}"]
    try:
        arguments = method_arguments(name)
        valid = arguments.model_validate({key: value for key, value in tree["method"].items() if key != "name"})
        find_method(name)(**valid.__dict__)
    except ValidationError as error:
        return _explain(error, ("method",), [f"method.{key}" for key in arguments.model_fields])
    except (RecipeError, ValueError) as error:
        return [f"method: {error}"]
    tree["method"] = {"name": name, **without_none(valid.model_dump(mode="json"))}
    return []


def method_name(tree: Mapping[str, Any]) -> str:
    method = tree.get("method", {})
    return str(method.get("name", "pencil")) if isinstance(method, Mapping) else str(method)


def _explain(error: ValidationError, prefix: tuple[str, ...], known: list[str]) -> list[str]:
    lines = []
    for problem in error.errors():
        where = ".".join(map(str, (*prefix, *problem["loc"])))
        if problem["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
            close = _closest(where, known)
            lines.append(f"{where}: there is no such key" + (f"; did you mean {close!r}?" if close else "."))
        else:
            message = problem["msg"][:1].lower() + problem["msg"][1:]
            seen = "" if problem["type"] == "missing" else f"; saw {problem['input']!r}"
            lines.append(f"{where}: {message}{seen}")
    return lines


def _closest(path: str, known: list[str]) -> str | None:
    """The known key nearest to this one: a neighbour that is spelled alike, or the same name in another section."""
    close = difflib.get_close_matches(path, known, n=1, cutoff=0.8)
    last = {candidate.rsplit(".", 1)[-1]: candidate for candidate in sorted(known, key=len, reverse=True)}
    alike = difflib.get_close_matches(path.rsplit(".", 1)[-1], last, n=1, cutoff=0.75)
    return close[0] if close else last[alike[0]] if alike else None


def _paths(schema: Tree, node: Tree | None = None, prefix: str = "") -> list[str]:
    """Every dotted key that a JSON schema knows."""
    node = schema if node is None else node
    found: list[str] = []
    for name, inner in node.get("properties", {}).items():
        found += [f"{prefix}{name}", *_paths(schema, inner, f"{prefix}{name}.")]
    for inner in [*node.get("anyOf", []), *node.get("oneOf", []), *node.get("allOf", [])]:
        found += _paths(schema, inner, prefix)
    if "$ref" in node:
        found += _paths(schema, schema["$defs"][node["$ref"].rsplit("/", 1)[-1]], prefix)
    return found
