"""Which network suits small colour images: a small CNN from scratch, or a head on features of a pretrained network.

Small images may be thumbnails of photos, of which a pretrained network knows much, or drawings and plots, of which it
knows little. Both networks are trained for a moment on some of the rows, and held-out labels decide.
"""

import math
from dataclasses import dataclass

import torch

from pencil import models
from pencil.assembly import assemble
from pencil.data.augment import Augmentation
from pencil.data.examples import Splits
from pencil.data.geometry import input_shape
from pencil.models import ModelSettings
from pencil.recipe import Recipe
from pencil.seeding import generator

SMALLEST = 24
"""Pixels; less cannot be enlarged to a photo."""
FEWEST, MOST = 500, 4000
"""Rows that a trial needs, and the most that it takes; one in eight of them is held out."""
EPOCHS = 8
LEAST_MINUTES = 10
"""A smaller time budget has no room for a trial."""
GROWTH = 0.05
"""With every doubling of the rows a small CNN gains about this fraction of its accuracy on a head."""
CNN = ModelSettings(name="small_cnn", pretrained=False, train="all")
HEAD = ModelSettings(name=models.PHOTOS, pretrained=True, train="head")


@dataclass(frozen=True)
class Trial:
    """The result of a trial.

    Parameters
    ----------
    rows
        How many rows it took.
    cnn, head
        Accuracy on held-out given labels, of the small CNN and of the head.
    lead
        How much better the head must be, since a CNN gains more from the rows that were left out.
    """

    rows: int
    cnn: float
    head: float
    lead: float

    @property
    def model(self) -> ModelSettings:
        """The network that is trained."""
        return HEAD if self.head > self.cnn + self.lead else CNN

    def chosen(self, model: ModelSettings) -> ModelSettings:
        """Return the settings with the network of the trial in them."""
        return model.model_copy(update=self.model.model_dump(include={"name", "pretrained", "train"}))

    def describe(self) -> str:
        """Return the result in a sentence."""
        return (
            f"network: {self.model.name}; in a trial on {self.rows:,} rows a head on features of {HEAD.name} agreed "
            f"with {self.head:.1%} of the held-out labels, {CNN.name} with {self.cnn:.1%}"
        )


def try_networks(chosen: Recipe, loaded: Splits, *, gpu: bool = False) -> Trial | None:
    """Train both networks on some rows; None where the recipe or the data leaves no choice."""
    if gpu or not is_open(chosen, loaded):
        return None
    available = _available(chosen, loaded)
    rows = min(available, MOST)
    some = torch.randperm(len(loaded.train), generator=generator(chosen.seed, "trial"))[:rows].sort().values
    data = chosen.data.model_copy(update={"validation": 1 / 8, "rows": None, "test": None, "pinned": None})
    changed = {"data": data, "training": chosen.training.model_copy(update={"epochs": EPOCHS, "minutes": None})}
    plain = chosen.with_method("cross_entropy").model_copy(update=changed)
    scores = []
    for model in (CNN, HEAD):
        job = assemble(plain.model_copy(update={"model": model}), Splits(loaded.train.subset(some))).with_features()
        records = job.trainer().run().records
        scores.append(max(record["validation_accuracy"] for record in records))
    error = math.sqrt(0.25 / (rows / 8))  # of an accuracy
    cnn, head = scores
    return Trial(rows, cnn, head, lead=error + GROWTH * max(cnn, head) * math.log2(available / rows))


def _available(chosen: Recipe, loaded: Splits) -> int:
    """How many rows the run will have."""
    return min(len(loaded.train), chosen.data.rows or len(loaded.train))


def is_open(chosen: Recipe, loaded: Splits) -> bool:
    """Return whether the network is ours to choose, and the inputs are small colour images, enough of them."""
    model, train = chosen.model, loaded.train
    given = (model.name, model.train, model.weights, model.attention, model.options, model.finetune_epochs)
    if given != ("auto", "auto", None, False, {}, 0) or model.pretrained is not None:
        return False
    if chosen.training.minutes is not None and chosen.training.minutes < LEAST_MINUTES:
        return False
    if (
        chosen.data.augmentation not in (None, Augmentation())
        or train.multilabel
        or _available(chosen, loaded) < FEWEST
    ):
        return False
    if chosen.data.long_tail is not None or train.inputs.channels != 3 or train.inputs.dtype != torch.uint8:
        return False
    shape = input_shape(chosen.data, train)
    return len(shape) == 3 and min(shape[1:]) >= SMALLEST and max(shape) <= models.SMALL
