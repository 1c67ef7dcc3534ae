"""What a method is: phases as data, its requirements to the trainer, and the information it may use."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal, Protocol

import torch
from pydantic import Field
from torch import Tensor

from pencil.data.examples import Batch
from pencil.errors import RecipeError
from pencil.labels.forms import LabelForm
from pencil.labels.judging import Judgement
from pencil.labels.protocol import Labels
from pencil.labels.sharded import REPLICATED, LabelLayout
from pencil.methods.schedules import AnySchedule, Constant
from pencil.methods.state import load_state, state_tree
from pencil.terminal import agreed, counted

Epochs = Annotated[int, Field(ge=0)]
NonNegative = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]


@dataclass(frozen=True)
class Requirements:
    """What a method requires from the trainer, declared once.

    Parameters
    ----------
    networks
        Number of networks that are trained side by side. The first one is evaluated and kept.
    ema
        Evaluate and keep an exponential moving average of the first network's weights. Every further network has one
        too.
    ema_epochs
        The memory of this average in epochs.
    ema_logits
        The averaged networks also predict every training batch: ``Outputs.ema_logits``, ``Outputs.ema_others``.
    dropout
        Add dropout to a multi-layer perceptron that has none.
    held_out_rows
        Number of held-out rows that the method needs for its decisions. Small datasets hold out this many rows (at most
        30 %) unless ``data.validation`` is set.
    min_held_out_rows
        Minimum number of held-out rows; the method cannot run with fewer.
    row_losses
        The loss is a mean of independent row losses. With sharded labels a process then needs only its own rows.
    multilabel
        The method can train on multi-label data.
    wall_clock
        The method can plan its epochs for a time budget (``training.minutes``).
    label_arrays
        Number of arrays with one number per row and class that the method keeps, including the label store. The trainer
        checks that they fit into memory before they are allocated.
    label_store
        One of these arrays is the label store of ``Task.layout``, which ``training.label_top_k`` makes smaller.
    transition_matrix
        The method needs the true transition matrix of the noise by definition. Tables mark it with a star.
    """

    networks: int = 1
    ema: bool = False
    ema_epochs: float = 1.0
    ema_logits: bool = False
    dropout: bool = False
    held_out_rows: int = 0
    min_held_out_rows: int = 0
    row_losses: bool = False
    multilabel: bool = False
    wall_clock: bool = False
    label_arrays: int = 1
    label_store: bool = False
    transition_matrix: bool = False

    def __post_init__(self) -> None:
        if self.networks < 1 or self.held_out_rows < 0:
            raise ValueError(
                f"networks is {self.networks} and held_out_rows {self.held_out_rows}; expected at least 1 and 0"
            )
        if self.ema_logits and not self.ema:
            raise ValueError("ema_logits needs ema=True: there is no averaged network to predict with")
        if self.row_losses and (self.networks > 1 or self.ema_logits):
            raise ValueError("row_losses is for one network without ema_logits; remove row_losses")


@dataclass(frozen=True)
class Task:
    """Everything that a method knows about its job. Clean labels and the true noise rate are not part of it.

    Parameters
    ----------
    given_labels
        Class indices ``(n,)``, or probabilities ``(n, classes)``.
    num_classes, batch_size, device
        As in the training settings.
    multilabel
        An example may have several classes.
    dtype
        Dtype of the label store: fp32 under mixed precision too, fp64 with an fp64 network.
    layout
        How label rows are stored: replicated or sharded, dense or top-k.
    epochs, seconds
        The budget, if there is one.
    """

    given_labels: Tensor
    num_classes: int
    batch_size: int
    device: torch.device
    multilabel: bool = False
    dtype: torch.dtype = torch.float32
    layout: LabelLayout = REPLICATED
    epochs: int | None = None
    seconds: float | None = None

    def new_labels(self, form: LabelForm) -> Labels:
        """Return a new store of the learnable labels of all rows, stored and pinned as the run requires."""

        def store(given: Tensor, top_k: int | None) -> Labels:
            return form.store(given, self.num_classes, top_k=top_k, device=self.device, dtype=self.dtype)

        return self.layout.build(self.given_labels, store)


@dataclass(frozen=True)
class Views:
    """The views in which the networks see the rows of a batch; by default one view, augmented as in the recipe.

    Parameters
    ----------
    second
        The kind of a second view: "weak" is another draw of the same augmentation; "strong" is
        :meth:`pencil.data.inputs.augment.Augmentation.strong` beside the weak first view. Images that do not support
        strong augmentation have two weak views. Without augmentation (vectors, features) both views are equal.
    mixup
        The parameter alpha of mixup (Zhang et al. 2018); 0 disables it. Each network trains on inputs that are mixed
        with inputs of other rows: ``Outputs.mixings``.
    """

    second: Literal["weak", "strong"] | None = None
    mixup: float = 0.0

    @property
    def count(self) -> int:
        """The number of views of each row."""
        return 1 if self.second is None else 2


ONE_VIEW = Views()


@dataclass(frozen=True)
class Mixing:
    """``weight * x + (1 - weight) * x[partners]``: how the inputs of a batch were mixed; the weight is at least 1/2."""

    weight: float
    partners: Tensor

    def __call__(self, values: Tensor) -> Tensor:
        """Return labels or inputs of the batch, mixed in the same way."""
        return self.weight * values + (1 - self.weight) * values[self.partners]


@dataclass(frozen=True)
class Outputs:
    """The networks' predictions for a batch of training rows.

    In a phase with two views, all logits have twice as many rows: first view, then second view.

    Parameters
    ----------
    logits
        Logits of the first network, which is evaluated and kept.
    others
        Logits of the further networks, if ``Requirements.networks`` asks for more than one.
    ema_logits, ema_others
        Logits of the averaged networks, without gradient, for unmixed inputs; only if ``Requirements.ema_logits`` asks
        for them.
    mixings
        How the inputs of each network were mixed, in phases with mixup.
    plain_logits
        Logits of every network in evaluation mode for unmixed inputs, without gradient; in phases with mixup, if there
        are no averaged networks that predict.
    """

    logits: Tensor
    others: tuple[Tensor, ...] = ()
    ema_logits: Tensor | None = None
    ema_others: tuple[Tensor, ...] = ()
    mixings: tuple[Mixing, ...] = ()
    plain_logits: tuple[Tensor, ...] = ()

    def of_rows(self, rows: int) -> Tensor:
        """Return the predictions for the rows of the batch, unmixed, in the first view."""
        if not self.mixings:
            return self.logits[:rows]
        return (self.plain_logits[0] if self.ema_logits is None else self.ema_logits)[:rows]


@dataclass(frozen=True)
class Terms:
    """A loss to minimise, its named parts for the metrics, and values for ``Phase.after_step``.

    ``carry`` is passed unchanged to ``after_step``, so that nothing is computed twice.
    """

    loss: Tensor
    parts: Mapping[str, Tensor] = field(default_factory=dict)
    carry: Any = None


Loss = Callable[[Outputs, Batch], Terms]
AfterStep = Callable[[Any, Batch, float], None]


class Context(Protocol):
    """What the hooks of a method may ask the trainer for. Test rows and clean labels are not part of it."""

    def predict(self, *, best: bool = False, network: int = 0) -> Tensor:
        """Return logits of all training rows, without augmentation, from the current or the best-validation network.

        ``network`` is the number of a further network; their best weights are not kept.
        """

    @property
    def validation_accuracy(self) -> float | None:
        """Agreement with the (noisy) held-out labels after the last epoch; None without held-out rows."""

    @property
    def train_accuracy(self) -> float:
        """Agreement with the given labels of the training rows during the last epoch."""

    @property
    def elapsed_seconds(self) -> float:
        """Training time so far."""

    def restart_dynamics(self) -> None:
        """Reset the training dynamics, and record one visit of every row with the current network."""

    def judge(self) -> Judgement:
        """Return the judgement of all rows, given their training dynamics so far."""

    def held_out(self) -> tuple[Tensor, Tensor] | None:
        """Return logits and (noisy) given labels of the held-out rows; None without held-out rows."""

    def snapshot(self) -> list[Tensor]:
        """Return a copy of the weights of the evaluated network, and of further networks."""

    def restore_weights(self, weights: list[Tensor]) -> None:
        """Continue from the weights of a snapshot; the optimizer state is reset."""


NO_LABEL_STEP = Constant(0.0)


@dataclass(frozen=True)
class Phase:
    """A stretch of training with its loss, number of epochs, learning rate and label step.

    Parameters
    ----------
    name, epochs, loss, lr
        Required. ``loss(outputs, batch)`` returns :class:`Terms`; ``lr`` is a schedule.
    label_step
        Schedule of the value passed to ``after_step``.
    on_start
        Called with the :class:`Context` before the first epoch.
    before_epoch
        ``before_epoch(epoch, epochs, context)`` before each epoch; ``epochs`` is the phase's length within the budget.
    after_step
        ``after_step(carry, batch, label_step)`` after every optimizer step; labels move here.
    rows
        Returns the training rows of an epoch; all rows by default.
    fresh_network
        Start the phase with newly initialised networks. ``on_start`` is called before they are replaced.
    views
        Two views of every row, or inputs mixed with other rows; by default neither. Not available to methods that
        declare ``row_losses``.
    dropout
        Dropout strength, from 0 to 1, for a method that requires dropout.
    """

    name: str
    epochs: int
    loss: Loss
    lr: AnySchedule
    label_step: AnySchedule = NO_LABEL_STEP
    on_start: Callable[[Context], None] | None = None
    before_epoch: Callable[[int, int, Context], None] | None = None
    after_step: AfterStep | None = None
    rows: Callable[[], Tensor | None] | None = None
    fresh_network: bool = False
    views: Views = ONE_VIEW
    dropout: float = 1.0

    def stretched(self, epochs: int) -> "Phase":
        """Return the same phase with another number of epochs; its schedules are stretched accordingly."""
        ratio = epochs / self.epochs if self.epochs else 1.0
        return replace(self, epochs=epochs, lr=self.lr.stretched(ratio), label_step=self.label_step.stretched(ratio))


class Method(ABC):
    """Base of every method. A subclass returns its phases from :meth:`start`; everything else has a default.

    ``requirements`` declares what the method requires from the trainer. ``state`` is a dataclass with everything that
    training changes, set in :meth:`start` and saved with every checkpoint. A method that learns labels keeps them in
    ``labels`` and returns them from :meth:`label_probs`; for other methods the network's predictions on the training
    rows are used instead.

    ``row_state`` names the fields of ``state`` with one value per training row, and the dimension of the rows. If rows
    were added or removed before a run is resumed, these fields are matched by key. A method that has state but does not
    declare it cannot be resumed with changed rows.
    """

    requirements: Requirements = Requirements()
    labels: Labels | None = None
    state: Any = None
    row_state: ClassVar[Mapping[str, int] | None] = None

    @abstractmethod
    def start(self, task: Task) -> tuple[Phase, ...]:
        """Prepare for a task and return the phases. Called again, with the same task, before a run is resumed."""

    def label_probs(self, rows: Tensor | None = None) -> Tensor | None:
        """Return the corrected label distributions of these rows (all by default); None if the method has none.

        With sharded labels, rows are local positions.
        """
        return None if self.labels is None else self.labels.evidence(0.0, rows)

    def issue_scores(self) -> Tensor | None:
        """Return the probability that each given label is wrong; None uses the training dynamics."""
        return None

    def metrics(self) -> dict[str, float]:
        """Return additional metrics of the epoch that just ended."""
        return {}

    def on_epoch_end(self, context: Context) -> None:  # noqa: B027 - most methods have nothing to decide
        """Observe held-out rows and decide; called after every epoch."""

    def on_rows_changed(self) -> None:  # noqa: B027 - most methods keep no other values per row
        """Discard what was computed from rows that have changed; called after a resume with changed rows.

        ``row_state`` and labels are already matched: rows that stayed keep their values; new rows have the values that
        :meth:`start` set, or zeros in tensors that it did not set.
        """

    def plan(self) -> tuple[Phase, ...] | None:
        """Return all phases, including past ones, as decided so far; None keeps the phases of :meth:`start`.

        Called after every epoch and after a resume.
        """
        return None

    def findings(self) -> dict[str, Any]:
        """Return what the method estimated and decided, as plain values for the run's summary."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return ``state`` and labels as a tree of tensors and plain values."""
        tree: dict[str, Any] = {"state": state_tree(self.state)}
        if self.labels is not None and self.labels.local_rows is None:  # each process saves its own shard of labels
            tree["labels"] = self.labels.state_dict()
        return tree

    def load_state_dict(self, tree: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned, after :meth:`start` was called with the same task."""
        if self.labels is not None:
            self.labels.load_state_dict(tree["labels"])
        self.state = load_state(self.state, tree["state"])


def fit_budget(phases: tuple[Phase, ...], epochs: int) -> tuple[Phase, ...]:
    """Return the same phases with ``epochs`` epochs in total: at least one each, the rest in proportion."""
    phases = tuple(phase for phase in phases if phase.epochs > 0)
    if epochs < len(phases):
        names = ", ".join(phase.name for phase in phases)
        raise RecipeError(
            f"{counted(epochs, 'epoch')} {agreed(epochs, 'is', 'are')} too few for {len(phases)} phases {names}; "
            f"set at least {len(phases)}."
        )
    total = sum(phase.epochs for phase in phases)
    exact = [max(1.0, phase.epochs * epochs / total) for phase in phases]
    counts = [int(length) for length in exact]
    while sum(counts) != epochs:  # largest remainder first; the longest phase gives back what the minimum took
        short = sum(counts) < epochs
        error = [length - count for length, count in zip(exact, counts, strict=True)]
        chosen = error.index(max(error)) if short else counts.index(max(counts))
        counts[chosen] += 1 if short else -1
    return tuple(phase.stretched(count) for phase, count in zip(phases, counts, strict=True))
