"""A network up to its last feature map, without pooling and classifier: the input of the attention structure."""

import math
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from pencil.errors import ModelError
from pencil.models.probe import (
    FAULTS,
    enlarged_shape,
    first_line,
    output_layer,
    output_width,
    trial_forward,
    zero_input,
)


def feature_extractor(network: nn.Module, input_shape: Sequence[int], num_classes: int, name: str) -> nn.Module:
    """Return the part of a network that computes its last feature map.

    If the network has a method ``forward_features``, as in timm, that is used. Any other network is traced
    (torch.fx) and run at two input sizes: the feature map is the last value that grows with the input. If it cannot
    be traced, ``features`` is used, a layer or a method, as in many torchvision networks. Tensors of the result
    keep their names; ``removed_tensors`` lists the names of all others. The output layer is recognised by its
    width, ``num_classes``.
    """
    if len(input_shape) != 3:
        raise ModelError(
            f"the attention structure needs images (channels, height, width); the inputs have shape "
            f"{tuple(input_shape)}; set model.attention to false."
        )
    names = list(network.state_dict())
    part = _declared(network, "forward_features", input_shape)
    if part is None:
        try:
            graphs = _trace(network)
        except FAULTS as error:  # whatever a network's own code raises when it is given a proxy
            part = _declared(network, "features", input_shape)
            if part is None:
                raise ModelError(
                    f"cannot find the feature map of {name!r}, which cannot be traced ({first_line(error)}); "
                    "add a method forward_features(x) that returns a feature map (batch, channels, height, width)."
                ) from error
        else:
            part = _truncated(network, graphs, input_shape, num_classes, name)
    kept = part.state_dict()
    part.removed_tensors = tuple(name for name in names if name not in kept)  # type: ignore[assignment]
    return part


