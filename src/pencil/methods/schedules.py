"""Schedules as data: a value over the epochs of a phase, for learning rates and label steps.

``schedule(epoch, epochs)`` is the value at a (possibly fractional) epoch of a phase of ``epochs`` epochs. In a recipe a
plain number is a constant, and a table names its kind: ``{kind = "step", start = 0.2, at = [40, 80]}``.
"""

import math
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, ConfigDict, Field

Level = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Schedule:
    __pydantic_config__ = ConfigDict(extra="forbid")

    def scaled(self, factor: float) -> Self:
        """Return the same schedule with every value multiplied by ``factor``."""
        values = {
            name: getattr(self, name) * factor for name in ("value", "start", "peak", "end") if hasattr(self, name)
        }
        return replace(self, **values)  # type: ignore[type-var]

    def stretched(self, ratio: float) -> Self:
        """Return the same schedule for a phase that is ``ratio`` times as long."""
        return self


@dataclass(frozen=True)
class Constant(_Schedule):
    """A constant value."""

    value: Level
    kind: Literal["constant"] = "constant"

    def __call__(self, epoch: float, epochs: int) -> float:
        return self.value


@dataclass(frozen=True)
class StepDecay(_Schedule):
    """Multiplied by ``factor`` at each of the epochs ``at``."""

    start: Level
    at: tuple[float, ...]
    factor: Level = 0.1
    kind: Literal["step"] = "step"

    def __call__(self, epoch: float, epochs: int) -> float:
        return self.start * self.factor ** sum(epoch >= mark for mark in self.at)

    def stretched(self, ratio: float) -> Self:
        return replace(self, at=tuple(mark * ratio for mark in self.at))


@dataclass(frozen=True)
class MultiplyEvery(_Schedule):
    """Multiplied by ``factor`` every ``every`` epochs."""

    start: Level
    factor: Level
    every: Annotated[float, Field(gt=0)] = 1.0
    kind: Literal["multiply"] = "multiply"

    def __call__(self, epoch: float, epochs: int) -> float:
        return self.start * self.factor ** math.floor(epoch / self.every)

    def stretched(self, ratio: float) -> Self:
        return replace(self, every=self.every * ratio)


@dataclass(frozen=True)
class Linear(_Schedule):
    """Linear from ``start`` to ``end`` over the phase."""

    start: Level
    end: Level = 0.0
    kind: Literal["linear"] = "linear"

    def __call__(self, epoch: float, epochs: int) -> float:
        return self.start + (self.end - self.start) * epoch / epochs


@dataclass(frozen=True)
class Cosine(_Schedule):
    """From ``start`` to ``end`` along half a cosine over the phase.

    If the cosine spans more than the phase, ``length`` is its length in epochs and ``offset`` the epochs before the
    phase. During the fraction ``warmup`` the value first rises linearly from a fifth of ``start`` to ``start``; it
    stays there until the fraction ``hold``.
    """

    start: Level
    end: Level = 0.0
    offset: Level = 0.0
    length: Level | None = None
    warmup: Annotated[float, Field(ge=0, lt=1)] = 0.0
    hold: Annotated[float, Field(ge=0, lt=1)] = 0.0
    kind: Literal["cosine"] = "cosine"

    def __call__(self, epoch: float, epochs: int) -> float:
        done = (self.offset + epoch) / (self.length or epochs)
        if done < self.warmup:
            return self.start * (0.2 + 0.8 * done / self.warmup)
        falling = max(self.warmup, self.hold)
        done = max(0.0, done - falling) / (1 - falling)
        return self.end + (self.start - self.end) * (1 + math.cos(math.pi * done)) / 2

    def stretched(self, ratio: float) -> Self:
        length = None if self.length is None else self.length * ratio
        return replace(self, offset=self.offset * ratio, length=length)


@dataclass(frozen=True)
class Steps(_Schedule):
    """Piecewise constant: ``values[i]`` until the epoch ``at[i]``."""

    values: tuple[Level, ...]
    at: tuple[float, ...]
    kind: Literal["steps"] = "steps"

    def __post_init__(self) -> None:
        if len(self.values) != len(self.at) + 1:
            raise ValueError(f"{len(self.values)} values need {len(self.values) - 1} epochs in `at`")

    def __call__(self, epoch: float, epochs: int) -> float:
        return self.values[sum(epoch >= mark for mark in self.at)]

    def scaled(self, factor: float) -> Self:
        return replace(self, values=tuple(value * factor for value in self.values))

    def stretched(self, ratio: float) -> Self:
        return replace(self, at=tuple(mark * ratio for mark in self.at))


@dataclass(frozen=True)
class Triangle(_Schedule):
    """Linear from ``start`` to ``peak`` over the fraction ``warmup`` of the phase, then linear to ``end``."""

    peak: Level
    start: Level = 0.0
    end: Level = 0.0
    warmup: Annotated[float, Field(ge=0, le=1)] = 0.2
    kind: Literal["triangle"] = "triangle"

    def __call__(self, epoch: float, epochs: int) -> float:
        done = epoch / epochs
        if done < self.warmup:
            return self.start + (self.peak - self.start) * done / self.warmup
        left = (1 - done) / (1 - self.warmup) if self.warmup < 1 else 1.0
        return self.end + (self.peak - self.end) * left


AnySchedule = Constant | StepDecay | MultiplyEvery | Steps | Linear | Cosine | Triangle


def as_schedule(value: Any) -> Any:
    """Return a constant schedule for a plain number; return anything else unchanged."""
    return Constant(float(value)) if _is_number(value) else value


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _as_table(value: Any) -> Any:
    return {"kind": "constant", "value": value} if _is_number(value) else value


Schedule = Annotated[AnySchedule, Field(discriminator="kind"), BeforeValidator(_as_table)]
"""A schedule in a typed signature or recipe: a number, a table or one of the classes above."""
