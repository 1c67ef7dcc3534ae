"""Backbones by name, with fresh or pretrained weights, with their own head or the attention structure."""

import inspect
import math
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from torch import nn

from pencil.errors import ModelError, PencilError
from pencil.models.attention import Attention, AttentionNetwork
from pencil.models.cifar import preact_resnet32, resnet34_cifar
from pencil.models.small import mlp, small_cnn
from pencil.models.weights import file_digest, load_weights, state_digest
from pencil.seeding import seeded
from pencil.user_file import load_module, split_reference

__all__ = [
    "Attention",
    "AttentionNetwork",
    "ModelSettings",
    "build",
    "mlp",
    "preact_resnet32",
    "provenance",
    "reinitialized",
    "resnet34_cifar",
    "small_cnn",
]

OURS: dict[str, Callable[..., nn.Module]] = {
    "small_cnn": small_cnn,
    "preact_resnet32": preact_resnet32,
    "resnet34_cifar": resnet34_cifar,
}
TIMM = {"resnet50": "resnet50.tv_in1k"} | {f"efficientnet_b{size}": f"efficientnet_b{size}" for size in range(6)}
"""The paper's names for networks of timm; torchvision's weights for ResNet-50, as the paper's framework had them."""
NAMES = ("mlp", *OURS, *TIMM)


class ModelSettings(BaseModel):
    """The ``[model]`` part of a recipe: a backbone by name, its options, its first weights and its head."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    name: str = "auto"
    options: dict[str, Any] = Field(default_factory=dict)
    pretrained: bool = False
    weights: Path | None = None
    attention: bool = False
    attention_width: Annotated[int, Field(ge=1)] = 2048


def resolve(settings: ModelSettings, input_shape: Sequence[int]) -> ModelSettings:
    """``auto`` is the MLP for vectors, the small CNN for small images and a ResNet-18 for larger ones."""
    if settings.name != "auto":
        return settings
    for_images = "small_cnn" if max(input_shape) <= 64 else "timm/resnet18"
    return settings.model_copy(update={"name": for_images if len(input_shape) == 3 else "mlp"})


def build(
    settings: ModelSettings, input_shape: Sequence[int], num_classes: int, seed: int, *, fresh: bool = False
) -> nn.Module:
    """A network for inputs of this shape (without the batch dimension); ``fresh`` leaves pretrained weights out."""
    name = resolve(settings, input_shape).name
    pretrained = settings.pretrained and settings.weights is None and not fresh
    with seeded(seed, "weights"):
        try:
            network = _build(settings, name, input_shape, num_classes, pretrained)
        except PencilError:
            raise
        except (TypeError, ValueError, RuntimeError, AssertionError) as error:
            raise ModelError(f"model {name!r} does not take the options {settings.options}: {error}") from error
    if settings.weights is not None and not fresh:
        target = network.backbone if isinstance(network, AttentionNetwork) else network
        left = load_weights(target, settings.weights.expanduser(), num_classes)
        if left:
            warnings.warn(f"{settings.weights} has no fitting {', '.join(left)}; they start fresh", stacklevel=2)
    return network


def reinitialized(network: nn.Module, seed: int, number: int) -> nn.Module:
    """The network with newly drawn weights, for every layer that knows how to draw them, as torch's own do."""
    with seeded(seed, "weights", number):
        for module in network.modules():
            reset = getattr(module, "reset_parameters", None)
            if callable(reset):
                reset()
    return network


def provenance(settings: ModelSettings, network: nn.Module, num_classes: int) -> dict[str, str] | None:
    """Where the first weights came from and their SHA-256; call it before training."""
    if settings.weights is not None:
        return {"file": str(settings.weights), "sha256": file_digest(settings.weights.expanduser())}
    if settings.pretrained:
        return {"pretrained": settings.name, "sha256_of_tensors": state_digest(network, num_classes)}
    return None


def _build(
    settings: ModelSettings, name: str, input_shape: Sequence[int], num_classes: int, pretrained: bool
) -> nn.Module:
    own = split_reference(name)
    if own is not None:
        _refuse(settings, name)
        return _from_file(*own, input_shape, num_classes, settings.options)
    if name == "mlp":
        _refuse(settings, name)
        return mlp(math.prod(input_shape), num_classes, **settings.options)
    if name not in OURS and name not in TIMM and not name.startswith("timm/"):
        raise ModelError(
            f"there is no model {name!r}; expected {', '.join(NAMES)}, timm/NAME such as timm/convnext_tiny, "
            "or my_model.py:Net."
        )
    if len(input_shape) != 3:
        raise ModelError(f"model {name!r} needs images; the inputs have shape {tuple(input_shape)}; try model mlp.")
    if name in OURS:
        _refuse(settings, name)
        return OURS[name](input_shape[0], num_classes, **settings.options)
    options = dict(settings.options, pretrained=pretrained, in_chans=input_shape[0])
    known = TIMM.get(name, name.removeprefix("timm/"))
    if not settings.attention:
        return _timm(known, num_classes=num_classes, **options)
    backbone = _timm(known, num_classes=0, global_pool="", **options)
    return AttentionNetwork(backbone, input_shape, num_classes, settings.attention_width)


def _refuse(settings: ModelSettings, name: str) -> None:
    if settings.pretrained:
        raise ModelError(f"there are no pretrained weights for {name!r}; name a file with model.weights.")
    if settings.attention:
        raise ModelError(f"the attention structure stands on networks of timm; {name!r} is none; try timm/resnet18.")


def _timm(known: str, **options: Any) -> nn.Module:
    import timm

    if not timm.is_model(known):
        close = timm.list_models(f"*{known}*")[:5]
        hint = f"; did you mean {', '.join(close)}?" if close else "; timm.list_models() names them."
        raise ModelError(f"timm has no model {known!r}{hint}")
    try:
        model: nn.Module = timm.create_model(known, **options)
    except (OSError, RuntimeError) as error:
        if not options["pretrained"]:
            raise
        reason = str(error).splitlines()[0]
        raise ModelError(
            f"the pretrained weights of {known} cannot be fetched ({reason}); "
            "put them in a file and name it: --set model.pretrained=false --set model.weights=FILE."
        ) from error
    return model


def _from_file(
    path: Path, attribute: str, input_shape: Sequence[int], num_classes: int, options: dict[str, Any]
) -> nn.Module:
    """A user's class or function; it is told ``num_classes`` and ``input_shape`` where it asks for them."""
    make = getattr(load_module(path, attribute), attribute, None)
    if not callable(make):
        raise ModelError(f"{path} defines no model {attribute!r}; expected a class or function that makes a network.")
    known = {"num_classes": num_classes, "input_shape": tuple(input_shape)}
    asked = inspect.signature(make).parameters
    network = make(**{name: value for name, value in known.items() if name in asked}, **options)
    if not isinstance(network, nn.Module):
        raise ModelError(f"{path}:{attribute} gives a {type(network).__name__}; expected a torch.nn.Module.")
    return network
