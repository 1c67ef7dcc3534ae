"""The loop: phases in, a trained network and an epoch-by-epoch record out. It knows no method by name."""

import copy
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from pencil.data.augment import Augmentation
from pencil.data.examples import Batch, Examples, Splits, cut
from pencil.data.given import as_distribution
from pencil.data.inputs import View
from pencil.errors import TrainingError
from pencil.methods.base import Method, Phase, Task, Terms, fit_budget
from pencil.models import reinitialized
from pencil.seeding import generator, seeded
from pencil.training.evaluation import Compute, check_model, predict_logits
from pencil.training.metrics import SCORES, label_metrics, to_probs, training_hits
from pencil.training.metrics import evaluate as metrics_of
from pencil.training.settings import TrainingSettings, build_optimizer, pick_device, pick_precision

Record = dict[str, Any]


class Observer:
    """Something that watches training: a progress display, a run directory. Every method may be left as it is."""

    def started(self, phases: tuple[Phase, ...], steps_per_epoch: int) -> None: ...

    def stepped(self) -> None: ...

    def epoch_ended(self, record: Record) -> None: ...


@dataclass(frozen=True)
class Outcome:
    """What training gives back; ``label_probs`` are for the training rows."""

    model: nn.Module
    best_weights: dict[str, Tensor]
    best_epoch: int
    label_probs: Tensor
    validation_probs: Tensor | None
    records: list[Record]


@dataclass
class Sums:
    """Running sums over an epoch, weighted by batch size."""

    rows: int = 0
    right: float = 0.0
    losses: dict[str, float] = field(default_factory=dict)

    def add(self, terms: Terms, value: float, right: float, rows: int) -> None:
        self.rows += rows
        self.right += right
        self.losses["loss"] = self.losses.get("loss", 0.0) + value * rows
        for name, part in terms.parts.items():
            self.losses[f"loss_{name}"] = self.losses.get(f"loss_{name}", 0.0) + float(part) * rows

    def means(self) -> Record:
        return {name: total / self.rows for name, total in self.losses.items()} | {
            "train_accuracy": self.right / self.rows
        }


