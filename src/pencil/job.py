"""A whole job: recipe and data in, a finished run out. The command line, ``fit`` and the estimator all come here."""

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import nn

from pencil import models, recipe, runs
from pencil.data.arrays import as_clean_labels, from_arrays
from pencil.data.corrupt import transition_matrix
from pencil.data.examples import Examples, Splits
from pencil.data.geometry import default_workers
from pencil.data.hugging_face import from_hugging_face, is_hugging_face
from pencil.data.images import ImageInputs
from pencil.data.inspection import Findings, count_classes, inspect, refusals
from pencil.data.prepare import PreparedData, choose_rows, prepare
from pencil.data.settings import FROM_PYTHON
from pencil.data.sources import load
from pencil.data.table import Columns
from pencil.data.torch_dataset import from_dataset
from pencil.errors import PencilError, RecipeError
from pencil.label_table import label_table
from pencil.methods import Method, find_method
from pencil.progress import show_progress
from pencil.recipe import Recipe
from pencil.runs import Run
from pencil.seeding import derive_seed
from pencil.training import Observer, Trainer


def run_recipe(chosen: Recipe, out: Path | str | None = None, *, progress: bool | None = None) -> Run:
    """Run a recipe from beginning to end, writing to ``out`` where it is given."""
    return execute(assemble(chosen, load(chosen.data)), out, progress=progress)


def fit(
    model: nn.Module | str,
    data: Any,
    *,
    out: Path | str | None = None,
    method: Method | str = "pencil",
    test: Any = None,
    classes: Sequence[str] | int | None = None,
    clean_labels: Any = None,
    epochs: int | None = None,
    seed: int = 0,
    settings: Mapping[str, Any] | None = None,
    progress: bool | None = None,
) -> Run:
    """Train on labels that may be wrong; get a network that did not learn the mistakes, and corrected labels.

    ``model`` is any ``nn.Module`` that gives one logit per class (it is copied, never changed) or a backbone by name.
    ``data`` and ``test`` are map-style datasets of ``(x, y)`` or pairs of arrays. ``clean_labels`` serve metrics only.
    ``settings`` override any key of a recipe, for example ``{"training.batch_size": 64, "method.step": 4.0}``.
    """
    tree: recipe.Tree = {"name": "fit", "seed": seed, "data": {"source": FROM_PYTHON}}
    tree["method"] = {"name": method if isinstance(method, str) else recipe.CUSTOM}
    if epochs is not None:
        tree["training"] = {"epochs": epochs}
    tree["model"] = {"name": model if isinstance(model, str) else recipe.CUSTOM}
    for key, value in (settings or {}).items():
        section = key.split(".")[0]
        if section in ("model", "method") and tree[section]["name"] == recipe.CUSTOM:
            raise RecipeError(f"settings has {key!r}, but {section} is an object; give it its numbers itself.")
        tree = recipe.assign(tree, key.split("."), value)
    chosen = recipe.parse(tree, "the call to pencil.fit")
    workers = chosen.data.workers or 0
    columns = chosen.data.columns
    train = as_examples(data, classes or chosen.data.classes, clean_labels, workers, columns)
    held = None if test is None else as_examples(test, train.classes, None, workers, columns)
    own_model = None if isinstance(model, str) else model
    own_method = None if isinstance(method, str) else method
    return execute(
        assemble(chosen, Splits(train, test=held), model=own_model, method=own_method), out, progress=progress
    )


def as_examples(
    data: Any,
    classes: Sequence[str] | int | None = None,
    clean_labels: Any = None,
    workers: int = 0,
    columns: Columns | None = None,
) -> Examples:
    """Examples as they are, a pair of arrays, or any map-style dataset."""
    if isinstance(data, Examples):
        return data
    if is_hugging_face(data):
        examples = from_hugging_face(data, columns, None if isinstance(classes, int) else classes)
        known = as_clean_labels(clean_labels, examples.classes)
        return examples if known is None else replace(examples, clean_labels=known)
    if isinstance(data, tuple) and len(data) == 2:
        return from_arrays(*data, classes=classes, clean_labels=clean_labels)
    return from_dataset(data, classes=classes, clean_labels=clean_labels, workers=workers)


@dataclass(frozen=True)
class Job:
    """A recipe with everything it names brought to life; nothing has been trained or written yet."""

    recipe: Recipe
    prepared: PreparedData
    network: nn.Module
    method: Method
    weights: dict[str, str] | None = None
    fingerprints: Mapping[str, str] = field(default_factory=dict)
    make_network: Callable[[int], nn.Module] | None = None

    def trainer(self, observers: tuple[Observer, ...] = ()) -> Trainer:
        return Trainer(
            self.network,
            self.prepared.splits,
            self.method,
            self.recipe.training,
            seed=self.recipe.seed,
            augmentation=self.recipe.data.augmentation,
            observers=observers,
            make_network=self.make_network,
        )


