"""Labels as posteriors: what a network says about a row, weighed against the label that it came with."""

import warnings
from typing import Any, ClassVar

import torch
from torch import Tensor

from pencil.data.given import hard_labels
from pencil.labels.forms import label_form
from pencil.labels.losses import at_least_fp32
from pencil.labels.protocol import Labels
from pencil.labels.store import CHUNK
from pencil.methods.auto.noise_model import (
    NoiseModel,
    confusion_shape,
    fit_noise,
    fit_temperature,
    posterior,
    remaining_trust,
)
from pencil.methods.base import Context, Method, Task


class Relabelling(Method):
    """A method that estimates the noise and moves labels towards the posterior of the true class.

    Not ``anchored``, the given labels count for nothing, as in the paper: labels follow the network alone.
    """

    remembered: ClassVar[tuple[str, ...]] = (
        "corrected",
        "temperature",
        "trust",
        "noise",
        "transition",
        "shares",
        "choices",
    )
    anchored: bool = True

    def begin_labels(self, task: Task) -> None:
        self.task = task
        self.labels = task.layout.build(task.given_labels, self._store)
        self.corrected = False
        self.temperature, self.trust = 1.0, 1.0
        self.noise: list[float] = []
        self.transition: Tensor | None = None
        self.shares: Tensor | None = None
        self.choices: list[str] = []

    def _store(self, given_labels: Tensor, top_k: int | None) -> Labels:
        task = self.task
        return label_form(False).store(
            given_labels, task.num_classes, top_k=top_k, device=task.device, dtype=task.dtype
        )

    def label_probs(self, rows: Tensor | None = None) -> Tensor:
        """The label distributions; as they were given while the store serves another purpose."""
        assert self.labels is not None
        if self.corrected:
            return self.labels.probs(rows)
        return self.labels.to_probs(self.labels.local.initial_logits(rows))

    def relabel(self, context: Context) -> None:
        """Estimate the noise, and start every label at its posterior."""
        logits = context.predict().nan_to_num(0.0)
        given = hard_labels(self.task.given_labels)
        shape = confusion_shape(logits.argmax(dim=1), given, self.task.num_classes)
        held_out = context.held_out() or (logits.cpu(), given.cpu())
        noise = fit_noise(held_out[0], hard_labels(held_out[1]), shape)
        self.noise, self.transition = [noise.rate, noise.low, noise.high], noise.transition
        self.temperature = noise.temperature
        self._weigh_labels(*held_out, float((logits.argmax(dim=1) == given).double().mean()))
        moved = posterior(logits, given, noise, self.temperature, self.trust)
        self.shares = moved.exp().mean(dim=0)
        self._write(moved)
        self.say(
            f"took {noise.rate:.0%} of the labels for noise ({noise.low:.0%} to {noise.high:.0%}) and moved each to "
            f"the posterior of its class, at temperature {noise.temperature:.2f}"
        )

    def look_again(self, context: Context) -> None:
        """How sure the network may be by now, and how much of the given labels its answers hold already."""
        held_out = context.held_out()
        if held_out is not None:
            self.temperature = fit_temperature(held_out[0], hard_labels(held_out[1]), self._noise_model())
            self._weigh_labels(*held_out, context.train_accuracy)

    def _weigh_labels(self, logits: Tensor, given: Tensor, agreement: float) -> None:
        self.trust = 0.0
        if self.anchored:
            given = hard_labels(given)
            self.trust = remaining_trust(logits, given, self._noise_model(), self.temperature, agreement)

    def move_labels(self, rows: Tensor, label_probs: Tensor, answers: Tensor, given: Tensor, pace: float) -> None:
        """``y_d <- (1 - pace) * y_d + pace * posterior`` for these rows, which the network says ``answers`` about."""
        assert self.labels is not None
        believed = posterior(
            at_least_fp32(answers), hard_labels(given), self._noise_model(), self.temperature, self.trust
        )
        self.labels.write(rows, as_logits(torch.lerp(label_probs, believed.exp().to(label_probs), pace)))

    def _write(self, label_logits: Tensor) -> None:
        assert self.labels is not None
        store, rows = self.labels.local, self.labels.local_rows
        own = torch.arange(len(label_logits)) if rows is None else rows
        store.reset()  # pinned rows and all
        self.corrected = True
        for places in torch.arange(len(own)).split(CHUNK):
            values = label_logits[own[places].to(label_logits.device)].to(self.task.dtype)
            store.write(places.to(self.task.device), values)

    def _noise_model(self) -> NoiseModel:
        assert self.transition is not None
        rate, low, high = self.noise
        return NoiseModel(rate, low, high, self.temperature, self.transition)

    def metrics(self) -> dict[str, float]:
        return {"temperature": self.temperature, "trust": self.trust} if self.noise else {}

    def findings(self) -> dict[str, Any]:
        found: dict[str, Any] = {"choices": list(self.choices)}
        if self.transition is not None:
            found["noise_rate"] = {"estimate": self.noise[0], "low": self.noise[1], "high": self.noise[2]}
            found["transition"] = self.transition.tolist()
        return found

    def say(self, what: str) -> None:
        self.choices.append(what)

    def warn(self, what: str) -> None:
        self.say(f"training {what}")
        warnings.warn(f"training {what}", stacklevel=2)


def as_logits(probs: Tensor) -> Tensor:
    return (probs / probs.sum(dim=1, keepdim=True)).clamp_min(torch.finfo(probs.dtype).tiny).log()
