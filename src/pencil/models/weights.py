"""Pretrained weights from a local file, and what happens to a head of another width."""

import hashlib
import pickle
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from pencil.errors import ModelError

WRAPPERS = ("state_dict", "model_state_dict", "model")
"""Keys under which training scripts put the weights beside other things."""


def load_weights(network: nn.Module, path: Path, num_classes: int) -> list[str]:
    """Load a file into a network; returns the tensors of the output layer that keep their fresh values.

    Everything must fit but the output layer: where its width is not the number of classes here, or where the file or
    the network has none, it is left as initialised. Any other difference is an error.
    """
    weights = read_weights(path)
    own = network.state_dict()
    head = head_tensors(network, num_classes)
    fresh = [name for name in head if name not in weights or weights[name].shape != own[name].shape]
    missing = [name for name in own if name not in weights and name not in fresh and not _counter(name)]
    misfits = [name for name in own if name in weights and name not in fresh and weights[name].shape != own[name].shape]
    extra = [name for name in weights if name not in own and not _is_head(name, network, num_classes)]
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


def read_weights(path: Path) -> dict[str, Tensor]:
    """Tensors by name from safetensors, or from a torch file; a pickle that holds code is refused."""
    try:
        if path.suffix == ".safetensors":
            return safetensors.torch.load_file(path)
        loaded: Any = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError, safetensors.SafetensorError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ModelError(f"cannot read weights from {path}: {reason}; expected safetensors or a torch file.") from error
    while isinstance(loaded, dict) and (inner := next((key for key in WRAPPERS if key in loaded), None)):
        loaded = loaded[inner]
    if not isinstance(loaded, dict) or not all(isinstance(value, Tensor) for value in loaded.values()):
        raise ModelError(f"{path} holds no plain weights; expected a dict of tensors, as state_dict() gives.")
    return {name.removeprefix("module."): value for name, value in loaded.items()}


def head_tensors(network: nn.Module, num_classes: int) -> list[str]:
    """The weight and bias of the last layer that gives one value per class."""
    layers = [(name, module) for name, module in network.named_modules() if isinstance(module, (nn.Linear, nn.Conv2d))]
    if not layers:
        return []
    name, last = layers[-1]
    outputs = last.out_features if isinstance(last, nn.Linear) else last.out_channels
    return [f"{name}.{part}" for part, _ in last.named_parameters()] if outputs == num_classes else []


def _is_head(name: str, network: nn.Module, num_classes: int) -> bool:
    """Whether a tensor of the file belongs to an output layer that this network does not have."""
    if head_tensors(network, num_classes):
        return False
    classifier = getattr(network, "pretrained_cfg", {}).get("classifier", "fc")
    return any(
        name.startswith(f"{prefix}.") for prefix in ([classifier] if isinstance(classifier, str) else classifier)
    )


def _counter(name: str) -> bool:
    return name.endswith("num_batches_tracked")  # absent from files older than torch 0.4.1


def file_digest(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def state_digest(network: nn.Module, num_classes: int) -> str:
    """SHA-256 over names and values of all tensors but the fresh head's, for weights that came without a file."""
    digest, head = hashlib.sha256(), head_tensors(network, num_classes)
    for name, value in sorted(network.state_dict().items()):
        if name in head or name.startswith("head."):
            continue
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
