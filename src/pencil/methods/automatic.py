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
from pencil.methods.elr import early_learning_loss, moved_targets
from pencil.methods.kinds import label_kind
from pencil.methods.noise_model import (
    SURE,
    TEMPERATURES,
    NoiseModel,
    confusion_shape,
    fit_noise,
    fit_temperature,
    is_chance,
    posterior,
    remaining_trust,
)
from pencil.schedules import Cosine

UNWATCHED = 0.2
"""The share of the budget for the backbone phase where no rows are held out to end it."""
PROVING = 75
"""With fewer held-out rows, no better than chance may be bad luck."""
MEMORY = 0.7
"""ELR's beta: how much of what the network believed an epoch ago is kept."""


class AutoPencil(Method):
    """The three phases of the paper, with every number chosen on the way from labels that may be wrong.

    Backbone: cross-entropy on the given labels, held back by ``early_learning`` times the regulariser of ELR, until the
    likelihood of the held-out labels has not risen for ``patience`` epochs, or for ``longest`` of the budget: from then
    on mistakes are learned by heart. The network goes back to where it was best.
    Correction: every label distribution moves by a share ``pace`` per epoch towards the posterior of the true class,
    given what the network says about the row and how labels are mixed up (:mod:`pencil.methods.noise_model`).
    Fine-tuning: the last ``finetune`` of the epochs, on labels that no longer move. What is evaluated and kept is the
    mean of the network's weights over an epoch, unless ``average`` is off.

    Not ``anchored``, labels follow the network alone once they have left the given ones, as in the paper. ``balance``
    weighs a term that keeps the shares of the classes.
    """

    takes_minutes = True
    telling = 40
    remembered = (
        "total", "done", "backbone_epochs", "corrected", "best_epoch", "best_likelihood", "best_weights",
        "best_right", "temperature", "trust", "noise", "transition", "shares", "choices",
    )  # fmt: skip

    def __init__(
        self,
        *,
        epochs: Epochs = 60,
        lr: NonNegative = 0.02,
        early_learning: NonNegative = 3.0,
        patience: Annotated[int, Field(ge=1)] = 4,
        longest: Share = 0.6,
        pace: Share = 0.3,
        finetune: Share = 0.25,
        average: bool = True,
        anchored: bool = True,
        divergence: Literal["forward", "inverse"] = "forward",
        balance: NonNegative = 0.0,
    ):
        self.epochs, self.lr, self.pace, self.finetune = epochs, lr, pace, finetune
        self.early_learning, self.patience, self.longest = early_learning, patience, longest
        self.averages, self.anchored, self.divergence, self.balance = average, anchored, divergence, balance
        self.by_row = balance == 0

    def start(self, task: Task) -> tuple[Phase, ...]:
        self.task = task
        self.labels = task.layout.place(task.given_labels, self._store)
        self.total = self.epochs if task.epochs is None else task.epochs
        self.done, self.backbone_epochs, self.corrected = 0, 0, False
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
            return (self._backbone(self.total),)
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
            self._backbone(self.backbone_epochs),
            correction,
            Phase("finetune", finetune, self.correction_loss, self._lr(self.total - finetune)),
        )

    def _backbone(self, epochs: int) -> Phase:
        return Phase("backbone", epochs, self.backbone_loss, self._lr(0), after_step=self.remember)

    def _lr(self, since: int) -> Cosine:
        return Cosine(self.lr, since=since, whole=self.total)

    def backbone_loss(self, logits: Tensor, batch: Batch) -> Terms:
        """Eq. 1 on the given labels, and ELR's regulariser; the label store is its memory until labels are corrected.

        ELR's targets start at zero and every epoch meets every row, so that after k epochs they sum to ``1 - B ** k``;
        the store holds them scaled to sum to one.
        """
        assert self.labels is not None
        targets = self.labels.to_probs(self.labels[batch.rows]) * (1 - MEMORY**self.done)
        targets = moved_targets(targets, logits, MEMORY)
        classification, regularizer = cross_entropy(logits, batch.given_labels), early_learning_loss(logits, targets)
        parts = {"classification": classification.detach(), "early_learning": regularizer.detach()}
        return Terms(classification + self.early_learning * regularizer, parts, carry=targets)

    def remember(self, targets: Tensor, batch: Batch, label_step: float) -> None:
        assert self.labels is not None
        self.labels.write(batch.rows, _as_logits(targets))

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
        self.labels.write(batch.rows, _as_logits(moved))

    def label_probs(self, rows: Tensor | None = None) -> Tensor:
        """The label distributions; as they were given while the store serves the backbone phase."""
        assert self.labels is not None
        if self.corrected:
            return self.labels.probs(rows)
        return self.labels.to_probs(self._own_store().initial_logits(rows))

    def watch(self, context: Context) -> bool:
        """Look at the held-out rows after every epoch, and decide."""
        self.done += 1
        changed = self._plan_by_the_clock(context)
        if not self.backbone_epochs:
            if self._is_memorising(context):
                self._leave_backbone(context)
                return True
            if self.done == self.total:
                self._end_in_backbone(context)
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
        """Whether held-out labels have been better explained before; the best network so far is kept.

        How sure a network is does not count, only what it knows: its temperature is the best there is. As long as it
        does no better than chance, it has learned nothing that could be lost.
        """
        held_out = context.held_out()
        if held_out is None:
            return self.done >= max(1, round(UNWATCHED * self.total)) and self.done < self.total
        logits, given = held_out[0], hard_labels(held_out[1])
        right = logits.argmax(dim=1) == given
        if is_chance(right, given):
            return False
        likelihood = -min(float(cross_entropy(logits / t, given)) for t in TEMPERATURES.tolist())
        if likelihood > self.best_likelihood:
            self.best_likelihood, self.best_epoch = likelihood, self.done
            self.best_weights, self.best_right = context.snapshot(), right
        ended = self.done - self.best_epoch >= self.patience or self.done >= self.longest * self.total
        return ended and self.done < self.total

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
        self._relabel(context)

    def _end_in_backbone(self, context: Context) -> None:
        """The budget is spent: read labels off the network, if it has learned anything."""
        held_out = context.held_out()
        if held_out is not None and self.best_right is None:
            what = "never predicted held-out labels better than chance: labels are left as they were given"
            enough = self.done > self.patience and len(held_out[1]) >= PROVING  # else it had no chance to show it
            if enough:
                self._warn(what)
            else:
                self._say(what)
            return
        self._say(f"stayed in the backbone phase: held-out labels were best explained at epoch {self.best_epoch}")
        self._relabel(context)

    def _relabel(self, context: Context) -> None:
        """Estimate the noise, and start every label at its posterior."""
        logits = context.predict().nan_to_num(0.0)
        given = hard_labels(self.task.given_labels)
        shape = confusion_shape(logits.argmax(dim=1), given, self.task.num_classes)
        held_out = context.held_out() or (logits.cpu(), given.cpu())
        noise = fit_noise(held_out[0], hard_labels(held_out[1]), shape)
        self.noise, self.transition = [noise.rate, noise.low, noise.high], noise.transition
        self.temperature = noise.temperature
        agreement = float((logits.argmax(dim=1) == given).double().mean())
        self._weigh_labels(*held_out, agreement)
        moved = posterior(logits, given, noise, self.temperature, self.trust)
        self.shares = moved.exp().mean(dim=0)
        self._write(moved)
        self._say(
            f"took {noise.rate:.0%} of the labels for noise ({noise.low:.0%} to {noise.high:.0%}) and moved each to "
            f"the posterior of its class, at temperature {noise.temperature:.2f}"
        )

    def _write(self, label_logits: Tensor) -> None:
        assert self.labels is not None
        store, rows = self._own_store(), self.labels.own_rows
        own = torch.arange(len(label_logits)) if rows is None else rows
        store.reset()  # pinned rows and all
        self.corrected = True
        for places in torch.arange(len(own)).split(CHUNK):
            values = label_logits[own[places].to(label_logits.device)].to(self.task.dtype)
            store.write(places.to(self.task.device), values)

    def _own_store(self) -> LabelStore:
        assert self.labels is not None
        return self.labels.inner if isinstance(self.labels, ShardedLabelStore) else self.labels

    def _look_again(self, context: Context) -> None:
        """How sure the network may be by now, and how much of the given labels its answers hold already."""
        held_out = context.held_out()
        if held_out is None:
            return
        self.temperature = fit_temperature(held_out[0], hard_labels(held_out[1]), self._noise_model())
        self._weigh_labels(*held_out, context.train_accuracy)

    def _weigh_labels(self, logits: Tensor, given: Tensor, agreement: float) -> None:
        self.trust = 0.0
        if self.anchored:
            given = hard_labels(given)
            self.trust = remaining_trust(logits, given, self._noise_model(), self.temperature, agreement)

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


def _as_logits(probs: Tensor) -> Tensor:
    return (probs / probs.sum(dim=1, keepdim=True)).clamp_min(torch.finfo(probs.dtype).tiny).log()
