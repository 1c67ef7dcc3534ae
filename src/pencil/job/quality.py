"""Chooses between fast and better features of photos or texts, by how long the better ones take on this machine.

Better features are used if they take at most half of the time budget, or :data:`PATIENCE` if there is no budget.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from pencil import models
from pencil.data.examples import Examples, Splits
from pencil.data.inputs.feature_store import FeatureStore, store_folder
from pencil.data.inputs.geometry import image_size, input_shape
from pencil.data.inputs.sentences import WIDTH, is_installed, sentence_folder, text_digest
from pencil.data.inputs.text import AUTO, IN_BOX, SENTENCES, embed_texts, evenly_spaced
from pencil.data.prepare import prepare_inputs
from pencil.errors import setting
from pencil.job.network import with_network
from pencil.models import FrozenNetwork
from pencil.recipe import Recipe
from pencil.terminal import duration
from pencil.training.features import count_missing, store_name
from pencil.training.timing import estimate_features

PATIENCE = 10.0
"""Minutes that features may take if the recipe sets no time budget."""
SHARE = 0.5
"""Fraction of a time budget that features may take."""
SAMPLE, TIMED = 500, 32
"""Numbers of rows looked up in the cache and of texts timed, to estimate the time for all rows."""
SECONDS = 1.0
"""Approximate time spent on the estimate for one network."""


@dataclass(frozen=True)
class Quality:
    """The chosen features.

    Parameters
    ----------
    key
        The key of the recipe that selects the features.
    rows
        The rows that the features describe, such as "3,000 images".
    fast, best
        The names of the fast and of the better features, and the seconds that each are estimated to take.
    minutes
        The time that the better features may take.
    """

    key: str
    rows: str
    fast: tuple[str, float]
    best: tuple[str, float]
    minutes: float

    @property
    def name(self) -> str:
        """The name of the chosen features."""
        return (self.best if self.best[1] <= 60 * self.minutes else self.fast)[0]

    def chosen(self, recipe: Recipe) -> Recipe:
        """Return the recipe with the chosen features."""
        section, field = self.key.split(".")
        return recipe.model_copy(update={section: getattr(recipe, section).model_copy(update={field: self.name})})

    def describe(self) -> str:
        """Return a sentence that states the choice and how to change it."""
        used, other = (self.best, self.fast) if self.name == self.best[0] else (self.fast, self.best)
        return (
            f"features of {self.rows}: {used[0]}, about {duration(used[1])} on this machine; {other[0]} would take "
            f"about {duration(other[1])} ({setting(self.key, other[0])})"
        )


def choose_quality(recipe: Recipe, loaded: Splits, *, gpu: bool = False) -> Quality | None:
    """Time a few features of each kind and return the choice; None if there is nothing to choose.

    Parameters
    ----------
    recipe, loaded
        The recipe, and its data as loaded.
    gpu
        Whether the run has a GPU, on which the whole network is trained by default.
    """
    minutes = PATIENCE if recipe.training.minutes is None else SHARE * recipe.training.minutes
    rows = sum(len(part) for part in vars(loaded).values() if part is not None)
    rows -= len(loaded.train) - min(len(loaded.train), recipe.data.rows or len(loaded.train))
    if loaded.train.inputs.records is not None:
        return _of_texts(recipe, loaded.train, rows, minutes)
    if recipe.model.name != AUTO or recipe.model.finetune_epochs:  # fine-tuning takes far longer than features
        return None
    fast = with_network(recipe, loaded, gpu=gpu)
    if (fast.model.name, fast.model.train) != (models.FAST, "head"):
        return None
    best = fast.model_copy(update={"model": fast.model.model_copy(update={"name": models.BEST})})
    one, other = ((each.model.name, _seconds_of_images(each, loaded.train, rows)) for each in (fast, best))
    return Quality("model.name", f"{rows:,} images", one, other, minutes)


def _of_texts(recipe: Recipe, train: Examples, rows: int, minutes: float) -> Quality | None:
    """Return the choice of text vectors; None if there is nothing to choose."""
    records, cache = train.inputs.records, recipe.data.cache
    assert records is not None
    columns = records.roles.of("text")
    if recipe.data.text_model != AUTO or not columns or not is_installed():
        return None
    texts = records.take(_some(train).rows).texts(columns)
    one, other = ((name, rows * _seconds_per_text(texts, name, cache)) for name in (IN_BOX, SENTENCES))
    return Quality("data.text_model", f"{rows:,} texts", one, other, minutes)


def _seconds_per_text(texts: Sequence[str], model: str, cache: str) -> float:
    """Return the mean time per text; vectors in the cache take no time."""
    folder, missing = sentence_folder(cache), 1.0
    if model == SENTENCES and folder is not None and folder.is_dir():
        digests = [text_digest(text) for text in texts]
        missing = len(FeatureStore(folder, WIDTH).missing(digests)) / len(set(digests))
    some = [texts[place] for place in evenly_spaced(len(texts), TIMED)]
    embed_texts(some[:1], model, None)  # loads the model
    started = time.perf_counter()
    embed_texts(some, model, None)
    return missing * (time.perf_counter() - started) / len(some)


def _seconds_of_images(recipe: Recipe, train: Examples, rows: int) -> float:
    """Return the time for the features of this many images; features in the cache take no time."""
    size = image_size(recipe.data, train.inputs)
    data = recipe.data.model_copy(update={"resize": size or "none"})
    network = models.build(recipe.model, input_shape(data, train), train.num_classes, recipe.seed)
    assert isinstance(network, FrozenNetwork)
    sample = Splits(replace(_some(train), inputs=prepare_inputs(train.inputs, data)))
    folder = store_folder(data.cache, store_name(recipe.model, network, data))
    missing = count_missing(sample, network.width, folder) / len(sample.train)
    return estimate_features(sample, network, round(missing * rows), SECONDS)


def _some(train: Examples) -> Examples:
    """Return a sample of evenly spaced rows."""
    return train.subset(torch.from_numpy(evenly_spaced(len(train), SAMPLE)))
