"""Builds a job from a recipe and loaded data: prepared data, network, method, and derived settings."""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor, nn

from pencil import models
from pencil.data.examples import Examples, Splits, fingerprints
from pencil.data.inputs.encoding import Encoder
from pencil.data.inputs.feature_store import store_folder
from pencil.data.noise import transition_matrix
from pencil.data.prepare import PreparedData, prepare
from pencil.data.settings import FROM_PYTHON
from pencil.errors import PencilWarning, RecipeError, warn
from pencil.job.network import decoded_images, with_network
from pencil.methods import Method
from pencil.models import FrozenNetwork
from pencil.models.probe import copy_network
from pencil.recipe import CUSTOM, Recipe
from pencil.recipe.resolve import with_runnable_method
from pencil.runs.results import build_row_table
from pencil.seeding import derive_seed
from pencil.training import Observer, Outcome, Trainer
from pencil.training.compute import CPU, Compute, pick_device
from pencil.training.extraction import on_this_machine
from pencil.training.features import compute_features, store_name
from pencil.training.memory import refuse_too_large
from pencil.training.networks import MakeNetwork
from pencil.training.ray_features import on_ray
from pencil.training.step import refuse_unsuited


@dataclass(frozen=True)
class Job:
    """A recipe with prepared data, network and method; nothing has been trained or written yet."""

    recipe: Recipe
    prepared: PreparedData
    network: nn.Module
    method: Method
    weights: dict[str, str] | None = None
    fingerprints: Mapping[str, str] = field(default_factory=dict)
    rows: pa.Table = field(default_factory=lambda: pa.table({}))
    make_network: MakeNetwork | None = None
    features: Splits | None = None

    def with_features(
        self,
        compute: Compute = CPU,
        report: Callable[[int, int], None] | None = None,
        waiting: Callable[[], None] | None = None,
        engine: str = "local",
    ) -> "Job":
        """Return the job with the features of all rows if the backbone is frozen; see :func:`compute_features`.

        The engine "ray" computes them on a cluster, on its GPUs unless the recipe sets the CPU.
        """
        if engine == "ray" and not isinstance(self.network, FrozenNetwork):
            warn(
                "--engine ray only computes the features of a frozen backbone, but the whole network is trained: "
                "training runs on this machine (use torchrun to train on several machines)",
                PencilWarning,
            )
        if not isinstance(self.network, FrozenNetwork) or self.features is not None:
            return self
        folder = self.feature_folder(self.network)
        splits, network = self.prepared.splits, self.network
        spread = on_ray(gpu=self.recipe.training.device != "cpu") if engine == "ray" else on_this_machine(compute)
        found = compute_features(splits, network, folder, engine=spread, report=report, waiting=waiting)
        self.network.feature_mean.copy_(torch.tensor(found.normalization.mean))
        self.network.feature_std.copy_(torch.tensor(found.normalization.std))
        return replace(self, features=found.splits)

    def feature_folder(self, network: FrozenNetwork) -> Path | None:
        """Return where the features of this network are cached; None if they are not."""
        return store_folder(self.recipe.data.cache, store_name(self.recipe.model, network, self.recipe.data))

    def trainer(self, observers: tuple[Observer, ...] = (), passed: float = 0.0, **options: Any) -> Trainer:
        """Return the trainer of this job; with a frozen backbone it trains the head on :attr:`features`.

        ``passed`` are the elapsed seconds of a time budget.
        """
        training = self.recipe.training
        if training.minutes is not None:
            training = training.model_copy(update={"minutes": max(training.minutes - passed / 60, 0.01)})
        trained = self.network.head if isinstance(self.network, FrozenNetwork) else self.network
        return Trainer(
            trained,
            self.prepared.splits if self.features is None else self.features,
            self.method,
            training,
            seed=self.recipe.seed,
            augmentation=self.recipe.data.augmentation,
            observers=observers,
            make_network=self.make_network,
            **options,
        )

    def whole_network(self, outcome: Outcome) -> tuple[nn.Module, dict[str, Tensor]]:
        """Return the trained network and its best weights, both including the backbone if only a head was trained."""
        if not isinstance(self.network, FrozenNetwork):
            return outcome.model, outcome.best_weights
        device = next((parameter.device for parameter in outcome.model.parameters()), torch.device("cpu"))
        whole = copy.deepcopy(self.network).to(device)
        whole.head = outcome.model
        best = {f"head.{name}": value for name, value in outcome.best_weights.items()}
        return whole.eval(), {**whole.state_dict(), **best} if best else {}


