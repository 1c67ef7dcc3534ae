"""What can be found out about any network: its output layer, and its output for an input of some shape."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from pencil.errors import ModelError

GROWTH = 128
"""Pixels by which an input is enlarged to see what grows: more than the total stride of any usual network."""
FAULTS = (RuntimeError, TypeError, ValueError, AttributeError, AssertionError, LookupError)
"""What a network raises when an input does not fit it; anything else is a bug and is not caught."""


def output_layer(network: nn.Module) -> tuple[str, nn.Linear | nn.Conv2d] | None:
    """Return the last linear or convolutional layer with its name: by convention the one that returns the logits."""
    layers = [(name, module) for name, module in network.named_modules() if isinstance(module, (nn.Linear, nn.Conv2d))]
    return layers[-1] if layers else None


def output_width(layer: nn.Linear | nn.Conv2d) -> int:
    """Return the number of values that a layer returns."""
    return layer.out_features if isinstance(layer, nn.Linear) else layer.out_channels


def zero_input(network: nn.Module, input_shape: Sequence[int]) -> Tensor:
    """Return one input of zeros on the network's device and of its dtype."""
    like = next(network.parameters(), None)
    if like is None:
        return torch.zeros(1, *input_shape)
    return torch.zeros(1, *input_shape, dtype=like.dtype, device=like.device)


@torch.no_grad()
def trial_forward(network: nn.Module, input_shape: Sequence[int]) -> Tensor:
    """Return the network's output for one input of zeros, in evaluation mode; a failure is a ModelError."""
    was_training = network.training
    try:
        found = network.eval()(zero_input(network, input_shape))
    except FAULTS as error:
        reason = first_line(error)
        raise ModelError(f"the network cannot take inputs of shape {tuple(input_shape)}: {reason}") from error
    finally:
        network.train(was_training)
    if not isinstance(found, Tensor):
        raise ModelError(f"the network returns a {type(found).__name__}; expected a tensor.")
    return found


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, or its type where it has none."""
    return (str(error) or type(error).__name__).splitlines()[0]


def enlarged_shape(input_shape: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of a higher input: dimensions that grow with it are heights."""
    channels, height, width = input_shape
    return channels, height + GROWTH, width