def assemble(
    chosen: Recipe,
    loaded: Splits,
    *,
    model: nn.Module | None = None,
    method: Method | None = None,
) -> Job:
    """Prepare the data and build network and method; what was left to be derived is filled into the recipe."""
    prepared = prepare(chosen.data, loaded, chosen.seed)
    examples = prepared.splits.train
    weights, make_network = None, None
    if model is None:
        chosen = chosen.model_copy(update={"model": models.resolve(chosen.model, examples.input_shape)})
        make_network = _network_maker(chosen, examples)
        network = make_network(0)
        weights = models.provenance(chosen.model, network, examples.num_classes)
    else:
        network = copy.deepcopy(model)
    chosen = _tell_transition(chosen.model_copy(update={"data": prepared.settings}), examples)
    trained_by = chosen.build_method() if method is None else copy.deepcopy(method)
    fingerprints = {name: part.fingerprint() for name, part in vars(loaded).items() if part is not None}
    return Job(chosen, prepared, network, trained_by, weights, fingerprints, make_network)


def _tell_transition(chosen: Recipe, examples: Examples) -> Recipe:
    """Methods whose definition needs the true transition matrix get that of injected noise, where none is given."""
    name = chosen.method["name"]
    if name == recipe.CUSTOM or not find_method(name).needs_transition or "transition" in chosen.method:
        return chosen
    matrix = transition_matrix(chosen.data.noise, examples.classes)
    if matrix is None:
        return chosen
    return chosen.model_copy(update={"method": {**chosen.method, "transition": matrix.tolist()}})


def _network_maker(chosen: Recipe, examples: Examples) -> Callable[[int], nn.Module]:
    """Networks as the recipe names them: number 0 has the recipe's seed, the others seeds of their own."""
    shape, classes = examples.input_shape, examples.num_classes

    def make(number: int) -> nn.Module:
        seed = derive_seed(chosen.seed, "network", number) if number else chosen.seed
        return models.build(chosen.model, shape, classes, seed)

    return make


def execute(job: Job, out: Path | str | None = None, *, progress: bool | None = None) -> Run:
    """Train, and gather the results. All refusals come before anything is written."""
    directory = None if out is None else runs.RunDirectory(Path(out))
    splits = job.prepared.splits
    with show_progress(progress) as display:
        trainer = job.trainer(display if directory is None else (directory, *display))
        if directory is not None:
            directory.begin(job.recipe, runs.describe_environment(job.fingerprints, job.weights))
        outcome = trainer.run()
    run = Run(
        outcome.model,
        label_table(splits, outcome.label_probs, outcome.validation_probs),
        outcome.records,
        runs.summarize(splits, outcome, job.recipe, job.prepared.noise_rate),
        job.recipe,
        None if directory is None else directory.path,
    )
    if directory is not None:
        directory.finish(run, outcome.best_weights)
    return run


@dataclass(frozen=True)
class Rehearsal:
    """What `pencil check` says: all about the data, the plan, and everything for which training would be refused."""

    data: dict[str, Examples]
    findings: dict[str, Findings]
    plan: dict[str, Any] | None
    problems: tuple[PencilError, ...]


def rehearse(chosen: Recipe) -> Rehearsal:
    """Everything short of training: look at every row, then corrupt, split, build, lay out the phases."""
    loaded, settings = load(chosen.data), chosen.data
    loaded = replace(loaded, train=choose_rows(settings, loaded.train, chosen.seed))
    parts = {name: _limited(part, settings.max_pixels) for name, part in vars(loaded).items() if part is not None}
    workers = default_workers() if settings.workers is None else settings.workers
    findings = {name: inspect(part, workers) for name, part in parts.items()}
    problems: list[PencilError] = [p for name, found in findings.items() for p in refusals(found, name, settings)]
    by_instance = settings.noise is not None and settings.noise.kind == "instance"  # which looks at pixels in memory
    cache = settings.cache if by_instance else "none"
    trial = settings.model_copy(update={"rows": None, "cache": cache, "unreadable": "skip"})
    plan = None
    if all(found.rows > len(found.unreadable) for found in findings.values()):  # else it is among the problems already
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message=".*the row is left out")  # the findings name them all
                job = assemble(chosen.model_copy(update={"data": trial}), Splits(**parts))
                plan = _plan(job, job.trainer())
        except PencilError as error:
            problems.append(error)
    return Rehearsal(parts, findings, plan, tuple(problems))


def _limited(examples: Examples, max_pixels: int) -> Examples:
    inputs = examples.inputs
    if not isinstance(inputs, ImageInputs):
        return examples
    return replace(examples, inputs=replace(inputs, max_pixels=max_pixels))


def _plan(job: Job, trainer: Trainer) -> dict[str, Any]:
    train = job.prepared.splits.train
    return {
        "rows": job.prepared.splits.sizes(),
        "class_counts": count_classes(train),
        "input_shape": list(train.input_shape),
        "injected_noise_rate": job.prepared.noise_rate,
        "model": job.recipe.model.name,
        "parameters": sum(parameter.numel() for parameter in job.network.parameters()),
        "phases": [{"name": phase.name, "epochs": phase.epochs} for phase in trainer.phases],
    }
