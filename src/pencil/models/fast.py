"""A convolutional network for small images that trains fast, similar to the CIFAR-10 speed runs."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from pencil.errors import ModelError

WIDTHS = (64, 256, 256)
"""Channels of the three stages at ``width = 1``."""
LOGIT_SCALE = 1 / 9
"""Keeps the initial logits small relative to batch-normalised features, so that training can start at a high rate."""
MOMENTUM = 0.4
"""Weight of a batch in the running statistics: the network changes fast."""
SMALLEST = 9
"""The image size that leaves one position after the 2 x 2 convolution and three poolings."""


def shift_only_norm(channels: int) -> nn.BatchNorm2d:
    """Return a batch normalisation that learns shifts but no scales, as in the speed runs."""
    norm = nn.BatchNorm2d(channels, momentum=MOMENTUM)
    norm.weight.requires_grad_(False)
    return norm


class FastStage(nn.Module):
    """Convolution, max-pool, batch normalisation, GELU; then convolution, batch normalisation, GELU."""

    def __init__(self, inner: int, outer: int):
        super().__init__()
        self.conv1 = nn.Conv2d(inner, outer, 3, padding=1, bias=False)
        self.bn1 = shift_only_norm(outer)
        self.conv2 = nn.Conv2d(outer, outer, 3, padding=1, bias=False)
        self.bn2 = shift_only_norm(outer)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Let the first filters of both convolutions pass their inputs on; the other filters stay random."""
        for conv in (self.conv1, self.conv2):
            nn.init.dirac_(conv.weight[: conv.in_channels])

    def forward(self, x: Tensor) -> Tensor:
        """Return a map of half the height and width."""
        x = functional.gelu(self.bn1(functional.max_pool2d(self.conv1(x), 2)))
        return functional.gelu(self.bn2(self.conv2(x)))


class FastCnn(nn.Module):
    """Six 3 x 3 convolutions after a fixed first layer that decorrelates 2 x 2 patches.

    The speed runs whiten patches by the covariance of the training images. Here the directions are fixed
    (:func:`patch_filters`), and batch normalisation measures their variances, so building the network needs no data.
    As in the speed runs, convolutions start as the identity and batch normalisation has no scales.
    """

    patches: Tensor

    def __init__(self, channels: int, num_classes: int, width: float):
        super().__init__()
        widths = [round(width * whole) for whole in WIDTHS]
        if min(widths) < 1:
            raise ModelError(f"fast_cnn has width {width}; expected a factor on {WIDTHS} channels, such as 0.5.")
        self.register_buffer("patches", patch_filters(channels))
        inner = len(self.patches)
        self.bn = shift_only_norm(inner)
        self.stages = nn.Sequential(*map(FastStage, [inner, *widths[:-1]], widths))
        self.fc = nn.Linear(widths[-1], num_classes, bias=False)

    def forward_features(self, x: Tensor) -> Tensor:
        """Return the feature map before global max-pooling."""
        if min(x.shape[-2:]) < SMALLEST:
            height, width = x.shape[-2:]
            raise ModelError(
                f"fast_cnn got images of {height} x {width} pixels; expected at least {SMALLEST} x {SMALLEST}; set "
                "data.resize, or use model small_cnn."
            )
        features: Tensor = self.stages(functional.gelu(self.bn(functional.conv2d(x, self.patches))))
        return features

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits (batch, classes)."""
        logits: Tensor = self.fc(self.forward_features(x).amax(dim=(2, 3)))
        return logits * LOGIT_SCALE


def patch_filters(channels: int) -> Tensor:
    """Return orthonormal filters for 2 x 2 patches, ``(8 * channels, channels, 2, 2)``: a basis and its negative.

    The spatial basis is Hadamard's (sum, two edges, checkerboard), which decorrelates pixels if the image statistics
    are invariant to translation and mirroring. The colour basis is the sum and two differences, which nearly
    decorrelates the channels of photographs; images with another number of channels keep their channels unchanged.
    """
    line = torch.tensor([[1.0, 1.0], [1.0, -1.0]]) / 2**0.5
    space = torch.einsum("ai,bj->abij", line, line).reshape(4, 2, 2)
    colour = torch.eye(channels)
    if channels == 3:
        colour = functional.normalize(torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, -1.0], [1.0, -2.0, 1.0]]), dim=1)
    basis = torch.einsum("kc,sij->kscij", colour, space).reshape(-1, channels, 2, 2)
    return torch.cat([basis, -basis])


def fast_cnn(channels: int, num_classes: int, *, width: float = 0.5) -> FastCnn:
    """Build a network of six 3 x 3 convolutions for images of 9 to about 64 pixels.

    At 32 x 32 pixels and 3 channels a forward pass takes 66 million floating point operations at half width, and 20
    million at a quarter of the width.

    Parameters
    ----------
    channels, num_classes : int
        Channels of the images, and the number of logits.
    width : float
        Factor on the 64, 256 and 256 channels of the three stages.
    """
    return FastCnn(channels, num_classes, width)
