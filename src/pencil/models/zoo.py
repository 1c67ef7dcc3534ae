"""Networks of timm and of torchvision, by their names there."""

import difflib
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn

from pencil.errors import ModelError
from pencil.models.probe import first_line, output_layer, outputs

AUXILIARY = ("AuxLogits", "aux1", "aux2")
"""Further classifiers with which GoogLeNet and Inception train; a loss here is of one output."""


def timm_network(name: str, channels: int, *, pretrained: bool, **options: Any) -> nn.Module:
    """One of timm's; ``num_classes=0, global_pool=""`` among the options leaves pooling and classifier out."""
    import timm

    if not timm.is_model(name):
        raise ModelError(_unknown("timm", name, timm.list_models()))
    with _fetching(name, pretrained):
        network: nn.Module = timm.create_model(name, pretrained=pretrained, in_chans=channels, **options)
    return network


def torchvision_network(name: str, channels: int, num_classes: int, *, pretrained: bool, **options: Any) -> nn.Module:
    """One of torchvision's classifiers; pretrained ones get a fresh output layer for another number of classes."""
    from torchvision import models

    known = models.list_models(module=models)
    if name not in known:
        raise ModelError(_unknown("torchvision", name, known))
    with _fetching(name, pretrained), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The default weight initialization", FutureWarning)  # GoogLeNet, Inception
        if pretrained:  # whose builder insists on the classes they were trained for
            network: nn.Module = models.get_model(name, weights="DEFAULT", progress=False, **options)
        else:
            network = models.get_model(name, weights=None, num_classes=num_classes, **options)
    for part in AUXILIARY:
        if hasattr(network, part):
            setattr(network, part, None)
            setattr(network, "aux_logits", False)  # noqa: B010 - a plain value, which nn.Module's types do not foresee
    if pretrained:
        _renew_output(network, num_classes)
    if channels != 3:
        _take_channels(network, channels)
    return network


def _renew_output(network: nn.Module, num_classes: int) -> None:
    found = output_layer(network)
    if found is None or outputs(found[1]) == num_classes:
        return
    name, last = found
    layer: nn.Module
    if isinstance(last, nn.Linear):
        layer = nn.Linear(last.in_features, num_classes)
    else:  # SqueezeNet's
        layer = nn.Conv2d(last.in_channels, num_classes, kernel_size=1)
    parent, _, child = name.rpartition(".")
    setattr(network.get_submodule(parent), child, layer)


def _take_channels(network: nn.Module, channels: int) -> None:
    """Let the first convolution take so many channels: its weights summed or repeated, as timm does it."""
    from timm.models import adapt_input_conv

    first = next(module for module in network.modules() if isinstance(module, nn.Conv2d))
    first.weight = nn.Parameter(adapt_input_conv(channels, first.weight.detach()))
    first.in_channels = channels


def _unknown(library: str, name: str, known: Sequence[str]) -> str:
    close = [other for other in known if name in other][:5] or difflib.get_close_matches(name, known, n=5)
    hint = f"did you mean {', '.join(close)}?" if close else f"{library}'s list_models() names them."
    return f"{library} has no model {name!r}; {hint}"


@contextmanager
def _fetching(name: str, pretrained: bool) -> Iterator[None]:
    try:
        yield
    except (OSError, RuntimeError) as error:
        if not pretrained:
            raise
        raise ModelError(
            f"the pretrained weights of {name} cannot be fetched ({first_line(error)}); "
            "put them in a file and name it: --set model.pretrained=false --set model.weights=FILE."
        ) from error
