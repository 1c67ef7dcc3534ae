"""Dropout for networks that have none: a network that memorises labels cannot judge them."""

from itertools import takewhile

from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd
from torch.utils.hooks import RemovableHandle

INPUTS, HIDDEN = 0.2, 0.5
"""Fraction of the inputs of the network, and of the units of a hidden layer, that is dropped."""
MOST_LAYERS = 3
"""Only this many linear layers at the end of a network are regularised."""


def add_dropout(network: nn.Module) -> list[RemovableHandle]:
    """Drop inputs of the linear layers at the end of a network while it trains; nothing if it has dropout already.

    The weights and their names stay as they are. A transformer is regularised before its classifier only.

    Returns
    -------
    list
        Handles that remove the dropout again.
    """
    modules = list(network.modules())
    if any(isinstance(module, _DropoutNd) and module.p > 0 for module in modules):
        return []
    with_weights = [module for module in modules if any(True for _ in module.parameters(recurse=False))]
    norms = (nn.modules.batchnorm._NormBase, nn.GroupNorm)
    layers = [module for module in with_weights if not isinstance(module, norms)]
    head = list(takewhile(lambda module: isinstance(module, nn.Linear), reversed(layers)))
    is_transformer = any(isinstance(module, nn.LayerNorm | nn.MultiheadAttention) for module in modules)
    head = head[: 1 if is_transformer else MOST_LAYERS]
    first = layers[0] if len(layers) > 1 else None
    return [
        layer.register_forward_pre_hook(_Dropout(INPUTS if layer is first else HIDDEN))
        for layer in head
        if isinstance(layer, nn.Linear)
    ]


class _Dropout:
    """A hook that a deep copy of the network takes along."""

    def __init__(self, probability: float):
        self.probability = probability

    def __call__(self, layer: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        dropped = nn.functional.dropout(inputs[0], self.probability, layer.training)
        return (dropped, *inputs[1:])
