"""The attention structure of section 3.8 (Fig. 2): one map per class instead of global pooling and a classifier."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from pencil.errors import ModelError
from pencil.models.probe import enlarged, trial


class Attention(nn.Module):
    """1 x 1 convolution to ``width``, 1 x 1 convolution to a map per class, one weighted sum over each class's map.

    The paper leaves open what stands between the two convolutions; without a non-linearity they would be one, so
    batch normalisation and ReLU do. Nothing stands after the second: a class's map is evidence for or against it, in
    logits. The depthwise convolution starts as a mean over the map: training begins where global pooling stands and
    learns from there where to look.
    """

    def __init__(self, channels: int, num_classes: int, map_size: tuple[int, int], width: int = 2048):
        super().__init__()
        self.expand = nn.Conv2d(channels, width, 1, bias=False)
        self.bn = nn.BatchNorm2d(width)
        self.classes = nn.Conv2d(width, num_classes, 1)
        self.gather = nn.Conv2d(num_classes, num_classes, map_size, groups=num_classes)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.kaiming_normal_(self.expand.weight, mode="fan_out", nonlinearity="relu")
        nn.init.constant_(self.gather.weight, 1 / self.gather.weight[0].numel())
        nn.init.zeros_(self.gather.bias)  # type: ignore[arg-type]

    def class_maps(self, features: Tensor) -> Tensor:
        """What each place says about each class: (batch, classes, height, width)."""
        maps: Tensor = self.classes(torch.relu(self.bn(self.expand(features))))
        return maps

    def maps(self, features: Tensor) -> Tensor:
        """What each place adds to each class's logit; over all places, and with the bias, they are the logits."""
        return self.class_maps(features) * self.gather.weight.squeeze(1)

    def forward(self, features: Tensor) -> Tensor:
        logits: Tensor = self.gather(self.class_maps(features)).flatten(1)
        return logits


class AttentionNetwork(nn.Module):
    """A backbone without its pooling and classifier, and the attention structure in their place.

    The backbone gives a map (batch, channels, height, width), or with its channels last, as Swin does in timm.
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
        logits: Tensor = self.head(self.features(x))
        return logits

    def maps(self, x: Tensor) -> Tensor:
        """What each place adds to each class's logit: (batch, classes, height, width).

        ``maps(x).sum((2, 3)) + head.gather.bias`` are the logits.
        """
        return self.head.maps(self.features(x))

    def features(self, x: Tensor) -> Tensor:
        """The backbone's map (batch, channels, height, width), if it is of the size that the structure is for."""
        features: Tensor = self.backbone(x)
        if self.channels_last:
            features = features.permute(0, 3, 1, 2)
        seen, expected = tuple(features.shape[2:]), self.map_size
        if seen != expected:
            raise ModelError(
                f"inputs of {x.shape[2]} x {x.shape[3]} pixels give a map of {seen[0]} x {seen[1]}; "
                f"this network was built for one of {expected[0]} x {expected[1]}; "
                f"use inputs of {self.input_shape[1]} x {self.input_shape[2]} pixels."
            )
        return features


class _Layout(NamedTuple):
    channels: int
    size: tuple[int, int]
    channels_last: bool


def _layout(backbone: nn.Module, input_shape: Sequence[int]) -> _Layout:
    """The size of the backbone's map, and which of its dimensions has the channels.

    timm's networks know their channels; for others, channels are what does not grow when the input does.
    """
    if len(input_shape) != 3:
        raise ModelError(f"the attention structure needs images; the inputs have shape {tuple(input_shape)}.")
    shape = tuple(trial(backbone, input_shape).shape[1:])
    if len(shape) != 3:
        raise ModelError(
            f"the backbone gives features of shape {shape}; expected a map (channels, height, width); "
            "the attention structure needs a convolutional backbone, such as timm/resnet18."
        )
    told = {getattr(backbone, name, None) for name in ("num_features", "head_hidden_size")}
    found = [axis for axis in (0, 2) if shape[axis] in told]
    if len(found) != 1:
        found = _constant_axes(backbone, input_shape, shape)
    if len(found) != 1:
        raise ModelError(
            f"the backbone gives features of shape {shape}, and it is not clear which of these are the channels; "
            "give it an attribute num_features that says how many they are."
        )
    if found == [2]:
        return _Layout(shape[2], (shape[0], shape[1]), channels_last=True)
    return _Layout(shape[0], (shape[1], shape[2]), channels_last=False)


def _constant_axes(backbone: nn.Module, input_shape: Sequence[int], shape: tuple[int, ...]) -> list[int]:
    """Which of the first and the last dimension stays as it is while the height grows beside it."""
    try:
        larger = tuple(trial(backbone, enlarged(input_shape)).shape[1:])
    except ModelError:  # it takes inputs of one size only
        return []
    return [
        axis for axis, height in ((0, 1), (2, 0)) if larger[axis] == shape[axis] and larger[height] != shape[height]
    ]
