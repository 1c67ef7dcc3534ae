"""A convolutional network for small images that trains fast, in the manner of the CIFAR-10 speed runs."""

import torch
from torch import Tensor, nn

from pencil.errors import ModelError

STEM = 24
"""Channels after the first convolution."""
WIDTHS = (64, 256, 256)
"""Channels of the three stages at ``width = 1``."""
LOGIT_SCALE = 1 / 9
SMALLEST = 9
"""Pixels that leave one place after the 2 x 2 convolution and three halvings."""


class FastStage(nn.Module):
    """Convolution, max-pool, batch normalisation, GELU; then the same again without the pool.

    Batch normalisation learns a shift only: the next convolution can scale as well.
    """

    def __init__(self, inner: int, outer: int):
        super().__init__()
        self.conv1 = nn.Conv2d(inner, outer, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outer)
        self.conv2 = nn.Conv2d(outer, outer, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outer)

    def forward(self, x: Tensor) -> Tensor:
        """Return a map of half the height and width."""
        x = nn.functional.gelu(self.bn1(nn.functional.max_pool2d(self.conv1(x), 2)))
        return nn.functional.gelu(self.bn2(self.conv2(x)))


class FastCnn(nn.Module):
    """Six 3 x 3 convolutions after a fixed first layer, which decorrelates 2 x 2 patches."""

    def __init__(self, channels: int, num_classes: int, width: float):
        super().__init__()
        widths = [round(width * whole) for whole in WIDTHS]
        if min(widths) < 1:
            raise ModelError(f"width is {width}; expected a factor of at least {1 / WIDTHS[0]:.3f}, such as 0.5.")
        self.stem = nn.Conv2d(channels, STEM, 2, bias=False)
        self.stem_bn = nn.BatchNorm2d(STEM, affine=False)
        self.stages = nn.Sequential(
            *(FastStage(inner, outer) for inner, outer in zip([STEM, *widths], widths, strict=False))
        )
        self.fc = nn.Linear(widths[-1], num_classes, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new weights; the stem is the same for every seed."""
        with torch.no_grad():
            self.stem.weight.copy_(patch_filters(self.stem.in_channels))
        self.stem.requires_grad_(False)
        for module in self.stages.modules():
            if isinstance(module, nn.Conv2d):
                module.reset_parameters()
                nn.init.dirac_(module.weight[: module.in_channels])

    def forward_features(self, x: Tensor) -> Tensor:
        """Return the feature map before global max-pooling."""
        features: Tensor = self.stages(nn.functional.gelu(self.stem_bn(self.stem(x))))
        return features

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits (batch, classes)."""
        logits: Tensor = self.fc(self.forward_features(x).amax(dim=(2, 3)))
        return logits * LOGIT_SCALE


def patch_filters(channels: int) -> Tensor:
    """Return filters for 2 x 2 patches, and their negatives, as many as the stem has channels."""
    h = torch.tensor([[1.0, 1.0], [1.0, -1.0]]) / 2**0.5
    space = torch.kron(h, h).view(4, 2, 2)
    colour = torch.eye(channels)
    if channels == 3:
        colour = torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, -1.0], [1.0, -2.0, 1.0]])
        colour = colour / colour.norm(dim=1, keepdim=True)
    filters = torch.einsum("pc,sij->pscij", colour, space).reshape(-1, channels, 2, 2)
    both = torch.cat([filters, -filters])
    return both.repeat(-(-STEM // len(both)), 1, 1, 1)[:STEM]


def fast_cnn(channels: int, num_classes: int, *, width: float = 0.5) -> FastCnn:
    return FastCnn(channels, num_classes, width)
