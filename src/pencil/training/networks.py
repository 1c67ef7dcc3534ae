"""The networks of a run, the optimizer that moves them, and the best that the first of them has been."""

import copy
import math
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from pencil.data.examples import Batch
from pencil.methods.base import Method, Phase
from pencil.models import reinitialized
from pencil.training.distributed import SINGLE_PROCESS, World
from pencil.training.evaluation import Compute
from pencil.training.settings import TrainingSettings, build_optimizer


def at_least_two(inputs: Tensor) -> Tensor:
    """Batch statistics need two rows, which a rank's piece of a small batch may not have: zeros stand in."""
    missing = 2 - len(inputs)
    return inputs if missing <= 0 else torch.cat([inputs, inputs.new_zeros(missing, *inputs.shape[1:])])


def copier(model: nn.Module, method: Method, phases: Sequence[Phase], seed: int) -> Callable[[int], nn.Module]:
    """Further networks where no one says how to make them.

    A network beside the first gets newly drawn weights; a fresh one starts as the first did, pretrained or not.
    """
    if method.networks == 1 and not any(phase.fresh for phase in phases):
        return lambda number: model  # never called
    original = copy.deepcopy(model)

    def make(number: int) -> nn.Module:
        another = copy.deepcopy(original)
        return reinitialized(another, seed, number) if number % method.networks else another

    return make


class MovingAverage:
    """The mean of a network's weights and statistics: of all steps at first, then one that forgets over ``memory``.

    torch's AveragedModel does the same, but sorts all tensors anew at every step, which small networks feel.
    """

    def __init__(self, network: nn.Module, memory: int):
        self.module, self.memory, self.steps = copy.deepcopy(network).requires_grad_(False).eval(), memory, 0
        ours, theirs = (list(chain(one.parameters(), one.buffers())) for one in (self.module, network))
        self._pairs = [pair for pair in zip(ours, theirs, strict=True) if pair[0].is_floating_point()]
        self._counts = [pair for pair in zip(ours, theirs, strict=True) if not pair[0].is_floating_point()]

    @torch.no_grad()
    def follow(self) -> None:
        self.steps += 1
        weight = max(1 / self.steps, 1 / self.memory)
        torch._foreach_lerp_([ours for ours, _ in self._pairs], [theirs for _, theirs in self._pairs], weight)
        for ours, theirs in self._counts:
            ours.copy_(theirs)

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps, "weights": self.module.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]
        self.module.load_state_dict(state["weights"])


class NonFiniteGradientError(ArithmeticError):
    """A gradient overflowed though the loss did not; nothing has moved."""


class Learner:
    """Networks that are trained side by side. The first is the one that is evaluated and kept."""

    def __init__(
        self,
        networks: Sequence[nn.Module],
        settings: TrainingSettings,
        compute: Compute,
        world: World = SINGLE_PROCESS,
        memory: int | None = None,
    ):
        self.settings, self.compute, self.world, self.alone = settings, compute, world, world.size == 1
        self.networks = nn.ModuleList(networks)
        self.average = None if memory is None else MovingAverage(networks[0], memory)
        self.model: nn.Module = networks[0] if self.average is None else self.average.module
        shared = [world.wrap_ddp(network) for network in networks]
        self.forwards: list[Callable[[Tensor], Tensor]] = [self._compiled(network) for network in shared]
        trains_itself = world.size == 1 and self.average is None
        self.forward = self.forwards[0] if trains_itself else self._compiled(self.model)
        self.optimizer = build_optimizer(networks, settings.optimizer)
        self.scaler = torch.amp.GradScaler(compute.device.type, enabled=compute.autocast == torch.float16)
        self.best_score, self.best_epoch = -math.inf, 0
        self.best_weights: dict[str, Tensor] = {}

    def _compiled(self, network: nn.Module) -> Callable[[Tensor], Tensor]:
        return torch.compile(network) if self.settings.compile else network

    def logits(self, batch: Batch) -> list[Tensor]:
        """What each network says about a batch, or this process's piece of one; then the averaged one on each view."""
        with self.compute.context():
            if self.alone:
                said = [forward(batch.inputs) for forward in self.forwards]
            else:
                said = [forward(at_least_two(batch.inputs))[: len(batch.rows)] for forward in self.forwards]
            with torch.no_grad():
                return said + [self.forward(view) for view in batch.views]

    def learn(self, loss: Tensor, lr: float) -> None:
        """One step of the optimizer; raises :class:`NonFiniteGradientError` before anything moves."""
        for group in self.optimizer.param_groups:
            group["lr"] = lr * group["factor"]
        self.optimizer.zero_grad(set_to_none=True)
        self.scaler.scale(loss).backward()
        clip = self.settings.clip_norm
        if clip > 0:
            self.scaler.unscale_(self.optimizer)
        if not self.scaler.is_enabled():  # a scaler skips such steps by itself
            gradients = [parameter.grad for parameter in self.networks.parameters() if parameter.grad is not None]
            if not torch.stack(torch._foreach_norm(gradients)).sum().isfinite():
                raise NonFiniteGradientError
        if clip > 0:
            for network in self.networks:
                nn.utils.clip_grad_norm_(network.parameters(), clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if self.average is not None:
            self.world.broadcast_buffers(self.networks[0])
            self.average.follow()

    def consider(self, score: float | None, epoch: int) -> None:
        """Keep the weights of the best epoch; without a score the last is best, and its weights are at hand."""
        if score is None:
            self.best_epoch = epoch
        elif score > self.best_score:
            self.best_score, self.best_epoch = score, epoch
            self.best_weights = {k: v.detach().cpu().clone() for k, v in self.model.state_dict().items()}

    def snapshot(self) -> list[Tensor]:
        kept = [self.model, *self.networks[1:]]
        return [value.detach().clone() for network in kept for value in network.state_dict().values()]

    def put_back(self, weights: list[Tensor]) -> None:
        """Train on from the weights of a snapshot, with an optimizer that has met nothing yet."""
        left = iter(weights)
        for network in self.networks:
            network.load_state_dict({name: next(left) for name in network.state_dict()})
        self.model.load_state_dict(self.networks[0].state_dict())
        self.optimizer.state.clear()
        if self.average is not None:
            self.average.steps = 0

    def state(self) -> dict[str, Any]:
        """Everything that the next step hangs on, as a tree of tensors and plain values."""
        return {
            "networks": [network.state_dict() for network in self.networks],
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "average": None if self.average is None else self.average.state_dict(),
            "best": {"score": self.best_score, "epoch": self.best_epoch, "weights": self.best_weights},
        }

    def restore(self, state: dict[str, Any]) -> None:
        for network, weights in zip(self.networks, state["networks"], strict=True):
            network.load_state_dict(weights)
        self.optimizer.load_state_dict(state["optimizer"])
        self.scaler.load_state_dict(state["scaler"])
        if self.average is not None:
            self.average.load_state_dict(state["average"])
        best = state["best"]
        self.best_score, self.best_epoch, self.best_weights = best["score"], best["epoch"], dict(best["weights"])
