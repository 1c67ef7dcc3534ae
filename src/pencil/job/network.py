"""Chooses the network and the data settings that it needs.

The shape of the inputs decides: an MLP for vectors, a small CNN for small images, a head on the features of a
pretrained network for photos. Small colour images may be thumbnails of photos, which suit a pretrained network, or
drawings and plots, which do not: both networks are trained briefly on some of the rows, and held-out labels decide.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pencil import models
from pencil.data.examples import Splits
from pencil.data.inputs.augment import PHOTOS, Augmentation
from pencil.data.inputs.base import Inputs
from pencil.data.inputs.geometry import input_shape
from pencil.data.settings import DataSettings
from pencil.errors import ModelError
from pencil.models import ModelSettings
from pencil.recipe import Recipe
from pencil.seeding import generator

SMALLEST = 24
"""Minimum side in pixels; smaller images cannot be enlarged to a photo."""
FEWEST, MOST = 500, 4000
"""Minimum and maximum rows of a trial; one in eight is held out."""
EPOCHS = 8
LEAST_MINUTES = 10
"""Minimum time budget for a trial."""
GROWTH = 0.05
"""Relative accuracy that a small CNN gains on a head with every doubling of the rows."""
CNN = ModelSettings(name="small_cnn", pretrained=False, train="all")
HEAD = ModelSettings(name=models.FAST, pretrained=True, train="head")


@dataclass(frozen=True)
class Trial:
    """The result of a trial.

    Parameters
    ----------
    rows
        Number of rows in the trial.
    cnn, head
        Accuracy on held-out given labels, of the small CNN and of the head.
    lead
        Required lead of the head, because a CNN gains more from the rows outside the trial.
    """

    rows: int
    cnn: float
    head: float
    lead: float

    @property
    def model(self) -> ModelSettings:
        """The chosen network."""
        return HEAD if self.head > self.cnn + self.lead else CNN

    def chosen(self, recipe: Recipe) -> Recipe:
        """Return the recipe with the chosen network; which one the head belongs to is still open."""
        open_name = {"name"} if self.model == HEAD else set()
        network = self.model.model_dump(include={"name", "pretrained", "train"} - open_name)
        return recipe.model_copy(update={"model": recipe.model.model_copy(update=network)})

    def describe(self) -> str:
        """Return the result in a sentence."""
        chosen = "a head on features" if self.model == HEAD else CNN.name
        return (
            f"network: {chosen}; in a trial on {self.rows:,} rows, a head on features of {HEAD.name} agreed "
            f"with {self.head:.1%} of the held-out labels and {CNN.name} with {self.cnn:.1%}"
        )


def try_networks(
    recipe: Recipe, loaded: Splits, train: Callable[[Recipe, Splits], float], *, gpu: bool = False
) -> Trial | None:
    """Train both networks on some rows; return None if recipe and data determine the network.

    Parameters
    ----------
    recipe, loaded
        The recipe, and its data as loaded.
    train
        Trains a recipe and returns the best accuracy on held-out labels.
    gpu
        Whether the whole network is trained on a GPU, which does not need features.
    """
    if gpu or not needs_trial(recipe, loaded):
        return None
    available = _available(recipe, loaded)
    rows = min(available, MOST)
    some = torch.randperm(len(loaded.train), generator=generator(recipe.seed, "trial"))[:rows].sort().values
    data = recipe.data.model_copy(update={"validation": 1 / 8, "rows": None, "test": None, "pinned": None})
    changed = {"data": data, "training": recipe.training.model_copy(update={"epochs": EPOCHS, "minutes": None})}
    plain = recipe.with_method("cross_entropy").model_copy(update=changed)
    cnn, head = (
        train(plain.model_copy(update={"model": model}), Splits(loaded.train.subset(some))) for model in (CNN, HEAD)
    )
    error = math.sqrt(0.25 / (rows / 8))  # standard error of an accuracy
    return Trial(rows, cnn, head, lead=error + GROWTH * max(cnn, head) * math.log2(available / rows))


def needs_trial(recipe: Recipe, loaded: Splits) -> bool:
    """Return whether the network is not set and the inputs are enough small colour images."""
    model, train = recipe.model, loaded.train
    given = (model.name, model.train, model.weights, model.attention, model.options, model.finetune_epochs)
    if given != ("auto", "auto", None, False, {}, 0) or model.pretrained is not None:
        return False
    if recipe.training.minutes is not None and recipe.training.minutes < LEAST_MINUTES:
        return False
    if _is_augmented(recipe) or train.multilabel or _available(recipe, loaded) < FEWEST:
        return False
    if recipe.data.long_tail is not None or train.inputs.channels != 3 or train.inputs.dtype != torch.uint8:
        return False
    shape = input_shape(recipe.data, train)
    return len(shape) == 3 and min(shape[1:]) >= SMALLEST and max(shape) <= models.SMALL


def with_network(recipe: Recipe, loaded: Splits, *, gpu: bool) -> Recipe:
    """Return the recipe with every open setting of the network chosen, and data settings that suit the network.

    Inputs are normalised as for the pretrained weights. Photos are augmented if the whole network is trained.
    """
    shape = input_shape(recipe.data, loaded.train)
    model = resolve(recipe.model, shape, gpu=gpu, augmented=_is_augmented(recipe))
    data, inputs, changed = recipe.data, loaded.train.inputs, dict[str, Any]()
    normalization = models.expected_normalization(model)
    if data.normalize == "auto" and normalization is not None and inputs.channels == len(normalization.mean):
        changed["normalize"] = normalization
    if data.augmentation is None and model.train == "all":
        changed["augmentation"] = photo_augmentation(inputs, shape)
    return recipe.model_copy(update={"model": model, "data": data.model_copy(update=changed)})


def resolve(
    settings: ModelSettings, input_shape: Sequence[int], *, gpu: bool = False, augmented: bool = False
) -> ModelSettings:
    """Return the settings with every ``auto`` replaced.

    The network is an MLP for vectors, a small CNN for images of up to 64 pixels, and a pretrained network for larger
    images. Only the head of a pretrained network is trained, unless there is a GPU or the images are augmented.

    Parameters
    ----------
    settings : ModelSettings
        The given settings.
    input_shape : sequence of int
        The shape of one input, without the batch dimension.
    gpu : bool
        Whether the network is trained on a GPU.
    augmented : bool
        Whether images are augmented in every epoch, so that features cannot be computed once.
    """
    if settings.name == "auto":
        images = len(input_shape) == 3
        wants_head = settings.train == "head" or settings.finetune_epochs > 0
        photos = images and (max(input_shape[1:]) > models.SMALL or wants_head)
        name = models.FAST if photos else "small_cnn" if images else "mlp"
        settings = settings.model_copy(update={"name": name})
    if settings.pretrained is None:
        pretrained = models.names_weights(settings.name) and settings.weights is None
        settings = settings.model_copy(update={"pretrained": pretrained})
    if settings.train == "all" and settings.finetune_epochs:
        raise ModelError(
            f"model.finetune_epochs is {settings.finetune_epochs} and model.train is all; expected model.train head, "
            "because all already trains the whole network; remove one of them."
        )
    if settings.train == "auto" and settings.finetune_epochs:
        settings = settings.model_copy(update={"train": "head"})
    if settings.train == "auto":
        head = settings.pretrained and len(input_shape) == 3 and not (settings.attention or gpu or augmented)
        settings = settings.model_copy(update={"train": "head" if head else "all"})
    if settings.train == "head":
        _refuse_head(settings, input_shape, augmented)
    return settings


def _refuse_head(settings: ModelSettings, input_shape: Sequence[int], augmented: bool) -> None:
    """Raise ModelError if there are no features to train a head on, or if they change in every epoch."""
    has_weights = settings.pretrained or settings.weights is not None
    needed = {
        "the inputs are not images": len(input_shape) != 3,
        f"model {settings.name!r} has random weights; set model.pretrained, or model.weights": not has_weights,
        "the attention structure cannot be trained on features": settings.attention,
        "data.augmentation is set, but features are computed only once": augmented,
    }
    for reason, holds in needed.items():
        if holds:
            epochs = settings.finetune_epochs
            asked = f"model.finetune_epochs is {epochs}, after a head," if epochs else "model.train is head,"
            instead = "remove model.finetune_epochs" if epochs else "set model.train to all"
            raise ModelError(
                f"{asked} but {reason}; expected a pretrained network and images without augmentation; or {instead}."
            )


def decoded_images(recipe: Recipe) -> str:
    """Return where decoded images are cached, as in ``data.cache``.

    Features are computed once, so images are not cached for them, except for instance-dependent noise, which needs the
    pixels in memory.
    """
    data: DataSettings = recipe.data
    looks_at_pixels = data.noise is not None and "instance" in data.noise.kinds
    return "none" if recipe.model.train == "head" and data.cache == "auto" and not looks_at_pixels else data.cache


def photo_augmentation(inputs: Inputs, shape: Sequence[int]) -> Augmentation | None:
    """Return the preset for photos if the whole network is trained; None for other inputs."""
    in_colour = inputs.dtype == torch.uint8 and inputs.channels == 3
    return PHOTOS if in_colour and len(shape) == 3 and max(shape[1:]) > models.SMALL else None


def _is_augmented(recipe: Recipe) -> bool:
    """Whether an image is another one in every epoch, so that its features cannot be computed once."""
    return recipe.data.augmentation not in (None, Augmentation())


def _available(recipe: Recipe, loaded: Splits) -> int:
    """Number of rows of the run."""
    return min(len(loaded.train), recipe.data.rows or len(loaded.train))