def _declared(network: nn.Module, name: str, input_shape: Sequence[int]) -> nn.Module | None:
    """Return the part that the network itself declares, or None; unused children are dropped."""
    part = getattr(network, name, None)
    if isinstance(part, nn.Module):
        return nn.Sequential(OrderedDict({name: part}))
    if not callable(part):
        return None
    network.forward = part
    trial_forward(network, input_shape)  # raises ModelError if it fails, and initialises lazy layers
    parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]
    was_training = network.training
    features = network.eval()(zero_input(network, input_shape)).sum()
    network.train(was_training)
    gradients = torch.autograd.grad(features, parameters, allow_unused=True) if features.requires_grad else []
    unused = {parameter for parameter, gradient in zip(parameters, gradients, strict=False) if gradient is None}
    for child, module in list(network.named_children()):
        own = set(module.parameters())
        if own and own <= unused:
            delattr(network, child)
    return network


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Treat torchvision's layers as leaves, like torch's own: some behave differently in training."""
        return super().is_leaf_module(m, module_qualified_name) or type(m).__module__.startswith("torchvision.ops")


def _trace(network: nn.Module) -> dict[bool, fx.Graph]:
    """Return the graph of the network in training mode (True) and in evaluation mode (False)."""
    import torchvision

    was_training = network.training
    try:
        return {
            mode: _Tracer(autowrap_modules=(math, torchvision.ops)).trace(network.train(mode)) for mode in (True, False)
        }
    finally:
        network.train(was_training)


def _truncated(
    network: nn.Module, graphs: dict[bool, fx.Graph], input_shape: Sequence[int], num_classes: int, name: str
) -> nn.Module:
    """Return the network as a graph that ends at its feature map."""
    from torchvision.models.feature_extraction import DualGraphModule

    node = _find_map(network, graphs[False], input_shape, num_classes, name)
    nodes_after = len(graphs[False].nodes) - 1 - list(graphs[False].nodes).index(node)
    for graph in graphs.values():
        _end_at(graph, node, nodes_after, name)
    was_training = network.training
    part: nn.Module = DualGraphModule(network, graphs[True], graphs[False], class_name=type(network).__name__)
    if next(part.parameters(), None) is None:
        raise ModelError(_no_map(name, "none of its layers takes an image"))
    return part.train(was_training)


class _Shapes(fx.Interpreter):
    """Runs a graph and records the shape of every tensor in it."""

    def __init__(self, network: nn.Module, graph: fx.Graph):
        super().__init__(network, graph=graph)
        self.shapes: dict[fx.Node, tuple[int, ...]] = {}

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        if isinstance(value, Tensor):
            self.shapes[n] = tuple(value.shape)
        return value


def _find_map(network: nn.Module, graph: fx.Graph, input_shape: Sequence[int], num_classes: int, name: str) -> fx.Node:
    """Return the last value before the output layer that grows with the input, not counting average pooling."""
    trial_forward(network, input_shape)
    small, large = _measure(network, graph, input_shape), _measure(network, graph, enlarged_shape(input_shape))
    last = output_layer(network)
    stop = last[0] if last is not None and output_width(last[1]) == num_classes else None
    found: fx.Node | None = None
    for node in graph.nodes:
        if node.op == "call_module" and node.target == stop:
            break
        # A flattened map (batch, values) also grows but does not count; tokens (batch, positions, channels) do.
        if node.op != "placeholder" and node in large and len(large[node]) > 2 and small[node] != large[node]:
            found = node
    if any(len(shape) > 2 for node, shape in small.items() if node not in large):
        raise ModelError(
            _no_map(name, "it takes inputs of a single size, so its feature map cannot be recognised by its growth")
        )
    while found is not None and _pools(network, found):
        found = found.all_input_nodes[0]
    if found is None or found.op == "placeholder":
        raise ModelError(_no_map(name, "none of its values grows with the input"))
    if len(small[found]) != 4:
        raise ModelError(_no_map(name, f"its last features have shape {small[found][1:]}"))
    if _bypassed(graph, found, small):
        raise ModelError(_no_map(name, "its output depends on several feature maps"))
    return found


def _measure(network: nn.Module, graph: fx.Graph, input_shape: Sequence[int]) -> dict[fx.Node, tuple[int, ...]]:
    """Return the shapes up to the first layer that does not accept an input of this size."""
    was_training = network.training
    run = _Shapes(network.eval(), graph)
    with torch.no_grad(), suppress(*FAULTS):
        run.run(zero_input(network, input_shape))
    network.train(was_training)
    return run.shapes


def _pools(network: nn.Module, node: fx.Node) -> bool:
    """Return whether a node is average pooling; with a window as large as the feature map it is global pooling."""
    if node.op == "call_module":
        return isinstance(network.get_submodule(str(node.target)), nn.AvgPool2d)
    return node.target is functional.avg_pool2d


def _bypassed(graph: fx.Graph, node: fx.Node, tensors: Iterable[fx.Node]) -> bool:
    """Return whether the output depends on the input through paths that avoid this node."""
    tensors, reached = set(tensors), set()
    for other in graph.nodes:
        follows = any(source in reached for source in other.all_input_nodes)
        if other.op == "placeholder" or (follows and other is not node and (other in tensors or other.op == "output")):
            reached.add(other)
    return any(other.op == "output" for other in reached)


def _end_at(graph: fx.Graph, node: fx.Node, nodes_after: int, name: str) -> None:
    """Make the graph return the value of this node, and remove the ``nodes_after`` nodes that follow it."""
    nodes = list(graph.nodes)
    position = len(nodes) - 1 - nodes_after
    if position < 0 or (nodes[position].op, nodes[position].target) != (node.op, node.target):
        raise ModelError(
            f"{name!r} continues differently after its feature map in training and in evaluation; add a method "
            "forward_features(x) that returns the feature map (batch, channels, height, width)."
        )
    for other in reversed(nodes[position + 1 :]):
        graph.erase_node(other)
    graph.output(nodes[position])


def _no_map(name: str, seen: str) -> str:
    return (
        f"{name!r} has no feature map for the attention structure: {seen}; expected (channels, height, width), "
        "as in convolutional networks; set model.attention to false, or try timm/resnet18."
    )
