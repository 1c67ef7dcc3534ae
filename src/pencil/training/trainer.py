"""The trainer turns phases into a trained network, labels and a record of every epoch. It knows no method by name."""

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from pencil.data.examples import Batch, Examples, Splits, split_into_batches
from pencil.data.given.given_labels import as_distribution
from pencil.data.inputs.augment import Augmentation
from pencil.data.pinned import apply_pinned
from pencil.errors import TrainingError
from pencil.labels.forms import label_form
from pencil.labels.judging import Judgement, judge_unlabelled
from pencil.methods.base import Method, Phase, Task, Views, fit_budget
from pencil.methods.state import load_state
from pencil.seeding import generator, reseed, seeded
from pencil.training.compute import Compute, pick_device
from pencil.training.distributed import SINGLE_PROCESS, World
from pencil.training.evaluation import check_model, predict_examples
from pencil.training.metrics import evaluate as metrics_of
from pencil.training.networks import MakeNetwork, Networks, copies_of
from pencil.training.record import Observer, Outcome, Position, Record, RunningMeans
from pencil.training.run_dynamics import RunDynamics, with_issue_scores
from pencil.training.settings import TrainingSettings
from pencil.training.sharding import can_judge_shards, choose_layout, label_metrics, shard_rows, whole_label_probs
from pencil.training.step import TrainingStep, refuse_unsuited
from pencil.training.views import load_views, refuse_views


