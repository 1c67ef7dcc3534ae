"""The networks of a run with their optimizer, their moving averages, and the best weights of the first one."""

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from pencil.errors import MethodWarning, TrainingError, warn
from pencil.methods.base import Phase, Requirements
from pencil.models import reinitialized
from pencil.models.dropout import add_dropout
from pencil.models.probe import non_finite_tensors
from pencil.training.compute import Compute
from pencil.training.distributed import SINGLE_PROCESS, World
from pencil.training.settings import TrainingSettings, build_optimizer

MakeNetwork = Callable[[int], nn.Module]


def copies_of(model: nn.Module, requirements: Requirements, phases: Sequence[Phase], seed: int) -> MakeNetwork:
    """Return a factory for further networks, given a single network.

    A second network has newly drawn weights; a network for a phase with a fresh network starts like the first,
    pretrained or not.
    """
    networks = requirements.networks
    if networks == 1 and not any(phase.fresh_network for phase in phases):
        return lambda _number: model  # never called
    original = copy.deepcopy(model)

    def make(number: int) -> nn.Module:
        another = copy.deepcopy(original)
        if number % networks:
            reinitialized(another, seed, number)
            if all(map(torch.equal, another.parameters(), original.parameters())):
                warn(
                    "no layer of the network has reset_parameters, so networks that train side by side start with the "
                    "same weights and learn the same; add a reset_parameters method to its modules",
                    MethodWarning,
                )
        return another

    return make


