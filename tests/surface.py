"""What version 1 promises to keep, as text: `python tests/surface.py` writes tests/surface.txt, which is committed.

A line for every public name with its arguments and their defaults, for every command and option, for every key of a
recipe. Types are left out: other Python versions print them differently.
"""

import inspect
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cached_property
from itertools import takewhile
from pathlib import Path

import pydantic
import typer.main

import pencil
from pencil.cli import app
from pencil.methods import METHODS
from pencil.recipe import Recipe
from pencil.recipe.resolve import _paths
from pencil.runs import summary
from pencil.runs.annotators import Annotators
from pencil.runs.label_table import LabelTable

FILE = Path(__file__).with_suffix(".txt")
PARTS = [kind for _, kind in inspect.getmembers(summary, inspect.isclass) if kind.__module__ == summary.__name__]
RETURNED = (LabelTable, Annotators, *(kind for kind in PARTS if not kind.__name__.startswith("_")))
"""The types of what public functions return, besides the public names themselves."""


def arguments(function: object) -> str:
    """Return the parameters of a function with their defaults, without types."""
    parameters = inspect.signature(function).parameters.values()
    plain = [one.replace(annotation=inspect.Parameter.empty, default=_default(one)) for one in parameters]
    return str(inspect.Signature(plain))


class _Text:
    def __init__(self, text: str):
        self.text = text

    def __repr__(self) -> str:
        return self.text


def _default(parameter: inspect.Parameter) -> object:
    """Return a default whose repr is the same everywhere."""
    value = parameter.default
    if value is inspect.Parameter.empty:
        return value
    return _Text(
        f"{type(value).__name__}.{value.name}" if isinstance(value, Enum) else repr(value).partition(" at 0x")[0]
    )


def members(name: str, kind: type) -> Iterator[str]:
    """Yield the constructor, fields, properties and methods of a class, inherited from pencil's classes too."""
    own = [base for base in kind.__mro__ if base.__module__.startswith("pencil.")]
    if issubclass(kind, BaseException):
        yield f"{name} is a {', '.join(base.__name__ for base in kind.__bases__)}"
        return
    if not issubclass(kind, pydantic.BaseModel):
        yield f"{name}{arguments(kind)}"
    stored = kind.model_fields if issubclass(kind, pydantic.BaseModel) else ()
    stored = [one.name for one in fields(kind)] if is_dataclass(kind) else stored
    stored = {*stored, *described_attributes(kind)}
    yield from (f"{name}.{one}" for one in sorted(stored) if not one.startswith("_"))
    for one in sorted({each for base in own for each in vars(base) if not each.startswith("_")} - stored):
        value = inspect.getattr_static(kind, one)
        if isinstance(value, classmethod | staticmethod) or inspect.isfunction(value):
            yield f"{name}.{one}{arguments(getattr(kind, one))}"
        elif isinstance(value, property | cached_property):
            yield f"{name}.{one}"


def described_attributes(kind: type) -> set[str]:
    """Return the names in the section "Attributes" of a docstring, which are set when an object is made."""
    _, _, section = (inspect.getdoc(kind) or "").partition("Attributes\n----------\n")
    lines = takewhile(lambda line: not line.startswith("---"), section.splitlines())
    heads = (re.fullmatch(r"(\w+(?:, \w+)*)(?: : .*)?", line) for line in lines)
    return {name for head in heads if head for name in head[1].split(", ") if not name[0].isupper()}


def python_names() -> Iterator[str]:
    public = {f"pencil.{name}": getattr(pencil, name) for name in pencil.__all__ if name != "__version__"}
    returned = {f"{kind.__module__}.{kind.__name__}": kind for kind in RETURNED if isinstance(kind, type)}
    for name, value in (public | returned).items():
        yield from members(name, value) if isinstance(value, type) else [f"{name}{arguments(value)}"]


def commands(command: object, words: str) -> Iterator[str]:
    for parameter in command.params:
        shown = " ".join([*parameter.opts, *parameter.secondary_opts])
        kind = "argument" if parameter.param_type_name == "argument" else "option"
        yield f"{words} {kind} {shown}{' (required)' if parameter.required else ''}"
    for name, inner in sorted(getattr(command, "commands", {}).items()):
        yield f"{words} {name}"
        yield from commands(inner, f"{words} {name}")


def recipe_keys() -> Iterator[str]:
    yield from sorted(set(_paths(Recipe.model_json_schema())))
    for name, kind in sorted(METHODS.items()):
        yield f"[method] name = {name!r} {arguments(kind)}"


def surface() -> str:
    """Return everything that version 1 promises, one line each."""
    parts = {
        "Python": python_names(),
        "command line": commands(typer.main.get_command(app), "pencil"),
        "recipe keys": recipe_keys(),
    }
    return "\n".join(f"# {title}\n" + "".join(f"{line}\n" for line in lines) for title, lines in parts.items())


if __name__ == "__main__":
    FILE.write_text(surface(), encoding="utf-8")
