"""The attention structure of section 3.7 (Fig. 2): one map per class instead of global pooling and a classifier."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from pencil.errors import ModelError
from pencil.models.probe import enlarged_shape, trial_forward


class Attention(nn.Module):
    """A head that turns a feature map into logits through one map per class.

    It consists of a 1 x 1 convolution to ``width`` channels, a 1 x 1 convolution to one map per class, and a depthwise
    convolution that sums each class's map with learned weights. The paper does not say what is between the first two;
    without a non-linearity they would collapse into one convolution, so batch normalisation and ReLU are used here. The
    depthwise convolution starts as a mean over the map, that is, as global average pooling.

    Parameters
    ----------
    channels : int
        Channels of the feature map.
    num_classes : int
        The number of logits.
    map_size : tuple of int
        Height and width of the feature map.
    width : int
        Channels between the first two convolutions.
    """

    def __init__(self, channels: int, num_classes: int, map_size: tuple[int, int], width: int = 2048):
        super().__init__()
        self.expand = nn.Conv2d(channels, width, 1, bias=False)
        self.bn = nn.BatchNorm2d(width)
        self.classes = nn.Conv2d(width, num_classes, 1)
        self.gather = nn.Conv2d(num_classes, num_classes, map_size, groups=num_classes)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the first convolution's weights and set the depthwise convolution to a mean."""
        nn.init.kaiming_normal_(self.expand.weight, mode="fan_out", nonlinearity="relu")
        nn.init.constant_(self.gather.weight, 1 / self.gather.weight[0].numel())
        nn.init.zeros_(self.gather.bias)  # type: ignore[arg-type]

    def class_maps(self, features: Tensor) -> Tensor:
        """Return the map of each class before weighting: (batch, classes, height, width)."""
        maps: Tensor = self.classes(torch.relu(self.bn(self.expand(features))))
        return maps

    def maps(self, features: Tensor) -> Tensor:
        """Return the contribution of each position to each class's logit; the logit is their sum plus the bias."""
        return self.class_maps(features) * self.gather.weight.squeeze(1)

    def forward(self, features: Tensor) -> Tensor:
        """Return the logits (batch, classes) of a feature map."""
        logits: Tensor = self.gather(self.class_maps(features)).flatten(1)
        return logits


class AttentionNetwork(nn.Module):
    """A backbone whose pooling and classifier are replaced by the attention structure.

    Parameters
    ----------
    backbone : nn.Module
        Returns a feature map (batch, channels, height, width), or one with channels last, as timm's Swin does.
    input_shape : sequence of int
        Channels, height and width of one input.
    num_classes : int
        The number of logits.
    width : int
        Channels inside the attention structure.
    """

    def __init__(self, backbone: nn.Module, input_shape: Sequence[int], num_classes: int, width: int = 2048):
        super().__init__()
        layout = _layout(backbone, input_shape)
        self.backbone = backbone
        self.input_shape = tuple(input_shape)
        self.map_size = layout.size
        self.channels_last = layout.channels_last
        self.head = Attention(layout.channels, num_classes, layout.size, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits (batch, classes)."""
        logits: Tensor = self.head(self.features(x))
        return logits

    def maps(self, x: Tensor) -> Tensor:
        """Return the contribution of each position to each class's logit: (batch, classes, height, width).

        The logits are ``maps(x).sum((2, 3)) + head.gather.bias``.
        """
        return self.head.maps(self.features(x))

    def features(self, x: Tensor) -> Tensor:
        """Return the (batch, channels, height, width) feature map; raise ModelError unless it fits the head."""
        features: Tensor = self.backbone(x)
        if self.channels_last:
            features = features.permute(0, 3, 1, 2)
        seen, expected = tuple(features.shape[2:]), self.map_size
        if seen != expected:
            raise ModelError(
                f"inputs of {x.shape[2]} x {x.shape[3]} pixels have a feature map of {seen[0]} x {seen[1]}; "
                f"this network was built for a feature map of {expected[0]} x {expected[1]}; "
                f"use inputs of {self.input_shape[1]} x {self.input_shape[2]} pixels."
            )
        return features


class _Layout(NamedTuple):
    channels: int
    size: tuple[int, int]
    channels_last: bool


def _layout(backbone: nn.Module, input_shape: Sequence[int]) -> _Layout:
    """Return the size of the backbone's feature map, and which dimension holds the channels.

    timm networks declare their channels; for others, the channels are the dimension that does not grow with the input.
    """
    if len(input_shape) != 3:
        raise ModelError(f"the attention structure needs images; the inputs have shape {tuple(input_shape)}.")
    shape = tuple(trial_forward(backbone, input_shape).shape[1:])
    if len(shape) != 3:
        raise ModelError(
            f"the backbone returns features of shape {shape}; expected a feature map (channels, height, width); "
            "the attention structure needs a convolutional backbone, such as timm/resnet18."
        )
    declared = {getattr(backbone, name, None) for name in ("num_features", "head_hidden_size")}
    found = [axis for axis in (0, 2) if shape[axis] in declared]
    if len(found) != 1:
        found = _constant_axes(backbone, input_shape, shape)
    if len(found) != 1:
        raise ModelError(
            f"the backbone returns features of shape {shape}, in which the channel dimension is ambiguous; "
            "set its attribute num_features to the number of channels."
        )
    if found == [2]:
        return _Layout(shape[2], (shape[0], shape[1]), channels_last=True)
    return _Layout(shape[0], (shape[1], shape[2]), channels_last=False)


def _constant_axes(backbone: nn.Module, input_shape: Sequence[int], shape: tuple[int, ...]) -> list[int]:
    """Return which of the first and the last dimension stays the same when the height grows."""
    try:
        larger = tuple(trial_forward(backbone, enlarged_shape(input_shape)).shape[1:])
    except ModelError:  # it takes inputs of a single size
        return []
    return [
        axis for axis, height in ((0, 1), (2, 0)) if larger[axis] == shape[axis] and larger[height] != shape[height]
    ]
