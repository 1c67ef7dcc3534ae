"""PENCIL that sets itself: no noise rate, no phase lengths, no label rate; all of it read off the noisy data."""

import warnings
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from pencil.data.examples import Batch
from pencil.data.given import hard_labels
from pencil.label_layouts import CHUNK, ShardedLabelStore
from pencil.labels import LabelStore
from pencil.losses import at_least_fp32, cross_entropy, forward_kl, inverse_kl
from pencil.methods.base import Context, Epochs, Method, NonNegative, Phase, Share, Task, Terms
from pencil.methods.kinds import label_kind
from pencil.methods.noise_model import (
    NoiseModel,
    confusion_shape,
    fit_noise,
    fit_temperature,
    posterior,
    remaining_trust,
)
from pencil.schedules import Cosine

UNWATCHED = 0.2
"""The share of the budget for the backbone phase where no rows are held out to end it."""
SURE = 2.0
"""Standard errors that a difference has to exceed before anything is undone."""


class AutoPencil(Method):
    """The three phases of the paper, with every number chosen on the way from labels that may be wrong.

    Backbone: cross-entropy on the given labels, until the likelihood of the held-out labels has not risen for
    ``patience`` epochs: from then on mistakes are learned by heart. The network goes back to where it was best.
    Correction: every label distribution moves by a share ``pace`` per epoch towards the posterior of the true class,
    given what the network says about the row and how labels are mixed up (:mod:`pencil.methods.noise_model`).
    Fine-tuning: the last ``finetune`` of the epochs, on labels that no longer move. What is evaluated and kept is the
    mean of the network's weights over an epoch, unless ``average`` is off.

    Not ``anchored``, labels follow the network alone once they have left the given ones, as in the paper. ``balance``
    weighs a term that keeps the shares of the classes.
    """

    takes_minutes = True
    remembered = (
        "total",
        "done",
        "backbone_epochs",
        "best_epoch",
        "best_likelihood",
        "best_weights",
        "best_right",
        "temperature",
        "trust",
        "noise",
        "transition",
        "shares",
        "choices",
    )

    def __init__(
        self,
        *,
        epochs: Epochs = 60,
        lr: NonNegative = 0.02,
        patience: Annotated[int, Field(ge=1)] = 3,
        pace: Share = 0.3,
        finetune: Share = 0.25,
        average: bool = True,
        anchored: bool = True,
        divergence: Literal["forward", "inverse"] = "forward",
        balance: NonNegative = 0.0,
    ):
        self.epochs, self.lr, self.patience, self.pace, self.finetune = epochs, lr, patience, pace, finetune
        self.averages, self.anchored, self.divergence, self.balance = average, anchored, divergence, balance
        self.by_row = balance == 0

    def start(self, task: Task) -> tuple[Phase, ...]:
        self.task = task
        self.labels = task.layout.place(task.given_labels, self._store)
        self.total = self.epochs if task.epochs is None else task.epochs
        self.done, self.backbone_epochs = 0, 0
        self.best_epoch, self.best_likelihood = 0, -float("inf")
        self.best_weights: list[Tensor] = []
        self.best_right: Tensor | None = None
        self.temperature, self.trust = 1.0, 1.0
        self.noise: list[float] = []
        self.transition: Tensor | None = None
        self.shares: Tensor | None = None
        self.choices: list[str] = []
        return self.plan()

    def _store(self, given_labels: Tensor, top_k: int | None) -> LabelStore:
        task = self.task
        return label_kind(False).store(
            given_labels, task.num_classes, top_k=top_k, device=task.device, dtype=task.dtype
        )

    def plan(self) -> tuple[Phase, ...]:
        """One cosine over all phases, whichever epoch they change at."""
        if not self.backbone_epochs:
            return (Phase("backbone", self.total, self.backbone_loss, self._lr(0)),)
        left = max(0, self.total - self.backbone_epochs)
        finetune = min(left, round(self.finetune * self.total))
        correction = Phase(
            "correction",
            left - finetune,
            self.correction_loss,
            self._lr(self.backbone_epochs),
            after_step=self.correct_labels,
        )
        return (
            Phase("backbone", self.backbone_epochs, self.backbone_loss, self._lr(0)),
            correction,
            Phase("finetune", finetune, self.correction_loss, self._lr(self.total - finetune)),
        )

    def _lr(self, since: int) -> Cosine:
        return Cosine(self.lr, since=since, whole=self.total)

    def backbone_loss(self, logits: Tensor, batch: Batch) -> Terms:
        """Eq. 1 on the given labels."""
        return Terms(cross_entropy(logits, batch.given_labels))

    def correction_loss(self, logits: Tensor, batch: Batch) -> Terms:
        """KL between label distributions and predictions: the forward one keeps the network's doubts calibrated."""
        assert self.labels is not None
        label_logits = self.labels[batch.rows]
        divergence = forward_kl if self.divergence == "forward" else inverse_kl
        loss = divergence(logits, label_logits)
        if self.balance:
            loss = loss + self.balance * self._imbalance(logits)
        return Terms(loss, carry=(logits.detach(), self.labels.to_probs(label_logits)))

    def _imbalance(self, logits: Tensor) -> Tensor:
        """``KL(s || mean f)``: how far the classes of a batch are from their shares s in the labels at the switch."""
        assert self.shares is not None
        shares = self.shares.to(logits).clamp_min(1e-8)
        return (shares * (shares.log() - at_least_fp32(logits).softmax(dim=1).mean(dim=0).log())).sum()

    def correct_labels(self, carry: tuple[Tensor, Tensor], batch: Batch, label_step: float) -> None:
        """``y_d <- (1 - pace) * y_d + pace * posterior`` for the rows of the batch."""
        assert self.labels is not None
        logits, label_probs = carry
        given = hard_labels(batch.given_labels)
        towards = posterior(at_least_fp32(logits), given, self._noise_model(), self.temperature, self.trust).exp()
        moved = torch.lerp(label_probs, towards.to(label_probs), self.pace)
        self.labels.write(batch.rows, moved.clamp_min(torch.finfo(moved.dtype).tiny).log())

    def watch(self, context: Context) -> bool:
        """Look at the held-out rows after every epoch, and decide."""
        self.done += 1
        changed = self._plan_by_the_clock(context)
        if not self.backbone_epochs:
            if self._is_memorising(context):
                self._leave_backbone(context)
                return True
            if self.done == self.total:
                self._say(f"never left the backbone phase: no mistakes were learned by heart in {self.done} epochs")
                self._relabel(context)
        elif self.done < self.total:
            self._look_again(context)
        else:
            self._stand_or_fall(context)
        return changed

    def _plan_by_the_clock(self, context: Context) -> bool:
        """As many epochs as the time allows, counted anew after each one of the backbone phase."""
        if self.task.seconds is None or self.backbone_epochs:
            return False
        left = self.task.seconds - context.seconds
        self.total = self.done + max(0 if self.done > 2 else 3 - self.done, int(left * self.done / context.seconds))
        return True

    def _is_memorising(self, context: Context) -> bool:
        """Whether held-out labels have been better explained before; the best network so far is kept."""
        held_out = context.held_out()
        if held_out is None:
            return self.done >= max(1, round(UNWATCHED * self.total)) and self.done < self.total
        logits, given = held_out[0], hard_labels(held_out[1])
        likelihood = -float(cross_entropy(logits, given))
        if likelihood > self.best_likelihood:
            self.best_likelihood, self.best_epoch = likelihood, self.done
            self.best_weights, self.best_right = context.snapshot(), logits.argmax(dim=1) == given
        return self.done - self.best_epoch >= self.patience and self.done < self.total

    def _leave_backbone(self, context: Context) -> None:
        self.backbone_epochs = self.done
        held_out = context.held_out()
        if held_out is None:
            self._say(f"left the backbone phase after epoch {self.done}: no rows are held out to tell the right time")
            self._relabel(context)
            return
        self._say(
            f"left the backbone phase after epoch {self.done} and went back to epoch {self.best_epoch}: "
            f"held-out labels were best explained there (log-likelihood {self.best_likelihood:.3f} a row)"
        )
        context.put_back(self.best_weights)
        if self._knows_nothing(hard_labels(held_out[1])):
            self.total = self.done
            self._warn("predicts held-out labels no better than chance: labels are left as they were given")
            return
        self._relabel(context)

    def _knows_nothing(self, given: Tensor) -> bool:
        """Whether the best network agrees with held-out labels as the most frequent class does, give or take."""
        assert self.best_right is not None
        chance = float(given.bincount().max() / len(given))
        error = (chance * (1 - chance) / len(given)) ** 0.5
        return bool(self.best_right.double().mean() <= chance + error)

    def _relabel(self, context: Context) -> None:
        """Estimate the noise, and start every label at its posterior."""
        logits = context.predict().nan_to_num(0.0)
        given = hard_labels(self.task.given_labels)
        shape = confusion_shape(logits.argmax(dim=1), given, self.task.num_classes)
        held_out = context.held_out() or (logits.cpu(), given.cpu())
        noise = fit_noise(held_out[0], hard_labels(held_out[1]), shape)
        self.noise, self.transition = [noise.rate, noise.low, noise.high], noise.transition
        self.temperature, self.trust = noise.temperature, 1.0
        moved = posterior(logits, given, noise, noise.temperature)
        self.shares = moved.exp().mean(dim=0)
        self._write(moved)
        self._say(
            f"took {noise.rate:.0%} of the labels for noise ({noise.low:.0%} to {noise.high:.0%}) and moved each to "
            f"the posterior of its class, at temperature {noise.temperature:.2f}"
        )

    def _write(self, label_logits: Tensor) -> None:
        labels = self.labels
        assert labels is not None
        store = labels.inner if isinstance(labels, ShardedLabelStore) else labels
        own = torch.arange(len(label_logits)) if labels.own_rows is None else labels.own_rows
        for places in torch.arange(len(own)).split(CHUNK):
            values = label_logits[own[places].to(label_logits.device)].to(self.task.dtype)
            store.write(places.to(self.task.device), values)

    def _look_again(self, context: Context) -> None:
        """How sure the network may be by now, and how much of the given labels its answers hold already."""
        held_out = context.held_out()
        if held_out is None:
            return
        logits, given, noise = held_out[0], hard_labels(held_out[1]), self._noise_model()
        self.temperature = fit_temperature(logits, given, noise)
        self.trust = 0.0
        if self.anchored:
            self.trust = remaining_trust(logits, given, noise, self.temperature, context.train_accuracy)

    def _stand_or_fall(self, context: Context) -> None:
        """At the end: if the network explains held-out labels worse than before correction, correction is undone."""
        held_out = context.held_out()
        if held_out is None or self.best_right is None:
            return
        right = held_out[0].argmax(dim=1) == hard_labels(held_out[1])
        gain = right.double() - self.best_right.double()
        error = float(gain.std() / len(gain) ** 0.5)
        if len(gain) > 1 and float(gain.mean()) < -SURE * error:
            self._warn("made held-out labels harder to explain: network and labels are as at the end of the backbone")
            context.put_back(self.best_weights)
            self._relabel(context)

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

    def _say(self, what: str) -> None:
        self.choices.append(what)

    def _warn(self, what: str) -> None:
        self._say(f"training {what}")
        warnings.warn(f"training {what}", stacklevel=2)
