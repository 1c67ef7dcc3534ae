"""DivideMix (Li, Socher and Hoi, ICLR 2020)."""

import warnings
from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from pencil.data.examples import Batch
from pencil.data.given.given_labels import as_distribution
from pencil.labels.losses import at_least_fp32, cross_entropy, entropy_loss, log_probs
from pencil.methods.base import (
    Context,
    Epochs,
    Fraction,
    Method,
    Mixing,
    NonNegative,
    Outputs,
    Phase,
    Requirements,
    Task,
    Terms,
    Views,
)
from pencil.methods.joint_optimization import prior_loss
from pencil.methods.schedules import AnySchedule, Constant, Cosine, Schedule, as_schedule

VIEWS = 2
"""Number of augmentations per row over which predictions are averaged (their M)."""


def clean_probs(row_losses: Tensor) -> Tensor:
    """Return the probability that each label is clean (co-divide, section 3.1).

    This is the probability of the component with the smaller mean, in a mixture of two Gaussians fitted to the losses
    with the settings of the authors' code; losses are scaled to between 0 and 1. If all losses are equal there is
    nothing to divide, and all labels count as clean.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.mixture import GaussianMixture

    losses = row_losses.double().cpu().numpy()
    low, high = losses.min(), losses.max()
    if high - low < np.finfo(np.float32).eps:
        return torch.ones_like(row_losses)
    scaled = ((losses - low) / (high - low)).reshape(-1, 1)
    mixture = GaussianMixture(n_components=2, max_iter=10, tol=1e-2, reg_covar=5e-4, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # ten iterations are the published limit
        probs = mixture.fit(scaled).predict_proba(scaled)
    return torch.from_numpy(probs[:, mixture.means_.argmin()]).to(row_losses)


def sharpen(probs: Tensor, temperature: float) -> Tensor:
    """``p ** (1 / T)``, scaled to sum to one (section 3.2)."""
    return log_probs(probs.clamp(min=torch.finfo(probs.dtype).tiny).log() / temperature).exp()


def refined_labels(given_probs: Tensor, clean: Tensor, own_probs: Tensor, temperature: float) -> Tensor:
    """Co-refinement of labelled rows: ``w * y + (1 - w) * p``, sharpened; w is from the other network (section 3.2)."""
    weight = clean[:, None]
    return sharpen(weight * given_probs + (1 - weight) * own_probs, temperature)


class MixMatchLosses(NamedTuple):
    """Cross-entropy of labelled rows, squared error of unlabelled rows, and ``KL(uniform || mean f)`` of all rows."""

    labelled: Tensor
    unlabelled: Tensor
    prior: Tensor


def mixmatch_losses(logits: Tensor, targets: Tensor, labelled: Tensor, mixing: Mixing) -> MixMatchLosses:
    """Return the losses of mixed rows: L_X, L_U and L_reg of section 3.2.

    ``targets`` are refined or guessed labels of the rows before mixing, and are mixed like the inputs; a mixed row
    belongs to the set, ``labelled`` or not, of the row with the larger weight.
    """
    log_f, mixed = log_probs(logits), mixing(targets)
    row_losses = -(mixed * log_f).sum(dim=1)
    row_errors = (log_f.exp() - mixed).square().mean(dim=1)
    uniform = torch.full_like(log_f[0], 1 / log_f.shape[1])
    return MixMatchLosses(_mean_of(row_losses, labelled), _mean_of(row_errors, ~labelled), prior_loss(logits, uniform))


def _mean_of(values: Tensor, chosen: Tensor) -> Tensor:
    """The mean over the chosen rows; zero if there are none."""
    return (values * chosen).sum() / chosen.sum().clamp(min=1)


@dataclass
class DivideMixState:
    """Both networks' view of the labels.

    ``clean`` (2, n) is the probability of a clean label according to the losses of each network. ``refined`` (n,
    classes) is the mean of both networks' last targets, initially the given labels. ``unlabelled_weight`` is this
    epoch's lambda_u.
    """

    clean: Tensor
    refined: Tensor
    unlabelled_weight: float = 0.0


class DivideMix(Method):
    """Two networks; each splits the rows by its losses for the other, which discards the labels of the noisy part.

    Before every epoch a mixture of two Gaussians is fitted to the losses of each network. Labels that the other
    network's mixture considers clean are refined by the network's own prediction; all others are replaced by both
    networks' predictions. Both kinds are mixed with each other and trained on (MixMatch). The first network is kept;
    the published method evaluates the mean of both. Both networks train on every batch, which is split on the fly.

    Parameters
    ----------
    warmup_epochs, warmup_lr
        Length and learning rate of the warm-up: cross-entropy on the given labels.
    epochs, lr
        Length and learning rate of the phase after the warm-up.
    confidence_penalty
        Subtract the entropy of predictions from the warm-up loss. The authors do so for asymmetric noise, which they
        know in advance.
    threshold
        A label is trained on as labelled if its probability of being clean is higher.
    temperature
        Sharpens refined and guessed labels.
    mixup
        The parameter alpha of mixup.
    unlabelled_weight
        Their lambda_u: 25 for most noises on CIFAR-10, 0 for asymmetric noise and few wrong labels.
    ramp
        The fraction of the epochs over which this weight rises from zero; 16 epochs in the paper.
    """

    requirements = Requirements(networks=2, label_arrays=3)
    state: DivideMixState
    row_state: ClassVar = {"clean": 1, "refined": 0}

    def __init__(
        self,
        *,
        warmup_epochs: Epochs = 10,
        epochs: Epochs = 50,
        warmup_lr: Schedule = Constant(0.02),
        lr: Schedule = Cosine(0.02),
        confidence_penalty: bool = False,
        threshold: Fraction = 0.5,
        temperature: Annotated[float, Field(gt=0)] = 0.5,
        mixup: Annotated[float, Field(gt=0)] = 4.0,
        unlabelled_weight: NonNegative = 25.0,
        ramp: Fraction = 0.3,
    ):
        self.warmup_epochs, self.epochs, self.confidence_penalty = warmup_epochs, epochs, confidence_penalty
        self.threshold, self.temperature, self.mixup = threshold, temperature, mixup
        self.unlabelled_weight, self.ramp = unlabelled_weight, ramp
        self.warmup_lr: AnySchedule = as_schedule(warmup_lr)
        self.lr: AnySchedule = as_schedule(lr)

    def start(self, task: Task) -> tuple[Phase, ...]:
        self.given_probs = as_distribution(task.given_labels, task.num_classes).to(task.device, task.dtype)
        clean = torch.ones(2, len(self.given_probs), dtype=task.dtype, device=task.device)
        self.state = DivideMixState(clean, self.given_probs.clone())
        views = Views(second="weak", mixup=self.mixup)
        return (
            Phase("warm-up", self.warmup_epochs, self.warmup_loss, self.warmup_lr),
            Phase(
                "divide", self.epochs, self.loss, self.lr,
                before_epoch=self.divide, after_step=self.store_labels, views=views,
            ),
        )  # fmt: skip

    def warmup_loss(self, outputs: Outputs, batch: Batch) -> Terms:
        """Cross-entropy of both networks, minus the entropy of predictions if requested (section 3.1)."""
        losses = [cross_entropy(logits, batch.given_labels) for logits in (outputs.logits, *outputs.others)]
        parts = {"first": losses[0].detach(), "second": losses[1].detach()}
        if self.confidence_penalty:
            losses += [-entropy_loss(logits) for logits in (outputs.logits, *outputs.others)]
        return Terms(torch.stack(losses).sum(), parts)

    def divide(self, epoch: int, epochs: int, context: Context) -> None:
        """Co-divide: fit a mixture to the losses of each network on all rows; set this epoch's lambda_u."""
        for network in range(2):
            logits = context.predict(network=network)
            seen = ~logits[:, 0].isnan()  # NaN: the input could not be read
            losses = functional.cross_entropy(logits[seen], self.given_probs[seen].to(logits), reduction="none")
            self.state.clean[network, seen] = clean_probs(losses).to(self.state.clean)
        ramp_epochs = self.ramp * epochs
        self.state.unlabelled_weight = self.unlabelled_weight * (min(1.0, epoch / ramp_epochs) if ramp_epochs else 1.0)

    def loss(self, outputs: Outputs, batch: Batch) -> Terms:
        """The sum of both networks' MixMatch losses; their mean targets are carried to :meth:`store_labels`."""
        probs = [at_least_fp32(logits).softmax(dim=1) for logits in outputs.plain_logits]
        own_probs = [torch.stack(one.tensor_split(VIEWS)).mean(dim=0).to(self.given_probs) for one in probs]
        guessed = sharpen(torch.stack(own_probs).mean(dim=0), self.temperature)
        given_probs = self.given_probs[batch.rows]
        found, targets = list[MixMatchLosses](), list[Tensor]()
        for network, logits in enumerate((outputs.logits, *outputs.others)):
            clean = self.state.clean[1 - network, batch.rows]
            labelled = clean > self.threshold
            refined = refined_labels(given_probs, clean, own_probs[network], self.temperature)
            targets.append(torch.where(labelled[:, None], refined, guessed))
            mixing = outputs.mixings[network]
            found.append(mixmatch_losses(logits, targets[-1].repeat(VIEWS, 1), labelled.repeat(VIEWS), mixing))
        terms = [torch.stack(values).sum() for values in zip(*found, strict=True)]
        parts = dict(zip(MixMatchLosses._fields, (term.detach() for term in terms), strict=True))
        loss = terms[0] + self.state.unlabelled_weight * terms[1] + terms[2]
        return Terms(loss, parts, carry=torch.stack(targets).mean(dim=0))

    def store_labels(self, targets: Tensor, batch: Batch, _label_step: float) -> None:
        """Store the mean of both networks' targets of these rows."""
        self.state.refined[batch.rows] = targets.to(self.state.refined)

    def label_probs(self, rows: Tensor | None = None) -> Tensor:
        """Refined and guessed labels of the last epoch, averaged over both networks; given labels in the warm-up."""
        return self.state.refined if rows is None else self.state.refined[rows]

    def metrics(self) -> dict[str, float]:
        """The fraction of rows with labels that the first network trains on."""
        return {"labelled_fraction": float((self.state.clean[1] > self.threshold).double().mean())}
