"""A CUDA device that is pretended: its tensors say that they are on "cuda" and keep their values on the CPU.

PyTorch's fake tensors know which operations refuse tensors of different devices. They have no values, so code that
looks at one (``if mask.any()``, ``values[mask]``) would end there. Here every fake CUDA tensor has a real one beside
it: the fake tensors check the devices of an operation, and the values compute it. Tensors on the CPU are
ordinary tensors.

A backward pass is not possible: autograd has threads for devices that exist. :func:`without_backward` replaces it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from itertools import chain, repeat
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,
    unset_fake_temporarily,
)
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_any, tree_leaves, tree_map, tree_map_only

CUDA = torch.device("cuda", 0)
CPU = torch.device("cpu")
INDEXED = (torch.ops.aten.index.Tensor, torch.ops.aten.index_put.default, torch.ops.aten.index_put_.default)
WITHOUT_A_FAKE = (DataDependentOutputException, DynamicOutputShapeException, UnsupportedOperatorException)
_checked: dict[tuple[Any, ...], list[torch.device]] = {}
"""Devices of the tensors that an operation returns, by the devices of its arguments: fake tensors are slow."""


class PretendedCuda(TorchDispatchMode):
    """Inside a ``with`` block tensors can be made on, moved to and used on a CUDA device that does not exist."""

    def __init__(self) -> None:
        super().__init__()
        self.fake = FakeTensorMode(allow_fallback_kernels=False)

    def __enter__(self) -> "PretendedCuda":
        self.fake.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self.fake.__exit__(*error)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.prim.device.default:
            return args[0].fake_device
        kwargs = kwargs or {}
        if FakeTensor not in types and not any(_is_cuda(one) for one in (*args, *kwargs.values())):
            with unset_fake_temporarily():
                return func(*args, **kwargs)
        leaves = tree_leaves((args, kwargs))
        known = self._devices(func, args, kwargs, leaves)  # first: nothing has changed where it is an error
        devices = chain(known, repeat(known[-1] if known else CPU))  # tensors of a list are all on one device
        inputs = {id(value_of(one)): one for one in leaves if isinstance(one, Tensor)}
        with unset_fake_temporarily():
            found = func(*tree_map(value_of, args), **tree_map(value_of, kwargs))
            return tree_map_only(Tensor, lambda one: self._pretend(one, next(devices), inputs.get(id(one))), found)

    def _devices(self, func: Any, args: Any, kwargs: Any, leaves: list[Any]) -> list[torch.device]:
        """Return the devices of the tensors that an operation returns; raise if its arguments may not be together."""
        key = (func, *map(_place, leaves))
        if key not in _checked:
            _refuse_what_fake_tensors_accept(func, args, kwargs)
            _checked[key] = self._fake_devices(func, args, kwargs)
        return _checked[key]

    def _fake_devices(self, func: Any, args: Any, kwargs: Any) -> list[torch.device]:
        fakes = tree_map_only(Tensor, self._as_fake, (args, kwargs))
        try:
            found = func(*fakes[0], **fakes[1])
        except WITHOUT_A_FAKE:  # shapes depend on values, or no fake tensor can do this
            return [args[0].device if func in INDEXED else FakeTensor._find_common_device(func, tree_leaves(fakes))[0]]
        return [one.device for one in tree_leaves(found) if isinstance(one, Tensor)]

    def _as_fake(self, tensor: Tensor) -> Tensor:
        """Return a fake tensor of the same kind; another one, as the check must not change what is changed in place."""
        with unset_fake_temporarily():
            return self._fake(value_of(tensor), tensor.device)

    def _fake(self, value: Tensor, device: torch.device) -> FakeTensor:
        shape = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
        return FakeTensor(self.fake, shape, device)

    def _pretend(self, value: Tensor, device: torch.device, given: Tensor | None = None) -> Tensor:
        """Return a tensor of this device with this value.

        ``given`` is the argument whose value was returned: it was changed in place, or moved to the other device.
        """
        if given is not None and given.device.type == device.type:
            return given
        value = value if given is None else value.clone()
        if device.type == "cpu":
            return value
        pretended = self._fake(value, device)
        pretended.pretended_value = value
        return pretended


def value_of(one: Any) -> Any:
    """Return the value of a pretended tensor, the CPU in place of the pretended device, anything else as it is."""
    if isinstance(one, FakeTensor):
        return one.pretended_value
    return CPU if isinstance(one, torch.device) else one


def _is_cuda(one: Any) -> bool:
    return isinstance(one, torch.device) and one.type == "cuda"


def _place(one: Any) -> Any:
    """Return what a check of devices depends on; a tensor of one number on the CPU may be used with all others."""
    if isinstance(one, Tensor):
        return one.device.type, one.ndim == 0
    if isinstance(one, (torch.device, torch.Generator)):
        return str(one.device.type if isinstance(one, torch.Generator) else one.type)
    return None


def _refuse_what_fake_tensors_accept(func: Any, args: Any, kwargs: Any) -> None:
    """Raise where a tensor on the CPU is indexed by one on a GPU, or a generator of the CPU is used on a GPU."""
    if func in INDEXED and not isinstance(args[0], FakeTensor):
        raise RuntimeError(f"{func}: indices should be either on cpu or on the same device as the indexed tensor (cpu)")
    if any(isinstance(one, torch.Generator) and one.device.type == "cpu" for one in tree_leaves((args, kwargs))):
        raise RuntimeError(f"{func}: expected a 'cuda' device type for generator but found 'cpu'")


@contextmanager
def without_backward(trainer: Any) -> Iterator[None]:
    """Have every step of a trainer, on any device, take the same small gradient instead of that of its loss."""

    class Scaled:
        def backward(self) -> None:
            for group in trainer.optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.grad = torch.full_like(parameter, 1e-3)

    with mock.patch.object(torch.amp.GradScaler, "scale", lambda _scaler, _loss: Scaled()):
        yield


def on_the_cpu(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function for tensors on the CPU alone, without the pretended device: this takes less time."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        assert not tree_any(lambda one: isinstance(one, FakeTensor), (args, kwargs)), f"{function} has a CUDA tensor"
        with _disable_current_modes():
            return function(*args, **kwargs)

    return call
