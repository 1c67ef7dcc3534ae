"""Two small networks: a CNN for images and an MLP for vectors."""

from torch import nn


def small_cnn(
    channels: int, num_classes: int, *, width: int = 32, stride: int = 1, pool: bool = False
) -> nn.Sequential:
    """Build a CNN of two stages of two 3 x 3 convolutions each, for small images.

    Parameters
    ----------
    channels, num_classes : int
        Channels of the images, and the number of logits.
    width : int
        Channels of the first stage; the second has twice as many.
    stride : int
        Stride of the first convolution; 2 is about four times as fast.
    pool : bool
        Whether a linear classifier follows global average pooling, as in most large networks. By default 2 x 2
        positions and a hidden layer remain, so that the network can memorise labels like a large network.
    """

    def stage(inner: int, outer: int, stride: int = 1) -> list[nn.Module]:
        convolutions: list[nn.Module] = []
        for source, step in ((inner, stride), (outer, 1)):
            convolution = nn.Conv2d(source, outer, 3, step, padding=1, bias=False)
            convolutions += [convolution, nn.BatchNorm2d(outer), nn.ReLU(True)]
        return [*convolutions, nn.MaxPool2d(2)]

    stages = [*stage(channels, width, stride), *stage(width, 2 * width)]
    if pool:
        return nn.Sequential(*stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * width, num_classes))
    return nn.Sequential(
        *stages,
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(8 * width, 4 * width),
        nn.ReLU(True),
        nn.Linear(4 * width, num_classes),
    )


def mlp(features: int, num_classes: int, *, width: int = 128) -> nn.Sequential:
    """Build a multi-layer perceptron of two hidden layers of ``width`` units, with batch normalisation."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(features, width),
        nn.BatchNorm1d(width),
        nn.ReLU(True),
        nn.Linear(width, width),
        nn.BatchNorm1d(width),
        nn.ReLU(True),
        nn.Linear(width, num_classes),
    )