class Ema:
    """Moving average of a network's weights and buffers: over all steps at first, then with a memory of this many
    steps.

    Counts, and buffers that contain infinity (such as masks), are copied, because averaging infinities can give NaN.
    torch's AveragedModel computes the same, but regroups all tensors at every step, which slows down small networks.
    """

    def __init__(self, network: nn.Module, memory: int):
        self.module, self.memory, self.steps = copy.deepcopy(network).requires_grad_(False).eval(), memory, 0
        ours, theirs = (list(chain(one.parameters(), one.buffers())) for one in (self.module, network))
        pairs = [
            (pair, pair[0].is_floating_point() and pair[0].isfinite().all()) for pair in zip(ours, theirs, strict=True)
        ]
        self._averaged = [pair for pair, averaged in pairs if averaged]
        self._copied = [pair for pair, averaged in pairs if not averaged]

    @torch.no_grad()
    def update(self) -> None:
        """Include the network's weights after a step."""
        self.steps += 1
        weight = max(1 / self.steps, 1 / self.memory)
        torch._foreach_lerp_([ours for ours, _ in self._averaged], [theirs for _, theirs in self._averaged], weight)
        for ours, theirs in self._copied:
            ours.copy_(theirs)

    def state_dict(self) -> dict[str, Any]:
        """Return the averaged weights and the number of steps."""
        return {"steps": self.steps, "weights": self.module.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned."""
        self.steps = state["steps"]
        self.module.load_state_dict(state["weights"])


class Networks:
    """Networks that train side by side. ``model``, the first or its moving average, is evaluated and kept."""

    def __init__(
        self,
        networks: Sequence[nn.Module],
        settings: TrainingSettings,
        compute: Compute,
        world: World = SINGLE_PROCESS,
        ema_memory: int | None = None,
        dropout: bool = False,
    ):
        self.settings, self.compute, self.world = settings, compute, world
        self.trained = nn.ModuleList(networks)
        self.emas = [] if ema_memory is None else [Ema(network, ema_memory) for network in networks]
        self.model: nn.Module = self.emas[0].module if self.emas else networks[0]
        self._dropout = [added for network in networks for added in add_dropout(network)] if dropout else []
        parallel = [world.wrap_ddp(network) for network in networks]
        self.forwards: list[Callable[[Tensor], Tensor]] = [self._compiled(network) for network in parallel]
        evaluates_trained = world.size == 1 and not self.emas
        self.eval_forward = self.forwards[0] if evaluates_trained else self._compiled(self.model)
        self.optimizer = build_optimizer(networks, settings.optimizer)
        self.scaler = torch.amp.GradScaler(compute.device.type, enabled=compute.autocast == torch.float16)
        self.best_score, self.best_epoch = -math.inf, 0
        self.best_weights: dict[str, Tensor] = {}

    def _compiled(self, network: nn.Module) -> Callable[[Tensor], Tensor]:
        return torch.compile(network) if self.settings.compile else network

    def evaluated(self, number: int) -> nn.Module:
        """Return a network as it is evaluated: its moving average if there is one."""
        return self.emas[number].module if self.emas else self.trained[number]

    def remove_dropout(self) -> None:
        """Restore the networks' original structure: remove dropout that was added for training."""
        for added in self._dropout:
            added.remove()

    def set_ema_memory(self, steps: int) -> None:
        """Average over this many steps from now on."""
        for ema in self.emas:
            ema.memory = steps

    def set_dropout(self, strength: float) -> None:
        """Set the strength of the dropout that was added."""
        for added in self._dropout:
            added.set_strength(strength)

    def check_finite(self, where: str) -> None:
        """Raise TrainingError if a weight or statistic of the kept network is not finite."""
        values = [value for value in self.model.state_dict().values() if value.is_floating_point()]
        if not values or torch.stack(torch._foreach_norm(values, torch.inf)).isfinite().all():
            return
        broken = non_finite_tensors(self.model)
        if not broken:  # only masks contain infinity
            return
        raise TrainingError(
            f"{broken[0]} of the network is not finite after {where}; look for inputs of extreme size "
            "(`pencil check`), normalise them, lower the learning rate, or set training.clip_norm."
        )

    def track_best(self, score: float | None, epoch: int) -> None:
        """Keep the weights of the epoch with the best score; without a score, the last epoch is the best."""
        if score is None:
            self.best_epoch = epoch
        elif score > self.best_score:
            self.best_score, self.best_epoch = score, epoch
            self.best_weights = {k: v.detach().cpu().clone() for k, v in self.model.state_dict().items()}

    @contextmanager
    def at_best(self) -> Iterator[None]:
        """Load the weights of the best epoch into the kept network inside a ``with`` block."""
        now = {name: value.clone() for name, value in self.model.state_dict().items()}
        self.model.load_state_dict(self.best_weights)
        try:
            yield
        finally:
            self.model.load_state_dict(now)

    def snapshot(self) -> list[Tensor]:
        """Return a copy of the weights of the kept network and of further networks."""
        kept = [self.model, *self.trained[1:]]
        return [value.detach().clone() for network in kept for value in network.state_dict().values()]

    def restore_weights(self, weights: list[Tensor]) -> None:
        """Continue from the weights of a snapshot, with a new optimizer state."""
        left = iter(weights)
        for network in self.trained:
            network.load_state_dict({name: next(left) for name in network.state_dict()})
        for number, network in enumerate(self.trained):
            self.evaluated(number).load_state_dict(network.state_dict())
        self.optimizer.state.clear()
        for ema in self.emas:
            ema.steps = 0

    def state_dict(self) -> dict[str, Any]:
        """Return everything that the next step depends on, as a tree of tensors and plain values."""
        return {
            "networks": [network.state_dict() for network in self.trained],
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "emas": [ema.state_dict() for ema in self.emas],
            "best": {"score": self.best_score, "epoch": self.best_epoch, "weights": self.best_weights},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned."""
        for network, weights in zip(self.trained, state["networks"], strict=True):
            network.load_state_dict(weights)
        self._load_optimizer(state["optimizer"]["state"])
        self.scaler.load_state_dict(state["scaler"])
        for ema, saved in zip(self.emas, state["emas"], strict=True):
            ema.load_state_dict(saved)
        best = state["best"]
        self.best_score, self.best_epoch, self.best_weights = best["score"], best["epoch"], dict(best["weights"])
        if self.best_weights:
            with self.at_best():  # raises if they do not fit the network
                pass

    def _load_optimizer(self, state: dict[int, dict[str, Tensor]]) -> None:
        """Load what the optimizer keeps for each parameter; its settings are those of the recipe.

        A checkpoint may come from an untrusted source, and torch's kernels write out of bounds if shapes differ.
        """
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        for number, kept in state.items():
            parameter = parameters[number]
            for name, value in kept.items():
                shape = torch.Size() if name == "step" else parameter.shape
                if not isinstance(value, Tensor) or value.shape != shape or not value.isfinite().all():
                    raise ValueError(f"{name} of the optimizer is not a finite tensor of shape {tuple(shape)}")
        self.optimizer.load_state_dict({"state": state, "param_groups": self.optimizer.state_dict()["param_groups"]})
