"""Dropout for networks without dropout: a network that memorises labels cannot judge them."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd
from torch.utils.hooks import RemovableHandle

INPUTS, HIDDEN = 0.2, 0.5
"""Dropped fraction of the network's inputs, and of the units of a hidden layer, at full strength."""
NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm)


@dataclass(frozen=True)
class AddedDropout:
    """The dropout of one layer."""

    hook: "_Dropout"
    handle: RemovableHandle

    def set_strength(self, strength: float) -> None:
        """Set the strength: the fraction of the full dropout rate."""
        self.hook.strength = strength

    def remove(self) -> None:
        """Remove the dropout from the layer."""
        self.handle.remove()


def add_dropout(network: nn.Module) -> list[AddedDropout]:
    """Drop inputs of every layer of a multi-layer perceptron during training, and return these dropouts.

    Nothing is done if it already has dropout. Weights and their names do not change. A network with layers other
    than linear ones is left alone: a convolutional network trained from scratch memorises later, and with dropout
    it learned less in every trial.
    """
    modules = list(network.modules())
    has_dropout = any(isinstance(module, _DropoutNd) and module.p > 0 for module in modules)
    with_weights = [module for module in modules if any(True for _ in module.parameters(recurse=False))]
    layers = [module for module in with_weights if not isinstance(module, NORMS)]
    if has_dropout or len(layers) < 2 or not all(isinstance(layer, nn.Linear) for layer in layers):
        return []
    hooks = [_Dropout(INPUTS if layer is layers[0] else HIDDEN) for layer in layers]
    return [
        AddedDropout(hook, layer.register_forward_pre_hook(hook)) for hook, layer in zip(hooks, layers, strict=True)
    ]


class _Dropout:
    """A hook that is copied when the network is deep-copied."""

    def __init__(self, probability: float):
        self.probability, self.strength = probability, 1.0

    def __call__(self, layer: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        probability = self.strength * self.probability
        return (drop(inputs[0], probability) if layer.training else inputs[0], *inputs[1:])


def drop(values: Tensor, probability: float) -> Tensor:
    """Return the values, each set to 0 with this probability (in steps of 1 / 65,536), the others scaled up.

    On a CPU torch draws one random number per value, which takes longer than the layer itself; here four values share
    one.
    """
    if values.device.type != "cpu":
        return nn.functional.dropout(values, probability)
    draws = torch.randint(-(2**63), 2**63 - 1, (-(-values.numel() // 4),))
    first_kept = round(probability * 2**16) - 2**15
    kept = torch.empty(values.shape, dtype=values.dtype)
    torch.ge(draws.view(torch.int16)[: values.numel()].view(values.shape), first_kept, out=kept)
    return values * kept.mul_(2**16 / (2**15 - first_kept))
