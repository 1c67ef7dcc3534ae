"""``auto``, the default: estimates noise rate, length of the backbone phase and label updates from noisy data."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from pencil.data.examples import Batch
from pencil.errors import MethodWarning, warn
from pencil.labels.forms import label_form
from pencil.labels.noise_model import SIGNIFICANT
from pencil.labels.protocol import HeldOut
from pencil.labels.rows import row_blocks
from pencil.methods.auto_backbone import (
    MULTI_LABEL,
    SINGLE_LABEL,
    class_frequency,
    early_learning_terms,
    noise_share,
    spread_noise,
    spread_noise_loss,
    spread_noise_model,
    z_score,
)
from pencil.methods.auto_state import AutoState
from pencil.methods.base import (
    Context,
    Epochs,
    Fraction,
    Method,
    NonNegative,
    Outputs,
    Phase,
    Requirements,
    Task,
    Terms,
)
from pencil.methods.schedules import Cosine

BACKBONE_WITHOUT_HELD_OUT = 0.2
"""Length of the backbone phase as a fraction of the budget, if no held-out rows are there to end it."""
LIGHT_DROPOUT = 0.6
"""Dropout strength while a perceptron fits training rows no better than held-out rows: more costs accuracy."""
MANY_HELD_OUT = 400
"""With fewer held-out rows a gap of five points is not significant, and dropout keeps its full strength."""
ENOUGH_HELD_OUT = 75
"""With fewer held-out rows an accuracy at chance level may be bad luck, and no warning is given."""


class Auto(Method):
    """The three phases of the paper; noise rate, backbone length and label updates are estimated during training.

    *Backbone*: training on the given labels (for single-label data with ELR's regulariser, and optionally with loss
    correction), until the likelihood of the held-out labels has not risen for ``patience`` epochs and is clearly below
    its best value. The network then returns to its best epoch, and every label is set to its posterior. *Correction*:
    label distributions move towards the posterior of the true class, given the prediction for the row and the estimated
    noise model (:mod:`pencil.labels.noise_model`). *Fine-tuning*: the last epochs, on fixed labels. At the end every
    label, held out or not, is set to its posterior given the training dynamics of all epochs
    (:mod:`pencil.labels.judging`); if the network predicts held-out labels no better than chance, labels stay as given.
    The form of the labels (:mod:`pencil.labels.forms`) and the pacing (:mod:`pencil.methods.auto_backbone`) contain the
    differences between single-label and multi-label data.

    Parameters
    ----------
    epochs
        Length of the run, unless ``training.epochs`` or a time budget sets it.
    lr
        Peak learning rate of the cosine schedule over all phases.
    warmup
        Fraction of the epochs in which the learning rate first rises; for high learning rates.
    early_learning
        Largest weight of ELR's regulariser in the backbone phase of single-label data. The weight is scaled by the
        share of label noise in the network's disagreement with held-out labels.
    loss_correction
        Replace cross-entropy in the backbone phase of single-label data by the forward loss (Patrini et al. 2017) of
        labels drawn at random. Their fraction is estimated on held-out rows after every epoch. For large data with many
        random labels and 3 to 100 classes; it can cost accuracy if noise prefers some classes to others.
    patience, max_backbone
        The backbone phase ends after this many epochs without better predictions of held-out labels, once predictions
        are worse by more than a standard error. It ends at the latest at this fraction of the budget (for multi-label
        data only if labels are worth correcting by then), but never while predictions are no better than chance. A
        network that still improves gains more from training than from its own corrections.
    pace
        How far a label moves towards its posterior per epoch: ``y_d <- (1 - pace) * y_d + pace * posterior``.
    finetune
        Fraction of the epochs on fixed labels.
    rounds
        Maximum number of rounds of correction and fine-tuning; a further round runs only if the last one explained
        held-out labels better than the round before.
    ema
        Evaluate and keep the moving average of the weights.
    dropout
        Add dropout to a multi-layer perceptron that has none; for single-label data.
    anchored
        Use the given label in the posterior. If false, labels follow the network alone, as in the paper.
    divergence
        Direction of the KL divergence between label distribution and prediction.
    """

    requirements = Requirements(
        ema=True,
        dropout=True,
        held_out_rows=40,
        min_held_out_rows=5,
        multilabel=True,
        wall_clock=True,
        row_losses=True,
        label_store=True,
    )
    state: AutoState
    row_state: ClassVar = {}

    def __init__(
        self,
        *,
        epochs: Epochs = 60,
        lr: NonNegative = 0.02,
        warmup: Annotated[float, Field(ge=0, lt=1)] = 0.0,
        early_learning: NonNegative = 3.0,
        loss_correction: bool = False,
        patience: Annotated[int, Field(ge=1)] = 4,
        max_backbone: Fraction = 1.0,
        pace: Fraction = 0.3,
        finetune: Fraction = 0.25,
        rounds: Annotated[int, Field(ge=1)] = 1,
        ema: bool = True,
        dropout: bool = True,
        anchored: bool = True,
        divergence: Literal["forward", "inverse"] = "forward",
    ):
        self.epochs, self.lr, self.pace, self.finetune, self.rounds = epochs, lr, pace, finetune, rounds
        self.early_learning, self.patience, self.max_backbone = early_learning, patience, max_backbone
        self.loss_correction = loss_correction
        self.anchored, self.divergence, self.warmup, self.dropout = anchored, divergence, warmup, dropout
        self.requirements = replace(type(self).requirements, ema=ema, dropout=dropout)

    # ---- phases

    def start(self, task: Task) -> tuple[Phase, ...]:
        self.task = task
        self.form, self.pacing = label_form(task.multilabel), MULTI_LABEL if task.multilabel else SINGLE_LABEL
        self.labels = task.new_labels(self.form)
        self.rarity = self.form.log_rarity(task.given_labels, task.num_classes)
        has_elr = self.pacing.early_learning
        self.frequency = class_frequency(task.given_labels, task.num_classes) if has_elr else None
        self.state = AutoState(total=self.epochs if task.epochs is None else task.epochs)
        self.requirements = replace(self.requirements, dropout=self.dropout and self.pacing.dropout)
        return self.plan()

    def plan(self) -> tuple[Phase, ...]:
        """One cosine over all phases, whatever the epochs at which they change, and one over each further round."""
        state = self.state
        self.requirements = replace(self.requirements, ema_epochs=min(1.0, self.pacing.ema_memory * state.total))
        if not state.backbone_epochs:
            return (self._backbone(state.total),)
        phases = [self._backbone(state.backbone_epochs), *self._round_phases("", state.backbone_epochs, state.total)]
        for number in range(2, state.round + 1):
            phases += self._round_phases(f" {number}", 0, state.total - state.backbone_epochs)
        return tuple(phases)

    def _backbone(self, epochs: int) -> Phase:
        lr = self._lr(0, self.state.total, self.warmup)
        dropout = self.state.dropout
        return Phase("backbone", epochs, self.backbone_loss, lr, after_step=self.update_targets, dropout=dropout)

    def _lr(self, offset: int, length: int, warmup: float) -> Cosine:
        return Cosine(self.lr, offset=offset, length=length, warmup=warmup, hold=self.pacing.hold)

    def _round_phases(self, suffix: str, offset: int, length: int) -> list[Phase]:
        """Correction and fine-tuning on a cosine of ``length`` epochs, after ``offset`` epochs have passed."""
        left, finetune = max(0, self.state.total - self.state.backbone_epochs), self._finetune_epochs()
        warmup = self.warmup if offset else 0.0  # a further round starts at the full rate
        first, second = (self._lr(place, length, warmup) for place in (offset, length - finetune))
        phase = partial(Phase, loss=self.correction_loss, dropout=self.state.dropout)
        return [
            phase("correction" + suffix, left - finetune, lr=first, after_step=self.correct_labels),
            phase("finetune" + suffix, finetune, lr=second),
        ]

    def _finetune_epochs(self) -> int:
        left = max(0, self.state.total - self.state.backbone_epochs)
        return min(left, round(self.finetune * self.state.total))

    # ---- losses and label updates

    def backbone_loss(self, outputs: Outputs, batch: Batch) -> Terms:
        """Eq. 1 or the forward loss; for single-label data plus ELR's regulariser, with targets in the label store."""
        assert self.labels is not None
        state, rate = self.state, self.state.spread_noise
        if rate:
            loss = spread_noise_loss(outputs.logits, batch.given_labels, rate)
        else:
            loss = self.form.given_loss(outputs.logits, batch.given_labels)
        if self.frequency is None:
            return Terms(loss)
        stored = self.labels.to_probs(self.labels[batch.rows])
        weight = self.early_learning * (1.0 if state.early_learning_share is None else state.early_learning_share)
        weight *= (1 - rate) ** 2  # the loss itself learns less from labels, and ELR's targets would win
        return early_learning_terms(loss, outputs.logits, stored, state.done, self.frequency, weight)

    def update_targets(self, targets: Tensor | None, batch: Batch, _label_step: float) -> None:
        """Store the ELR targets of these rows."""
        assert self.labels is not None
        if targets is not None:
            self.labels.write(batch.rows, self.form.as_logits(targets, batch.given_labels))

    def correction_loss(self, outputs: Outputs, batch: Batch) -> Terms:
        """KL divergence between label distribution and prediction; forward KL keeps the network calibrated."""
        assert self.labels is not None
        label_logits = self.labels[batch.rows]
        loss = self.form.kl_divergence(outputs.logits, label_logits, batch.given_labels, self.divergence)
        return Terms(loss, carry=(outputs.logits.detach(), self.labels.to_probs(label_logits)))

    def correct_labels(self, carry: tuple[Tensor, Tensor], batch: Batch, _label_step: float) -> None:
        """``y_d <- (1 - pace) * y_d + pace * posterior`` for these rows."""
        assert self.labels is not None and self.state.noise is not None
        logits, label_probs = carry
        target = self._posterior(logits, batch.given_labels)
        moved = torch.lerp(label_probs, self.form.posterior_probs(target).to(label_probs), self.pace)
        self.labels.write(batch.rows, self.form.as_logits(moved, batch.given_labels))

    def label_probs(self, rows: Tensor | None = None) -> Tensor:
        """The label distributions; before correction, while the store holds ELR's targets, the given labels."""
        assert self.labels is not None
        if self.state.corrected:
            return self.labels.probs(rows)
        return self.labels.to_probs(self.labels.local.initial_logits(rows))

    # ---- noise and posterior

    def relabel(self, context: Context) -> None:
        """Estimate the noise model, and set every label to its posterior."""
        logits, given, held_out = context.predict(), self.task.given_labels, context.held_out()
        read = ~logits[:, 0].isnan()
        labelled = read & self.form.has_label(given).to(logits.device)
        usable = labelled if labelled.any() else read
        logits_read, given_read = logits, given
        if not usable.all():
            logits_read, given_read = logits[usable], given[usable.to(given.device)]
        self.state.noise = noise = self.form.fit_noise(logits_read, given_read, held_out)
        self._fit_trust(held_out or (logits_read.cpu(), given_read.cpu()), self.form.agreement(logits_read, given_read))
        self._write_labels(lambda rows: self._posterior(logits[rows].nan_to_num(0.0), given[rows]))
        name, value = next(iter(self.form.calibration(noise).items()))
        self._note(f"network calibrated with {name} {value:.2f}")

    def _posterior(self, logits: Tensor, given_labels: Tensor) -> Tensor:
        """The label logits of the posterior, under the current noise model."""
        return self.form.posterior(self.state.noise, logits, given_labels, self.state.trust, self.rarity)

    def refit(self, context: Context) -> None:
        """Fit the calibration and the weight of the given labels to the current network."""
        held_out = context.held_out()
        if held_out is not None:
            self.state.noise = self.form.refit_noise(self.state.noise, held_out)
            self._fit_trust(held_out, context.train_accuracy)

    def _fit_trust(self, held_out: HeldOut, agreement: float) -> None:
        self.state.trust = 0.0
        if self.anchored:
            self.state.trust = self.form.remaining_trust(self.state.noise, held_out, agreement)

    def _write_labels(self, label_logits: Callable[[Tensor], Tensor]) -> None:
        """Set the label logits of all rows, in blocks; pinned rows stay as given."""
        assert self.labels is not None
        store, rows, device = self.labels.local, self.labels.local_rows, self.task.device
        store.reset()
        self.state.corrected = True
        for places in row_blocks(len(store), self.task.num_classes):
            values = label_logits((places if rows is None else rows[places]).to(device))
            store.write(places.to(device), values.to(device, self.task.dtype))

    # ---- decisions after every epoch

    def on_epoch_end(self, context: Context) -> None:
        """Evaluate the held-out rows, and decide how to continue."""
        state = self.state
        state.done += 1
        self._plan_by_clock(context)
        if not state.backbone_epochs:
            if self._is_memorising(context):
                self._leave_backbone(context)
            elif state.done == state.total:
                self._end_in_backbone(context)
        elif state.done < state.total + (state.round - 1) * (state.total - state.backbone_epochs):
            self.refit(context)
        elif self._another_round_helps(context):
            state.round += 1
            self.relabel(context)
        else:
            self._undo_if_worse(context)
            self._settle(context)

    def on_rows_changed(self) -> None:
        """Discard the predictions for held-out rows: the search for the best epoch restarts."""
        state = self.state
        state.best_likelihoods, state.best_logits, state.recent_likelihoods = None, None, []
        self._note(f"the rows changed after epoch {state.done}: earlier epochs are no longer compared")

    def _plan_by_clock(self, context: Context) -> None:
        """Plan as many epochs as the time budget allows; repeated after each epoch until fine-tuning begins."""
        state = self.state
        correcting = state.backbone_epochs > 0
        if self.task.seconds is None or (correcting and state.done >= state.total - self._finetune_epochs()):
            return
        left = self.task.seconds - context.elapsed_seconds
        affordable = int(left * state.done / context.elapsed_seconds)
        state.total = state.done + max(0 if state.done > 2 else 3 - state.done, affordable)
        if correcting:  # leave the share of fine-tuning for the correction epochs so far
            state.total = max(state.total, math.ceil(state.done / (1 - self.finetune)))

    def _is_memorising(self, context: Context) -> bool:
        """Return whether the held-out likelihood is falling; keep the best network, and set what the losses need.

        The likelihood is computed at the best temperature, so that it measures knowledge rather than confidence. A
        network no better than chance has not learned anything that memorising could spoil.
        """
        state, held_out = self.state, context.held_out()
        if held_out is None:
            return state.done >= max(1, round(BACKBONE_WITHOUT_HELD_OUT * state.total)) and state.done < state.total
        self._set_dropout(context, held_out)
        if self.form.is_chance(held_out):
            if state.early_learning_share is None:  # there is no early learning to hold on to yet
                state.early_learning_share = 0.0
            state.spread_noise = 0.0
            return False
        if self.pacing.early_learning:  # a memorising network disagrees more: the share may not fall
            state.early_learning_share = max(noise_share(held_out), state.early_learning_share or 0.0)
            state.spread_noise = spread_noise(held_out) if self.loss_correction else 0.0
        by_row = self.form.log_likelihoods(held_out, spread_noise_model(state.spread_noise, self.task.num_classes))
        self._keep_if_best(context, held_out, by_row)
        ended = (state.done - state.best_epoch >= self.patience and self._gain(by_row) < -1) or (
            state.done >= min(self.max_backbone, self.pacing.correct_from) * state.total
            and self.form.is_worth_correcting(held_out, self._progress())
        )
        return ended and state.done < state.total

    def _set_dropout(self, context: Context, held_out: HeldOut) -> None:
        """Use light dropout until, despite it, training labels are predicted clearly better than held-out labels."""
        state, rows, agreement = self.state, len(held_out[0]), self.form.agreement(*held_out)
        error = math.sqrt(agreement * (1 - agreement) / rows)
        state.overfitted |= context.train_accuracy > agreement + SIGNIFICANT * error
        state.dropout = 1.0 if state.overfitted or rows < MANY_HELD_OUT else LIGHT_DROPOUT

    def _keep_if_best(self, context: Context, held_out: HeldOut, by_row: Tensor) -> None:
        """Keep the network if held-out labels are more likely under it, or if it predicts clearly more of them.

        The likelihood of a few rows fluctuates by chance. A network that predicts more labels is therefore better,
        unless the labels are less likely by more than a standard error: then it is more confident in its mistakes.
        """
        state = self.state
        state.recent_likelihoods = [*state.recent_likelihoods, by_row][-1 - self.patience :]
        gain = self._gain(by_row)
        better = gain > 0
        if not better and state.best_logits is not None:
            better = gain > -1 and z_score(self.form.gains(held_out, state.best_logits)) > 1
        if better:
            state.best_likelihoods, state.best_epoch = by_row, state.done
            state.best_weights, state.best_logits = context.snapshot(), held_out[0]

    def _gain(self, by_row: Tensor) -> float:
        """Return the gain in held-out likelihood over the best network so far, in standard errors."""
        best = self.state.best_likelihoods
        return math.inf if best is None else z_score(by_row - best)

    def _progress(self) -> float:
        """Return the gain in held-out likelihood over the last ``patience`` epochs, in standard errors."""
        recent = self.state.recent_likelihoods
        return z_score(recent[-1] - recent[0]) if len(recent) > self.patience else math.inf

    def _leave_backbone(self, context: Context) -> None:
        state = self.state
        state.backbone_epochs = state.done
        if context.held_out() is None:
            self._note(f"backbone phase ended after epoch {state.done}: no held-out rows to choose the epoch")
        else:
            assert state.best_likelihoods is not None
            self._note(
                f"backbone phase ended after epoch {state.done}; network restored to epoch {state.best_epoch}, which "
                f"has the best held-out log-likelihood ({float(state.best_likelihoods.mean()):.3f} per row)"
            )
            context.restore_weights(state.best_weights)
        self.relabel(context)

    def _end_in_backbone(self, context: Context) -> None:
        """Training ended in the backbone phase: relabel if the network has learned anything."""
        state, held_out = self.state, context.held_out()
        if held_out is not None and state.best_logits is None:
            message = "held-out labels were never predicted better than chance"
            self._note(message)
            if state.done > self.patience and len(held_out[1]) >= ENOUGH_HELD_OUT:
                warn(message, MethodWarning)
        else:
            self._note(
                f"training ended in the backbone phase; best held-out log-likelihood at epoch {state.best_epoch}"
            )
            self.relabel(context)
        self._settle(context)

    def _settle(self, context: Context) -> None:
        """At the end: set every label to its posterior given the dynamics of all epochs, or leave all as given."""
        if not self.anchored:
            return
        if self.state.done < self.pacing.min_visits:
            context.restart_dynamics()
        judgement = context.judge()
        given = self.task.given_labels
        self._write_labels(
            lambda rows: self.form.as_logits(judgement.posterior(rows.cpu()).to(given.device), given[rows])
        )
        self.state.noise = self.form.noise_of(judgement)
        found = "judged by its training dynamics" if judgement.knows else "left as given"
        self._note(f"every label {found}")

    def _another_round_helps(self, context: Context) -> bool:
        """Return whether this round explains held-out labels significantly better than the state before it."""
        state, held_out = self.state, context.held_out()
        if state.round >= self.rounds or self.task.seconds is not None:
            return False
        if held_out is None or state.best_logits is None:  # there are no held-out rows, or they have changed
            return False
        assert state.noise is not None
        both = held_out[0], state.best_logits
        now, before = (self.form.log_likelihoods((logits, held_out[1]), state.noise) for logits in both)
        if z_score(now - before) <= SIGNIFICANT:
            self._note(f"no further round after round {state.round}: held-out labels are not explained better")
            return False
        self._note(f"another round after round {state.round}: held-out labels are explained better than before")
        state.best_weights, state.best_logits = context.snapshot(), held_out[0]
        return True

    def _undo_if_worse(self, context: Context) -> None:
        """At the end: return to the network before correction if it predicts held-out labels better."""
        state, held_out = self.state, context.held_out()
        if held_out is None or state.best_logits is None:
            return
        if z_score(self.form.gains(held_out, state.best_logits)) < -SIGNIFICANT:
            message = (
                "correction made predictions of held-out labels worse: the network returns to its state before "
                "correction, and labels to its posterior"
            )
            self._note(message)
            warn(message, MethodWarning)
            context.restore_weights(state.best_weights)
            context.restart_dynamics()
            self.relabel(context)

    # ---- what a run reports

    def metrics(self) -> dict[str, float]:
        noise, found = self.state.noise, {"spread_noise": self.state.spread_noise} if self.loss_correction else {}
        return found if noise is None else {**found, **self.form.calibration(noise), "trust": self.state.trust}

    def findings(self) -> dict[str, Any]:
        """The decisions in words, and the noise model."""
        found = {} if self.state.noise is None else self.form.findings(self.state.noise)
        return {"choices": list(self.state.choices), **found}

    def _note(self, choice: str) -> None:
        self.state.choices.append(choice)
