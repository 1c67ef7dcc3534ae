"""The loop: phases in, a trained network and an epoch-by-epoch record out. It knows no method by name."""

import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from pencil.data.augment import Augmentation, View
from pencil.data.examples import Batch, Splits, split_into_batches
from pencil.data.pinned import apply_pinned
from pencil.errors import TrainingError
from pencil.labels.sharded import ShardedLabelStore
from pencil.labels.store import CHUNK
from pencil.methods.base import Method, Phase
from pencil.seeding import generator, reseed, seeded
from pencil.training.distributed import SINGLE_PROCESS, World
from pencil.training.evaluation import Compute, check_model
from pencil.training.looks import mixed, of_all, with_views
from pencil.training.metrics import SCORES, LabelTotals
from pencil.training.metrics import evaluate as metrics_of
from pencil.training.networks import Learner, NonFiniteGradientError, copier
from pencil.training.planning import first_plan
from pencil.training.predicting import Predictor
from pencil.training.record import Observer, Outcome, Position, Record, Sums
from pencil.training.settings import TrainingSettings, pick_device, pick_precision
from pencil.training.step import Shared, choose_layout, failure, over_own_rows, over_whole_batch, rows_of_all


class Trainer:
    """Trains ``model`` in place, phase by phase. On a CPU the same seed gives the same bits.

    ``pause`` is called wherever training could be saved and gone on from: after every step and every epoch, with the
    trainer. What it needs is in :meth:`state`; :meth:`restore` goes back there. In a ``world`` of several processes
    each computes its piece of every batch, and all of them see the logits of the whole batch.
    """

    def __init__(
        self,
        model: nn.Module,
        splits: Splits,
        method: Method,
        settings: TrainingSettings | None = None,
        *,
        seed: int = 0,
        augmentation: Augmentation | None = None,
        observers: tuple[Observer, ...] = (),
        make_network: Callable[[int], nn.Module] | None = None,
        pause: Callable[["Trainer"], None] | None = None,
        world: World = SINGLE_PROCESS,
    ):
        self.settings = settings = settings or TrainingSettings()
        self.splits, self.method, self.seed, self.world = splits, method, seed, world
        self.multilabel = splits.train.multilabel
        self.score = SCORES[self.multilabel]
        self.augmentation, self.observers, self.pause = augmentation, observers, pause
        device = pick_device(settings.device)
        memory_format = torch.channels_last if settings.channels_last else torch.preserve_format
        self.compute = Compute(device, pick_precision(settings.precision, device), memory_format)
        model = self._placed(model)
        with seeded(seed, "weights"):  # lazy layers draw their weights at the first forward pass
            check_model(model, splits.train, self.compute, settings.batch_size)
        self.phases = self._plan(model)
        self.steps_per_epoch = len(split_into_batches(torch.arange(len(splits.train)), settings.batch_size))
        self._make = make_network or copier(model, method, self.phases, seed)
        self._begin([model, *(self._placed(self._make(number)) for number in range(1, method.networks))])
        self.predictor = Predictor(splits, self.compute, world)
        self.records: list[Record] = []
        self.at, self._sums = Position(), Sums()
        self._visited: Tensor | None = None
        self._held_out: Tensor | None = None
        self._put_back = False

    @property
    def steps_done(self) -> int:
        """It never falls, and is the same before and after an epoch is evaluated."""
        return len(self.records) * self.steps_per_epoch + self.at.step

    @property
    def model(self) -> nn.Module:
        """The network that is evaluated and kept."""
        return self.learner.model

    @property
    def networks(self) -> nn.ModuleList:
        return self.learner.networks

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        return self.learner.optimizer

    def _plan(self, model: nn.Module) -> tuple[Phase, ...]:
        """Let the method get ready and lay out its phases within the budget."""
        layout, self._share = choose_layout(self.settings, self.splits.train, self.method.by_row, self.world)
        is_fp64 = any(parameter.dtype == torch.float64 for parameter in model.parameters())
        dtype = torch.float64 if is_fp64 else torch.float32
        return first_plan(self.method, self.splits.train, self.settings, layout, self.compute.device, dtype)

    def _replan(self) -> None:
        """What a method has decided on the way; the phases that are done stay as they are."""
        plan = self.method.plan()
        if plan is not None:
            self.phases = tuple(phase for phase in plan if phase.epochs > 0)

    def _placed(self, network: nn.Module) -> nn.Module:
        network = network.to(self.compute.device)
        return network.to(memory_format=torch.channels_last) if self.settings.channels_last else network

    def _begin(self, networks: list[nn.Module]) -> None:
        """Train these networks from now on."""
        memory = self.steps_per_epoch if self.method.averages else None
        self.learner = Learner(networks, self.settings, self.compute, self.world, memory)

    def run(self) -> Outcome:
        for observer in self.observers:
            observer.started(self.phases, self.steps_per_epoch, self.steps_done)
        self._pause()
        while self.at.phase < len(self.phases):
            phase = self.phases[self.at.phase]
            started = time.perf_counter()
            if self.at == Position(self.at.phase):
                self._enter(phase)
            while self.at.epoch < phase.epochs:
                self.epoch(phase, self.at.epoch, started)
                started = time.perf_counter()
                phase = self.phases[self.at.phase]  # which may have been cut short
                self.at = Position(self.at.phase, self.at.epoch + 1)
                if self.at.epoch == phase.epochs:
                    self.at = Position(self.at.phase + 1)
                    break
                self._pause()
            self._pause()
        return self._outcome()

    def _enter(self, phase: Phase) -> None:
        if phase.on_start is not None:  # first, so that it can learn from the network that a fresh one replaces
            phase.on_start(self)
        if phase.fresh:
            first = self.method.networks * (self.at.phase + 1)  # numbers, and so seeds, that no network had before
            self._begin([self._placed(self._make(first + i)) for i in range(self.method.networks)])

    def _pause(self) -> None:
        if self.pause is not None:
            self.pause(self)

    def epoch(self, phase: Phase, epoch: int, started: float | None = None) -> None:
        """One pass over the training rows, and a look at what came of it; its time counts from ``started``."""
        started = time.perf_counter() if started is None else started
        number, train = len(self.records), self.splits.train
        if self.at.step == 0:
            self._sums = Sums()
            if phase.before_epoch is not None:
                phase.before_epoch(epoch, phase.epochs, self)
            visited = None if phase.rows is None else phase.rows()
            self._visited = None if visited is None else visited.cpu()
        order = torch.randperm(len(train), generator=generator(self.seed, "order", number))
        if self._visited is not None:
            order = order[torch.isin(order, self._visited)]
        chunks = split_into_batches(order, self.settings.batch_size)
        view = View(self.seed, number, self.augmentation)
        self.networks.train()
        with seeded(self.seed, "epoch", number):
            pieces = [self.world.local(chunk) for chunk in chunks[self.at.step :]]
            batches = with_views(lambda each: self._read(pieces, each), view, self.method.looks)
            for chunk, piece in zip(chunks[self.at.step :], batches, strict=True):
                reseed(self.seed, "step", number, self.at.step, self.world.rank)
                progress = epoch + self.at.step / len(chunks)
                self.step(phase, progress, self.compute.place_batch(piece), self._sums, chunk)
                self.at.step += 1
                for observer in self.observers:
                    observer.stepped()
                self._pause()
        self._close(phase, epoch, started)

    def _read(self, pieces: list[Tensor], view: View) -> Iterator[Batch]:
        """Whoever asks us to stop may have stopped our readers already: then it is time to save, not to fail."""
        try:
            yield from self.splits.train.load_batches(pieces, view)
        except RuntimeError:
            if self.at.step > 0:  # before the first step, what begins an epoch would be done twice
                self._pause()
            raise

    def _close(self, phase: Phase, epoch: int, started: float) -> None:
        """The record of an epoch whose steps are done."""
        record: Record = {"epoch": len(self.records) + 1, "phase": phase.name, "phase_epoch": epoch + 1}
        record |= {"lr": phase.lr(epoch, phase.epochs), "label_step": phase.label_step(epoch, phase.epochs)}
        record |= self._sums.means() | self._evaluate(self._pause) | self._label_metrics() | self.method.metrics()
        record["seconds"] = time.perf_counter() - started
        self.records.append(record)
        self.at.step = 0
        if self.method.watch(self):
            self._replan()
        if self._put_back:  # another network than the one that was looked at; between two epochs is no place to stop
            record |= self._evaluate() | self._label_metrics()
            self._put_back = False
        self.learner.consider(record.get(f"validation_{self.score}"), record["epoch"])
        for observer in self.observers:
            observer.epoch_ended(record)

    def step(self, phase: Phase, progress: float, batch: Batch, sums: Sums, chunk: Tensor | None = None) -> None:
        """One step on this process's piece of a batch; the loss is that of the whole batch, the rows of ``chunk``.

        If so few of them can be read that batch statistics are out of reach, there is no step.
        """
        chunk = batch.rows if chunk is None else chunk
        rows, counts = rows_of_all(batch, chunk, self.splits.train.inputs.complete, self.world)
        if len(rows) < min(2, len(chunk)):
            return
        if self.method.mixup:
            batch = mixed(batch, self.method.mixup, self.seed, self.steps_done)
        said = self.learner.logits(batch)
        if self.world.size > 1 and self._share == over_whole_batch:
            given_labels = self.splits.train.given_labels[rows.cpu()].to(self.compute.device)
            batch = of_all(batch, rows, given_labels, counts, self.world)
        shared = self._share(phase, said, batch, counts, self.world, self.multilabel)
        value = float(shared.terms.loss.detach())
        if not math.isfinite(value):
            raise self._failure(phase, f"loss became {value}", shared)
        try:
            self.learner.learn(shared.loss * self.world.size, phase.lr(progress, phase.epochs))
        except NonFiniteGradientError:
            raise self._failure(phase, "gradient became infinite or NaN", shared) from None
        if phase.after_step is not None:
            phase.after_step(shared.terms.carry, shared.batch, phase.label_step(progress, phase.epochs))
        sums.add(shared.terms, value, shared.right, sum(counts))

    def _failure(self, phase: Phase, what: str, shared: Shared) -> TrainingError:
        return failure(what, f"epoch {len(self.records) + 1} (phase {phase.name})", shared, self.splits.train.keys)

    def state(self) -> dict[str, Any]:
        """All that the rest of training hangs on; randomness is a function of the seed and the position."""
        return {
            "position": vars(self.at),
            "records": self.records,
            "sums": vars(self._sums),
            "visited": self._visited,
            "learner": self.learner.state(),
            "method": self.method.state(),
        }

    def own_state(self) -> dict[str, Any]:
        """What this rank has and no other, beside the state that all share."""
        labels = self.method.labels
        return {"labels": labels.state_dict()} if labels is not None and labels.own_rows is not None else {}

    def restore(self, state: dict[str, Any]) -> None:
        """Go back to where :meth:`state` was taken, in a trainer that was made in the same way."""
        self.at, self._sums = Position(**state["position"]), Sums(**state["sums"])
        self.records, self._visited = list(state["records"]), state["visited"]
        self.learner.restore(state["learner"])
        self.method.restore(state["method"])
        self._replan()

    def _evaluate(self, between: Callable[[], None] | None = None) -> Record:
        """Accuracy on the (noisy) validation rows, which choose the best epoch, and on the test set, which does not."""
        metrics: Record = {}
        if self.splits.validation is not None:
            self._held_out = self.predictor.logits(self.learner, "validation", between)
            found = metrics_of(self._held_out, self.splits.validation)
            metrics |= {f"validation_{name}": value for name, value in found.items()}
        if self.splits.test is not None:
            logits = self.predictor.logits(self.learner, "test", between)
            metrics[f"test_{self.score}"] = metrics_of(logits, self.splits.test)[self.score]
        return metrics

    def _label_metrics(self) -> Record:
        """Piece by piece, so that labels are never held twice; of dealt-out labels every rank has its part to say."""
        labels, train = self.method.labels, self.splits.train
        own = torch.arange(len(train)) if labels is None or labels.own_rows is None else labels.own_rows
        totals = LabelTotals()
        for places in torch.arange(len(own)).split(CHUNK):
            label_probs = self.method.label_probs(places.to(self.compute.device))
            if label_probs is None:
                return {}
            totals.add(label_probs.cpu(), train.subset(own[places]))
        return totals.means(self.world.all_reduce_sum if self._share == over_own_rows else None)

    def _outcome(self) -> Outcome:
        label_probs, labels = self.method.label_probs(), self.method.labels
        if label_probs is not None and isinstance(labels, ShardedLabelStore):
            label_probs = labels.whole(label_probs)
        if label_probs is None:
            label_probs = self.predictor.probs(self.learner, "train")
        held_out = self.splits.validation is not None
        validation_probs = self.predictor.probs(self.learner, "validation") if held_out else None
        self.model.eval()
        return Outcome(
            model=self.model,
            best_weights=self.learner.best_weights or self.model.state_dict(),
            best_epoch=self.learner.best_epoch,
            label_probs=apply_pinned(label_probs.cpu(), self.splits.train),
            validation_probs=validation_probs,
            records=self.records,
            findings=self.method.findings(),
        )

    def predict(self, *, best: bool = False) -> Tensor:
        ask = self.predictor.best_logits if best else self.predictor.logits
        return ask(self.learner, "train").to(self.compute.device)

    @property
    def validation_accuracy(self) -> float | None:
        return self.records[-1].get("validation_accuracy") if self.records else None

    @property
    def train_accuracy(self) -> float:
        return float(self.records[-1]["train_accuracy"])

    @property
    def seconds(self) -> float:
        return float(self.world.broadcast_object(sum(record["seconds"] for record in self.records)))

    def held_out(self) -> tuple[Tensor, Tensor] | None:
        if self.splits.validation is None:
            return None
        if self._held_out is None:
            self._held_out = self.predictor.logits(self.learner, "validation")
        read = ~self._held_out[:, 0].isnan()  # what cannot be read has no answer
        return (self._held_out[read], self.splits.validation.given_labels[read]) if read.any() else None

    def snapshot(self) -> list[Tensor]:
        return self.learner.snapshot()

    def put_back(self, weights: list[Tensor]) -> None:
        self.learner.put_back(weights)
        self._held_out, self._put_back = None, True