class Trainer:
    """Trains ``model`` in place, phase by phase. On a CPU the same seed gives the same bits."""

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
    ):
        self.settings = settings = settings or TrainingSettings()
        self.splits, self.method, self.seed = splits, method, seed
        self.multilabel = splits.train.multilabel
        self.score = SCORES[self.multilabel]
        self.augmentation, self.observers = augmentation, observers
        device = pick_device(settings.device)
        memory_format = torch.channels_last if settings.channels_last else torch.preserve_format
        self.compute = Compute(device, pick_precision(settings.precision, device), memory_format)
        self.model = model.to(device)
        if settings.channels_last:
            self.model = self.model.to(memory_format=torch.channels_last)
        with seeded(seed, "weights"):  # lazy layers draw their weights at the first forward pass
            check_model(self.model, splits.train, self.compute, settings.batch_size)
        self.phases = self._plan()
        self._make = make_network or self._copier()
        self._begin([self.model, *(self._another(number) for number in range(1, method.networks))])
        self.scaler = torch.amp.GradScaler(device.type, enabled=self.compute.autocast == torch.float16)
        self.steps_per_epoch = len(cut(torch.arange(len(splits.train)), settings.batch_size))
        self.records: list[Record] = []

    def _plan(self) -> tuple[Phase, ...]:
        """Let the method get ready and lay out its phases within the budget; a phase of zero epochs is skipped."""
        given, device = self.splits.train.given_labels, self.compute.device
        is_fp64 = any(parameter.dtype == torch.float64 for parameter in self.model.parameters())
        task = Task(
            given.to(device),
            self.splits.train.num_classes,
            self.settings.batch_size,
            device,
            self.splits.train.multilabel,
            torch.float64 if is_fp64 else torch.float32,
        )
        if task.multilabel and not self.method.takes_multilabel:
            name = type(self.method).__name__
            raise TrainingError(f"{name} is for one class per example; these labels name several at once.")
        phases = self.method.start(task)
        if self.settings.epochs is not None:
            phases = fit_budget(phases, self.settings.epochs)
        phases = tuple(phase for phase in phases if phase.epochs > 0)
        if not phases:
            raise TrainingError("every phase has zero epochs; expected at least one epoch to train.")
        return phases

    def run(self) -> Outcome:
        for observer in self.observers:
            observer.started(self.phases, self.steps_per_epoch)
        for number, phase in enumerate(self.phases):
            started = time.perf_counter()
            if phase.on_start is not None:  # first, so that it can learn from the network that a fresh one replaces
                phase.on_start(self)
            if phase.fresh:
                first = self.method.networks * (number + 1)  # numbers, and so seeds, that no network had before
                self._begin([self._another(first + i) for i in range(self.method.networks)])
            for epoch in range(phase.epochs):
                self.epoch(phase, epoch, started)
                started = time.perf_counter()
        return self._outcome()

    def _begin(self, networks: list[nn.Module]) -> None:
        """Train these networks from now on; the first is the one that is evaluated and kept."""
        self.model, self.networks = networks[0], nn.ModuleList(networks)
        compiled = [torch.compile(network) if self.settings.compile else network for network in networks]
        self.forward: Callable[[Tensor], Tensor] = compiled[0]
        self.others: list[Callable[[Tensor], Tensor]] = compiled[1:]
        self.optimizer = build_optimizer(networks, self.settings.optimizer)
        self._best_score, self._best_epoch = -math.inf, 0
        self._best_weights: dict[str, Tensor] = {}

    def _copier(self) -> Callable[[int], nn.Module]:
        """Further networks where no one says how to make them.

        A network beside the first gets newly drawn weights; a fresh one starts as the first did, pretrained or not.
        """
        if self.method.networks == 1 and not any(phase.fresh for phase in self.phases):
            return lambda number: self.model  # never called
        original = copy.deepcopy(self.model)

        def make(number: int) -> nn.Module:
            another = copy.deepcopy(original)
            return reinitialized(another, self.seed, number) if number % self.method.networks else another

        return make

    def _another(self, number: int) -> nn.Module:
        network = self._make(number).to(self.compute.device)
        if self.settings.channels_last:
            network = network.to(memory_format=torch.channels_last)
        return network

    def epoch(self, phase: Phase, epoch: int, started: float | None = None) -> None:
        """One pass over the training rows, and a look at what came of it; its time counts from ``started``."""
        started = time.perf_counter() if started is None else started
        number = len(self.records)
        sums = Sums()
        train = self.splits.train
        if phase.before_epoch is not None:
            phase.before_epoch(epoch, phase.epochs, self)
        order = torch.randperm(len(train), generator=generator(self.seed, "order", number))
        rows = None if phase.rows is None else phase.rows()
        if rows is not None:
            order = order[torch.isin(order, rows.cpu())]
        steps = len(cut(order, self.settings.batch_size))
        view = View(self.seed, number, self.augmentation)
        self.networks.train()
        with seeded(self.seed, "epoch", number):
            for step, batch in enumerate(train.batches(self.settings.batch_size, order=order, view=view)):
                self.step(phase, epoch + step / steps, self.compute.place_batch(batch), sums)
                for observer in self.observers:
                    observer.stepped()
        record: Record = {"epoch": number + 1, "phase": phase.name, "phase_epoch": epoch + 1}
        record |= {"lr": phase.lr(epoch, phase.epochs), "label_step": phase.label_step(epoch, phase.epochs)}
        record |= sums.means() | self._evaluate() | self._label_metrics() | self.method.metrics()
        record["seconds"] = time.perf_counter() - started
        self.records.append(record)
        self._remember_best(record)
        for observer in self.observers:
            observer.epoch_ended(record)

    def step(self, phase: Phase, progress: float, batch: Batch, sums: Sums) -> None:
        with self.compute.context():
            logits = self.forward(batch.inputs)
            others = [forward(batch.inputs) for forward in self.others]
        terms = phase.loss((logits, *others) if others else logits, batch)
        value = float(terms.loss.detach())
        if not math.isfinite(value):
            raise TrainingError(self._describe_failure(phase, value, logits, batch))
        lr = phase.lr(progress, phase.epochs)
        for group in self.optimizer.param_groups:
            group["lr"] = lr * group["factor"]
        self.optimizer.zero_grad(set_to_none=True)
        self.scaler.scale(terms.loss).backward()
        if self.settings.clip_norm > 0:
            self.scaler.unscale_(self.optimizer)
            for network in self.networks:
                nn.utils.clip_grad_norm_(network.parameters(), self.settings.clip_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if phase.after_step is not None:
            phase.after_step(terms.carry, batch, phase.label_step(progress, phase.epochs))
        sums.add(terms, value, training_hits(logits.detach(), batch.given_labels, self.multilabel), len(batch.rows))

    def _evaluate(self) -> Record:
        """Accuracy on the (noisy) validation rows, which choose the best epoch, and on the test set, which does not."""
        metrics: Record = {}
        if self.splits.validation is not None:
            found = metrics_of(self._predict("validation"), self.splits.validation)
            metrics |= {f"validation_{name}": value for name, value in found.items()}
        if self.splits.test is not None:
            metrics[f"test_{self.score}"] = metrics_of(self._predict("test"), self.splits.test)[self.score]
        return metrics

    def _label_metrics(self) -> Record:
        label_probs = self.method.label_probs()
        if label_probs is None:
            return {}
        return label_metrics(label_probs.cpu(), self.splits.train)

    def _remember_best(self, record: Record) -> None:
        """Without a validation split the last epoch is best, and its weights are at hand in the end."""
        score = record.get(f"validation_{self.score}")
        if score is None:
            self._best_epoch = record["epoch"]
        elif score > self._best_score:
            self._best_score, self._best_epoch = score, record["epoch"]
            self._best_weights = {k: v.detach().cpu().clone() for k, v in self.model.state_dict().items()}

    def _outcome(self) -> Outcome:
        label_probs = self.method.label_probs()
        if label_probs is None:
            label_probs = self._predict_probs(self.splits.train, "train")
        validation = self.splits.validation
        validation_probs = None if validation is None else self._predict_probs(validation, "validation")
        self.model.eval()
        return Outcome(
            model=self.model,
            best_weights=self._best_weights or self.model.state_dict(),
            best_epoch=self._best_epoch,
            label_probs=label_probs.cpu(),
            validation_probs=validation_probs,
            records=self.records,
        )

    def predict(self, *, best: bool = False) -> Tensor:
        """For a method's hooks: logits of all training rows, by the network as it is or as it was at its best."""
        if not best or not self._best_weights:
            return self._predict("train").to(self.compute.device)
        now = {name: value.clone() for name, value in self.model.state_dict().items()}
        self.model.load_state_dict(self._best_weights)
        try:
            return self._predict("train").to(self.compute.device)
        finally:
            self.model.load_state_dict(now)

    @property
    def validation_accuracy(self) -> float | None:
        return self.records[-1].get("validation_accuracy") if self.records else None

    def _predict(self, split: str) -> Tensor:
        examples = getattr(self.splits, split)
        return predict_logits(self.model, examples.inputs, examples.rows, forward=self.forward, compute=self.compute)

    def _predict_probs(self, examples: Examples, split: str) -> Tensor:
        """What the network says about labelled rows; where an input cannot be read, the given label stands."""
        logits = self._predict(split)
        unread = logits[:, 0].isnan()
        probs = to_probs(logits, examples.multilabel)
        if unread.any():
            probs[unread] = as_distribution(examples.given_labels[unread], examples.num_classes)
        return probs

    def _describe_failure(self, phase: Phase, value: float, logits: Tensor, batch: Batch) -> str:
        bad = ~logits.isfinite().all(dim=1)
        rows = batch.rows[bad if bad.any() else torch.ones_like(bad)].cpu()
        keys = ", ".join(map(repr, self.splits.train.keys[rows.numpy()][:5].tolist()))
        more = f" and {len(rows) - 5} more" if len(rows) > 5 else ""
        return (
            f"the loss became {value} in epoch {len(self.records) + 1} (phase {phase.name}), in a batch with the rows "
            f"{keys}{more}; weights and labels are as they were before this step; "
            "lower the learning rate, set training.clip_norm, or look at those rows."
        )
