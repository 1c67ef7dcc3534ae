"""What can be seen of a network from outside: its output layer, and what it gives for inputs of a size."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from pencil.errors import ModelError

GROWTH = 128
"""So many pixels more make every map larger: no usual network takes longer steps over its input."""
FAULTS = (RuntimeError, TypeError, ValueError, AttributeError, AssertionError, LookupError)
"""What a network raises when an input does not suit it; anything else is a bug to be seen as it is."""


def output_layer(network: nn.Module) -> tuple[str, nn.Linear | nn.Conv2d] | None:
    """The last layer with its name: by custom the one that gives a value per class."""
    layers = [(name, module) for name, module in network.named_modules() if isinstance(module, (nn.Linear, nn.Conv2d))]
    return layers[-1] if layers else None


def outputs(layer: nn.Linear | nn.Conv2d) -> int:
    return layer.out_features if isinstance(layer, nn.Linear) else layer.out_channels


def blank(network: nn.Module, input_shape: Sequence[int]) -> Tensor:
    """One input of zeros, where the network is and of its kind."""
    like = next(network.parameters(), None)
    if like is None:
        return torch.zeros(1, *input_shape)
    return torch.zeros(1, *input_shape, dtype=like.dtype, device=like.device)


@torch.no_grad()
def trial(network: nn.Module, input_shape: Sequence[int]) -> Tensor:
    """What the network gives for one input of this shape; it learns nothing from it."""
    was_training = network.training
    try:
        found = network.eval()(blank(network, input_shape))
    except FAULTS as error:
        reason = first_line(error)
        raise ModelError(f"the network cannot take inputs of shape {tuple(input_shape)}: {reason}") from error
    finally:
        network.train(was_training)
    if not isinstance(found, Tensor):
        raise ModelError(f"the network gives a {type(found).__name__}; expected a tensor.")
    return found


def first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


def enlarged(input_shape: Sequence[int]) -> tuple[int, ...]:
    """The same input, higher: what grows with it is height, what does not is channels or width."""
    channels, height, width = input_shape
    return channels, height + GROWTH, width
