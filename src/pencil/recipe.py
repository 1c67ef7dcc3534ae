"""Recipes: a whole job as typed data, read from TOML, overridden key by key, and every mistake reported at once."""

import difflib
import inspect
import tomllib
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from pencil.data.named import DATASETS
from pencil.data.settings import DataSettings
from pencil.data.sources import FORMS, is_source
from pencil.errors import RecipeError
from pencil.methods import Method, find_method
from pencil.models import ModelSettings
from pencil.training.settings import TrainingSettings

Tree = dict[str, Any]
CUSTOM = "custom"
"""Stands for a model or method that was passed to pencil.fit as an object."""
AUTOMATIC = "pencil_auto"
"""What ``pencil`` stands for where it is given no number."""


class Recipe(BaseModel):
    """Everything a run needs. ``method`` holds the method's name and the arguments of its constructor."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = "run"
    description: str = ""
    paper: str = ""
    seed: Annotated[int, Field(ge=0)] = 0
    data: DataSettings = DataSettings()
    model: ModelSettings = ModelSettings()
    method: Tree = Field(default_factory=lambda: {"name": "pencil"})
    training: TrainingSettings = TrainingSettings()

    def build_method(self) -> Method:
        """The method with its arguments as they were validated."""
        options = {key: value for key, value in self.method.items() if key != "name"}
        return find_method(self.method["name"])(**_arguments(self.method["name"]).model_validate(options).__dict__)

    def with_method(self, name: str, **arguments: Any) -> "Recipe":
        """The same recipe with another method; what is not said of its arguments is at its default."""
        spelled_out = _without_none(_arguments(name)(**arguments).model_dump(mode="json"))
        return self.model_copy(update={"method": {"name": name, **spelled_out}})

    def to_toml(self) -> str:
        """The recipe with every default spelled out."""
        return tomli_w.dumps(_without_none(self.model_dump(mode="json")))


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
        arguments = _arguments(name)
        valid = arguments.model_validate({key: value for key, value in tree["method"].items() if key != "name"})
        find_method(name)(**valid.__dict__)
    except ValidationError as error:
        return _explain(error, ("method",), [f"method.{key}" for key in arguments.model_fields])
    except (RecipeError, ValueError) as error:
        return [f"method: {error}"]
    tree["method"] = {"name": name, **_without_none(valid.model_dump(mode="json"))}
    return []


def method_name(tree: Mapping[str, Any]) -> str:
    method = tree.get("method", {})
    return str(method.get("name", "pencil")) if isinstance(method, Mapping) else str(method)


def find(what: str) -> Tree:
    """The recipe tree that ``what`` stands for: a recipe by name or file, a dataset by name, or a data file."""
    path = Path(what).expanduser()
    if path.suffix == ".toml":
        return read(path)
    if what in shipped():
        return shipped()[what]
    if is_source(what):
        source = str(path.resolve()) if path.exists() and what not in DATASETS else what
        return {"name": path.resolve().stem if path.exists() else Path(what).name, "data": {"source": source}}
    known = [*shipped(), *DATASETS]
    close = difflib.get_close_matches(what, known, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}?" if close else "`pencil recipes` lists the recipes."
    if path.suffix or "/" in what:
        hint = f"{path} does not exist." if not path.exists() else "its kind of file is not known."
    raise RecipeError(f"{what!r} is no recipe, recipe file (.toml), dataset by name, or data ({FORMS}); {hint}")


def read(path: Path) -> Tree:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RecipeError(f"cannot read {path}: {error.strerror}; expected a recipe in TOML.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path} is not TOML: {error}") from error


@cache
def shipped() -> dict[str, Tree]:
    """The recipes that ship with pencil. A file with ``[variants.X]`` tables is a family: FILE-X, for every X."""
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
    """The tree with the changes laid over it, table by table."""
    merged = dict(tree)
    for key, value in changes.items():
        both = isinstance(value, dict) and isinstance(tree.get(key), dict) and "kind" not in value
        merged[key] = merge(tree[key], value) if both else value
    return merged


def override(tree: Tree, assignments: Iterable[str]) -> Tree:
    """The tree with each ``a.b=value`` set; values are TOML, and plain words are strings."""
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        keys = path.strip().split(".")
        if not equals or not all(keys):
            raise RecipeError(f"override {assignment!r} is not of the form key=value, such as training.batch_size=64.")
        tree = assign(tree, keys, _toml_value(text.strip()))
    return tree


def assign(tree: Tree, keys: list[str], value: Any) -> Tree:
    """A copy of the tree with the value at this path."""
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


def _arguments(method: str) -> type[BaseModel]:
    """The arguments of a method's constructor as a model that validates them."""
    constructor = find_method(method).__init__
    hints = get_type_hints(constructor, include_extras=True)
    fields: dict[str, Any] = {}
    for name, parameter in inspect.signature(constructor).parameters.items():
        if name != "self" and parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            default = ... if parameter.default is parameter.empty else parameter.default
            fields[name] = (hints.get(name, Any), default)
    config = ConfigDict(extra="forbid", validate_default=True, arbitrary_types_allowed=True)
    return create_model(f"{method} arguments", __config__=config, **fields)


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


def _without_none(value: Any) -> Any:
    """TOML has no null: what is not set is not written."""
    if isinstance(value, dict):
        return {key: _without_none(inner) for key, inner in value.items() if inner is not None}
    return [_without_none(inner) for inner in value] if isinstance(value, list) else value


def _folder() -> Any:
    return resources.files("pencil") / "recipes"
