"""The attention structure of section 3.8 (Fig. 2): one map per class instead of global pooling and a classifier."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from pencil.errors import ModelError


class Attention(nn.Module):
    """1 x 1 convolution to ``width``, 1 x 1 convolution to a map per class, one weighted sum over each class's map.

    The paper leaves open what stands between the two convolutions; without a non-linearity they would be one, so
    batch normalisation and ReLU do. The depthwise convolution starts as a mean over the map: training begins where
    global pooling stands and learns from there where to look.
    """

    def __init__(self, channels: int, num_classes: int, map_size: tuple[int, int], width: int = 2048):
        super().__init__()
        self.expand = nn.Conv2d(channels, width, 1, bias=False)
        self.bn = nn.BatchNorm2d(width)
        self.classes = nn.Conv2d(width, num_classes, 1)
        self.gather = nn.Conv2d(num_classes, num_classes, map_size, groups=num_classes)
        nn.init.kaiming_normal_(self.expand.weight, mode="fan_out", nonlinearity="relu")
        nn.init.constant_(self.gather.weight, 1 / (map_size[0] * map_size[1]))
        nn.init.zeros_(self.gather.bias)  # type: ignore[arg-type]

    def maps(self, features: Tensor) -> Tensor:
        """What each region says about each class: (batch, classes, height, width)."""
        maps: Tensor = self.classes(torch.relu(self.bn(self.expand(features))))
        return maps

    def forward(self, features: Tensor) -> Tensor:
        logits: Tensor = self.gather(self.maps(features)).flatten(1)
        return logits


class AttentionNetwork(nn.Module):
    """A convolutional backbone without its pooling and classifier, and the attention structure in their place."""

    def __init__(self, backbone: nn.Module, input_shape: Sequence[int], num_classes: int, width: int = 2048):
        super().__init__()
        self.backbone = backbone
        features = _trial(backbone, input_shape)
        if features.ndim != 4:
            raise ModelError(
                f"the backbone gives features of shape {tuple(features.shape[1:])}; expected a map (channels, height, "
                "width); the attention structure needs a convolutional backbone."
            )
        self.head = Attention(features.shape[1], num_classes, (features.shape[2], features.shape[3]), width)
        self.map_size = (features.shape[2], features.shape[3])

    def forward(self, x: Tensor) -> Tensor:
        features = self.backbone(x)
        if tuple(features.shape[2:]) != self.map_size:
            seen, expected = tuple(features.shape[2:]), self.map_size
            raise ModelError(
                f"inputs of {x.shape[2]} x {x.shape[3]} pixels give a map of {seen[0]} x {seen[1]}; "
                f"this network was built for one of {expected[0]} x {expected[1]}."
            )
        logits: Tensor = self.head(features)
        return logits

    def maps(self, x: Tensor) -> Tensor:
        """Where each class was found: the map of every class before it is summed up."""
        return self.head.maps(self.backbone(x))


@torch.no_grad()
def _trial(backbone: nn.Module, input_shape: Sequence[int]) -> Tensor:
    was_training = backbone.training
    features: Tensor = backbone.eval()(torch.zeros(1, *input_shape))
    backbone.train(was_training)
    return features
