"""The ``[training]`` part of a recipe: batches, optimizer, precision and device."""

import inspect
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self, TypeVar, cast

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import nn, optim

from pencil.errors import RecipeError

Fraction = Annotated[float, Field(ge=0, lt=1)]
NonNegative = Annotated[float, Field(ge=0)]
Kind = TypeVar("Kind", bound=optim.Optimizer)
TrackerName = Literal["tensorboard", "wandb", "mlflow"]


class OptimizerSettings(BaseModel):
    """SGD as in the paper by default. ``alpha`` is RMSprop's smoothing, ``betas`` are AdamW's.

    ``lr_factors`` multiplies the learning rate of parameters, by the longest matching name prefix: ``{head = 5.0}``.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Literal["sgd", "rmsprop", "adamw"] = "sgd"
    momentum: Fraction = 0.9
    nesterov: bool = False
    weight_decay: NonNegative = 1e-4
    alpha: Fraction = 0.9
    betas: tuple[Fraction, Fraction] = (0.9, 0.999)
    lr_factors: dict[str, NonNegative] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _nesterov_needs_momentum(self) -> Self:
        if self.nesterov and self.momentum == 0:
            raise ValueError("nesterov needs a momentum above 0")
        return self


class TrainingSettings(BaseModel):
    """Training settings that do not depend on the method.

    Attributes
    ----------
    batch_size, optimizer, clip_norm, precision, device, compile, channels_last
        As in PyTorch. ``clip_norm = 0`` disables clipping.
    epochs
        The total budget; by default the method's own number of epochs.
    minutes
        A time budget, for methods that support one.
    label_layout
        Whether each of several processes holds all labels (replicated) or a part of the rows (sharded); ``auto`` shards
        labels of more than 1 GiB.
    label_top_k
        Keep only this many entries of each label distribution, for very many classes.
    checkpoint_minutes, checkpoint_epochs, checkpoints_kept
        A run with a directory is saved after this much time, and after this many epochs if set.
    log
        Experiment trackers that also receive the metrics of every epoch.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    batch_size: Annotated[int, Field(ge=1)] = 128
    epochs: Annotated[int, Field(ge=1)] | None = None
    minutes: Annotated[float, Field(gt=0)] | None = None
    optimizer: OptimizerSettings = OptimizerSettings()
    clip_norm: NonNegative = 0.0
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    device: str = "auto"
    compile: bool = False
    channels_last: bool = False
    label_layout: Literal["auto", "replicated", "sharded"] = "auto"
    label_top_k: Annotated[int, Field(ge=1)] | None = None
    checkpoint_minutes: Annotated[float, Field(gt=0)] = 10.0
    checkpoint_epochs: Annotated[int, Field(ge=1)] | None = None
    checkpoints_kept: Annotated[int, Field(ge=2)] = 2
    log: tuple[TrackerName, ...] = ()

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        if self.epochs is not None and self.minutes is not None:
            raise ValueError("epochs and minutes both set the length of training; remove one of them")
        return self


def build_optimizer(networks: Sequence[nn.Module], settings: OptimizerSettings) -> optim.Optimizer:
    """Return the optimizer. Every step sets its learning rate: the phase's schedule times each group's factor."""
    parameters = [group for network in networks for group in _groups(network, settings.lr_factors)]
    # The fused kernel takes a third of the time for a perceptron. On a CPU it assumes the same memory layout for all
    # tensors of a weight, which does not hold for convolutions after a resume.
    fused = all(weight.ndim <= 2 for network in networks for weight in network.parameters()) or None
    if settings.name == "sgd":
        return _eager(optim.SGD)(
            parameters,
            lr=0.0,
            momentum=settings.momentum,
            weight_decay=settings.weight_decay,
            nesterov=settings.nesterov,
            fused=fused,
        )
    if settings.name == "rmsprop":
        return _eager(optim.RMSprop)(
            parameters,
            lr=0.0,
            alpha=settings.alpha,
            momentum=settings.momentum,
            weight_decay=settings.weight_decay,
        )
    return _eager(optim.AdamW)(
        parameters, lr=0.0, betas=settings.betas, weight_decay=settings.weight_decay, fused=fused
    )


def _eager(kind: type[Kind]) -> type[Kind]:
    """Return a subclass of the optimizer with its methods as they are defined, without decorators.

    The decorators serve only compiled optimizers, which pencil does not use. The first call imports torch._dynamo
    with about a thousand modules, which takes a second or more of every command that trains.
    """
    names = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")
    plain = {name: inspect.unwrap(getattr(kind, name)) for name in names}
    plain["step"] = torch.no_grad()(inspect.unwrap(kind.step))
    return cast(type[Kind], type(kind.__name__, (kind,), plain))


def _groups(model: nn.Module, factors: dict[str, float]) -> list[dict[str, Any]]:
    """Parameter groups by learning rate factor, from the longest matching name prefix.

    A prefix that matches no parameter is an error.
    """
    groups: dict[float, list[nn.Parameter]] = {1.0: []}
    used = set[str]()
    for name, parameter in model.named_parameters():
        prefixes = [prefix for prefix in factors if f"{name}.".startswith(f"{prefix}.")]
        used.update(prefixes)
        groups.setdefault(factors[max(prefixes, key=len)] if prefixes else 1.0, []).append(parameter)
    unused = [prefix for prefix in factors if prefix not in used]
    if unused:
        parts = ", ".join(name for name, _ in model.named_children())
        raise RecipeError(f"training.optimizer.lr_factors names {unused[0]!r}; the network's parts are {parts}.")
    return [{"params": members, "factor": factor} for factor, members in groups.items() if members]
