"""Turns a tree into a recipe: checks every key, completes the method's arguments, and reports all errors at once.

This module decides which method runs: the method that the recipe names (``auto`` by default), or for data on which
``auto`` cannot run, the method chosen by :func:`with_runnable_method`. A method object is used unchanged.
"""

import difflib
import re
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from pencil.errors import MethodWarning, RecipeError, warn
from pencil.methods import METHODS, find_method
from pencil.recipe.schema import CUSTOM, DEFAULT_METHOD, Recipe, Tree, method_arguments, without_none
from pencil.terminal import counted
from pencil.user_file import Trust, as_trust, describe_refusal

FALLBACK_METHOD = "pencil"
NOT_A_TABLE = ("model_attributes_type", "model_type", "dict_type")
"""Types of pydantic's errors for a value where a table is expected."""


def parse(
    tree: Mapping[str, Any],
    origin: str = "the recipe",
    *,
    with_method: bool = True,
    trust: Trust | bool = False,
    skip_refused: bool = False,
) -> Recipe:
    """Return the recipe of a tree of keys; raise one :class:`RecipeError` that lists all errors.

    Parameters
    ----------
    tree
        Nested keys, as in TOML.
    origin
        Name of the recipe in error messages.
    with_method
        Check and complete the arguments of the method. Otherwise they are not checked, and no file with a user-defined
        method is executed.
    trust
        Which Python files the recipe may execute, now and later; none by default.
    skip_refused
        Accept a method whose file may not be executed without checking it, instead of raising.
    """
    trust = as_trust(trust)
    refused = trust.refused(tree) if with_method else {}
    if refused and not skip_refused:
        raise RecipeError(describe_refusal(origin, refused))
    with_method = with_method and "method.name" not in refused
    problems: list[str] = []
    tree, given = dict(tree), frozenset[str]()
    if with_method and isinstance(tree.get("method", {}), Mapping) and method_name(tree) != CUSTOM:
        tree["method"] = {"name": DEFAULT_METHOD} | dict(tree.get("method", {}))
        given = frozenset(tree["method"]) - {"name"}
        problems += _complete_method(tree, trust)
    recipe = None
    try:
        recipe = Recipe.model_validate(tree)
    except ValidationError as error:
        problems += _explain(
            error, (), _paths(Recipe.model_json_schema()) + (_method_keys(tree, trust) if with_method else [])
        )
    if problems or recipe is None:
        raise RecipeError(
            f"{counted(len(problems), 'error')} in {origin}:\n" + "\n".join(f"  {line}" for line in problems)
        )
    recipe._given_arguments, recipe._trust = given, trust
    return recipe


def with_runnable_method(recipe: Recipe, *, held_out_rows: int) -> Recipe:
    """Return the recipe with a method that can run on this data; warn if it is not the recipe's method.

    ``auto`` needs a few held-out rows. Without them ``pencil`` runs with its defaults and with the given arguments of
    ``auto`` that both methods have. A given argument that ``pencil`` lacks is an error; so are too few held-out rows
    for any other method that declares a minimum.
    """
    name = recipe.method["name"]
    needed = 0 if name == CUSTOM else recipe.method_class().requirements.min_held_out_rows
    if held_out_rows >= needed:
        return recipe
    reason = f"{name} needs at least {needed} held-out rows, but there are {held_out_rows}"
    if name != "auto":
        raise RecipeError(f"{reason}; set data.validation to a larger fraction, or choose another method.")
    unusable = sorted(recipe.given_arguments - {"lr", "rounds", "epochs"})
    if unusable:
        raise RecipeError(
            f"{reason}, and {FALLBACK_METHOD}, which would run instead, has no {', '.join(unusable)}; remove "
            f"method.{unusable[0]}, or choose a method with method.name."
        )
    warn(f"{reason}; the method {FALLBACK_METHOD!r} runs instead, with its defaults", MethodWarning)
    lr, epochs = recipe.method["lr"], recipe.method["epochs"]
    if "epochs" in recipe.given_arguments and recipe.training.epochs is None:
        recipe = recipe.model_copy(update={"training": recipe.training.model_copy(update={"epochs": epochs})})
    cosine = {"kind": "cosine", "start": lr}
    return recipe.with_method(FALLBACK_METHOD, lr=lr, finetune_lr=cosine, rounds=recipe.method["rounds"])


