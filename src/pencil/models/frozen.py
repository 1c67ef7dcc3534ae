"""A frozen backbone with a trained head: the features of every image are computed once, and only the head is trained.

Head and backbone form one network, which predicts, is saved and is exported like any other.
"""

import copy
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.fusion import fuse_conv_bn_eval

from pencil.errors import ModelError
from pencil.models.probe import FAULTS, output_layer, trial_forward
from pencil.models.small import mlp

Head = Literal["mlp", "linear"]
SMALLEST = 112
"""Smaller images are enlarged to this many pixels: networks trained on photos extract little from thumbnails."""
LONGEST = 4
"""Upper limit of the longer side after enlarging, as a multiple of the smallest side."""


class FrozenNetwork(nn.Module):
    """A backbone without its output layer, in evaluation mode until thawed, and a head on standardised features.

    Parameters
    ----------
    backbone : nn.Module
        Returns a feature vector for each image.
    input_shape : sequence of int
        Channels, height and width of one image.
    num_classes : int
        The number of logits.
    head : str
        "mlp" or "linear".
    size : tuple of int or None
        Height and width to which images are enlarged; None takes them as they are.
    """

    def __init__(
        self,
        backbone: nn.Module,
        input_shape: Sequence[int],
        num_classes: int,
        head: Head,
        size: tuple[int, int] | None = None,
    ):
        super().__init__()
        self.backbone = backbone.requires_grad_(False).eval()
        self.frozen = True
        self.input_size = (input_shape[1], input_shape[2])
        self.size = size
        self.width = trial_forward(_Resized(self.backbone, self.size), input_shape).shape[-1]
        self.feature_mean: Tensor
        self.feature_std: Tensor
        self.register_buffer("feature_mean", torch.zeros(self.width))
        self.register_buffer("feature_std", torch.ones(self.width))
        self.head = make_head(self.width, num_classes, head)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits."""
        features = self.backbone(resized(images, self.size).to(self.feature_mean.dtype))
        logits: Tensor = self.head((features - self.feature_mean) / self.feature_std)
        return logits

    def train(self, mode: bool = True) -> "FrozenNetwork":
        """Set the mode; a frozen backbone stays in evaluation mode."""
        super().train(mode)
        if self.frozen:
            self.backbone.eval()
        return self

    def thaw(self) -> "FrozenNetwork":
        """Make the backbone trainable too, and return the network."""
        self.frozen = False
        self.backbone.requires_grad_(True)
        return self

    def extractor(self) -> nn.Module:
        """Return a copy of the backbone that computes the same features faster: batch norms folded, channels last."""
        fast = folded(self.backbone, self.size or self.input_size)
        return _Resized(fast, self.size).to(memory_format=torch.channels_last)


class _Resized(nn.Module):
    """A network that first enlarges its inputs."""

    def __init__(self, network: nn.Module, size: tuple[int, int] | None):
        super().__init__()
        self.network, self.size = network, size

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.network(resized(images, self.size))
        return features


def make_head(width: int, num_classes: int, head: Head) -> nn.Module:
    """Return a linear layer or a multi-layer perceptron on features."""
    return nn.Linear(width, num_classes) if head == "linear" else mlp(width, num_classes)


class PooledStages(nn.Module):
    """An EfficientNet of timm that returns the pooled outputs of its last two stages, followed by its own features.

    They describe small parts better than the last layer, which was trained for the classes of ImageNet, and they are
    computed anyway.
    """

    def __init__(self, network: nn.Module):
        super().__init__()
        self.network: Any = network

    def forward(self, images: Tensor) -> Tensor:
        """Return the features."""
        network = self.network
        outputs = [network.bn1(network.conv_stem(images))]
        for stage in network.blocks:
            outputs.append(stage(outputs[-1]))
        last = network.forward_head(network.bn2(network.conv_head(outputs[-1])))
        return torch.cat([*(output.mean(dim=(2, 3)) for output in outputs[-2:]), last], dim=1)


def enlarged_size(
    input_shape: Sequence[int], smallest: int = SMALLEST, *, square: bool = False
) -> tuple[int, int] | None:
    """Return the height and width to which images of this shape are enlarged; None if they are large enough.

    Parameters
    ----------
    input_shape
        The shape of an image.
    smallest
        The shorter side after enlarging.
    square
        Make squares of all images, for a network that takes one size.
    """
    height, width = input_shape[-2:]
    if min(height, width) >= smallest:
        return None
    if square:
        return smallest, smallest
    factor = max(1.0, min(smallest / min(height, width), LONGEST * smallest / max(height, width)))
    return round(height * factor), round(width * factor)


def resized(images: Tensor, size: tuple[int, int] | None) -> Tensor:
    """Return the images enlarged to a size."""
    return images if size is None else functional.interpolate(images, size, mode="bilinear", align_corners=False)


def without_output_layer(network: nn.Module, name: str) -> nn.Module:
    """Replace the last linear layer, which returns the logits, by the identity; the network then returns features."""
    found = output_layer(network)
    if found is None or not isinstance(found[1], nn.Linear):
        raise ModelError(
            f"model {name!r} does not end in a linear layer; expected a linear layer on top of the features; set "
            "model.train to all."
        )
    parent, _, child = found[0].rpartition(".")
    setattr(network.get_submodule(parent), child, nn.Identity())
    return network


@torch.no_grad()
def folded(network: nn.Module, size: tuple[int, int]) -> nn.Module:
    """Return a copy of a network for inference, with each batch norm folded into the convolution before it.

    The convolution before a batch norm is inferred from the order of the layers. If the copy computes something else,
    the inference was wrong, and a plain copy is returned. ``size`` is the height and width of the inputs.
    """
    plain = copy.deepcopy(network).eval()
    first = next((module for module in plain.modules() if isinstance(module, nn.Conv2d)), None)
    if first is None:
        return plain
    fast = _fold(copy.deepcopy(plain))
    probe = torch.rand(2, first.in_channels, *size, generator=torch.Generator().manual_seed(0))
    expected = plain(probe)
    try:
        found = fast(probe)
    except FAULTS:  # a layer accesses an attribute of its batch norm
        return plain
    return fast if torch.allclose(found, expected, rtol=1e-3, atol=1e-4 * float(expected.abs().max())) else plain


def _fold(module: nn.Module) -> nn.Module:
    children = list(module.named_children())
    for (name, layer), (next_name, norm) in pairwise(children):
        if isinstance(layer, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
            setattr(module, name, fuse_conv_bn_eval(layer, norm))
            setattr(module, next_name, getattr(norm, "act", None) or nn.Identity())  # timm's contain an activation
    for _, child in children:
        _fold(child)
    return module
