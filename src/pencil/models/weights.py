"""Initial weights from a local file; the output layer may have another width."""

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from pencil.errors import ModelError
from pencil.models.attention import AttentionNetwork
from pencil.models.probe import output_layer, output_width, trial_forward

KERNEL = "head.gather.weight"
"""The tensor of the attention structure that has the size of the feature map."""
WRAPPERS = ("state_dict", "model_state_dict", "model")
"""Keys under which training scripts save the weights."""


def load_weights(network: nn.Module, path: Path, num_classes: int) -> list[str]:
    """Load a file into a network.

    Everything except the output layer must match. The output layer keeps its initial values if its width differs from
    the number of classes, or if the file or the network has no output layer. A network with the attention structure
    accepts a file of such a network, or a file of its backbone.

    Parameters
    ----------
    network : nn.Module
        Its weights are changed.
    path : Path
        A safetensors file, or a torch file that contains only tensors.
    num_classes : int
        The width of the output layer, used to recognise it.

    Returns
    -------
    list of str
        The tensors of the output layer that keep their initial values.

    Raises
    ------
    ModelError
        If the file cannot be read, or does not fit the network.
    """
    weights = read_weights(path)
    if not isinstance(network, AttentionNetwork):
        if KERNEL in weights:
            raise ModelError(f"{path} contains a network with the attention structure; set model.attention to true.")
        return _fit(network, weights, head_tensors(network, num_classes), path)
    own = network.state_dict()
    if not any(name in own for name in weights if name.startswith("backbone.")):
        _fit(network.backbone, weights, [], path)
        return []
    _check_kernel(network, weights, path)
    has_head = any(name.startswith("head.") for name in weights)
    optional = ("head.classes.", "head.gather.") if has_head else ("head.",)
    return _fit(network, weights, [name for name in own if name.startswith(optional)], path)


def _fit(network: nn.Module, weights: dict[str, Tensor], head: list[str], path: Path) -> list[str]:
    """Load the weights and return the tensors in ``head`` that do not fit; all others must fit."""
    own = network.state_dict()
    fresh = [name for name in head if name not in weights or weights[name].shape != own[name].shape]
    needed = [name for name in own if not name.endswith("num_batches_tracked")]  # not in files older than torch 0.4.1
    missing = [name for name in needed if name not in weights and name not in fresh]
    misfits = [name for name in own if name in weights and name not in fresh and weights[name].shape != own[name].shape]
    extra = [name for name in weights if name not in own and not (not head and _is_removed(name, network))]
    if missing or misfits or extra:
        parts = [
            f"{len(names)} {what} ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''})"
            for what, names in (("missing", missing), ("of another shape", misfits), ("unknown", extra))
            if names
        ]
        raise ModelError(f"the weights in {path} do not fit the model: {'; '.join(parts)}; is it the same backbone?")
    network.load_state_dict(
        {name: value for name, value in weights.items() if name in own and name not in fresh}, strict=False
    )
    return fresh


def _check_kernel(network: AttentionNetwork, weights: dict[str, Tensor], path: Path) -> None:
    """Raise ModelError for a head with another feature map size; a head for other classes is not loaded anyway."""
    kernel, own = weights.get(KERNEL), network.head.gather.weight
    if kernel is None or kernel.shape[:2] != own.shape[:2] or kernel.shape == own.shape:
        return
    trained, seen = kernel.shape[2:], network.map_size
    size = _input_size_for(network, tuple(trained))
    advice = (
        "use inputs of the size it was trained on" if size is None else f"use inputs of {size[0]} x {size[1]} pixels"
    )
    raise ModelError(
        f"the attention structure in {path} expects a feature map of {trained[0]} x {trained[1]}; inputs of "
        f"{network.input_shape[1]} x {network.input_shape[2]} pixels give one of {seen[0]} x {seen[1]}; {advice} "
        "(data.resize), or remove the tensors head.* from the file to start with a fresh structure."
    )


def _input_size_for(network: AttentionNetwork, map_size: tuple[int, ...]) -> tuple[int, int] | None:
    """Return the input size whose feature map has this size, or None if no common total stride gives it."""
    for stride in (32, 16, 8, 4, 2, 1):
        size = (map_size[0] * stride, map_size[1] * stride)
        with suppress(ModelError):  # a network that takes inputs of a single size
            shape = trial_forward(network.backbone, (network.input_shape[0], *size)).shape[1:]
            if tuple(shape[:2] if network.channels_last else shape[1:]) == map_size:
                return size
    return None


def read_weights(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors or torch file by name; raise ModelError for a pickle that contains code."""
    if path.exists() and not path.is_file():
        raise ModelError(f"cannot read weights from {path}: it is not a regular file; expected safetensors or torch.")
    try:
        if path.suffix == ".safetensors":
            return safetensors.torch.load_file(path)
        loaded: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged pickle can raise almost anything, MemoryError included
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ModelError(f"cannot read weights from {path}: {reason}; expected safetensors or a torch file.") from error
    while isinstance(loaded, dict) and (inner := next((key for key in WRAPPERS if key in loaded), None)):
        loaded = loaded[inner]
    if (
        not isinstance(loaded, dict)
        or not all(isinstance(value, Tensor) for value in loaded.values())
        or not all(isinstance(name, str) for name in loaded)
    ):
        raise ModelError(f"{path} does not contain plain weights; expected a dict of tensors, as from state_dict().")
    return {name.removeprefix("module."): value for name, value in loaded.items()}


def head_tensors(network: nn.Module, num_classes: int) -> list[str]:
    """Return the names of the last layer's weight and bias if it returns one value per class."""
    found = output_layer(network)
    if found is None or output_width(found[1]) != num_classes:
        return []
    name, last = found
    return [f"{name}.{part}" for part, _ in last.named_parameters()]


def _is_removed(name: str, network: nn.Module) -> bool:
    """Return whether a tensor of the file belongs to an output layer that this network does not have."""
    if name in getattr(network, "removed_tensors", ()):
        return True
    classifier = getattr(network, "pretrained_cfg", {}).get("classifier", "fc")  # timm networks declare theirs
    return name.startswith(tuple(f"{one}." for one in ([classifier] if isinstance(classifier, str) else classifier)))


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def state_digest(network: nn.Module, num_classes: int) -> str:
    """Return the SHA-256 of the names and values of all tensors except the head's, for weights without a file."""
    head, tensors = head_tensors(network, num_classes), network.state_dict()
    return tensors_digest(
        {name: tensors[name] for name in tensors if name not in head and not name.startswith("head.")}
    )


def tensors_digest(tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of the names and values of these tensors."""
    digest = hashlib.sha256()
    for name, value in sorted(tensors.items()):
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