def _complete_method(tree: Tree, trust: Trust) -> list[str]:
    """Add the missing arguments of the method to the tree; return the errors in the given ones."""
    name = tree["method"]["name"]
    if not isinstance(name, str):
        return [f"method.name: expected a name; saw {name!r}"]
    try:
        arguments = method_arguments(name, trust)
        valid = arguments.model_validate({key: value for key, value in tree["method"].items() if key != "name"})
        find_method(name, trust)(**valid.__dict__)
    except ValidationError as error:
        known = [f"method.{key}" for key in arguments.model_fields]
        return [_with_owner(line, name) for line in _explain(error, ("method",), known)]
    except (RecipeError, ValueError) as error:
        return [f"method: {error}"]
    tree["method"] = {"name": name, **without_none(valid.model_dump(mode="json"))}
    return []


def _with_owner(line: str, name: str) -> str:
    """Name the method that has this unknown argument."""
    unknown = re.fullmatch(r"method\.(\w+): there is no such key\.", line)
    if unknown is None:
        return line
    owners = [other for other in METHODS if unknown[1] in method_arguments(other).model_fields]
    return f"{line[:-1]} for method {name}; {owners[0]} has it (method.name = {owners[0]})." if owners else line


def method_name(tree: Mapping[str, Any]) -> str:
    """Return the name of the method in a tree."""
    method = tree.get("method", {})
    return str(method.get("name", DEFAULT_METHOD)) if isinstance(method, Mapping) else str(method)


def _explain(error: ValidationError, prefix: tuple[str, ...], known: list[str]) -> list[str]:
    lines = []
    for problem in error.errors():
        where = _without_tags((*prefix, *map(str, problem["loc"])), known)
        if problem["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
            close = _closest(where, known)
            lines.append(f"{where}: there is no such key" + (f"; did you mean {close!r}?" if close else "."))
        else:
            message = problem["msg"][:1].lower() + problem["msg"][1:]
            message = "expected a table of keys" if problem["type"] in NOT_A_TABLE else message
            seen = "" if problem["type"] == "missing" else f"; saw {problem['input']!r}"
            lines.append(f"{where}: {message}{seen}")
    return lines


def _without_tags(place: tuple[str, ...], known: list[str]) -> str:
    """Return the dotted key of a place, without the kind that pydantic names where a table may be of several kinds."""
    where = ""
    for position, part in enumerate(place):
        inner = f"{where}.{part}" if where else part
        is_tag = where in known and inner not in known and position + 1 < len(place)
        where = where if is_tag and f"{where}.{place[position + 1]}" in known else inner
    return where


def _method_keys(tree: Tree, trust: Trust) -> list[str]:
    """Return the dotted keys of the method's arguments; none if there is no such method."""
    try:
        return [f"method.{key}" for key in method_arguments(method_name(tree), trust).model_fields]
    except (RecipeError, ValueError, TypeError):
        return []


def _closest(path: str, known: list[str]) -> str | None:
    """The most similar known key: the same name in another section, or a similar spelling."""
    name = path.rsplit(".", 1)[-1]
    elsewhere = [key for key in known if key.rsplit(".", 1)[-1] == name and key.count(".") == path.count(".")]
    if elsewhere:
        return elsewhere[0]
    close = difflib.get_close_matches(path, known, n=1, cutoff=0.8)
    last = {candidate.rsplit(".", 1)[-1]: candidate for candidate in sorted(known, key=len, reverse=True)}
    alike = difflib.get_close_matches(name, last, n=1, cutoff=0.75)
    return close[0] if close else last[alike[0]] if alike else None


def _paths(schema: Tree, node: Tree | None = None, prefix: str = "") -> list[str]:
    """Every dotted key of a JSON schema."""
    node = schema if node is None else node
    found: list[str] = []
    for name, inner in node.get("properties", {}).items():
        found += [f"{prefix}{name}", *_paths(schema, inner, f"{prefix}{name}.")]
    for inner in [*node.get("anyOf", []), *node.get("oneOf", []), *node.get("allOf", [])]:
        found += _paths(schema, inner, prefix)
    if "$ref" in node:
        found += _paths(schema, schema["$defs"][node["$ref"].rsplit("/", 1)[-1]], prefix)
    return found
