"""The recipe: a job as typed data. The keys of ``[method]`` are the arguments of the method's constructor."""

import inspect
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, create_model, field_validator

from pencil.data.settings import DataSettings
from pencil.methods import Method, find_method
from pencil.models import ModelSettings
from pencil.terminal import shorten
from pencil.training.settings import TrainingSettings
from pencil.user_file import NO_FILES, Trust

Tree = dict[str, Any]
CUSTOM = "custom"
"""Name of a model or method that was passed to pencil.fit as an object."""
DEFAULT_METHOD = "auto"


class Recipe(BaseModel):
    """Everything a run needs.

    Attributes
    ----------
    name, description, paper
        Descriptions; ``paper`` names the table that a recipe reproduces.
    seed
        Seed of noise, split, weights and order.
    data, model, training
        The sections of the recipe.
    method
        The name of the method and the arguments of its constructor.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = "run"
    description: str = ""
    paper: str = ""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    data: DataSettings = DataSettings()
    model: ModelSettings = ModelSettings()
    method: Tree = Field(default_factory=lambda: {"name": DEFAULT_METHOD})
    training: TrainingSettings = TrainingSettings()
    _given_arguments: frozenset[str] = PrivateAttr(default=frozenset())
    _trust: Trust = PrivateAttr(default=NO_FILES)

    @field_validator("method")
    @classmethod
    def _has_name(cls, method: dict[str, Any]) -> dict[str, Any]:
        if not isinstance(method.get("name"), str):
            raise ValueError("name is missing; expected a method name such as name = 'auto'")
        return method

    @property
    def given_arguments(self) -> frozenset[str]:
        """The method arguments set by the user; the others have their defaults."""
        return self._given_arguments

    @property
    def trust(self) -> Trust:
        """Which Python files this recipe may execute; it is not written to a file."""
        return self._trust

    def refused_files(self) -> dict[str, Path]:
        """Return the Python files that this recipe names and may not execute, by key."""
        return self._trust.refused({"method": self.method, "model": {"name": self.model.name}})

    def method_class(self) -> type[Method]:
        """Return the class of the method."""
        return find_method(self.method["name"], self._trust)

    def build_method(self) -> Method:
        """Return the method with its arguments."""
        options = {key: value for key, value in self.method.items() if key != "name"}
        arguments = method_arguments(self.method["name"], self._trust).model_validate(options)
        return self.method_class()(**arguments.__dict__)

    def with_method(self, name: str, **arguments: Any) -> "Recipe":
        """Return the same recipe with another method; missing arguments get their defaults."""
        complete = without_none(method_arguments(name, self._trust)(**arguments).model_dump(mode="json"))
        return self.model_copy(update={"method": {"name": name, **complete}})

    def __repr__(self) -> str:
        names = (self.name, self.method["name"], self.model.name, str(self.data.source))
        name, method, model, source = (shorten(one, 40) for one in names)
        return f"Recipe({name!r}: {method} with {model} on {source}, seed {self.seed})"

    __str__ = __repr__

    def to_toml(self) -> str:
        """Return the recipe as TOML, with every default written out."""
        return tomli_w.dumps(without_none(self.model_dump(mode="json")))


def method_arguments(method: str, trust: Trust = NO_FILES) -> type[BaseModel]:
    """Return a pydantic model that validates the arguments of a method's constructor."""
    constructor = find_method(method, trust).__init__
    hints = get_type_hints(constructor, include_extras=True)
    fields: dict[str, Any] = {}
    for name, parameter in inspect.signature(constructor).parameters.items():
        if name != "self" and parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            default = ... if parameter.default is parameter.empty else parameter.default
            fields[name] = (hints.get(name, Any), default)
    config = ConfigDict(extra="forbid", validate_default=True, arbitrary_types_allowed=True)
    return create_model(f"{method} arguments", __config__=config, **fields)


def without_none(value: Any) -> Any:
    """Return the value without None: TOML has no null, so unset keys are omitted."""
    if isinstance(value, dict):
        return {key: without_none(inner) for key, inner in value.items() if inner is not None}
    return [without_none(inner) for inner in value] if isinstance(value, list) else value