def assemble(
    chosen: Recipe,
    loaded: Splits,
    *,
    model: nn.Module | None = None,
    method: Method | None = None,
    held_out: np.ndarray | None = None,
    encoder: Encoder | None = None,
    cache: str | None = None,
    report: Callable[[int, int], None] | None = None,
) -> Job:
    """Prepare the data, build network and method, and fill in all derived settings of the recipe.

    A resumed run passes the keys of its held-out rows and its encoder. ``cache`` is where decoded images are
    cached; by default the recipe and the network determine it. ``report(done, total)`` is called while sentence
    vectors of texts are computed.
    """
    if chosen.training.minutes is not None and chosen.model.finetune_epochs:
        raise RecipeError(
            "training.minutes and model.finetune_epochs are both set (--budget, --finetune); expected one of them, "
            "because fine-tuning is planned in epochs; remove one."
        )
    if model is None:
        chosen = with_network(chosen, loaded, gpu=pick_device(chosen.training.device).type == "cuda")
        cache = decoded_images(chosen) if cache is None else cache
    enough = _held_out_rows(chosen, loaded, method)
    prepared = prepare(chosen.data, loaded, chosen.seed, held_out, enough, encoder, cache=cache, report=report)
    examples = prepared.splits.train
    weights, make_network = None, None
    if model is None:
        network = models.build(
            chosen.model, examples.input_shape, examples.num_classes, chosen.seed, trust=chosen.trust
        )
        make_network = _network_factory(chosen, examples, network)
        weights = models.provenance(chosen.model, network, examples.num_classes)
    else:
        network = copy_network(model)
    chosen = _with_transition(chosen.model_copy(update={"data": prepared.settings}), examples)
    chosen = as_runnable(chosen, prepared.splits) if method is None else chosen
    trained_by = chosen.build_method() if method is None else copy.deepcopy(method)
    refuse_unsuited(trained_by, examples, chosen.training.minutes)  # before features are computed
    in_python = chosen.data.source == FROM_PYTHON
    refuse_too_large(prepared.splits, trained_by.requirements, chosen.training, in_python=in_python)
    prints = fingerprints(vars(loaded), content=chosen.data.fingerprint == "content")
    if prepared.pinned_digest is not None:
        prints["pinned"] = prepared.pinned_digest
    rows = build_row_table(loaded, prepared.splits)
    return Job(chosen, prepared, network, trained_by, weights, prints, rows, make_network)


def as_runnable(chosen: Recipe, splits: Splits) -> Recipe:
    """Return the recipe with a method that can run on these splits; see :func:`with_runnable_method`."""
    held_out_rows = 0 if splits.validation is None else len(splits.validation)
    return with_runnable_method(chosen, held_out_rows=held_out_rows)


def _held_out_rows(chosen: Recipe, loaded: Splits, method: Method | None) -> int:
    """Number of held-out rows that the method needs for its decisions."""
    needs = (chosen.method_class() if method is None else method).requirements
    return 0 if loaded.train.multilabel and not needs.multilabel else needs.held_out_rows


def _with_transition(chosen: Recipe, examples: Examples) -> Recipe:
    """The recipe with the transition matrix of injected noise, for a method that requires it."""
    name = chosen.method["name"]
    if name == CUSTOM or not chosen.method_class().requirements.transition_matrix or "transition" in chosen.method:
        return chosen
    matrix = transition_matrix(chosen.data.noise, examples.classes)
    if matrix is None:
        return chosen
    return chosen.model_copy(update={"method": {**chosen.method, "transition": matrix.tolist()}})


def _network_factory(chosen: Recipe, examples: Examples, first: nn.Module) -> MakeNetwork:
    """A factory for the networks to train: network 0 uses the recipe's seed, the others use derived seeds."""
    shape, classes = examples.input_shape, examples.num_classes

    def make(number: int) -> nn.Module:
        seed = derive_seed(chosen.seed, "network", number) if number else chosen.seed
        if isinstance(first, FrozenNetwork):
            return models.build_head(chosen.model, first.width, classes, seed)
        return models.build(chosen.model, shape, classes, seed, trust=chosen.trust)

    return make


def held_out_accuracy(recipe: Recipe, loaded: Splits, pause: Callable[..., None] | None = None) -> float:
    """Train a recipe for a trial, without a run directory; return the best accuracy on the held-out labels.

    ``pause`` is called between two steps, and while features are computed; it may stop the trial.
    """
    records = assemble(recipe, loaded).with_features(report=pause).trainer(on_pause=pause).run().records
    return max(float(record["validation_accuracy"]) for record in records)
