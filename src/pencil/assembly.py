"""From a recipe and loaded data to a job: data prepared, network and method built, everything derived filled in."""

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor, nn

from pencil import models
from pencil.data.augment import PHOTOS, Augmentation
from pencil.data.encoding import Encoder
from pencil.data.examples import Examples, Splits, fingerprints
from pencil.data.feature_store import default_folder
from pencil.data.geometry import input_shape
from pencil.data.inputs import Inputs
from pencil.data.noise import transition_matrix
from pencil.data.prepare import PreparedData, prepare
from pencil.data.settings import FROM_PYTHON, DataSettings
from pencil.errors import RecipeError
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
from pencil.training.features import compute_features, count_missing, random_features, store_name
from pencil.training.memory import refuse_too_large
from pencil.training.networks import MakeNetwork
from pencil.training.ray_features import on_ray
from pencil.training.step import refuse_unsuited
from pencil.training.timing import BUDGET, estimate_features, estimate_finetuning, estimate_seconds


@dataclass(frozen=True)
class Job:
    """A recipe with its data prepared and its network and method built; nothing has been trained or written yet."""

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
        """Return the job with the features of all rows, where the backbone is frozen; see :func:`compute_features`.

        The engine "ray" computes them on a cluster, on its GPUs unless the recipe asks for the CPU.
        """
        if engine == "ray" and not isinstance(self.network, FrozenNetwork):
            warnings.warn(
                "--engine ray spreads the features of a frozen backbone, and this network is trained as a whole: "
                "all of it is done here (torchrun trains on several machines)",
                stacklevel=2,
            )
        if not isinstance(self.network, FrozenNetwork) or self.features is not None:
            return self
        folder = self._feature_folder(self.network)
        splits, network = self.prepared.splits, self.network
        spread = on_ray(gpu=self.recipe.training.device != "cpu") if engine == "ray" else on_this_machine(compute)
        found = compute_features(splits, network, folder, engine=spread, report=report, waiting=waiting)
        self.network.feature_mean.copy_(torch.tensor(found.normalization.mean))
        self.network.feature_std.copy_(torch.tensor(found.normalization.std))
        return replace(self, features=found.splits)

    def _feature_folder(self, network: FrozenNetwork) -> Path | None:
        """Where the features of this network are kept."""
        cache = self.recipe.data.cache
        if cache in ("none", "memory"):
            return None
        folder = default_folder() if cache == "auto" else Path(cache).expanduser()
        return folder / store_name(self.recipe.model, network, self.recipe.data)

    def estimate_seconds(self, *, cached: bool = False, budget: float = BUDGET) -> float:
        """Return how long features and training will take on this machine; see :func:`pencil.training.timing`.

        The job itself is left as it is: copies of network and method take the steps that are timed.
        """
        if self.recipe.training.minutes is not None:
            return 60 * self.recipe.training.minutes
        seconds, splits = 0.0, self.prepared.splits
        if isinstance(self.network, FrozenNetwork) and self.recipe.model.finetune_epochs:
            seconds += self.recipe.model.finetune_epochs * estimate_finetuning(splits, self.network)
        if isinstance(self.network, FrozenNetwork) and self.features is None:
            missing = count_missing(splits, self.network.width, self._feature_folder(self.network))
            seconds += estimate_features(splits, self.network, missing, budget / 2)
        return seconds + estimate_seconds(self.timed_copy().trainer(), cached=cached, budget=budget)

    def timed_copy(self) -> "Job":
        """Return the job with copies of network and method, and random features where they are not computed yet."""
        features = self.features
        if isinstance(self.network, FrozenNetwork) and features is None:
            features = random_features(self.prepared.splits, self.network.width)
        return replace(self, network=copy.deepcopy(self.network), method=copy.deepcopy(self.method), features=features)

    def trainer(self, observers: tuple[Observer, ...] = (), passed: float = 0.0, **options: Any) -> Trainer:
        """Return the trainer of this job; with a frozen backbone it trains the head on :attr:`features`.

        Parameters
        ----------
        observers, options
            Those of :class:`pencil.training.Trainer`.
        passed
            Seconds of a time budget that are over.
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
        """Return the trained network and its best weights, both with the backbone where only a head was trained."""
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
) -> Job:
    """Prepare the data, build network and method, and complete the recipe with everything that was derived.

    Parameters
    ----------
    chosen, loaded
        The recipe, and its data as loaded.
    model, method
        Objects that take the place of what the recipe names.
    held_out
        Keys of the held-out rows; drawn by default.
    encoder
        That of a run that is resumed; fitted by default.
    """
    if chosen.training.minutes is not None and chosen.model.finetune_epochs:
        raise RecipeError(
            "training.minutes and model.finetune_epochs are both set (--budget, --finetune); expected one of them: "
            "fine-tuning is planned in epochs."
        )
    if model is None:
        chosen = chosen.model_copy(update={"model": _resolve_model(chosen, loaded)})
    wanted = chosen.data if model is not None else _as_the_model_needs(chosen, loaded)
    prepared = prepare(wanted, loaded, chosen.seed, held_out, _held_out_rows(chosen, loaded, method), encoder)
    prepared = replace(prepared, settings=prepared.settings.model_copy(update={"cache": chosen.data.cache}))
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
    """How many held-out rows the method wants to base its decisions on."""
    needs = (chosen.method_class() if method is None else method).requirements
    return 0 if loaded.train.multilabel and not needs.multilabel else needs.held_out_rows


def _with_transition(chosen: Recipe, examples: Examples) -> Recipe:
    """The recipe with the transition matrix of injected noise, for a method whose definition needs it."""
    name = chosen.method["name"]
    if name == CUSTOM or not chosen.method_class().requirements.transition_matrix or "transition" in chosen.method:
        return chosen
    matrix = transition_matrix(chosen.data.noise, examples.classes)
    if matrix is None:
        return chosen
    return chosen.model_copy(update={"method": {**chosen.method, "transition": matrix.tolist()}})


def _resolve_model(chosen: Recipe, loaded: Splits) -> models.ModelSettings:
    """The settings of the network, with what depends on the inputs, the device and the augmentation."""
    gpu = pick_device(chosen.training.device).type == "cuda"
    augmented = chosen.data.augmentation not in (None, Augmentation())
    return models.resolve(chosen.model, input_shape(chosen.data, loaded.train), gpu=gpu, augmented=augmented)


def _as_the_model_needs(chosen: Recipe, loaded: Splits) -> DataSettings:
    """The settings of the data as they suit the network.

    Inputs are normalised as for the pretrained weights. Photos are augmented where the whole network is trained. They
    are not decoded ahead of feature extraction, except for instance-dependent noise, which looks at pixels in memory.
    """
    data, inputs, changed = chosen.data, loaded.train.inputs, dict[str, Any]()
    normalization = models.expected_normalization(chosen.model)
    if data.normalize == "auto" and normalization is not None and inputs.channels == len(normalization.mean):
        changed["normalize"] = normalization
    if data.augmentation is None and chosen.model.train == "all":
        changed["augmentation"] = photo_augmentation(inputs, input_shape(data, loaded.train))
    looks_at_pixels = data.noise is not None and "instance" in data.noise.kinds
    if chosen.model.train == "head" and data.cache == "auto" and not looks_at_pixels:
        changed["cache"] = "none"
    return data.model_copy(update=changed)


def photo_augmentation(inputs: Inputs, shape: Sequence[int]) -> Augmentation | None:
    """Return the preset for photos where a whole network is trained on them; None for other inputs of this shape."""
    in_colour = inputs.dtype == torch.uint8 and inputs.channels == 3
    return PHOTOS if in_colour and len(shape) == 3 and max(shape[1:]) > models.SMALL else None


def _network_factory(chosen: Recipe, examples: Examples, first: nn.Module) -> MakeNetwork:
    """A factory for the networks that are trained: number 0 has the recipe's seed, the others seeds of their own."""
    shape, classes = examples.input_shape, examples.num_classes

    def make(number: int) -> nn.Module:
        seed = derive_seed(chosen.seed, "network", number) if number else chosen.seed
        if isinstance(first, FrozenNetwork):
            return models.build_head(chosen.model, first.width, classes, seed)
        return models.build(chosen.model, shape, classes, seed, trust=chosen.trust)

    return make
