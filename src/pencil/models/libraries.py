"""Networks from timm and torchvision, by their names in these libraries."""

import difflib
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from torch import nn

from pencil.data.inputs.geometry import LARGEST
from pencil.data.inputs.transform import IMAGENET, Normalization
from pencil.errors import ModelError
from pencil.models.probe import first_line, output_layer, output_width

AUXILIARY = ("AuxLogits", "aux1", "aux2")
"""The auxiliary classifiers of GoogLeNet and Inception; they are removed, because losses take one output."""


HUB_SECONDS = 5
"""Timeout of the connection to the hub of pretrained weights."""


def _timm() -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="IProgress not found")  # its hub uses tqdm, which warns in notebooks
        import timm
    return timm


def timm_network(name: str, input_shape: Sequence[int], *, pretrained: bool, **options: Any) -> nn.Module:
    """Build a timm network; the options ``num_classes=0, global_pool=""`` omit pooling and classifier.

    A transformer is built for the size of its inputs; timm interpolates its pretrained position embeddings.
    """
    timm = _timm()
    if not timm.is_model(name):
        raise ModelError(_unknown("timm", name, timm.list_models()))
    channels, *size = input_shape
    if fixed_side(name) and size != list(_pretrained_config(name).input_size[1:]):
        options.setdefault("img_size", tuple(size))
    with _download_errors(name, pretrained), _without_retries() if pretrained else nullcontext():
        network: nn.Module = timm.create_model(name, pretrained=pretrained, in_chans=channels, **options)
    return network


def pretrained_normalization(name: str) -> Normalization:
    """Return the input normalisation of timm's pretrained weights."""
    config = _pretrained_config(name)
    return IMAGENET if config is None else Normalization(tuple(config.mean), tuple(config.std))


def fixed_side(name: str) -> int | None:
    """Return the side of the images that a timm network expects if it takes one size only, such as a transformer.

    It is at most :data:`LARGEST`, to which images are resized by default: the published evaluations of DINOv2, whose
    weights were trained on 518 pixels, are at 224.
    """
    config = _pretrained_config(name)
    return None if config is None or not config.fixed_input_size else min(LARGEST, config.input_size[1])


def _pretrained_config(name: str) -> Any:
    """Return timm's description of pretrained weights, such as their input size; None for a network without any."""
    timm = _timm()
    try:
        return timm.get_pretrained_cfg(name)
    except RuntimeError as error:  # an unknown tag after the name
        raise ModelError(f"timm has no pretrained weights {name!r}: {first_line(error)}.") from error


def torchvision_network(name: str, channels: int, num_classes: int, *, pretrained: bool, **options: Any) -> nn.Module:
    """Build a torchvision classifier; a pretrained one gets a new output layer if the classes differ."""
    from torchvision import models

    known = models.list_models(module=models)
    if name not in known:
        raise ModelError(_unknown("torchvision", name, known))
    with _download_errors(name, pretrained), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The default weight initialization", FutureWarning)  # GoogLeNet, Inception
        if pretrained:  # the builder accepts only the classes of the pretrained weights
            network: nn.Module = models.get_model(name, weights="DEFAULT", progress=False, **options)
        else:
            network = models.get_model(name, weights=None, num_classes=num_classes, **options)
    for part in AUXILIARY:
        if hasattr(network, part):
            setattr(network, part, None)
            setattr(network, "aux_logits", False)  # noqa: B010 - nn.Module's type hints allow tensors and modules only
    if pretrained:
        _replace_output_layer(network, num_classes)
    if channels != 3:
        _replace_input_channels(network, channels)
    return network


def _replace_output_layer(network: nn.Module, num_classes: int) -> None:
    found = output_layer(network)
    if found is None or output_width(found[1]) == num_classes:
        return
    name, last = found
    layer: nn.Module
    if isinstance(last, nn.Linear):
        layer = nn.Linear(last.in_features, num_classes)
    else:  # SqueezeNet
        layer = nn.Conv2d(last.in_channels, num_classes, kernel_size=1)
    parent, _, child = name.rpartition(".")
    setattr(network.get_submodule(parent), child, layer)


def _replace_input_channels(network: nn.Module, channels: int) -> None:
    """Adapt the first convolution to this many channels: its weights are summed or repeated, as timm does."""
    from timm.models import adapt_input_conv

    first = next(module for module in network.modules() if isinstance(module, nn.Conv2d))
    first.weight = nn.Parameter(adapt_input_conv(channels, first.weight.detach()))
    first.in_channels = channels


def _unknown(library: str, name: str, known: Sequence[str]) -> str:
    close = [other for other in known if name in other][:5] or difflib.get_close_matches(name, known, n=5)
    hint = f"did you mean {', '.join(close)}?" if close else f"{library}.list_models() lists the names."
    return f"{library} has no model {name!r}; {hint}"


@contextmanager
def _without_retries() -> Iterator[None]:
    """Let the hub's client use only its local cache if the hub does not answer; it would retry for a minute."""
    from huggingface_hub import constants, get_session

    before = constants.HF_HUB_OFFLINE
    try:
        get_session().head(constants.ENDPOINT, timeout=HUB_SECONDS)
    except Exception:  # noqa: BLE001 - the client raises errors of several libraries; any of them means: no hub
        constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


@contextmanager
def _download_errors(name: str, pretrained: bool) -> Iterator[None]:
    """Turn a failed download of pretrained weights into a ModelError."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        if not pretrained:
            raise
        raise ModelError(
            f"the pretrained weights of {name} cannot be downloaded ({first_line(error)}); "
            "use efficientnet_lite0, whose weights are installed with pencil, or save them to a file and pass it: "
            "--set model.pretrained=false --set model.weights=FILE."
        ) from error
