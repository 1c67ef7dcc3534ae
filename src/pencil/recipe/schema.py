"""Recipes: a whole job as typed data, read from TOML, overridden key by key, and every mistake reported at once."""

from typing import Annotated, Any

import tomli_w
from pydantic import BaseModel, ConfigDict, Field

from pencil.data.settings import DataSettings
from pencil.methods import Method, find_method
from pencil.models import ModelSettings
from pencil.recipe.arguments import method_arguments, without_none
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
        return find_method(self.method["name"])(
            **method_arguments(self.method["name"]).model_validate(options).__dict__
        )

    def with_method(self, name: str, **arguments: Any) -> "Recipe":
        """The same recipe with another method; what is not said of its arguments is at its default."""
        spelled_out = without_none(method_arguments(name)(**arguments).model_dump(mode="json"))
        return self.model_copy(update={"method": {"name": name, **spelled_out}})

    def to_toml(self) -> str:
        """The recipe with every default spelled out."""
        return tomli_w.dumps(without_none(self.model_dump(mode="json")))
