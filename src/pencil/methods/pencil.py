"""PENCIL: probabilistic end-to-end noise correction in labels (section 3)."""

from typing import Annotated, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from pencil.data.examples import Batch
from pencil.errors import MethodWarning, RecipeError, warn
from pencil.labels.forms import label_form
from pencil.labels.losses import Compatibility, Divergence, NetworkLosses, is_held
from pencil.labels.rows import row_blocks
from pencil.methods.base import Context, Epochs, Method, NonNegative, Outputs, Phase, Requirements, Task, Terms
from pencil.methods.schedules import AnySchedule, Cosine, Schedule, as_schedule


class Defaults(NamedTuple):
    """Default values of arguments that are not set."""

    step: float
    pull: float
    beta: float
    compatibility: Compatibility


DEFAULTS = {
    False: Defaults(2.0, 0.0, 0.4, "published"),
    # Multi-label: most entries are absent, uncertain predictions lean towards absent: entries flip at 90 %, not 50 %.
    True: Defaults(1.0, 0.8, 0.0, "printed"),
}


class Pencil(Method):
    """Backbone learning, then PENCIL learning and fine-tuning; the last two run ``rounds`` times (sections 3.6 and
    3.8).

    Parameters
    ----------
    backbone_epochs, correction_epochs, finetune_epochs
        Length of the phases; correction is the paper's PENCIL learning.
    lr, correction_lr, finetune_lr
        Learning rate of each phase; correction uses ``lr`` unless ``correction_lr`` is set.
    step, pull
        How far labels follow the network in a step, and how strongly the given label holds them back. Their meaning
        does not depend on batch size or class count.
    label_lr, alpha
        The same in the paper's symbols (lambda and alpha): ``step = label_lr / (B * c)``, ``pull = alpha * c``; for
        multi-label data ``label_lr / B`` and ``alpha``. Set one pair or the other.
    beta
        Weight of the entropy loss L_e.
    compatibility
        ``"printed"``: L_o as in the paper; ``"published"``: as in the authors' code.
    divergence
        Direction of the KL divergence of L_c.
    init_probability, init_scale
        Probability of the given class in the initial label distribution, or the paper's K. Set one or the other.
    class_mean
        Divide L_c and L_e by the number of classes, as the paper does.
    rounds, round_factor
        How often correction and fine-tuning run, and the factor on both rates from one round to the next.
    carry_labels
        Start further rounds from the corrected labels (as R2-D2 does) instead of the given ones.
    """

    requirements = Requirements(multilabel=True, row_losses=True, label_store=True)

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
        defaults = DEFAULTS[task.multilabel]
        self.compatibility = defaults.compatibility if self.compatibility_given is None else self.compatibility_given
        self.beta = defaults.beta if self.beta_given is None else self.beta_given
        self.form = label_form(
            task.multilabel, self.divergence, self.compatibility, self.init_probability, self.init_scale
        )
        per_lambda, per_alpha = self.form.paper_factors(task.batch_size, task.num_classes)
        self.label_pull = defaults.pull if self.pull is None else self.pull
        if self.alpha is not None:
            self.label_pull = self.alpha * per_alpha
        printed = (
            self.compatibility == "printed"
        )  # published and multi-label: not before a pull of 3.2, never that high
        self._held = is_held(self.label_pull, self.compatibility) and (printed or not task.multilabel)
        if self._held:
            warn(
                f"pull is {self.label_pull:g} with the {self.compatibility} compatibility loss: no label "
                "distribution can change its maximum; corrected labels are read with the compatibility term removed",
                MethodWarning,
            )
        self.labels = task.new_labels(self.form)
        step: AnySchedule = as_schedule(defaults.step) if self.step is None else self.step
        if self.label_lr is not None:
            step = self.label_lr.scaled(per_lambda)
        return (Phase("backbone", self.backbone_epochs, self.backbone_loss, self.lr), *self._rounds(step))

    def _rounds(self, step: AnySchedule) -> tuple[Phase, ...]:
        """Correction and fine-tuning, ``rounds`` times; labels are reset before each round unless they are carried."""
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

    def _reset_labels(self, _context: Context) -> None:
        assert self.labels is not None
        self.labels.reset()

    def backbone_loss(self, outputs: Outputs, batch: Batch) -> Terms:
        """Eq. 1 on the given labels; at a high learning rate the network learns patterns before mistakes."""
        return Terms(self.form.given_loss(outputs.logits, batch.given_labels))

    def correction_loss(self, outputs: Outputs, batch: Batch) -> Terms:
        """``L_c / c + beta * L_e / c``; :meth:`correct_labels` applies the labels' own part of the loss."""
        return self._network_terms(outputs.logits, batch, self.beta)

    def finetune_loss(self, outputs: Outputs, batch: Batch) -> Terms:
        """``L_c / c`` on fixed labels."""
        return self._network_terms(outputs.logits, batch, beta=0.0)

    def correct_labels(self, carry: tuple[NetworkLosses, Tensor, Tensor], batch: Batch, label_step: float) -> None:
        """Move labels like :meth:`pencil.LabelStore.update`, using the probabilities computed for the loss."""
        assert self.labels is not None
        losses, logits, label_logits = carry
        gradient = self.form.label_gradient(losses, logits, label_logits, batch.given_labels, self.label_pull)
        self.labels.write(batch.rows, label_logits.sub_(gradient, alpha=label_step))

    def label_probs(self, rows: Tensor | None = None) -> Tensor:
        """The label distributions; without the compatibility term if it is so strong that no label could change."""
        assert self.labels is not None
        return self.labels.evidence(self.label_pull if self._held else 0.0, rows, self.compatibility)

    def metrics(self) -> dict[str, float]:
        assert self.labels is not None
        return {"loss_compatibility": float(self.labels.mean(self._compatibility()))}

    def _compatibility(self) -> Tensor:
        """Mean L_o over the rows of this process, in chunks."""
        assert self.labels is not None
        local = self.labels.local
        given, total = local.given_labels, torch.zeros((), dtype=torch.float64)
        for places in row_blocks(len(given), local.num_classes):
            rows = places.to(given.device)
            total += self.form.compatibility_loss(local[rows], given[rows]).cpu().double() * len(rows)
        return total / max(1, len(given))

    def _network_terms(self, logits: Tensor, batch: Batch, beta: float) -> Terms:
        assert self.labels is not None
        label_logits = self.labels[batch.rows]
        losses = self.form.network_losses(
            logits, label_logits, batch.given_labels, beta=beta, class_mean=self.class_mean
        )
        parts = {"classification": losses.classification, "entropy": losses.entropy}
        return Terms(losses.loss, parts, carry=(losses, logits.detach(), label_logits))


def _exclusive(ours: str, our_value: object, paper: str, paper_value: object) -> None:
    if our_value is not None and paper_value is not None:
        raise RecipeError(f"both {ours} and the paper's {paper} are set; they mean the same; remove one.")
