"""Backbones by name."""

import math
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from torch import nn

from pencil.errors import ModelError
from pencil.models.small import mlp, small_cnn
from pencil.seeding import seeded

__all__ = ["ModelSettings", "build", "mlp", "small_cnn"]


class ModelSettings(BaseModel):
    """The ``[model]`` part of a recipe: a backbone by name and the options it is built with."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    name: str = "auto"
    options: dict[str, Any] = Field(default_factory=dict)


def resolve(settings: ModelSettings, input_shape: Sequence[int]) -> ModelSettings:
    """``auto`` is the small CNN for images and the MLP for vectors."""
    if settings.name != "auto":
        return settings
    return settings.model_copy(update={"name": "small_cnn" if len(input_shape) == 3 else "mlp"})


def build(settings: ModelSettings, input_shape: Sequence[int], num_classes: int, seed: int) -> nn.Module:
    """A freshly initialised network for inputs of this shape (without the batch dimension)."""
    name = resolve(settings, input_shape).name
    with seeded(seed, "weights"):
        try:
            if name == "mlp":
                return mlp(math.prod(input_shape), num_classes, **settings.options)
            if name == "small_cnn" or name.startswith("timm/"):
                return _convolutional(name, input_shape, num_classes, settings.options)
        except ModelError:
            raise
        except (TypeError, ValueError, RuntimeError, AssertionError) as error:
            raise ModelError(f"model {name!r} does not take the options {settings.options}: {error}") from error
    raise ModelError(f"there is no model {name!r}; expected small_cnn, mlp, or timm/NAME such as timm/resnet18.")


def _convolutional(name: str, input_shape: Sequence[int], num_classes: int, options: dict[str, Any]) -> nn.Module:
    if len(input_shape) != 3:
        raise ModelError(f"model {name!r} needs images; the inputs have shape {tuple(input_shape)}; try model mlp.")
    if name == "small_cnn":
        return small_cnn(input_shape[0], num_classes, **options)
    import timm

    known = name.removeprefix("timm/")
    if not timm.is_model(known):
        close = timm.list_models(f"*{known}*")[:5]
        hint = f"; did you mean {', '.join(close)}?" if close else "; timm.list_models() names them."
        raise ModelError(f"timm has no model {known!r}{hint}")
    model: nn.Module = timm.create_model(known, num_classes=num_classes, in_chans=input_shape[0], **options)
    return model
