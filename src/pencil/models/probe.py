"""Inspecting any network: its output layer, and its output for an input of a given shape."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from pencil.errors import ModelError

GROWTH = 128
"""An input is enlarged by this many pixels to see what grows; it exceeds the total stride of common networks."""
STATISTICS = ("running_mean", "running_var")
FAULTS = (RuntimeError, TypeError, ValueError, AttributeError, AssertionError, LookupError)
"""Errors that a network raises for an unsuitable input; anything else is a bug and is not caught."""


def as_network(model: Any) -> nn.Module:
    """Return the same network; raise ModelError for a class, a function or anything else but an ``nn.Module``."""
    if isinstance(model, nn.Module):
        return model
    if isinstance(model, type):
        remedy = "pass an instance of it" if issubclass(model, nn.Module) else "derive it from torch.nn.Module"
        raise ModelError(f"the model is the class {model.__name__}; expected a torch.nn.Module; {remedy}.")
    remedy = "wrap it in a torch.nn.Module" if callable(model) else "pass a network, or the name of one"
    raise ModelError(f"the model is a {type(model).__name__}; expected a torch.nn.Module; {remedy}.")


def copy_network(model: Any) -> nn.Module:
    """Return a copy of a network, so that the user's own network never changes; raise ModelError if copying fails."""
    try:
        return copy.deepcopy(as_network(model))
    except (RuntimeError, TypeError, AttributeError) as error:
        raise ModelError(
            f"the model cannot be copied: {first_line(error)}; expected one that copy.deepcopy accepts; keep computed "
            "tensors, open files and locks out of it."
        ) from error


def refuse_untrainable(network: nn.Module) -> None:
    """Raise ModelError for a network without trainable parameters; call it after a forward pass built lazy layers."""
    parameters = dict(network.named_parameters())
    if not parameters:
        raise ModelError("the model has no parameters; expected at least one to train; register its layers as modules.")
    unbuilt = [name for name, value in parameters.items() if is_lazy(value)]
    if unbuilt:
        raise ModelError(
            f"the model has lazy layers that were never built ({', '.join(unbuilt[:3])}); expected forward to use all "
            "lazy layers; remove unused ones."
        )
    if not any(value.requires_grad for value in parameters.values()):
        raise ModelError(
            f"all {len(parameters)} parameters of the model are frozen (requires_grad is False); expected at least one "
            "to train; unfreeze the last layer."
        )
    broken = non_finite_tensors(network)
    if broken:
        raise ModelError(
            f"{len(broken)} tensors of the model have NaN or infinity ({', '.join(broken[:3])}); expected finite "
            "numbers; initialise them, or load other weights."
        )


def non_finite_tensors(network: nn.Module) -> list[str]:
    """Return the names of parameters and buffers with NaN or infinity.

    Buffers may contain infinity on purpose, as masks do; running statistics may not.
    """
    found = [name for name, value in network.named_parameters() if not _finite(value)]
    for name, value in network.named_buffers():
        if value.is_floating_point() and (value.isnan().any() or (name.endswith(STATISTICS) and not _finite(value))):
            found.append(name)
    return found


def _finite(value: Tensor) -> bool:
    return bool(value.detach().isfinite().all())


def output_layer(network: nn.Module) -> tuple[str, nn.Linear | nn.Conv2d] | None:
    """Return the last linear or convolutional layer and its name; by convention it returns the logits."""
    layers = [(name, module) for name, module in network.named_modules() if isinstance(module, (nn.Linear, nn.Conv2d))]
    return layers[-1] if layers else None


def last_features(network: nn.Module) -> Callable[[Tensor], Tensor]:
    """Return a function like the network that returns the inputs of its output layer instead of the logits.

    The values of a feature map are averaged. If the layer is not used, or not once per row, the logits are returned.
    """
    found = output_layer(network)

    def forward(inputs: Tensor) -> Tensor:
        seen: list[Tensor] = []
        logits: Tensor = network(inputs) if found is None else _watched(network, found[1], inputs, seen)
        features = seen[-1] if seen and len(seen[-1]) == len(inputs) else logits
        return features if features.ndim == 2 else features.flatten(2).mean(dim=2)

    return forward


def _watched(network: nn.Module, layer: nn.Module, inputs: Tensor, seen: list[Tensor]) -> Tensor:
    """Return the logits, and append the inputs of a layer to ``seen``."""
    watch = layer.register_forward_pre_hook(lambda _module, values: seen.append(values[0]))
    try:
        logits: Tensor = network(inputs)
        return logits
    finally:
        watch.remove()


def output_width(layer: nn.Linear | nn.Conv2d) -> int:
    """Return the number of outputs of a layer."""
    return layer.out_features if isinstance(layer, nn.Linear) else layer.out_channels


def zero_input(network: nn.Module, input_shape: Sequence[int]) -> Tensor:
    """Return one input of zeros, on the network's device and in its dtype."""
    like = next(network.parameters(), None)
    if like is None:
        return torch.zeros(1, *input_shape)
    return torch.zeros(1, *input_shape, dtype=like.dtype, device=like.device)


@torch.no_grad()
def trial_forward(network: nn.Module, input_shape: Sequence[int]) -> Tensor:
    """Return the network's output for one input of zeros, in evaluation mode; raise ModelError if it fails."""
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
    """Return the first line of an error message, or the error's type if it has no message."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def enlarged_shape(input_shape: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of a taller input; dimensions that grow with it are heights."""
    channels, height, width = input_shape
    return channels, height + GROWTH, width
