"""Residual networks for 32 x 32 images: a 3 x 3 stem of stride 1 and no pooling before the first stage."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class PreActBlock(nn.Module):
    """Two 3 x 3 convolutions, each after batch normalisation and ReLU (He et al. 2016, identity mappings)."""

    def __init__(self, inner: int, outer: int, stride: int):
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inner)
        self.conv1 = nn.Conv2d(inner, outer, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outer)
        self.conv2 = nn.Conv2d(outer, outer, 3, padding=1, bias=False)
        self.shortcut = nn.Conv2d(inner, outer, 1, stride, bias=False) if stride != 1 or inner != outer else None

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output; the shortcut is the identity if the shapes allow it."""
        active = torch.relu(self.bn1(x))
        residual: Tensor = self.conv2(torch.relu(self.bn2(self.conv1(active))))
        return residual + (x if self.shortcut is None else self.shortcut(active))


class PreActResNet(nn.Module):
    """Three stages of ``blocks`` pre-activation blocks; ``6 * blocks + 2`` layers."""

    def __init__(self, channels: int, num_classes: int, widths: Sequence[int], blocks: int):
        super().__init__()
        self.stem = nn.Conv2d(channels, widths[0], 3, padding=1, bias=False)
        inner, stages = widths[0], []
        for number, width in enumerate(widths):
            for block in range(blocks):
                stages.append(PreActBlock(inner, width, stride=2 if number and block == 0 else 1))
                inner = width
        self.stages = nn.Sequential(*stages)
        self.bn = nn.BatchNorm2d(inner)
        self.fc = nn.Linear(inner, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward_features(self, x: Tensor) -> Tensor:
        """Return the feature map before global average pooling."""
        return torch.relu(self.bn(self.stages(self.stem(x))))

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits (batch, classes)."""
        logits: Tensor = self.fc(self.forward_features(x).mean(dim=(2, 3)))
        return logits


def preact_resnet32(channels: int, num_classes: int, *, widths: Sequence[int] = (32, 64, 128)) -> PreActResNet:
    """Build a PreAct ResNet-32: 1.86 M parameters at the widths of Tanaka et al. (2018); the paper gives none."""
    return PreActResNet(channels, num_classes, widths, blocks=5)


def resnet34_cifar(channels: int, num_classes: int) -> nn.Module:
    """Build torchvision's ResNet-34 with a 3 x 3 stem of stride 1 and without max pooling."""
    from torchvision.models import resnet34

    network: nn.Module = resnet34(num_classes=num_classes)
    network.conv1 = nn.Conv2d(channels, 64, 3, padding=1, bias=False)
    network.maxpool = nn.Identity()
    return network