class Trainer:
    """Trains ``model`` in place, phase by phase. On a CPU the same seed gives bit-identical results.

    Parameters
    ----------
    model, splits, method, settings
        The network, its data, the method and the training settings.
    seed
        Randomness depends only on the seed and the position: order, augmentation, dropout, fresh networks.
    augmentation
        Augmentation of training images.
    observers
        Notified of the start, of every step and of every epoch.
    make_network
        Factory for further networks; without it they are copies of ``model`` with new weights.
    on_pause
        Called with the trainer wherever training can be saved and resumed: after every step and every epoch. The
        state to save is :meth:`state_dict` (and :meth:`local_state_dict` on every rank).
    world
        The processes that train together; each computes its part of every batch.
    device
        Where to train; by default the settings decide.
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
        make_network: MakeNetwork | None = None,
        on_pause: Callable[["Trainer"], None] | None = None,
        world: World = SINGLE_PROCESS,
        device: torch.device | None = None,
    ):
        self.settings = settings = settings or TrainingSettings()
        self.splits, self.method, self.seed, self.world = splits, method, seed, world
        self.form = label_form(splits.train.multilabel)
        self.augmentation, self.observers, self.on_pause = augmentation, observers, on_pause
        device = pick_device(settings.device) if device is None else device
        self.compute = Compute.of(settings, device)
        model = self.compute.place_network(model)
        with seeded(seed, "weights"):  # lazy layers draw their weights at the first forward pass
            check_model(model, splits.train, self.compute, settings.batch_size)
        self.layout = choose_layout(settings, splits.train, method.requirements.row_losses, world)
        self.phases = self._first_plan(model)
        self.dynamics = RunDynamics(splits, self.layout, self.compute.device)
        self.steps_per_epoch = len(split_into_batches(torch.arange(len(splits.train)), settings.batch_size))
        self._make_network = make_network or copies_of(model, method.requirements, self.phases, seed)
        self._use([model, *self._new_networks(range(1, method.requirements.networks))])
        self.records, self.earlier_epochs = list[Record](), 0  # the number of records of an earlier stage
        self.position, self._means, self._weights_restored = Position(), RunningMeans(), False
        self._visited: Tensor | None = None
        self._held_out_logits: Tensor | None = None

    # ---- set-up

    def _first_plan(self, model: nn.Module) -> tuple[Phase, ...]:
        """The phases that the method returns before the first step, within the budget, without empty phases."""
        method, settings, train = self.method, self.settings, self.splits.train
        refuse_unsuited(method, train, settings.minutes)
        is_fp64 = any(parameter.dtype == torch.float64 for parameter in model.parameters())
        task = Task(
            train.given_labels.to(self.compute.device),
            train.num_classes,
            settings.batch_size,
            self.compute.device,
            multilabel=train.multilabel,
            dtype=torch.float64 if is_fp64 else torch.float32,
            layout=self.layout,
            epochs=settings.epochs,
            seconds=None if settings.minutes is None else 60 * settings.minutes,
        )
        phases = method.start(task)
        refuse_views(phases, type(method).__name__, method.requirements)
        if settings.epochs is not None:
            phases = fit_budget(phases, settings.epochs)
        phases = tuple(phase for phase in phases if phase.epochs > 0)
        if not phases:
            raise TrainingError("every phase has zero epochs; expected at least one epoch to train.")
        return phases

    def _replan(self) -> None:
        """Apply the method's decisions; finished phases do not change."""
        plan = self.method.plan()
        if plan is not None:
            self.phases = tuple(phase for phase in plan if phase.epochs > 0)
        self.networks.set_ema_memory(self._ema_memory())

    def _ema_memory(self) -> int:
        """The memory of moving averages in steps."""
        return max(1, round(self.method.requirements.ema_epochs * self.steps_per_epoch))

    def _new_networks(self, numbers: range) -> list[nn.Module]:
        return [self.compute.place_network(self._make_network(number)) for number in numbers]

    def _use(self, networks: list[nn.Module]) -> None:
        """Train these networks from now on."""
        needs = self.method.requirements
        ema_memory = self._ema_memory() if needs.ema else None
        self.networks = Networks(networks, self.settings, self.compute, self.world, ema_memory, dropout=needs.dropout)
        sharded = self.layout.sharded_over is not None
        self.step = TrainingStep(
            self.networks,
            self.splits.train,
            self.world,
            sharded=sharded,
            ema_logits=needs.ema_logits,
            dynamics=self.dynamics,
            seed=self.seed,
        )

    @property
    def model(self) -> nn.Module:
        """The network that is evaluated and kept."""
        return self.networks.model

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer of all networks."""
        return self.networks.optimizer

    @property
    def steps_done(self) -> int:
        """Steps since the start. It never decreases, and evaluating an epoch does not change it."""
        return len(self.records) * self.steps_per_epoch + self.position.step

    # ---- the loop

    def run(self, *, whole: bool = True) -> Outcome:
        """Train to the end from the current position; all ranks return the results of all rows.

        With ``whole=False`` and sharded labels, each rank keeps only the results of its own rows.
        """
        earlier, steps = self.earlier_epochs, self.steps_per_epoch
        for observer in self.observers:
            observer.on_start(self.phases, steps, self.steps_done - earlier * steps, earlier)
        self._pause()
        while self.position.phase < len(self.phases):
            phase = self.phases[self.position.phase]
            started = time.perf_counter()
            if self.position == Position(self.position.phase):
                self._enter(phase)
            while self.position.epoch < phase.epochs:
                self.epoch(phase, self.position.epoch, started)
                started = time.perf_counter()
                phase = self.phases[self.position.phase]  # it may have been shortened
                self.position = Position(self.position.phase, self.position.epoch + 1)
                if self.position.epoch == phase.epochs:
                    self.position = Position(self.position.phase + 1)
                    break
                self._pause()
            self._pause()
        sharded = not whole and can_judge_shards(self.method, self.dynamics)
        return self._sharded_outcome() if sharded else self._outcome()

    def _enter(self, phase: Phase) -> None:
        if phase.on_start is not None:  # before the networks are replaced: it may use their predictions
            phase.on_start(self)
        if phase.fresh_network:
            count = self.method.requirements.networks
            first = count * (self.position.phase + 1)  # numbers, and therefore seeds, that no earlier network had
            self._use(self._new_networks(range(first, first + count)))

    def _pause(self) -> None:
        if self.on_pause is not None:
            self.on_pause(self)

    def epoch(self, phase: Phase, epoch: int, started: float | None = None) -> None:
        """Run one epoch of a phase and evaluate it; its time counts from ``started``."""
        started = time.perf_counter() if started is None else started
        number, train, at = len(self.records), self.splits.train, self.position
        if at.step == 0:
            self._means = RunningMeans()
            if phase.before_epoch is not None:
                phase.before_epoch(epoch, phase.epochs, self)
            visited = None if phase.rows is None else phase.rows()
            self._visited = None if visited is None else visited.cpu()
        order = torch.randperm(len(train), generator=generator(self.seed, "order", number))
        if self._visited is not None:
            order = order[torch.isin(order, self._visited)]
        chunks = split_into_batches(order, self.settings.batch_size)
        where = f"epoch {number + 1} (phase {phase.name})"
        self.networks.trained.train()
        self.networks.set_dropout(phase.dropout)
        with seeded(self.seed, "epoch", number):
            parts = [self.world.local(chunk) for chunk in chunks[at.step :]]
            for chunk, part in zip(chunks[at.step :], self._read(parts, phase.views, number), strict=True):
                reseed(self.seed, "step", number, at.step, self.world.rank)
                progress = epoch + at.step / len(chunks)
                placed = self.compute.place_batch(part)
                result = self.step(phase, progress, placed, chunk, where, (number, at.step))
                if result is not None:
                    self._means.add(result.terms, float(result.terms.loss.detach()), result.hits, result.rows)
                at.step += 1
                for observer in self.observers:
                    observer.on_step()
                self._pause()
        self._end_epoch(phase, epoch, started)

    def _read(self, parts: list[Tensor], views: Views, epoch: int) -> Iterator[Batch]:
        """Read batches. If a stop signal has ended the data workers first, save instead of failing."""
        try:
            yield from load_views(self.splits.train, parts, self.augmentation, views, self.seed, epoch)
        except RuntimeError:
            if self.position.step > 0:  # before the first step: on resume, `before_epoch` would run twice
                self._pause()
            raise

    def _end_epoch(self, phase: Phase, epoch: int, started: float) -> None:
        """Evaluate an epoch whose steps are done, and let the method decide."""
        record: Record = {"epoch": len(self.records) + 1, "phase": phase.name, "phase_epoch": epoch + 1}
        record |= {"lr": phase.lr(epoch, phase.epochs), "label_step": phase.label_step(epoch, phase.epochs)}
        record |= self._means.means() | self._evaluate(self._pause) | self._label_metrics() | self.method.metrics()
        self.networks.check_finite(f"epoch {record['epoch']} (phase {phase.name})")
        record["seconds"] = time.perf_counter() - started  # so far, because the method may use it for planning
        self.dynamics.add_evaluation(self._held_out_logits)
        self.records.append(record)
        self.position.step = 0
        self.method.on_epoch_end(self)
        self._replan()
        if self._weights_restored:  # the network is not the evaluated one; no pause, because the epoch has ended
            record |= self._evaluate() | self._label_metrics()
            self._weights_restored = False
        elif self.position.phase + 1 == len(self.phases) and epoch + 1 == self.phases[-1].epochs:
            record |= self._label_metrics()  # the method may have set the final labels
        self.networks.track_best(record.get(f"validation_{self.form.score}"), record["epoch"])
        record["seconds"] = time.perf_counter() - started
        for observer in self.observers:
            observer.on_plan(self.phases)
            observer.on_epoch_end(record)

    # ---- evaluation

    def _logits(self, examples: Examples, after_batch: Callable[[], None] | None = None, network: int = 0) -> Tensor:
        """The logits of a network (by default the kept one) for a split, on every process."""
        networks = self.networks
        return predict_examples(
            networks.evaluated(network),
            examples,
            forward=None if network else networks.eval_forward,
            compute=self.compute,
            world=self.world,
            after_batch=after_batch,
        )

    def _probs(self, examples: Examples) -> Tensor:
        """The kept network's probabilities; the given label if the input is unreadable or the label is pinned."""
        logits = self._logits(examples)
        unread = logits[:, 0].isnan()
        probs = self.form.to_probs(logits)
        if unread.any():
            probs[unread] = as_distribution(examples.given_labels[unread], examples.num_classes)
        return apply_pinned(probs, examples)

    def _evaluate(self, after_batch: Callable[[], None] | None = None) -> Record:
        """Scores on the (noisy) held-out rows, which select the best epoch, and on the test set, which does not."""
        metrics: Record = {}
        if self.splits.validation is not None:
            self._held_out_logits = self._logits(self.splits.validation, after_batch)
            found = metrics_of(self._held_out_logits, self.splits.validation)
            metrics |= {f"validation_{name}": value for name, value in found.items()}
        if self.splits.test is not None:
            logits = self._logits(self.splits.test, after_batch)
            metrics[f"test_{self.form.score}"] = metrics_of(logits, self.splits.test)[self.form.score]
        return metrics

    def _label_metrics(self) -> Record:
        return label_metrics(self.method, self.splits.train, self.layout, self.compute.device)

    def _outcome(self) -> Outcome:
        train = self.splits.train
        label_probs = whole_label_probs(self.method, len(train), train.num_classes, self.compute.device)
        label_probs = self._probs(train).cpu() if label_probs is None else apply_pinned(label_probs, train)
        return self._result(label_probs, self._judgement())

    def _sharded_outcome(self) -> Outcome:
        train, judgement = self.splits.train, self.dynamics.judge_shards()
        rows = partial(shard_rows, self.method, train, self.dynamics, judgement, self.compute.device)
        return self._result(torch.empty(0, train.num_classes), judgement, shard=rows)

    def _result(self, label_probs: Tensor, judgement: Judgement, **more: Any) -> Outcome:
        evidence = self.dynamics.evidence()
        self.networks.remove_dropout()
        self.model.eval()
        return Outcome(
            model=self.model,
            best_weights=self.networks.best_weights or self.model.state_dict(),
            best_epoch=self.networks.best_epoch,
            label_probs=label_probs,
            validation_probs=self._held_out_probs(judgement),
            records=self.records,
            findings=self.method.findings(),
            judgement=judgement,
            dynamics=evidence[0],
            validation_dynamics=evidence[1],
            unlabelled_probs=self._unlabelled_probs(judgement),
            **more,
        )

    def _judgement(self) -> Judgement:
        """The judgement from the dynamics, with the method's own issue scores if it has any."""
        judgement, scores = self.dynamics.judge(), self.method.issue_scores()
        held_out = self.splits.validation
        if scores is None:
            return judgement
        return with_issue_scores(judgement, scores, held_out, None if held_out is None else self._probs(held_out))

    def _held_out_probs(self, judgement: Judgement) -> Tensor | None:
        """Label distributions of the held-out rows: their posterior."""
        held_out = self.splits.validation
        if held_out is None or judgement.held_out_probs is None:
            return None
        return apply_pinned(judgement.held_out_probs.float(), held_out)

    def _unlabelled_probs(self, judgement: Judgement) -> Tensor | None:
        examples = self.splits.unlabelled
        return None if examples is None else judge_unlabelled(self._logits(examples), judgement.noise, self.held_out())

    # ---- saving and resuming

    def state_dict(self) -> dict[str, Any]:
        """Return everything that the rest of training depends on; randomness follows from seed and position."""
        return {
            "position": vars(self.position),
            "records": self.records,
            "means": vars(self._means),
            "visited": self._visited,
            "networks": self.networks.state_dict(),
            "method": self.method.state_dict(),
            "dynamics": self.dynamics.state_dict(sharded=False),
        }

    def local_state_dict(self) -> dict[str, Any]:
        """Return the state that only this rank has: its shard of the labels and the dynamics."""
        labels = self.method.labels
        dynamics = self.dynamics.state_dict(sharded=True)
        local: dict[str, Any] = {"dynamics": dynamics} if dynamics else {}
        if labels is not None and labels.local_rows is not None:
            local["labels"] = labels.state_dict()
        return local

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Return to the state of :meth:`state_dict`, in a trainer that was built in the same way."""
        self.position, self._means = Position(**state["position"]), load_state(RunningMeans(), state["means"])
        self.records, self._visited = list(state["records"]), state["visited"]
        self.networks.load_state_dict(state["networks"])
        self.method.load_state_dict(state["method"])
        self.dynamics.load_state_dict(state["dynamics"])
        self._replan()

    # ---- what the hooks of a method may ask for (pencil.methods.base.Context)

    def predict(self, *, best: bool = False, network: int = 0) -> Tensor:
        """Return logits of all training rows, from a current network, or from the best epoch of the first network."""
        if network or not (best and self.networks.best_weights):
            return self._logits(self.splits.train, network=network).to(self.compute.device)
        with self.networks.at_best():
            return self._logits(self.splits.train).to(self.compute.device)

    @property
    def validation_accuracy(self) -> float | None:
        """Agreement with the noisy held-out labels after the last epoch."""
        return self.records[-1].get("validation_accuracy") if self.records else None

    @property
    def train_accuracy(self) -> float:
        """Agreement with the given labels during the last epoch."""
        return float(self.records[-1]["train_accuracy"])

    @property
    def elapsed_seconds(self) -> float:
        """Training time so far, as rank 0 measured it."""
        return float(self.world.broadcast_object(sum(record["seconds"] for record in self.records)))

    def restart_dynamics(self) -> None:
        """Reset the training dynamics, and record one visit of every row with the current network."""
        self.dynamics.restart()
        self.dynamics.add_predictions(self.predict())
        if self.held_out() is not None:
            self.dynamics.add_evaluation(self._held_out_logits)

    def judge(self) -> Judgement:
        """Return the judgement of all rows, given their training dynamics so far."""
        return self.dynamics.judge()

    def held_out(self) -> tuple[Tensor, Tensor] | None:
        """Return logits and given labels of the readable, labelled held-out rows; None if there are none."""
        if self.splits.validation is None:
            return None
        if self._held_out_logits is None:
            self._held_out_logits = self._logits(self.splits.validation)
        given = self.splits.validation.given_labels
        usable = ~self._held_out_logits[:, 0].isnan() & self.form.has_label(given)
        return (self._held_out_logits[usable], given[usable]) if usable.any() else None

    def snapshot(self) -> list[Tensor]:
        """Return a copy of the weights."""
        return self.networks.snapshot()

    def restore_weights(self, weights: list[Tensor]) -> None:
        """Continue from the weights of a snapshot."""
        self.networks.restore_weights(weights)
        self._held_out_logits, self._weights_restored = None, True
