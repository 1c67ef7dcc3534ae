"""What a method is: phases as data, and the few things it may know."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Protocol

import torch
from pydantic import Field
from torch import Tensor

from pencil.data.examples import Batch
from pencil.errors import RecipeError
from pencil.labels.protocol import Labels
from pencil.labels.sharded import REPLICATED, LabelLayout
from pencil.methods.schedules import AnySchedule, Constant


@dataclass(frozen=True)
class Task:
    """All that a method learns about its job: neither clean labels nor a noise rate are in it."""

    given_labels: Tensor
    num_classes: int
    batch_size: int
    device: torch.device
    multilabel: bool = False
    dtype: torch.dtype = torch.float32  # of the label store: fp32 under mixed precision too, fp64 with an fp64 network
    layout: LabelLayout = REPLICATED
    epochs: int | None = None
    """The budget, where one is given: in epochs, or in seconds."""
    seconds: float | None = None


@dataclass(frozen=True)
class Terms:
    """A loss to minimise, the named parts of it that are worth a line in the metrics, and what the step may need again.

    ``carry`` goes to the phase's ``after_step`` as it is, so that nothing has to be computed twice.
    """

    loss: Tensor
    parts: Mapping[str, Tensor] = field(default_factory=dict)
    carry: Any = None


NEVER = Constant(0.0)

Epochs = Annotated[int, Field(ge=0)]
NonNegative = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]

Loss = Callable[[Any, Batch], Terms]
AfterStep = Callable[[Any, Batch, float], None]


class Context(Protocol):
    """What the hooks of a phase may ask of the trainer. Test rows and clean labels are not among it."""

    def predict(self, *, best: bool = False) -> Tensor:
        """Logits of all training rows, not augmented, by the network as it is or as at its best validation epoch."""

    @property
    def validation_accuracy(self) -> float | None:
        """Agreement with the (noisy) validation labels after the last epoch, where there is such a split."""

    @property
    def train_accuracy(self) -> float:
        """Agreement with the given labels of the training rows as the last epoch met them."""

    @property
    def seconds(self) -> float:
        """How long training has taken so far."""

    def held_out(self) -> tuple[Tensor, Tensor] | None:
        """What the network says about the validation rows, and their (noisy) labels, where there is such a split."""

    def snapshot(self) -> list[Tensor]:
        """The weights of the network that is evaluated and kept, as they are now."""

    def put_back(self, weights: list[Tensor]) -> None:
        """Go back to the weights of a snapshot; the optimizer forgets its momentum."""


@dataclass(frozen=True)
class Phase:
    """A stretch of training: which loss, for how long, at which learning rate and label step.

    ``on_start`` is called before the first epoch, ``before_epoch(epoch, epochs, context)`` before each one, with the
    phase's length as the budget made it, ``after_step(carry, batch, label_step)`` after every optimizer step with what
    the loss carried over. ``rows`` says which training rows an epoch visits (all by default). ``fresh`` begins the
    phase with a newly initialised network; ``on_start`` still meets the one before it.
    """

    name: str
    epochs: int
    loss: Loss
    lr: AnySchedule
    label_step: AnySchedule = NEVER
    on_start: Callable[[Context], None] | None = None
    before_epoch: Callable[[int, int, Context], None] | None = None
    after_step: AfterStep | None = None
    rows: Callable[[], Tensor | None] | None = None
    fresh: bool = False

    def stretched(self, epochs: int) -> "Phase":
        """The same phase over another number of epochs, its schedules keeping their course."""
        ratio = epochs / self.epochs if self.epochs else 1.0
        return replace(self, epochs=epochs, lr=self.lr.stretched(ratio), label_step=self.label_step.stretched(ratio))


class Method(ABC):
    """Base of every method. A subclass says its phases in :meth:`start`; the rest has defaults.

    A method that learns labels keeps them in ``labels`` and reads them out in :meth:`label_probs`; for one that does
    not, the network's predictions on the training rows stand for them.
    """

    labels: Labels | None = None
    takes_multilabel: ClassVar[bool] = False
    """Whether it can train where an example may be of several classes at once."""
    by_row: bool = False
    """Whether its loss is a mean over rows, each by itself: then a process needs to see its own rows only."""
    networks: int = 1
    """How many networks it trains side by side. With more than one, losses get a tuple of logits; the first is kept."""
    looks: int = 0
    """About how many views of a batch the averaged network is asked: its logits come after those that are trained."""
    mixup: float = 0.0
    """Where not zero, rows are mixed by shares of Beta(mixup, mixup); a batch then knows its partners and the share."""
    takes_minutes: ClassVar[bool] = False
    """Whether it can plan its epochs by the clock."""
    averages: bool = False
    """Whether the network that is evaluated and kept is the mean of the trained one's weights over an epoch."""
    telling: ClassVar[int] = 0
    """How many held-out rows it would like to decide by: so many are held out where no share is asked for."""
    needs_transition: ClassVar[bool] = False
    """Whether its definition needs the true noise transition matrix: marked with a star in every table."""

    remembered: ClassVar[tuple[str, ...]] = ()
    """Names of attributes that training changes, besides ``labels``: numbers, tensors, or sequences of tensors."""

    @abstractmethod
    def start(self, task: Task) -> tuple[Phase, ...]:
        """Get ready for a task and say what to do."""

    def label_probs(self, rows: Tensor | None = None) -> Tensor | None:
        """The corrected label distributions of these rows (all by default), or None where the method keeps none.

        Where labels are dealt out over processes, rows count among those that are held here.
        """
        return None if self.labels is None else self.labels.evidence(0.0, rows)

    def metrics(self) -> dict[str, float]:
        """Further numbers for the metrics of the epoch that just ended."""
        return {}

    def watch(self, context: Context) -> bool:
        """Called after every epoch; true where :meth:`plan` says something else from now on."""
        return False

    def plan(self) -> tuple[Phase, ...] | None:
        """All phases, those that are done first, as training has shown them to be best; None: as they began."""
        return None

    def findings(self) -> dict[str, Any]:
        """What the method has found out and decided, for people to read; plain values for the run's summary."""
        return {}

    def state(self) -> dict[str, Any]:
        """What the rest of training hangs on, once :meth:`start` has been called as before."""
        learned = {name: getattr(self, name, None) for name in self.remembered}
        learned = {name: list(value) if isinstance(value, deque) else value for name, value in learned.items()}
        if self.labels is None or self.labels.local_rows is not None:  # what is not whole here, each process saves
            return learned
        return {**learned, "labels": self.labels.state_dict()}

    def restore(self, state: dict[str, Any]) -> None:
        if self.labels is not None:
            self.labels.load_state_dict(state["labels"])
        for name in self.remembered:
            current, value = getattr(self, name, None), state[name]
            if isinstance(current, deque):
                value = deque(value, maxlen=current.maxlen)
            setattr(self, name, value)


def fit_budget(phases: tuple[Phase, ...], epochs: int) -> tuple[Phase, ...]:
    """The same phases in as many epochs altogether: one for each, the others shared out as the phases' lengths are."""
    phases = tuple(phase for phase in phases if phase.epochs > 0)
    if epochs < len(phases):
        names = ", ".join(phase.name for phase in phases)
        raise RecipeError(f"{epochs} epochs cannot hold the {len(phases)} phases {names}; give at least {len(phases)}.")
    total = sum(phase.epochs for phase in phases)
    exact = [max(1.0, phase.epochs * epochs / total) for phase in phases]
    counts = [int(share) for share in exact]
    while sum(counts) != epochs:  # largest remainder first; the longest phase gives back what the minimum took
        short = sum(counts) < epochs
        error = [share - count for share, count in zip(exact, counts, strict=True)]
        chosen = error.index(max(error)) if short else counts.index(max(counts))
        counts[chosen] += 1 if short else -1
    return tuple(phase.stretched(count) for phase, count in zip(phases, counts, strict=True))
