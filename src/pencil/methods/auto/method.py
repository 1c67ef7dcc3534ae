"""PENCIL that sets itself: no noise rate, no phase lengths, no label rate; all of it read off the noisy data."""

from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from pencil.data.examples import Batch
from pencil.data.given import hard_labels
from pencil.errors import RecipeError
from pencil.labels.losses import at_least_fp32, cross_entropy, forward_kl, inverse_kl, log_probs
from pencil.methods.auto.noise_model import SURE, explained, is_chance
from pencil.methods.auto.relabelling import Relabelling, as_logits
from pencil.methods.base import Context, Epochs, NonNegative, Phase, Share, Task, Terms
from pencil.methods.elr import early_learning_loss, moved_targets
from pencil.methods.schedules import Cosine

UNWATCHED = 0.2
"""The share of the budget for the backbone phase where no rows are held out to end it."""
PROVING = 75
"""With fewer held-out rows, no better than chance may be bad luck."""
MEMORY = 0.7
"""ELR's beta: how much of what the network believed an epoch ago is kept."""


class AutoPencil(Relabelling):
    """The three phases of the paper, with every number chosen on the way from labels that may be wrong.

    Backbone: cross-entropy on the given labels, held back by ``early_learning`` times the regulariser of ELR, until the
    likelihood of the held-out labels has not risen for ``patience`` epochs, or for ``longest`` of the budget: from then
    on mistakes are learned by heart. The network goes back to where it was best.
    Correction: every label distribution moves by a share ``pace`` per epoch towards the posterior of the true class,
    given what the network says about the row and how labels are mixed up (:mod:`pencil.methods.auto.noise_model`).
    Fine-tuning: the last ``finetune`` of the epochs, on labels that no longer move. What is evaluated and kept is the
    mean of the network's weights over an epoch, unless ``average`` is off. Correction and fine-tuning come again, up to
    ``rounds`` times, as long as each round explains held-out labels better than the one before.

    Not ``anchored``, labels follow the network alone once they have left the given ones, as in the paper. ``balance``
    weighs a term that keeps the shares of the classes. With ``teacher`` labels move by what the averaged network says
    about so many views of a row; ``mixup`` trains on mixtures of rows, with shares from a beta distribution of this
    parameter; ``pair`` trains two networks, and labels move by what both of them say.
    """

    takes_minutes = True
    telling = 40
    remembered = (
        *Relabelling.remembered,
        "total", "done", "round", "backbone_epochs", "best_epoch", "best_likelihood", "best_weights", "best_said",
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
        rounds: Annotated[int, Field(ge=1)] = 1,
        average: bool = True,
        anchored: bool = True,
        divergence: Literal["forward", "inverse"] = "forward",
        balance: NonNegative = 0.0,
        teacher: Annotated[int, Field(ge=0)] = 0,
        mixup: NonNegative = 0.0,
        pair: bool = False,
    ):
        if (teacher or mixup) and not average:
            raise RecipeError("teacher and mixup ask the averaged network about labels; average is false.")
        self.epochs, self.lr, self.pace, self.finetune, self.rounds = epochs, lr, pace, finetune, rounds
        self.early_learning, self.patience, self.longest = early_learning, patience, longest
        self.averages, self.anchored, self.divergence, self.balance = average, anchored, divergence, balance
        self.mixup, self.networks = mixup, 2 if pair else 1
        self.looks = max(teacher, 1 if mixup else 0)  # what it says about mixtures is no answer for a row
        self.by_row = not (balance or self.looks or pair)

    def start(self, task: Task) -> tuple[Phase, ...]:
        self.begin_labels(task)
        self.total = self.epochs if task.epochs is None else task.epochs
        self.done, self.round, self.backbone_epochs = 0, 1, 0
        self.best_epoch, self.best_likelihood = 0, -float("inf")
        self.best_weights: list[Tensor] = []
        self.best_said: Tensor | None = None
        return self.plan()

    def plan(self) -> tuple[Phase, ...]:
        """One cosine over all phases, whichever epoch they change at, and one over each further round."""
        if not self.backbone_epochs:
            return (self._backbone(self.total),)
        phases = [self._backbone(self.backbone_epochs), *self._round("", self.backbone_epochs, self.total)]
        for number in range(2, self.round + 1):
            phases += self._round(f" {number}", 0, self.total - self.backbone_epochs)
        return tuple(phases)

    def _backbone(self, epochs: int) -> Phase:
        lr = Cosine(self.lr, whole=self.total)
        return Phase("backbone", epochs, self.backbone_loss, lr, after_step=self.remember)

    def _round(self, suffix: str, since: int, whole: int) -> list[Phase]:
        left = max(0, self.total - self.backbone_epochs)
        finetune = min(left, round(self.finetune * self.total))
        first, second = (Cosine(self.lr, since=place, whole=whole) for place in (since, whole - finetune))
        return [
            Phase("correction" + suffix, left - finetune, self.correction_loss, first, after_step=self.correct_labels),
            Phase("finetune" + suffix, finetune, self.correction_loss, second),
        ]

    def backbone_loss(self, said: Any, batch: Batch) -> Terms:
        """Eq. 1 on the given labels, and ELR's regulariser; the label store is its memory until labels are corrected.

        ELR's targets start at zero and every epoch meets every row, so that after k epochs they sum to ``1 - B ** k``;
        the store holds them scaled to sum to one.
        """
        trained, answers = self._sides(said)
        targets = moved_targets(self._memory(batch.rows), answers, MEMORY)
        mixed = targets
        if batch.partners is not None:
            mixed = torch.lerp(self._memory(batch.partners), targets, batch.fraction)
        classification = torch.stack([self._classification(logits, batch) for logits in trained]).sum()
        regularizer = torch.stack([early_learning_loss(logits, mixed) for logits in trained]).sum()
        parts = {"classification": classification.detach(), "early_learning": regularizer.detach()}
        return Terms(classification + self.early_learning * regularizer, parts, carry=targets)

    def _memory(self, rows: Tensor) -> Tensor:
        assert self.labels is not None
        return self.labels.to_probs(self.labels[rows]) * (1 - MEMORY**self.done)

    def _classification(self, logits: Tensor, batch: Batch) -> Tensor:
        loss = cross_entropy(logits, batch.given_labels)
        if batch.partners is None:
            return loss
        return torch.lerp(cross_entropy(logits, self.task.given_labels[batch.partners]), loss, batch.fraction)

    def remember(self, targets: Tensor, batch: Batch, label_step: float) -> None:
        assert self.labels is not None
        self.labels.write(batch.rows, as_logits(targets))

    def correction_loss(self, said: Any, batch: Batch) -> Terms:
        """KL between label distributions and predictions: the forward one keeps the network's doubts calibrated."""
        assert self.labels is not None
        trained, answers = self._sides(said)
        label_logits = self.labels[batch.rows]
        label_probs = self.labels.to_probs(label_logits)
        if batch.partners is not None:
            partners = self.labels.to_probs(self.labels[batch.partners])
            label_logits = as_logits(torch.lerp(partners, label_probs, batch.fraction))
        divergence = forward_kl if self.divergence == "forward" else inverse_kl
        loss = torch.stack([divergence(logits, label_logits) for logits in trained]).sum()
        if self.balance:
            loss = loss + self.balance * self._imbalance(trained[0])
        return Terms(loss, carry=(answers, label_probs))

    def _sides(self, said: Any) -> tuple[tuple[Tensor, ...], Tensor]:
        """The logits that are trained, and the mean answer by which labels move: the averaged network's, if asked."""
        logits = said if isinstance(said, tuple) else (said,)
        trained, looks = logits[: self.networks], logits[self.networks :]
        asked = [answer.detach() for answer in looks or trained]
        if len(asked) == 1:
            return trained, asked[0]
        return trained, torch.stack([log_probs(answer) for answer in asked]).logsumexp(dim=0)

    def _imbalance(self, logits: Tensor) -> Tensor:
        """``KL(s || mean f)``: how far the classes of a batch are from their shares s in the labels at the switch."""
        assert self.shares is not None
        shares = self.shares.to(logits).clamp_min(1e-8)
        return (shares * (shares.log() - at_least_fp32(logits).softmax(dim=1).mean(dim=0).log())).sum()

    def correct_labels(self, carry: tuple[Tensor, Tensor], batch: Batch, label_step: float) -> None:
        answers, label_probs = carry
        self.move_labels(batch.rows, label_probs, answers, batch.given_labels, self.pace)

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
        elif self.done < self._end_of_round():
            self.look_again(context)
        elif self._another_round_pays(context):
            self.round += 1
            self.relabel(context)
            return True
        else:
            self._stand_or_fall(context)
        return changed

    def _end_of_round(self) -> int:
        return self.total + (self.round - 1) * (self.total - self.backbone_epochs)

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
        if is_chance(logits.argmax(dim=1) == given, given):
            return False
        likelihood = float(explained(logits, given).mean())
        if likelihood > self.best_likelihood:
            self.best_likelihood, self.best_epoch = likelihood, self.done
            self.best_weights, self.best_said = context.snapshot(), logits
        ended = self.done - self.best_epoch >= self.patience or self.done >= self.longest * self.total
        return ended and self.done < self.total

    def _leave_backbone(self, context: Context) -> None:
        self.backbone_epochs = self.done
        if context.held_out() is None:
            self.say(f"left the backbone phase after epoch {self.done}: no rows are held out to tell the right time")
            self.relabel(context)
            return
        self.say(
            f"left the backbone phase after epoch {self.done} and went back to epoch {self.best_epoch}: "
            f"held-out labels were best explained there (log-likelihood {self.best_likelihood:.3f} a row)"
        )
        context.put_back(self.best_weights)
        self.relabel(context)

    def _end_in_backbone(self, context: Context) -> None:
        """The budget is spent: read labels off the network, if it has learned anything."""
        held_out = context.held_out()
        if held_out is not None and self.best_said is None:
            what = "never predicted held-out labels better than chance: labels are left as they were given"
            enough = self.done > self.patience and len(held_out[1]) >= PROVING  # else it had no chance to show it
            if enough:
                self.warn(what)
            else:
                self.say(what)
            return
        self.say(f"stayed in the backbone phase: held-out labels were best explained at epoch {self.best_epoch}")
        self.relabel(context)

    def _another_round_pays(self, context: Context) -> bool:
        """Whether this round explains held-out labels better, beyond doubt, than what was before it."""
        held_out = context.held_out()
        if self.round >= self.rounds or self.task.seconds is not None or held_out is None:
            return False
        said, given = held_out[0], hard_labels(held_out[1])
        assert self.best_said is not None
        now, before = (explained(logits, given, self.transition) for logits in (said, self.best_said))
        if _standing(now - before) <= SURE:
            self.say(f"no further round after round {self.round}: it explains held-out labels no better")
            return False
        self.say(f"another round after round {self.round}: it explains held-out labels better than what was before it")
        self.best_weights, self.best_said = context.snapshot(), said
        return True

    def _stand_or_fall(self, context: Context) -> None:
        """At the end: if the network explains held-out labels worse than before the last round, that is undone."""
        held_out = context.held_out()
        if held_out is None or self.best_said is None:
            return
        right = held_out[0].argmax(dim=1) == hard_labels(held_out[1])
        before = self.best_said.argmax(dim=1) == hard_labels(held_out[1])
        if _standing(right.double() - before.double()) < -SURE:
            self.warn("made held-out labels harder to explain: network and labels are as they were before correction")
            context.put_back(self.best_weights)
            self.relabel(context)


def _standing(gain: Tensor) -> float:
    """How many standard errors a mean gain is from none; all alike, and there is no doubt."""
    mean, error = float(gain.double().mean()), float(gain.double().std(correction=0) / len(gain) ** 0.5)
    return mean / error if error else mean * float("inf") if mean else 0.0
