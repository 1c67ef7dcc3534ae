"""PENCIL: probabilistic end-to-end noise correction in labels (section 3)."""

import warnings
from functools import partial
from typing import Annotated, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from pencil.data.examples import Batch
from pencil.errors import RecipeError
from pencil.labels.forms import label_form
from pencil.labels.losses import Compatibility, NetworkLosses
from pencil.labels.multilabel_losses import Divergence
from pencil.labels.protocol import Labels
from pencil.labels.store import CHUNK
from pencil.methods.base import Context, Epochs, Method, NonNegative, Phase, Task, Terms
from pencil.methods.schedules import AnySchedule, Cosine, Schedule, as_schedule


class Unsaid(NamedTuple):
    """What holds where nothing is said."""

    step: float
    pull: float
    beta: float
    compatibility: Compatibility


DEFAULTS = {
    False: Unsaid(2.0, 0.0, 0.4, "published"),
    # Of several classes most are absent, and what is unsure leans towards absent: a label flips at 90 %, not at 50 %.
    True: Unsaid(1.0, 0.8, 0.0, "printed"),
}


class Pencil(Method):
    """Backbone learning, then PENCIL learning and fine-tuning, the last two ``rounds`` times (sections 3.7 and 3.9).

    How labels move is said in one of two ways: ``step`` and ``pull``, which mean the same at every batch size and class
    count, or the paper's ``label_lr`` (lambda) and ``alpha``, where ``step = label_lr / (B * c)`` and
    ``pull = alpha * c`` (``label_lr / B`` and ``alpha`` where an example may be of several classes). How sure the
    initial labels are is ``init_probability``, or the paper's ``init_scale`` (K). Each round starts from the given
    labels, as in the paper; with ``carry_labels`` from those that the round before it left (the R2-D2 way).
    """

    takes_multilabel = True
    by_row = True

    def __init__(
        self,
        *,
        backbone_epochs: Epochs = 5,
        correction_epochs: Epochs = 37,
        finetune_epochs: Epochs = 18,
        lr: Schedule = 0.02,  # type: ignore[assignment]
        correction_lr: Schedule | None = None,
        finetune_lr: Schedule = Cosine(0.02),
        step: Schedule | None = None,
        pull: NonNegative | None = None,
        label_lr: Schedule | None = None,
        alpha: NonNegative | None = None,
        beta: NonNegative | None = None,
        compatibility: Compatibility | None = None,
        divergence: Divergence = "inverse",
        init_probability: float | None = None,
        init_scale: float | None = None,
        class_mean: bool = True,
        rounds: Annotated[int, Field(ge=1)] = 1,
        round_factor: NonNegative = 1.0,
        carry_labels: bool = False,
    ):
        _exclusive("step", step, "label_lr", label_lr)
        _exclusive("pull", pull, "alpha", alpha)
        _exclusive("init_probability", init_probability, "init_scale", init_scale)
        self.backbone_epochs = backbone_epochs
        self.correction_epochs, self.finetune_epochs = correction_epochs, finetune_epochs
        self.lr: AnySchedule = as_schedule(lr)
        self.correction_lr: AnySchedule = self.lr if correction_lr is None else as_schedule(correction_lr)
        self.finetune_lr: AnySchedule = as_schedule(finetune_lr)
        self.step: AnySchedule | None = as_schedule(step)
        self.label_lr: AnySchedule | None = as_schedule(label_lr)
        self.pull, self.alpha, self.beta_given = pull, alpha, beta
        self.compatibility_given, self.divergence = compatibility, divergence
        self.init_probability, self.init_scale = init_probability, init_scale
        self.class_mean = class_mean
        self.rounds, self.round_factor, self.carry_labels = rounds, round_factor, carry_labels

    def start(self, task: Task) -> tuple[Phase, ...]:
        unsaid = DEFAULTS[task.multilabel]
        self.compatibility = unsaid.compatibility if self.compatibility_given is None else self.compatibility_given
        self.beta = unsaid.beta if self.beta_given is None else self.beta_given
        self.kind = label_form(
            task.multilabel, self.divergence, self.compatibility, self.init_probability, self.init_scale
        )
        per_lambda, per_alpha = self.kind.paper_factors(task.batch_size, task.num_classes)
        self.label_pull = unsaid.pull if self.pull is None else self.pull
        if self.alpha is not None:
            self.label_pull = self.alpha * per_alpha
        if self.compatibility == "printed" and self.label_pull >= 1:
            warnings.warn(
                f"pull is {self.label_pull:g} with the printed compatibility loss: no label distribution can change "
                "its maximum; corrected labels are read with the compatibility term taken out",
                stacklevel=2,
            )
        self.labels = task.layout.build(task.given_labels, partial(self._store, task))
        step: AnySchedule = as_schedule(unsaid.step) if self.step is None else self.step
        if self.label_lr is not None:
            step = self.label_lr.scaled(per_lambda)
        return (Phase("backbone", self.backbone_epochs, self.backbone_loss, self.lr), *self._rounds(step))

    def _store(self, task: Task, given_labels: Tensor, top_k: int | None) -> Labels:
        return self.kind.store(given_labels, task.num_classes, top_k=top_k, device=task.device, dtype=task.dtype)

    def _rounds(self, step: AnySchedule) -> tuple[Phase, ...]:
        """Correction and fine-tuning, again and again; labels start each round as given unless they are carried."""
        assert self.labels is not None
        phases: tuple[Phase, ...] = ()
        for number in range(self.rounds):
            factor = self.round_factor**number
            suffix = f" {number + 1}" if number else ""
            phases += (
                Phase(
                    "correction" + suffix,
                    self.correction_epochs,
                    self.correction_loss,
                    self.correction_lr.scaled(factor),
                    label_step=step.scaled(factor),
                    on_start=None if number and self.carry_labels else self._reset_labels,
                    after_step=self.correct_labels,
                ),
                Phase("finetune" + suffix, self.finetune_epochs, self.finetune_loss, self.finetune_lr.scaled(factor)),
            )
        return phases

    def _reset_labels(self, context: Context) -> None:
        assert self.labels is not None
        self.labels.reset()

    def backbone_loss(self, logits: Tensor, batch: Batch) -> Terms:
        """Eq. 1 on the given labels; at a high learning rate the network learns patterns before mistakes."""
        return Terms(self.kind.given_loss(logits, batch.given_labels))

    def correction_loss(self, logits: Tensor, batch: Batch) -> Terms:
        """``L_c / c + beta * L_e / c``; the labels' own part of the loss acts in :meth:`correct_labels`."""
        return self._network_terms(logits, batch, self.beta)

    def finetune_loss(self, logits: Tensor, batch: Batch) -> Terms:
        """``L_c / c`` on labels that no longer move."""
        return self._network_terms(logits, batch, beta=0.0)

    def correct_labels(self, carry: tuple[NetworkLosses, Tensor, Tensor], batch: Batch, label_step: float) -> None:
        """What :meth:`pencil.LabelStore.update` does, with the rows and probabilities that the loss has met already."""
        assert self.labels is not None
        losses, logits, label_logits = carry
        gradient = self.kind.label_gradient(losses, logits, label_logits, batch.given_labels, self.label_pull)
        self.labels.write(batch.rows, label_logits.sub_(gradient, alpha=label_step))

    def label_probs(self, rows: Tensor | None = None) -> Tensor:
        """The label distributions; a printed compatibility term so strong that no label could flip is taken out."""
        assert self.labels is not None
        holds_all = self.compatibility == "printed" and self.label_pull >= 1
        return self.labels.evidence(self.label_pull if holds_all else 0.0, rows)

    def metrics(self) -> dict[str, float]:
        assert self.labels is not None
        return {"loss_compatibility": float(self.labels.mean(self._compatibility()))}

    def _compatibility(self) -> Tensor:
        """L_o over the rows that are held here, piece by piece."""
        assert self.labels is not None
        local = self.labels.local
        given, total = local.given_labels, torch.zeros((), dtype=torch.float64)
        for rows in torch.arange(len(given), device=given.device).split(CHUNK):
            total += self.kind.compatibility_loss(local[rows], given[rows]).cpu().double() * len(rows)
        return total / max(1, len(given))

    def _network_terms(self, logits: Tensor, batch: Batch, beta: float) -> Terms:
        assert self.labels is not None
        label_logits = self.labels[batch.rows]
        losses = self.kind.network_losses(
            logits, label_logits, batch.given_labels, beta=beta, class_mean=self.class_mean
        )
        parts = {"classification": losses.classification, "entropy": losses.entropy}
        return Terms(losses.loss, parts, carry=(losses, logits.detach(), label_logits))


def _exclusive(ours: str, our_value: object, paper: str, paper_value: object) -> None:
    if our_value is not None and paper_value is not None:
        raise RecipeError(f"both {ours} and the paper's {paper} are given; they say the same thing; keep one.")
