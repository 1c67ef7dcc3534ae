"""The changing state of a method: a dataclass that is saved and loaded as a tree of tensors and plain values."""

from collections import deque
from dataclasses import fields, is_dataclass
from typing import Any, get_args, get_type_hints

import torch
from torch import Tensor

from pencil.errors import RunError


def state_tree(state: Any) -> Any:
    """Return a dataclass, including nested dataclasses and deques, as dicts and lists."""
    if is_dataclass(state):
        return {part.name: state_tree(getattr(state, part.name)) for part in fields(state)}
    return list(state) if isinstance(state, deque) else state


def load_state(state: Any, tree: Any) -> Any:
    """Return a state of the same type as ``state`` with the values of a tree from :func:`state_tree`.

    Tensors move to the device of the tensors they replace. Tensors of a deque, which may still be empty, move to
    the device of the other tensors; a deque keeps its maximum length.
    """
    if not is_dataclass(state):
        return tree
    build: Any = type(state)
    kinds = get_type_hints(build)
    missing = [part.name for part in fields(state) if part.name not in tree]
    if missing:
        raise RunError(
            f"the checkpoint has no {', '.join(missing)} of {build.__name__}; expected one of this pencil version; "
            "resume with the version that started the run, or restart the run."
        )
    now = {part.name: getattr(state, part.name) for part in fields(state)}
    device = next((value.device for value in now.values() if isinstance(value, Tensor)), torch.device("cpu"))
    values = {name: _load_field(value, tree[name], kinds[name], device) for name, value in now.items()}
    return build(**values)


def _load_field(current: Any, value: Any, kind: Any, device: torch.device) -> Any:
    if isinstance(current, deque):
        return deque((one.to(device) if isinstance(one, Tensor) else one for one in value), maxlen=current.maxlen)
    if isinstance(current, Tensor) and isinstance(value, Tensor):
        return value.to(current.device)
    if not isinstance(value, dict):
        return value
    kinds: Any = (one for one in (kind, *get_args(kind)) if isinstance(one, type) and is_dataclass(one))
    nested = next((one for one in kinds if {part.name for part in fields(one)} == value.keys()), None)
    return value if nested is None else nested(**value)
