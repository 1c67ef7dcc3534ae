"""Models: backbones by name, with fresh or pretrained weights, with their own head or the attention structure."""

import difflib
import inspect
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from torch import nn

from pencil.data.inputs.transform import IMAGENET, Normalization
from pencil.errors import MethodWarning, ModelError, PencilError, warn
from pencil.models.attention import Attention, AttentionNetwork
from pencil.models.bundled import BUNDLES, load_bundled
from pencil.models.cifar import preact_resnet32, resnet34_cifar
from pencil.models.fast import fast_cnn
from pencil.models.feature_map import feature_extractor
from pencil.models.frozen import FrozenNetwork, Head, PooledStages, enlarged_size, make_head, without_output_layer
from pencil.models.libraries import fixed_side, pretrained_normalization, timm_network, torchvision_network
from pencil.models.probe import first_line
from pencil.models.small import mlp, small_cnn
from pencil.models.weights import file_digest, load_weights, state_digest
from pencil.seeding import seeded
from pencil.user_file import NO_FILES, Trust, load_module, split_reference

__all__ = [
    "Attention",
    "AttentionNetwork",
    "FrozenNetwork",
    "ModelSettings",
    "build",
    "build_head",
    "expected_normalization",
    "fast_cnn",
    "mlp",
    "preact_resnet32",
    "provenance",
    "refuse_unknown",
    "reinitialized",
    "resnet34_cifar",
    "small_cnn",
]

OURS: dict[str, Callable[..., nn.Module]] = {
    "small_cnn": small_cnn,
    "fast_cnn": fast_cnn,
    "preact_resnet32": preact_resnet32,
    "resnet34_cifar": resnet34_cifar,
}
TIMM = {"resnet50": "resnet50.tv_in1k"} | {
    f"efficientnet_b{size}": f"tf_efficientnet_b{size}.in1k" for size in range(6)
}
"""The paper's names for timm networks: torchvision's weights for ResNet-50, as in the paper's framework, and the
authors' weights for EfficientNets. timm's default weights change with its version, and those of B5 saw more images."""
TIMM |= {name: bundle.architecture for name, bundle in BUNDLES.items()}
NAMES = ("mlp", *OURS, *TIMM)
FAST, BEST = "efficientnet_lite0", "efficientnet_lite2"
"""The networks for images above :data:`SMALL` pixels; their pretrained weights are installed with pencil."""
SMALL = 64


class ModelSettings(BaseModel):
    """The ``[model]`` part of a recipe: a backbone by name, its options, its initial weights and its head.

    Attributes
    ----------
    name : str
        A backbone: one of pencil's own, ``timm/NAME``, ``torchvision/NAME`` or ``my_model.py:Net``. ``auto`` is
        replaced by a name before a network is built; see :mod:`pencil.job.network`.
    options : dict
        Further arguments of the network.
    pretrained : bool or None
        Whether to start from the library's pretrained weights; None does so if ``name`` is ``auto`` and images are
        large, or if ``name`` names weights (see :func:`names_weights`).
    weights : Path or None
        A file with the initial weights, instead of ``pretrained``.
    train : str
        "all" trains the whole network. "head" freezes a pretrained network, computes the features of every image once,
        and trains a new head on them. "auto" is "head" with ``pretrained`` on a CPU, otherwise "all".
    head : str
        The head trained on features: "mlp", with two hidden layers, or "linear".
    finetune_epochs : int
        After the head, train head and backbone together on the corrected labels for this many epochs.
    attention : bool
        Whether the attention structure of section 3.7 replaces pooling and classifier.
    attention_width : int
        The number of channels inside the attention structure.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    name: str = "auto"
    options: dict[str, Any] = Field(default_factory=dict)
    pretrained: bool | None = None
    weights: Path | None = None
    train: Literal["auto", "head", "all"] = "auto"
    head: Head = "mlp"
    finetune_epochs: Annotated[int, Field(ge=0)] = 0
    attention: bool = False
    attention_width: Annotated[int, Field(ge=1)] = 2048


def build(
    settings: ModelSettings,
    input_shape: Sequence[int],
    num_classes: int,
    seed: int,
    *,
    fresh: bool = False,
    trust: Trust = NO_FILES,
) -> nn.Module:
    """Build the network that the settings describe.

    Parameters
    ----------
    settings : ModelSettings
        The backbone, its options, initial weights and head.
    input_shape : sequence of int
        The shape of one input, without the batch dimension.
    num_classes : int
        The number of logits.
    seed : int
        Seed of the weights.
    fresh : bool
        Whether to skip pretrained weights and weight files, for a network whose weights are loaded afterwards.
    trust : Trust
        Which files with a user's own network may be executed; none by default.

    Returns
    -------
    nn.Module
        The network, on the CPU and in training mode.

    Raises
    ------
    ModelError
        If the model does not exist, or does not fit its options, the inputs or the weight file.
    """
    name, pretrained = settings.name, bool(settings.pretrained) and settings.weights is None and not fresh
    size = _enlarged_size(settings, input_shape)
    seen_shape = input_shape if size is None else (input_shape[0], *size)
    with seeded(seed, "weights"):
        try:
            network = _build(settings, name, seen_shape, num_classes, pretrained, trust)
        except PencilError:
            raise
        except (TypeError, ValueError, RuntimeError, AssertionError) as error:
            attention = " with the attention structure" if settings.attention else ""
            raise ModelError(
                f"model {name!r} does not take the options {settings.options}{attention}: {first_line(error)}"
            ) from error
    if settings.weights is not None and not fresh:
        unfitted = load_weights(network, settings.weights.expanduser(), num_classes)
        if unfitted and settings.train != "head":
            warn(f"{settings.weights} has no matching {', '.join(unfitted)}; they start fresh", MethodWarning)
    if settings.train != "head":
        return network
    with seeded(seed, "head"):
        backbone = without_output_layer(network, name)
        backbone = PooledStages(backbone) if name in BUNDLES and BUNDLES[name].stages else backbone
        return FrozenNetwork(backbone, input_shape, num_classes, settings.head, size)


def _enlarged_size(settings: ModelSettings, input_shape: Sequence[int]) -> tuple[int, int] | None:
    """Return the size to which a network with a head enlarges its inputs; None if it takes them as they are."""
    if settings.train != "head" or len(input_shape) != 3:
        return None
    if settings.name in BUNDLES:
        return enlarged_size(input_shape, BUNDLES[settings.name].smallest)
    library, name = _library(settings.name)
    side = fixed_side(name) if library == "timm" else None
    return enlarged_size(input_shape) if side is None else enlarged_size(input_shape, side, square=True)


def names_weights(name: str) -> bool:
    """Return whether a name stands for weights: of a package (efficientnet_lite0), or by a timm tag (timm/NAME.TAG)."""
    return name in BUNDLES or (_library(name)[0] == "timm" and "." in name)


def expected_normalization(settings: ModelSettings) -> Normalization | None:
    """Return the input normalisation of a pretrained network; None if it is not known.

    A file is expected to hold the weights that the name stands for, if it names any.
    """
    if not settings.pretrained and not (settings.weights is not None and names_weights(settings.name)):
        return None
    library, name = _library(settings.name)
    return pretrained_normalization(name) if library == "timm" else IMAGENET if library == "torchvision" else None


def build_head(settings: ModelSettings, width: int, num_classes: int, seed: int) -> nn.Module:
    """Build only the head that is trained on features of this width, as :func:`build` does for the same seed."""
    with seeded(seed, "head"):
        return make_head(width, num_classes, settings.head)


def reinitialized(network: nn.Module, seed: int, number: int) -> nn.Module:
    """Draw new weights, in place, for every layer with ``reset_parameters``, and return the network."""
    with seeded(seed, "weights", number):
        for module in reversed(
            list(network.modules())
        ):  # children first, so that a parent's own initialisation of its children takes precedence
            reset = getattr(module, "reset_parameters", None)
            if callable(reset):
                reset()
    return network


def provenance(settings: ModelSettings, network: nn.Module, num_classes: int) -> dict[str, str] | None:
    """Return the origin and SHA-256 of the initial weights, or None for random ones; call it before training."""
    if settings.weights is not None:
        return {"file": str(settings.weights), "sha256": file_digest(settings.weights.expanduser())}
    if settings.pretrained and settings.name in BUNDLES:
        return {"pretrained": settings.name, "sha256": BUNDLES[settings.name].sha256}
    if settings.pretrained:
        return {"pretrained": settings.name, "sha256_of_tensors": state_digest(network, num_classes)}
    return None


def _build(
    settings: ModelSettings, name: str, input_shape: Sequence[int], num_classes: int, pretrained: bool, trust: Trust
) -> nn.Module:
    library, library_name = _library(name)
    if library:
        _need_images(name, input_shape)
    if library == "timm":
        head = {"num_classes": 0, "global_pool": ""} if settings.attention else {"num_classes": num_classes}
        bundled = pretrained and name in BUNDLES
        network = timm_network(
            library_name, input_shape, pretrained=pretrained and not bundled, **head, **settings.options
        )
        if bundled:
            load_bundled(network, name)
    elif library == "torchvision":
        network = torchvision_network(
            library_name, input_shape[0], num_classes, pretrained=pretrained, **settings.options
        )
    else:
        network = _own_network(settings, name, input_shape, num_classes, trust)
    if not settings.attention:
        return network
    if library != "timm" or library_name.startswith(
        "vgg"
    ):  # timm's VGG reduces its feature map to 1 x 1 by convolution before the classifier
        network = feature_extractor(network, input_shape, num_classes, name)
    return AttentionNetwork(network, input_shape, num_classes, settings.attention_width)


def refuse_unknown(name: str) -> None:
    """Raise :class:`ModelError` if there is no network of this name; timm and torchvision check their own names."""
    if name in NAMES or _library(name)[0] is not None or split_reference(name) is not None:
        return
    close = difflib.get_close_matches(name, NAMES, n=1, cutoff=0.8)
    hint = f" (did you mean {close[0]!r}?)" if close else ""
    raise ModelError(
        f"there is no model {name!r}{hint}; expected {', '.join(NAMES)}, timm/NAME such as timm/convnext_tiny, "
        "torchvision/NAME such as torchvision/resnet18, or my_model.py:Net."
    )


def _library(name: str) -> tuple[str | None, str]:
    """Return timm or torchvision and the name within it, or None and the unchanged name."""
    if name in TIMM:
        return "timm", TIMM[name]
    library, _, library_name = name.partition("/")
    if library in ("timm", "torchvision") and split_reference(name) is None:
        return library, library_name
    return None, name


def _own_network(
    settings: ModelSettings, name: str, input_shape: Sequence[int], num_classes: int, trust: Trust
) -> nn.Module:
    """Build one of pencil's own networks or a user's network; neither has pretrained weights."""
    refuse_unknown(name)
    own = split_reference(name)
    if settings.pretrained:
        raise ModelError(f"there are no pretrained weights for {name!r}; set model.weights to a file.")
    if own is not None:
        return _from_file(*own, input_shape, num_classes, settings.options, trust)
    if name == "mlp":
        return mlp(math.prod(input_shape), num_classes, **settings.options)
    _need_images(name, input_shape)
    return OURS[name](input_shape[0], num_classes, **settings.options)


def _need_images(name: str, input_shape: Sequence[int]) -> None:
    if len(input_shape) != 3:
        raise ModelError(f"model {name!r} needs images; the inputs have shape {tuple(input_shape)}; try model mlp.")


def _from_file(
    path: Path, attribute: str, input_shape: Sequence[int], num_classes: int, options: dict[str, Any], trust: Trust
) -> nn.Module:
    """Call a user's class or function, with ``num_classes`` and ``input_shape`` if it takes these parameters."""
    make = getattr(load_module(path, attribute, trust), attribute, None)
    if not callable(make):
        raise ModelError(f"{path} does not define {attribute!r}; expected a class or function that returns a network.")
    known = {"num_classes": num_classes, "input_shape": tuple(input_shape)}
    parameters = inspect.signature(make).parameters
    network = make(**{name: value for name, value in known.items() if name in parameters}, **options)
    if not isinstance(network, nn.Module):
        raise ModelError(f"{path}:{attribute} returns a {type(network).__name__}; expected a torch.nn.Module.")
    return network
